//! Reclaim as users call it: registrations, reclaim before memory is needed, and what protects a
//! group from it.

use super::error::ReclaimError;
use super::handle::Group;
use super::registration::Registration;
use crate::counter::object::tree::Tree;
use crate::pressure::started;
use crate::reclaim::registrations;
use crate::reclaim::repeat;
use crate::reclaim::round::ReclaimReport;
use crate::state::reclaimer::{Reclaim, ReclaimContext, ReclaimPriority, Reclaimer};
use crate::sync::{Arc, model_failed};
use crate::thread::context;
use crate::units::{Bytes, IntoBytes};

impl ReclaimContext<'_> {
    /// Returns the group whose turn it is: the reclaimer's own, or the nearest group above where
    /// that went offline.
    pub fn group(&self) -> Group {
        Group::pinned(self.group)
    }

    /// Returns the group that is under pressure: [`group`](Self::group) or one above it.
    pub fn target(&self) -> Group {
        Group::pinned(self.target)
    }
}

/// # Reclaim
impl Group {
    /// Registers `reclaimer`, to be asked for memory when this group or one above it is short of
    /// memory. It is asked until the returned [`Registration`] is dropped.
    ///
    /// A group that goes offline leaves its reclaimers to its parent, as it leaves its charges. The
    /// call allocates, and takes three locks, each for a moment. If charges already wait in line
    /// for the max of this group, or of one above, a thread of the crate asks the reclaimer for
    /// them.
    ///
    /// See [`Reclaim`] for an example.
    pub fn register_reclaimer(
        &self,
        reclaimer: Arc<dyn Reclaim>,
        priority: ReclaimPriority,
    ) -> Registration {
        let reclaimer = Reclaimer::new(reclaimer, priority);
        let tree = self.first().incarnation().tree.counted();
        registrations::register(self.first(), &reclaimer);
        started::ask_for_lines(self.first());
        Registration::new(ReclaimerGuard { tree, reclaimer })
    }

    /// Asks reclaimers for `bytes` before they are needed, and returns what they freed. It may
    /// block for [`reclaim_time`](crate::RuntimeBuilder::reclaim_time), and until the reclaimer at
    /// work returns: in async code call it on a thread for blocking work.
    ///
    /// The call asks groups in excess of their soft limits first, then all that are not protected,
    /// and last those that low protects. This group's own protection does not hold against it; that
    /// of the groups below does. The call drains the stocks below.
    ///
    /// It goes on as long as reclaimers free something, and may free more or less than `bytes`.
    /// What is freed later, or by other threads, is not in the report. The only event that it
    /// counts is [`Event::Low`](crate::Event::Low).
    ///
    /// Source: `memory_reclaim` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`ReclaimError`] inside a reclaimer: reclaim does not nest.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let report = runtime.root().reclaim(64 << 20)?;
    /// assert!(report.freed < report.requested, "no reclaimer is registered");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reclaim(&self, bytes: impl IntoBytes) -> Result<ReclaimReport, ReclaimError> {
        let Bytes(bytes) = bytes.into_bytes();
        repeat::reclaim_now(self.first(), bytes).ok_or_else(|| ReclaimError {
            group: self.clone(),
        })
    }
}

struct ReclaimerGuard {
    tree: Arc<Tree>,
    reclaimer: Arc<Reclaimer>,
}

impl Drop for ReclaimerGuard {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        self.reclaimer.calls.retire();
        let gone = registrations::unregister(&self.tree, &self.reclaimer);
        // No thread waits inside a reclaimer: two that drop each other's registration would wait
        // for each other.
        if !context::in_reclaim() {
            self.reclaimer.calls.wait();
        }
        // Foreign code may be dropped with it: no lock is held here.
        drop(gone);
    }
}
