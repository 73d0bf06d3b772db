//! An account in two words beside its object.
//!
//! A [`Kmem`] is a value of a dozen words. Where objects are small and many, two words beside each
//! leave out what is known without it. The object lies on one node, and the node tells the tiers.
//! The words keep the group, the bytes, the node, the item, and how far above the group the account
//! is.

use std::mem::ManuallyDrop;

use smallvec::smallvec;

use super::account::Kmem;
use super::engine::{has_statistics, numa};
use super::lines::{AccountLine, Accounts, node_of};
use super::tiers::Tiers;
use crate::counter::object::KeptHeader;
use crate::group::Charge;
use crate::hierarchy::node_stats::Above;
use crate::hierarchy::stats;
use crate::numa::NodeId;
use crate::stat::published::StatScope;
use crate::sync::model_failed;

/// No node: the group's own statistics.
const NOWHERE: u8 = u8::MAX;

/// A [`Kmem`] of one object on one node, in two words: for owners that keep an account beside each
/// of many small objects. Its drop gives back what the drop of the `Kmem` would.
///
/// ```
/// use memcg::kmem::{NodeId, PackedKmem, Placement};
///
/// let runtime = memcg::Runtime::builder().nodes(2).build()?;
/// let kmem = runtime.root().precharge(100)?.account(&Placement::on(NodeId::new(1), 100));
/// let beside_its_object = kmem.pack().expect("on one node");
/// assert_eq!(size_of::<Option<PackedKmem>>(), 16);
/// let mut kmem = beside_its_object.unpack(); // the object has moved
/// kmem.follow(Some(NodeId::new(1)), Some(NodeId::new(0)));
/// assert_eq!(kmem.placement(), Placement::on(NodeId::new(0), 100));
/// drop(kmem.pack());
/// assert_eq!(runtime.root().live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once it gives the bytes back at once, and `let _ =` drops it at once: bind it to a name, as in `let _held =`"]
pub struct PackedKmem {
    header: KeptHeader,
    bytes: u32,
    above: Option<Above>,
    node: u8,
    /// The number of the item among those of the runtime.
    stat: u8,
}

impl Kmem {
    /// Makes two words of the account of an object: all of its bytes are on one node, or all on
    /// none. A promise to a [tier](crate::RuntimeBuilder::tier) for bytes on no node ends here.
    /// Costs no charge and no account.
    ///
    /// # Errors
    ///
    /// The account as it was: it has no bytes, or some on more than one node, or 4 GiB or more; or
    /// its item is none of its runtime's.
    ///
    /// ```
    /// use memcg::kmem::{NodeId, Placement};
    ///
    /// let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let mut placement = Placement::on(NodeId::new(0), 50);
    /// placement.add(Some(NodeId::new(1)), 50);
    /// let kmem = runtime.root().precharge(100)?.account(&placement).pack().unwrap_err();
    /// assert_eq!((kmem.placement(), runtime.root().live()), (placement, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn pack(self) -> Result<PackedKmem, Box<Kmem>> {
        let header = self.charge.header();
        let (
            &[
                AccountLine {
                    bytes,
                    scope,
                    above,
                },
            ],
            Ok(whole),
        ) = (&self.accounts.lines[..], u32::try_from(self.bytes()))
        else {
            return Err(Box::new(self));
        };
        // The number of an item that the runtime knows is enough to name it.
        if bytes != self.bytes()
            || !stats::coordinator(header.counter())
                .items
                .knows(self.stat())
        {
            return Err(Box::new(self));
        }
        let node = match scope {
            // A topology has fewer nodes than a byte has values.
            StatScope::On(node) => node as u8,
            StatScope::Group => NOWHERE,
        };
        let is_placed = node != NOWHERE || numa(header.counter()).topology.is_one_node();
        let stat = self.stat().number() as u8;
        let mut kmem = ManuallyDrop::new(self);
        std::mem::take(&mut kmem.tiers).forget(is_placed);
        // The lines may be on the heap.
        drop(std::mem::take(&mut kmem.accounts.lines));
        Ok(PackedKmem {
            header,
            bytes: whole,
            above,
            node,
            stat,
        })
    }

    /// Moves the account of an object that has moved from one page to another. It goes to the new
    /// page's node, where the group has statistics or gets them. An offline group gets none. Then
    /// the account goes to the old page's node if the group has statistics there, else to the
    /// nearest ancestor's on the new page's node. A tier that the object comes to is charged by
    /// force.
    ///
    /// See [`PackedKmem`] for an example.
    pub fn follow(&mut self, from: Option<NodeId>, to: Option<NodeId>) {
        let from = self.accounts.scope(from);
        let to = self.accounts.scope(to);
        if from == to {
            return;
        }
        let unplaced = self.unplaced();
        let to_stays = has_statistics(&self.charge, to)
            || !self.charge.counter().state().is_offline()
            || !has_statistics(&self.charge, from);
        self.gather(if to_stays { to } else { from });
        let lines = &self.accounts.lines;
        let is_above = lines
            .iter()
            .any(|account| account.above.is_some_and(|above| above > 0));
        // The group went offline since.
        if is_above && has_statistics(&self.charge, from) {
            self.gather(from);
        }
        self.settle_tiers(unplaced);
    }

    /// Moves the whole account to one scope.
    fn gather(&mut self, scope: StatScope) {
        let lines = &self.accounts.lines;
        if lines.iter().all(|account| account.scope == scope) {
            return;
        }
        self.accounts.take_off();
        self.accounts.account(scope, self.bytes());
    }
}

impl PackedKmem {
    /// Makes the account a [`Kmem`] again.
    #[inline]
    pub fn unpack(self) -> Kmem {
        ManuallyDrop::new(self).kmem()
    }

    /// The account as a guard. The caller gives up these words.
    #[inline]
    fn kmem(&self) -> Kmem {
        let header = self.header;
        let bytes = self.bytes.into();
        let scope = if self.node == NOWHERE {
            StatScope::Group
        } else {
            StatScope::On(self.node.into())
        };
        let account = AccountLine {
            scope,
            above: self.above,
            bytes,
        };
        let numa = numa(header.counter());
        let mut tiers = Tiers::default();
        if !numa.tiers.is_empty() {
            tiers = Tiers::of_object(header, node_of(scope, &numa.topology), bytes);
        }
        let stat = stats::coordinator(header.counter())
            .items
            .stat(self.stat.into());
        Kmem {
            accounts: Accounts {
                header,
                stat,
                lines: smallvec![account],
            },
            charge: Charge::new(header, bytes),
            tiers,
        }
    }
}

impl Drop for PackedKmem {
    #[inline]
    fn drop(&mut self) {
        if !model_failed() {
            drop(self.kmem());
        }
    }
}

debug_figures!(PackedKmem, |kmem| bytes: kmem.bytes);
