//! A future on a thread that runs no tasks.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::sync::oneshot;

struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs the future to its end, and parks the thread meanwhile.
///
/// # Panics
///
/// On a thread that runs tasks of tokio: tokio looks for that where a thread blocks for one of its
/// channels.
#[track_caller]
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let (sends, looks) = oneshot::channel();
    // The receiver is there.
    let _ = sends.send(());
    let _ = looks.blocking_recv();
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unparks(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
