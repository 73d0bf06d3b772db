//! Items of the statistics: each has a name and a unit, and is built in or declared at a builder.

use std::borrow::Cow;
use std::fmt;

use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU64;
use crate::thread::cells::{StatAdded, ThreadStats};
use crate::units::Bytes;

/// The unit of an item of the statistics or of a further counter. For an item it also sets the
/// grain in which errors are given.
///
/// ```
/// use memcg::Unit;
///
/// assert_eq!([Unit::Bytes, Unit::Events, Unit::Nanoseconds].map(Unit::grain), [4_096, 1, 65_536]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Unit {
    /// Bytes; a grain is a page of 4,096.
    Bytes,
    /// Things that happened, or things that exist; a grain is 1.
    Events,
    /// Time; a grain is 65,536 ns.
    Nanoseconds,
}

impl Unit {
    /// Returns how much of the unit makes one grain. The items of a group share one error bound in
    /// grains. The counts themselves are exact to the unit.
    pub const fn grain(self) -> u64 {
        1 << self.shift()
    }

    const fn shift(self) -> u8 {
        match self {
            Unit::Bytes => 12,
            Unit::Events => 0,
            Unit::Nanoseconds => 16,
        }
    }
}

/// An amount and its unit, as errors and tables print it.
pub(crate) struct InUnit(pub(crate) u64, pub(crate) Unit);

impl fmt::Display for InUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Unit::Bytes => write!(f, "{}", Bytes(self.0)),
            Unit::Events => write!(f, "{}", self.0),
            Unit::Nanoseconds => write!(f, "{} ns", self.0),
        }
    }
}

/// The key of one item of the statistics: one of the constants, or what
/// [`RuntimeBuilder::stat`](crate::RuntimeBuilder::stat) or
/// [`CounterConfig::stat`](crate::CounterConfig::stat) has returned. There is no other way to get
/// one, so a thread that counts an event never looks up a name.
///
/// ```
/// use memcg::{Runtime, StatKey, Unit};
///
/// let mut builder = Runtime::builder();
/// let rows = builder.stat("rows_scanned", Unit::Events);
/// let runtime = builder.build()?;
/// runtime.root().stat_add(rows, 1_000);
/// runtime.root().stat_add(StatKey::ANON, 4_096);
/// let now = runtime.root().read(memcg::Freshness::Exact);
/// assert_eq!((now.get(rows), now.get(StatKey::ANON)), (1_000, 4_096));
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatKey {
    /// The builder that declared it; 0 for those built in.
    builder: u64,
    number: u8,
    shift: u8,
}

/// An item of the statistics, as a runtime has it.
///
/// ```
/// use memcg::{StatKey, Unit};
///
/// let runtime = memcg::Runtime::builder().build()?;
/// let anon = runtime.items().find(|item| item.stat == StatKey::ANON).unwrap();
/// assert_eq!((anon.name, anon.unit, anon.per_node), ("anon", Unit::Bytes, true));
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatItem<'a> {
    /// The key with which threads add to it.
    pub stat: StatKey,
    /// Its name, which is unique among the items of the runtime.
    pub name: &'a str,
    /// The item's unit.
    pub unit: Unit,
    /// True if the item counts memory that lies on nodes.
    pub per_node: bool,
}

/// Most items of a runtime, those built in included: the mask of items that a thread has written
/// has one bit for each.
pub(crate) const ITEMS_MAX: usize = 64;

/// In the place of a builder's number for the items of the ledger: no cells are made for it, and no
/// runtime knows such an item as one to add to.
const LEDGER_BUILDER: u64 = u64::MAX;

/// Names, units, and whether each counts memory that lies on nodes: in the order of the constants
/// of [`StatKey`].
const BUILT_IN: [(&str, Unit, bool); 11] = [
    ("anon", Unit::Bytes, true),
    ("file", Unit::Bytes, true),
    ("file_dirty", Unit::Bytes, true),
    ("file_writeback", Unit::Bytes, true),
    ("kernel", Unit::Bytes, true),
    ("percpu", Unit::Bytes, true),
    ("slab", Unit::Bytes, true),
    ("sock", Unit::Bytes, false),
    ("workingset_refault", Unit::Events, false),
    ("stock_refill", Unit::Events, false),
    ("stock_return", Unit::Events, false),
];

impl StatKey {
    /// Working memory: heaps, hash tables, sort buffers.
    pub const ANON: StatKey = StatKey::built_in(0);
    /// Cached data that can be read again.
    pub const FILE: StatKey = StatKey::built_in(1);
    /// Cached data that must be written before it can be dropped.
    pub const FILE_DIRTY: StatKey = StatKey::built_in(2);
    /// Cached data that is being written.
    pub const FILE_WRITEBACK: StatKey = StatKey::built_in(3);
    /// Memory for the service's own work: plans, sessions, metadata.
    pub const KERNEL: StatKey = StatKey::built_in(4);
    /// Memory that has a copy for each processor.
    pub const PERCPU: StatKey = StatKey::built_in(5);
    /// Small objects of pooled pages.
    pub const SLAB: StatKey = StatKey::built_in(6);
    /// Buffers of connections.
    pub const SOCK: StatKey = StatKey::built_in(7);
    /// Reads of data that had been evicted lately.
    pub const WORKINGSET_REFAULT: StatKey = StatKey::built_in(8);
    /// Counted by the library: charges, to any counter of the group, that took a batch into their
    /// thread's stock.
    pub const STOCK_REFILL: StatKey = StatKey::built_in(9);
    /// Counted by the library: uncharges that found their thread's stock full and gave a batch
    /// back.
    pub const STOCK_RETURN: StatKey = StatKey::built_in(10);
    /// Of the [ledger](crate::Group::ledger), as are those that follow: bytes that values and calls
    /// have charged. Only exact reads and snapshots have these items, once an allocator has charged
    /// a group. No thread adds to them: an addition counts in
    /// [`Counts::foreign_stats`](crate::figures::TreeCounts::foreign_stats) only.
    /// [`Stats::max_error_of`](crate::figures::Stats::max_error_of) says how far each may be off.
    ///
    /// ```
    /// use memcg::allocator::Owner; // what an allocator does
    /// use memcg::{Freshness, Limits, Runtime, StatKey};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new())?;
    /// let charge = query.charge(100)?;
    /// let object = query.run(|| Owner::charge(30));
    /// let now = runtime.root().read(Freshness::Exact);
    /// assert_eq!((now.get(StatKey::RESERVED), now.get(StatKey::ALLOCATED), now.local(StatKey::ALLOCATED)), (100, 30, 0));
    /// assert_eq!((now.get(StatKey::UNPAID), now.max_error_of(StatKey::ALLOCATED)), (0, 0));
    /// # unsafe { object.uncharge(30) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const RESERVED: StatKey = StatKey::of_ledger(0);
    /// Bytes of the objects that an allocator has handed out. See [`RESERVED`](Self::RESERVED).
    pub const ALLOCATED: StatKey = StatKey::of_ledger(1);
    /// Bytes that are allocated beyond what is reserved, in groups that
    /// [cover](crate::Limits::cover_allocations). See [`RESERVED`](Self::RESERVED).
    pub const UNPAID: StatKey = StatKey::of_ledger(2);
    /// Bytes of the objects that groups own which went offline. See [`RESERVED`](Self::RESERVED).
    pub const LEFT_BEHIND: StatKey = StatKey::of_ledger(3);

    /// The items of the ledger, in the order of their numbers.
    pub(crate) const LEDGER: [(&'static str, StatKey); 4] = [
        ("reserved", StatKey::RESERVED),
        ("allocated", StatKey::ALLOCATED),
        ("unpaid", StatKey::UNPAID),
        ("left_behind", StatKey::LEFT_BEHIND),
    ];

    const fn built_in(number: u8) -> StatKey {
        StatKey {
            builder: 0,
            number,
            shift: BUILT_IN[number as usize].1.shift(),
        }
    }

    const fn of_ledger(number: u8) -> StatKey {
        StatKey {
            builder: LEDGER_BUILDER,
            number,
            shift: Unit::Bytes.shift(),
        }
    }

    pub(super) fn is_of_ledger(self) -> bool {
        self.builder == LEDGER_BUILDER
    }

    #[inline(always)]
    pub(crate) fn number(self) -> usize {
        usize::from(self.number)
    }

    /// Returns the grains of a change, rounded up.
    #[inline(always)]
    pub(crate) fn grains(self, delta: i64) -> u64 {
        grains(delta, self.shift)
    }

    pub(crate) fn grain(self) -> u64 {
        1 << self.shift
    }

    /// Adds to the item in the thread's cells, if one look at the cells shows that they have it. It
    /// is built in, or the builder that made the runtime declared it after its last clone.
    #[inline(always)]
    pub(crate) fn add_to(self, cells: ThreadStats, delta: i64) -> StatAdded {
        if self.is_in(cells) {
            self.add_known_to(cells, delta, false)
        } else {
            StatAdded::Nowhere
        }
    }

    /// True if the cells are of a runtime that has the item.
    #[inline(always)]
    pub(crate) fn is_in(self, cells: ThreadStats) -> bool {
        self.builder == 0 || cells.are_of(self.builder)
    }

    /// Adds to the item in the thread's cells, which are of a runtime that has it.
    #[inline(always)]
    pub(crate) fn add_known_to(self, cells: ThreadStats, delta: i64, fenced: bool) -> StatAdded {
        cells.add(self.number(), delta, self.grains(delta), fenced)
    }

    /// The item for those who found that the runtime has it, and then add to cells of that runtime
    /// alone.
    #[inline(always)]
    pub(crate) fn known(self) -> KnownItem {
        const { assert!(ITEMS_MAX <= 1 << KnownItem::NUMBER_BITS) };
        let [events, bytes, ..] = KnownItem::SHIFTS;
        let unit = if self.shift == bytes {
            1
        } else if self.shift == events {
            0
        } else {
            2
        };
        KnownItem(self.number | unit << KnownItem::NUMBER_BITS)
    }
}

/// An item in one byte: its number among those of its runtime, and its unit. An account beside its
/// object keeps it, so that the account ends without a look at the runtime's list of items, which
/// is two lines of memory away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownItem(u8);

impl KnownItem {
    const NUMBER_BITS: u8 = 6;
    /// By unit, as in [`StatKey::known`].
    const SHIFTS: [u8; 4] = [
        Unit::Events.shift(),
        Unit::Bytes.shift(),
        Unit::Nanoseconds.shift(),
        0,
    ];

    #[inline(always)]
    pub(crate) fn number(self) -> usize {
        usize::from(self.0) % (1 << KnownItem::NUMBER_BITS)
    }

    /// As [`StatKey::add_known_to`].
    #[inline(always)]
    pub(crate) fn add_to(self, cells: ThreadStats, delta: i64) -> StatAdded {
        cells.add(self.number(), delta, grains(delta, self.shift()), false)
    }

    #[inline(always)]
    fn shift(self) -> u8 {
        KnownItem::SHIFTS[usize::from(self.0 >> KnownItem::NUMBER_BITS)]
    }
}

/// Grains of a change, rounded up, where a grain is 2^`shift`.
#[inline(always)]
fn grains(delta: i64, shift: u8) -> u64 {
    let rest = (1u64 << shift) - 1;
    (delta.unsigned_abs() + rest) >> shift
}

impl fmt::Debug for StatKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let built_in = BUILT_IN
            .get(self.number())
            .filter(|_| self.builder == 0)
            .map(|item| item.0);
        let of_ledger = StatKey::LEDGER
            .get(self.number())
            .filter(|_| self.is_of_ledger())
            .map(|item| item.0);
        match built_in.or(of_ledger) {
            Some(name) => write!(f, "StatKey({name})"),
            None => write!(f, "StatKey({} of builder {})", self.number, self.builder),
        }
    }
}

pub(crate) fn next_builder() -> u64 {
    static BUILDERS: AtomicU64 = AtomicU64::new(1);
    BUILDERS.fetch_add(1, Ordering::Relaxed)
}

/// The items of a runtime, those built in first: stat, name, unit, and whether it counts memory
/// that lies on nodes.
#[derive(Debug)]
pub(crate) struct StatItems {
    /// Distinguishes items that are declared here from those that are declared elsewhere. It is not
    /// 0.
    pub(crate) builder: u64,
    items: Vec<(StatKey, Cow<'static, str>, Unit, bool)>,
}

impl Default for StatItems {
    fn default() -> Self {
        let built_in = (0..).zip(BUILT_IN);
        let items = built_in
            .map(|(number, (name, unit, on))| (StatKey::built_in(number), name.into(), unit, on));
        StatItems {
            builder: next_builder(),
            items: items.collect(),
        }
    }
}

/// A copy knows the same items. What is declared afterwards is known to one of them alone.
impl Clone for StatItems {
    fn clone(&self) -> Self {
        StatItems {
            builder: next_builder(),
            items: self.items.clone(),
        }
    }
}

impl StatItems {
    /// Declares one more item.
    pub(crate) fn declare(&mut self, name: &str, unit: Unit, per_node: bool) -> StatKey {
        // `build` refuses more items than there may be.
        let number = u8::try_from(self.len()).unwrap_or(u8::MAX);
        let stat = StatKey {
            builder: self.builder,
            number,
            shift: unit.shift(),
        };
        self.items
            .push((stat, name.to_owned().into(), unit, per_node));
        stat
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The item of a number below [`len`](Self::len).
    #[inline]
    pub(crate) fn stat(&self, number: usize) -> StatKey {
        self.items[number].0
    }

    pub(crate) fn knows(&self, stat: StatKey) -> bool {
        self.items
            .get(stat.number())
            .is_some_and(|item| item.0 == stat)
    }

    /// The first declared name that is empty, or that an earlier item or one of the ledger has.
    pub(crate) fn bad_name(&self) -> Option<&str> {
        let names: Vec<&str> = self.iter().map(|item| item.name).collect();
        let of_ledger = |name: &str| StatKey::LEDGER.iter().any(|item| item.0 == name);
        let bad = |&at: &usize| {
            names[at].is_empty() || names[..at].contains(&names[at]) || of_ledger(names[at])
        };
        (BUILT_IN.len()..names.len()).find(bad).map(|at| names[at])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = StatItem<'_>> {
        self.items
            .iter()
            .map(|&(stat, ref name, unit, per_node)| StatItem {
                stat,
                name,
                unit,
                per_node,
            })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_rounded_up_to_grains() {
        assert_eq!(
            [0, 1, -1, 4_096, -4_097].map(|delta| StatKey::ANON.grains(delta)),
            [0, 1, 1, 1, 2]
        );
        assert_eq!(StatKey::STOCK_REFILL.grains(i64::MIN), 1 << 63);
        // The same from one byte.
        let mut items = StatItems::default();
        let time = items.declare("time", Unit::Nanoseconds, false);
        for stat in items.iter().map(|item| item.stat) {
            let known = stat.known();
            assert_eq!((known.number(), known.shift()), (stat.number(), stat.shift));
        }
        assert_eq!(time.known().shift(), 16);
        assert_eq!(StatKey::ANON.grains(i64::MIN), 1 << 51);
    }
}
