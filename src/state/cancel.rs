//! What is done where reclaim frees nothing, and what a victim's hook is called with.

use crate::thread::directory::Header;

/// What a group does about a charge below it that its max refuses, once reclaim has freed nothing.
///
/// ```
/// use memcg::{Limit, Limits, OomPolicy, Runtime};
/// use std::sync::{Arc, Mutex};
///
/// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
/// runtime.root().set_oom_policy(OomPolicy::Choose);
/// let [hog, query] = ["hog", "q17"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
/// let held = Arc::new(Mutex::new(vec![hog.try_charge(90)?]));
/// let _hook = hog.on_cancel({
///     let held = Arc::clone(&held);
///     move |why| {
///         assert_eq!((why.group().path(), why.wanted()), ("/hog".to_string(), 50));
///         held.lock().unwrap().clear(); // a service would tell the query to stop
///     }
/// });
/// let _charge = query.try_charge(50)?;
/// assert_eq!((hog.live(), query.live()), (0, 50));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum OomPolicy {
    /// What the nearest group above does; for the root: refuse.
    #[default]
    Inherit,
    /// The charge is refused, or waits.
    Refuse,
    /// The group below that is furthest above its share is cancelled, and the charge waits for its memory; then the
    /// next one; where no candidate is left it is refused.
    ///
    /// The share is what low protects or the soft limit, whichever is more. Only groups with a
    /// [cancel hook](crate::Group::on_cancel) can be chosen; of one and another below it, the one that has more of its own.
    /// For memory only.
    Choose,
}

/// Why a group is cancelled.
///
/// See [`Group::on_cancel`](crate::Group::on_cancel).
///
/// ```
/// use memcg::{ChargeError, Limit, Limits, OomPolicy, Runtime};
///
/// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
/// runtime.root().set_oom_policy(OomPolicy::Choose);
/// let hog = runtime.root().create("hog", Limits::new().soft(Limit::Bytes(30)))?;
/// let _hook = hog.on_cancel(|why| {
///     assert_eq!((why.group().path(), why.domain().path()), ("/hog".to_string(), "/".to_string()));
///     assert_eq!((why.wanted(), why.overrun()), (20, 60));
/// });
/// let _held = hog.try_charge(90)?;
/// assert!(matches!(hog.try_charge(20), Err(ChargeError::Cancelled { .. })), "it is the one that goes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cancel {
    pub(crate) group: &'static Header,
    pub(crate) domain: &'static Header,
    pub(crate) wanted: u64,
    pub(crate) overrun: u64,
}

impl Cancel {
    /// Bytes of the charge that does not fit, or that are above a max which was lowered.
    pub fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Bytes by which the victim was above its share when it was chosen: this group, or the one that stands for its
    /// whole subtree.
    pub fn overrun(&self) -> u64 {
        self.overrun
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cancel").field("wanted", &self.wanted).field("overrun", &self.overrun).finish_non_exhaustive()
    }
}
