//! Aggregates that have spilled and read it back: from then on they cannot spill.
//!
//! DataFusion says of a consumer once and for all whether it can spill. A final aggregate that has spilled lets go of all
//! that it holds, merges its files, and fails where a growth is refused. So the pool remembers who has let go of all.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion_execution::memory_pool::{MemoryConsumer, MemoryReservation};

use crate::consumer::Kind;

/// The consumers that may be reading back what they have spilled.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    /// Whether there is one. Written under the lock. Relaxed: the calls of one consumer follow one another, so each sees
    /// what an earlier one of its own has written, and it stays true while the consumer is among them.
    any: AtomicBool,
    consumers: Mutex<HashSet<usize>>,
}

impl Replays {
    fn lock(&self) -> MutexGuard<'_, HashSet<usize>> {
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
            consumers.insert(consumer.id());
            self.any.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn has(&self, consumer: &MemoryConsumer, kind: Kind) -> bool {
        kind == Kind::Replaying && self.any.load(Ordering::Relaxed) && self.lock().contains(&consumer.id())
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
