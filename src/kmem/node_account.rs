//! Units that a counter alone holds, with the node of each.

use super::lines::Accounts;
use super::placement::Placement;
use crate::error::CounterChargeError;
use crate::numa::NodeId;
use crate::page_counter::PageCounter;
use crate::stat::StatKey;
use crate::sync::model_failed;

/// Units charged to a [`PageCounter`], and accounted to the nodes where they lie. It keeps the
/// counter. Its drop takes off each node what was accounted there, and then uncharges the units, on
/// any thread.
///
/// If the configuration declares no [nodes](crate::CounterConfig::topology), it is the charge
/// alone.
///
/// ```
/// use memcg::{CounterConfig, PageCounter, StatKey};
/// use memcg::kmem::{NodeId, Placement};
///
/// let near = NodeId::new(0);
/// let far = NodeId::new(1);
/// let memory = PageCounter::root(CounterConfig::bytes().max(1 << 20).nodes(2));
/// let precharge = memory.precharge(4_096)?; // before the allocation: it may be refused
/// let mut held = precharge.account(&Placement::on(near, 4_000)); // after it: never
/// assert_eq!(held.migrated(Some(near), Some(far), 1_000), 1_000); // the owner has moved a part
/// let now = memory.numa_stat(StatKey::KERNEL, memcg::Freshness::Exact);
/// assert_eq!((now.get(near), now.get(far), memory.live()), (3_000, 1_000, 4_000));
/// drop(held);
/// assert_eq!((memory.numa_stat(StatKey::KERNEL, memcg::Freshness::Exact).sum(), memory.live()), (0, 0));
/// # Ok::<(), memcg::errors::CounterChargeError>(())
/// ```
#[must_use = "dropped at once it gives the units back at once, and `let _ =` drops it at once: bind it to a name, as in `let _held =`"]
pub struct NodeAccount {
    counter: PageCounter,
    units: u64,
    accounts: Accounts,
}

impl PageCounter {
    /// Charges `units` for memory that the caller is about to allocate. It may block in the
    /// pressure hook, if there is one.
    ///
    /// This is the first of three steps. Then allocate, look where the memory lies, and
    /// [account](NodeAccount::account) it; what was not needed goes back. It costs what a
    /// [`charge`](Self::charge) costs, and is as exact.
    ///
    /// # Errors
    ///
    /// [`CounterChargeError`] names the level that was full. Nothing of the charge remains.
    pub fn precharge(&self, units: u64) -> Result<NodeAccount, CounterChargeError> {
        self.charge(units)?;
        Ok(NodeAccount {
            counter: self.clone(),
            units,
            accounts: Accounts::new(self.header(), StatKey::KERNEL),
        })
    }
}

impl NodeAccount {
    /// Accounts what was allocated as [`StatKey::KERNEL`], to the nodes where it lies: one update for
    /// each node. The rest of the charge goes back. Another account before this one ends.
    ///
    /// It never fails: a placement larger than the charge is memory that exists, so the difference
    /// is [forced](PageCounter::force_charge).
    pub fn account(self, placement: &Placement) -> NodeAccount {
        self.account_as(StatKey::KERNEL, placement)
    }

    /// Does what [`account`](Self::account) does, for another item.
    ///
    /// ```
    /// # use memcg::{CounterConfig, Freshness, PageCounter, StatKey};
    /// # use memcg::kmem::{NodeId, Placement};
    /// let memory = PageCounter::root(CounterConfig::bytes().nodes(2));
    /// let _held = memory.precharge(64)?.account_as(StatKey::SLAB, &Placement::on(NodeId::new(0), 48));
    /// assert_eq!((memory.live(), memory.read(Freshness::Exact).get(StatKey::SLAB)), (48, 48));
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn account_as(mut self, stat: StatKey, placement: &Placement) -> NodeAccount {
        self.accounts.take_off();
        self.accounts.stat = stat;
        let held = self.units;
        let units = placement.bytes();
        self.counter.force_charge(units.saturating_sub(held));
        self.units = units;
        self.accounts.account_all(placement, units);
        self.counter.uncharge(held.saturating_sub(units));
        self
    }

    /// Moves at most `units` of the account from one node to another, after the memory has moved or
    /// was first touched (`from` is `None`). Returns how many units it has moved; the units held do
    /// not change.
    pub fn migrated(&mut self, from: Option<NodeId>, to: Option<NodeId>, units: u64) -> u64 {
        self.accounts.migrated(from, to, units)
    }

    /// Returns the units held.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Returns the counter that is charged.
    pub fn counter(&self) -> &PageCounter {
        &self.counter
    }

    /// Returns the units by the node to which they are accounted: none before
    /// [`account`](Self::account).
    pub fn placement(&self) -> Placement {
        self.accounts.placement()
    }
}

impl Drop for NodeAccount {
    fn drop(&mut self) {
        if !model_failed() {
            // The account ends before the charge, as that of a `Kmem`.
            self.accounts.take_off();
            self.counter.uncharge(self.units);
        }
    }
}

debug_figures!(NodeAccount, |account| counter: account.counter, placement: account.placement());
