//! What charges that do not block leave to a thread of their tree.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::counter::handle::Handle;
use crate::sync::Thread;

#[derive(Default)]
pub(crate) struct Started {
    /// What is to be done at each level, by the level's key.
    pub(crate) jobs: BTreeMap<u64, Job>,
    pub(crate) calls: Vec<ForeignCalls>,
    /// The thread, as long as it runs, and the process that it runs in: a fork copies this and not the thread.
    pub(crate) thread: Option<(u32, Thread)>,
    /// Since when there has been nothing to do.
    pub(crate) idle: Option<Instant>,
    /// The runtime is gone: the thread begins no further job.
    pub(crate) over: bool,
}

pub(crate) struct Job {
    pub(crate) level: Handle,
    /// The largest charge that the level has refused; 0 where it has refused none.
    pub(crate) bytes: u64,
    /// Reclaimers have promised what that charge lacks.
    pub(crate) promised: bool,
    /// A charge has left the level above its high.
    pub(crate) above_high: bool,
}

/// Wakers and listeners that a charge which calls no foreign code has found due.
pub(crate) type ForeignCalls = Box<dyn FnOnce() + Send>;
