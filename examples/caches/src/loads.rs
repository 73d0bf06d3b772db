//! One load for a key that many want at once.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use memcg::ChargeError;

use crate::entry::Entry;

// ANCHOR: loads
/// The loads that are on their way, by their keys.
#[derive(Debug, Default)]
pub struct Loads(Mutex<HashMap<u64, Arc<Load>>>);

#[derive(Debug, Default)]
struct Load {
    /// Once it has ended: the entry, or `None` where it was refused or has panicked.
    ended: Mutex<Option<Option<Arc<Entry>>>>,
    ends: Condvar,
}

/// The thread that loads. The drop ends the load, whatever has become of it.
struct Loading<'a> {
    loads: &'a Loads,
    key: u64,
    load: Arc<Load>,
    entry: Option<Arc<Entry>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loads {
    /// Loads an entry and puts it into the cache, or waits for the thread that does and returns what that has loaded. Where
    /// that was refused, or has panicked, this thread tries itself. `find` looks into the cache once more, for an entry
    /// that came meanwhile. No lock is held while `find` and `load` run.
    ///
    /// # Errors
    ///
    /// Those of `load`.
    pub fn load(
        &self,
        key: u64,
        find: impl FnOnce() -> Option<Arc<Entry>>,
        load: impl FnOnce() -> Result<Arc<Entry>, ChargeError>,
    ) -> Result<Arc<Entry>, ChargeError> {
        loop {
            let mut is_first = false;
            let flight = Arc::clone(lock(&self.0).entry(key).or_insert_with(|| {
                is_first = true;
                Arc::default()
            }));
            if is_first {
                let mut loading = Loading { loads: self, key, load: flight, entry: None };
                let entry = find().map_or_else(load, Ok)?;
                loading.entry = Some(Arc::clone(&entry));
                return Ok(entry);
            }
            let ended = flight.ends.wait_while(lock(&flight.ended), |ended| ended.is_none());
            if let Some(Some(entry)) = &*ended.unwrap_or_else(PoisonError::into_inner) {
                return Ok(Arc::clone(entry));
            }
        }
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let removed = lock(&self.loads.0).remove(&self.key);
        *lock(&self.load.ended) = Some(self.entry.take());
        self.load.ends.notify_all();
        drop(removed);
    }
}
// ANCHOR_END: loads
