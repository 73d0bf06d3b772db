//! What a reclaimer is told, and the promise of one that answers later.

use std::time::Instant;

use crate::state::history::History;
use crate::sync::Arc;
use crate::thread::directory::Header;

/// Why memory is wanted.
///
/// ```
/// use memcg::ReclaimCause;
///
/// assert_ne!(ReclaimCause::Full, ReclaimCause::Asked);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReclaimCause {
    /// A charge does not fit below the target's max.
    Full,
    /// The target's max was set below its usage.
    Lowered,
    /// A charge has left the target above its high, or high was set below usage.
    High,
    /// [`Group::reclaim`](crate::Group::reclaim) was called.
    Asked,
}

/// Whose turn it is.
///
/// ```
/// use memcg::ReclaimPass;
///
/// assert_ne!(ReclaimPass::Soft, ReclaimPass::Everyone);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReclaimPass {
    /// Groups above their soft limit, and those below such a group.
    Soft,
    /// All that are not protected.
    Everyone,
    /// Those protected by low: nothing else is left.
    Low,
}

/// What a reclaimer is told beside how much is wanted. Its groups are read with [`group`](Self::group) and
/// [`target`](Self::target).
///
/// ```
/// use memcg::{Limits, Priority, Reclaim, ReclaimCause, ReclaimContext, ReclaimPass, Runtime};
/// use std::sync::Arc;
///
/// struct Told;
/// impl Reclaim for Told {
///     fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
///         assert_eq!((context.group().path(), context.target().path()), ("/cache".into(), "/".into()));
///         assert_eq!((context.cause(), context.pass()), (ReclaimCause::Asked, ReclaimPass::Everyone));
///         assert!(want > 0 && context.deadline() > std::time::Instant::now());
///         0
///     }
/// }
///
/// let runtime = Runtime::builder().build()?;
/// let cache = runtime.root().create("cache", Limits::new())?;
/// let _registration = cache.register_reclaimer(Arc::new(Told), Priority::NORMAL);
/// let _held = cache.try_charge(10)?;
/// assert_eq!(runtime.root().reclaim(10)?.freed, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReclaimContext<'a> {
    pub(crate) group: &'static Header,
    pub(crate) target: &'static Header,
    pub(crate) cause: ReclaimCause,
    pub(crate) pass: ReclaimPass,
    pub(crate) deadline: Instant,
    pub(crate) want: u64,
    /// Of the group, when it was asked.
    pub(crate) usage: u64,
    pub(crate) history: &'a Arc<History>,
}

impl std::fmt::Debug for ReclaimContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReclaimContext")
            .field("want", &self.want)
            .field("cause", &self.cause)
            .field("pass", &self.pass)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl ReclaimContext<'_> {
    /// Why memory is wanted.
    pub fn cause(&self) -> ReclaimCause {
        self.cause
    }

    /// Whose turn it is.
    pub fn pass(&self) -> ReclaimPass {
        self.pass
    }

    /// When the caller stops asking. A reclaimer at work is not interrupted, but none is asked after it.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Promise what is wanted and free it afterwards, on any thread: return what was freed at once, if anything, and
    /// [report](Later::report) the rest.
    ///
    /// Until then the reclaimer is not asked again, and as long as a group in excess of its soft limit owes memory, for
    /// at most [`reclaim_time`](crate::RuntimeBuilder::reclaim_time), groups that are not are left alone.
    ///
    /// ```
    /// use memcg::{Charge, Later, Limits, Priority, Reclaim, ReclaimContext, Runtime};
    /// use std::sync::{Arc, mpsc};
    ///
    /// struct WritesBack(mpsc::Sender<Later>);
    /// impl Reclaim for WritesBack {
    ///     fn reclaim(&self, _want: u64, context: &ReclaimContext<'_>) -> u64 {
    ///         let _ = self.0.send(context.later());
    ///         0
    ///     }
    /// }
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let dirty = runtime.root().create("dirty", Limits::new())?;
    /// let (asked, to_write) = mpsc::channel();
    /// let _registration = dirty.register_reclaimer(Arc::new(WritesBack(asked)), Priority::NORMAL);
    /// let page = dirty.try_charge(4_096)?;
    /// assert_eq!(runtime.root().reclaim(4_096)?.pending, 4_096);
    /// let later = to_write.recv()?; // another thread's work
    /// drop(page);
    /// later.report(4_096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn later(&self) -> Later {
        self.history.promise(self.want, self.usage);
        Later { history: Arc::clone(self.history), want: self.want, freed: 0 }
    }
}

/// A reclaimer's promise to report. Dropped, the reclaimer has freed nothing.
///
/// See [`ReclaimContext::later`].
#[must_use = "dropped, it has freed nothing"]
pub struct Later {
    history: Arc<History>,
    want: u64,
    freed: u64,
}

impl Later {
    /// Bytes that were wanted.
    pub fn want(&self) -> u64 {
        self.want
    }

    /// This much has been freed since. Nothing: as if [`Reclaim::reclaim`](crate::Reclaim::reclaim) had.
    pub fn report(mut self, freed: u64) {
        self.freed = freed;
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.history.report(self.freed);
    }
}

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Later").field("want", &self.want).finish_non_exhaustive()
    }
}
