//! The limits that hold for the process, on the way from its control group up.

use std::fmt;
use std::path::{Path, PathBuf};

use memcg::{Bytes, Percent};

use crate::layout::{Layout, Levels, Shown};
use crate::{HostError, files};

/// A group on the way up, with what limits it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) dir: PathBuf,
    /// The limit above which the kernel kills.
    pub(crate) max: Option<HostLimit>,
    /// The limit above which the kernel slows processes down.
    pub(crate) high: Option<HostLimit>,
    /// Memory and swap together: version 1.
    pub(crate) both: Option<HostLimit>,
    /// Swap alone: version 2.
    swap: Option<HostLimit>,
}

/// Version 1 writes "no limit" as the largest number of whole pages; with pages of 64 KiB it is
/// this one.
const UNLIMITED_V1: u64 = i64::MAX as u64 & !0xFFFF;

/// The memory that the system grants this process: see [`Host::limits`](crate::Host::limits).
///
/// It prints as one line: how many bytes, and what decides that.
#[derive(Debug)]
#[non_exhaustive]
pub struct HostLimits {
    /// The memory of the machine, in bytes, without what is set aside for huge pages: no other use
    /// may have that.
    pub machine: u64,
    /// The least `memory.max` on the way up: the kernel kills a process that would pass it.
    pub max: Option<HostLimit>,
    /// The least `memory.high` on the way up: above it the kernel slows the group down. Version 1
    /// has none. A zero is no limit to live by: operators write it to make the kernel reclaim, and
    /// the kernel kills no process for it.
    pub high: Option<HostLimit>,
    /// The bytes that may be swapped out: the least limit of swap on the way up, or the machine's
    /// swap.
    pub swap: u64,
    /// Which version of control groups limits memory here; 0 where none does.
    pub version: u8,
    /// Why less is known than there is: files that are there and could not be read, an own group that
    /// no mount shows. Where this is empty, the own group's limit is among those that were read.
    pub unread: Vec<HostError>,
    /// The groups that were read, the own one first.
    pub(crate) levels: Vec<Level>,
    /// Where they are.
    place: Levels,
}

/// One limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostLimit {
    /// In bytes.
    pub bytes: u64,
    /// The file that says so.
    pub path: PathBuf,
}

impl HostLimits {
    /// Returns the bytes that the process may use before the system slows it down or kills it: the
    /// least of the machine's memory, max and high.
    pub fn bytes(&self) -> u64 {
        self.binding().map_or(self.machine, |limit| limit.bytes)
    }

    /// Returns the limit that decides [`bytes`](Self::bytes); `None` where it is the machine's
    /// memory.
    pub fn binding(&self) -> Option<&HostLimit> {
        let limits = self.max.iter().chain(&self.high);
        limits
            .min_by_key(|limit| limit.bytes)
            .filter(|limit| limit.bytes < self.machine)
    }

    /// Returns a share of [`bytes`](Self::bytes), rounded down.
    ///
    /// ```
    /// let limits = memcg_host::Host::new().limits()?;
    /// let share = limits.share(memcg::Percent::new(80).unwrap());
    /// assert!(share <= limits.bytes() && limits.bytes() <= limits.machine);
    /// # Ok::<(), memcg_host::HostError>(())
    /// ```
    pub fn share(&self, share: Percent) -> u64 {
        share.of(self.bytes())
    }

    /// Returns the limits if all that is there was read: for a service that would rather not start.
    ///
    /// ```
    /// let limits = memcg_host::Host::new().limits()?.whole()?;
    /// assert!(limits.unread.is_empty());
    /// # Ok::<(), memcg_host::HostError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The first of [`unread`](Self::unread).
    pub fn whole(mut self) -> Result<HostLimits, HostError> {
        if self.unread.is_empty() {
            Ok(self)
        } else {
            Err(self.unread.swap_remove(0))
        }
    }

    pub(crate) fn read(root: &Path) -> Result<HostLimits, HostError> {
        let path = files::meminfo(root);
        let meminfo = files::read(&path)?;
        let figure = |key| files::number(&meminfo, key);
        let Some(total) = figure("MemTotal") else {
            return Err(HostError::malformed(path, "a line MemTotal", &meminfo));
        };
        // `Hugetlb` has the pages of all sizes; an older kernel tells those of one size alone.
        let of_one_size = figure("HugePages_Total").zip(figure("Hugepagesize"));
        let huge =
            figure("Hugetlb").or(of_one_size.map(|(pages, size)| pages.saturating_mul(size)));
        let machine = total.saturating_sub(huge.unwrap_or(0));
        let swap = figure("SwapTotal").unwrap_or(0);
        let Layout { v1, v2, faults } = Layout::find(root);
        let (version, levels) = match (v1, v2) {
            (Some(levels), _) => (1, levels),
            (None, Some(levels)) => (2, levels),
            (None, None) => (0, Levels::default()),
        };
        let mut limits = HostLimits {
            machine,
            max: None,
            high: None,
            swap,
            version: 0,
            unread: faults,
            levels: Vec::new(),
            place: Levels::default(),
        };
        if version == 1 {
            limits.add_v1(&levels.shown)
        } else {
            limits.add_v2(&levels.shown)
        }
        limits.place = levels;
        let has_limits = |level: &Level| level.max.is_some() || level.high.is_some();
        if limits.levels.iter().any(has_limits) {
            limits.version = version;
        }
        limits.add_up();
        Ok(limits)
    }

    /// A group whose limit was known `before` and is not now, though it holds: a mount may hide it, or
    /// the process is in another namespace. Or its directory is there, and a file of limits that it
    /// had is not: something may hide that, too. Where the controller was switched off there, the
    /// limit is gone, but no file says so.
    pub(crate) fn no_longer_shown(&self, before: &HostLimits) -> Option<HostError> {
        let group = self.place.no_longer_shows(&before.place);
        let path = group.or_else(|| before.levels.iter().find_map(|then| self.file_gone(then)))?;
        Some(HostError::NoLongerShown { path })
    }

    /// The file of a limit that a level had `then` and has no more.
    fn file_gone(&self, then: &Level) -> Option<PathBuf> {
        let now = self.levels.iter().find(|now| now.dir == then.dir)?;
        // Mutation: a-limit-with-swap-that-is-gone-is-not-missed
        [(&then.max, &now.max), (&then.both, &now.both)]
            .into_iter()
            .find_map(|(then, now)| then.as_ref().filter(|_| now.is_none()))
            .map(|limit| limit.path.clone())
    }

    /// The least on the way up.
    fn add_up(&mut self) {
        let mut both = None;
        for level in &self.levels {
            self.max = least(self.max.take(), level.max.clone());
            self.high = least(self.high.take(), level.high.clone());
            both = least(both, level.both.clone());
            // Mutation: swap-is-that-of-the-highest-level
            self.swap = level
                .swap
                .as_ref()
                .map_or(self.swap, |swap| self.swap.min(swap.bytes));
        }
        if let Some(both) = both {
            let memory = self
                .max
                .as_ref()
                .map_or(self.machine, |max| max.bytes)
                .min(self.machine);
            self.swap = self.swap.min(both.bytes.saturating_sub(memory));
            self.max = least(self.max.take(), Some(both));
        }
    }

    fn add_v2(&mut self, shown: &[Shown]) {
        for Shown { dir, .. } in shown {
            // The group at the top of a hierarchy has no limits, and neither has one without the
            // controller.
            let mut limit =
                |name: &str| self.limit(dir.join(name), |text| (text == "max").then_some(u64::MAX));
            let [max, high, swap] =
                ["memory.max", "memory.high", "memory.swap.max"].map(&mut limit);
            let high = high.filter(|high| high.bytes > 0);
            self.levels.push(Level {
                dir: dir.clone(),
                max,
                high,
                both: None,
                swap,
            });
        }
    }

    fn add_v1(&mut self, shown: &[Shown]) {
        for (number, Shown { dir, .. }) in shown.iter().enumerate() {
            // A group that does not account for the groups below does not limit them.
            let accounts = files::read_if_there(&dir.join("memory.use_hierarchy"));
            // Mutation: a-level-that-does-not-account-limits
            if number > 0 && matches!(accounts, Ok(Some(text)) if text.trim() == "0") {
                break;
            }
            let mut limit = |name: &str| self.limit(dir.join(name), |_| None);
            let [max, both] =
                ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"].map(&mut limit);
            self.levels.push(Level {
                dir: dir.clone(),
                max,
                both,
                ..Level::default()
            });
        }
        // The kernel's own look up the tree, which also sees groups above the mount. Where it says
        // no less than the files of the levels, they name the limit.
        if let Some(own) = self.levels.first() {
            let path = own.dir.join("memory.stat");
            match files::read_if_there(&path) {
                Ok(text) => {
                    let text = text.unwrap_or_default();
                    let named = |key| {
                        files::number(&text, key).map(|bytes| HostLimit {
                            bytes,
                            path: path.clone(),
                        })
                    };
                    let max = named("hierarchical_memory_limit")
                        .filter(|max| self.is_less(max, |level| &level.max));
                    let both = named("hierarchical_memsw_limit")
                        .filter(|both| self.is_less(both, |level| &level.both));
                    let own = &mut self.levels[0];
                    own.max = max.or(own.max.take());
                    own.both = both.or(own.both.take());
                }
                Err(fault) => self.unread.push(fault),
            }
        }
        // A limit that is not set is `u64::MAX`, as in version 2.
        let all = self
            .levels
            .iter_mut()
            .flat_map(|level| level.max.iter_mut().chain(&mut level.both));
        all.filter(|limit| limit.bytes >= UNLIMITED_V1)
            .for_each(|limit| limit.bytes = u64::MAX);
    }

    fn is_less(&self, limit: &HostLimit, of_level: impl Fn(&Level) -> &Option<HostLimit>) -> bool {
        self.levels
            .iter()
            .filter_map(|level| of_level(level).as_ref())
            .all(|other| limit.bytes < other.bytes)
    }

    /// The limit that a file has, `u64::MAX` for none; `None` where there is no such file, or it
    /// cannot be read.
    fn limit(&mut self, path: PathBuf, word: impl Fn(&str) -> Option<u64>) -> Option<HostLimit> {
        let text = match files::read_if_there(&path) {
            Ok(text) => text?,
            Err(fault) => {
                self.unread.push(fault);
                return None;
            }
        };
        let text = text.trim();
        match text.parse().ok().or_else(|| word(text)) {
            Some(bytes) => Some(HostLimit { bytes, path }),
            None => {
                self.unread
                    .push(HostError::malformed(path, "a number of bytes", text));
                None
            }
        }
    }
}

/// The smaller of two. No limit is larger than `u64::MAX`, which stands for none.
fn least(one: Option<HostLimit>, other: Option<HostLimit>) -> Option<HostLimit> {
    let set = [one, other]
        .into_iter()
        .flatten()
        .filter(|limit| limit.bytes < u64::MAX);
    set.reduce(|least, limit| {
        if limit.bytes < least.bytes {
            limit
        } else {
            least
        }
    })
}

impl Level {
    /// The limits that are set: each with whether it counts what is swapped out, too.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (&HostLimit, bool)> {
        let of_memory = self
            .max
            .iter()
            .chain(&self.high)
            .map(|limit| (limit, false));
        of_memory
            .chain(self.both.iter().map(|limit| (limit, true)))
            .filter(|(limit, _)| limit.bytes < u64::MAX)
    }
}

impl fmt::Display for HostLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.binding() {
            Some(limit) => write!(f, "{}: {}", Bytes(limit.bytes), limit.path.display())?,
            None => write!(f, "{}: the machine's memory", Bytes(self.machine))?,
        }
        match self.unread.as_slice() {
            [] => Ok(()),
            [fault] => write!(f, " ({fault})"),
            [fault, others @ ..] => write!(f, " ({fault}, and {} more)", others.len()),
        }
    }
}
