//! Errors of reading the host.

use std::io;
use std::path::PathBuf;

use memcg::BuildError;
use memcg::errors::LimitError;

/// Why the host's limits could not be read or followed.
///
/// ```
/// let error = memcg_host::Host::at("/no/such/place").limits().unwrap_err();
/// assert!(error.to_string().starts_with("cannot read /no/such/place/proc/meminfo: "));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", .path.display())]
    #[non_exhaustive]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file does not have what such a file of the kernel has.
    #[error("{}: {expected} expected, {found:?} found", .path.display())]
    #[non_exhaustive]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The text that was looked for.
        expected: &'static str,
        /// The beginning of what was there.
        found: String,
    },
    /// No mount shows the control group that the process is in. Its limits are not known, though
    /// those of groups above may be: so after `unshare --cgroup`, in a sandbox that has a namespace of
    /// its own and the mounts of the machine, or where the process was moved out of its namespace.
    #[error("no mount shows the control group {}: its limits are not known", .group.display())]
    #[non_exhaustive]
    NotMounted {
        /// The group's path in its hierarchy.
        group: PathBuf,
    },
    /// A group that limits the process is not shown any more. Its limit was read before and holds,
    /// and is not known.
    #[error("{} is not shown any more: its limit is not known", .path.display())]
    #[non_exhaustive]
    NoLongerShown {
        /// The directory of the group, or its path in the hierarchy where it had none; or the file of
        /// the limit, where the directory is still there.
        path: PathBuf,
    },
    /// The text is no share of the host's memory.
    #[error("{text:?} is no share of the host's memory: write a whole percentage, such as 80%")]
    #[non_exhaustive]
    Share {
        /// The text.
        text: String,
    },
    /// The kernel does not take the trigger.
    #[error("{} takes no trigger of {stall_us} us in {window_us} us: {source}", .path.display())]
    #[non_exhaustive]
    Trigger {
        /// The pressure file.
        path: PathBuf,
        /// The time that must be lost, in microseconds.
        stall_us: u128,
        /// The time in which it must be lost, in microseconds.
        window_us: u128,
        /// The system's error.
        source: io::Error,
    },
    /// The control group of the trigger is gone.
    #[error("the control group of {} is gone", .path.display())]
    #[non_exhaustive]
    Gone {
        /// The pressure file.
        path: PathBuf,
    },
    /// The thread that follows could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The max was not set.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The runtime was not built.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// The most characters of a malformed file that an error quotes.
const QUOTED: usize = 60;

impl HostError {
    pub(crate) fn malformed(path: PathBuf, expected: &'static str, found: &str) -> HostError {
        HostError::Malformed {
            path,
            expected,
            found: found.chars().take(QUOTED).collect(),
        }
    }

    /// The file is not there, or the directory that should have it.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, HostError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
