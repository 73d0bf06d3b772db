//! Aggregates that have spilled and read it back: from then on they cannot spill.
//!
//! DataFusion says of a consumer once and for all whether it can spill. A final aggregate that has
//! spilled lets go of all that it holds, merges its files, and fails where a growth is refused. So
//! the pool remembers who has let go of all.
//!
//! The merge reserves for one file after the other, before its table does, and reads as many files
//! at once as there is memory for. From the third on a refusal makes it read fewer. Where it cannot
//! read all at once, it merges some into one, gives back what it holds, and reserves again. The
//! table reserves in the last pass, while the merge holds its files. If the first or the second
//! file is refused, the merge begins again with half the buffers for each.
//!
//! The table needs about as much as a batch of its groups, and fails where it is refused. A pool
//! that spills on demand has the merge leave as much as a file takes with all its buffers.

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
    /// True if there is one. Written under the lock. Relaxed: the calls of one consumer follow one
    /// another, so each sees what an earlier one of its own has written, and it stays true while
    /// the consumer is among them.
    any: AtomicBool,
    consumers: Mutex<HashMap<usize, Merge>>,
}

/// Progress of a consumer that reserves for its files.
#[derive(Clone, Copy, Debug)]
enum Merge {
    /// It holds so much, for so many files, since it has let go of all.
    Reserves {
        held: u64,
        files: usize,
        buffers: Buffers,
    },
    /// The table reserves.
    Over,
}

/// Memory that the merge asks for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffers {
    /// Two batches.
    Two,
    /// Two batches; it begins again with one.
    Halve,
    /// One batch, since a growth for the first or the second file was refused.
    One,
}

impl Merge {
    const BEGINS: Merge = Merge::Reserves {
        held: 0,
        files: 0,
        buffers: Buffers::Two,
    };
}

/// Purpose of a growth of a consumer that reads back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    /// It has to have the memory.
    Needs,
    /// Refused, it reads fewer files at once, or with half the buffers. It is to leave so much for
    /// its table.
    TakesLess(u64),
}

impl Replays {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Merge>> {
        self.consumers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
            *merge = match *merge {
                Merge::Over => Merge::Over,
                Merge::Reserves {
                    buffers: Buffers::Halve,
                    ..
                } => Merge::Reserves {
                    held: 0,
                    files: 0,
                    buffers: Buffers::One,
                },
                Merge::Reserves { .. } => Merge::BEGINS,
            };
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// False if there may be one, whose growths are to be counted.
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Purpose of a growth by `bytes`, if the consumer may be reading back. The call counts the
    /// growth. `for_table`: the merge is to leave room for its table.
    #[inline]
    pub(crate) fn grows(
        &self,
        reservation: &MemoryReservation,
        kind: Kind,
        bytes: u64,
        for_table: bool,
    ) -> Option<Replay> {
        if kind == Kind::Replaying && self.any.load(Ordering::Relaxed) {
            self.reserves(reservation, bytes, for_table)
        } else {
            None
        }
    }

    #[cold]
    fn reserves(
        &self,
        reservation: &MemoryReservation,
        bytes: u64,
        for_table: bool,
    ) -> Option<Replay> {
        let mut consumers = self.lock();
        let merge = consumers.get_mut(&reservation.consumer().id())?;
        let held = reservation.size() as u64;
        let (next, replay) = match *merge {
            // The table's reservation is another one than that of the files.
            Merge::Over => (Merge::Over, Replay::Needs),
            Merge::Reserves { held: before, .. } if held == 0 && before > 0 => {
                (Merge::Over, Replay::Needs)
            }
            Merge::Reserves { files, buffers, .. } => {
                let next = Merge::Reserves {
                    held: held + bytes,
                    files: files + 1,
                    buffers,
                };
                let room = match (for_table, buffers) {
                    (false, _) => 0,
                    (true, Buffers::One) => bytes.saturating_mul(2),
                    (true, _) => bytes,
                };
                let needed = if for_table && buffers == Buffers::Two {
                    1
                } else {
                    NEEDED
                };
                let replay = if files < needed {
                    Replay::Needs
                } else {
                    Replay::TakesLess(room)
                };
                (next, replay)
            }
        };
        *merge = next;
        Some(replay)
    }

    /// A growth that was counted has not been made.
    pub(crate) fn refused(&self, reservation: &MemoryReservation, kind: Kind) {
        if kind == Kind::Replaying
            && self.any.load(Ordering::Relaxed)
            && let Some(Merge::Reserves {
                held,
                files,
                buffers,
            }) = self.lock().get_mut(&reservation.consumer().id())
        {
            *held = reservation.size() as u64;
            *files = files.saturating_sub(1);
            *buffers = match (*files, *buffers) {
                (0, _) => Buffers::One,
                (1, Buffers::Two) => Buffers::Halve,
                (_, buffers) => buffers,
            };
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
