//! The checkers' side of the door: atomics and locks of loom or of shuttle with the signatures of
//! [`real`](super).
//!
//! Here is what is the same for both; the file of a checker holds its types and its time.

#[cfg_attr(loom, path = "model/loom.rs")]
#[cfg_attr(shuttle, path = "model/shuttle.rs")]
pub(crate) mod checker;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use checker::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, fence, rest, thread_local};
#[cfg(all(shuttle, feature = "_simulated-time", debug_assertions))]
pub(crate) use simulated::{Thread, is_over, park, sleep, start_thread, this_thread};
#[cfg(not(all(shuttle, feature = "_simulated-time", debug_assertions)))]
pub(crate) use still::{Thread, is_over, park, sleep, start_thread, this_thread};

std::thread_local! {
    /// The barrier pair orders memory in the model that this thread of the system runs, with all
    /// threads of the model.
    static PAIRED: Cell<bool> = const { Cell::new(true) };

    /// The model is of figures, see [`loads_for_figures`].
    static OF_FIGURES: Cell<bool> = const { Cell::new(false) };
}

/// Of the model that this thread of the system runs next.
#[cfg(all(test, loom))]
pub(crate) fn set_of_figures(of_figures: bool) {
    OF_FIGURES.set(of_figures);
}

/// Words of protocols are loaded for figures, too: in models of figures alone. Others explore no
/// loads that only a figure needs.
pub(crate) fn loads_for_figures() -> bool {
    OF_FIGURES.get()
}

/// Of the model that this thread of the system runs next.
#[cfg(all(test, loom))]
pub(crate) fn set_paired(paired: bool) {
    PAIRED.set(paired);
}

/// Either side of the barrier pair. A processor may order less than a fence beside *light* where no
/// *heavy* runs, so an edge that has none shows only in a model without.
pub(crate) fn fence_of_pair() {
    if PAIRED.get() {
        fence(Ordering::SeqCst);
    }
}

/// The same in each run of a model.
pub(crate) type NameHasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// One for each run of a model, counted: loom drops its statics before the main thread's
/// thread-locals.
pub(crate) type Shared<T> = Arc<T>;

pub(crate) fn share<T>(value: T) -> Shared<T> {
    Arc::new(value)
}

pub(crate) fn pool_stashes() -> usize {
    2
}

/// Nothing that a model could see.
pub(crate) fn prefetch<T>(_address: *const T) {}

/// Defines a function that returns the one value of the model, made on first use.
macro_rules! process_wide {
    ($name:ident: $type:ty = $make:expr) => {
        pub(crate) fn $name() -> std::sync::Arc<$type> {
            $crate::sync::checker::lazy_static! {
                static ref VALUE: std::sync::Arc<$type> = std::sync::Arc::new($make());
            }
            std::sync::Arc::clone(&VALUE)
        }
    };
}
pub(crate) use process_wide;

/// The same: a checker's atomics are not const.
macro_rules! process_const {
    ($visible:vis $name:ident: $type:ty = $value:expr) => {
        $visible fn $name() -> std::sync::Arc<$type> {
            $crate::sync::process_wide!(made: $type = || $value);
            made()
        }
    };
}
pub(crate) use process_const;

/// Defines a function that shows a thread its own value. A checker destroys a thread's values in
/// any order; the real one has no destructor and is always there, so a new value stands for one
/// that is gone.
macro_rules! per_thread {
    ($(#[$about:meta])* $visible:vis $name:ident: $type:ty = $init:expr) => {
        $(#[$about])*
        $visible fn $name<R>(read: impl FnOnce(&$type) -> R) -> R {
            $crate::sync::checker::thread_local! {
                static VALUE: $type = $init;
            }
            let mut read = Some(read);
            let mut call = |value: &$type| read.take().map(|read| read(value));
            VALUE.try_with(&mut call).ok().flatten().or_else(|| call(&$init)).expect("called once")
        }
    };
}
pub(crate) use per_thread;

/// Makes a value on the heap: a model has no allocator that charges.
///
/// # Safety
///
/// The real one makes demands on `map`; this one makes none.
#[allow(unsafe_code)]
pub(crate) unsafe fn place<T>(
    _map: impl FnOnce(usize) -> Option<*mut u8>,
    make: impl FnOnce() -> T,
) -> Option<*mut T> {
    Some(Box::into_raw(Box::new(make())))
}

/// [`place`]: the value that the real one has as zeroes.
///
/// # Safety
///
/// As above.
#[allow(unsafe_code)]
pub(crate) unsafe fn place_zeroed<T>(
    map: impl FnOnce(usize) -> Option<*mut u8>,
    make: impl FnOnce() -> T,
) -> Option<*mut T> {
    // SAFETY: as above.
    unsafe { place(map, make) }
}

/// Drops a value that [`place`] has made.
///
/// # Safety
///
/// The value is from `place`, and no thread uses it any more.
#[allow(unsafe_code)]
pub(crate) unsafe fn displace<T>(value: *mut T) {
    // SAFETY: says the caller.
    drop(unsafe { Box::from_raw(value) });
}

/// Defines a function that returns what a pointer holds where a thread has made no value yet: null,
/// for a checker's atomics are no statics.
macro_rules! stand_in {
    ($(#[$about:meta])* $visible:vis $name:ident: $type:ty = $value:expr) => {
        $(#[$about])*
        $visible const fn $name() -> *const $type {
            std::ptr::null()
        }
    };
}
pub(crate) use stand_in;

/// Follows a pointer that a thread has set; `None` where it has set none.
///
/// # Safety
///
/// The target of the pointer lives for `'a`.
#[allow(unsafe_code)]
pub(crate) unsafe fn follow<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: says the caller.
    unsafe { pointer.as_ref() }
}

/// In a model patience has no end: the scheduler runs another thread.
pub(crate) struct Patience;

impl Patience {
    pub(crate) fn new() -> Self {
        Patience
    }

    pub(crate) fn wait(&self) -> bool {
        checker::yield_now();
        true
    }
}

pub(crate) fn pause() {
    checker::yield_now();
}

/// Time stands still in a model, or its runs would differ; and its threads are its own.
#[cfg(not(all(shuttle, feature = "_simulated-time", debug_assertions)))]
mod still {
    use std::io::{Error, ErrorKind};
    use std::time::{Duration, Instant};

    use super::checker::yield_now;
    pub(crate) use super::checker::{Thread, current as this_thread, park};

    pub(crate) fn sleep(_: Duration) {
        yield_now();
    }

    pub(crate) fn start_thread(
        _: &str,
        _: impl FnOnce() + Send + 'static,
    ) -> Result<Thread, Error> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_over(_: Instant) -> bool {
        false
    }
}

/// The run moves the clock, and the threads that the crate starts are threads of the run.
#[cfg(all(shuttle, feature = "_simulated-time", debug_assertions))]
mod simulated {
    pub(crate) use super::super::clock::{Thread, park, sleep, start_thread, this_thread};

    pub(crate) fn is_over(deadline: std::time::Instant) -> bool {
        super::super::clock::now() >= deadline
    }
}

/// No model flushes by a thread of its own.
pub(crate) fn spawn(
    _: &str,
    _: impl FnOnce() + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// A model has one processor, or its runs would differ.
pub(crate) fn processor() -> usize {
    0
}

/// A failed model unwinds through destructors that must not touch its objects any more.
pub(crate) fn model_failed() -> bool {
    std::thread::panicking()
}
