//! What a pool knows of the queries that wait in line for room that others hold: which of them run, and which have been
//! refused.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::{DataFusionError, Result};
use memcg::Group;

use crate::queue::{InPlace, Place, Queue};

/// So many refusals are known: an error comes to the root while other operators are refused.
const KNOWN: usize = 256;

/// What a pool knows of the queue of its queries.
#[derive(Debug)]
pub(crate) struct Queued {
    queue: Queue,
    /// The last refusals, by their words: an error has no other sign of where it comes from.
    refusals: Mutex<VecDeque<(String, Group)>>,
    /// Those that run, by their places' numbers, and whether they cannot run again.
    attempts: Mutex<Vec<(u64, bool)>>,
    /// How many queries have given all back, and wait. Relaxed: it only ends waits early.
    waiting: AtomicUsize,
}

impl Queued {
    pub(crate) fn new(queue: Queue) -> Arc<Queued> {
        let (refusals, attempts) = (Mutex::default(), Mutex::default());
        Arc::new(Queued { queue, refusals, attempts, waiting: AtomicUsize::new(0) })
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn refusals(&self) -> MutexGuard<'_, VecDeque<(String, Group)>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempts(&self) -> MutexGuard<'_, Vec<(u64, bool)>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A growth was refused at `level`, and its operator is told so.
    pub(crate) fn note(&self, refused: &Result<()>, level: &Group) {
        if let Err(DataFusionError::ResourcesExhausted(text)) = refused {
            let mut refusals = self.refusals();
            if refusals.len() == KNOWN {
                refusals.pop_front();
            }
            refusals.push_back((text.clone(), level.clone()));
        }
    }

    /// The level that was full, where an error of the plan is a refusal of the pool.
    pub(crate) fn level_of(&self, error: &DataFusionError) -> Option<Group> {
        let DataFusionError::ResourcesExhausted(text) = error.find_root() else { return None };
        let refusals = self.refusals();
        let found = refusals.iter().rev().find(|(known, _)| text.contains(known));
        found.map(|(_, level)| level.clone())
    }

    /// All attempts of the pool have given up, so what still runs of them is about to end.
    pub(crate) fn gives_back(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 && self.attempts().is_empty()
    }

    /// A place for a growth of an attempt that cannot run again. `None`: there is none, or nothing runs beside it.
    pub(crate) fn wait_in_place(&self, level: &Group) -> Option<InPlace> {
        let attempt = self.attempts().iter().find(|(_, cannot_run_again)| *cannot_run_again).copied();
        self.queue.wait_in_place(attempt?.0, level)
    }
}

/// An attempt that runs.
pub(crate) struct Attempt {
    queued: Arc<Queued>,
    pub(crate) place: Place,
    pub(crate) cannot_run_again: bool,
}

impl Attempt {
    pub(crate) fn new(queued: &Arc<Queued>, place: Place, cannot_run_again: bool) -> Attempt {
        queued.attempts().push((place.id(), cannot_run_again));
        Attempt { queued: Arc::clone(queued), place, cannot_run_again }
    }

    /// A row leaves.
    pub(crate) fn sends(&mut self) {
        if !mem::replace(&mut self.cannot_run_again, true) {
            let mut attempts = self.queued.attempts();
            let own = attempts.iter_mut().find(|(id, _)| *id == self.place.id());
            own.into_iter().for_each(|(_, cannot_run_again)| *cannot_run_again = true);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.queued.attempts().retain(|(id, _)| *id != self.place.id());
    }
}

/// A query that has given all back.
pub(crate) struct Waits {
    queued: Arc<Queued>,
    refusal: DataFusionError,
}

impl Waits {
    pub(crate) fn new(queued: &Arc<Queued>, refusal: DataFusionError) -> Waits {
        queued.waiting.fetch_add(1, Ordering::Relaxed);
        Waits { queued: Arc::clone(queued), refusal }
    }

    pub(crate) fn into_error(mut self) -> DataFusionError {
        mem::replace(&mut self.refusal, DataFusionError::ResourcesExhausted(String::new()))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.queued.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
