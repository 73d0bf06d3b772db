//! The real side of the door: `std` atomics, parking_lot locks, thread-locals.

use std::cell::Cell;
use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, fence};

#[cfg(not(miri))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

/// So many rounds of a test, or what Miri has time for.
#[cfg(test)]
pub(crate) const fn many(rounds: u64) -> u64 {
    rounds / if cfg!(miri) { 250 } else { 1 }
}

/// Threads that run at once, for which a pool keeps objects at hand.
pub(crate) fn pool_stashes() -> usize {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(64)
}

/// Words of protocols are loaded for figures, too.
#[inline(always)]
pub(crate) const fn loads_for_figures() -> bool {
    true
}

/// Hashes names with a random key: an attacker may choose names that would collide.
pub(crate) type NameHasher = std::hash::RandomState;

/// The engine's reference to a value that belongs to the process and is never dropped.
pub(crate) type Shared<T> = &'static T;

/// The value is never dropped.
pub(crate) fn share<T>(value: T) -> Shared<T> {
    Box::leak(Box::new(value))
}

/// Prefetches the line of an address, which the thread writes soon. The address need not be valid.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint about any address at all, which reads nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(address.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

/// Defines a function that returns the one value of the process, made on first use.
macro_rules! process_wide {
    ($name:ident: $type:ty = $make:expr) => {
        pub(crate) fn $name() -> &'static $type {
            static VALUE: std::sync::OnceLock<$type> = std::sync::OnceLock::new();
            VALUE.get_or_init($make)
        }
    };
}
pub(crate) use process_wide;

/// The same for a value that is const: it is there from the start, so to reach it takes no test.
macro_rules! process_const {
    ($visible:vis $name:ident: $type:ty = $value:expr) => {
        #[inline(always)]
        $visible fn $name() -> &'static $type {
            static VALUE: $type = $value;
            &VALUE
        }
    };
}
pub(crate) use process_const;

/// Defines a function that shows a thread its own value: const-initialised and without destructor,
/// so that reading it is one move relative to the thread pointer, at any moment of the thread's
/// life.
macro_rules! per_thread {
    ($(#[$about:meta])* $visible:vis $name:ident: $type:ty = $init:expr) => {
        $(#[$about])*
        #[inline(always)]
        #[allow(unsafe_code)]
        $visible fn $name<R>(read: impl FnOnce(&$type) -> R) -> R {
            const { assert!(!std::mem::needs_drop::<$type>(), "a destructor would end the value before its thread") };
            std::thread_local! {
                static VALUE: $type = const { $init };
            }
            // `read` is called here and not by `with`, which the compiler leaves out of line where
            // the closure is large: a hit would pay for a call, and hand its results over in memory.
            let value = VALUE.with(std::ptr::from_ref);
            // SAFETY: the value of this thread, which runs `read`. `with` has found it there, and
            // without a destructor it stays until the thread's end.
            read(unsafe { &*value })
        }
    };
}
pub(crate) use per_thread;

/// Makes a value in memory that `map` gives, which no allocator of the program has: so an allocator
/// may call this. `None` where `map` gives none. The value is never dropped.
///
/// # Safety
///
/// `map` gives memory of that size, aligned for the type, which is zeroed and the caller's for
/// ever.
// Its frame holds the value until that is written: in a frame deeper down it would touch two more
// pages of each stack.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn place<T>(
    map: impl FnOnce(usize) -> Option<*mut u8>,
    make: impl FnOnce() -> T,
) -> Option<*mut T> {
    let memory = map(size_of::<T>())?.cast::<T>();
    // SAFETY: says the caller.
    unsafe { memory.write(make()) };
    Some(memory)
}

/// [`place`] for a value that is all zero: what is not written takes address space only.
///
/// # Safety
///
/// As above; all-zero bytes are the value that `make` returns.
#[allow(unsafe_code)]
pub(crate) unsafe fn place_zeroed<T>(
    map: impl FnOnce(usize) -> Option<*mut u8>,
    _make: impl FnOnce() -> T,
) -> Option<*mut T> {
    map(size_of::<T>()).map(<*mut u8>::cast)
}

/// Drops a value that [`place`] has made, in models only: here its memory stays.
///
/// # Safety
///
/// No thread uses the value any more.
#[allow(unsafe_code)]
pub(crate) unsafe fn displace<T>(_value: *mut T) {}

/// Defines a function that returns what a pointer holds where a thread has made no value yet: the
/// address of one that stands for it, which saves the reader a test.
macro_rules! stand_in {
    ($(#[$about:meta])* $visible:vis $name:ident: $type:ty = $value:expr) => {
        $(#[$about])*
        $visible const fn $name() -> *const $type {
            static VALUE: $type = $value;
            &raw const VALUE
        }
    };
}
pub(crate) use stand_in;

/// Follows a pointer that a thread has set, or one to what stands for the value. Without a test:
/// either is there.
///
/// # Safety
///
/// The target of the pointer lives for `'a`.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn follow<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: says the caller.
    Some(unsafe { &*pointer })
}

/// Bounded patience: spin, then yield, at most a millisecond. A thread that was preempted in
/// transit gets the time to finish; one that never does must not hold up the others.
///
/// By the system's clock also where a test moves the crate's own: it is for the progress of another
/// thread, which takes real time. A thread that spun until a stopped clock moves would be none that
/// waits by it, so the clock would not be moved for it.
pub(crate) struct Patience {
    backoff: crossbeam::utils::Backoff,
    until: Cell<Option<Instant>>,
}

impl Patience {
    /// Under Miri's clock a step takes as long as a thousand on a processor.
    const MOST: Duration = Duration::from_millis(if cfg!(miri) { 1_000 } else { 1 });

    pub(crate) fn new() -> Self {
        Patience {
            backoff: crossbeam::utils::Backoff::new(),
            until: Cell::new(None),
        }
    }

    /// Waits a little. False when patience is at its end.
    pub(crate) fn wait(&self) -> bool {
        self.backoff.snooze();
        match self.until.get() {
            // The clock is read only once spinning did not help.
            None => {
                if self.backoff.is_completed() {
                    self.until.set(Some(Instant::now() + Self::MOST));
                }
                true
            }
            Some(until) => Instant::now() < until,
        }
    }
}

pub(crate) use super::clock::{Thread, park, sleep, spawn, start_thread, this_thread};
pub(crate) use std::thread_local;

/// A pause of a thread that waits longer than patience lasts: for foreign code.
pub(crate) fn pause() {
    sleep(Duration::from_micros(50));
}

/// A rest between two holds of a lock: a thread that waits for it goes on.
pub(crate) fn rest() {
    std::thread::yield_now();
}

pub(crate) fn is_over(deadline: Instant) -> bool {
    super::clock::now() >= deadline
}

/// The processor that this thread runs on; another one a moment later.
#[cfg(all(target_os = "linux", not(miri)))]
#[allow(unsafe_code)]
pub(crate) fn processor() -> usize {
    // SAFETY: takes nothing and writes nothing. No system call where the C library has the number
    // in memory (rseq) or the kernel lends it the code (vDSO).
    let number = unsafe { libc::sched_getcpu() };
    usize::try_from(number).unwrap_or(0)
}

/// The system does not say.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn processor() -> usize {
    0
}

/// Only a failed model forbids to touch its objects.
pub(crate) const fn model_failed() -> bool {
    false
}
