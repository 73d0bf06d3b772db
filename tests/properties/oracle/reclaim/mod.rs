//! Groups under pressure with reclaimers of all characters, after Velox's arbitration fuzzer.
//!
//! There is no twin that says which group is asked for how much. What is known is what every group
//! holds, and what must hold whatever the reclaimers do: no level above its max but for what was
//! forced, no group asked below its min, no group asked in a pass that is not its own, no group
//! refused while one that is honest and not protected has what is missing, and nothing left in the
//! end.
//!
//! * here: the books; `actor`: a reclaimer, and what it checks when it is asked;
//! * `ops`: one operation, and how bytes become operations;
//! * `run`: the interpreter; `check`: what must hold after each step.

mod actor;
mod check;
pub(crate) mod ops;
pub(crate) mod run;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memcg::{Charge, Group, Registration};

use actor::Actor;

/// A poisoned lock says that a reclaimer panicked, as some do on purpose.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One group of the books.
struct Entry {
    group: Group,
    parent: Option<usize>,
    online: bool,
}

/// One reclaimer of the books.
struct Cast {
    actor: Arc<Actor>,
    /// The group that its memory is charged to.
    group: usize,
    /// It may end its own.
    registration: Arc<Mutex<Option<Registration>>>,
}

/// The groups that exist, and the bytes of each. Group 0 is the root; indices are never used again.
struct Books {
    groups: Vec<Entry>,
    cast: Vec<Cast>,
    held: Vec<(Charge, usize)>,
}

impl Books {
    /// From `group` to the root, both included.
    fn levels(&self, group: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group), |&group| self.groups[group].parent)
    }

    fn is_within(&self, group: usize, top: usize) -> bool {
        self.levels(group).any(|level| level == top)
    }

    fn online(&self) -> Vec<usize> {
        (0..self.groups.len())
            .filter(|&group| self.groups[group].online)
            .collect()
    }

    /// The nearest level that is online: whose reclaimers a group's are.
    fn home(&self, group: usize) -> usize {
        self.levels(group)
            .find(|&level| self.groups[level].online)
            .unwrap_or(0)
    }

    fn index_of(&self, group: &Group) -> usize {
        self.groups
            .iter()
            .position(|entry| entry.group == *group)
            .expect("a group of the books")
    }

    /// The bytes that are charged to `top` and all below it.
    fn live(&self, top: usize) -> u64 {
        let shelves = self
            .cast
            .iter()
            .map(|cast| (cast.actor.bytes(), cast.group));
        let held = self
            .held
            .iter()
            .map(|(charge, group)| (charge.bytes(), *group));
        shelves
            .chain(held)
            .filter(|&(_, group)| self.is_within(group, top))
            .map(|(bytes, _)| bytes)
            .sum()
    }

    /// The reclaimers that are registered with a group, by themselves or from those that went
    /// offline below it.
    fn cast_of(&self, home: usize) -> impl Iterator<Item = &Cast> {
        self.cast
            .iter()
            .filter(move |cast| self.home(cast.group) == home && lock(&cast.registration).is_some())
    }

    /// A reclaimer below claims to have freed what it has not.
    fn has_boasters(&self, top: usize) -> bool {
        let below = self
            .cast
            .iter()
            .filter(|cast| self.is_within(cast.group, top));
        below
            .map(|cast| cast.actor.character())
            .any(|character| character.boasts())
    }
}
