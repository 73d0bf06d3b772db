//! One future, polled on one thread for a time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Wakes the thread that polls, and remembers that it has: parking may end for other reasons.
struct Bell {
    thread: Thread,
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Polls on this thread, and again only when the future has had itself woken, until it is ready or
/// time is over.
pub(crate) fn poll_for<F: Future + Unpin>(future: &mut F, patience: Duration) -> Poll<F::Output> {
    let bell = Arc::new(Bell {
        thread: std::thread::current(),
        rung: AtomicBool::new(true),
    });
    let waker = Waker::from(Arc::clone(&bell));
    let began = Instant::now();
    loop {
        if bell.rung.swap(false, Ordering::SeqCst)
            && let Poll::Ready(output) =
                Pin::new(&mut *future).poll(&mut Context::from_waker(&waker))
        {
            return Poll::Ready(output);
        }
        if !bell.rung.load(Ordering::SeqCst) {
            match patience.checked_sub(began.elapsed()) {
                Some(left) if !left.is_zero() => std::thread::park_timeout(left),
                _ => return Poll::Pending,
            }
        }
    }
}
