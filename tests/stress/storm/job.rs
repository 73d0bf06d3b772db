//! Groups that come and go, with what they hold, and a hook by which they are told to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memcg::{CancelInfo, Charge, Group, Registration};

use super::lock;

/// Jobs that were told to stop; another thread frees what they hold.
pub(crate) type Stopped = Arc<Mutex<Vec<Arc<Held>>>>;

/// The memory of a job.
#[derive(Default)]
pub(crate) struct Held {
    charges: Mutex<Vec<Charge>>,
    /// It was told to stop, and holds nothing more from then on.
    stopped: AtomicBool,
}

impl Held {
    /// Gives the charge back where the job was told to stop.
    pub(crate) fn put(&self, charge: Charge) {
        lock(&self.charges).push(charge);
        if self.stopped.load(Ordering::SeqCst) {
            self.free();
        }
    }

    pub(crate) fn free(&self) {
        // Freed after the lock is given back.
        let charges = std::mem::take(&mut *lock(&self.charges));
        drop(charges);
    }

    /// All that was held when it was told to stop; it begins anew.
    pub(crate) fn stop(&self) {
        self.free();
        self.stopped.store(false, Ordering::SeqCst);
    }

    /// Gives back the oldest.
    pub(crate) fn free_one(&self) {
        let charge = {
            let mut charges = lock(&self.charges);
            (!charges.is_empty()).then(|| charges.remove(0))
        };
        drop(charge);
    }
}

/// Calls of hooks, over all jobs.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) made: AtomicU64,
    /// Hooks whose guard was dropped. A thread that has chosen such a group counts it as a victim,
    /// and then finds the hook gone.
    pub(crate) gone: AtomicU64,
}

/// One group, for as long as its place is not given to another.
pub(crate) struct Job {
    pub(crate) group: Group,
    pub(crate) held: Arc<Held>,
    hook: Mutex<Option<Registration>>,
    calls: Arc<Calls>,
}

impl Job {
    pub(crate) fn new(
        group: Group,
        with_hook: bool,
        stopped: &Stopped,
        calls: &Arc<Calls>,
    ) -> Self {
        let held = Arc::<Held>::default();
        let hook = with_hook.then(|| {
            let held = Arc::clone(&held);
            let stopped = Arc::clone(stopped);
            let calls = Arc::clone(calls);
            let id = group.id();
            group.on_cancel(move |cancel: &CancelInfo| {
                assert_eq!(cancel.group().id(), id, "the hook of another group");
                let asks = cancel.wanted() > 0;
                assert!(
                    cancel.overrun() > 0 || asks,
                    "a group within its share is chosen for what it asks alone"
                );
                held.stopped.store(true, Ordering::SeqCst);
                calls.made.fetch_add(1, Ordering::SeqCst);
                lock(&stopped).push(Arc::clone(&held));
            })
        });
        Self {
            group,
            held,
            hook: Mutex::new(hook),
            calls: Arc::clone(calls),
        }
    }

    /// Its group goes offline, whichever thread waits there; what it holds goes now or with its
    /// last user.
    pub(crate) fn end(&self, now: bool) {
        self.group.offline_tree();
        if let Some(hook) = lock(&self.hook).take() {
            self.calls.gone.fetch_add(1, Ordering::SeqCst);
            drop(hook);
        }
        if now {
            self.held.free();
        }
    }
}
