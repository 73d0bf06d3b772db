//! What the tasks of a query allocate beyond what its operators have reserved: a thread looks at it, because the operator
//! that allocates may be the only one that runs.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result};
use memcg::Bytes;

use crate::ended::Life;

/// How often the thread looks.
const PERIOD: Duration = Duration::from_millis(10);

/// The queries that the thread looks at. The thread is there while there are any.
static WATCHED: Mutex<Watched> = Mutex::new(Watched { queries: Vec::new(), has_thread: false });

struct Watched {
    queries: Vec<Weak<Unreserved>>,
    has_thread: bool,
}

/// A query, and how much it may allocate beyond what it has reserved.
#[derive(Debug)]
pub(crate) struct Unreserved {
    life: Arc<Life>,
    max: u64,
    /// Why the query ends, once it has allocated more.
    why: OnceLock<String>,
}

impl Unreserved {
    /// Has the thread look at a query for as long as the caller keeps the value.
    pub(crate) fn watch(life: &Arc<Life>, max: u64) -> Result<Arc<Unreserved>> {
        let query = Arc::new(Unreserved { life: Arc::clone(life), max, why: OnceLock::new() });
        let mut watched = lock();
        if !watched.has_thread {
            let named = thread::Builder::new().name("memcg-unreserved".to_string());
            let started = named.spawn(watch).map_err(|error| DataFusionError::External(Box::new(error)))?;
            // It ends by itself.
            drop(started);
            watched.has_thread = true;
        }
        watched.queries.push(Arc::downgrade(&query));
        Ok(query)
    }

    /// The error of a query that has allocated more.
    pub(crate) fn error(&self) -> Option<DataFusionError> {
        self.why.get().cloned().map(DataFusionError::ResourcesExhausted)
    }

    fn look(&self) {
        let group = self.life.group();
        if group.usage() <= self.max || self.why.get().is_some() {
            return;
        }
        let ledger = group.ledger();
        if ledger.allocated().saturating_sub(ledger.reserved()) <= self.max {
            return;
        }
        let [allocated, reserved, max] = [ledger.allocated(), ledger.reserved(), self.max].map(Bytes);
        let why = format!(
            "{} has allocated {allocated} and reserved {reserved}: more than {max} beyond what is reserved; \
             to go on, read fewer rows at once or raise PoolConfig::max_unreserved",
            group.path()
        );
        if self.why.set(why).is_ok() {
            self.life.wake();
        }
    }
}

fn lock() -> MutexGuard<'static, Watched> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread.
fn watch() {
    loop {
        thread::sleep(PERIOD);
        let queries: Vec<_> = {
            let mut watched = lock();
            watched.queries.retain(|query| query.strong_count() > 0);
            if watched.queries.is_empty() {
                watched.has_thread = false;
                return;
            }
            watched.queries.iter().filter_map(Weak::upgrade).collect()
        };
        // Without the lock: wakers are called.
        queries.iter().for_each(|query| query.look());
    }
}
