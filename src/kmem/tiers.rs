//! Charges of the counters of tiers, beside the charge of the group.

use super::engine::{header_of, numa};
use super::placement::{Placement, PrechargeBound};
use crate::counter::object::HeaderRef;
use crate::group::{Charge, ChargeError, Group};
use crate::numa::NodeId;
use crate::numa::config::Tier;
use crate::units::Bytes;

/// A charge for each tier where the memory lies or may come to lie. Most runtimes have no tier: then
/// this is a null pointer, because each object's precharge takes it along.
#[derive(Debug, Default)]
pub(super) struct Tiers(Option<Box<TierCharges>>);

#[derive(Debug, Default)]
struct TierCharges(Vec<TierCharge>);

#[derive(Debug)]
struct TierCharge {
    /// Place of the tier among those of the runtime.
    tier: usize,
    /// For the bytes on the tier's nodes, and the promised ones.
    charge: Charge,
    /// Bytes that lie on no node yet, and that this tier has admitted.
    promised: u64,
}

impl Tiers {
    fn charges(&self) -> &[TierCharge] {
        self.0.as_ref().map_or(&[], |charges| &charges.0)
    }

    fn charges_mut(&mut self) -> &mut [TierCharge] {
        self.0.as_mut().map_or(&mut [], |charges| &mut charges.0)
    }

    fn push(&mut self, charge: TierCharge) {
        self.0.get_or_insert_default().0.push(charge);
    }

    fn into_charges(self) -> Vec<TierCharge> {
        self.0.map_or_else(Vec::new, |charges| charges.0)
    }

    /// Charges each tier where memory within the bound may come to lie. If one refuses, the others
    /// give back.
    #[inline]
    pub(super) fn precharge(group: &Group, bound: &PrechargeBound) -> Result<Tiers, ChargeError> {
        let of = &numa(group.first()).tiers;
        if of.is_empty() {
            return Ok(Tiers::default());
        }
        Tiers::precharge_each(of, group, bound)
    }

    fn precharge_each(
        of: &[Tier],
        group: &Group,
        bound: &PrechargeBound,
    ) -> Result<Tiers, ChargeError> {
        let mut tiers = Tiers::default();
        for (number, tier) in of.iter().enumerate() {
            if bound.may_lie_on(|node| tier.has(node)) {
                let charge = Charge::attempt(header_of(tier, group.first()), bound.bytes())?;
                tiers.push(TierCharge {
                    tier: number,
                    charge,
                    promised: bound.bytes(),
                });
            }
        }
        Ok(tiers)
    }

    /// Charges each tier the bytes on its nodes, and the promised ones that may yet come there.
    /// `before` bytes were on no node before.
    pub(super) fn charge_placed(&mut self, group: &Group, before: u64, placement: &Placement) {
        let touched = before.saturating_sub(placement.unplaced());
        let given_up = placement.unplaced().saturating_sub(before);
        for (number, tier) in numa(group.first()).tiers.iter().enumerate() {
            let on_tier: u64 = placement
                .nodes()
                .filter(|(node, _)| tier.has(*node))
                .map(|(_, bytes)| bytes)
                .sum();
            match self.charges_mut().iter_mut().find(|of| of.tier == number) {
                Some(TierCharge {
                    charge, promised, ..
                }) => {
                    let was = charge.bytes().saturating_sub(*promised);
                    // Bytes that came from no node were promised; bytes that went there are
                    // promised again.
                    let kept = promised.saturating_sub(on_tier.saturating_sub(was).min(touched));
                    // Mutation: what-lies-elsewhere-stays-promised
                    *promised = (kept + was.saturating_sub(on_tier).min(given_up))
                        .min(placement.unplaced());
                    let bytes = on_tier + *promised;
                    charge.shrink(Bytes(charge.bytes().saturating_sub(bytes)));
                    // Mutation: a-tier-does-not-get-what-comes-there
                    charge.force_grow(Bytes(bytes.saturating_sub(charge.bytes())));
                }
                None if on_tier > 0 => {
                    let charge = Charge::by_force(header_of(tier, group.first()), on_tier);
                    self.push(TierCharge {
                        tier: number,
                        charge,
                        promised: 0,
                    });
                }
                None => {}
            }
        }
    }

    /// Charges the tiers that `bytes` enter when they move between the nodes, beyond what is
    /// promised to them. If one refuses, the others give back.
    pub(super) fn admit(
        &self,
        group: &Group,
        from: Option<NodeId>,
        to: Option<NodeId>,
        (bytes, are_unplaced): (u64, bool),
    ) -> Result<Tiers, ChargeError> {
        let mut admitted = Tiers::default();
        for (number, tier) in numa(group.first()).tiers.iter().enumerate() {
            let leaves = from.is_some_and(|node| tier.has(node));
            let enters = to.is_some_and(|node| tier.has(node));
            let held = self.charges().iter().find(|held| held.tier == number);
            // A tier may be promised what is on no node.
            // Mutation: what-lies-on-a-node-was-promised
            let promised = held
                .filter(|_| are_unplaced)
                .map_or(0, |held| held.promised);
            let more = bytes.saturating_sub(promised);
            // Within a tier nothing changes for it.
            if enters && !leaves && more > 0 {
                let charge = Charge::attempt(header_of(tier, group.first()), more)?;
                admitted.push(TierCharge {
                    tier: number,
                    charge,
                    promised: 0,
                });
            }
        }
        Ok(admitted)
    }

    /// Takes over the charges of another account of the same group.
    pub(super) fn merge(&mut self, others: Tiers) {
        for other in others.into_charges() {
            match self
                .charges_mut()
                .iter_mut()
                .find(|of| of.tier == other.tier)
            {
                Some(held) => {
                    held.promised += other.promised;
                    // The two charge the same counter, so nothing comes back.
                    drop(held.charge.merge(other.charge));
                }
                None => self.push(other),
            }
        }
    }

    /// Charges the tiers of another group in the place of these. If one refuses, all are charged to
    /// `from` again.
    pub(super) fn transfer(&mut self, from: &Group, to: &Group) -> Result<(), ChargeError> {
        for number in 0..self.charges().len() {
            if let Err(error) = self.charges_mut()[number].charge.transfer(to) {
                self.take_back(from, number);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Charges the first `many` tiers, or all, to `from` again, where they were a moment ago. Nobody
    /// has asked for that, so no level refuses it, and none counts a refusal.
    pub(super) fn take_back(&mut self, from: &Group, many: usize) {
        for TierCharge { tier, charge, .. } in self.charges_mut().iter_mut().take(many) {
            // Others may have taken the room meanwhile. The bytes have not moved, so they are
            // charged where they lie.
            let tier = &numa(from.first()).tiers[*tier];
            charge.move_back(header_of(tier, from.first()));
        }
    }

    /// Leaves the charges without guards, until [`of_parts`](Self::of_parts) makes guards again. A
    /// promise to a tier ends here: the bytes that lie on no node yet are uncharged.
    pub(super) fn forget(self) {
        for TierCharge {
            mut charge,
            promised,
            ..
        } in self.into_charges()
        {
            charge.shrink(Bytes(promised));
            if charge.bytes() > 0 {
                charge.forget();
            }
        }
    }

    /// The guards of the charges that [`forget`](Self::forget) has left, for bytes on nodes.
    pub(super) fn of_parts(
        header: HeaderRef,
        parts: impl Iterator<Item = (NodeId, u64)> + Clone,
    ) -> Tiers {
        let mut tiers = Tiers::default();
        let group = header.counter();
        for (tier, of) in numa(group).tiers.iter().enumerate() {
            let on_tier = parts.clone().filter(|(node, _)| of.has(*node));
            let bytes = on_tier.map(|(_, bytes)| bytes).sum();
            if bytes > 0 {
                tiers.push(TierCharge {
                    tier,
                    charge: Charge::new(header_of(of, group), bytes),
                    promised: 0,
                });
            }
        }
        tiers
    }
}
