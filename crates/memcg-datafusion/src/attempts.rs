//! Attempts, as their pools know them: each runs with a pool of its own, so a growth is always that
//! of its own attempt.
//!
//! Operators below the queue have the pool of their attempt. What runs above it, such as the sink of
//! a `COPY`, or what a service charges to a session of one query, has a pool of that query: its
//! growths are those of the attempt that runs. All others are of no attempt.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryPool;
use memcg::Group;

use crate::lines::Reservations;
use crate::pool::GroupPool;
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

    fn level_of(&self, told: &str) -> Option<Group> {
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
    id: u64,
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

/// An attempt that runs.
pub(crate) struct Attempt {
    pub(crate) place: Place,
    pub(crate) cannot_run_again: bool,
    known: Arc<Known>,
    /// The pool that its operators charge.
    pool: Arc<GroupPool>,
    /// The query that the pool of its session is of.
    query: Option<Arc<OneQuery>>,
}

impl Attempt {
    /// `pool`: that of the query's session, or of what is above the queue in its plan.
    pub(crate) fn new(
        queue: &QueryQueue,
        pool: &GroupPool,
        place: Place,
        cannot_run_again: bool,
    ) -> Attempt {
        let known = Arc::new(Known {
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
        });
        let query = match pool.asker() {
            Asker::Query(query) => Some(Arc::clone(query)),
            Asker::Nobody | Asker::Attempt(_) => None,
        };
        if let Some(query) = &query {
            query.lock().push(Arc::clone(&known));
        }
        Attempt {
            place,
            cannot_run_again,
            pool: Arc::new(pool.of(Asker::Attempt(Arc::clone(&known)))),
            known,
            query,
        }
    }

    pub(crate) fn known(&self) -> &Arc<Known> {
        &self.known
    }

    pub(crate) fn pool(&self) -> Arc<dyn MemoryPool> {
        Arc::clone(&self.pool) as Arc<dyn MemoryPool>
    }

    /// Returns the level that was full if an error of the plan is a refusal of its pool, or one of a
    /// growth of no attempt.
    pub(crate) fn level_of(&self, error: &DataFusionError) -> Option<Group> {
        let DataFusionError::ResourcesExhausted(text) = error.find_root() else {
            return None;
        };
        let own = self.known.refusals.level_of(text);
        own.or_else(|| self.pool.queued()?.refusals.level_of(text))
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

    fn sends_unless(&mut self, stays: impl Fn(&Progress) -> bool, insists: bool) -> bool {
        // Below the lock: a growth that is refused meanwhile comes before or after.
        let mut progress = self.known.progress();
        progress.cannot_run_again = !stays(&progress) && self.place.makes_last(insists);
        self.cannot_run_again = progress.cannot_run_again;
        self.cannot_run_again
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        {
            let mut progress = self.known.progress();
            if progress.stand == Stand::Runs {
                progress.stand = Stand::HasLeft;
            }
        }
        if let Some(query) = &self.query {
            query
                .lock()
                .retain(|known| !Arc::ptr_eq(known, &self.known));
        }
    }
}

#[cfg(test)]
mod tests {
    use memcg::Runtime;

    use super::*;
    use crate::config::PoolConfig;

    /// What is above the queue in a plan, and a session of one query, ask for the attempt that runs; a
    /// session of several queries asks for none.
    #[test]
    fn each_growth_is_of_its_attempt() {
        let runtime = Runtime::builder().build().unwrap();
        let root = runtime.root();
        let queue = QueryQueue::new(2, Duration::from_secs(3_600));
        let config = PoolConfig::new().queue(&queue);
        let attempt = |pool: &GroupPool| {
            let place = queue.arrive(&root, &Arc::default(), false);
            Attempt::new(&queue, pool, place, false)
        };
        let number = |pool: &GroupPool| pool.asker().attempt().map(|known| known.id);
        let session = GroupPool::of_session(&root, &config).unwrap();
        let of_query = GroupPool::of_query(&root, &config).unwrap();
        assert!(of_query.above_queue().is_none());
        for above in [
            session.above_queue().unwrap(),
            of_query.of(of_query.asker().clone()),
        ] {
            let [first, other] = [attempt(&above), attempt(&session)];
            assert_eq!(number(&above), Some(first.place.id()));
            assert_eq!(number(&other.pool), Some(other.place.id()));
            assert_eq!(number(&session), None);
            let second = attempt(&above);
            assert_eq!(number(&above), None, "it may be either");
            let of_first = Arc::clone(&first.pool);
            drop(first);
            assert_eq!(number(&of_first), None, "it has left the queue");
            assert_eq!(number(&above), Some(second.place.id()));
        }
    }
}
