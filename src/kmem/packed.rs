//! An account in few words beside its object.
//!
//! A [`Kmem`] is a value of two dozen words. Where objects are small and many, a few words beside
//! each leave out what is known without it. The nodes tell the tiers, and the parts on the nodes
//! tell all bytes. The words keep the group and the item, and for each part its bytes, its node,
//! and how far above the group it is accounted.

use std::mem::ManuallyDrop;

use super::account::Kmem;
use super::engine::{has_statistics, numa};
use super::lines::{AccountLine, Accounts, node_of, scope_of};
use super::precharge::Precharge;
use super::tiers::Tiers;
use crate::counter::object::HeaderRef;
use crate::group::{Charge, Group};
use crate::hierarchy::node_stats::{self, AccountPlace, NOT_COUNTED};
use crate::hierarchy::stats;
use crate::numa::NodeId;
use crate::stat::StatKey;
use crate::stat::item::KnownItem;
use crate::stat::published::StatScope;
use crate::sync::model_failed;
use crate::units::Bytes;

/// No node: the group's own statistics.
const NO_NODE: u8 = u8::MAX;

/// A [`Kmem`] of one object on one node, in two words, or on as many as `NODES`, in a few more: for
/// owners that keep an account beside each of many small objects. Its drop gives back what the drop
/// of the `Kmem` would.
///
/// ```
/// use memcg::kmem::{NodeId, PackedKmem, Placement};
///
/// let runtime = memcg::Runtime::builder().nodes(2).build()?;
/// let kmem = runtime.root().precharge(100)?.account(&Placement::on(NodeId::new(1), 100));
/// let beside_its_object: PackedKmem = kmem.pack().expect("on one node");
/// assert_eq!([size_of::<Option<PackedKmem>>(), size_of::<Option<PackedKmem<4>>>()], [16, 40]);
/// let mut kmem = beside_its_object.unpack(); // the object has moved
/// kmem.follow(Some(NodeId::new(1)), Some(NodeId::new(0)));
/// assert_eq!(kmem.placement(), Placement::on(NodeId::new(0), 100));
/// drop(kmem.pack::<1>());
/// assert_eq!(runtime.root().live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once it gives the bytes back at once, and `let _ =` drops it at once: bind it to a name, as in `let _held =`"]
pub struct PackedKmem<const NODES: usize = 1> {
    header: HeaderRef,
    /// The parts, by place in these three. The first of no bytes ends them.
    bytes: [u32; NODES],
    /// [`NOT_COUNTED`] for what is accounted nowhere.
    above: [AccountPlace; NODES],
    node: [u8; NODES],
    item: KnownItem,
    /// The group's runtime has tiers. Kept here, because most accounts end without another look at
    /// the group's tree.
    has_tiers: bool,
}

/// # Accounts beside their objects
impl Precharge {
    /// [`account_as`](Self::account_as) in the words of a [`PackedKmem`], for a container that calls
    /// this while it holds a lock of its own. It never blocks: it takes no lock, allocates nothing,
    /// and runs no foreign code. It adds to this thread's own figures of the group and of its
    /// memory on these nodes, and now and then announces what they have come to.
    ///
    /// `parts` are the nodes where the memory lies, `None` for memory on no node, with the bytes
    /// there. Together they are all bytes of the precharge.
    ///
    /// # Errors
    ///
    /// The precharge as it was, and nothing is accounted: this thread has not accounted the group's
    /// memory there yet; a [tier](crate::RuntimeBuilder::tier) has to be charged; the parts are
    /// more than `NODES`, more or fewer bytes, or 4 GiB or more. Then let the lock go and take the
    /// long way: [`account_as`](Self::account_as), and [`pack`](Kmem::pack).
    ///
    /// ```
    /// use memcg::{Bytes, StatKey};
    /// use memcg::kmem::{NodeId, PackedKmem, Placement};
    ///
    /// let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let root = runtime.root();
    /// let parts = [(Some(NodeId::new(0)), Bytes(60)), (Some(NodeId::new(1)), Bytes(40))];
    /// let made = || root.precharge(100).unwrap().try_account_as::<2>(StatKey::PERCPU, &parts);
    /// let precharge = made().expect_err("the first on these nodes");
    /// let mut placement = Placement::new();
    /// parts.map(|(node, bytes)| placement.add(node, bytes));
    /// let first = precharge.account_as(StatKey::PERCPU, &placement);
    ///
    /// let second = made().expect("the second");
    /// let now = || root.numa_stat(StatKey::PERCPU, memcg::Freshness::Exact).to_string();
    /// assert_eq!((now(), second.group()), ("N0=120 N1=80".to_owned(), root.clone()));
    /// drop((first, second));
    /// assert_eq!(now(), "N0=0 N1=0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn try_account_as<const NODES: usize>(
        self,
        stat: StatKey,
        parts: &[(Option<NodeId>, Bytes)],
    ) -> Result<PackedKmem<NODES>, Precharge> {
        let header = self.charge.header();
        let numa = numa(header.counter());
        let mut bytes = [0; NODES];
        let mut node = [NO_NODE; NODES];
        let mut at = [(StatScope::Group, 0); NODES];
        let mut many = 0;
        let mut all = 0;
        for &(of, Bytes(part)) in parts {
            if part == 0 {
                continue;
            }
            let Some(place) = at.get_mut(many).filter(|_| part <= u32::MAX.into()) else {
                return Err(self);
            };
            let scope = scope_of(of, &numa.topology);
            *place = (scope, part.cast_signed());
            bytes[many] = part as u32;
            node[many] = byte_of(scope);
            many += 1;
            all += part;
        }
        if all == 0
            || all != self.charge.bytes()
            || !numa.tiers.is_empty()
            || !node_stats::account_at_hand::<NODES>(header, stat, &at[..many])
        {
            return Err(self);
        }
        // From here on the words have what the guard had, and of no tier it had anything.
        std::mem::forget(self);
        Ok(PackedKmem {
            header,
            bytes,
            above: [0; NODES],
            node,
            // Cells that take the item are of a runtime that knows it.
            item: stat.known(),
            has_tiers: false,
        })
    }
}

impl Kmem {
    /// Makes a few words of the account of an object: all of its bytes are on one node, or all on
    /// none, or they are on at most `NODES` of these. A promise to a
    /// [tier](crate::RuntimeBuilder::tier) for bytes on no node ends here. Costs no charge and no
    /// account.
    ///
    /// # Errors
    ///
    /// The account as it was: it has no bytes, or some in more places than `NODES`, or 4 GiB or
    /// more in one; or its item is none of its runtime's.
    ///
    /// ```
    /// use memcg::kmem::{NodeId, Placement};
    ///
    /// let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let mut placement = Placement::on(NodeId::new(0), 50);
    /// placement.add(Some(NodeId::new(1)), 50);
    /// let kmem = runtime.root().precharge(100)?.account(&placement).pack::<1>().unwrap_err();
    /// assert_eq!((kmem.placement(), runtime.root().live()), (placement, 100));
    /// let on_two = kmem.pack::<2>().unwrap();
    /// assert_eq!(on_two.unpack().bytes(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn pack<const NODES: usize>(self) -> Result<PackedKmem<NODES>, Box<Kmem>> {
        let header = self.charge.header();
        let lines = &self.accounts.lines;
        let all: u64 = lines.iter().map(|line| line.bytes).sum();
        // The number of an item that the runtime knows is enough to name it.
        let fits = (1..=NODES).contains(&lines.len())
            && all == self.bytes()
            && lines.iter().all(|line| line.bytes <= u32::MAX.into())
            && stats::coordinator(header.counter())
                .items
                .knows(self.stat());
        if !fits {
            return Err(Box::new(self));
        }
        let line = |part: usize| lines.get(part);
        let packed = PackedKmem {
            header,
            bytes: std::array::from_fn(|part| line(part).map_or(0, |line| line.bytes as u32)),
            above: std::array::from_fn(|part| {
                line(part).map_or(0, |line| line.above.unwrap_or(NOT_COUNTED))
            }),
            node: std::array::from_fn(|part| {
                line(part).map_or(NO_NODE, |line| byte_of(line.scope))
            }),
            item: self.stat().known(),
            has_tiers: !numa(header.counter()).tiers.is_empty(),
        };
        let mut kmem = ManuallyDrop::new(self);
        std::mem::take(&mut kmem.tiers).forget();
        // The lines may be on the heap.
        drop(std::mem::take(&mut kmem.accounts.lines));
        Ok(packed)
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
        // A group that is offline makes no statistics any more: what moves to a node where it has
        // none would be counted further up. So it stays with the node where the group has some.
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
        self.charge_tiers(unplaced);
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

/// A topology has fewer nodes than a byte has values.
#[inline(always)]
fn byte_of(scope: StatScope) -> u8 {
    match scope {
        StatScope::On(node) => node as u8,
        StatScope::Group => NO_NODE,
    }
}

#[inline(always)]
fn of_byte(node: u8) -> StatScope {
    if node == NO_NODE {
        StatScope::Group
    } else {
        StatScope::On(node.into())
    }
}

impl<const NODES: usize> PackedKmem<NODES> {
    /// Turns the account into a [`Kmem`] again.
    #[inline]
    pub fn unpack(self) -> Kmem {
        ManuallyDrop::new(self).kmem()
    }

    /// Returns the group that is charged, as a handle of its own.
    pub fn group(&self) -> Group {
        Group::pinned(self.header.counter().first())
    }

    #[inline(always)]
    fn lines(&self) -> impl Iterator<Item = AccountLine> + Clone {
        let line = |part: usize| AccountLine {
            bytes: self.bytes[part].into(),
            scope: of_byte(self.node[part]),
            above: Some(self.above[part]).filter(|&above| above != NOT_COUNTED),
        };
        (0..NODES).map(line).take_while(|line| line.bytes > 0)
    }

    #[inline(always)]
    fn all_bytes(&self) -> u64 {
        self.bytes.iter().copied().map(u64::from).sum()
    }

    fn stat(&self) -> StatKey {
        stats::coordinator(self.header.counter())
            .items
            .stat(self.item.number())
    }

    /// Ends an account that is in tiers, too, or of which a part is accounted above the group or
    /// nowhere. The caller gives up these words.
    #[cold]
    fn end_slow(&self) {
        drop(self.kmem());
    }

    /// The account as a guard. The caller gives up these words.
    #[inline]
    fn kmem(&self) -> Kmem {
        let header = self.header;
        let numa = numa(header.counter());
        let mut tiers = Tiers::default();
        if !numa.tiers.is_empty() {
            let placed =
                |line: AccountLine| Some((node_of(line.scope, &numa.topology)?, line.bytes));
            tiers = Tiers::of_parts(header, self.lines().filter_map(placed));
        }
        Kmem {
            accounts: Accounts {
                header,
                stat: self.stat(),
                lines: self.lines().collect(),
            },
            charge: Charge::new(header, self.all_bytes()),
            tiers,
        }
    }
}

impl<const NODES: usize> Drop for PackedKmem<NODES> {
    #[inline]
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        if self.has_tiers || self.above != [0; NODES] {
            return self.end_slow();
        }
        node_stats::unaccount_known::<NODES>(self.header, self.item, |part| {
            let bytes = *self.bytes.get(part)?;
            (bytes > 0).then(|| (of_byte(self.node[part]), bytes.into()))
        });
        let all = self.all_bytes();
        // As in the drop of a `Kmem`: the charge ends after the account, because it keeps the group.
        drop(Charge::new(self.header, all));
    }
}

impl<const NODES: usize> std::fmt::Debug for PackedKmem<NODES> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedKmem")
            .field("bytes", &self.all_bytes())
            .finish()
    }
}
