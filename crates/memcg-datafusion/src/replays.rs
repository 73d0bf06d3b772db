//! Aggregates that have spilled and read it back: from then on they cannot spill.
//!
//! DataFusion says of a consumer once and for all whether it can spill. A final aggregate that has
//! spilled lets go of all that it holds, merges its files, and fails where a growth is refused. So
//! the pool remembers who was refused. The aggregate reads back what it has written once another
//! reservation of its consumer grows: the one that was refused stays where it is until then.
//!
//! Each refusal before that makes a file, and what the aggregate has read since makes the last one.
//! If the only refusal came with the last rows, there is one file. It is read without a merge, and
//! all growths are those of the table.
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
use std::collections::hash_map::Entry;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion_execution::memory_pool::{MemoryConsumer, MemoryReservation};

use crate::consumer::Kind;

/// So many files a merge has to read at once.
const NEEDED: usize = 2;

/// The consumers that were refused, and so have spilled.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    /// True if there is one. Written under the lock. Relaxed: the calls of one consumer follow one
    /// another, so each sees what an earlier one of its own has written, and it stays true while
    /// the consumer is among them.
    any: AtomicBool,
    consumers: Mutex<HashMap<usize, Progress>>,
}

/// Progress of a consumer that was refused.
#[derive(Clone, Copy, Debug)]
enum Progress {
    /// It has written files, and reads on.
    Reads(Files),
    /// It reserves for its files: it holds so much, for so many of them, since it has let go of all.
    Reserves {
        held: u64,
        files: usize,
        buffers: Buffers,
    },
    /// The table reserves.
    Over,
}

/// Files that a consumer has written.
#[derive(Clone, Copy, Debug)]
struct Files {
    /// Address of the reservation that was refused.
    refused: usize,
    /// Bytes that it held then, until it grows again.
    held: Option<u64>,
    /// It has written one, and read nothing since.
    is_one: bool,
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

impl Progress {
    const BEGINS: Progress = Progress::Reserves {
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
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Progress>> {
        self.consumers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A reservation was made smaller.
    #[inline]
    pub(crate) fn shrunk(&self, reservation: &MemoryReservation, kind: Kind) {
        if kind == Kind::Replaying && self.any.load(Ordering::Relaxed) && reservation.size() == 0 {
            self.emptied(reservation.consumer());
        }
    }

    #[cold]
    fn emptied(&self, consumer: &MemoryConsumer) {
        if let Some(progress @ Progress::Reserves { .. }) = self.lock().get_mut(&consumer.id()) {
            *progress = match *progress {
                Progress::Reserves {
                    buffers: Buffers::Halve,
                    ..
                } => Progress::Reserves {
                    held: 0,
                    files: 0,
                    buffers: Buffers::One,
                },
                _ => Progress::BEGINS,
            };
        }
    }

    /// False if there may be one, whose growths are to be counted.
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Purpose of a growth by `bytes`, if the consumer reads back. The call counts the
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
        let progress = consumers.get_mut(&reservation.consumer().id())?;
        let held = reservation.size() as u64;
        let now = match &mut *progress {
            Progress::Reads(files) if files.refused == address(reservation) => {
                // Its table may keep more than it held. Any other growth is for what it has read.
                files.is_one &= files.held == Some(held);
                files.held = None;
                return None;
            }
            Progress::Reads(files) if !files.is_one => Progress::BEGINS,
            other => *other,
        };
        let (next, replay) = match now {
            // One file needs no merge. The table's reservation is another one than that of files.
            Progress::Reads(_) | Progress::Over => (Progress::Over, Replay::Needs),
            Progress::Reserves { held: before, .. } if held == 0 && before > 0 => {
                (Progress::Over, Replay::Needs)
            }
            Progress::Reserves { files, buffers, .. } => {
                let next = Progress::Reserves {
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
        *progress = next;
        Some(replay)
    }

    /// A consumer was refused a growth, which was counted.
    #[cold]
    pub(crate) fn refused(&self, reservation: &MemoryReservation, kind: Kind) {
        if kind != Kind::Replaying {
            return;
        }
        let now = reservation.size() as u64;
        let writes = |is_one| {
            Progress::Reads(Files {
                refused: address(reservation),
                held: Some(now),
                is_one,
            })
        };
        let mut consumers = self.lock();
        match consumers.entry(reservation.consumer().id()) {
            Entry::Vacant(first) => {
                first.insert(writes(true));
                self.any.store(true, Ordering::Relaxed);
            }
            Entry::Occupied(mut known) => match known.get_mut() {
                progress @ Progress::Reads(_) => *progress = writes(false),
                Progress::Reserves {
                    held,
                    files,
                    buffers,
                } => {
                    *held = now;
                    *files = files.saturating_sub(1);
                    *buffers = match (*files, *buffers) {
                        (0, _) => Buffers::One,
                        (1, Buffers::Two) => Buffers::Halve,
                        (_, buffers) => buffers,
                    };
                }
                Progress::Over => {}
            },
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

/// Tells the reservations of a consumer apart while they are there.
fn address(reservation: &MemoryReservation) -> usize {
    ptr::from_ref(reservation).addr()
}
