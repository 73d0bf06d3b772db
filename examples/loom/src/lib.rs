//! An arena of a fixed number of slots, which a group admits to: a thread that has charged one unit
//! finds a free slot.

use std::fmt;
use std::sync::Arc;

use memcg::{ChargeError, Charged, Group};

#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(not(loom))]
use std::sync::Mutex;

#[cfg(all(test, loom))]
mod models;

/// Slots by number, and the group whose max is how many there are.
pub struct Arena {
    group: Group,
    free: Mutex<Vec<usize>>,
}

// ANCHOR: slot
/// A slot of one owner: the number goes back before the charge does.
#[derive(Debug)]
pub struct Slot(Charged<Lease>);
// ANCHOR_END: slot

/// The number alone, which goes back when it is dropped.
pub struct Lease {
    arena: Arc<Arena>,
    number: usize,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.number).finish()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl Arena {
    /// Makes an arena of as many slots as the max of the group.
    pub fn new(group: Group) -> Arc<Arena> {
        let free = (0..group.max() as usize).collect();
        Arc::new(Arena {
            group,
            free: Mutex::new(free),
        })
    }

    /// The group that admits.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Takes a slot.
    ///
    /// # Errors
    ///
    /// All slots are taken.
    pub fn take(self: &Arc<Self>) -> Result<Slot, ChargeError> {
        let charge = self.group.charge(1)?;
        Ok(Slot(Charged::new(self.lease(), charge)))
    }

    /// A number, for which its caller has charged.
    ///
    /// # Panics
    ///
    /// No number is free.
    pub fn lease(self: &Arc<Self>) -> Lease {
        let number = self
            .free
            .lock()
            .expect("no thread panics with the lock")
            .pop();
        Lease {
            arena: Arc::clone(self),
            number: number.expect("a charge stands for a free slot"),
        }
    }
}

impl Slot {
    /// The slot's number, which no other owner has meanwhile.
    pub fn number(&self) -> usize {
        self.0.number
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.arena
            .free
            .lock()
            .expect("no thread panics with the lock")
            .push(self.number);
    }
}
