//! Attempts of queries in the queue: each runs with a pool of its own, which knows whose growths it
//! charges.

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::MemoryPool;
use memcg::Group;

use crate::askers::{Asker, Known, OneQuery};
use crate::pool::GroupPool;
use crate::queue::{Place, QueryQueue};

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
        let known = Known::new(queue, &place, cannot_run_again);
        let query = match pool.asker() {
            Asker::Query(query) => Some(Arc::clone(query)),
            Asker::Nobody | Asker::Attempt(_) => None,
        };
        if let Some(query) = &query {
            query.begins(&known);
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
        self.cannot_run_again || self.sends_unless_refused(false, false)
    }

    /// The same of a row that cannot be held back for an error; `insists`: nor beside another
    /// query.
    pub(crate) fn sends(&mut self, insists: bool) -> bool {
        self.sends_unless_refused(true, insists)
    }

    fn sends_unless_refused(&mut self, in_spite: bool, insists: bool) -> bool {
        let place = &self.place;
        self.cannot_run_again = self.known.sends(in_spite, || place.makes_last(insists));
        self.cannot_run_again
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.known.leaves();
        if let Some(query) = &self.query {
            query.ends(&self.known);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
