//! The model's side of the door: loom's atomics and locks with the signatures of [`real`](super).

use super::Arc;
use super::per_thread::{Local, Owner, Registry};

pub(crate) use loom::sync::MutexGuard;
pub(crate) use loom::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, fence};

/// Loom's mutex with a `lock` that does not poison, as parking_lot's.
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("a model never unlocks by panic")
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// Small, so that models reach them.
pub(crate) const POOL_OBJECTS: usize = 2;
pub(crate) const POOL_STASH: usize = 1;
pub(crate) const POOL_PAGES: usize = 4;
pub(crate) const POOL_PAGE: usize = 2;
pub(crate) const DEATHS: usize = 2;
pub(crate) const SHARDS: usize = 2;
pub(crate) const SLICE: usize = 1;
pub(crate) const IDLE_VISITS: u32 = 1;

/// The same in each run of a model.
pub(crate) type NameHasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// One for each run of a model, counted: loom drops its statics before the main thread's thread-locals.
pub(crate) type Shared<T> = Arc<T>;

pub(crate) fn share<T>(value: T) -> Shared<T> {
    Arc::new(value)
}

pub(crate) fn pool_stashes() -> usize {
    2
}

/// Nothing that a model could see.
pub(crate) fn prefetch<T>(_address: *const T) {}

pub(crate) type Registrar = Shared<Registry>;

/// Defines a function that returns the one value of the model, made on first use.
macro_rules! process_wide {
    ($name:ident: $type:ty = $make:expr) => {
        pub(crate) fn $name() -> $crate::sync::Shared<$type> {
            loom::lazy_static! {
                static ref VALUE: std::sync::Arc<$type> = std::sync::Arc::new($make());
            }
            std::sync::Arc::clone(&VALUE)
        }
    };
}
pub(crate) use process_wide;

process_wide!(registry: Registry = Registry::new);

loom::thread_local! {
    static LOCAL: Local = Local::new();
    static OWNER: Owner = Owner::register(registry());
}

pub(crate) fn with_local<R>(read: impl FnOnce(&Local) -> R) -> R {
    let mut read = Some(read);
    let mut call = |local: &Local| read.take().map(|read| read(local));
    // Loom destroys a thread's locals in any order; the real one has no destructor and is always there.
    LOCAL.try_with(&mut call).ok().flatten().or_else(|| call(&Local::new())).expect("called once")
}

pub(crate) fn owner() -> bool {
    OWNER.try_with(|_| ()).is_ok()
}

/// In a model patience has no end: the scheduler runs somebody else.
pub(crate) struct Patience;

impl Patience {
    pub(crate) fn new() -> Self {
        Patience
    }

    pub(crate) fn wait(&self) -> bool {
        loom::thread::yield_now();
        true
    }
}

pub(crate) use loom::thread::{Thread, current as this_thread};

/// Time stands still: until somebody unparks this thread.
pub(crate) fn park(_: Option<std::time::Duration>) {
    loom::thread::park();
}

pub(crate) fn sleep(_: std::time::Duration) {
    loom::thread::yield_now();
}

pub(crate) fn pause() {
    loom::thread::yield_now();
}

/// Time stands still in a model, or its runs would differ.
pub(crate) fn is_over(_: std::time::Instant) -> bool {
    false
}

/// A model has one processor, or its runs would differ.
pub(crate) fn processor() -> usize {
    0
}

/// A failed model unwinds through destructors that must not touch its objects any more.
pub(crate) fn model_failed() -> bool {
    std::thread::panicking()
}
