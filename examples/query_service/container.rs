//! A control group of the system for this process: past its limit the system kills the process, as in a container.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files that limit a group, of version 1 and of version 2. The first has to be there; the second is swap's.
const VERSIONS: [[(&str, bool); 2]; 2] = [
    [("memory.limit_in_bytes", true), ("memory.memsw.limit_in_bytes", true)],
    [("memory.max", true), ("memory.swap.max", false)],
];

/// Puts this process into a group of its own with `limit` bytes. What it holds already stays charged where it is.
pub(crate) fn enter(limit: u64) -> Result<(), String> {
    let mut last = "no folder of control groups is there".to_string();
    for (place, version) in places() {
        let dir = dir_of(&place, std::process::id());
        match enter_at(&dir, version, limit) {
            Ok(()) => return Ok(()),
            Err(error) => last = format!("{}: {error}", dir.display()),
        }
        let _ = fs::remove_dir(&dir);
    }
    Err(format!("a process makes no control group here ({last}): leave out --container"))
}

fn enter_at(dir: &Path, version: usize, limit: u64) -> io::Result<()> {
    fs::create_dir(dir)?;
    let [(file, _), (swap, with_memory)] = VERSIONS[version];
    fs::write(dir.join(file), limit.to_string())?;
    // A system without swap has no such file.
    let _ = fs::write(dir.join(swap), if with_memory { limit } else { 0 }.to_string());
    fs::write(dir.join("cgroup.procs"), std::process::id().to_string())
}

/// Removes the group of a process that has ended.
pub(crate) fn remove(process: u32) {
    for (place, _) in places() {
        let _ = fs::remove_dir(dir_of(&place, process));
    }
}

fn dir_of(place: &Path, process: u32) -> PathBuf {
    place.join(format!("query_service-{process}"))
}

/// The folders where a group may be made, and the version of each: below the process's own, and at the top.
fn places() -> impl Iterator<Item = (PathBuf, usize)> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let below: Vec<_> = own
        .lines()
        .filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            match controllers {
                "memory" => Some((PathBuf::from(format!("/sys/fs/cgroup/memory{path}")), 0)),
                "" => Some((PathBuf::from(format!("/sys/fs/cgroup{path}")), 1)),
                _ => None,
            }
        })
        .collect();
    let tops =
        [("/sys/fs/cgroup/memory", 0), ("/sys/fs/cgroup", 1)].map(|(top, version)| (PathBuf::from(top), version));
    below.into_iter().chain(tops)
}
