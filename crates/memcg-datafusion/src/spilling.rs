//! Operators that grow in order to make room.
//!
//! An aggregate that is refused spills or passes on what it holds. Then it asks for what its table keeps for its next
//! groups, and one with a general table, before that, for memory to sort in. The table has grown since the last growth
//! that was not refused, so this may be more than was held. Where one of these growths is refused the query fails. So
//! the pool remembers who was refused, and what it asked for: up to that it takes as what cannot spill does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion_execution::memory_pool::{MemoryConsumer, MemoryReservation};

use crate::consumer::Kind;

/// To sort, and to go on.
const GROWTHS: u8 = 2;

/// The consumers that were refused, and make room.
#[derive(Debug, Default)]
pub(crate) struct Spilling {
    /// Whether there is one. Written under the lock. Relaxed: the calls of one consumer follow one another, so each
    /// sees what an earlier one of its own has written, and it stays true while the consumer is among them.
    any: AtomicBool,
    consumers: Mutex<HashMap<usize, Refused>>,
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    /// What it would have held.
    asked: u64,
    /// How many are left.
    growths: u8,
}

impl Spilling {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Refused>> {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A consumer was refused a growth by `bytes`, and is about to make room. What a sort needs is kept for it by
    /// `Sorts`.
    #[cold]
    pub(crate) fn begins(&self, reservation: &MemoryReservation, kind: Kind, bytes: u64) {
        if is_table(kind) {
            let mut consumers = self.lock();
            let asked = (reservation.size() as u64).saturating_add(bytes);
            consumers.insert(reservation.consumer().id(), Refused { asked, growths: GROWTHS });
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a consumer needs this growth to make room. It counts.
    #[inline]
    pub(crate) fn needs(&self, reservation: &MemoryReservation, kind: Kind, bytes: u64) -> bool {
        is_table(kind) && self.any.load(Ordering::Relaxed) && self.takes(reservation, bytes)
    }

    #[cold]
    fn takes(&self, reservation: &MemoryReservation, bytes: u64) -> bool {
        let (mut consumers, id) = (self.lock(), reservation.consumer().id());
        let Some(refused) = consumers.get_mut(&id) else { return false };
        let fits = (reservation.size() as u64).saturating_add(bytes) <= refused.asked;
        refused.growths -= 1;
        if refused.growths == 0 {
            self.forget(&mut consumers, id);
        }
        fits
    }

    fn forget(&self, consumers: &mut HashMap<usize, Refused>, id: usize) {
        consumers.remove(&id);
        self.any.store(!consumers.is_empty(), Ordering::Relaxed);
    }

    /// A consumer is gone.
    pub(crate) fn end(&self, consumer: &MemoryConsumer) {
        if self.any.load(Ordering::Relaxed) {
            self.forget(&mut self.lock(), consumer.id());
        }
    }
}

/// Whether it may be an aggregate. Another operator that spills is not told apart.
#[inline]
fn is_table(kind: Kind) -> bool {
    matches!(kind, Kind::Other | Kind::Replaying)
}
