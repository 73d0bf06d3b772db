//! The value that keeps foreign code registered with a group: one type for reclaimers, listeners
//! and hooks.

/// Keeps a reclaimer, a listener or a hook registered with its group. Its drop may block: in async
/// code drop it on another thread.
///
/// [`Group::register_reclaimer`](crate::Group::register_reclaimer),
/// [`Group::on_event`](crate::Group::on_event) and [`Group::on_cancel`](crate::Group::on_cancel)
/// return it. When the drop has returned, no call is under way and none will begin. It waits for
/// calls that are under way, so do not hold a lock that the registered code waits for. Inside a
/// reclaimer, a listener or a hook it does not wait.
///
/// ```
/// use memcg::{ReclaimPriority, Reclaim, ReclaimContext, Runtime};
/// use std::sync::Arc;
///
/// struct Nothing;
/// impl Reclaim for Nothing {
///     fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
///         0
///     }
/// }
///
/// let runtime = Runtime::builder().build()?;
/// let root = runtime.root();
/// let _held = root.charge(10)?;
/// let registration = root.register_reclaimer(Arc::new(Nothing), ReclaimPriority::NORMAL);
/// assert!(root.reclaim(10)?.visited > 0);
/// drop(registration);
/// assert_eq!(root.reclaim(10)?.visited, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped, what it registered is gone, and `let _ =` drops it at once: bind it to a name, as in `let _registration =`"]
pub struct Registration {
    _guard: Box<dyn Send + Sync>,
}

impl Registration {
    pub(super) fn new(guard: impl Send + Sync + 'static) -> Registration {
        Registration {
            _guard: Box::new(guard),
        }
    }
}

debug_figures!(Registration, |_registration|);
