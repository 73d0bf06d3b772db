//! The files of a system from any bytes, read by `memcg-host`. An input is a layout as those of
//! `memcg-host/tests/layouts`: each file begins with a line `== PATH`.
//!
//! Under `cargo fuzz` this is a libFuzzer target; built without it, see `fuzz/replay.rs` of the
//! crate.
#![cfg_attr(fuzzing, no_main)]

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use memcg::Percent;
use memcg_host::Host;
use tempfile::TempDir;

/// Files of one input.
const FILES_MAX: usize = 40;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));

fn run(data: &[u8]) {
    let root = folder().expect("a temporary folder");
    let mut rest = data;
    for _ in 0..FILES_MAX {
        let Some((_, after)) = split(rest, b"== ") else {
            break;
        };
        rest = after;
        let Some((path, content)) = split(rest, b"\n") else {
            break;
        };
        let content = split(content, b"== ").map_or(content, |(content, _)| content);
        write(root.path(), Path::new(OsStr::from_bytes(path)), content);
    }
    let host = Host::at(root.path());
    if let Ok(limits) = host.limits() {
        let bytes = limits.bytes();
        assert!(bytes <= limits.machine);
        assert!(
            limits
                .max
                .iter()
                .chain(&limits.high)
                .all(|limit| limit.bytes >= bytes)
        );
        let [part, whole] =
            [80, 100].map(|share| limits.share(Percent::new(share).expect("a percentage")));
        assert!(part <= whole && whole == bytes);
        assert!(!limits.to_string().is_empty());
        let again = host.limits().expect("the files are the same");
        assert_eq!(format!("{limits:?}"), format!("{again:?}"));
    }
    if let Ok(pressure) = host.pressure() {
        for stall in [pressure.some, pressure.full] {
            assert!(
                [stall.avg10, stall.avg60, stall.avg300]
                    .iter()
                    .all(|share| (0.0..=100.0).contains(share))
            );
        }
    }
    let _ = host.memory();
}

/// In memory where the system has such a place: fifty times as many inputs in the same time.
fn folder() -> io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
}

/// The bytes before the first `mark`, and those behind it.
fn split<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes
        .windows(mark.len())
        .position(|window| window == mark)?;
    Some((&bytes[..at], &bytes[at + mark.len()..]))
}

/// Writes a file below the root, or makes the folder where the path ends with a `/`. Other paths
/// are left out.
fn write(root: &Path, path: &Path, content: &[u8]) {
    let is_below = path
        .components()
        .all(|component| matches!(component, Component::Normal(_)));
    if !is_below || path.as_os_str().is_empty() {
        return;
    }
    let target = root.join(path);
    // A name that the system does not take, or that is taken, is no fault of the parsers.
    if path.as_os_str().as_bytes().ends_with(b"/") {
        let _ = fs::create_dir_all(target);
    } else if target
        .parent()
        .is_some_and(|parent| fs::create_dir_all(parent).is_ok())
    {
        let _ = fs::write(target, content);
    }
}

#[cfg(not(fuzzing))]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    replay::replay(run)
}
