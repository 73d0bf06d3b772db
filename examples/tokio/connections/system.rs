//! The system's figures of this process.

use std::fs;
use std::io;

/// Resident bytes now, and the most so far; `None` where the system does not say.
pub(crate) fn resident() -> Option<(u64, u64)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let bytes = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib << 10)
    };
    Some((bytes("VmRSS:")?, bytes("VmHWM:")?))
}

/// So many files may be open from here on: shells give a process 1,024 at first and let it take
/// more.
#[cfg(target_os = "linux")]
pub(crate) fn allow_files(wanted: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if let Some(maximum) = maximum.filter(|&maximum| maximum < wanted) {
        return Err(io::Error::other(format!(
            "this takes {wanted} open files, and the hard limit is {maximum}: raise it (ulimit -Hn), or ask for fewer"
        )));
    }
    let new = Rlimit {
        current: Some(wanted),
        maximum,
    };
    setrlimit(Resource::Nofile, new)
        .map_err(|error| io::Error::from_raw_os_error(error.raw_os_error()))
}

/// Other systems say so at the first file too many.
#[cfg(not(target_os = "linux"))]
pub(crate) fn allow_files(_wanted: u64) -> io::Result<()> {
    Ok(())
}
