//! Each thread's own state in a policy, found by the thread's number.

#![cfg(not(loom))]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Threads that live at the same time.
const THREADS_MAX: usize = 16_384;

const NONE: usize = usize::MAX;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
    static PLACE: Place = Place::take();
}

/// Numbers that ended threads have left, and the lowest that was never given out.
static FREE: Mutex<(BTreeSet<usize>, usize)> = Mutex::new((BTreeSet::new(), 0));

/// Holds a thread's number until the thread ends. The next thread that gets it inherits what the
/// first has counted, as a processor's next task does; the mutex is the hand-over.
struct Place(usize);

impl Place {
    fn take() -> Self {
        let mut free = FREE.lock();
        let number = free.0.pop_first().unwrap_or_else(|| {
            free.1 += 1;
            free.1 - 1
        });
        assert!(
            number < THREADS_MAX,
            "more than {THREADS_MAX} threads write statistics"
        );
        Place(number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        NUMBER.set(NONE);
        FREE.lock().0.insert(self.0);
    }
}

#[inline(always)]
fn number() -> usize {
    let number = NUMBER.get();
    if number == NONE { first() } else { number }
}

#[cold]
#[inline(never)]
fn first() -> usize {
    let number = PLACE.with(|place| place.0);
    NUMBER.set(number);
    number
}

/// A `T` for each thread that has asked for one. They stay until all go.
pub(crate) struct Threads<T> {
    table: Box<[OnceLock<Box<T>>]>,
    /// One above the highest number in the table.
    end: AtomicUsize,
}

impl<T> Threads<T> {
    pub(crate) fn new() -> Self {
        Threads {
            table: (0..THREADS_MAX).map(|_| OnceLock::new()).collect(),
            end: AtomicUsize::new(0),
        }
    }

    /// The calling thread's.
    #[inline(always)]
    pub(crate) fn mine(&self, make: impl FnOnce() -> T) -> &T {
        let number = number();
        match self.table[number].get() {
            Some(mine) => mine,
            None => self.make(number, make),
        }
    }

    #[cold]
    #[inline(never)]
    fn make(&self, number: usize, make: impl FnOnce() -> T) -> &T {
        let mine = self.table[number].get_or_init(|| Box::new(make()));
        self.end.fetch_max(number + 1, Ordering::Release);
        mine
    }

    /// Every thread's.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        let end = self.end.load(Ordering::Acquire);
        self.table[..end]
            .iter()
            .filter_map(|entry| entry.get().map(|boxed| &**boxed))
    }
}
