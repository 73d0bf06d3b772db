//! End of a query that its group does not keep: chosen as a victim, or offline.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use datafusion_common::DataFusionError;
use futures::task::AtomicWaker;
use memcg::{ChargeError, ChargeErrorKind, Group};

/// Why a query has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// Its group was chosen to give its memory back: see [`OomPolicy`](memcg::OomPolicy).
    Cancelled,
    /// Its group is offline.
    Offline,
}

/// The error of a query that has ended because of its group. DataFusion passes it on as
/// `DataFusionError::External`; [`EndedError::of`] finds it.
///
/// ```
/// use datafusion::prelude::SessionContext;
/// use memcg::{Limits, Runtime};
/// use memcg_datafusion::{EndReason, EndedError, InGroupSession, PoolConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new())?;
/// let query = SessionContext::new().for_query(&acme, 17, Limits::new(), &PoolConfig::new())?;
/// let rows = query.read_empty()?;
/// drop(query); // its group is offline from here on
/// let error = rows.collect().await.unwrap_err();
/// let ended = EndedError::of(&error).unwrap();
/// assert_eq!((ended.path(), ended.reason()), ("/acme/17", EndReason::Offline));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedError {
    path: String,
    reason: EndReason,
}

impl EndedError {
    /// Finds the error, however deep DataFusion has wrapped it.
    pub fn of(error: &DataFusionError) -> Option<&EndedError> {
        match error.find_root() {
            DataFusionError::External(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// Returns the path of the group.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns why the query has ended.
    pub fn reason(&self) -> EndReason {
        self.reason
    }

    /// End that a refused charge tells of, if the group takes no charges any more.
    pub(crate) fn from_charge(error: &ChargeError) -> Option<EndedError> {
        let reason = match error.kind() {
            ChargeErrorKind::Cancelled => EndReason::Cancelled,
            ChargeErrorKind::Offline => EndReason::Offline,
            _ => return None,
        };
        Some(EndedError {
            path: error.group().path(),
            reason,
        })
    }

    pub(crate) fn into_error(self) -> DataFusionError {
        DataFusionError::External(Box::new(self))
    }
}

impl fmt::Display for EndedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match self.reason {
            EndReason::Cancelled => {
                write!(
                    f,
                    "{path} is cancelled to make room: the query ends; run it again when there is more memory"
                )
            }
            EndReason::Offline => {
                write!(
                    f,
                    "{path} is offline: the query ends; keep its session until the last row is read"
                )
            }
        }
    }
}

impl std::error::Error for EndedError {}

/// State of the queries of a group: if they go on, and the streams to wake when they do not.
#[derive(Debug)]
pub(crate) struct Life {
    group: Group,
    cancelled: AtomicBool,
    waiting: Mutex<Vec<Weak<AtomicWaker>>>,
    /// Number of growths of the pool that were refused, by whatever level. `waits`: of those that
    /// waited.
    pub(crate) refusals: AtomicUsize,
    pub(crate) waits: AtomicUsize,
}

impl Life {
    pub(crate) fn new(group: Group) -> Arc<Life> {
        Arc::new(Life {
            group,
            cancelled: AtomicBool::new(false),
            waiting: Mutex::default(),
            refusals: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
        })
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    #[cfg(feature = "session")]
    pub(crate) fn ended(&self) -> Option<EndedError> {
        // Acquire: pairs with the release in `cancel`. A waker that is registered after the flag
        // was read is woken, because the reader looks again after it has registered.
        let reason = if self.cancelled.load(Ordering::Acquire) {
            EndReason::Cancelled
        } else if self.group().is_offline() {
            EndReason::Offline
        } else {
            return None;
        };
        Some(EndedError {
            path: self.group().path(),
            reason,
        })
    }

    /// True until the last stream of the group's plans is dropped.
    #[cfg(feature = "session")]
    pub(crate) fn is_running(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().any(|waker| waker.strong_count() > 0)
    }

    /// The group is a victim: its queries end.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.wake();
    }

    /// Has all streams look again.
    pub(crate) fn wake(&self) {
        let waiting = self
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        // Without the lock: a waker is foreign code. One that panics keeps no other stream asleep.
        for waker in waiting.iter().filter_map(Weak::upgrade) {
            contain(move || waker.wake());
        }
    }

    /// A waker that [`wake`](Self::wake) wakes for as long as the caller keeps it.
    #[cfg(feature = "session")]
    pub(crate) fn waker(&self) -> Arc<AtomicWaker> {
        let waker = Arc::new(AtomicWaker::new());
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|waker| waker.strong_count() > 0);
        waiting.push(Arc::downgrade(&waker));
        waker
    }
}

/// Runs foreign code. What a panic carries is foreign, too: where its drop panics, what that
/// carries is leaked.
pub(crate) fn contain(work: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work))
        && let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        mem::forget(next);
    }
}
