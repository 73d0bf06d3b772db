//! The system's count of a thread's time, and of every thread's.

#![cfg(not(loom))]

use std::time::{Duration, Instant};

/// The time that the thread that opened it was ready to run and had no processor.
pub(crate) struct RunQueue {
    #[cfg(target_os = "linux")]
    schedstat: std::fs::File,
}

impl RunQueue {
    /// `None` where the system does not say.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_this_thread() -> Option<Self> {
        let run_queue = RunQueue {
            schedstat: std::fs::File::open("/proc/thread-self/schedstat").ok()?,
        };
        run_queue.waited().is_some().then_some(run_queue)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of_this_thread() -> Option<Self> {
        None
    }

    /// The second figure of three: time run, time waited, times run.
    #[cfg(target_os = "linux")]
    pub(crate) fn waited(&self) -> Option<Duration> {
        use std::os::unix::fs::FileExt;

        let mut text = [0; 96];
        let len = self.schedstat.read_at(&mut text, 0).ok()?;
        let nanos = std::str::from_utf8(&text[..len])
            .ok()?
            .split_ascii_whitespace()
            .nth(1)?;
        nanos.parse().ok().map(Duration::from_nanos)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn waited(&self) -> Option<Duration> {
        None
    }
}

/// A time span, and the part of it in which the thread did not wait for a processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Latency {
    pub(crate) wall: Duration,
    pub(crate) own: Duration,
}

impl Latency {
    /// `waited` was read just before and just after `wall`: a wait that is longer lay outside, at
    /// least in part, and is not taken off.
    pub(crate) fn new(wall: Duration, waited: Duration) -> Self {
        Latency {
            wall,
            own: wall.checked_sub(waited).unwrap_or(wall),
        }
    }
}

/// The time that the calling thread has run.
#[cfg(target_os = "linux")]
pub(crate) fn thread_time() -> Option<Duration> {
    clock(rustix::time::ClockId::ThreadCPUTime)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_time() -> Option<Duration> {
    None
}

/// Counts what the calling thread runs from its making on; where the system does not say, what
/// passes.
pub(crate) struct OwnTime {
    began: Instant,
    own: Option<Duration>,
}

impl OwnTime {
    pub(crate) fn start() -> Self {
        OwnTime {
            began: Instant::now(),
            own: thread_time(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        match (self.own, thread_time()) {
            (Some(then), Some(now)) => now.saturating_sub(then),
            _ => self.began.elapsed(),
        }
    }
}

#[cfg(target_os = "linux")]
fn clock(id: rustix::time::ClockId) -> Option<Duration> {
    let time = rustix::time::clock_gettime(id);
    Some(Duration::new(
        time.tv_sec.try_into().ok()?,
        time.tv_nsec.try_into().ok()?,
    ))
}

/// USER_HZ, in which the kernel tells user space of its ticks.
#[cfg(target_os = "linux")]
const TICK: Duration = Duration::from_millis(10);

/// The time that the processors have been busy with other processes: they disturb a measure of
/// latencies. Processes that this one has started are not others once they have been waited for.
#[cfg(target_os = "linux")]
pub(crate) fn others() -> Option<Duration> {
    // cpu user nice system idle iowait irq softirq steal
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks = stat
        .lines()
        .next()?
        .split_ascii_whitespace()
        .skip(1)
        .take(8)
        .enumerate();
    let busy = ticks
        .filter(|(column, _)| !(3..=4).contains(column))
        .map(|(_, ticks)| ticks.parse::<u32>().ok());
    let busy = TICK * busy.sum::<Option<u32>>()?;
    Some(
        busy.saturating_sub(clock(rustix::time::ClockId::ProcessCPUTime)?)
            .saturating_sub(children()?),
    )
}

/// The time that processes have run that this one has started and waited for.
#[cfg(target_os = "linux")]
fn children() -> Option<Duration> {
    // pid (name) state …: the name may be anything. cutime and cstime are the 16th and 17th.
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks = stat
        .rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .skip(13)
        .take(2);
    Some(
        TICK * ticks
            .map(|ticks| ticks.parse::<u32>().ok())
            .sum::<Option<u32>>()?,
    )
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn others() -> Option<Duration> {
    None
}
