//! The limits that hold for the process, on the way from its control group up.

use std::fmt;
use std::path::{Path, PathBuf};

use memcg::{Bytes, Percent};

use crate::layout::{Layout, Levels};
use crate::{HostError, files};

/// Version 1 writes "no limit" as the largest number of whole pages; with pages of 64 KiB it is this one.
const UNLIMITED_V1: u64 = i64::MAX as u64 & !0xFFFF;

/// The memory that the system grants this process: see [`Host::limits`](crate::Host::limits).
///
/// It prints as one line: how many bytes, and what decides that.
#[derive(Debug)]
#[non_exhaustive]
pub struct HostLimits {
    /// The memory of the machine, in bytes.
    pub machine: u64,
    /// The least `memory.max` on the way up: the kernel kills a process that would pass it.
    pub max: Option<HostLimit>,
    /// The least `memory.high` on the way up: above it the kernel slows the group down. Version 1 has none.
    pub high: Option<HostLimit>,
    /// The bytes that may be swapped out: the least limit of swap on the way up, or the machine's swap.
    pub swap: u64,
    /// Which version of control groups limits memory here; 0 where none does.
    pub version: u8,
    /// Files that are there and could not be read. What they limit is not known.
    pub unread: Vec<HostError>,
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
    /// Returns the bytes that the process may use before the system slows it down or kills it: the least of the machine's
    /// memory, max and high.
    pub fn bytes(&self) -> u64 {
        self.binding().map_or(self.machine, |limit| limit.bytes)
    }

    /// Returns the limit that decides [`bytes`](Self::bytes); `None` where it is the machine's memory.
    pub fn binding(&self) -> Option<&HostLimit> {
        let limits = self.max.iter().chain(&self.high);
        limits.min_by_key(|limit| limit.bytes).filter(|limit| limit.bytes < self.machine)
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
        let bytes = u128::from(self.bytes()) * u128::from(share.get()) / 100;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    pub(crate) fn read(root: &Path) -> Result<HostLimits, HostError> {
        let path = root.join("proc/meminfo");
        let meminfo = files::read(&path)?;
        let Some(machine) = files::number(&meminfo, "MemTotal") else {
            return Err(HostError::malformed(path, "a line MemTotal", &meminfo));
        };
        let swap = files::number(&meminfo, "SwapTotal").unwrap_or(0);
        let Layout { v1, v2, faults } = Layout::find(root);
        let mut limits = HostLimits { machine, max: None, high: None, swap, version: 0, unread: faults };
        match (v1, v2) {
            (Some(levels), _) => limits.add_v1(&levels),
            (None, Some(levels)) => limits.add_v2(&levels),
            (None, None) => {}
        }
        Ok(limits)
    }

    fn add_v2(&mut self, levels: &Levels) {
        for level in &levels.0 {
            // The group at the top of a hierarchy has no limits, and neither has one without the controller.
            let mut limit = |name: &str| self.limit(level.join(name), |text| (text == "max").then_some(u64::MAX));
            let [max, high, swap] = ["memory.max", "memory.high", "memory.swap.max"].map(&mut limit);
            if max.is_some() {
                self.version = 2;
            }
            self.max = least(self.max.take(), max);
            self.high = least(self.high.take(), high);
            self.swap = swap.map_or(self.swap, |swap| self.swap.min(swap.bytes));
        }
    }

    fn add_v1(&mut self, levels: &Levels) {
        let mut both: Option<HostLimit> = None;
        for (number, level) in levels.0.iter().enumerate() {
            // A group that does not account for the groups below does not limit them.
            let accounts = files::read_if_there(&level.join("memory.use_hierarchy"));
            if number > 0 && matches!(accounts, Ok(Some(text)) if text.trim() == "0") {
                break;
            }
            let mut limit = |name: &str| self.limit(level.join(name), |_| None);
            let [max, memsw] = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"].map(&mut limit);
            if max.is_some() {
                self.version = 1;
            }
            self.max = least(self.max.take(), max);
            both = least(both, memsw);
        }
        // The kernel's own look up the tree, which also sees groups above the mount.
        if let Some(own) = levels.0.first() {
            let path = own.join("memory.stat");
            match files::read_if_there(&path) {
                Ok(text) => {
                    let text = text.unwrap_or_default();
                    let named = |key| files::number(&text, key).map(|bytes| HostLimit { bytes, path: path.clone() });
                    self.max = least(self.max.take(), named("hierarchical_memory_limit"));
                    both = least(both, named("hierarchical_memsw_limit"));
                }
                Err(fault) => self.unread.push(fault),
            }
        }
        let is_set = |limit: &HostLimit| limit.bytes < UNLIMITED_V1;
        self.max = self.max.take().filter(is_set);
        if let Some(both) = both.filter(is_set) {
            // Memory and swap together.
            let memory = self.max.as_ref().map_or(self.machine, |max| max.bytes).min(self.machine);
            self.swap = self.swap.min(both.bytes.saturating_sub(memory));
            self.max = least(self.max.take(), Some(both));
        }
    }

    /// The limit that a file has, `u64::MAX` for none; `None` where there is no such file, or it cannot be read.
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
                self.unread.push(HostError::malformed(path, "a number of bytes", text));
                None
            }
        }
    }
}

/// The smaller of two. No limit is larger than `u64::MAX`, which stands for none.
fn least(one: Option<HostLimit>, other: Option<HostLimit>) -> Option<HostLimit> {
    let set = [one, other].into_iter().flatten().filter(|limit| limit.bytes < u64::MAX);
    set.reduce(|least, limit| if limit.bytes < least.bytes { limit } else { least })
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
