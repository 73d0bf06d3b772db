//! Victims: for a group its policy and marks, for a tree its cancel hooks and the victims that charges wait for.

use std::time::Instant;

use smallvec::SmallVec;

use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::state::callback::Callback;
use crate::state::cancel::{Cancel, OomPolicy};
use crate::sync::stat_atomic::{AtomicBool, AtomicU8, AtomicU64};
use crate::sync::{Arc, Ordering};

/// The group stands for its whole subtree: all of it is cancelled at once.
pub(crate) const TOGETHER: u8 = 1;
/// The group and all below it are spared.
pub(crate) const EXEMPT: u8 = 1 << 1;
/// The group and all below it are only observed.
pub(crate) const OBSERVES: u8 = 1 << 2;
const REFUSES: u8 = 1 << 3;
const CHOOSES: u8 = 1 << 4;

/// A group's OOM policy, and the marks beside it. Relaxed, all of them: settings, of which no order is relied on.
pub(crate) struct OomMarks(AtomicU8);

impl OomMarks {
    pub(crate) fn new() -> Self {
        OomMarks(AtomicU8::new(0))
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The group's own policy, as it was set.
    pub(crate) fn policy(&self) -> OomPolicy {
        match self.0.load(Ordering::Relaxed) & (REFUSES | CHOOSES) {
            0 => OomPolicy::Inherit,
            REFUSES => OomPolicy::Refuse,
            _ => OomPolicy::Choose,
        }
    }

    pub(crate) fn set_policy(&self, policy: OomPolicy) {
        let bits = match policy {
            OomPolicy::Inherit => 0,
            OomPolicy::Refuse => REFUSES,
            OomPolicy::Choose => CHOOSES,
        };
        let set = |old: u8| Some(old & !(REFUSES | CHOOSES) | bits);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    pub(crate) fn has(&self, mark: u8) -> bool {
        self.0.load(Ordering::Relaxed) & mark != 0
    }

    pub(crate) fn set(&self, mark: u8, set: bool) {
        if set {
            self.0.fetch_or(mark, Ordering::Relaxed)
        } else {
            self.0.fetch_and(!mark, Ordering::Relaxed)
        };
    }
}

/// The time of a group's last rate-limited dump; 0: never.
pub(crate) struct LastDump(AtomicU64);

impl LastDump {
    pub(crate) fn new() -> Self {
        LastDump(AtomicU64::new(0))
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether none was made in the time `every` before `now`. Then the one of the caller is made now.
    pub(crate) fn is_due(&self, now: u64, every: u64) -> bool {
        let due = |last: u64| (last == 0 || now - last.min(now) >= every).then_some(now.max(1));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }
}

/// What a tree has of hooks and victims.
#[derive(Default)]
pub(crate) struct Oom {
    pub(crate) hooks: Vec<Arc<Callback<Cancel>>>,
    pub(crate) victims: Vec<Victim>,
}

/// A group whose memory is being waited for. It may be gone: nothing but its generation and its usage is read.
pub(crate) struct Victim {
    pub(crate) group: &'static Counter,
    /// Itself and all above it.
    pub(crate) levels: SmallVec<[VictimName; 8]>,
    pub(crate) until: Instant,
    /// What its usage is once it has no more to give.
    pub(crate) share: u64,
    pub(crate) inner: Inner,
    pub(crate) spared: Spared,
}

/// Whether the thread that chose a victim has spared it, and called no hook of it. Read and written under the lock.
pub(crate) type Spared = Arc<AtomicBool>;

/// Groups below a victim that have hooks of their own, and answer for themselves.
pub(crate) type Inner = SmallVec<[VictimName; 4]>;

/// Names a group for as long as the process runs.
pub(crate) type VictimName = (u32, Generation);
