//! Waiters to test with: futures polled by hand, with wakers that count, and an executor of one
//! future.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use memcg::{Bytes, Charge, ChargeError, ChargeFuture, Group, OnFull};

/// No test is over because time is; but one that hangs says so.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// Looks again and again until it is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + WATCHDOG;
    while !is() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

// === impl Wakes ===

/// A waker that counts, and unparks the thread that made it.
pub(crate) struct Wakes {
    count: AtomicU64,
    sleeper: Thread,
}

impl Wakes {
    pub(crate) fn new() -> Arc<Wakes> {
        Arc::new(Wakes {
            count: AtomicU64::new(0),
            sleeper: thread::current(),
        })
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.sleeper.unpark();
    }
}

// === impl Polled ===

/// A future with its waker.
pub(crate) struct Polled<F> {
    future: Pin<Box<F>>,
    wakes: Arc<Wakes>,
}

impl<F: Future> Polled<F> {
    pub(crate) fn new(future: F) -> Self {
        Polled {
            future: Box::pin(future),
            wakes: Wakes::new(),
        }
    }

    pub(crate) fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.poll_with(&waker)
    }

    /// With a waker of the caller's own.
    pub(crate) fn poll_with(&mut self, waker: &Waker) -> Poll<F::Output> {
        self.future.as_mut().poll(&mut Context::from_waker(waker))
    }

    /// The number of wakes.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.count()
    }

    /// The next poll has it wake another; this is the old one.
    pub(crate) fn renew(&mut self) -> Arc<Wakes> {
        std::mem::replace(&mut self.wakes, Wakes::new())
    }

    /// Polls it, and again whenever it is woken but never else, until it is done. On whatever
    /// thread.
    #[track_caller]
    pub(crate) fn finish(&mut self) -> F::Output {
        if self.wakes.sleeper.id() != thread::current().id() {
            self.renew();
        }
        let end = Instant::now() + WATCHDOG;
        loop {
            let seen = self.wakes();
            if let Poll::Ready(output) = self.poll() {
                return output;
            }
            while self.wakes() == seen {
                let left = end.saturating_duration_since(Instant::now());
                assert!(!left.is_zero(), "it waits, and no thread wakes it");
                thread::park_timeout(left);
            }
        }
    }
}

#[track_caller]
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    Polled::new(future).finish()
}

// === charges that wait ===

pub(crate) type Waiter = Polled<ChargeFuture>;

/// In line by the time this returns.
#[track_caller]
pub(crate) fn in_line(group: &Group, bytes: u64) -> Waiter {
    let mut waiter = Polled::new(group.charge_async(Bytes(bytes)));
    match waiter.poll() {
        Poll::Pending => waiter,
        Poll::Ready(result) => panic!("{bytes} for {} wait for nothing: {result:?}", group.path()),
    }
}

/// It has been admitted: with its first poll from now on.
#[track_caller]
pub(crate) fn admitted(waiter: &mut Waiter) -> Charge {
    match waiter.poll() {
        Poll::Ready(Ok(charge)) => charge,
        other => panic!("not admitted: {other:?}"),
    }
}

/// It has been turned away: with its first poll from now on.
#[track_caller]
pub(crate) fn turned_away(waiter: &mut Waiter) -> ChargeError {
    match waiter.poll() {
        Poll::Ready(Err(error)) => error,
        other => panic!("not turned away: {other:?}"),
    }
}

/// Woken once, as a thread that is done with waiting: at once, or by a thread that was about to
/// serve the line itself, as one that has just come into it.
#[track_caller]
pub(crate) fn assert_woken(waiter: &Waiter, whether: bool) {
    if whether {
        until("it is woken", || waiter.wakes() > 0);
    }
    assert_eq!(waiter.wakes(), u64::from(whether), "wake-ups");
}

/// A thread that waits for at most [`WATCHDOG`], in line by the time this returns.
#[track_caller]
pub(crate) fn blocked(
    group: &Group,
    bytes: u64,
    level: &Group,
) -> thread::JoinHandle<Result<Charge, ChargeError>> {
    let before = level.waiting_count();
    let group = group.clone();
    let thread = thread::spawn(move || group.charge_with(Bytes(bytes), OnFull::Wait(WATCHDOG)));
    until("a thread in line", || {
        level.waiting_count() > before || thread.is_finished()
    });
    thread
}

/// The value that the thread came back with.
#[track_caller]
pub(crate) fn join<T>(thread: thread::JoinHandle<T>) -> T {
    until("a thread at its end", || thread.is_finished());
    thread.join().expect("no panic there")
}
