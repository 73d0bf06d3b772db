//! Memory that reclaim can move to swap, to test with: swap is a further counter.

use std::sync::{Arc, Mutex};

use memcg::{
    Bytes, Charge, ChargeError, CounterKey, Group, Reclaim, ReclaimContext, ReclaimPriority,
    Registration,
};

use crate::support::reclaimers::lock;

/// Anonymous memory of one process: reclaim moves it to swap, charge by charge.
pub(crate) struct Anon {
    group: Group,
    swap: CounterKey,
    /// Bytes of each charge.
    piece: u64,
    memory: Mutex<Vec<Charge>>,
    swapped: Mutex<Vec<Charge>>,
}

impl Anon {
    pub(crate) fn of(group: &Group, swap: CounterKey, piece: u64) -> (Arc<Anon>, Registration) {
        let anon = Arc::new(Anon {
            group: group.clone(),
            swap,
            piece,
            memory: Mutex::default(),
            swapped: Mutex::default(),
        });
        let registration = group.register_reclaimer(
            Arc::clone(&anon) as Arc<dyn Reclaim>,
            ReclaimPriority::NORMAL,
        );
        (anon, registration)
    }

    /// One piece after the other; reclaim may take what is there already.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<(), ChargeError> {
        for _ in 0..bytes / self.piece {
            let charge = self.group.charge(Bytes(self.piece))?;
            lock(&self.memory).push(charge);
        }
        Ok(())
    }

    /// The memory of the process is gone with it.
    pub(crate) fn exit(&self) {
        lock(&self.memory).clear();
        lock(&self.swapped).clear();
    }
}

impl Reclaim for Anon {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut freed = 0;
        while freed < want {
            let Some(page) = lock(&self.memory).pop() else {
                break;
            };
            match self.group.charge_set(&[(self.swap, Bytes(page.bytes()))]) {
                Ok(slot) => lock(&self.swapped).extend(slot),
                Err(_) => {
                    lock(&self.memory).push(page);
                    break;
                }
            }
            freed += page.bytes();
        }
        freed
    }

    fn reclaimable(&self) -> u64 {
        lock(&self.memory).len() as u64 * self.piece
    }
}
