//! The periodic flush: a thread of its own, for those who ask for one.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::group::Group;

/// Why no flusher was started.
///
/// ```
/// use std::time::Duration;
///
/// let runtime = memcg::Runtime::builder().build()?;
/// let refused = runtime.start_flusher(Duration::ZERO).unwrap_err();
/// assert_eq!(refused.to_string(), "a flusher needs a period longer than nothing");
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlusherError {
    /// It would never rest.
    #[error("a flusher needs a period longer than nothing")]
    NoPeriod,
    /// The system has no thread for it.
    #[error("no thread for the flusher: {0}")]
    Thread(#[from] io::Error),
}

/// A running flusher. Dropped, it has stopped.
pub(super) struct Flusher {
    /// Dropped, it wakes the thread for the last time.
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
                root.node().flush_stats_periodic();
                root.node().tree().own_has_changed();
            }
        };
        let thread = Builder::new().name("memcg-flusher".into()).spawn(flush)?;
        Ok(Flusher { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to panic about, and if it did: the runtime goes on without it.
            let _ = thread.join();
        }
    }
}
