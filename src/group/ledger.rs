//! A group's charged bytes and its allocated bytes, beside each other.

use super::handle::Group;
use crate::counter::ledger::{self, LedgerSums};
use crate::counter::object::Counter;
use crate::counter::spare_word::Cover;
use crate::counter::{children, credit};
use crate::hierarchy::preorder::{self, VisitedGroup};
use crate::stat::{StatKey, Stats};
use crate::thread::slow_path;

/// A group's charges, and the objects that an allocator has handed out for it: see
/// [`Group::ledger`].
///
/// All figures are in bytes. As long as no thread charges or allocates, `live` of the group is what
/// is reserved and what is allocated together, or, if the group
/// [covers](crate::Limits::cover_allocations), the larger of the two. The getters read the value,
/// and cost nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Ledger {
    reserved: u64,
    allocated: u64,
    unpaid: u64,
    left_behind: u64,
    max_error: u64,
}

impl Ledger {
    /// The ledger of a group with all below it.
    pub(super) fn of(group: &Counter, live: u64, sums: LedgerSums) -> Ledger {
        let reserved = match group.cover() {
            Some(cover) => cover.reserved(),
            None => live
                .saturating_add(sums.paid)
                .saturating_sub(sums.allocated),
        };
        Ledger::new(reserved, sums)
    }

    fn new(
        reserved: u64,
        LedgerSums {
            allocated,
            unpaid,
            left_behind,
            error,
            ..
        }: LedgerSums,
    ) -> Ledger {
        Ledger {
            reserved,
            allocated,
            unpaid,
            left_behind,
            max_error: error,
        }
    }

    /// Returns the bytes that the program itself has charged: by a [`Charge`](crate::Charge), or
    /// without a guard.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns the bytes of all objects that the group owns. Objects that are smaller than the
    /// allocator's threshold are not among them.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Returns the bytes that groups which [cover](crate::Limits::cover_allocations) have allocated
    /// beyond what they have reserved. They are charged by force.
    pub fn unpaid(&self) -> u64 {
        self.unpaid
    }

    /// Returns the bytes of objects that belong to no live task: the part of
    /// [`allocated`](Self::allocated) that is owned by groups below which went offline, as [a
    /// scope](Group::scope) does when its task ends. For a group that is offline itself it is all
    /// of it. Such bytes count here until they are freed. A sum that grows from task to task is a
    /// leak, a cache that the tasks share, or lazy state of a library that the first task has paid
    /// for: make that in [`unowned`](crate::allocator::unowned).
    ///
    /// ```
    /// use memcg::allocator::Owner; // what an allocator does
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let tenant = runtime.root().create("acme", Limits::new())?;
    /// let task = tenant.scope(17, Limits::new())?;
    /// let table = task.run(|| Owner::charge(4_096)); // a table of a library, which stays
    /// assert_eq!(tenant.ledger().left_behind(), 0);
    /// drop(task);
    /// assert_eq!((tenant.ledger().left_behind(), tenant.live()), (4_096, 4_096));
    /// # unsafe { table.uncharge(4_096) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn left_behind(&self) -> u64 {
        self.left_behind
    }

    /// Returns by how much each of the allocated, unpaid and left-behind bytes may be off: the
    /// bytes that threads have allocated or freed during the call. [`reserved`](Self::reserved) is
    /// as exact as [`Group::live`]; credit that a thread takes back between the reading of two groups
    /// may be missing.
    pub fn max_error(&self) -> u64 {
        self.max_error
    }

    /// The figures that statistics have as items, each with the item's name.
    pub(super) fn items(self) -> impl Iterator<Item = (&'static str, StatKey, u64)> {
        let figures = [self.reserved, self.allocated, self.unpaid, self.left_behind];
        StatKey::LEDGER
            .into_iter()
            .zip(figures)
            .map(|((name, stat), figure)| (name, stat, figure))
    }

    /// True if an allocator has handed out nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.allocated == 0 && self.unpaid == 0
    }
}

/// # What was charged, and what was allocated
impl Group {
    /// Returns what this group and the groups below it have charged, beside what an allocator has
    /// handed out for them. Without an allocator that charges groups, all of it is reserved.
    ///
    /// The call visits each group below, and for each the counts of each thread, twice:
    /// [`Ledger::max_error`] is what moved between. It holds no lock over more than a few groups.
    /// What belongs to a group that goes offline during the call may be missing.
    ///
    /// ```
    /// use memcg::allocator::Owner; // what an allocator does
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new().cover_allocations())?;
    /// let charge = query.charge(100)?;
    /// let object = query.run(|| Owner::charge(350));
    /// let ledger = runtime.root().ledger();
    /// assert_eq!((ledger.reserved(), ledger.allocated(), ledger.unpaid()), (100, 350, 250));
    /// assert_eq!((ledger.max_error(), query.live()), (0, 350), "allocated 350, charged 100");
    /// # unsafe { object.uncharge(350) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ledger(&self) -> Ledger {
        let of =
            |visited: VisitedGroup<'_>| Ledger::of(visited.group, visited.live, visited.ledger);
        preorder::read(self.first(), 0, of)
            .pop()
            .unwrap_or_default()
    }

    /// Adds the ledger to an exact read. Where no allocator charges groups there is none. Inside
    /// another slow path the thread may hold the locks that it takes.
    pub(super) fn add_ledger(&self, stats: &mut Stats) {
        if !ledger::any() || slow_path::is_running() {
            return;
        }
        let subtree = self.ledger();
        let local = self.ledger_alone();
        let items = subtree.items().zip(local.items());
        let items = items.map(|((_, stat, subtree), (_, _, local))| (stat, [subtree, local]));
        stats.add_ledger(items, subtree.max_error.max(local.max_error));
    }

    /// The ledger without the groups below that are online.
    pub(super) fn ledger_alone(&self) -> Ledger {
        let sums = preorder::ledger_local(self.first());
        match self.first().cover() {
            None => Ledger::of(self.first(), credit::live_local(self.first()), sums),
            Some(cover) => {
                let mut reserved = cover.reserved();
                // Mutation: of-two-that-cover-one-is-taken-off
                children::each(self.first(), |child| {
                    reserved = reserved.saturating_sub(child.cover().map_or(0, Cover::reserved));
                });
                Ledger::new(reserved, sums.compared_with(reserved))
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::allocator::Owner;
    use crate::{Bytes, Group, Limits, Runtime};

    /// What an allocator leaves to the next call is done by the read, and not between its parts.
    #[test]
    #[allow(unsafe_code)]
    fn live_bytes_are_exact_where_a_drain_is_due() {
        let builder = Runtime::builder().batch(Bytes(1_024)).adaptive(false);
        let runtime = builder.build().unwrap();
        let limits = Limits::new().max(1_000).cover_allocations();
        let top = runtime.root().create("top", limits).unwrap();
        let below = top.create("below", Limits::new()).unwrap();
        let owned = |group: &Group, bytes| (group.run(|| Owner::charge(bytes)), bytes);
        // SAFETY: charged, for as many bytes.
        let free = |(owner, bytes): (Owner, usize)| unsafe { owner.uncharge(bytes) };
        let (large, kept) = (owned(&top, 270), owned(&top, 186));
        free(large);
        let (small, other) = (owned(&below, 56), owned(&top, 40));
        let mut reserved = vec![below.charge(83).unwrap()];
        free(small);
        let mut objects = vec![kept, owned(&below, 61)];
        reserved.push(below.charge(117).unwrap());
        free(other);
        let mut live = 61;
        for bytes in [150, 95, 226] {
            objects.push(owned(&below, bytes));
            live += bytes as u64;
            // The last one is above max with the credit of both groups.
            assert_eq!(below.live(), live.max(200), "after {bytes} more");
        }
        drop(reserved);
        objects.into_iter().for_each(free);
        assert_eq!(top.live(), 0);
    }

    /// Stocks of two groups below one that covers have their credit in its usage.
    #[test]
    #[allow(unsafe_code)]
    fn credit_below_a_cover_adds_up() {
        let runtime = Runtime::builder()
            .batch(Bytes::kib(64))
            .adaptive(false)
            .build()
            .unwrap();
        let root = runtime.root();
        let top = root
            .create("top", Limits::new().cover_allocations())
            .unwrap();
        for (number, name) in [1, 2].into_iter().zip(["a", "b"]) {
            let group = top.create(name, Limits::new()).unwrap();
            let owner = group.run(|| Owner::charge(1_000));
            assert_eq!(
                (root.memory().usage(), root.memory().stocked()),
                (number << 16, (number << 16) - 1_000)
            );
            // SAFETY: it was charged just now.
            unsafe { owner.uncharge(1_000) };
        }
    }
}
