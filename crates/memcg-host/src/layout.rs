//! Where the process's own control group is, among the mounts that the process sees.
//!
//! `/proc/self/cgroup` names the group in each hierarchy, as seen from the process's namespace. `/proc/self/mountinfo`
//! says where a hierarchy is mounted, and which of its groups is at the mount. In a container the two may not fit each
//! other: a container without a namespace sees a path of the machine, and its mount begins somewhere below. Where the
//! own group lies outside of the mount, the group at the mount is the nearest one that can be read.

use std::path::{Path, PathBuf};

use crate::{HostError, files};

/// A hierarchy with the own group: its directory first, then those above, up to the mount.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels(pub(crate) Vec<PathBuf>);

/// The hierarchies that say something of memory.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// The version 1 hierarchy with the memory controller, if there is one.
    pub(crate) v1: Option<Levels>,
    /// The version 2 hierarchy. It has the memory controller, unless version 1 has; it has pressure files anyway.
    pub(crate) v2: Option<Levels>,
    /// Why less may be known than there is.
    pub(crate) faults: Vec<HostError>,
}

impl Layout {
    pub(crate) fn find(root: &Path) -> Layout {
        let mut layout = Layout::default();
        let mut text = |name: &str| {
            let text = files::read_if_there(&root.join(name));
            text.unwrap_or_else(|fault| {
                layout.faults.push(fault);
                None
            })
        };
        let (Some(groups), Some(mounts)) = (text("proc/self/cgroup"), text("proc/self/mountinfo")) else {
            return layout;
        };
        let own = OwnPaths::parse(&groups);
        let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        let levels = |path: Option<String>, is_of: fn(&Mount) -> bool| {
            let path = path?;
            let mount = best(mounts.iter().filter(|mount| is_of(mount)), &path)?;
            Some(levels(root, mount, &path))
        };
        layout.v1 = levels(own.memory, |mount| mount.kind == Kind::Memory);
        layout.v2 = levels(own.unified, |mount| mount.kind == Kind::Unified);
        layout
    }
}

/// The paths of the own group, in the two hierarchies that matter.
#[derive(Debug, Default, PartialEq, Eq)]
struct OwnPaths {
    memory: Option<String>,
    unified: Option<String>,
}

impl OwnPaths {
    /// Lines such as `4:memory:/docker/1f` and `0::/system.slice`.
    fn parse(text: &str) -> OwnPaths {
        let mut own = OwnPaths::default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let path = path.strip_suffix(" (deleted)").unwrap_or(path).to_string();
            if controllers.split(',').any(|controller| controller == "memory") {
                own.memory = Some(path);
            } else if number == "0" && controllers.is_empty() {
                own.unified = Some(path);
            }
        }
        own
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
    group: String,
    at: String,
}

impl Mount {
    /// A line such as `35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`; `None` for other mounts.
    fn parse(line: &str) -> Option<Mount> {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let kind = match kind {
            "cgroup2" => Kind::Unified,
            "cgroup" if options.split(',').any(|option| option == "memory") => Kind::Memory,
            _ => return None,
        };
        let mut before = before.split(' ').skip(3);
        Some(Mount { kind, group: unescaped(before.next()?), at: unescaped(before.next()?) })
    }
}

/// The kernel writes a blank of a path as `\040`.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
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
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The path of the own group below the mount; `None` where it lies elsewhere.
fn below<'a>(mount: &Mount, path: &'a str) -> Option<&'a str> {
    let rest = if mount.group == "/" { path } else { path.strip_prefix(mount.group.as_str())? };
    let is_whole = rest.is_empty() || rest.starts_with('/');
    (is_whole && !rest.split('/').any(|name| name == "..")).then_some(rest)
}

/// The mount that shows the own group; of several the one that was mounted last, for it lies above the others.
fn best<'a>(mounts: impl Iterator<Item = &'a Mount>, path: &str) -> Option<&'a Mount> {
    mounts.max_by_key(|mount| below(mount, path).is_some())
}

fn levels(root: &Path, mount: &Mount, path: &str) -> Levels {
    let top = root.join(mount.at.trim_start_matches('/'));
    let mut own = top.join(below(mount, path).unwrap_or("").trim_start_matches('/'));
    // A directory that is not there is a group that this mount hides.
    while own != top && !own.is_dir() {
        own.pop();
    }
    let levels = own.ancestors().take_while(|dir| dir.starts_with(&top)).map(Path::to_path_buf);
    Levels(levels.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_groups_by_hierarchy() {
        let text = "12:cpu,cpuacct:/a\n4:memory:/docker/1:f\n1:name=systemd:/\n0::/x (deleted)\nnonsense\n";
        let expected = OwnPaths { memory: Some("/docker/1:f".into()), unified: Some("/x".into()) };
        assert_eq!(OwnPaths::parse(text), expected);
        assert_eq!(OwnPaths::parse("3:memoryx:/a\n0:cpu:/b"), OwnPaths::default());
    }

    #[test]
    fn mounts_of_control_groups() {
        let line = r"35 31 0:32 /a\040b /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory";
        let mount = Mount { kind: Kind::Memory, group: "/a b".into(), at: "/sys/fs/cgroup/memory".into() };
        assert_eq!(Mount::parse(line), Some(mount));
        for other in
            ["35 31 0:32 / /x rw - cgroup cgroup rw,cpu", "1 2 3:4 / / rw - ext4 /dev/vda rw", "", " - cgroup2"]
        {
            assert_eq!(Mount::parse(other), None, "{other:?}");
        }
        assert_eq!((unescaped(r"\134\04"), unescaped(r"a\")), (r"\\04".to_string(), r"a\".to_string()));
    }

    #[test]
    fn a_path_below_a_mount() {
        let mount = |group: &str| Mount { kind: Kind::Unified, group: group.into(), at: "/m".into() };
        assert_eq!(below(&mount("/"), "/a/b"), Some("/a/b"));
        assert_eq!(below(&mount("/a"), "/a/b"), Some("/b"));
        assert_eq!(below(&mount("/a"), "/a"), Some(""));
        assert_eq!(below(&mount("/a"), "/ab"), None, "another group");
        assert_eq!(below(&mount("/"), "/../b"), None, "outside of the namespace");
    }
}
