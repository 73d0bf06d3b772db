//! Bytes held, with the node of each.

use smallvec::SmallVec;

use super::engine::numa;
use super::lines::Accounts;
use super::placement::Placement;
use super::tiers::Tiers;
use crate::group::{Charge, ChargeError, Group};
use crate::numa::NodeId;
use crate::numa::config::Numa;
use crate::stat::StatKey;
use crate::stat::published::StatScope;
use crate::units::{Bytes, IntoBytes};

/// Bytes charged to a group, and accounted to the nodes where they lie. Its drop takes off each
/// node what was accounted there, and then uncharges the bytes. It may be dropped on any thread,
/// also after the group, its handles and the runtime are gone.
///
/// ```
/// use memcg::StatKey;
/// use memcg::kmem::{NodeId, Placement};
///
/// let runtime = memcg::Runtime::builder().nodes(2).build()?;
/// let near = NodeId::new(0);
/// let far = NodeId::new(1);
/// let mut kmem = runtime.root().precharge(4_096)?.account(&Placement::on(near, 4_096));
/// assert_eq!(kmem.migrated(Some(near), Some(far), 1_000), 1_000); // its owner has moved a part of it
/// let now = runtime.root().numa_stat(StatKey::KERNEL, memcg::Freshness::Exact);
/// assert_eq!((now.get(near), now.get(far), kmem.bytes()), (3_096, 1_000, 4_096));
/// assert_eq!((kmem.group(), kmem.stat()), (runtime.root(), StatKey::KERNEL));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once it gives the bytes back at once, and `let _ =` drops it at once: bind it to a name, as in `let _held =`"]
pub struct Kmem {
    // The order of the drops.
    pub(super) accounts: Accounts,
    pub(super) charge: Charge,
    pub(super) tiers: Tiers,
}

impl Kmem {
    #[inline]
    pub(super) fn new(charge: Charge, tiers: Tiers, stat: StatKey, placement: &Placement) -> Kmem {
        let mut kmem = Kmem {
            accounts: Accounts::new(charge.header(), stat),
            charge,
            tiers,
        };
        let held = kmem.charge.bytes();
        let bytes = placement.bytes();
        // Mutation: more-is-placed-than-charged
        if bytes > held {
            kmem.charge.force_grow(Bytes(bytes - held));
        }
        // The bytes held are fewer where usage would pass 2^63.
        kmem.accounts.account_all(placement, kmem.charge.bytes());
        // Before, all of the precharge was on no node.
        kmem.charge_tiers(u64::MAX);
        // Mutation: the-rest-of-a-precharge-stays
        kmem.charge.shrink(Bytes(held.saturating_sub(bytes)));
        kmem
    }

    #[inline]
    fn numa(&self) -> &Numa {
        numa(self.charge.counter())
    }

    pub(super) fn unplaced(&self) -> u64 {
        let is_one_node = self.numa().topology.is_one_node();
        if is_one_node {
            0
        } else {
            self.accounts.on(StatScope::Group)
        }
    }

    /// Charges the tiers as the account says by now. `unplaced` bytes were on no node before.
    pub(super) fn charge_tiers(&mut self, unplaced: u64) {
        if !self.numa().tiers.is_empty() {
            let group = self.group();
            let placement = self.placement();
            self.tiers.charge_placed(&group, unplaced, &placement);
        }
    }

    /// Returns the bytes held.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Returns the group that is charged, as a handle of its own.
    pub fn group(&self) -> Group {
        self.charge.group()
    }

    /// Returns the item that the bytes are accounted as.
    pub fn stat(&self) -> StatKey {
        self.accounts.stat
    }

    /// Returns the bytes by the node to which they are accounted. In a runtime of one node all are
    /// on that one.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let placement = memcg::kmem::Placement::on(memcg::kmem::NodeId::new(0), 8);
    /// assert_eq!(runtime.root().precharge(10)?.account(&placement).placement(), placement);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn placement(&self) -> Placement {
        self.accounts.placement()
    }

    /// Moves at most `bytes` of the account from one node to another, after the memory has moved or
    /// was first touched (`from` is `None`). Returns how many bytes it has moved; the bytes held do
    /// not change. A tier that they move to is charged by force, because they are there already;
    /// [`migrate`](Self::migrate) asks it before.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let mut untouched = memcg::kmem::Placement::new();
    /// untouched.add(None, 100);
    /// let mut kmem = runtime.root().precharge(100)?.account(&untouched);
    /// assert_eq!(kmem.migrated(None, Some(memcg::kmem::NodeId::new(1)), 4_096), 100);
    /// assert_eq!(kmem.placement(), memcg::kmem::Placement::on(memcg::kmem::NodeId::new(1), 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn migrated(
        &mut self,
        from: Option<NodeId>,
        to: Option<NodeId>,
        bytes: impl IntoBytes,
    ) -> u64 {
        let Bytes(bytes) = bytes.into_bytes();
        let unplaced = self.unplaced();
        let moved = self.accounts.migrated(from, to, bytes);
        self.charge_tiers(unplaced);
        moved
    }

    /// Does what [`migrated`](Self::migrated) does, but before the memory moves, and asks the tiers
    /// of that node first. It may block: in async code call it on a thread for blocking work.
    ///
    /// # Errors
    ///
    /// [`ChargeErrorKind::OverLimit`](crate::ChargeErrorKind::OverLimit) of a tier's counter;
    /// nothing has changed.
    ///
    /// ```
    /// use memcg::kmem::{NodeId, Placement};
    ///
    /// let mut builder = memcg::Runtime::builder().nodes(2);
    /// let toptier = builder.tier("toptier", [NodeId::new(0)]);
    /// let runtime = builder.build()?;
    /// runtime.root().counter(toptier)?.set_max(10)?;
    /// let bound = memcg::kmem::PrechargeBound::from(100).within(&[NodeId::new(1)]);
    /// let mut kmem = runtime.root().precharge(bound)?.account(&Placement::on(NodeId::new(1), 100));
    /// assert!(kmem.migrate(Some(NodeId::new(1)), Some(NodeId::new(0)), 100).is_err());
    /// assert_eq!(kmem.migrate(Some(NodeId::new(1)), Some(NodeId::new(0)), 10)?, 10);
    /// assert_eq!(runtime.root().counter(toptier)?.live(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn migrate(
        &mut self,
        from: Option<NodeId>,
        to: Option<NodeId>,
        bytes: impl IntoBytes,
    ) -> Result<u64, ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        let group = self.group();
        let of = self.accounts.scope(from);
        let into = self.accounts.scope(to);
        let bytes = self.accounts.on(of).min(bytes);
        if of != into {
            let admitted = self
                .tiers
                .admit(&group, from, to, (bytes, of == StatScope::Group))?;
            self.tiers.merge(admitted);
        }
        Ok(self.migrated(from, to, Bytes(bytes)))
    }

    /// Accounts the bytes anew as `placement` says, as far as there are any; bytes that it leaves
    /// out are then on no node. The bytes held do not change, and it never blocks.
    ///
    /// ```
    /// use memcg::kmem::{NodeId, Placement};
    ///
    /// let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let mut kmem = runtime.root().precharge(100)?.account(&Placement::on(NodeId::new(0), 100));
    /// kmem.relocate(&Placement::on(NodeId::new(1), 70));
    /// assert_eq!((kmem.placement().on_node(NodeId::new(1)), kmem.placement().unplaced()), (70, 30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relocate(&mut self, placement: &Placement) {
        let mut left = self.bytes();
        let unplaced = self.unplaced();
        let mut wanted: SmallVec<[(StatScope, u64); 4]> = SmallVec::new();
        let mut want =
            |scope: StatScope, bytes: u64| match wanted.iter_mut().find(|(of, _)| *of == scope) {
                // All nodes that the topology does not have count as no node.
                Some((_, sum)) => *sum += bytes,
                None => wanted.push((scope, bytes)),
            };
        for (node, bytes) in placement.nodes() {
            let bytes = bytes.min(left);
            // Mutation: relocated-bytes-are-there-twice
            left -= bytes;
            want(self.accounts.scope(Some(node)), bytes);
        }
        want(StatScope::Group, left);
        // Bytes that go are taken off first, so that the sum never exceeds the bytes held.
        let scopes: SmallVec<[StatScope; 4]> = self
            .accounts
            .lines
            .iter()
            .map(|account| account.scope)
            .collect();
        for scope in scopes {
            let keeps = wanted
                .iter()
                .find(|(of, _)| *of == scope)
                .map_or(0, |(_, bytes)| *bytes);
            self.accounts
                .unaccount(scope, self.accounts.on(scope).saturating_sub(keeps));
        }
        for (scope, bytes) in wanted {
            self.accounts
                .account(scope, bytes.saturating_sub(self.accounts.on(scope)));
        }
        self.charge_tiers(unplaced);
    }

    /// Gives bytes back, from each node as many as `placement` says, or all that are there. Returns
    /// how many bytes those were. It never blocks.
    ///
    /// ```
    /// use memcg::kmem::{NodeId, Placement};
    ///
    /// let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let mut kmem = runtime.root().precharge(100)?.account(&Placement::on(NodeId::new(1), 100));
    /// assert_eq!(kmem.shrink(&Placement::on(NodeId::new(1), 30)), 30);
    /// assert_eq!(kmem.shrink(&Placement::on(NodeId::new(0), 30)), 0);
    /// assert_eq!((kmem.bytes(), runtime.root().live()), (70, 70));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shrink(&mut self, placement: &Placement) -> u64 {
        let unplaced = self.unplaced();
        // Mutation: what-is-on-no-node-is-not-freed
        let mut gone = self
            .accounts
            .unaccount(StatScope::Group, placement.unplaced());
        for (node, bytes) in placement.nodes() {
            // Mutation: a-shrink-of-two-nodes-frees-the-last
            gone += self
                .accounts
                .unaccount(self.accounts.scope(Some(node)), bytes);
        }
        self.charge_tiers(unplaced);
        // Mutation: a-part-frees-what-is-elsewhere
        self.charge.shrink(Bytes(gone))
    }

    /// Takes over the bytes of another account of the same group and item.
    ///
    /// # Errors
    ///
    /// The other account as it was, if it is of another group or another item.
    ///
    /// ```
    /// use memcg::kmem::{NodeId, Placement};
    ///
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let one = || runtime.root().precharge(10).map(|held| held.account(&Placement::on(NodeId::new(0), 10)));
    /// let mut all = one()?;
    /// let other = one()?;
    /// assert!(all.merge(other).is_ok());
    /// assert_eq!(all.bytes(), 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn merge(&mut self, mut other: Kmem) -> Result<(), Box<Kmem>> {
        if self.charge.header() != other.charge.header() || self.stat() != other.stat() {
            return Err(Box::new(other));
        }
        // Mutation: a-merge-of-accounts-takes-one-line
        std::mem::take(&mut other.accounts.lines)
            .into_iter()
            .for_each(|line| self.accounts.add(line));
        self.tiers.merge(std::mem::take(&mut other.tiers));
        drop(self.charge.merge(other.charge.take()));
        Ok(())
    }

    /// Moves the account to another group, at the same nodes. Nothing changes above their common
    /// ancestor. It may block, as [`Charge::transfer`]: in async code call it on a thread for
    /// blocking work.
    ///
    /// # Errors
    ///
    /// [`ChargeError`] as [`Charge::transfer`]; nothing has changed.
    ///
    /// ```
    /// use memcg::{Limits, StatKey};
    /// use memcg::kmem::{NodeId, Placement};
    ///
    /// let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let one = runtime.root().create("one", Limits::new())?;
    /// let other = runtime.root().create("other", Limits::new())?;
    /// let mut kmem = one.precharge(10)?.account(&Placement::on(NodeId::new(1), 10));
    /// kmem.transfer(&other)?;
    /// assert_eq!((one.live(), other.numa_stat(StatKey::KERNEL, memcg::Freshness::Exact).get(NodeId::new(1))), (0, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn transfer(&mut self, to: &Group) -> Result<(), ChargeError> {
        let from = self.group();
        if from == *to {
            return Ok(());
        }
        // As in a precharge the tiers are asked first.
        self.tiers.transfer(&from, to)?;
        if let Err(error) = self.charge.transfer(to) {
            self.tiers.take_back(&from, usize::MAX);
            // Mutation: a-refused-transfer-of-an-account-says-it-moved
            return Err(error);
        }
        // The account moves only now, so that readers see nothing of a refused transfer.
        let moved = Accounts::new(self.charge.header(), self.stat());
        let mut left = std::mem::replace(&mut self.accounts, moved);
        for account in std::mem::take(&mut left.lines) {
            // Mutation: a-transfer-leaves-its-statistics
            account.take_off(left.header, left.stat, account.bytes);
            self.accounts.account(account.scope, account.bytes);
        }
        Ok(())
    }
}

debug_figures!(Kmem, |kmem| group: kmem.group(), placement: kmem.placement());
