//! Whom a group cancels when its max is met and reclaim brings nothing.

use std::fmt;

use super::Group;
use crate::admission::attempt::{may_call_out, note};
use crate::counter::object::Counter;
use crate::pressure::victims::{Choice, Excluded, Hooked};
use crate::pressure::{Cancel, OomPolicy};
use crate::state::events::Event;
use crate::sync::pause;

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
/// assert!(runtime.root().try_charge(20).is_err(), "nobody can be cancelled");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped, the hook is gone"]
pub struct CancelHook {
    _hooked: Hooked,
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
        self.node().set_oom_policy(policy);
    }

    /// Its own policy, as it was set.
    ///
    /// ```
    /// assert_eq!(memcg::Runtime::builder().build()?.root().oom_policy(), memcg::OomPolicy::Inherit);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn oom_policy(&self) -> OomPolicy {
        self.node().oom_policy()
    }

    /// Call `hook` when this group is chosen to give its memory back: it tells whoever works there to stop.
    ///
    /// A group can be chosen as long as it has a hook. It is called by the thread whose charge does not fit, on that
    /// thread, with no lock of this crate held, while others may call it, too; what it frees at once counts, but it
    /// should not take long. Whoever waits in this group has been refused before. The place keeps the group's object; a
    /// group that went offline can be chosen, too. Takes one lock. Charges that it makes itself are refused at once
    /// where they do not fit. A panic is caught and reported as
    /// [`Event::Panic`], one when the hook is dropped too.
    ///
    /// See [`OomPolicy`] for an example.
    pub fn on_cancel(&self, hook: impl Fn(&Cancel) + Send + Sync + 'static) -> CancelHook {
        CancelHook { _hooked: self.node().hook(Box::new(hook)) }
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
        self.node().set_together(together);
    }

    /// See [`set_oom_group`](Self::set_oom_group).
    pub fn oom_group(&self) -> bool {
        self.node().is_together()
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
        self.node().set_exempt(exempt);
    }

    /// Its own setting, see [`set_oom_exempt`](Self::set_oom_exempt).
    pub fn oom_exempt(&self) -> bool {
        self.node().is_exempt()
    }
}

/// Usage is above the max of `node`: one victim after another, until it is not or nobody is left.
pub(crate) fn shrink(node: &'static Counter, excess: impl Fn() -> u64) {
    if !node.chooses() {
        return;
    }
    note(node, Event::Oom);
    let mut excluded = Excluded::default();
    while excess() > 0 && may_call_out() {
        let awaited = match node.tree().choose(node, None, excess(), &mut excluded) {
            Choice::Unsettled => {
                node.tree().settle_victims();
                continue;
            }
            Choice::Nobody | Choice::Asker | Choice::Room => break,
            Choice::Awaited(awaited) => awaited,
            Choice::Victim(mut victim) => {
                victim.cancel();
                victim.awaited
            }
        };
        while excess() > 0 && node.tree().awaits(awaited) {
            pause();
        }
    }
}
