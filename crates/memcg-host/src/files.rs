//! Small files of the kernel, and one that may be long.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::HostError;

/// No small file of the kernel comes near. What is longer is something else, and may have no end.
const LONGEST: u64 = 1 << 20;

/// The file with the machine's memory.
pub(crate) fn meminfo(root: &Path) -> PathBuf {
    root.join("proc/meminfo")
}

fn fault(path: &Path) -> impl Fn(std::io::Error) -> HostError {
    move |source| HostError::Read {
        path: path.to_path_buf(),
        source,
    }
}

pub(crate) fn read(path: &Path) -> Result<String, HostError> {
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(fault(path))?
        .take(LONGEST + 1)
        .read_to_end(&mut bytes)
        .map_err(fault(path))?;
    let text = String::from_utf8_lossy(&bytes);
    if bytes.len() as u64 > LONGEST {
        return Err(HostError::malformed(
            path.to_path_buf(),
            "a file of at most 1 MiB",
            &text,
        ));
    }
    Ok(text.into_owned())
}

/// Shows each line of a file of any length: a machine with thousands of mounts has a `mountinfo` of
/// many megabytes. Names of control groups and mounts may be any bytes.
pub(crate) fn lines(path: &Path, mut line: impl FnMut(&[u8])) -> Result<(), HostError> {
    let file = BufReader::new(File::open(path).map_err(fault(path))?);
    file.split(b'\n')
        .try_for_each(|read| read.map(|read| line(&read)))
        .map_err(fault(path))
}

/// [`read`]; `None` where there is no such file.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, HostError> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        // Mutation: a-file-that-cannot-be-read-is-missing
        Err(fault) if fault.is_missing() => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// The number behind a key, in files of lines such as `anon 4096` and `MemTotal:  1024 kB`. The
/// kernel's kB are KiB.
pub(crate) fn number(text: &str, key: &str) -> Option<u64> {
    let mut words = text
        .lines()
        .map(str::split_ascii_whitespace)
        .find_map(|mut words| {
            let found = words.next()?;
            (found == key || found.strip_suffix(':') == Some(key)).then_some(words)
        })?;
    let number: u64 = words.next()?.parse().ok()?;
    match words.next() {
        None => Some(number),
        Some("kB") => number.checked_mul(1024),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_by_their_keys() {
        let text = "anon 4096\nMemTotal:  16 kB\nanon_thp 7\nodd 5 pages\nhuge 99999999999999999999\nlast:";
        assert_eq!(
            (number(text, "anon"), number(text, "anon_thp")),
            (Some(4096), Some(7))
        );
        assert_eq!(
            (number(text, "MemTotal"), number(text, "file")),
            (Some(16 << 10), None)
        );
        assert_eq!(
            ["odd", "huge", "last"].map(|key| number(text, key)),
            [None; 3]
        );
    }
}
