//! The place of the process's own control group, among the mounts that the process sees.
//!
//! `/proc/self/cgroup` names the group in each hierarchy, as seen from the process's namespace.
//! `/proc/self/mountinfo` says where a hierarchy is mounted, and which of its groups is at the
//! mount. One hierarchy may have several mounts, and each shows a part of it: a bind mount of the
//! own group shows nothing above. So each level is looked for in every mount of its hierarchy. A
//! mount that another one hides has no such folder any more, and shows nothing.
//!
//! In a container the two files may not fit each other: a container without a namespace sees a path
//! of the machine, and its mount begins somewhere below. Where no mount shows the own group or a
//! group above, the group at the mount is the nearest one that can be read. A group above the
//! namespace has the name `..`.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::{HostError, files};

/// A hierarchy with the own group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    /// The own group's path in the hierarchy, as the namespace shows it.
    pub(crate) own: PathBuf,
    /// The directory of the own group first, then those above, as far as a mount shows them.
    pub(crate) dirs: Vec<PathBuf>,
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
        let read =
            files::lines(&root.join("proc/self/cgroup"), |line| own.add(line)).and_then(|()| {
                files::lines(&root.join("proc/self/mountinfo"), |line| {
                    mounts.extend(Mount::parse(line))
                })
            });
        match read {
            // A kernel without control groups.
            Err(fault) if fault.is_missing() && own == OwnPaths::default() => {}
            Err(fault) => layout.faults.push(fault),
            Ok(()) => {
                layout.v1 = own
                    .memory
                    .as_deref()
                    .and_then(|path| levels(root, &mounts, Kind::Memory, path));
                layout.v2 = own
                    .unified
                    .as_deref()
                    .and_then(|path| levels(root, &mounts, Kind::Unified, path));
                let (limiting, shown) = match own.memory {
                    Some(path) => (Some(path), layout.v1.is_some()),
                    None => (own.unified, layout.v2.is_some()),
                };
                let hidden = limiting
                    .filter(|_| !shown)
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
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
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
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    kind: Kind,
    /// The group at the mount, as a path of the hierarchy.
    group: PathBuf,
    at: PathBuf,
}

impl Mount {
    /// A line such as `35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`; `None` for
    /// other mounts.
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
            _ => return None,
        };
        let [group, at] = words.get(3..5)? else {
            return None;
        };
        Some(Mount {
            kind,
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

/// The directories of the own group and of those above, each in the mount that shows the most and
/// has it.
fn levels(root: &Path, mounts: &[Mount], kind: Kind, own: &Path) -> Option<Levels> {
    // Of two that begin at one group, the later lies above the other where they have one place.
    let mut mounts: Vec<&Mount> = mounts
        .iter()
        .rev()
        .filter(|mount| mount.kind == kind)
        .collect();
    let last = *mounts.first()?;
    mounts.sort_by_key(|mount| mount.depth());
    let below_root = |at: &Path| root.join(at.strip_prefix("/").unwrap_or(at));
    let highest = mounts.first().map_or(0, |mount| mount.depth()).min(0);
    let mut group = own.to_path_buf();
    let mut dirs = Vec::new();
    let mut above = 0;
    loop {
        let shown = mounts
            .iter()
            .filter_map(|mount| mount.dir(&group))
            .map(|at| below_root(&at));
        dirs.extend(shown.into_iter().find(|dir| dir.is_dir()));
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
    if dirs.is_empty() {
        dirs.push(below_root(&last.at));
    }
    Some(Levels {
        own: own.to_path_buf(),
        dirs,
    })
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
            unified: Some(path("/x")),
        };
        assert_eq!(own_paths(text), expected);
        assert_eq!(own_paths("3:memoryx:/a\n0:cpu:/b"), OwnPaths::default());
    }

    #[test]
    fn mounts_of_control_groups() {
        let line = br"35 31 0:32 /a\040b /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory";
        let mount = Mount {
            kind: Kind::Memory,
            group: path("/a b"),
            at: path("/sys/fs/cgroup/memory"),
        };
        assert_eq!(Mount::parse(line), Some(mount));
        for other in [
            "35 31 0:32 / /x rw - cgroup cgroup rw,cpu",
            "1 2 3:4 / / rw - ext4 /dev/vda rw",
            "",
            " - cgroup2",
            "a -",
        ] {
            assert_eq!(Mount::parse(other.as_bytes()), None, "{other:?}");
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
}
