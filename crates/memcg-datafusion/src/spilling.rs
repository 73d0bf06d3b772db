//! Aggregates that grow in order to spill.
//!
//! A grouped hash aggregate that is refused gives back what it holds, and then grows twice: to sort what it spills, and
//! to make room for its next groups. If one of these growths is refused, the query fails. So the pool remembers the
//! aggregates that were refused, and the bytes that they held. Up to that size they take of the reserve for consumers
//! that cannot spill.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion_execution::memory_pool::{MemoryConsumer, MemoryReservation};

use crate::consumer::Kind;

/// Growths that an aggregate needs to spill: one to sort, and one to go on.
const GROWTHS: u8 = 2;

/// Consumers that were refused and spill.
#[derive(Debug, Default)]
pub(crate) struct Spilling {
    /// True if there is such a consumer. Written under the lock. Relaxed: the calls of one consumer follow one another,
    /// so each sees what an earlier one of its own has written, and it stays true while the consumer is among them.
    any: AtomicBool,
    consumers: Mutex<HashMap<usize, Refused>>,
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    held: u64,
    /// Growths that are left.
    growths: u8,
}

impl Spilling {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Refused>> {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a grouped aggregate that was refused and is about to spill.
    #[cold]
    pub(crate) fn begins(&self, reservation: &MemoryReservation, kind: Kind) {
        if kind == Kind::Grouped {
            let mut consumers = self.lock();
            let refused = Refused { held: reservation.size() as u64, growths: GROWTHS };
            consumers.insert(reservation.consumer().id(), refused);
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// True if a consumer needs this growth to spill. Each call uses one of its growths.
    #[inline]
    pub(crate) fn needs(&self, reservation: &MemoryReservation, kind: Kind, bytes: u64) -> bool {
        kind == Kind::Grouped && self.any.load(Ordering::Relaxed) && self.takes(reservation, bytes)
    }

    #[cold]
    fn takes(&self, reservation: &MemoryReservation, bytes: u64) -> bool {
        let mut consumers = self.lock();
        let Some(refused) = consumers.get_mut(&reservation.consumer().id()) else { return false };
        let fits = refused.growths > 0 && (reservation.size() as u64).saturating_add(bytes) <= refused.held;
        refused.growths = refused.growths.saturating_sub(1);
        fits
    }

    /// Forgets a consumer that is gone.
    pub(crate) fn end(&self, consumer: &MemoryConsumer) {
        if self.any.load(Ordering::Relaxed) {
            let mut consumers = self.lock();
            consumers.remove(&consumer.id());
            self.any.store(!consumers.is_empty(), Ordering::Relaxed);
        }
    }
}
