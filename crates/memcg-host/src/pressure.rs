//! Pressure stall information of the host: the time that processes lose because memory is short.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::layout::Layout;
use crate::{HostError, files};

/// The time that processes lose because memory is short, as the kernel's file `memory.pressure` has
/// it: see [`Host::pressure`](crate::Host::pressure).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct HostPressure {
    /// Some process waits for memory.
    pub some: HostStall,
    /// All processes that could run wait for memory.
    pub full: HostStall,
}

/// The share of time that was lost, and its sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HostStall {
    /// In per cent, over the last 10 seconds.
    pub avg10: f64,
    /// In per cent, over the last minute.
    pub avg60: f64,
    /// In per cent, over the last five minutes.
    pub avg300: f64,
    /// Since the group or the machine began.
    pub total: Duration,
}

/// Whose loss of time counts: see [`Host::trigger`](crate::Host::trigger).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StallScope {
    /// That of any process.
    Some,
    /// That of all processes at once.
    Full,
}

/// The file systems that have pressure files: `PROC_SUPER_MAGIC` and `CGROUP2_SUPER_MAGIC` of the
/// kernel's `magic.h`.
const PRESSURE_FILES: [u64; 2] = [0x9fa0, 0x6367_7270];

fn is_of_the_kernel(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| {
        u64::try_from(stat.f_type).is_ok_and(|kind| PRESSURE_FILES.contains(&kind))
    })
}

/// The time that an open pressure file says was lost.
fn total(file: &File, path: &Path, stalled: StallScope) -> Result<Duration, HostError> {
    let fault = |source| HostError::Read {
        path: path.to_path_buf(),
        source,
    };
    let mut bytes = [0; 512];
    let read = file.read_at(&mut bytes, 0).map_err(fault)?;
    let text = String::from_utf8_lossy(&bytes[..read]);
    match (HostPressure::parse(&text), stalled) {
        (Some(pressure), StallScope::Some) => Ok(pressure.some.total),
        (Some(pressure), StallScope::Full) => Ok(pressure.full.total),
        (None, _) => Err(HostPressure::malformed(path, &text)),
    }
}

/// The pressure file that is nearest: the own control group's, one above it, or the machine's.
pub(crate) fn path(root: &Path) -> PathBuf {
    let levels = Layout::find(root).v2.unwrap_or_default();
    let mut paths = levels.dirs().map(|dir| dir.join("memory.pressure"));
    paths
        .find(|path| path.exists())
        .unwrap_or_else(|| root.join("proc/pressure/memory"))
}

impl HostPressure {
    pub(crate) fn read(path: &Path) -> Result<HostPressure, HostError> {
        let text = files::read(path)?;
        HostPressure::parse(&text).ok_or_else(|| HostPressure::malformed(path, &text))
    }

    fn malformed(path: &Path, text: &str) -> HostError {
        HostError::malformed(path.to_path_buf(), "lines of pressure, some and full", text)
    }

    fn parse(text: &str) -> Option<HostPressure> {
        let of = |kind| {
            text.lines()
                .find_map(|line| line.strip_prefix(kind))
                .and_then(HostStall::parse)
        };
        Some(HostPressure {
            some: of("some ")?,
            full: of("full ")?,
        })
    }
}

impl HostStall {
    /// Parses the text behind `some` or `full`: `avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
    fn parse(text: &str) -> Option<HostStall> {
        let value = |key| {
            text.split_ascii_whitespace()
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        let share = |key| {
            value(key)?
                .parse::<f64>()
                .ok()
                .filter(|share| (0.0..=100.0).contains(share))
        };
        let total = Duration::from_micros(value("total")?.parse().ok()?);
        Some(HostStall {
            avg10: share("avg10")?,
            avg60: share("avg60")?,
            avg300: share("avg300")?,
            total,
        })
    }
}

/// Tells a thread that waits when processes have lost so much time within a window: see
/// [`Host::trigger`](crate::Host::trigger). The kernel watches until the value is dropped.
///
/// Time that was lost before the value was there does not count. The kernel fires the trigger of a
/// process without the capability `CAP_SYS_RESOURCE` once at the first stall of any length, for what
/// was lost since the group or the machine began. So the value compares the file's total with that at
/// its beginning, and [`wait`](Self::wait) goes on until as much was lost since.
#[derive(Debug)]
pub struct HostTrigger {
    file: File,
    path: PathBuf,
    stalled: StallScope,
    /// The file's total from which on the kernel is believed.
    due: Duration,
}

impl HostTrigger {
    pub(crate) fn new(
        path: PathBuf,
        stalled: StallScope,
        stall: Duration,
        window: Duration,
    ) -> Result<HostTrigger, HostError> {
        let stall_us = stall.as_micros();
        let window_us = window.as_micros();
        let fault = |source| HostError::Trigger {
            path: path.clone(),
            stall_us,
            window_us,
            source,
        };
        let kind = match stalled {
            StallScope::Some => "some",
            StallScope::Full => "full",
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(fault)?;
        if !is_of_the_kernel(&file) {
            // The write would change what is in it.
            return Err(fault(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no file of the kernel",
            )));
        }
        let total = total(&file, &path, stalled)?;
        // The kernel takes the trigger in one write, and wants a zero at its end.
        let said = format!("{kind} {stall_us} {window_us}\0");
        let written = file.write(said.as_bytes()).map_err(fault)?;
        if written < said.len() {
            return Err(fault(io::ErrorKind::WriteZero.into()));
        }
        Ok(HostTrigger {
            file,
            path,
            stalled,
            // The total is in whole microseconds, rounded down.
            due: total.saturating_add(stall.saturating_sub(Duration::from_micros(1))),
        })
    }

    /// Blocks until the trigger fires, or for `time`. Returns whether it fired. The kernel fires at
    /// most once in each window.
    ///
    /// # Errors
    ///
    /// [`HostError::Gone`] where the control group is gone, [`HostError::Read`] where a system
    /// call fails.
    pub fn wait(&self, time: Duration) -> Result<bool, HostError> {
        let until = Instant::now().checked_add(time);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut polled = [PollFd::new(&self.file, PollFlags::PRI)];
            match poll(&mut polled, left.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) if polled[0].revents().contains(PollFlags::ERR) => {
                    return Err(HostError::Gone {
                        path: self.path.clone(),
                    });
                }
                // From then on the kernel's word is enough: what it fired for older time was its first,
                // at the first stall, and its windows begin anew after that.
                Ok(_) if total(&self.file, &self.path, self.stalled)? >= self.due => {
                    return Ok(true);
                }
                Ok(_) => {}
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(HostError::Read {
                        path: self.path.clone(),
                        source: errno.into(),
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_pressure() {
        let text = "some avg10=1.50 avg60=0.25 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let pressure = HostPressure::parse(text).expect("as the kernel writes it");
        assert_eq!((pressure.some.avg10, pressure.some.avg60), (1.5, 0.25));
        assert_eq!(
            (pressure.some.total, pressure.full.total),
            (Duration::from_millis(1500), Duration::from_micros(7))
        );
        for odd in [
            "",
            "some avg10=1.50",
            &text.replace("1.50", "NaN"),
            &text.replace("1.50", "101"),
            &text.replace("full", "fool"),
        ] {
            assert_eq!(HostPressure::parse(odd), None, "{odd:?}");
        }
    }
}
