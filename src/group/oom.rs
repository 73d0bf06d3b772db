//! Which groups are cancelled when a group's max is met and reclaim frees nothing.

use std::fmt;

use super::Group;
use crate::pressure::cancel::{Cancel, OomPolicy};
use crate::pressure::policy::{self, EXEMPT, TOGETHER};
use crate::pressure::victims::{self, HookGuard};

/// A cancel hook's place in its group; dropped, it is gone. The drop may block: in async code on another thread.
///
/// When the drop has returned no call is under way and none will begin. It waits for those that are, so do not hold a
/// lock that the hook waits for; inside a listener, a reclaimer or a hook it does not wait.
///
/// ```
/// use memcg::{Limit, Limits, OomPolicy, Runtime};
///
/// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
/// runtime.root().set_oom_policy(OomPolicy::Choose);
/// let hog = runtime.root().create("hog", Limits::new())?;
/// let hook = hog.on_cancel(|_| panic!("not any more"));
/// drop(hook);
/// let _held = hog.try_charge(90)?;
/// assert!(runtime.root().try_charge(20).is_err(), "no group can be cancelled");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped, the hook is gone"]
pub struct CancelHook {
    _guard: HookGuard,
}

impl fmt::Debug for CancelHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelHook").finish_non_exhaustive()
    }
}

impl Cancel {
    /// The group whose hook this is.
    pub fn group(&self) -> Group {
        Group::pinned(self.group.node())
    }

    /// The group whose max is met.
    pub fn domain(&self) -> Group {
        Group::pinned(self.domain.node())
    }
}

impl Group {
    /// What is done about charges that the max of this group refuses, once reclaim has brought nothing;
    /// [`OomPolicy::Inherit`] at first.
    ///
    /// Source: `mem_cgroup_out_of_memory` in `mm/memcontrol.c`.
    ///
    /// See [`OomPolicy`] for an example.
    pub fn set_oom_policy(&self, policy: OomPolicy) {
        policy::set_own(self.node(), policy);
    }

    /// Its own policy, as it was set.
    ///
    /// ```
    /// assert_eq!(memcg::Runtime::builder().build()?.root().oom_policy(), memcg::OomPolicy::Inherit);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn oom_policy(&self) -> OomPolicy {
        policy::own(self.node())
    }

    /// Call `hook` when this group is chosen to give its memory back: it tells the work that is done there to stop.
    ///
    /// A group can be chosen as long as it has a hook. It is called by the thread whose charge does not fit, on that
    /// thread, with no lock of this crate held, while others may call it, too; what it frees at once counts, but it
    /// should not take long. Charges that wait in this group have been refused before. The place keeps the group's object; a
    /// group that went offline can be chosen, too. Takes one lock. Charges that it makes itself are refused at once
    /// where they do not fit. A panic is caught and reported as
    /// [`Event::Panic`](crate::Event::Panic), one when the hook is dropped too.
    ///
    /// See [`OomPolicy`] for an example.
    pub fn on_cancel(&self, hook: impl Fn(&Cancel) + Send + Sync + 'static) -> CancelHook {
        CancelHook { _guard: victims::hook(self.node(), Box::new(hook)) }
    }

    /// Whether all of this group's subtree is cancelled where any group in it is chosen, and compared as one.
    ///
    /// Source: `memory.oom.group`.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let root = runtime.root();
    /// root.set_oom_group(true);
    /// assert!(root.oom_group());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn set_oom_group(&self, together: bool) {
        policy::set_mark(self.node(), TOGETHER, together);
    }

    /// See [`set_oom_group`](Self::set_oom_group).
    pub fn oom_group(&self) -> bool {
        policy::has_mark(self.node(), TOGETHER)
    }

    /// Whether this group and all below it are never cancelled, not even with the subtree that they are in.
    ///
    /// Source: an `oom_score_adj` of -1000.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let root = runtime.root();
    /// assert!(!root.oom_exempt());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn set_oom_exempt(&self, exempt: bool) {
        policy::set_mark(self.node(), EXEMPT, exempt);
    }

    /// Its own setting, see [`set_oom_exempt`](Self::set_oom_exempt).
    pub fn oom_exempt(&self) -> bool {
        policy::has_mark(self.node(), EXEMPT)
    }
}
