//! One registration: whether it may be called, whether it is worth it, and that nobody calls it once it is gone.
//!
//! A call of one that is being dropped is waited for, or is none: see `sync::foreign`.

use std::time::{Duration, Instant};

use super::{Priority, Reclaim, ReclaimContext};
use crate::sync::Arc;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::AtomicU32;
use crate::thread::foreign::{Calls, Foreign, Panicked};

/// Rounds that one who freed nothing is spared at most: 1, 3, 7 … 63.
const SPARED_MAX: u32 = 63;

/// Rounds of which one asks even such a one where nothing else is left.
const LAST_EVERY: u32 = 8;

pub(crate) struct Entry {
    reclaimer: Foreign<Arc<dyn Reclaim>>,
    pub(crate) priority: Priority,
    /// Whose list it is in: the number of a ring. Written under the lock of the lists.
    pub(crate) home: AtomicU32,
    calls: Calls,
    pub(crate) record: Arc<Record>,
}

/// What is remembered about a registration: apart from it, for promises outlive it.
pub(crate) struct Record(Lock<Turn>);

#[derive(Default)]
struct Turn {
    /// The round that looked at it last, whether that spares it, and whether it has freed nothing in it.
    round: u64,
    spared: bool,
    failed: bool,
    /// Rounds to spare it yet, how many it was given after the last fruitless call, and what its group held then.
    to_spare: u32,
    last_spared: u32,
    held: u64,
    /// Promises that are out, their bytes, and when the first was made.
    promises: u32,
    owed: u64,
    /// All bytes ever promised; wraps.
    promised: u64,
    since: Option<Instant>,
}

/// What there is to be had from it in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Ask.
    Ready,
    /// It freed nothing lately. Where nothing else is left it is asked all the same, but for one who never frees
    /// anything.
    Spared {
        /// Until nothing else is left.
        unless_last: bool,
    },
    /// It has been asked and will report.
    Owes,
}

impl Entry {
    pub(crate) fn new(reclaimer: Arc<dyn Reclaim>, priority: Priority) -> Arc<Entry> {
        Arc::new(Entry {
            reclaimer: Foreign::new(reclaimer),
            priority,
            home: AtomicU32::new(u32::MAX),
            calls: Calls::new(),
            record: Arc::new(Record(Lock::new(Rank::Bookkeeping, Turn::default()))),
        })
    }

    /// No call begins from here on.
    pub(crate) fn retire(&self) {
        self.calls.retire();
    }

    /// Until no call is under way. After [`retire`](Self::retire).
    pub(crate) fn wait(&self) {
        self.calls.wait();
    }

    /// Drops it. `Err`: it panicked.
    pub(crate) fn end(mut self) -> Result<(), Panicked> {
        self.reclaimer.end()
    }

    /// What it says it could free. `Err`: it panicked. Nothing of one that is gone.
    pub(crate) fn reclaimable(&self) -> Result<u64, Panicked> {
        let Some(_call) = self.calls.begin() else { return Ok(0) };
        self.reclaimer.call(|reclaimer| reclaimer.reclaimable())
    }

    /// What it says it has freed.
    pub(crate) fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> Result<u64, Panicked> {
        let Some(_call) = self.calls.begin_noted() else { return Ok(0) };
        self.reclaimer.call(|reclaimer| reclaimer.reclaim(want, context))
    }

    /// Calls that are under way, and calls that ever began: to be told from in [`was_contended`](Self::was_contended).
    pub(crate) fn calls_begun(&self) -> (u64, u32) {
        self.calls.begun()
    }

    /// Somebody else was in it during the caller's one call since `before`.
    pub(crate) fn was_contended(&self, before: (u64, u32)) -> bool {
        before.0 > 0 || self.calls.begun().1.wrapping_sub(before.1) > 1
    }
}

impl Record {
    /// How it stands in a round; its group holds `usage`. Who owes for longer than `patience` has freed nothing. Who
    /// freed nothing is not spared any longer when its group has grown since: there may be something now.
    pub(crate) fn standing(&self, round: u64, usage: u64, patience: Duration) -> Standing {
        let mut turn = self.0.lock();
        if turn.promises > 0 {
            let late = turn.since.is_some_and(|since| since.elapsed() > patience);
            return if late { Standing::Spared { unless_last: false } } else { Standing::Owes };
        }
        if turn.round != round {
            (turn.round, turn.failed) = (round, false);
            turn.spared = turn.to_spare > 0 && usage <= turn.held;
            turn.to_spare = turn.to_spare.saturating_sub(1);
        }
        if turn.spared {
            // One that never frees anything is asked for nothing else being left once in a while.
            let once_in_a_while = turn.last_spared < SPARED_MAX || turn.to_spare.is_multiple_of(LAST_EVERY);
            Standing::Spared { unless_last: !turn.failed && once_in_a_while }
        } else {
            Standing::Ready
        }
    }

    /// It freed something, or nothing while its group held `usage`: then it is spared for the rest of the round, and
    /// for a while.
    pub(crate) fn judge(&self, fruitful: bool, usage: u64) {
        let mut turn = self.0.lock();
        if fruitful {
            (turn.last_spared, turn.to_spare, turn.spared) = (0, 0, false);
        } else if turn.promises == 0 {
            let spare = (2 * turn.last_spared + 1).min(SPARED_MAX);
            (turn.last_spared, turn.to_spare, turn.held) = (spare, spare, usage);
            (turn.spared, turn.failed) = (true, true);
        }
    }

    /// It takes `bytes` on; its group holds `usage`.
    pub(crate) fn owe(&self, bytes: u64, usage: u64) {
        let mut turn = self.0.lock();
        turn.held = usage;
        turn.promises += 1;
        turn.owed = turn.owed.saturating_add(bytes);
        turn.promised = turn.promised.wrapping_add(bytes);
        turn.since.get_or_insert_with(Instant::now);
    }

    /// It reports on a promise.
    pub(crate) fn answer(&self, freed: u64) {
        let mut turn = self.0.lock();
        turn.promises -= 1;
        if turn.promises == 0 {
            (turn.owed, turn.since) = (0, None);
        }
        let held = turn.held;
        drop(turn);
        self.judge(freed > 0, held);
    }

    /// All bytes that it has ever promised, reported or not; wraps.
    pub(crate) fn promised(&self) -> u64 {
        self.0.lock().promised
    }

    /// Bytes that it has promised and not reported on.
    pub(crate) fn owed(&self) -> u64 {
        self.0.lock().owed
    }
}
