//! Reclaimers to test with: a cache that is honest, one that is a closure, and a log of what was asked of whom.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memcg::{Charge, ChargeError, Group, Priority, Reclaim, ReclaimCause, ReclaimContext, ReclaimPass, Registration};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// A poisoned lock only says that the test is failing already, or that a reclaimer was to panic.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Log ===

/// One question to a reclaimer, and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Path of the group where the reclaimer is registered.
    pub(crate) group: String,
    pub(crate) target: String,
    pub(crate) want: u64,
    pub(crate) freed: u64,
    pub(crate) cause: ReclaimCause,
    pub(crate) pass: ReclaimPass,
}

/// What was asked of several reclaimers, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Asked>>>);

impl Log {
    pub(crate) fn note(&self, context: &ReclaimContext<'_>, want: u64, freed: u64) {
        let asked = Asked {
            group: context.group().path(),
            target: context.target().path(),
            want,
            freed,
            cause: context.cause(),
            pass: context.pass(),
        };
        lock(&self.0).push(asked);
    }

    /// All of it; the log is empty afterwards.
    pub(crate) fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut *lock(&self.0))
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Questions to the reclaimers of a group.
    pub(crate) fn of(&self, path: &str) -> Vec<Asked> {
        lock(&self.0).iter().filter(|asked| asked.group == path).cloned().collect()
    }

    /// What a group's reclaimers said that they freed.
    pub(crate) fn freed(&self, path: &str) -> u64 {
        self.of(path).iter().map(|asked| asked.freed).sum()
    }

    pub(crate) fn freed_in_all(&self) -> u64 {
        lock(&self.0).iter().map(|asked| asked.freed).sum()
    }

    /// The groups in the order in which they were asked for the first time.
    pub(crate) fn order(&self) -> Vec<String> {
        let mut order: Vec<String> = Vec::new();
        for asked in &*lock(&self.0) {
            if !order.contains(&asked.group) {
                order.push(asked.group.clone());
            }
        }
        order
    }

    pub(crate) fn in_pass(&self, pass: ReclaimPass) -> Vec<Asked> {
        lock(&self.0).iter().filter(|asked| asked.pass == pass).cloned().collect()
    }
}

// === impl Cache ===

/// Frees what it is asked for, to the byte, while it has anything, and says so.
pub(crate) struct Cache {
    held: Mutex<Charge>,
    log: Log,
}

impl Cache {
    /// With `bytes` charged to the group, registered there.
    #[track_caller]
    pub(crate) fn of(group: &Group, bytes: u64, log: &Log) -> (Arc<Cache>, Registration) {
        Cache::at(group, bytes, Priority::NORMAL, log)
    }

    #[track_caller]
    pub(crate) fn at(group: &Group, bytes: u64, priority: Priority, log: &Log) -> (Arc<Cache>, Registration) {
        let cache = Cache::alone(group, bytes, log);
        let registration = group.register_reclaimer(Arc::clone(&cache) as Arc<dyn Reclaim>, priority);
        (cache, registration)
    }

    /// Not registered.
    #[track_caller]
    pub(crate) fn alone(group: &Group, bytes: u64, log: &Log) -> Arc<Cache> {
        let held = Mutex::new(group.try_charge(bytes).expect("room for the cache"));
        Arc::new(Cache { held, log: log.clone() })
    }

    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.held).bytes()
    }

    /// Charged first, put in afterwards: the charge may take from this cache.
    pub(crate) fn add(&self, bytes: u64) -> Result<(), ChargeError> {
        let group = lock(&self.held).group();
        let more = group.try_charge(bytes)?;
        lock(&self.held).merge(more).expect("of the same group");
        Ok(())
    }

    pub(crate) fn evict(&self, want: u64) -> u64 {
        let mut held = lock(&self.held);
        let freed = want.min(held.bytes());
        held.shrink(freed);
        freed
    }
}

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        let freed = self.evict(want);
        self.log.note(context, want, freed);
        freed
    }

    fn reclaimable(&self) -> u64 {
        self.bytes()
    }
}

// === impl Call ===

/// A reclaimer that is a closure.
pub(crate) struct Call<F> {
    call: F,
    reclaimable: u64,
}

/// That says nothing of what it could free.
pub(crate) fn call<F>(call: F) -> Arc<dyn Reclaim>
where
    F: Fn(u64, &ReclaimContext<'_>) -> u64 + Send + Sync + 'static,
{
    call_of(u64::MAX, call)
}

/// That says so much of what it could free.
pub(crate) fn call_of<F>(reclaimable: u64, call: F) -> Arc<dyn Reclaim>
where
    F: Fn(u64, &ReclaimContext<'_>) -> u64 + Send + Sync + 'static,
{
    Arc::new(Call { call, reclaimable })
}

impl<F: Fn(u64, &ReclaimContext<'_>) -> u64 + Send + Sync> Reclaim for Call<F> {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        (self.call)(want, context)
    }

    fn reclaimable(&self) -> u64 {
        self.reclaimable
    }
}
