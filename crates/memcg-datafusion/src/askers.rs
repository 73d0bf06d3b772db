//! Whose growths a pool charges, and what it knows of an attempt: each attempt runs with a pool of its
//! own (`attempts.rs`), so a growth is always that of its own attempt.
//!
//! Operators below the queue have the pool of their attempt. What runs above it, such as the sink of
//! a `COPY`, or what a service charges to a session of one query, has a pool of that query: its
//! growths are those of the attempt that runs. All others are of no attempt.

use std::collections::VecDeque;
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
/// Most refusals that are kept: other operators may be refused before an error reaches the root.
const KNOWN: usize = 1_024;

/// The queue of a session's queries.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) queue: QueryQueue,
    /// What the service has declared to give the same rows again.
    pub(crate) repeatable: Repeatable,
    /// Those of growths of no attempt.
    pub(crate) refusals: Refusals,
}

/// Texts and levels of the last refusals: nothing else in an error tells which level has refused.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<VecDeque<(String, Group)>>);

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, Group)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a refusal of a growth at `level`, whose text the operator is told.
    pub(crate) fn note(&self, refused: &Result<()>, level: Group) {
        if let Err(DataFusionError::ResourcesExhausted(text)) = refused {
            let mut refusals = self.lock();
            let gone = (refusals.len() == KNOWN).then(|| refusals.pop_front());
            refusals.push_back((text.clone(), level));
            // Without the lock: the last handle of a group may call listeners.
            drop(refusals);
            drop(gone);
        }
    }

    pub(crate) fn level_of(&self, told: &str) -> Option<Group> {
        let refusals = self.lock();
        let found = refusals.iter().rev().find(|(text, _)| told.contains(text));
        found.map(|(_, level)| level.clone())
    }
}

/// Whose growths a pool charges.
#[derive(Clone, Debug, Default)]
pub(crate) enum Asker {
    /// Those of no attempt.
    #[default]
    Nobody,
    Query(Arc<OneQuery>),
    Attempt(Arc<Known>),
}

impl Asker {
    /// The attempt that asks. `None`: of none that is in the queue.
    pub(crate) fn attempt(&self) -> Option<Arc<Known>> {
        match self {
            Asker::Nobody => None,
            Asker::Query(query) => query.attempt(),
            Asker::Attempt(known) => (!known.has_left()).then(|| Arc::clone(known)),
        }
    }

    /// Number of the attempt, which may be over.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Asker::Attempt(known) => Some(known.id),
            _ => self.attempt().map(|known| known.id),
        }
    }

    /// Number of reservations of the attempt's operators.
    pub(crate) fn reservations(&self) -> Option<&Reservations> {
        match self {
            Asker::Attempt(known) => Some(&known.reservations),
            Asker::Nobody | Asker::Query(_) => None,
        }
    }
}

/// A query whose attempts follow one another.
#[derive(Debug, Default)]
pub(crate) struct OneQuery(Mutex<Vec<Arc<Known>>>);

impl OneQuery {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Known>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begins(&self, attempt: &Arc<Known>) {
        self.lock().push(Arc::clone(attempt));
    }

    pub(crate) fn ends(&self, attempt: &Arc<Known>) {
        self.lock().retain(|known| !Arc::ptr_eq(known, attempt));
    }

    /// The attempt that runs. `None` also where a service runs several queries in a session of one:
    /// nothing tells which of them asks.
    fn attempt(&self) -> Option<Arc<Known>> {
        match &self.lock()[..] {
            [only] => Some(Arc::clone(only)),
            _ => None,
        }
    }
}

/// An attempt, as its pool knows it.
#[derive(Debug)]
pub(crate) struct Known {
    queue: QueryQueue,
    /// Its place's number.
    pub(crate) id: u64,
    /// No attempt may follow.
    is_last_try: bool,
    begun: Instant,
    reservations: Arc<Reservations>,
    pub(crate) refusals: Refusals,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    stand: Stand,
    cannot_run_again: bool,
    /// A growth was refused, and its operator has nothing to spill: an error is under way.
    is_refused: bool,
    /// Time that its growths have waited.
    waited: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Runs,
    /// It is over: what still runs of it is about to end, and to give all back.
    GivesBack,
    /// It has left the queue: partitions that nobody had taken may go on with its plan.
    HasLeft,
}

impl Known {
    pub(crate) fn new(queue: &QueryQueue, place: &Place, cannot_run_again: bool) -> Arc<Known> {
        Arc::new(Known {
            queue: queue.clone(),
            id: place.id(),
            is_last_try: place.is_last_try(),
            begun: Instant::now(),
            reservations: place.reservations(),
            refusals: Refusals::default(),
            progress: Mutex::new(Progress {
                stand: Stand::Runs,
                cannot_run_again,
                is_refused: false,
                waited: Duration::ZERO,
            }),
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_left(&self) -> bool {
        self.progress().stand == Stand::HasLeft
    }

    /// Its streams are about to be dropped.
    pub(crate) fn is_over(&self) {
        self.progress().stand = Stand::GivesBack;
    }

    /// Its place in the queue is gone.
    pub(crate) fn leaves(&self) {
        let mut progress = self.progress();
        if progress.stand == Stand::Runs {
            progress.stand = Stand::HasLeft;
        }
    }

    /// True if its first row leaves, and it cannot run again: where the queue `makes_last` of it, and,
    /// unless the row leaves in spite of that, no error is under way.
    pub(crate) fn sends(&self, in_spite: bool, makes_last: impl FnOnce() -> bool) -> bool {
        // Below the lock: a growth that is refused meanwhile comes before or after.
        let mut progress = self.progress();
        progress.cannot_run_again = (in_spite || !progress.is_refused) && makes_last();
        progress.cannot_run_again
    }

    /// The queue's patience.
    pub(crate) fn patience(&self) -> Duration {
        self.queue.longest()
    }

    /// True if a growth that `level` has refused is not to wait: the attempt is over, or another
    /// query waits there in its place.
    pub(crate) fn gives_back(&self, level: &Group) -> bool {
        self.progress().stand != Stand::Runs || self.queue.has_in_place(level)
    }

    /// True if another attempt of the queue runs below a group.
    pub(crate) fn has_beside(&self, group: &Group) -> bool {
        self.queue.running_below(group) > 1
    }

    /// Has a growth wait in place. `None`: the attempt can run again, or no other one runs below
    /// `level`.
    pub(crate) fn wait_in_place(&self, level: &Group, bytes: u64) -> Option<InPlace> {
        if !self.progress().cannot_run_again {
            return None;
        }
        self.queue.wait_in_place(self.id, level, bytes)
    }

    /// Longest wait of a growth that `level` has refused. An attempt is bounded only where it ran
    /// beside another one: a query that is refused alone does not run again.
    pub(crate) fn longest_wait(&self, level: &Group) -> Duration {
        let (is_last, waited) = {
            let progress = self.progress();
            (
                self.is_last_try || progress.cannot_run_again,
                progress.waited,
            )
        };
        if is_last || !self.queue.has_run_beside(self.id, level) {
            Duration::MAX
        } else {
            (self.begun.elapsed() / WAITS_PART).saturating_sub(waited)
        }
    }

    /// The queue's patience, if no attempt may follow this one, which `level` has refused.
    pub(crate) fn patience_of_last(&self, level: &Group) -> Option<Duration> {
        (self.longest_wait(level) == Duration::MAX).then(|| self.queue.longest())
    }

    pub(crate) fn has_waited(&self, time: Duration) {
        self.progress().waited += time;
    }

    /// A growth is about to be refused. From here on the attempt sends no first row before the error
    /// may have come. False: it cannot run again, and the growth may wait in its place.
    pub(crate) fn refuses(&self) -> bool {
        let mut progress = self.progress();
        progress.is_refused = true;
        !progress.cannot_run_again
    }
}
