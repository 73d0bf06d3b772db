//! Which groups a charge cancels when a group's max is met and reclaim frees nothing.

use super::handle::Group;
use super::registration::Registration;
use crate::pressure::victims;
use crate::state::oom::{Cancel, EXEMPT, OomCandidate, OomOrder, TOGETHER};

impl Cancel {
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
    /// Sets what happens to charges that the max of this group refuses, once reclaim has freed
    /// nothing. The default is [`OomPolicy::Inherit`](crate::OomPolicy::Inherit).
    ///
    /// With [`OomPolicy::Choose`](crate::OomPolicy::Choose) a charge waits for the victim's memory,
    /// for [`oom_time`](crate::RuntimeBuilder::oom_time) at most. On a worker of a thread pool the
    /// stack of that very thread may hold the memory: a pool as rayon's runs another task on a
    /// worker that waits for a join. Then the victim cannot give anything back before the charge
    /// returns, and the charge waits for the whole time, in vain. Charge there with a call that
    /// does not wait ([`OnFull::Reclaim`](crate::OnFull::Reclaim), also of
    /// [`ChargedVec::reserve_with`](crate::ChargedVec::reserve_with)), or before the work
    /// is handed to the pool.
    ///
    /// Source: `mem_cgroup_out_of_memory` in `mm/memcontrol.c`.
    ///
    /// [`set_oom_group`](Self::set_oom_group) has a subtree go as one, and
    /// [`set_oom_exempt`](Self::set_oom_exempt) spares one. [`OomPolicy::by`](crate::OomPolicy::by) takes an order of choice. See
    /// [`OomPolicy`](crate::OomPolicy) for an example.
    pub fn set_oom_policy(&self, policy: impl Into<OomOrder>) {
        victims::set_policy(self.first(), policy.into());
    }

    /// With true, compares the whole subtree of this group as one, and cancels all of it if any of
    /// its groups is chosen.
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
        victims::marks(self.first()).set(TOGETHER, together);
    }

    /// Returns the setting of [`set_oom_group`](Self::set_oom_group).
    pub fn oom_group(&self) -> bool {
        victims::marks(self.first()).has(TOGETHER)
    }

    /// With true, never cancels this group and the groups below it, not even with the subtree that
    /// they are in.
    ///
    /// Source: an `oom_score_adj` of -1000.
    pub fn set_oom_exempt(&self, exempt: bool) {
        victims::marks(self.first()).set(EXEMPT, exempt);
    }

    /// Returns the group's own setting of [`set_oom_exempt`](Self::set_oom_exempt).
    pub fn oom_exempt(&self) -> bool {
        victims::marks(self.first()).has(EXEMPT)
    }

    /// Registers `hook`, to be called when this group is chosen to give its memory back. The hook
    /// tells the work in this group to stop.
    ///
    /// A group can be chosen as long as it has a hook, also when it is offline. The thread whose
    /// charge does not fit calls the hook, with no lock of this crate held. Other threads may call
    /// it at the same time. What the hook frees at once counts, but it should not take long.
    /// Charges that wait in this group have been refused before. Charges that the hook makes itself
    /// are refused at once where they do not fit. The registration keeps the group's object. To
    /// register takes one lock. A panic, also in its drop, is caught and counted as
    /// [`Event::Panic`](crate::Event::Panic).
    ///
    /// See [`OomPolicy`](crate::OomPolicy) for an example.
    pub fn on_cancel(&self, hook: impl Fn(&Cancel) + Send + Sync + 'static) -> Registration {
        Registration::new(victims::hook(self.first(), Box::new(hook)))
    }
}
