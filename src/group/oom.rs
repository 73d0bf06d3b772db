//! Which groups a charge cancels when a group's max is met and reclaim frees nothing.

use super::handle::Group;
use super::registration::Registration;
use crate::hierarchy::group_object;
use crate::pressure::victims;
use crate::state::applied::Settings;
use crate::state::oom::{CancelInfo, EXEMPT, OomCandidate, OomOrder, OomPolicy, TOGETHER};

impl CancelInfo {
    /// Returns the group whose hook this is.
    pub fn group(&self) -> Group {
        Group::pinned(self.group.counter())
    }

    /// Returns the group whose max is met.
    pub fn domain(&self) -> Group {
        Group::pinned(self.domain.counter())
    }
}

impl OomCandidate {
    /// Returns the group: the highest that is cancelled as one, or the group with the hook.
    pub fn group(&self) -> Group {
        Group::pinned(&self.group)
    }
}

/// # Victims
impl Group {
    /// Sets what happens to charges that do not fit below the max of this group, once reclaim has
    /// not freed enough. The default is [`OomPolicy::Inherit`]. The call takes one lock for a
    /// moment.
    ///
    /// With [`OomPolicy::Choose`] a charge waits for the victim's memory, for
    /// [`oom_time`](crate::RuntimeBuilder::oom_time) at most. On a worker of a thread pool, the
    /// victim may be further down on the stack of that very thread: a pool like rayon's runs
    /// another task on a worker that waits for a join. Then the victim cannot give anything back
    /// before the charge returns, and the charge waits for the whole time in vain. On such a
    /// worker, charge with a call that does not wait ([`OnFull::Reclaim`](crate::OnFull::Reclaim),
    /// also of [`ChargedVec::reserve_with`](crate::ChargedVec::reserve_with)), or before the work
    /// is handed to the pool.
    ///
    /// The groups below inherit the policy for their own maxes, too: below a root that chooses, a
    /// plugin that reaches the max of its *own* group is a candidate there, often the only one, and
    /// is cancelled. If the max of a group should only refuse, give that group
    /// [`OomPolicy::Refuse`]. It can still be chosen for the max of a group above, unless
    /// [`set_oom_exempt`](Self::set_oom_exempt) spares it.
    ///
    /// To be cancelled is not the end of a group: its charges are refused until its memory is back,
    /// or [`oom_time`](crate::RuntimeBuilder::oom_time) is over, and then it may charge again. To
    /// stop its work, use its [hook](Self::on_cancel); to end the group for good,
    /// [`offline`](Self::offline).
    ///
    /// Source: `mem_cgroup_out_of_memory` in `mm/memcontrol.c`.
    ///
    /// ```
    /// use memcg::{Limits, OomPolicy, Runtime};
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// use std::sync::{Arc, Mutex};
    ///
    /// let runtime = Runtime::builder().max(100).build()?;
    /// runtime.root().set_oom_policy(OomPolicy::Choose);
    /// let plugin = runtime.root().create("plugin", Limits::new().max(50))?;
    /// let held = Arc::new(Mutex::new(vec![plugin.charge(40)?]));
    /// let killed = Arc::new(AtomicU64::new(0));
    /// let _hook = plugin.on_cancel({
    ///     let (held, killed) = (Arc::clone(&held), Arc::clone(&killed));
    ///     move |_| {
    ///         killed.fetch_add(1, Relaxed);
    ///         held.lock().unwrap().clear();
    ///     }
    /// });
    /// plugin.set_oom_policy(OomPolicy::Refuse);
    /// assert!(plugin.charge(20).is_err());
    /// assert_eq!(killed.load(Relaxed), 0, "its own max only refuses");
    ///
    /// plugin.set_oom_policy(OomPolicy::Inherit);
    /// assert!(plugin.charge(20).is_err());
    /// assert_eq!(killed.load(Relaxed), 1, "it is the one to go");
    /// assert!(plugin.charge(20).is_ok(), "its memory is back");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`set_oom_group`](Self::set_oom_group) cancels a subtree as one, and
    /// [`set_oom_exempt`](Self::set_oom_exempt) spares one. [`OomPolicy::by`](crate::OomPolicy::by)
    /// takes an order of your own. See [`OomPolicy`] for a whole example.
    pub fn set_oom_policy(&self, policy: impl Into<OomOrder>) {
        victims::set_policy(self.first(), policy.into());
        group_object::of(self.first())
            .applied
            .remove(Settings::OOM_POLICY);
    }

    /// Returns the policy that this group was given itself;
    /// [`OomPolicy::Inherit`] if it was given none. A policy with an
    /// [order](crate::OomPolicy::by) of the service's own is
    /// [`OomPolicy::Choose`]. One load.
    ///
    /// ```
    /// # use memcg::OomPolicy;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let root = runtime.root();
    /// assert_eq!(root.oom_policy(), OomPolicy::Inherit);
    /// root.set_oom_policy(OomPolicy::Choose);
    /// assert_eq!(root.oom_policy(), OomPolicy::Choose);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn oom_policy(&self) -> OomPolicy {
        victims::oom_flags(self.first()).policy()
    }

    /// Sets whether the subtree of this group counts as one candidate, and is cancelled as a whole
    /// if any of its groups is chosen. False by default. One store.
    ///
    /// Source: `memory.oom.group`.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let root = runtime.root();
    /// root.set_oom_group(true);
    /// root.set_oom_exempt(true);
    /// assert!(root.oom_group() && root.oom_exempt());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn set_oom_group(&self, together: bool) {
        victims::oom_flags(self.first()).set(TOGETHER, together);
    }

    /// Returns what [`set_oom_group`](Self::set_oom_group) has set. One load.
    pub fn oom_group(&self) -> bool {
        victims::oom_flags(self.first()).has(TOGETHER)
    }

    /// Sets whether this group and the groups below it are never cancelled, not even as part of a
    /// subtree that goes as one. False by default. One store.
    ///
    /// ```
    /// # use memcg::{Limits, OomPolicy, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// runtime.root().set_oom_policy(OomPolicy::Choose);
    /// let system = runtime.root().create("system", Limits::new())?;
    /// system.set_oom_exempt(true);
    /// let _hook = system.on_cancel(|_| unreachable!("it is spared"));
    /// let _held = system.charge(80)?;
    /// assert!(system.charge(30).unwrap_err().is_over_limit(), "refused, as there is no other candidate");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Source: an `oom_score_adj` of -1000.
    pub fn set_oom_exempt(&self, exempt: bool) {
        victims::oom_flags(self.first()).set(EXEMPT, exempt);
    }

    /// Returns what [`set_oom_exempt`](Self::set_oom_exempt) has set for this group itself. One
    /// load.
    pub fn oom_exempt(&self) -> bool {
        victims::oom_flags(self.first()).has(EXEMPT)
    }

    /// Registers `hook`, to be called when this group is chosen to give its memory back. The hook
    /// should tell the work in this group to stop. The group itself stays online, and may charge
    /// again once its memory is back.
    ///
    /// A group can be chosen as long as it has a hook, even if it is offline. The thread whose
    /// charge does not fit calls the hook, with no lock of this crate held, and several threads may
    /// call it at the same time. The charge uses what the hook frees at once, but the hook should
    /// not take long: nothing interrupts it. Charges that wait in this group have been refused by
    /// then, and charges that the hook makes itself are refused at once if they do not fit. A panic
    /// in the hook, or in its drop, is caught and counted as [`Event::Panic`](crate::Event::Panic).
    /// To register takes one lock, and the registration keeps the group's object.
    ///
    /// See [`OomPolicy`] for an example.
    pub fn on_cancel(&self, hook: impl Fn(&CancelInfo) + Send + Sync + 'static) -> Registration {
        Registration::new(victims::hook(self.first(), Box::new(hook)))
    }
}
