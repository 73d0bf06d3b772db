//! The system outside of the process, as its files show it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::HostError;
use crate::limits::HostLimits;
use crate::memory::HostMemory;
use crate::pressure::{self, HostPressure, HostTrigger, StallScope};

/// The system that this process runs on: the machine, and the control group that the process is in.
///
/// Each call reads the files anew, so it finds the group also after the process has been moved.
///
/// ```
/// let host = memcg_host::Host::new();
/// println!("{}", host.limits()?); // 2 GiB: /sys/fs/cgroup/memory.max
/// # Ok::<(), memcg_host::HostError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    fn default() -> Host {
        Host::new()
    }
}

impl Host {
    /// The files are those of the system: `/proc` and what is mounted.
    pub fn new() -> Host {
        Host::at("/")
    }

    /// The files are those below `root`, in the place of `/`: another mount of the same system, or
    /// files for a test.
    pub fn at(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Reads the limits of memory that hold for this process: the machine's memory, and those of
    /// its control group and of each group above that the process sees. Version 1, version 2 and
    /// hybrid layouts are understood.
    ///
    /// A group in the namespace of a container does not see the groups of the machine above.
    /// Version 1 counts their limits in all the same. Version 2 does not: there a container's own
    /// limit is all that can be read.
    ///
    /// The call reads three files, and up to four for each level: less than half a millisecond for
    /// a depth of three.
    ///
    /// # Errors
    ///
    /// [`HostError`] where the machine's memory cannot be read. A file of a control group that is
    /// there and cannot be read is no error: it is among [`HostLimits::unread`].
    pub fn limits(&self) -> Result<HostLimits, HostError> {
        HostLimits::read(&self.root)
    }

    /// Reads what the process has in memory, and how much anonymous memory its control group has.
    ///
    /// `memory.current` is not among the figures: it counts the page cache, which the kernel gives
    /// back by itself.
    ///
    /// ```
    /// let memory = memcg_host::Host::new().memory()?;
    /// assert!(memory.anon > 0 && memory.anon <= memory.resident);
    /// # Ok::<(), memcg_host::HostError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`HostError`] where a file cannot be read.
    pub fn memory(&self) -> Result<HostMemory, HostError> {
        HostMemory::read(&self.root)
    }

    /// Reads the pressure of memory: of the own control group, of one above, or of the machine,
    /// whichever is nearest.
    ///
    /// # Errors
    ///
    /// [`HostError`] where the kernel has no pressure stall information, or does not show it.
    pub fn pressure(&self) -> Result<HostPressure, HostError> {
        HostPressure::read(&pressure::path(&self.root))
    }

    /// Asks the kernel to tell when processes have lost `stall` of time within `window` because
    /// memory is short. The file is that of [`pressure`](Self::pressure).
    ///
    /// The kernel takes windows of 500 ms to 10 s, and a stall of at most the window. A process
    /// without the capability `CAP_SYS_RESOURCE` needs a window of whole two seconds.
    ///
    /// # Errors
    ///
    /// [`HostError::Trigger`] where the kernel does not take it.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use memcg_host::{Host, StallScope};
    ///
    /// let trigger = Host::new().trigger(StallScope::Some, Duration::from_millis(100), Duration::from_secs(2))?;
    /// while !trigger.wait(Duration::from_secs(10))? {}
    /// println!("memory is short");
    /// # Ok::<(), memcg_host::HostError>(())
    /// ```
    pub fn trigger(
        &self,
        stalled: StallScope,
        stall: Duration,
        window: Duration,
    ) -> Result<HostTrigger, HostError> {
        HostTrigger::new(pressure::path(&self.root), stalled, stall, window)
    }
}
