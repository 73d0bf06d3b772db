//! Reclaimers to test with: a cache that is honest, one that is a closure, and a log of what each
//! was asked for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memcg::{
    Bytes, Charge, ChargeError, Group, Limit, Reclaim, ReclaimCause, ReclaimContext, ReclaimPass,
    ReclaimPriority, Registration,
};

use super::trees::{charge, create};

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

/// The requests to several reclaimers, in order.
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
        lock(&self.0)
            .iter()
            .filter(|asked| asked.group == path)
            .cloned()
            .collect()
    }

    /// The bytes that a group's reclaimers said that they freed.
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
        lock(&self.0)
            .iter()
            .filter(|asked| asked.pass == pass)
            .cloned()
            .collect()
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
        Cache::at(group, bytes, ReclaimPriority::NORMAL, log)
    }

    #[track_caller]
    pub(crate) fn at(
        group: &Group,
        bytes: u64,
        priority: ReclaimPriority,
        log: &Log,
    ) -> (Arc<Cache>, Registration) {
        let cache = Cache::alone(group, bytes, log);
        let registration =
            group.register_reclaimer(Arc::clone(&cache) as Arc<dyn Reclaim>, priority);
        (cache, registration)
    }

    /// Not registered.
    #[track_caller]
    pub(crate) fn alone(group: &Group, bytes: u64, log: &Log) -> Arc<Cache> {
        let held = Mutex::new(group.charge(Bytes(bytes)).expect("room for the cache"));
        Arc::new(Cache {
            held,
            log: log.clone(),
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.held).bytes()
    }

    /// Charged first, put in afterwards: the charge may take from this cache.
    pub(crate) fn add(&self, bytes: u64) -> Result<(), ChargeError> {
        let group = lock(&self.held).group();
        let more = group.charge(Bytes(bytes))?;
        lock(&self.held).merge(more).expect("of the same group");
        Ok(())
    }

    pub(crate) fn evict(&self, want: u64) -> u64 {
        let mut held = lock(&self.held);
        let freed = want.min(held.bytes());
        held.shrink(Bytes(freed));
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

/// A group with 20 MiB: 4 that nothing frees, and a cache of 8 in it and in the group below. Beside
/// it the root has a cache of 8.
pub(crate) struct Crowded {
    pub(crate) group: Group,
    pub(crate) pinned: Charge,
    pub(crate) outside: Arc<Cache>,
    log: Log,
    _caches: [(Arc<Cache>, Registration); 2],
    _outside: Registration,
}

impl Crowded {
    #[track_caller]
    pub(crate) fn below(root: &Group) -> Crowded {
        let log = Log::default();
        let group = create(root, "q");
        let below = create(&group, "below");
        let pinned = charge(&below, 4 * MIB);
        let caches = [&group, &below].map(|group| Cache::of(group, 8 * MIB, &log));
        let (outside, registration) = Cache::of(root, 8 * MIB, &log);
        Crowded {
            group,
            pinned,
            outside,
            log,
            _caches: caches,
            _outside: registration,
        }
    }

    /// Lowers a limit, first to what there is, which asks no cache, then to so many MiB, which the
    /// caches make room for. Returns what they were asked for.
    #[track_caller]
    pub(crate) fn lowered_to(
        &self,
        mebibytes: u64,
        set: impl Fn(&Group, Limit) -> u64,
    ) -> Vec<Asked> {
        assert_eq!(set(&self.group, Limit::Bytes(20 * MIB)), 0);
        assert!(self.log.is_empty(), "it fits as it is");
        assert_eq!(set(&self.group, Limit::Bytes(mebibytes * MIB)), 0);
        let usage = self.group.usage();
        let live = self.group.live();
        assert!(
            usage <= mebibytes * MIB && live >= (mebibytes - 1) * MIB,
            "{live}"
        );
        let asked = self.log.take();
        assert!(
            !asked.is_empty() && asked.iter().all(|asked| asked.target == "/q"),
            "{asked:?}"
        );
        asked
    }
}
