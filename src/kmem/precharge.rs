//! Admission before the memory is there.

use super::account::Kmem;
use super::placement::{Placement, PrechargeBound};
use super::tiers::Tiers;
use crate::group::{Charge, ChargeError, Group};
use crate::stat::StatKey;
use crate::units::Bytes;

/// Bytes held for the next allocation, which may come to lie on any node. The group, its ancestors,
/// and every tier where they may lie have admitted them; they are accounted to no node yet. Its
/// drop gives them all back.
///
/// The bytes are charged and are no credit, so a drain does not find them. So
/// [`account`](Self::account), which comes after the allocation, cannot fail.
///
/// ```
/// use memcg::kmem::{NodeId, Placement};
/// use std::alloc::Layout;
///
/// let runtime = memcg::Runtime::builder().max(1_000).build()?;
/// let precharge = runtime.root().precharge(Placement::bound(Layout::new::<[u8; 800]>()).with_metadata(64))?;
/// assert_eq!((precharge.bytes(), precharge.group().live()), (864, 864));
/// let kmem = precharge.account(&Placement::on(NodeId::new(0), 832)); // no more metadata was needed
/// assert_eq!((kmem.bytes(), runtime.root().live()), (832, 832));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once it gives the bytes back at once, and `let _ =` drops it at once: bind it to a name, as in `let _held =`"]
#[derive(Debug)]
pub struct Precharge {
    pub(super) charge: Charge,
    pub(super) tiers: Tiers,
}

/// # Memory that is charged before it is allocated
impl Group {
    /// Charges `bound` for memory that the caller is about to allocate. It may block: in async code
    /// call it on a thread for blocking work.
    ///
    /// It is the first of three steps. Then allocate; last, find out where the memory lies and
    /// [account](Precharge::account) it, which gives back what was not needed.
    ///
    /// It does what [`charge`](Self::charge) does, and costs as much. For each
    /// [tier](crate::RuntimeBuilder::tier) where the memory may come to lie it also charges the
    /// tier's counter.
    ///
    /// Source: the split of charging from accounting in "per-memcg-per-node kmem accounting"
    /// (Ghiti, 2026, patch 4).
    ///
    /// # Errors
    ///
    /// As [`charge`](Self::charge); a [`OverLimitError`](crate::OverLimitError) of a tier
    /// names its counter.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let held = runtime.root().precharge(100)?;
    /// assert!(runtime.root().precharge(1).is_err());
    /// drop(held);
    /// assert_eq!(runtime.root().live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn precharge(&self, bound: impl Into<PrechargeBound>) -> Result<Precharge, ChargeError> {
        let bound = bound.into();
        // The tiers first: they refuse at once, and no memory is reclaimed for what one of them
        // refuses.
        let tiers = Tiers::precharge(self, &bound)?;
        // Mutation: precharge-is-credit
        Ok(Precharge {
            charge: self.charge(Bytes(bound.bytes()))?,
            tiers,
        })
    }
}

impl Precharge {
    /// Returns the bytes held. It reads no shared word.
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Returns the group that is charged, as a handle of its own.
    pub fn group(&self) -> Group {
        self.charge.group()
    }

    /// Accounts what was allocated as [`StatKey::KERNEL`], to the nodes where it lies: one update
    /// for each node. The rest of the precharge goes back.
    ///
    /// It never fails and never blocks. If the placement is larger than the precharge, the bound
    /// was too low; the memory exists, so the difference is charged by force, as
    /// [`Charge::force_grow`] does.
    ///
    /// ```
    /// use memcg::StatKey;
    /// use memcg::kmem::{NodeId, Placement};
    ///
    /// let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let root = runtime.root();
    /// let mut placement = Placement::on(NodeId::new(0), 300);
    /// placement.add(Some(NodeId::new(1)), 200);
    /// let kmem = root.precharge(512)?.account(&placement);
    /// let now = root.numa_stat(StatKey::KERNEL, memcg::Freshness::Exact);
    /// assert_eq!((now.get(NodeId::new(0)), now.get(NodeId::new(1)), root.live()), (300, 200, 500));
    /// drop(kmem);
    /// assert_eq!(root.numa_stat(StatKey::KERNEL, memcg::Freshness::Exact).get(NodeId::new(0)), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn account(self, placement: &Placement) -> Kmem {
        self.account_as(StatKey::KERNEL, placement)
    }

    /// Does what [`account`](Self::account) does, for another item. Take one that is counted [per
    /// node](crate::figures::StatItem::per_node); other items are not shown by node.
    ///
    /// ```
    /// use memcg::StatKey;
    /// use memcg::kmem::{NodeId, Placement};
    ///
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let _kmem = runtime.root().precharge(64)?.account_as(StatKey::SLAB, &Placement::on(NodeId::new(0), 64));
    /// assert_eq!(runtime.root().read(memcg::Freshness::Exact).get(StatKey::SLAB), 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn account_as(self, stat: StatKey, placement: &Placement) -> Kmem {
        Kmem::new(self.charge, self.tiers, stat, placement)
    }
}
