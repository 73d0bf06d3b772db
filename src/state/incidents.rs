//! The last refusals and victims of a tree, as far as the tree keeps them.

use std::collections::VecDeque;
use std::time::SystemTime;

use crate::sync::Ordering;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::AtomicBool;

/// A charge that was refused, or a group that was cancelled: see
/// [`incidents`](crate::inspect::GroupInspector::incidents).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incident {
    /// The number of the incident, counted from 1 since the runtime keeps them.
    pub number: u64,
    /// When it happened, by the system's clock.
    pub at: SystemTime,
    /// What happened.
    pub kind: IncidentKind,
    /// The path of the group that asked; of a victim, the path of the victim.
    pub group: String,
    /// The path of the group whose max was met.
    pub limited: String,
    /// The counter whose max was met; `None` for memory.
    pub counter: Option<String>,
    /// The amount that the charge asked for, in bytes or in the unit of the counter; of a victim,
    /// the amount that was wanted of it.
    pub requested: u64,
    /// Usage of the group whose max was met.
    pub usage: u64,
    /// The max that was met.
    pub max: u64,
}

/// The kind of an [`Incident`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IncidentKind {
    /// A charge was refused.
    Refused,
    /// A charge that does not block was refused, although memory may come.
    WouldBlock,
    /// A charge waited for as long as it was allowed to, and was refused.
    TimedOut,
    /// A group was cancelled to make room.
    Victim,
}

impl IncidentKind {
    /// Returns the name: `refused`, `would_block`, `timed_out` or `victim`.
    pub const fn name(self) -> &'static str {
        match self {
            IncidentKind::Refused => "refused",
            IncidentKind::WouldBlock => "would_block",
            IncidentKind::TimedOut => "timed_out",
            IncidentKind::Victim => "victim",
        }
    }
}

/// The incidents that a tree keeps.
pub(crate) struct Incidents {
    /// True if any are kept: a thread with an incident reads it before it takes the lock.
    keeps: AtomicBool,
    last: Lock<LastIncidents>,
}

#[derive(Default)]
struct LastIncidents {
    most: usize,
    number: u64,
    kept: VecDeque<Incident>,
}

impl Incidents {
    pub(crate) fn new() -> Incidents {
        Incidents {
            keeps: AtomicBool::new(false),
            last: Lock::new(Rank::Bookkeeping, LastIncidents::default()),
        }
    }

    #[inline]
    pub(crate) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    /// Keeps the last `most` from now on. The thread is in a slow path of its own.
    pub(crate) fn set_most(&self, most: usize) {
        let mut last = self.last.lock();
        last.most = most;
        let surplus = last.kept.len().saturating_sub(most);
        let dropped: Vec<Incident> = last.kept.drain(..surplus).collect();
        self.keeps.store(most > 0, Ordering::Relaxed);
        // Strings are freed without the lock: the program's allocator may charge, and be refused,
        // which is an incident.
        drop(last);
        drop(dropped);
    }

    /// Adds one with the next number. The thread is in a slow path of its own.
    pub(crate) fn add(&self, mut incident: Incident) {
        let mut last = self.last.lock();
        // Set to none since the caller has looked.
        if last.most == 0 {
            return;
        }
        last.number += 1;
        incident.number = last.number;
        let oldest = if last.kept.len() >= last.most {
            last.kept.pop_front()
        } else {
            None
        };
        last.kept.push_back(incident);
        drop(last);
        drop(oldest);
    }

    /// Those that pass, oldest first. The thread is in a slow path of its own.
    pub(crate) fn all(&self, passes: impl Fn(&Incident) -> bool) -> Vec<Incident> {
        self.last
            .lock()
            .kept
            .iter()
            .filter(|incident| passes(incident))
            .cloned()
            .collect()
    }
}
