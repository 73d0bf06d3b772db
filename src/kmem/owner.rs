//! Who holds an object, in a word beside it.
//!
//! A [`Kmem`] is a value of a dozen words. Where objects are small and many, what is known of them without it is left
//! out: their bytes are what their slot says, they lie on one node, and what tiers they are in follows from that. What is
//! left is the group, the node, and how far above the group the account is kept.

use std::mem::ManuallyDrop;

use smallvec::smallvec;

use super::account::{Account, Kmem};
use super::tiers::{Tiers, numa};
use crate::group::Charge;
use crate::hierarchy::node_stats::Above;
use crate::hierarchy::stats::Spine;
use crate::numa::NodeId;
use crate::stat::Stat;
use crate::thread::directory::Gate;

/// No node: the group's own statistics.
const NOWHERE: u16 = u16::MAX;

/// A [`Kmem`] of one object. No guard: whoever has it makes it one again.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    gate: &'static Gate,
    node: u16,
    above: Option<Above>,
}

impl Owner {
    /// All of it lies in one place.
    #[inline]
    pub(super) fn of(kmem: Kmem) -> Owner {
        debug_assert_eq!(kmem.accounts.len(), 1, "an object of some bytes on one node");
        let (gate, account) = (kmem.charge.gate(), kmem.accounts.first().copied());
        let node = match account.map(|account| account.spine) {
            Some(Spine::On(node)) => node,
            _ => NOWHERE,
        };
        let is_placed = node != NOWHERE || numa(gate.node()).topology.is_one_node();
        let mut kmem = ManuallyDrop::new(kmem);
        std::mem::take(&mut kmem.tiers).forget(is_placed);
        // It may have come to lie on the heap.
        drop(std::mem::take(&mut kmem.accounts));
        Owner { gate, node, above: account.and_then(|account| account.above) }
    }

    /// What it was made of: an object of so many bytes.
    #[inline]
    pub(super) fn into_kmem(self, stat: Stat, bytes: u64) -> Kmem {
        let spine = if self.node == NOWHERE { Spine::Group } else { Spine::On(self.node) };
        let account = Account { spine, above: self.above, bytes };
        let tiers = self.tiers(spine, bytes);
        Kmem { charge: Charge::new(self.gate, bytes), stat, accounts: smallvec![account], tiers }
    }

    #[inline]
    fn tiers(&self, spine: Spine, bytes: u64) -> Tiers {
        let numa = numa(self.gate.node());
        if numa.tiers.is_empty() {
            return Tiers::new();
        }
        let node = match spine {
            Spine::On(node) => Some(numa.topology.node_at(node.into())),
            Spine::Group => numa.topology.is_one_node().then(|| numa.topology.node_at(0)),
        };
        Tiers::of_object(self.gate, node, bytes)
    }
}

impl Kmem {
    /// The object has been moved from a page to another one, and its account goes with it: to the new page's node, where
    /// the group has a part or gets one. An offline group gets none: then to the old page's node where it has one there,
    /// and else to the nearest ancestor's part on the new page's.
    pub(super) fn follow(&mut self, from: Option<NodeId>, to: Option<NodeId>) {
        let (from, to) = (self.spine(from), self.spine(to));
        if from == to {
            return;
        }
        let unplaced = self.unplaced();
        let open = self.has_part(to) || !self.node().state().is_offline();
        self.gather(if open || !self.has_part(from) { to } else { from });
        // It went offline since.
        if self.accounts.iter().any(|account| account.above.is_some_and(|above| above > 0)) && self.has_part(from) {
            self.gather(from);
        }
        self.settle_tiers(unplaced);
    }

    fn has_part(&self, spine: Spine) -> bool {
        match spine {
            Spine::Group => true,
            Spine::On(node) => self.node().has_part_on(node.into()),
        }
    }

    /// The whole account in one place.
    fn gather(&mut self, spine: Spine) {
        if self.accounts.iter().all(|account| account.spine == spine) {
            return;
        }
        for account in std::mem::take(&mut self.accounts) {
            account.take_off(self.charge.gate(), self.stat, account.bytes);
        }
        self.account(spine, self.bytes());
    }
}
