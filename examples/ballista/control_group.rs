//! A control group of the system with a hard limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The name of each, before the process and a number.
const NAME: &str = "memcg-example";

/// A control group that goes with the value.
pub(crate) struct ControlGroup {
    dir: PathBuf,
    version: u8,
}

impl ControlGroup {
    /// Below the own group, or at the top.
    ///
    /// # Errors
    ///
    /// Says why the system has allowed none.
    pub(crate) fn new(number: usize, limit: u64) -> Result<ControlGroup, String> {
        let mut why = Vec::new();
        for (version, place) in places() {
            remove_left_over(&place);
            let dir = place.join(format!("{NAME}-{}-{number}", std::process::id()));
            if let Err(error) = fs::create_dir(&dir) {
                why.push(format!("{}: {error}", dir.display()));
                continue;
            }
            let group = ControlGroup { dir, version };
            match group.limit(limit) {
                Ok(()) => return Ok(group),
                Err(error) => why.push(error),
            }
        }
        Err(if why.is_empty() {
            "there are none here".to_string()
        } else {
            why.join("; ")
        })
    }

    fn limit(&self, bytes: u64) -> Result<(), String> {
        let (max, swap, swap_bytes) = match self.version {
            1 => (
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                bytes,
            ),
            _ => ("memory.max", "memory.swap.max", 0),
        };
        let file = self.dir.join(max);
        fs::write(&file, bytes.to_string())
            .map_err(|error| format!("{}: {error}", file.display()))?;
        // A system without swap has no such file.
        let _ = fs::write(self.dir.join(swap), swap_bytes.to_string());
        Ok(())
    }

    pub(crate) fn add(&self, process: u32) -> Result<(), String> {
        let file = self.dir.join("cgroup.procs");
        fs::write(&file, process.to_string())
            .map_err(|error| format!("{}: {error}", file.display()))
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The kernel needs a moment after the last process.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} is left", self.dir.display());
    }
}

/// The folders where a control group may be made, each with its version.
fn places() -> Vec<(u8, PathBuf)> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path_of = |controller: &str| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            parts
                .next()?
                .split(',')
                .any(|name| name == controller)
                .then(|| parts.next().map(str::to_string))?
        })
    };
    let v1 =
        path_of("memory").map(|path| (1, PathBuf::from(format!("/sys/fs/cgroup/memory{path}"))));
    let v2 = path_of("").map(|path| (2, PathBuf::from(format!("/sys/fs/cgroup{path}"))));
    let tops = [
        (1, PathBuf::from("/sys/fs/cgroup/memory")),
        (2, PathBuf::from("/sys/fs/cgroup")),
    ];
    let mut places: Vec<_> = [v1, v2]
        .into_iter()
        .flatten()
        .chain(tops)
        .filter(|(_, place)| place.join("cgroup.procs").exists())
        .collect();
    places.dedup();
    places
}

/// Removes what a process has left that was killed and could not.
fn remove_left_over(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| {
            name.strip_prefix(NAME)?
                .strip_prefix('-')?
                .split('-')
                .next()
        });
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // One that has processes is not removed.
            let _ = fs::remove_dir(entry.path());
        }
    }
}
