//! Memory that the tasks of a query allocate beyond what its operators have reserved: no growth is
//! refused for it. So each batch that a plan gives is a look at it, and a thread looks, because an
//! operator that gives its batches at its end may be the only one that runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result};
use memcg::figures::Ledger;
use memcg::{Bytes, Group, GroupId, OnFull};

use crate::ended::Life;
use crate::refusal::Words;

/// Time between two looks of the thread.
const PERIOD: Duration = Duration::from_millis(10);
/// A query that has allocated less beyond what it has reserved is not ended for a level that others
/// share: its end would give back little.
const WORTH: u64 = 1 << 20;

/// The queries that the thread looks at. The thread is there while there are any.
static WATCHED: Mutex<Watched> = Mutex::new(Watched {
    queries: Vec::new(),
    has_thread: false,
});

struct Watched {
    queries: Vec<Weak<Unreserved>>,
    has_thread: bool,
}

/// A query, and how much it may allocate beyond what it has reserved.
#[derive(Debug)]
pub(crate) struct Unreserved {
    life: Arc<Life>,
    max: Option<u64>,
    /// The query has allocated more than `max`, or most below a level above its max: it ends, or
    /// runs again if it is in a queue.
    why: Mutex<Option<Why>>,
}

/// Text of the error that ends a query, and the level that is full.
#[derive(Clone, Debug)]
struct Why {
    text: String,
    level: Group,
}

/// A level above its max, and the bytes above it. A query ends when two looks find the level so,
/// the second with no fewer bytes.
#[derive(Clone, Debug)]
pub(crate) struct Excess {
    level: Group,
    bytes: u64,
}

impl Excess {
    fn is_no_less_than(&self, before: &Excess) -> bool {
        self.level == before.level && self.bytes >= before.bytes
    }
}

impl Unreserved {
    /// Has the thread look at a query for as long as the caller keeps the value.
    pub(crate) fn watch(life: &Arc<Life>, max: Option<u64>) -> Result<Arc<Unreserved>> {
        let query = Arc::new(Unreserved {
            life: Arc::clone(life),
            max,
            why: Mutex::default(),
        });
        let mut watched = lock();
        if !watched.has_thread {
            let named = thread::Builder::new().name("memcg-unreserved".to_string());
            let started = named
                .spawn(watch)
                .map_err(|error| DataFusionError::External(Box::new(error)))?;
            // It ends by itself.
            drop(started);
            watched.has_thread = true;
        }
        watched.queries.push(Arc::downgrade(&query));
        Ok(query)
    }

    fn why(&self) -> MutexGuard<'_, Option<Why>> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_to_end(&self) -> bool {
        self.why().is_some()
    }

    /// The error of a query that is to end, and the level that is full.
    pub(crate) fn error(&self) -> Option<(DataFusionError, Group)> {
        let Why { text, level } = self.why().clone()?;
        Some((DataFusionError::ResourcesExhausted(text), level))
    }

    /// The query runs anew, with nothing of what it had allocated.
    pub(crate) fn begins_anew(&self) {
        let gone = self.why().take();
        // Without the lock: the last handle of a group may call listeners.
        drop(gone);
    }

    /// A batch of the query: the end of one of the queries where a level is above its max, and was
    /// so at the last batch. Some loads for each level, where none is.
    pub(crate) fn look_at_batch(&self, last: &mut Option<Excess>) {
        let before = last.take();
        *last = self.excess();
        if let (Some(before), Some(now)) = (before, last)
            && now.is_no_less_than(&before)
        {
            now.end_one(&watched());
        }
    }

    /// The lowest level above its max.
    fn excess(&self) -> Option<Excess> {
        self.levels().find_map(|level| match level.forced() {
            0 => None,
            bytes => Some(Excess { level, bytes }),
        })
    }

    /// The query's group and those above it.
    fn levels(&self) -> impl Iterator<Item = Group> {
        let group = self.life.group();
        std::iter::once(group.clone()).chain(group.ancestors())
    }

    fn is_below(&self, level: &Group) -> bool {
        self.levels().any(|group| &group == level)
    }

    /// The thread's look at the query alone.
    fn look(&self) {
        let Some(max) = self.max else { return };
        let group = self.life.group();
        if group.usage() <= max || self.is_to_end() {
            return;
        }
        let ledger = group.ledger();
        if unreserved(ledger) > max {
            let max = Bytes(max);
            let text = format!(
                "{}: more than {max} beyond what is reserved; to go on, read fewer rows at once",
                self.has(ledger)
            );
            self.end(text, group);
        }
    }

    fn has(&self, ledger: Ledger) -> String {
        let [allocated, reserved] = [ledger.allocated(), ledger.reserved()].map(Bytes);
        format!(
            "{} has allocated {allocated} and reserved {reserved}",
            self.life.group().path()
        )
    }

    fn end(&self, text: String, level: &Group) {
        let level = level.clone();
        let is_first = {
            let mut why = self.why();
            let is_first = why.is_none();
            if is_first {
                *why = Some(Why { text, level });
            }
            is_first
        };
        if is_first {
            self.life.wake();
        }
    }

    /// The end with the refusal of the level, where it refuses a byte more. The level is charged
    /// itself: the query's own group may have no room for what is unpaid in another query's.
    fn end_refused(&self, level: &Group, ledger: Ledger) {
        let more = Bytes(beyond(level));
        match level.raw().charge_with(more, OnFull::Now) {
            Ok(()) => level.raw().uncharge(more),
            // It has got below its max: one above it has refused, or it has ended.
            Err(error) => {
                if let Some(refusal) = error
                    .over_limit()
                    .filter(|refusal| refusal.group() == level)
                {
                    let words = Words::of_a_byte(refusal, self.life.group());
                    let text = format!("query: {words}; {}", self.has(ledger));
                    self.end(text, level);
                }
            }
        }
    }
}

impl Excess {
    /// Ends the running query below the level that has allocated most beyond its reserved bytes. It
    /// ends none while one that was ended still has what it had allocated.
    fn end_one(&self, watched: &[Arc<Unreserved>]) {
        let below = || watched.iter().filter(|query| query.is_below(&self.level));
        let is_going = |query: &&Arc<Unreserved>| {
            query.is_to_end() && unreserved(query.life.group().ledger()) > WORTH
        };
        if below().any(|query| is_going(&query)) {
            return;
        }
        let running = below().filter(|query| !query.is_to_end() && query.life.is_running());
        let ledgers = running.map(|query| (query, query.life.group().ledger()));
        let worth = ledgers.filter(|(query, ledger)| {
            query.life.group() == &self.level || unreserved(*ledger) > WORTH
        });
        if let Some((query, ledger)) = worth.max_by_key(|(_, ledger)| unreserved(*ledger)) {
            query.end_refused(&self.level, ledger);
        }
    }
}

/// Bytes to reserve that raise usage of the level by one byte. In a level that covers, bytes
/// allocated beyond the reserved ones pay for a reservation of as many.
fn beyond(level: &Group) -> u64 {
    let covered = level.limits().cover_allocations;
    let unpaid = if covered {
        level.usage().saturating_sub(level.ledger().reserved())
    } else {
        0
    };
    unpaid.saturating_add(1)
}

fn unreserved(ledger: Ledger) -> u64 {
    ledger.allocated().saturating_sub(ledger.reserved())
}

fn lock() -> MutexGuard<'static, Watched> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queries that are looked at.
fn watched() -> Vec<Arc<Unreserved>> {
    lock().queries.iter().filter_map(Weak::upgrade).collect()
}

/// The thread.
fn watch() {
    let mut before = HashMap::<GroupId, Excess>::new();
    loop {
        thread::sleep(PERIOD);
        {
            let mut watched = lock();
            watched.queries.retain(|query| query.strong_count() > 0);
            if watched.queries.is_empty() {
                watched.has_thread = false;
                return;
            }
        }
        // Without the lock: wakers are called.
        let queries = watched();
        queries.iter().for_each(|query| query.look());
        let mut now = HashMap::new();
        for excess in queries
            .iter()
            .filter(|query| query.life.is_running())
            .filter_map(|query| query.excess())
        {
            now.entry(excess.level.id()).or_insert(excess);
        }
        for (level, excess) in &now {
            if before
                .get(level)
                .is_some_and(|before| excess.is_no_less_than(before))
            {
                excess.end_one(&queries);
            }
        }
        before = now;
    }
}
