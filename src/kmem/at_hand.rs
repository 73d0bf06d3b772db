//! Accounts of owners who know more than a guard may: that there is one node, or that this thread has been there before.

use super::account::{Account, Accounts, Kmem};
use super::placement::Placement;
use super::precharge::{Precharge, numa};
use crate::charge::stat::Spine;
use crate::group::{Charge, Group};
use crate::numa::Topology;
use crate::stat::Stat;
use crate::sync::model_failed;

/// All that was precharged, accounted to the group itself as per-processor memory: what there is to an account with one
/// node. As a [`Kmem`], and a fifth of its size.
pub(super) struct Whole {
    charge: Charge,
    /// Not where it was made inside another slow path.
    counted: bool,
}

const STAT: Stat = Stat::PERCPU;

impl Whole {
    /// Back where a tier has a part in it.
    #[inline]
    pub(super) fn new(precharge: Precharge) -> Result<Whole, Precharge> {
        if !precharge.tiers.is_empty() {
            return Err(precharge);
        }
        let Precharge { charge, .. } = precharge;
        let counted = charge.gate().account(Spine::Group, STAT, charge.bytes().cast_signed()).is_some();
        Ok(Whole { charge, counted })
    }

    pub(super) fn group(&self) -> Group {
        self.charge.group()
    }
}

impl Drop for Whole {
    #[inline]
    fn drop(&mut self) {
        if self.counted && !model_failed() {
            // Before the charge goes: afterwards the group may be gone.
            self.charge.gate().unaccount(Spine::Group, 0, STAT, self.charge.bytes().cast_signed());
        }
    }
}

impl Kmem {
    /// As [`Precharge::account_as`] where that changes nothing but cells of this thread that are there, so that a lock may
    /// be held over it: the placement is all that was precharged, and no tier has a part in it. The account, and whether
    /// to [`announce`] it once no lock is held.
    #[inline]
    pub(super) fn at_hand(precharge: Precharge, stat: Stat, placement: &Placement) -> Result<(Kmem, bool), Precharge> {
        if !precharge.tiers.is_empty() || placement.bytes() != precharge.bytes() {
            return Err(precharge);
        }
        let gate = precharge.charge.gate();
        let mut accounts = Accounts::new();
        let mut due = false;
        for (spine, bytes) in spines(&numa(gate.node()).topology, placement) {
            // Longer, the list would allocate.
            let fits = accounts.len() < accounts.inline_size();
            let counted = if fits { gate.account_at_hand(spine, stat, bytes.cast_signed()) } else { None };
            let Some(is_due) = counted else {
                for Account { bytes, spine, .. } in accounts {
                    gate.account_at_hand(spine, stat, bytes.cast_signed().wrapping_neg());
                }
                return Err(precharge);
            };
            due |= is_due;
            accounts.push(Account { bytes, spine, above: Some(0) });
        }
        Ok((Kmem { charge: precharge.charge, stat, accounts, tiers: precharge.tiers }, due))
    }
}

/// What was accounted [at hand](Kmem::at_hand) has become so much that others must be told.
#[cold]
pub(super) fn announce(group: &Group, placement: &Placement) {
    let node = group.node();
    for (spine, _) in spines(&numa(node).topology, placement) {
        node.gate.announce(spine);
    }
}

/// A placement as it is accounted where there are several nodes.
#[inline]
fn spines(topology: &Topology, placement: &Placement) -> impl Iterator<Item = (Spine, u64)> {
    let of = |node| topology.index_of(node).map_or(Spine::Group, |index| Spine::On(index as u16));
    let unplaced = Some((Spine::Group, placement.unplaced())).filter(|(_, bytes)| *bytes > 0);
    placement.nodes().map(move |(node, bytes)| (of(node), bytes)).chain(unplaced)
}
