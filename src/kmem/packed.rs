//! An account in a word beside its object.
//!
//! A [`Kmem`] is a value of a dozen words. Where objects are small and many, a word beside each leaves out what is
//! known without it. The slot tells the bytes. The object lies on one node, and the node tells the tiers. The word
//! keeps the group, the node, and how far above the group the account is.

use std::mem::ManuallyDrop;

use smallvec::smallvec;

use super::account::Kmem;
use super::engine::{has_statistics, numa_behind};
use super::lines::{AccountLine, node_of};
use super::tiers::Tiers;
use crate::group::Charge;
use crate::hierarchy::node_stats::Above;
use crate::numa::NodeId;
use crate::stat::Stat;
use crate::stat::published::StatScope;
use crate::thread::directory::Header;

/// No node: the group's own statistics.
const NOWHERE: u16 = u16::MAX;

/// A [`Kmem`] of one object. It is no guard: its owner makes it a `Kmem` again to end it.
#[derive(Clone, Copy)]
pub(super) struct PackedKmem {
    header: &'static Header,
    node: u16,
    above: Option<Above>,
}

impl PackedKmem {
    #[inline]
    pub(super) fn of(kmem: Kmem) -> PackedKmem {
        debug_assert_eq!(kmem.lines.len(), 1, "an object of some bytes on one node");
        let (header, account) = (kmem.charge.header(), kmem.lines.first().copied());
        let node = match account.map(|account| account.scope) {
            Some(StatScope::On(node)) => node,
            _ => NOWHERE,
        };
        let is_placed = node != NOWHERE || numa_behind(header).topology.is_one_node();
        let mut kmem = ManuallyDrop::new(kmem);
        std::mem::take(&mut kmem.tiers).forget(is_placed);
        // The lines may be on the heap.
        drop(std::mem::take(&mut kmem.lines));
        PackedKmem { header, node, above: account.and_then(|account| account.above) }
    }

    #[inline]
    pub(super) fn into_kmem(self, stat: Stat, bytes: u64) -> Kmem {
        let scope = if self.node == NOWHERE { StatScope::Group } else { StatScope::On(self.node) };
        let account = AccountLine { scope, above: self.above, bytes };
        let numa = numa_behind(self.header);
        let mut tiers = Tiers::default();
        if !numa.tiers.is_empty() {
            tiers = Tiers::of_object(self.header, node_of(scope, &numa.topology), bytes);
        }
        Kmem { charge: Charge::new(self.header, bytes), stat, lines: smallvec![account], tiers }
    }
}

impl Kmem {
    /// Moves the account of an object that has moved from one page to another. It goes to the new page's node, where
    /// the group has statistics or gets them. An offline group gets none. Then the account goes to the old page's node
    /// if the group has statistics there, else to the nearest ancestor's on the new page's node.
    pub(super) fn follow(&mut self, from: Option<NodeId>, to: Option<NodeId>) {
        let (from, to) = (self.scope(from), self.scope(to));
        if from == to {
            return;
        }
        let unplaced = self.unplaced();
        let to_stays = has_statistics(&self.charge, to)
            || !self.charge.header().counter().state().is_offline()
            || !has_statistics(&self.charge, from);
        self.gather(if to_stays { to } else { from });
        // The group went offline since.
        if self.lines.iter().any(|account| account.above.is_some_and(|above| above > 0))
            && has_statistics(&self.charge, from)
        {
            self.gather(from);
        }
        self.settle_tiers(unplaced);
    }

    /// Moves the whole account to one scope.
    fn gather(&mut self, scope: StatScope) {
        if self.lines.iter().all(|account| account.scope == scope) {
            return;
        }
        for account in std::mem::take(&mut self.lines) {
            account.take_off(self.charge.header(), self.stat, account.bytes);
        }
        self.account(scope, self.bytes());
    }
}
