//! Whole systems, as their files show them: control groups of both versions, mounts that show a
//! part of a hierarchy, and figures that are there or not.
//!
//! What the files mean is said again, naively: limits, the memory of the process, what cannot be
//! given back, pressure, and how much is asked for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{Bytes, Percent, Reclaim, ReclaimContext, ReclaimPriority, Runtime};
use memcg_host::{Host, HostLimit, Reconciler, StallSource};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use super::host::{PERIOD, wait_for, write};
use crate::script::pick;

const STEPS: usize = 5;

/// Files that change while a max follows them.
const CHANGES: usize = 12;

/// Periods that a reclaimer takes which is late, and the time that is lost in them, in microseconds:
/// more than may be lost in one of them, and half of what may in all.
const LATE: u32 = 40;
const LOST_LATE: u64 = 1_000;
const MACHINE: u64 = 64 << 20;

/// The own group first.
const GROUPS: [&str; 3] = ["/a/b:1", "/a", "/"];

const OF_STAT_V2: [&str; 17] = [
    "anon",
    "file",
    "shmem",
    "inactive_file",
    "active_file",
    "unevictable",
    "swapcached",
    "sock",
    "hugetlb",
    "slab_unreclaimable",
    "slab_reclaimable",
    "kernel",
    "kernel_stack",
    "pagetables",
    "sec_pagetables",
    "percpu",
    "vmalloc",
];
const OF_STAT_V1: [&str; 10] = [
    "total_rss",
    "total_cache",
    "total_shmem",
    "total_inactive_file",
    "total_active_file",
    "total_unevictable",
    "total_swapcached",
    "total_swap",
    "hierarchical_memory_limit",
    "hierarchical_memsw_limit",
];
const OF_MEMINFO: [&str; 9] = [
    "Hugetlb",
    "AnonPages",
    "Shmem",
    "SUnreclaim",
    "KernelStack",
    "PageTables",
    "SecPageTables",
    "Percpu",
    "SReclaimable",
];
const OF_STATUS: [&str; 4] = ["RssAnon", "RssFile", "RssShmem", "VmSwap"];

/// Figures of a file, by their keys.
type Figures = BTreeMap<&'static str, u64>;

fn figures(rng: &mut Xoshiro256PlusPlus, keys: &[&'static str], grain: u64) -> Figures {
    let there = rng.random_range(0.2..1.0);
    let of = keys.iter().filter(|_| rng.random_bool(there));
    let of: Vec<_> = of.copied().collect();
    // Files have more than their parts.
    let most = |key: &str| {
        if ["file", "total_cache", "kernel"].contains(&key) {
            60
        } else {
            12
        }
    };
    of.into_iter()
        .map(|key| (key, rng.random_range(0..most(key)) * grain))
        .collect()
}

fn lines(of: &Figures) -> String {
    of.iter()
        .map(|(key, figure)| format!("{key} {figure}\n"))
        .collect()
}

fn in_kib(of: &Figures) -> String {
    let line = |(key, figure): (&&str, &u64)| format!("{key}:  {} kB\n", figure >> 10);
    of.iter().map(line).collect()
}

/// The pressure of the machine.
const OF_MACHINE: &str = "proc/pressure/memory";

/// So many microseconds were lost.
fn pressure(lost: u64) -> String {
    let line = |kind| stalled(kind, ["0.00"; 3], lost);
    line("some") + &line("full")
}

/// The same, with its parts of the time before.
fn stalled(kind: &str, [ten, sixty, long]: [&str; 3], lost: u64) -> String {
    format!("{kind} avg10={ten} avg60={sixty} avg300={long} total={lost}\n")
}

/// Parts of time in per cent, and what is none.
const PARTS: [&str; 8] = [
    "0.00", "0.07", "12.50", "99.99", "100.00", "100.01", "-1.00", "NaN",
];

/// What a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Says {
    Nothing,
    Unlimited,
    Rubbish,
    Long,
    /// It is a folder, and cannot be read.
    Folder,
    Bytes(u64),
    Stat(Figures),
}

impl Says {
    fn limit(rng: &mut Xoshiro256PlusPlus) -> Says {
        match rng.random_range(0..10) {
            0 | 1 => Says::Nothing,
            2 | 3 => Says::Unlimited,
            4 if rng.random_bool(0.2) => Says::Rubbish,
            4 if rng.random_bool(0.2) => Says::Long,
            5 if rng.random_bool(0.2) => Says::Folder,
            // Some are above what the machine has.
            _ => Says::Bytes(rng.random_range(0..40) << pick(rng, &[19, 19, 22])),
        }
    }

    fn is_broken(&self) -> bool {
        matches!(self, Says::Rubbish | Says::Long | Says::Folder)
    }
}

/// A mount of the hierarchy: the group that it shows, and where.
type Mount = (&'static str, &'static str);

/// Which mounts there are of the hierarchy that limits memory.
const MOUNTS: [&[Mount]; 7] = [
    &[("/", "/sys/fs/cgroup")],
    &[("/a/b:1", "/sys/fs/cgroup")],
    &[("/a", "/sys/fs/cgroup")],
    &[("/a", "/a mount")],
    &[("/a/b:1", "/own"), ("/", "/sys/fs/cgroup")],
    &[("/", "/sys/fs/cgroup"), ("/a", "/part")],
    // The own group is in none.
    &[("/c", "/sys/fs/cgroup")],
];

struct System {
    folder: TempDir,
    version: u8,
    mounts: &'static [Mount],
    /// The own group is not where it should be, though those above are.
    is_gone: bool,
    /// The group at the mount has this process, whatever its name is.
    is_listed: bool,
    /// By level and file.
    says: BTreeMap<(usize, &'static str), Says>,
    meminfo: Figures,
    /// Huge pages, as an older kernel tells them: how many, of which size.
    huge: Option<(u64, u64)>,
    /// What the process has; `None`: it is not said.
    resident: Option<u64>,
    status: Figures,
    /// Of the machine, in microseconds, and the level that says so instead, by its place among those
    /// that are shown.
    lost: Option<u64>,
    lost_at: Option<usize>,
}

impl System {
    fn new(rng: &mut Xoshiro256PlusPlus) -> System {
        let version = rng.random_range(1..3);
        let mounts = pick(rng, &MOUNTS);
        let may_be_gone = mounts.iter().all(|(group, _)| *group != GROUPS[0]);
        let system = System {
            folder: tempfile::tempdir().expect("a temporary folder"),
            version,
            mounts,
            is_gone: may_be_gone && rng.random_bool(0.3),
            is_listed: rng.random(),
            says: BTreeMap::new(),
            meminfo: Figures::new(),
            huge: None,
            resident: Some(9 << 20),
            status: Figures::new(),
            lost: None,
            lost_at: None,
        };
        // A hierarchy of version 1 may have other controllers, too.
        let (controllers, kind) = match version {
            1 => pick(
                rng,
                &[
                    ("4:memory", "cgroup cgroup rw,memory"),
                    ("4:cpuset,memory", "cgroup cgroup rw,cpuset,memory"),
                ],
            ),
            _ => ("0:", "cgroup2 cgroup rw"),
        };
        let mount = |number: usize, parent: usize, (group, at): &Mount| {
            let at = at.replace(' ', "\\040");
            format!("{number} {parent} 0:26 {group} {at} rw,nosuid - {kind}\n")
        };
        // What lies below another mount is not to be seen.
        let (of_first, at) = system.mounts[0];
        let hidden = pick(rng, &[None, Some(if of_first == "/" { "/c" } else { "/" })]);
        let mut mounts: String = hidden.map_or(String::new(), |group| mount(29, 23, &(group, at)));
        for (number, of) in system.mounts.iter().enumerate() {
            let parent = if number == 0 && hidden.is_some() {
                29
            } else {
                23
            };
            mounts += &mount(30 + number, parent, of);
        }
        let mut own = format!("7:cpu:/\n{controllers}:/a/b:1\n");
        // Beside version 1 there may be a hierarchy of version 2, without memory.
        if version == 1 && rng.random() {
            mounts += "40 23 0:27 / /sys/fs/unified rw - cgroup2 cgroup rw\n";
            own += "0::/d\n";
        }
        let root = system.folder.path();
        write(root, "proc/self/mountinfo", &mounts);
        write(root, "proc/self/cgroup", &own);
        for (group, at) in system.mounts {
            let there = GROUPS[usize::from(system.is_gone)..].iter();
            for level in there.chain([group]) {
                if let Some(dir) = System::below((group, at), level) {
                    std::fs::create_dir_all(root.join(dir)).expect("a folder");
                }
            }
        }
        if system.has_other() {
            let own = match system.is_listed {
                true => std::process::id(),
                false => 2,
            };
            let dir = &system.shown()[0].1;
            write(root, &format!("{dir}/cgroup.procs"), &format!("1\n{own}\n"));
        }
        system
    }

    fn host(&self) -> Host {
        Host::at(self.folder.path())
    }

    fn limit_files(&self) -> &'static [&'static str] {
        match self.version {
            1 => &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"],
            _ => &["memory.max", "memory.high", "memory.swap.max"],
        }
    }

    /// The folder of a group, below the root, where the mount shows it.
    fn below((of, at): (&str, &str), group: &str) -> Option<String> {
        let below = group.strip_prefix(of)?;
        let is_below = below.is_empty() || of == "/" || below.starts_with('/');
        let below = below.trim_start_matches('/');
        is_below.then(|| match below {
            "" => at[1..].to_string(),
            below => format!("{}/{below}", &at[1..]),
        })
    }

    /// The levels that are shown, the own group first, each by its number and its folder: that of
    /// the mount that shows the most.
    fn shown(&self) -> Vec<(usize, String)> {
        let mut mounts = self.mounts.to_vec();
        mounts.sort_by_key(|(group, _)| group.len());
        let dir = |group: &str| mounts.iter().find_map(|&mount| System::below(mount, group));
        let shown = GROUPS.iter().enumerate().skip(usize::from(self.is_gone));
        let shown: Vec<_> = shown
            .filter_map(|(level, group)| Some((level, dir(group)?)))
            .collect();
        if shown.is_empty() {
            // Some other group, which is better than nothing: its files are those of the top.
            return vec![(2, mounts[0].1[1..].to_string())];
        }
        shown
    }

    /// Some other group is all that is shown.
    fn has_other(&self) -> bool {
        let is_above = |group: &str| GROUPS[usize::from(self.is_gone)..].contains(&group);
        !self.mounts.iter().any(|(group, _)| is_above(group))
    }

    fn path(&self, dir: &str, file: &str) -> PathBuf {
        self.folder.path().join(dir).join(file)
    }

    /// A file of a level says this from here on, wherever it is mounted.
    fn say(&mut self, level: usize, file: &'static str, says: Says) {
        for (number, dir) in self.everywhere() {
            if number != level {
                continue;
            }
            let path = self.path(&dir, file);
            // One text takes the place of another at once.
            if path.is_dir() {
                std::fs::remove_dir(&path).expect("an empty folder");
            } else if matches!(says, Says::Nothing | Says::Folder) {
                _ = std::fs::remove_file(&path);
            }
            let text = match &says {
                Says::Nothing => continue,
                Says::Folder => {
                    std::fs::create_dir(&path).expect("a folder");
                    continue;
                }
                Says::Unlimited if self.version == 1 => String::from("9223372036854771712\n"),
                Says::Unlimited => String::from("max\n"),
                // What is longer than any file of the kernel is none.
                Says::Long => String::from("7\n") + &"\n".repeat(1 << 20),
                Says::Rubbish => String::from("a lot\n"),
                Says::Bytes(bytes) => format!("{bytes}\n"),
                Says::Stat(figures) => lines(figures),
            };
            write(self.folder.path(), &format!("{dir}/{file}"), &text);
        }
        self.says.insert((level, file), says);
    }

    /// Each folder of each level, in all mounts.
    fn everywhere(&self) -> Vec<(usize, String)> {
        if self.has_other() {
            return self.shown();
        }
        let of = |&mount: &Mount| {
            let dirs = GROUPS.iter().enumerate().skip(usize::from(self.is_gone));
            dirs.filter_map(move |(level, group)| Some((level, System::below(mount, group)?)))
        };
        self.mounts.iter().flat_map(of).collect()
    }

    fn said(&self, level: usize, file: &'static str) -> &Says {
        self.says.get(&(level, file)).unwrap_or(&Says::Nothing)
    }

    fn stat(&self, level: usize) -> Option<&Figures> {
        match self.said(level, "memory.stat") {
            Says::Stat(figures) => Some(figures),
            _ => None,
        }
    }

    fn change(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let level = rng.random_range(0..3);
        match rng.random_range(0..8) {
            0..3 => {
                let file = pick(rng, self.limit_files());
                self.say(level, file, Says::limit(rng));
            }
            3 | 4 => {
                let says = match rng.random_range(0..8) {
                    0 => Says::Nothing,
                    1 if rng.random() => Says::Folder,
                    _ if self.version == 1 => Says::Stat(figures(rng, &OF_STAT_V1, 1 << 19)),
                    _ => Says::Stat(figures(rng, &OF_STAT_V2, 1 << 19)),
                };
                self.say(level, "memory.stat", says);
            }
            5 if self.version == 1 => {
                let file = pick(rng, &["memory.use_hierarchy", "memory.kmem.usage_in_bytes"]);
                let bytes = match file {
                    "memory.use_hierarchy" => rng.random_range(0..2),
                    _ => rng.random_range(0..12) << 20,
                };
                self.say(level, file, Says::Bytes(bytes));
            }
            5 | 6 => {
                self.meminfo = figures(rng, &OF_MEMINFO, 1 << 20);
                self.huge = pick(rng, &[None, Some((3, 2 << 20))]);
            }
            _ => {
                self.resident = rng.random_bool(0.8).then(|| rng.random_range(8..12) << 20);
                self.status = figures(rng, &OF_STATUS, 1 << 18);
            }
        }
    }

    /// What the machine and the process say.
    fn write(&self) {
        let root = self.folder.path();
        let meminfo = format!("MemTotal: {} kB\nSwapTotal: 8192 kB\n", MACHINE >> 10);
        let huge = self.huge.map_or(String::new(), |(pages, size)| {
            format!(
                "HugePages_Total: {pages}\nHugepagesize: {} kB\n",
                size >> 10
            )
        });
        write(
            root,
            "proc/meminfo",
            &(meminfo + &in_kib(&self.meminfo) + &huge),
        );
        let resident = self.resident;
        let resident = resident.map_or(String::new(), |bytes| {
            format!("VmRSS: {} kB\n", bytes >> 10)
        });
        write(
            root,
            "proc/self/status",
            &(resident + &in_kib(&self.status)),
        );
        match self.lost {
            Some(lost) => {
                if self.lost_at.is_some() {
                    write(root, OF_MACHINE, &pressure(7));
                }
                write(root, &self.pressure_file(), &pressure(lost));
            }
            None => _ = std::fs::remove_file(root.join(OF_MACHINE)),
        }
    }

    /// The file that says what time was lost.
    fn pressure_file(&self) -> String {
        let shown = self.shown();
        let level = self.lost_at.and_then(|at| shown.get(at));
        level.map_or(String::from(OF_MACHINE), |(_, dir)| {
            format!("{dir}/memory.pressure")
        })
    }

    // === What it means ===

    fn machine(&self) -> u64 {
        let of_one_size = self.huge.map_or(0, |(pages, size)| pages * size);
        MACHINE - self.meminfo.get("Hugetlb").copied().unwrap_or(of_one_size)
    }

    /// The levels that are shown, up to one that does not account for those below.
    fn that_count(&self) -> Vec<(usize, String)> {
        let mut levels = self.shown();
        if self.version == 1 {
            let ends = levels.iter().enumerate().position(|(number, (level, _))| {
                number > 0 && *self.said(*level, "memory.use_hierarchy") == Says::Bytes(0)
            });
            levels.truncate(ends.unwrap_or(3));
        }
        levels
    }

    /// The limits of the levels that count, the nearest first: each with its file, and whether swap
    /// is in it. The kernel's own sum of version 1 stands for that of the own group, where it is
    /// less than all.
    fn limits(&self) -> Vec<(usize, PathBuf, u64, bool)> {
        let mut all = Vec::new();
        let levels = self.that_count();
        for (level, dir) in &levels {
            for (number, file) in self.limit_files().iter().take(2).enumerate() {
                let bytes = match self.said(*level, file) {
                    // A high of nothing is none.
                    Says::Bytes(0) if *file == "memory.high" => continue,
                    Says::Bytes(bytes) => *bytes,
                    Says::Unlimited => u64::MAX,
                    _ => continue,
                };
                let with_swap = self.version == 1 && number == 1;
                all.push((*level, self.path(dir, file), bytes, with_swap));
            }
        }
        if self.version == 1 {
            let (own, dir) = &levels[0];
            let sums = ["hierarchical_memory_limit", "hierarchical_memsw_limit"];
            for (key, with_swap) in sums.into_iter().zip([false, true]) {
                let Some(sum) = self.stat(*own).and_then(|stat| stat.get(key)).copied() else {
                    continue;
                };
                let mut same = all.iter().filter(|of| of.3 == with_swap);
                if same.all(|of| sum < of.2) {
                    all.retain(|of| of.3 != with_swap || of.0 != *own);
                    let at = usize::from(with_swap && all.first().is_some_and(|of| of.0 == *own));
                    all.insert(at, (*own, self.path(dir, "memory.stat"), sum, with_swap));
                }
            }
        }
        all
    }

    fn rubbish(&self) -> usize {
        let levels = self.shown();
        let is_hidden = self.is_gone || self.has_other();
        let mut count = usize::from(is_hidden && !(self.has_other() && self.is_listed));
        for (number, (level, _)) in levels.iter().enumerate() {
            let is_apart =
                number > 0 && *self.said(*level, "memory.use_hierarchy") == Says::Bytes(0);
            if self.version == 1 && is_apart {
                break;
            }
            let files = self.limit_files().iter();
            count += files
                .filter(|file| self.said(*level, file).is_broken())
                .count();
        }
        let is_own = self.version == 1 && self.said(levels[0].0, "memory.stat").is_broken();
        count + usize::from(is_own)
    }

    fn anon(&self) -> u64 {
        let of = |key| self.status.get(key).copied();
        let resident = self.resident.unwrap_or(0);
        let others = of("RssFile").zip(of("RssShmem"));
        let rest = others.map(|(file, shared)| resident.saturating_sub(file + shared));
        of("RssAnon").or(rest).unwrap_or(resident)
    }

    /// Anonymous memory of the nearest group that is limited, or could be.
    fn group_anon(&self) -> Option<u64> {
        let (file, key) = match self.version {
            1 => (self.limit_files()[0], "total_rss"),
            _ => (self.limit_files()[0], "anon"),
        };
        let levels = self.shown();
        let nearest = levels
            .iter()
            .find(|(level, _)| *self.said(*level, file) != Says::Nothing);
        self.stat(nearest?.0)?.get(key).copied()
    }

    /// What a level holds and the kernel cannot give back, and what is swapped out.
    fn held(&self, level: usize) -> Option<(u64, u64)> {
        let stat = self.stat(level)?;
        let of = |key: &str| stat.get(key).copied().unwrap_or(0);
        let (before, anon, file) = match self.version {
            1 => ("total_", "rss", "cache"),
            _ => ("", "anon", "file"),
        };
        let with = |key: &str| format!("{before}{key}");
        let anon = *stat.get(with(anon).as_str())?;
        let listed = ["inactive_file", "active_file", "unevictable", file];
        let are_there = listed
            .iter()
            .all(|key| stat.contains_key(with(key).as_str()));
        let others = ["inactive_file", "active_file", "shmem", "swapcached"];
        let others: u64 = others.iter().map(|key| of(&with(key))).sum();
        let locked = of(&with(file))
            .saturating_sub(others)
            .min(of(&with("unevictable")));
        let pages = anon + of(&with("shmem")) + if are_there { locked } else { 0 };
        if self.version == 1 {
            let kernel = match self.said(level, "memory.kmem.usage_in_bytes") {
                Says::Bytes(bytes) => *bytes,
                _ => 0,
            };
            let machine = self.meminfo.get("SReclaimable").copied().unwrap_or(0);
            return Some((pages + kernel.saturating_sub(machine), of("total_swap")));
        }
        let kinds = &OF_STAT_V2[12..];
        let kinds: u64 = kinds.iter().map(|key| of(key)).sum::<u64>() + of("slab_unreclaimable");
        let kernel = kinds.max(of("kernel").saturating_sub(of("slab_reclaimable")));
        Some((pages + kernel + of("sock") + of("hugetlb"), 0))
    }

    /// The levels with a limit, the machine last: file, limit, and what is held.
    fn levels(&self) -> Vec<(Option<PathBuf>, u64, u64)> {
        let of_process = match self.resident {
            Some(_) => self.anon(),
            None => 0,
        };
        let mut levels: Vec<_> = self
            .limits()
            .into_iter()
            .filter(|of| of.2 < u64::MAX)
            .map(|(level, path, bytes, with_swap)| {
                let (held, swapped) = self.held(level).unwrap_or((of_process, 0));
                (
                    Some(path),
                    bytes,
                    held + if with_swap { swapped } else { 0 },
                )
            })
            .collect();
        let kinds = OF_MEMINFO[2..8].iter();
        let kinds = kinds.map(|key| self.meminfo.get(key).copied().unwrap_or(0));
        let machine = self
            .meminfo
            .get("AnonPages")
            .map(|anon| anon + kinds.sum::<u64>());
        levels.push((None, self.machine(), machine.unwrap_or(of_process)));
        levels
    }

    fn has_fault(&self) -> bool {
        let limited = self.limits();
        let limited = limited.iter().filter(|of| of.2 < u64::MAX);
        let is_folder = |level: usize| self.said(level, "memory.stat").is_broken();
        self.rubbish() > 0 || self.resident.is_none() || limited.map(|of| of.0).any(is_folder)
    }

    // === What is found ===

    fn limits_hold(&self) {
        let limits = self.host().limits().expect("the machine's memory");
        let told = |what: &str| format!("{what} of {:?} {:?}", self.mounts, self.says);
        let least = |takes: &dyn Fn(&PathBuf, bool) -> bool| {
            let all = self.limits().into_iter();
            let set = all.filter(|of| of.2 < u64::MAX && takes(&of.1, of.3));
            set.min_by_key(|of| of.2).map(|of| (of.1, of.2))
        };
        let is_high = |path: &PathBuf| path.ends_with("memory.high");
        let of = |limit: &Option<HostLimit>| {
            let limit = limit.as_ref();
            limit.map(|limit| (limit.path.clone(), limit.bytes))
        };
        let both = least(&|_, with_swap| with_swap);
        let memory = least(&|path, with_swap| !with_swap && !is_high(path));
        let max = match (&memory, &both) {
            (Some(memory), Some(both)) if both.1 < memory.1 => Some(both.clone()),
            (None, both) => both.clone(),
            _ => memory.clone(),
        };
        let high = least(&|path, _| is_high(path));
        assert_eq!(limits.machine, self.machine(), "{}", told("machine"));
        assert_eq!(of(&limits.max), max, "{}", told("max"));
        assert_eq!(of(&limits.high), high, "{}", told("high"));
        let mut swap = 8 << 20;
        if let Some((_, both)) = both {
            let memory = memory
                .map_or(u64::MAX, |memory| memory.1)
                .min(self.machine());
            swap = swap.min(both.saturating_sub(memory));
        }
        if self.version == 2 {
            for (level, _) in self.shown() {
                if let Says::Bytes(bytes) = self.said(level, "memory.swap.max") {
                    swap = swap.min(*bytes);
                }
            }
        }
        assert_eq!(limits.swap, swap, "{}", told("swap"));
        let found = limits.unread.len();
        assert_eq!(
            found,
            self.rubbish(),
            "{:?} {}",
            limits.unread,
            told("faults")
        );
        assert_eq!(
            limits.whole().is_ok(),
            found == 0,
            "{}",
            told("all is read")
        );
    }

    /// The nearest file of pressure says it, of a level that is shown or of the machine.
    fn pressure_holds(&mut self, rng: &mut Xoshiro256PlusPlus) {
        self.lost_at = pick(rng, &[None, Some(0), Some(1), Some(2)]).filter(|_| self.version == 2);
        let path = self.pressure_file();
        write(self.folder.path(), OF_MACHINE, &pressure(7));
        let mut draw = || {
            // Most are parts of time.
            let most = pick(rng, &[5, 5, 5, PARTS.len()]);
            let parts = [(); 3].map(|()| PARTS[rng.random_range(0..most)]);
            let lost = rng.random_range(0..1 << 40);
            (parts, lost)
        };
        let (some, full) = (draw(), draw());
        let text = stalled("some", some.0, some.1) + &stalled("full", full.0, full.1);
        write(self.folder.path(), &path, &text);
        let found = self.host().pressure();
        let known = |parts: [&str; 3]| parts.map(|part| part.parse::<f64>().expect("a number"));
        let are_parts = |parts| known(parts).iter().all(|it| (0.0..=100.0).contains(it));
        match found {
            Ok(found) => {
                for (found, (parts, lost)) in [(found.some, some), (found.full, full)] {
                    let averages = [found.avg10, found.avg60, found.avg300];
                    let known = (known(parts), Duration::from_micros(lost));
                    assert_eq!((averages, found.total), known, "of {path}");
                }
            }
            Err(error) => {
                let is_right = !are_parts(some.0) || !are_parts(full.0);
                assert!(is_right, "{path} says {some:?} and {full:?}: {error}");
            }
        }
        for (_, dir) in self.shown() {
            _ = std::fs::remove_file(self.path(&dir, "memory.pressure"));
        }
        self.lost_at = None;
    }

    fn memory_holds(&self) {
        let runtime = Runtime::builder().batch(0).build();
        let runtime = runtime.expect("a configuration that holds");
        let root = runtime.root();
        let held = root.charge(Bytes(3 << 20)).expect("no limit");
        let reconciler = Reconciler::new(&root).host(self.host());
        let reconciler = reconciler.allocated(|| 5 << 20);
        let swapped = self.status.get("VmSwap").copied().unwrap_or(0);
        let Some(resident) = self.resident else {
            assert!(self.host().memory().is_err(), "the process says nothing");
            assert!(reconciler.read().is_err(), "the process says nothing");
            return;
        };
        let memory = self.host().memory().expect("what the process has");
        let found = (memory.resident, memory.anon, memory.swapped);
        let known = (resident, self.anon(), swapped);
        assert_eq!(found, known, "of {:?}", self.status);
        assert_eq!(memory.group_anon, self.group_anon(), "of {:?}", self.says);
        let now = reconciler.read().expect("what the process has");
        let all = (self.anon() + swapped) as i64;
        let known = (all - (3 << 20), Some(2 << 20), Some(all - (5 << 20)));
        assert_eq!((now.drift(), now.uncharged(), now.kept()), known, "{now}");
        let reconciler = reconciler.allocated(|| panic!("an allocator that panics on purpose"));
        let now = reconciler.read().expect("what the process has");
        let found = (now.drift(), now.uncharged(), now.kept());
        assert_eq!(found, (known.0, None, None), "without an allocator: {now}");
        drop(held);
    }

    /// A max follows the limits while these change one by one. What was limited by a file that is gone,
    /// or has a fault, raises no max.
    fn follow_holds(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let share = Percent::new(50).expect("a percentage");
        let folders = self.says.iter().filter(|(_, it)| **it == Says::Folder);
        let folders: Vec<_> = folders.map(|(of, _)| *of).collect();
        for (level, file) in folders {
            self.say(level, file, Says::Nothing);
        }
        let runtime = Runtime::builder().batch(0).build();
        let runtime = runtime.expect("a configuration that holds");
        let root = runtime.root();
        let follower = self.host().follower(share).period(PERIOD);
        let guard = follower.start(&root).expect("files that can be read");
        let bytes = |system: &System| {
            let limits = system.limits().into_iter().map(|of| of.2);
            limits.chain([system.machine()]).min().expect("the machine")
        };
        let mut granted = share.of(bytes(self));
        // What was known when all was read last: a high may go.
        let known = |system: &System| -> Vec<(usize, bool)> {
            let limits = system.limits().into_iter();
            let kept = limits.filter(|of| !of.1.ends_with("memory.high"));
            kept.map(|of| (of.0, of.3)).collect()
        };
        let mut last = known(self);
        for _ in 0..CHANGES {
            let level = rng.random_range(0..3);
            let file = pick(rng, self.limit_files());
            match rng.random_range(0..8) {
                0 if self.version == 1 => {
                    let stat = Says::Stat(figures(rng, &OF_STAT_V1, 1 << 19));
                    self.say(level, "memory.stat", stat);
                }
                0 | 1 => self.say(level, file, Says::Rubbish),
                2..5 => self.say(level, file, Says::Nothing),
                _ => {
                    let bytes = rng.random_range(1..40) << 20;
                    self.say(level, file, Says::Bytes(bytes));
                }
            }
            // A look that comes after the machine has said nothing has seen the files as they are.
            let says_nothing = || {
                let fault = guard.state().fault;
                fault.is_some_and(|fault| fault.contains("meminfo"))
            };
            std::fs::remove_file(self.path("proc", "meminfo")).expect("a file");
            wait_for(says_nothing, || format!("no fault: {:?}", guard.state()));
            self.write();
            let (now, levels) = (known(self), self.that_count());
            let is_there = |of: &&(usize, bool)| levels.iter().any(|level| level.0 == of.0);
            let gone = last.iter().filter(is_there).find(|of| !now.contains(of));
            let has_fault = self.rubbish() > 0 || gone.is_some();
            let host = bytes(self);
            granted = match has_fault {
                true => granted.min(share.of(host)),
                false => share.of(host),
            };
            let told = || {
                let state = guard.state();
                let says = &self.says;
                format!("{state:?}, not {granted} of {host}, {gone:?} is gone, of {says:?}")
            };
            let is_seen = || {
                let state = guard.state();
                let found = (state.host, state.granted, root.max());
                found == (host, granted, granted) && state.fault.is_some() == has_fault
            };
            wait_for(|| !says_nothing(), told);
            wait_for(is_seen, told);
            if !has_fault {
                last = now;
            }
        }
        drop(guard);
    }

    /// Each round asks for what a level has too much, or for a part of all that is anonymous where
    /// time was lost, and for no more than there is.
    fn reclaim_holds(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let runtime = Runtime::builder().batch(0).build();
        let runtime = runtime.expect("a configuration that holds");
        let root = runtime.root();
        let usage = pick(rng, &[0, 100_000, MACHINE * 2]);
        let held = root.force_charge(Bytes(usage));
        let stingy = Arc::new(GivesNothing {
            is_late: Mutex::default(),
            root: self.folder.path().to_path_buf(),
            file: self.pressure_file(),
        });
        let asked = Arc::clone(&stingy) as Arc<dyn Reclaim>;
        let registration = root.register_reclaimer(asked, ReclaimPriority::NORMAL);
        self.lost = rng.random_bool(0.6).then_some(1_000);
        let may_say = self.version == 2 && self.lost.is_some();
        self.lost_at = pick(rng, &[None, Some(0), Some(1)]).filter(|_| may_say);
        self.write();
        let part = |percent| Percent::new(percent).expect("a percentage");
        let (most, step) = (part(pick(rng, &[50, 90])), part(pick(rng, &[5, 20])));
        let reclaimer = self.host().reclaimer(&root).period(PERIOD);
        let reclaimer = reclaimer.anon(most).step(step);
        let guard = reclaimer.start().expect("files that can be read");
        let by = match self.lost {
            Some(_) => StallSource::Totals,
            None => StallSource::None,
        };
        let levels = self.levels();
        let above = levels.iter();
        let above = above.map(|(_, limit, held)| held.saturating_sub(most.of(*limit)));
        let want = above.max().unwrap_or(0);
        let anon = match self.resident {
            Some(_) => self.group_anon().unwrap_or(self.anon()),
            None => 0,
        };
        let want_at_stall = want.max(step.of(anon)).min(usage);
        let want = want.min(usage);
        let fullest = levels.into_iter().reduce(|most, other| {
            let is_more =
                u128::from(other.2) * u128::from(most.1) > u128::from(most.2) * u128::from(other.1);
            if is_more { other } else { most }
        });
        for stalls in 0..2 {
            let told = || format!("{:?}, not {fullest:?}, {stalls} stalls", guard.state());
            let is_seen = || {
                let state = guard.state();
                let level = state.level.map(|it| (it.path, it.limit, it.held));
                level == fullest && state.stalls == stalls
            };
            wait_for(is_seen, told);
            let state = guard.state();
            assert_eq!(
                state.fault.is_some(),
                self.has_fault(),
                "{state:?} of {:?}",
                self.says
            );
            let of_stalls = if want_at_stall > 0 { stalls } else { 0 };
            let of_others = state.rounds - of_stalls;
            let known = of_others * want + of_stalls * want_at_stall;
            assert_eq!(
                (state.asked, state.freed),
                (known, 0),
                "{state:?}, each {want}"
            );
            assert!(
                want > 0 || of_others == 0,
                "rounds without a reason: {state:?}"
            );
            assert_eq!(state.by, by, "{state:?}");
            let Some(lost) = self.lost.filter(|_| stalls == 0) else {
                break;
            };
            // Far more is lost than may be.
            let lost = lost + 30_000_000;
            *stingy.is_late.lock().expect("nobody panics") = Some([lost, lost + LOST_LATE]);
            self.lost = Some(lost);
            self.write();
            let Ok(found) = self.host().pressure() else {
                // It is just being written.
                continue;
            };
            let total = found.some.total;
            let known = [lost, lost + LOST_LATE].map(Duration::from_micros);
            assert!(known.contains(&total), "time that was lost: {total:?}");
        }
        if self.lost.is_some() {
            // Of many periods together so little is none.
            std::thread::sleep(PERIOD * 5);
            let state = guard.state();
            assert_eq!(state.stalls, 1, "{state:?}");
        }
        drop((guard, registration, held));
        assert_eq!(root.live(), 0, "live at the end");
    }
}

/// It gives nothing, and may take many periods for that, in which some time is lost.
struct GivesNothing {
    /// Once the file says so much, and how much it says afterwards.
    is_late: Mutex<Option<[u64; 2]>>,
    root: PathBuf,
    file: String,
}

impl Reclaim for GivesNothing {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut is_late = self.is_late.lock().expect("nobody panics");
        let said = std::fs::read_to_string(self.root.join(&self.file)).ok();
        let is_said = |[lost, _]: &mut [u64; 2]| said == Some(pressure(*lost));
        if let Some([_, lost]) = is_late.take_if(is_said) {
            std::thread::sleep(PERIOD * LATE);
            write(&self.root, &self.file, &pressure(lost));
        }
        0
    }
}

pub(super) fn live(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut system = System::new(rng);
    for _ in 0..STEPS {
        for _ in 0..pick(rng, &[1, 3, 12]) {
            system.change(rng);
        }
        system.write();
        system.limits_hold();
        system.memory_holds();
        system.pressure_holds(rng);
    }
    system.reclaim_holds(rng);
    system.follow_holds(rng);
}
