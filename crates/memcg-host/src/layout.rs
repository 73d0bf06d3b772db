//! The place of the process's own control group, among the mounts that the process sees.
//!
//! `/proc/self/cgroup` names the group in each hierarchy, as seen from the process's namespace.
//! `/proc/self/mountinfo` says where a hierarchy is mounted, and which of its groups is at the
//! mount. One hierarchy may have several mounts, and each shows a part of it: a bind mount of the
//! own group shows nothing above. So each level is looked for in every mount of its hierarchy that no
//! other mount covers.
//!
//! In a container the two files may not fit each other. A container without a namespace sees a path
//! of the machine, and its mount begins somewhere below. A namespace that is younger than the mount
//! has its own group at `/`, and the mount's group is `/../..`: what lies between has no name, so the
//! own group is not found, though groups above it are. A process may also be moved to a group outside
//! of its namespace. A group that lists this process is its own, whatever the names are. Where
//! none is found, [`Layout::faults`] says so: what is read then is the limit of some other group, which
//! may be far more than the own one. A group above the namespace has the name `..`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::{HostError, files};

/// A hierarchy with the own group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    /// Which hierarchy; `None` where there is none.
    kind: Option<Kind>,
    /// The own group's path in the hierarchy, as the namespace shows it.
    pub(crate) own: PathBuf,
    /// The own group first, then those above, as far as a mount shows them. Where no mount shows any
    /// of them, the group at the mount.
    pub(crate) shown: Vec<Shown>,
    /// The first of them is the own group.
    pub(crate) shows_own: bool,
    /// The own group and those above that the namespace names and no mount shows.
    hidden: Vec<PathBuf>,
}

/// A group that a mount shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Its path in the hierarchy, as the namespace shows it.
    group: PathBuf,
    pub(crate) dir: PathBuf,
    /// The device and the number of the directory, which no other group has while this one lives.
    identity: Option<(u64, u64)>,
}

impl Shown {
    fn new(group: PathBuf, dir: PathBuf) -> Shown {
        let identity = fs::metadata(&dir).ok();
        Shown {
            group,
            identity: identity.map(|found| (found.dev(), found.ino())),
            dir,
        }
    }

    /// The group has this process.
    fn is_own(&self) -> bool {
        lists(&self.dir.join("cgroup.procs"), std::process::id())
    }
}

/// A file of numbers, one a line, has this one.
fn lists(path: &Path, number: u32) -> bool {
    let number = number.to_string();
    let mut found = false;
    let read = files::lines(path, |line| found |= line == number.as_bytes());
    read.is_ok() && found
}

impl Levels {
    pub(crate) fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.shown.iter().map(|shown| shown.dir.as_path())
    }

    /// A group that these do not show, and whose limit was known `before`: a mount may hide it now, or
    /// it lies outside of a namespace that the process has gone into.
    pub(crate) fn no_longer_shows(&self, before: &Levels) -> Option<PathBuf> {
        let is_in_place = self
            .own_identity()
            .is_some_and(|own| Some(own) == before.own_identity());
        let is_shown = |then: &Shown| {
            if self.kind != before.kind {
                // A kernel does not take a hierarchy away from a process.
                false
            } else if is_in_place {
                // A group stays below the same groups for its life. So the names may be others, and
                // the groups must be the same.
                self.shown.iter().any(|now| now.identity == then.identity)
            } else {
                // The process has been moved. Groups that are above the new one, too, still limit it.
                !is_at_or_above(&then.group, &self.own)
                    || self.shown.iter().any(|now| now.group == then.group)
            }
        };
        let lost = before.shown.iter().rev().find(|then| !is_shown(then));
        lost.map(|then| then.dir.clone()).or_else(|| {
            let mut newly_hidden = self
                .hidden
                .iter()
                .filter(|group| **group != self.own && !before.hidden.contains(group));
            newly_hidden.next().cloned()
        })
    }

    fn own_identity(&self) -> Option<(u64, u64)> {
        self.shown.first().filter(|_| self.shows_own)?.identity
    }
}

/// Whether a group is another one or above it, as far as their names say.
fn is_at_or_above(group: &Path, other: &Path) -> bool {
    let (ups, below) = from_top(group);
    let (other_ups, other_below) = from_top(other);
    if ups == other_ups {
        other_below.starts_with(&below)
    } else {
        // Names below a group above the namespace say nothing of the namespace's own.
        ups > other_ups && below.is_empty()
    }
}

/// Levels above the namespace's top, and the names from there down.
fn from_top(group: &Path) -> (usize, Vec<&OsStr>) {
    let mut ups = 0;
    let mut names = Vec::new();
    for component in group.components() {
        match component {
            Component::ParentDir => ups += 1,
            Component::Normal(name) => names.push(name),
            _ => {}
        }
    }
    (ups, names)
}

/// The hierarchies that say something of memory.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// The version 1 hierarchy with the memory controller, if there is one.
    pub(crate) v1: Option<Levels>,
    /// The version 2 hierarchy. It has the memory controller, unless version 1 has; it has pressure
    /// files anyway.
    pub(crate) v2: Option<Levels>,
    /// Why less may be known than there is.
    pub(crate) faults: Vec<HostError>,
}

impl Layout {
    pub(crate) fn find(root: &Path) -> Layout {
        let mut layout = Layout::default();
        let mut own = OwnPaths::default();
        let mut mounts = Vec::new();
        let of_groups = root.join("proc/self/cgroup");
        let groups = files::lines(&of_groups, |line| own.add(line));
        let read = files::lines(&root.join("proc/self/mountinfo"), |line| {
            mounts.extend(Mount::parse(line))
        });
        let has = |kind: Kind| mounts.iter().any(|mount: &Mount| mount.kind == kind);
        match (groups, read) {
            // A kernel without control groups. Where some are mounted, a sandbox hides the file.
            (Err(fault), _) if fault.is_missing() && !has(Kind::Memory) && !has(Kind::Unified) => {}
            (Err(fault), _) | (Ok(()), Err(fault)) => layout.faults.push(fault),
            (Ok(()), Ok(())) => {
                // A process is in one group of each hierarchy that there is.
                let is_missing = |kind, path: &Option<PathBuf>| path.is_none() && has(kind);
                if is_missing(Kind::Memory, &own.memory) || is_missing(Kind::Unified, &own.unified)
                {
                    let expected = "a line for each hierarchy that is mounted";
                    layout
                        .faults
                        .push(HostError::malformed(of_groups, expected, ""));
                }
                layout.v1 = own
                    .memory
                    .as_deref()
                    .and_then(|path| levels(root, &mounts, Kind::Memory, path));
                layout.v2 = own
                    .unified
                    .as_deref()
                    .and_then(|path| levels(root, &mounts, Kind::Unified, path));
                let (limiting, levels) = match own.memory {
                    Some(path) => (Some(path), &layout.v1),
                    None => (own.unified, &layout.v2),
                };
                let hidden = limiting
                    .filter(|_| !levels.as_ref().is_some_and(|levels| levels.shows_own))
                    .map(|group| HostError::NotMounted { group });
                layout.faults.extend(hidden);
            }
        }
        layout
    }
}

/// The paths of the own group, in the two hierarchies that matter.
#[derive(Debug, Default, PartialEq, Eq)]
struct OwnPaths {
    memory: Option<PathBuf>,
    unified: Option<PathBuf>,
}

impl OwnPaths {
    /// A line such as `4:memory:/docker/1f` or `0::/system.slice`.
    fn add(&mut self, line: &[u8]) {
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let (Some(number), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return;
        };
        // Behind the path of a group that has been removed the kernel writes ` (deleted)`, which may
        // also be the end of a name. There is no such directory then, and nothing to read.
        let path = Some(PathBuf::from(OsStr::from_bytes(path)));
        if controllers
            .split(|byte| *byte == b',')
            .any(|controller| controller == b"memory")
        {
            self.memory = path;
        } else if number == b"0" && controllers.is_empty() {
            self.unified = path;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Memory,
    Unified,
    /// No hierarchy that says something of memory. It may cover one.
    Other,
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    kind: Kind,
    id: u64,
    parent: u64,
    /// The group at the mount, as a path of the hierarchy.
    group: PathBuf,
    at: PathBuf,
}

impl Mount {
    /// A line such as `35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`; `None` for
    /// what is none.
    fn parse(line: &[u8]) -> Option<Mount> {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let end = words.iter().position(|word| *word == b"-")?;
        let [kind, _, options] = words.get(end + 1..end + 4)? else {
            return None;
        };
        let kind = match *kind {
            b"cgroup2" => Kind::Unified,
            b"cgroup"
                if options
                    .split(|byte| *byte == b',')
                    .any(|option| option == b"memory") =>
            {
                Kind::Memory
            }
            _ => Kind::Other,
        };
        let [id, parent, _, group, at] = words.get(..5)? else {
            return None;
        };
        let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
        Some(Mount {
            kind,
            id: number(id)?,
            parent: number(parent)?,
            group: unescaped(group),
            at: unescaped(at),
        })
    }

    /// Levels between the top of the namespace and the mount's group; less than 0 for a group
    /// above.
    fn depth(&self) -> isize {
        let depth_of = |component| match component {
            Component::Normal(_) => 1,
            Component::ParentDir => -1,
            _ => 0,
        };
        self.group.components().map(depth_of).sum()
    }

    /// The directory of a group; `None` where it lies elsewhere.
    fn dir(&self, group: &Path) -> Option<PathBuf> {
        let below = group.strip_prefix(&self.group).ok()?;
        let is_below = below
            .components()
            .all(|name| matches!(name, Component::Normal(_)));
        is_below.then(|| self.at.join(below))
    }
}

/// The kernel writes a blank of a path as `\040`.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let [first, others @ ..] = rest {
        let code = match (first, others) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = &others[if code.is_some() { 3 } else { 0 }..];
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Whether a path that leads to the mount at `number` ends in another one: in one that lies upon it,
/// or upon a folder on the way to it.
fn is_covered(mounts: &[Mount], mut number: usize) -> bool {
    // The way to the mount, which itself may lie upon the one below.
    let mut above = None;
    loop {
        let mount = &mounts[number];
        let covers = |other: &Mount| {
            if above == Some(other.id) {
                return false;
            }
            let lies_upon = other.parent == mount.id && other.at == mount.at;
            let is_on_the_way = other.parent == mount.parent
                && other.at != mount.at
                && mount.at.starts_with(&other.at);
            lies_upon || is_on_the_way
        };
        if mounts[number + 1..].iter().any(covers) {
            return true;
        }
        // The mount that this one is on, which comes before it: so this ends, whatever the file says.
        match mounts[..number]
            .iter()
            .rposition(|other| other.id == mount.parent)
        {
            Some(below) => {
                above = Some(mount.id);
                number = below;
            }
            None => return false,
        }
    }
}

/// The own group and those above, each in the mount that shows the most and has it.
fn levels(root: &Path, mounts: &[Mount], kind: Kind, own: &Path) -> Option<Levels> {
    // Of two that begin at one group, the later is the one that a path leads to.
    let mut mounts: Vec<&Mount> = (0..mounts.len())
        .rev()
        .filter(|number| mounts[*number].kind == kind && !is_covered(mounts, *number))
        .map(|number| &mounts[number])
        .collect();
    let last = *mounts.first()?;
    mounts.sort_by_key(|mount| mount.depth());
    let below_root = |at: &Path| root.join(at.strip_prefix("/").unwrap_or(at));
    let highest = mounts.first().map_or(0, |mount| mount.depth()).min(0);
    let mut levels = Levels {
        kind: Some(kind),
        own: own.to_path_buf(),
        ..Levels::default()
    };
    let mut group = own.to_path_buf();
    let mut above = 0;
    loop {
        let mut dirs = mounts
            .iter()
            .filter_map(|mount| mount.dir(&group))
            .map(|at| below_root(&at));
        match dirs.find(|dir| dir.is_dir()) {
            Some(dir) => {
                levels.shows_own |= group == own;
                levels.shown.push(Shown::new(group.clone(), dir));
            }
            None => levels.hidden.push(group.clone()),
        }
        let is_named = matches!(group.components().next_back(), Some(Component::Normal(_)));
        if is_named {
            group.pop();
        } else if above > highest {
            above -= 1;
            group.push("..");
        } else {
            break;
        }
    }
    if !levels.shows_own {
        let at_mount = |mount: &&Mount| Shown::new(own.to_path_buf(), below_root(&mount.at));
        match mounts.iter().map(at_mount).find(Shown::is_own) {
            Some(own) => {
                levels.hidden.retain(|group| *group != own.group);
                levels.shown.insert(0, own);
                levels.shows_own = true;
            }
            // Better than nothing, where nothing else is known: it may limit this process, too.
            None if levels.shown.is_empty() => {
                let other = Shown::new(last.group.clone(), below_root(&last.at));
                levels.shown.push(other);
            }
            None => {}
        }
    }
    Some(levels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PathBuf {
        PathBuf::from(text)
    }

    fn own_paths(text: &str) -> OwnPaths {
        let mut own = OwnPaths::default();
        text.lines().for_each(|line| own.add(line.as_bytes()));
        own
    }

    #[test]
    fn own_groups_by_hierarchy() {
        let text = "12:cpu,cpuacct:/a\n4:memory:/docker/1:f\n1:name=systemd:/\n0::/x (deleted)\nnonsense\n";
        let expected = OwnPaths {
            memory: Some(path("/docker/1:f")),
            unified: Some(path("/x (deleted)")),
        };
        assert_eq!(own_paths(text), expected);
        assert_eq!(own_paths("3:memoryx:/a\n0:cpu:/b"), OwnPaths::default());
    }

    #[test]
    fn mounts_of_control_groups() {
        let line = br"35 31 0:32 /a\040b /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory";
        let mount = Mount {
            kind: Kind::Memory,
            id: 35,
            parent: 31,
            group: path("/a b"),
            at: path("/sys/fs/cgroup/memory"),
        };
        assert_eq!(Mount::parse(line), Some(mount));
        for other in [
            "35 31 0:32 / /x rw - cgroup cgroup rw,cpu",
            "1 2 3:4 / / rw - ext4 /dev/vda rw",
        ] {
            let kind = Mount::parse(other.as_bytes()).map(|mount| mount.kind);
            assert_eq!(kind, Some(Kind::Other), "{other:?}");
        }
        for none in ["", " - cgroup2", "a -", "1 x 3:4 / / rw - ext4 /dev/vda rw"] {
            assert_eq!(Mount::parse(none.as_bytes()), None, "{none:?}");
        }
        assert_eq!(
            (unescaped(br"\134\04"), unescaped(br"a\")),
            (path(r"\\04"), path(r"a\"))
        );
    }

    #[test]
    fn a_group_below_a_mount() {
        let dir = |mount: &str, group: &str| {
            Mount {
                kind: Kind::Unified,
                id: 1,
                parent: 0,
                group: path(mount),
                at: path("/m"),
            }
            .dir(&path(group))
        };
        assert_eq!(dir("/", "/a/b"), Some(path("/m/a/b")));
        assert_eq!(dir("/a", "/a/b"), Some(path("/m/b")));
        assert_eq!(dir("/a", "/a"), Some(path("/m")));
        assert_eq!(dir("/a", "/ab"), None, "another group");
        assert_eq!(dir("/", "/../b"), None, "outside of the namespace");
        assert_eq!(
            dir("/..", "/../b"),
            Some(path("/m/b")),
            "the mount is older than the namespace"
        );
        assert_eq!(
            dir("/..", "/"),
            None,
            "the name of the own group there is not known"
        );
    }

    /// What lies upon a mount, or upon a folder on the way to it, hides it; what lies elsewhere, below
    /// it or beside it, does not.
    #[test]
    fn mounts_that_are_covered() {
        let covered = |text: &str| {
            let mounts: Vec<Mount> = text
                .lines()
                .filter_map(|line| Mount::parse(line.as_bytes()))
                .collect();
            (0..mounts.len())
                .filter(|number| mounts[*number].kind != Kind::Other)
                .map(|number| is_covered(&mounts, number))
                .collect::<Vec<_>>()
        };
        let first = "20 1 0:1 / / rw - ext4 a rw\n21 20 0:2 / /sys rw - sysfs b rw\n\
                     22 21 0:3 / /sys/fs/cgroup rw - cgroup2 c rw\n";
        for (more, expected) in [
            ("", &[false][..]),
            (
                "30 22 0:3 /a /sys/fs/cgroup rw - cgroup2 c rw",
                &[true, false],
            ),
            ("30 22 0:9 / /sys/fs/cgroup/own rw - tmpfs t rw", &[false]),
            ("30 21 0:9 / /sys/fs rw - tmpfs t rw", &[true]),
            ("30 21 0:9 / /sys rw - tmpfs t rw", &[true]),
            ("30 20 0:9 / /sys/f rw - tmpfs t rw", &[false]),
            ("30 20 0:3 / /other rw - cgroup2 c rw", &[false, false]),
            (
                "30 22 0:9 / /sys/fs/cgroup rw - tmpfs t rw\n\
              31 30 0:3 /a /sys/fs/cgroup/a rw - cgroup2 c rw",
                &[true, false],
            ),
        ] {
            assert_eq!(covered(&format!("{first}{more}")), expected, "{more}");
        }
    }

    #[test]
    fn groups_above_others() {
        for (group, other, is_above) in [
            ("/", "/a/b", true),
            ("/a", "/a/b", true),
            ("/a/b", "/a/b", true),
            ("/a", "/ab", false),
            ("/a/b", "/a", false),
            ("/..", "/", true),
            ("/../..", "/../x", true),
            ("/../x", "/../x/y", true),
            ("/../x", "/a", false),
            ("/", "/../x", false),
        ] {
            assert_eq!(
                is_at_or_above(&path(group), &path(other)),
                is_above,
                "{group} {other}"
            );
        }
    }
}
