//! The folders where the operating system limits memory by control groups, as `/proc/self/cgroup` and
//! `/proc/self/mountinfo` tell.
//!
//! There are two versions, and machines with both: memory is in one of them. In the first, each controller may have a
//! tree of groups of its own, in the second all are in one. Containers see a part of the tree.

use std::path::{Component, Path, PathBuf};

use thiserror::Error;

/// The two forms that control groups have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

/// The tree that memory is in, as far as it can be seen from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub(crate) version: Version,
    /// The uppermost group.
    pub(crate) top: PathBuf,
    /// The group of this process, `top` or below it.
    pub(crate) own: PathBuf,
}

/// Why there is none.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum NotFound {
    #[error("this process is in no control group")]
    NoGroup,
    #[error("no file system of control groups that limit memory is mounted")]
    NotMounted,
    #[error("the control group of this process, {0}, cannot be seen from here")]
    NotVisible(String),
}

/// A mounted tree of control groups.
struct Mount {
    /// The group that is mounted.
    root: String,
    at: PathBuf,
}

impl Hierarchy {
    /// From what those two files say.
    pub(crate) fn parse(cgroup: &str, mountinfo: &str) -> Result<Self, NotFound> {
        let (version, path) = membership(cgroup).ok_or(NotFound::NoGroup)?;
        let mounts: Vec<_> = mountinfo.lines().filter_map(|line| Mount::parse(line, version)).collect();
        if mounts.is_empty() {
            return Err(NotFound::NotMounted);
        }
        let own = mounts.into_iter().find_map(|mount| Some((mount.own(path)?, mount.at)));
        let (own, top) = own.ok_or_else(|| NotFound::NotVisible(path.to_string()))?;
        Ok(Self { version, top, own })
    }

    /// The own group and all above it, as far as they can be seen.
    pub(crate) fn upwards(&self) -> impl Iterator<Item = &Path> {
        self.own.ancestors().take_while(|folder| folder.starts_with(&self.top))
    }
}

/// The group that this process is in, in the tree that memory is in: that of the first version, if one has it.
fn membership(cgroup: &str) -> Option<(Version, &str)> {
    let lines = cgroup.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let lines: Vec<_> = lines.collect();
    let v1 = lines.iter().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let v2 = lines.iter().find(|(controllers, _)| controllers.is_empty());
    v1.map(|&(_, path)| (Version::V1, path)).or(v2.map(|&(_, path)| (Version::V2, path)))
}

impl Mount {
    /// A line of `mountinfo`, if it is of such a tree: `31 23 0:28 ROOT AT rw shared:9 - TYPE SOURCE OPTIONS`.
    fn parse(line: &str, version: Version) -> Option<Self> {
        let (place, system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, at) = (place.next()?, place.next()?);
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let fits = match version {
            Version::V1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
            Version::V2 => kind == "cgroup2",
        };
        fits.then(|| Self { root: unescape(root), at: unescape(at).into() })
    }

    /// The folder of a group, if it is below the one that is mounted.
    fn own(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        // Outside of what a container may see, paths begin with `..`.
        let visible = below.components().all(|part| matches!(part, Component::Normal(_)));
        visible.then(|| self.at.components().chain(below.components()).collect())
    }
}

/// Blanks and the like stand there as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..3).map(|digits| u8::from_str_radix(digits, 8)) {
            Some(Ok(byte)) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[3..]);
            }
            _ => {
                bytes.push(b'\\');
                bytes.extend(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
