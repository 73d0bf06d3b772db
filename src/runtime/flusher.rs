//! The periodic flush: a thread for each runtime that starts one. It also takes idle credit home.

use std::fmt;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle, current};
use std::time::Duration;

use crate::counter::idle;
use crate::group::Group;
use crate::hierarchy::stats;
use crate::lifecycle::unowned;
use crate::thread::context;
use crate::thread::foreign::Foreign;

/// Why the runtime has started no flusher.
///
/// ```
/// use std::time::Duration;
///
/// let runtime = memcg::Runtime::builder().build()?;
/// let refused = runtime.start_flusher(Duration::ZERO).unwrap_err();
/// assert_eq!(refused.to_string(), "a flusher needs a period longer than nothing");
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum FlusherError {
    /// The flusher would never rest.
    NoPeriod,
    /// The system has no thread for the flusher.
    Thread(io::Error),
}

impl fmt::Display for FlusherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPeriod => f.write_str("a flusher needs a period longer than nothing"),
            Self::Thread(inner) => write!(f, "no thread for the flusher: {inner}"),
        }
    }
}

impl std::error::Error for FlusherError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Thread(inner) => Some(inner),
            _ => None,
        }
    }
}

impl From<io::Error> for FlusherError {
    fn from(inner: io::Error) -> FlusherError {
        FlusherError::Thread(inner)
    }
}

/// A running flusher. Its drop stops it.
pub(super) struct Flusher {
    /// Its drop wakes the thread for the last time.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    pub(super) fn start(root: Group, period: Duration) -> Result<Flusher, FlusherError> {
        if period.is_zero() {
            return Err(FlusherError::NoPeriod);
        }
        let (stop, stopped) = channel();
        let flush = move || {
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                let tree = root.first().tree();
                stats::flush_periodic(root.first());
                tree.settle();
                idle::release_periodic(tree);
                unowned::may_have_changed();
            }
        };
        let thread = Builder::new().name("memcg-flusher".into()).spawn(flush)?;
        Ok(Flusher { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.stop = None;
        // The flusher's own thread may drop it, in foreign code that it runs. That thread ends by itself. In foreign
        // code a thread does not wait for another flusher either: two flushers that stop each other would wait for
        // ever.
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !is_own(thread) && !context::in_foreign()) {
            // Where the thread has panicked the runtime goes on without it.
            drop(Foreign::new(thread.join()));
        }
    }
}
