//! Knowledge that a pool has of the queries that wait in line for room that others hold: which of
//! them run, and which have been refused.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result};
use memcg::Group;

use crate::lines::Reservations;
use crate::queue::{InPlace, Place, QueryQueue};
use crate::repeats::Repeatable;

/// An attempt that may be followed by another waits for such a part of the time that it has run, in
/// all: to run again costs that time, and ends what others wait for.
const WAITS_PART: u32 = 3;
/// Most refusals that a pool keeps: other operators, and those of other queries of the session, may
/// be refused before an error reaches the root.
const KNOWN: usize = 1_024;

/// The queue of a pool's queries, and the refusals and attempts of that pool.
#[derive(Debug)]
pub(crate) struct Queued {
    queue: QueryQueue,
    /// What the service has declared to give the same rows again.
    pub(crate) repeatable: Repeatable,
    /// Texts and levels of the last refusals: nothing else in an error tells which level has
    /// refused.
    refusals: Mutex<VecDeque<(String, Group)>>,
    attempts: Mutex<Vec<Known>>,
    /// Number of queries that have given all back and wait. Relaxed: it only ends waits early.
    waiting: AtomicUsize,
    pub(crate) reservations: Arc<Reservations>,
}

/// An attempt that runs, as its pool knows it.
#[derive(Debug)]
struct Known {
    /// Its place's number.
    id: u64,
    cannot_run_again: bool,
    /// A growth that may be its own was refused, and its operator has nothing to spill: an error is
    /// under way.
    is_refused: bool,
    /// No attempt may follow.
    is_last_try: bool,
    begun: Instant,
    /// Time that its growths have waited.
    waited: Duration,
}

impl Queued {
    pub(crate) fn new(queue: QueryQueue, repeatable: Repeatable) -> Arc<Queued> {
        let refusals = Mutex::default();
        let attempts = Mutex::default();
        Arc::new(Queued {
            queue,
            repeatable,
            refusals,
            attempts,
            waiting: AtomicUsize::new(0),
            reservations: Arc::default(),
        })
    }

    pub(crate) fn queue(&self) -> &QueryQueue {
        &self.queue
    }

    pub(crate) fn refusals(&self) -> MutexGuard<'_, VecDeque<(String, Group)>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempts(&self) -> MutexGuard<'_, Vec<Known>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a refusal of a growth at `level`, whose text the operator is told.
    pub(crate) fn note(&self, refused: &Result<()>, level: &Group) {
        if let Err(DataFusionError::ResourcesExhausted(text)) = refused {
            let mut refusals = self.refusals();
            if refusals.len() == KNOWN {
                refusals.pop_front();
            }
            refusals.push_back((text.clone(), level.clone()));
        }
    }

    /// Returns the level that was full if an error of the plan is a refusal of the pool.
    pub(crate) fn level_of(&self, error: &DataFusionError) -> Option<Group> {
        let DataFusionError::ResourcesExhausted(text) = error.find_root() else {
            return None;
        };
        let refusals = self.refusals();
        let found = refusals
            .iter()
            .rev()
            .find(|(known, _)| text.contains(known));
        found.map(|(_, level)| level.clone())
    }

    /// True if a growth that `level` has refused is not to wait. Queries of the pool wait and no
    /// attempt runs: tasks that still hold memory are about to end. Or another query waits there in
    /// its place.
    pub(crate) fn gives_back(&self, level: &Group) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 && self.attempts().is_empty()
            || self.queue.has_in_place(level)
    }

    /// Has a growth wait in place for the pool's attempt that cannot run again. `None`: no such
    /// attempt runs, or no other attempt runs below `level`.
    pub(crate) fn wait_in_place(&self, level: &Group, bytes: u64) -> Option<InPlace> {
        let attempt = self
            .attempts()
            .iter()
            .find(|known| known.cannot_run_again)
            .map(|known| known.id);
        self.queue.wait_in_place(attempt?, level, bytes)
    }

    /// Longest wait of a growth that `level` has refused. An attempt is bounded only where it ran
    /// beside another one: a query that is refused alone does not run again.
    pub(crate) fn longest_wait(&self, level: &Group) -> Duration {
        let is_last = |known: &Known| known.is_last_try || known.cannot_run_again;
        let of = |known: &Known| {
            if is_last(known) || !self.queue.has_run_beside(known.id, level) {
                Duration::MAX
            } else {
                (known.begun.elapsed() / WAITS_PART).saturating_sub(known.waited)
            }
        };
        self.attempts()
            .iter()
            .map(of)
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// The queue's patience, if no attempt may follow the one that `level` has refused.
    pub(crate) fn patience_of_last(&self, level: &Group) -> Option<Duration> {
        let is_last = !self.attempts().is_empty() && self.longest_wait(level) == Duration::MAX;
        is_last.then(|| self.queue.longest())
    }

    pub(crate) fn has_waited(&self, time: Duration) {
        self.attempts()
            .iter_mut()
            .for_each(|known| known.waited += time);
    }

    /// A growth is about to be refused. From here on no attempt sends its first row before its
    /// error may have come. False: one cannot run again, and the growth may wait in its place.
    pub(crate) fn refuses(&self) -> bool {
        let mut attempts = self.attempts();
        attempts
            .iter_mut()
            .for_each(|known| known.is_refused = true);
        !attempts.iter().any(|known| known.cannot_run_again)
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
        let id = place.id();
        let is_last_try = place.is_last_try();
        let begun = Instant::now();
        let waited = Duration::ZERO;
        queued.attempts().push(Known {
            id,
            cannot_run_again,
            is_refused: false,
            is_last_try,
            begun,
            waited,
        });
        Attempt {
            queued: Arc::clone(queued),
            place,
            cannot_run_again,
        }
    }

    /// True if the first row may leave: not while an error is under way that the query would be
    /// failed for, nor beside another query that sends rows below a level that is full. From then
    /// on it cannot run again.
    pub(crate) fn may_send(&mut self) -> bool {
        self.cannot_run_again || self.sends_unless(|own| own.is_refused, false)
    }

    /// The same of a row that cannot be held back for an error; `insists`: nor beside another
    /// query.
    pub(crate) fn sends(&mut self, insists: bool) -> bool {
        self.sends_unless(|_| false, insists)
    }

    fn sends_unless(&mut self, stays: impl Fn(&Known) -> bool, insists: bool) -> bool {
        let mut attempts = self.queued.attempts();
        let own = attempts
            .iter_mut()
            .find(|known| known.id == self.place.id());
        self.cannot_run_again = own.is_none_or(|own| {
            own.cannot_run_again = !stays(own) && self.place.makes_last(insists);
            own.cannot_run_again
        });
        self.cannot_run_again
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.queued
            .attempts()
            .retain(|known| known.id != self.place.id());
    }
}

/// A query that has given all back and waits, with the refusal that it ends with if the wait is in
/// vain.
pub(crate) struct Waits {
    queued: Arc<Queued>,
    refusal: DataFusionError,
}

impl Waits {
    pub(crate) fn new(queued: &Arc<Queued>, refusal: DataFusionError) -> Waits {
        queued.waiting.fetch_add(1, Ordering::Relaxed);
        Waits {
            queued: Arc::clone(queued),
            refusal,
        }
    }

    pub(crate) fn into_error(mut self) -> DataFusionError {
        mem::replace(
            &mut self.refusal,
            DataFusionError::ResourcesExhausted(String::new()),
        )
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.queued.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
