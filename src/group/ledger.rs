//! What a group has charged and allocated, beside each other.

use super::handle::Group;
use super::inspect::Inspect as _;
use crate::counter::cover;
use crate::counter::ledger::{self, LedgerSums};
use crate::hierarchy::preorder::{self, Visited};
use crate::stat::{Stat, Stats};
use crate::thread::slow_path;

/// What a group has charged, and what an allocator has handed out for it: see [`Group::ledger`].
///
/// All figures are in bytes. `live` of the group is what is reserved, uncovered and unpaid together, where no thread
/// charges or allocates meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Ledger {
    reserved: u64,
    covered: u64,
    uncovered: u64,
    covering: u64,
    unpaid: u64,
    max_error: u64,
}

impl Ledger {
    pub(super) fn new(live: u64, sums: LedgerSums) -> Ledger {
        let LedgerSums { covered, uncovered, held, unpaid, charged, error } = sums;
        let reserved = live.saturating_sub(uncovered).saturating_sub(charged);
        Ledger { reserved, covered, uncovered, covering: held, unpaid, max_error: error }
    }

    /// Bytes that values and calls have charged: each [`Charge`](crate::Charge), and charges without a guard.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes of all objects that the group owns, [covered](Self::covered) and [uncovered](Self::uncovered). What the
    /// allocator hands out below its threshold is not among them: [`small_allocated`](crate::allocator::small_allocated) shows that.
    pub fn allocated(&self) -> u64 {
        self.covered.saturating_add(self.uncovered)
    }

    /// Bytes of objects that were allocated under the [cover](crate::Charge::cover) of a charge.
    pub fn covered(&self) -> u64 {
        self.covered
    }

    /// Bytes of all other objects: the group is charged for each.
    pub fn uncovered(&self) -> u64 {
        self.uncovered
    }

    /// Bytes of all charges that cover. They are among the reserved.
    pub fn covering(&self) -> u64 {
        self.covering
    }

    /// Bytes that are covered and that no covering charge pays for: the group is charged for them by force. While another
    /// thread compares the same cover, that charge follows when that thread is done.
    pub fn unpaid(&self) -> u64 {
        self.unpaid
    }

    /// How far covered, uncovered, covering and unpaid bytes may be off, each: by what threads have allocated or freed, and
    /// covering charges have left, during the call. 0 where there is nothing of that. Within it, the figures of each group are
    /// those of one moment of the call. [`reserved`](Self::reserved) is as exact as [`Group::live`].
    pub fn max_error(&self) -> u64 {
        self.max_error
    }

    /// The figures that statistics have as items, each with the item's name.
    pub(super) fn items(self) -> impl Iterator<Item = (&'static str, Stat, u64)> {
        let figures = [self.reserved, self.allocated(), self.covered, self.uncovered, self.unpaid];
        Stat::LEDGER.into_iter().zip(figures).map(|((name, stat), figure)| (name, stat, figure))
    }

    /// Whether an allocator has handed out anything.
    pub(super) fn is_empty(&self) -> bool {
        self.covered == 0 && self.uncovered == 0 && self.unpaid == 0
    }
}

/// # What was charged, and what was allocated
impl Group {
    /// Returns what this group and the groups below it have charged, beside what they have allocated. Without an
    /// allocator that charges groups all of it is reserved.
    ///
    /// The call first has each cover below compared with its charges. Then it visits each group below, and for each the
    /// counts of each thread, twice: [`Ledger::max_error`] is what moved between. It waits for no other thread's comparison,
    /// and holds no lock over more than a few groups. What a group has that goes offline during the call may be missing.
    ///
    /// ```
    /// use memcg::allocator::Owner; // what an allocator does
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new())?;
    /// let charge = query.try_charge(100)?;
    /// let objects = [query.run(|| Owner::charge(30)), charge.cover(|| Owner::charge(350))];
    /// let ledger = runtime.root().ledger();
    /// assert_eq!((ledger.reserved(), ledger.allocated(), ledger.covered(), ledger.uncovered()), (100, 380, 350, 30));
    /// assert_eq!((ledger.unpaid(), ledger.max_error(), query.live()), (250, 0, 380), "allocated 350, charged 100");
    /// # let [owned, covered] = objects;
    /// # unsafe { (owned.uncharge(30), covered.uncharge(350)) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ledger(&self) -> Ledger {
        cover::look_below(Some(self.first()));
        self.read_ledger()
    }

    /// The ledger without a look before.
    fn read_ledger(&self) -> Ledger {
        let of = |visited: Visited<'_>| Ledger::new(visited.live, visited.ledger);
        preorder::read(self.first(), 0, of).pop().unwrap_or_default()
    }

    fn read_ledger_local(&self) -> Ledger {
        Ledger::new(self.live_local(), preorder::ledger_local(self.first()))
    }

    /// Adds the ledger to an exact read, which has looked at all covers. Where no allocator charges groups there is none.
    /// Inside another slow path the thread may hold the locks that it takes.
    pub(super) fn with_ledger(&self, stats: Stats) -> Stats {
        if !ledger::any() || slow_path::is_running() {
            return stats;
        }
        let (subtree, local) = (self.read_ledger(), self.read_ledger_local());
        let items = subtree.items().zip(local.items());
        let items = items.map(|((_, stat, subtree), (_, _, local))| (stat, [subtree, local]));
        stats.with_ledger(items, subtree.max_error.max(local.max_error))
    }

    /// Returns the [ledger](Self::ledger) of this group without the groups below that are online: of what is in
    /// [`live_local`](Self::live_local). It costs what that costs, and visits the counts of each thread.
    ///
    /// ```
    /// use memcg::allocator::Owner; // what an allocator does
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let query = acme.create("q17", Limits::new())?;
    /// let (ours, theirs) = (acme.try_charge(100)?, query.try_charge(10)?);
    /// let object = acme.run(|| Owner::charge(30));
    /// let ledger = acme.ledger_local();
    /// assert_eq!((ledger.reserved(), ledger.allocated(), acme.ledger().reserved()), (100, 30, 110));
    /// # unsafe { object.uncharge(30) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ledger_local(&self) -> Ledger {
        cover::look_below(Some(self.first()));
        self.read_ledger_local()
    }

    /// Returns the bytes of the objects that this group owns, without those of any group below, also of one that went
    /// offline. It allocates nothing.
    pub fn allocated_local(&self) -> u64 {
        let LedgerSums { covered, uncovered, .. } = ledger::own(self.first());
        covered.saturating_add(uncovered)
    }
}
