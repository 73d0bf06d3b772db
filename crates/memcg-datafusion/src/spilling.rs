//! Operators that grow in order to make room.
//!
//! A grouped hash aggregate that is refused gives back what it holds, and then grows twice: to sort
//! what it spills, and to make room for its next groups. Other aggregates give back all but what
//! their table keeps. The table has grown since its last growth that was not refused, so it may
//! keep more than was held: then the aggregate grows once instead. If one of these growths is
//! refused, the query fails. So the pool remembers the aggregates that were refused, and for these
//! growths they take of the reserve for consumers that cannot spill.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion_execution::memory_pool::{MemoryConsumer, MemoryReservation};

use crate::consumer::Kind;

/// Growths of a grouped aggregate: one to sort, and one to go on.
const GROWTHS: u8 = 2;

/// The consumers that were refused, and make room.
#[derive(Debug, Default)]
pub(crate) struct Spilling {
    /// True if there is one. Written under the lock. Relaxed: the calls of one consumer follow one
    /// another, so each sees what an earlier one of its own has written, and it stays true while
    /// the consumer is among them.
    any: AtomicBool,
    consumers: Mutex<HashMap<usize, Refused>>,
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    /// The most that it may hold after a growth.
    most: u64,
    /// Bytes that it holds before its only growth. It has given memory back if it holds less, and
    /// needs no growth.
    from: Option<u64>,
    /// Number of growths that are left.
    growths: u8,
}

impl Spilling {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Refused>> {
        self.consumers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A consumer was refused a growth by `bytes`, and is about to make room. What a sort needs is
    /// kept for it by `Sorts`.
    #[cold]
    pub(crate) fn begins(&self, reservation: &MemoryReservation, kind: Kind, bytes: u64) {
        let held = reservation.size() as u64;
        let refused = match kind {
            Kind::Grouped => Refused {
                most: held,
                from: None,
                growths: GROWTHS,
            },
            Kind::Other | Kind::Replaying => Refused {
                most: held.saturating_add(bytes),
                from: Some(held),
                growths: 1,
            },
            Kind::Sort(_) | Kind::Exchange | Kind::Bounded => return,
        };
        self.lock().insert(reservation.consumer().id(), refused);
        self.any.store(true, Ordering::Relaxed);
    }

    /// True if a consumer needs this growth to make room. The call counts the growth.
    #[inline]
    pub(crate) fn needs(&self, reservation: &MemoryReservation, kind: Kind, bytes: u64) -> bool {
        let may_be = matches!(kind, Kind::Grouped | Kind::Other | Kind::Replaying);
        may_be && self.any.load(Ordering::Relaxed) && self.takes(reservation, bytes)
    }

    #[cold]
    fn takes(&self, reservation: &MemoryReservation, bytes: u64) -> bool {
        let mut consumers = self.lock();
        let id = reservation.consumer().id();
        let Some(refused) = consumers.get_mut(&id) else {
            return false;
        };
        let held = reservation.size() as u64;
        let fits = held.saturating_add(bytes) <= refused.most
            && refused.from.is_none_or(|from| held == from);
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
