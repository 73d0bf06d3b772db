//! Aggregates that have spilled and read it back: from then on they cannot spill.
//!
//! DataFusion says of a consumer once and for all whether it can spill. A final aggregate that has spilled lets go of
//! all that it holds, merges its files, and fails where a growth is refused. So the pool remembers who has let go of
//! all.
//!
//! The merge reserves for one file after the other, before its table does, and reads as many files at once as there is
//! memory for. From the third on a refusal makes it read fewer. Where it cannot read all at once, it merges some into
//! one, gives back what it holds, and reserves again. The table reserves in the last pass, while the merge holds its
//! files.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion_execution::memory_pool::{MemoryConsumer, MemoryReservation};

use crate::consumer::Kind;

/// So many files a merge has to read at once.
const NEEDED: usize = 2;

/// The consumers that may be reading back what they have spilled.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    /// True if there is one. Written under the lock. Relaxed: the calls of one consumer follow one another, so each
    /// sees what an earlier one of its own has written, and it stays true while the consumer is among them.
    any: AtomicBool,
    consumers: Mutex<HashMap<usize, Merge>>,
}

/// Progress of a consumer that reserves for its files.
#[derive(Clone, Copy, Debug)]
enum Merge {
    /// It holds so much, for so many files, since it has let go of all.
    Reserves { held: u64, files: usize },
    /// The table reserves.
    Over,
}

impl Merge {
    const BEGINS: Merge = Merge::Reserves { held: 0, files: 0 };
}

/// Purpose of a growth of a consumer that reads back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    /// It has to have the memory.
    Needs,
    /// One more file than it needs to read at once.
    OneMoreFile,
}

impl Replays {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Merge>> {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reservation was made smaller.
    #[inline]
    pub(crate) fn shrunk(&self, reservation: &MemoryReservation) {
        if reservation.size() == 0 {
            self.emptied(reservation.consumer());
        }
    }

    #[cold]
    fn emptied(&self, consumer: &MemoryConsumer) {
        if consumer.can_spill() && Kind::of(consumer) == Kind::Replaying {
            let mut consumers = self.lock();
            let merge = consumers.entry(consumer.id()).or_insert(Merge::BEGINS);
            if !matches!(merge, Merge::Over) {
                *merge = Merge::BEGINS;
            }
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// False if there may be one, whose growths are to be counted.
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Purpose of a growth by `bytes`, if the consumer may be reading back. The call counts the growth.
    #[inline]
    pub(crate) fn grows(&self, reservation: &MemoryReservation, kind: Kind, bytes: u64) -> Option<Replay> {
        if kind == Kind::Replaying && self.any.load(Ordering::Relaxed) {
            self.reserves(reservation, bytes)
        } else {
            None
        }
    }

    #[cold]
    fn reserves(&self, reservation: &MemoryReservation, bytes: u64) -> Option<Replay> {
        let mut consumers = self.lock();
        let merge = consumers.get_mut(&reservation.consumer().id())?;
        let held = reservation.size() as u64;
        let (next, replay) = match *merge {
            // The table's reservation is another one than that of the files.
            Merge::Over => (Merge::Over, Replay::Needs),
            Merge::Reserves { held: before, .. } if held == 0 && before > 0 => (Merge::Over, Replay::Needs),
            Merge::Reserves { files, .. } => {
                let next = Merge::Reserves { held: held + bytes, files: files + 1 };
                (next, if files < NEEDED { Replay::Needs } else { Replay::OneMoreFile })
            }
        };
        *merge = next;
        Some(replay)
    }

    /// A growth that was counted has not been made.
    pub(crate) fn refused(&self, reservation: &MemoryReservation, kind: Kind) {
        if kind == Kind::Replaying
            && self.any.load(Ordering::Relaxed)
            && let Some(Merge::Reserves { held, files }) = self.lock().get_mut(&reservation.consumer().id())
        {
            *held = reservation.size() as u64;
            *files = files.saturating_sub(1);
        }
    }

    /// A consumer is gone.
    pub(crate) fn end(&self, consumer: &MemoryConsumer) {
        if self.any.load(Ordering::Relaxed) {
            let mut consumers = self.lock();
            consumers.remove(&consumer.id());
            self.any.store(!consumers.is_empty(), Ordering::Relaxed);
        }
    }
}
