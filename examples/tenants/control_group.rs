//! A memory control group of the operating system, made for one process and gone afterwards.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use memcg::Bytes;
use thiserror::Error;

use super::hierarchy::{Hierarchy, NotFound, Version};

/// The time that a group may still be in use when the process in it has ended.
const GOING: Duration = Duration::from_secs(2);

/// From here on a limit is none: the first version has no word for that.
const NO_LIMIT: u64 = 1 << 60;

/// Exists as long as this.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    version: Version,
    folder: PathBuf,
    /// Goes after the folder.
    _switched_on: Option<SwitchedOn>,
}

/// Memory is limited below this group only as long as this exists.
#[derive(Debug)]
struct SwitchedOn(PathBuf);

/// Why there is none: not this program's fault.
#[derive(Debug, Error)]
pub(crate) enum NotMade {
    #[error(transparent)]
    NotFound(#[from] NotFound),
    #[error("{what} {}: {fault}", path.display())]
    Io { what: &'static str, path: PathBuf, fault: io::Error },
    #[error("memory is not among the controllers of {}", .0.display())]
    NoMemory(PathBuf),
    #[error("the machine panics when a control group is out of memory (vm.panic_on_oom)")]
    Panics,
    #[error("{} has room for {room} only, {wanted} are needed", path.display())]
    Room { path: PathBuf, room: Bytes, wanted: Bytes },
}

/// The hierarchy of this machine, where a tenant may run out of memory.
pub(crate) fn hierarchy() -> Result<Hierarchy, NotMade> {
    if number(Path::new("/proc/sys/vm/panic_on_oom")) == Some(2) {
        return Err(NotMade::Panics);
    }
    let read = |path: &str| fs::read_to_string(path).map_err(told("cannot read", Path::new(path)));
    Ok(Hierarchy::parse(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)?)
}

impl ControlGroup {
    /// A group that may take `limit` bytes and nothing in swap: below the own one, or as near to it as can be.
    pub(crate) fn new(hierarchy: &Hierarchy, name: &str, limit: u64) -> Result<Self, NotMade> {
        let mut first_fault = None;
        for parent in hierarchy.upwards() {
            match Self::below(hierarchy, parent, name, limit) {
                Ok(group) => return Ok(group),
                Err(fault) => first_fault = first_fault.or(Some(fault)),
            }
        }
        // The own group is always among them.
        Err(first_fault.unwrap_or(NotMade::NotFound(NotFound::NotMounted)))
    }

    fn below(hierarchy: &Hierarchy, parent: &Path, name: &str, limit: u64) -> Result<Self, NotMade> {
        let version = hierarchy.version;
        for folder in parent.ancestors().take_while(|folder| folder.starts_with(&hierarchy.top)) {
            // No other tenant is to be killed for want of memory above.
            if let Some(room) = room(version, folder).filter(|&room| room < limit) {
                return Err(NotMade::Room { path: folder.into(), room: Bytes(room), wanted: Bytes(limit) });
            }
        }
        let switched_on = if version == Version::V2 { switch_on(parent)? } else { None };
        let folder = parent.join(name);
        fs::create_dir(&folder).map_err(told("cannot make", &folder))?;
        // From here on it goes if something fails.
        let group = Self { version, folder, _switched_on: switched_on };
        group.limit(limit)?;
        Ok(group)
    }

    fn limit(&self, limit: u64) -> Result<(), NotMade> {
        let set = |file: &str, value: &str| write(&self.folder.join(file), value);
        let limit = limit.to_string();
        match self.version {
            Version::V1 => {
                set("memory.limit_in_bytes", &limit)?;
                // Memory and swap together: above it stays nothing for swap.
                if_there(set("memory.memsw.limit_in_bytes", &limit))?;
                if_there(set("memory.swappiness", "0"))?;
                // May be inherited: a process that is out of memory is killed, and does not wait until the limit is
                // raised.
                if_there(set("memory.oom_control", "0"))
            }
            Version::V2 => {
                if_there(set("memory.swap.max", "0"))?;
                set("memory.max", &limit)
            }
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Puts a process in, and looks whether it is.
    pub(crate) fn put(&self, process: u32) -> Result<(), NotMade> {
        let processes = self.folder.join("cgroup.procs");
        write(&processes, &process.to_string())?;
        let inside = fs::read_to_string(&processes).map_err(told("cannot read", &processes))?;
        if inside.lines().any(|line| line.parse() == Ok(process)) {
            return Ok(());
        }
        Err(told("is not in", &processes)(io::Error::other("the process was put there")))
    }

    /// The most that was ever in it; `None` where it does not say, as before Linux 5.19 in the second version.
    pub(crate) fn peak(&self) -> Option<u64> {
        let file = match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        number(&self.folder.join(file))
    }

    /// Processes that were killed in it for want of memory; `None` where it does not say.
    pub(crate) fn kills(&self) -> Option<u64> {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        field(&fs::read_to_string(self.folder.join(file)).ok()?, "oom_kill")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let until = Instant::now() + GOING;
        while self.folder.exists() && fs::remove_dir(&self.folder).is_err() {
            if Instant::now() > until {
                eprintln!("tenants: cannot remove {}", self.folder.display());
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for SwitchedOn {
    fn drop(&mut self) {
        // Another run of this program may have a group there, which would lose its limit.
        if !has_groups(&self.0) {
            let _ = write(&self.0.join("cgroup.subtree_control"), "-memory");
        }
    }
}

/// Sees to it that groups below this one can limit memory.
fn switch_on(parent: &Path) -> Result<Option<SwitchedOn>, NotMade> {
    let read = |file: &str| {
        let path = parent.join(file);
        let text = fs::read_to_string(&path).map_err(told("cannot read", &path))?;
        Ok::<_, NotMade>(text.split_whitespace().any(|controller| controller == "memory"))
    };
    if read("cgroup.subtree_control")? {
        return Ok(None);
    }
    if !read("cgroup.controllers")? {
        return Err(NotMade::NoMemory(parent.into()));
    }
    // Refused where processes are in the group itself, but for the uppermost of the machine.
    write(&parent.join("cgroup.subtree_control"), "+memory")?;
    Ok(Some(SwitchedOn(parent.into())))
}

fn has_groups(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

/// The bytes that a group could take yet, with those of files given back; `None`: it has no limit.
fn room(version: Version, folder: &Path) -> Option<u64> {
    let (limit, usage, files) = match version {
        Version::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        Version::V2 => ("memory.max", "memory.current", "inactive_file"),
    };
    let limit = number(&folder.join(limit)).filter(|&limit| limit < NO_LIMIT)?;
    let files = field(&fs::read_to_string(folder.join("memory.stat")).unwrap_or_default(), files);
    let usage = number(&folder.join(usage))?.saturating_sub(files.unwrap_or(0));
    Some(limit.saturating_sub(usage))
}

/// A file of one number; `max` is none.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number after a word that begins a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// Writes to a file of the system's, which is there or not.
fn write(path: &Path, value: &str) -> Result<(), NotMade> {
    let written = OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(told("cannot write", path))
}

/// Not every kernel has every file.
fn if_there(written: Result<(), NotMade>) -> Result<(), NotMade> {
    match written {
        Err(NotMade::Io { fault, .. }) if fault.kind() == ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

fn told(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NotMade {
    move |fault| NotMade::Io { what, path: path.into(), fault }
}
