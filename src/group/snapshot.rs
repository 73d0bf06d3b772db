//! The groups of a subtree with their figures, as rows.

pub(super) mod table;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use self::table::Table;
use super::handle::Group;
use super::ledger::Ledger;
use super::pressure::GroupPressure;
use crate::counter::{ledger, object};
use crate::hierarchy::declared_counters::{CounterDecl, DeclaredCounters};
use crate::hierarchy::preorder::{self, VisitedGroup};
use crate::hierarchy::{events, group_tree, importance, limits, stats};
use crate::pressure::{line, pressure_levels};
use crate::reclaim::shares;
use crate::stat::reading::Freshness;
use crate::stat::visits::UnlistPolicy;
use crate::stat::{StatKey, Unit};
use crate::state::events::Event;
use crate::state::limits::LimitKind;
use crate::state::pressure_level::PressureLevel;
use crate::sync::barrier::BarrierState;
use crate::sync::clock;

/// The groups of a subtree with their figures: parents before their children, siblings in the order
/// of their names (numbers before texts). It prints as a table of at most 80 columns with one line
/// for each group and rounded sizes. A limit, a share or an importance has a column where a group
/// has one; the least important columns are left out where the table would be wider.
///
/// [`Group::snapshot`] and [`Runtime::snapshot`](crate::Runtime::snapshot) take one.
///
/// The column of events has those of the group and the groups below it that are not zero: `max`, a
/// charge did not fit; `oom`, reclaim did not make it fit, so that it was refused or a group
/// cancelled (see [`Event`]).
///
/// # Exactness
///
/// No lock is held over more than a few groups, so groups are created, charged and taken offline
/// meanwhile.
///
/// * A group that is online through the whole call has one row. One that is created or goes offline
///   meanwhile has one or none. No path is in two rows, and no row is without the row of its
///   parent.
/// * All figures of one row are of one group, read in one step, one after the other. Each is a
///   value that the group had then. [`live`](SnapshotRow::live) and [`own`](SnapshotRow::own) are
///   exact as long as no thread charges, and otherwise estimates;
///   [`stocked_bound`](SnapshotRow::stocked_bound) says how far live may be off.
/// * In each row, whatever other threads do, live is at most usage, own is at most live, and forced
///   is usage minus max. The reserved and the allocated bytes of the [ledger](SnapshotRow::ledger)
///   together are live, as long as no thread allocates meanwhile and no group covers.
/// * [Pressure](SnapshotRow::pressure) is as of a moment within the call.
/// * Rows are read at different times, so a child may show more than its parent while threads
///   charge. If none does, all rows agree.
///
/// # Cost
///
/// Less than half a microsecond for each group, and more if the groups are in no cache; the `group`
/// bench takes snapshots of 10, 10,000 and a million. No charge waits for one. A thread that
/// creates a group waits for a lock that a snapshot holds while it looks at a few children.
///
/// ```
/// use memcg::{Limit, Limits, Runtime};
///
/// let runtime = Runtime::builder().max(Limit::gib(2)).build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(Limit::mib(512)).high(Limit::mib(500)))?;
/// let query = acme.create("q17", Limits::new())?;
/// let _held = query.charge(128 << 20)?;
/// assert!(query.charge(512 << 20).is_err());
/// let expected = "\
/// path          live  %max      max     high  events
/// /          128 MiB    6%    2 GiB        -  max 1, oom 1
/// /acme      128 MiB   25%  512 MiB  500 MiB  max 1, oom 1
/// /acme/q17  128 MiB     -        -        -
/// ";
/// assert_eq!(runtime.snapshot().to_string(), expected);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct Snapshot {
    rows: Vec<SnapshotRow>,
    /// The items of the runtime.
    #[cfg_attr(feature = "serde", serde(skip))]
    items: Vec<(String, Unit)>,
    /// The counters beside memory.
    #[cfg_attr(feature = "serde", serde(skip))]
    counters: Vec<(String, Unit)>,
    #[cfg_attr(feature = "serde", serde(skip))]
    barrier: BarrierState,
}

/// One group in a [`Snapshot`]. All figures but [`own`](Self::own) are of the group with all groups
/// below it.
///
/// ```
/// let runtime = memcg::Runtime::builder().max(100).build()?;
/// let _held = runtime.root().charge(10)?;
/// let snapshot = runtime.snapshot();
/// let row = &snapshot.rows()[0];
/// assert_eq!((row.path.as_str(), row.depth, row.live, row.max), ("/", 0, 10, 100));
/// assert_eq!((row.percent_of_max, row.waiting, row.events().count()), (Some(10), 0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SnapshotRow {
    /// The path of the group.
    pub path: String,
    /// How many levels the group is below the one of which the snapshot was taken.
    pub depth: usize,
    /// Bytes that charges hold.
    pub live: u64,
    /// Live bytes and credit, which is what limits are compared with.
    pub usage: u64,
    /// Live bytes of this group alone, with those of groups below that went offline, but without
    /// those of the children that are online. `None` if the children lie below the depth of the
    /// snapshot.
    pub own: Option<u64>,
    /// The published bound on the credit in usage, in bytes: see
    /// [`stocked_bound`](crate::PageCounter::stocked_bound). Live bytes were between usage minus
    /// this and usage, apart from stocks that opened or closed meanwhile.
    pub stocked_bound: u64,
    /// The highest usage, in bytes, credit included: no more was ever live.
    pub peak: u64,
    /// The max in bytes; `u64::MAX` where there is none.
    #[cfg_attr(feature = "serde", serde(serialize_with = "limit"))]
    pub max: u64,
    /// The high in bytes; `u64::MAX` where there is none.
    #[cfg_attr(feature = "serde", serde(serialize_with = "limit"))]
    pub high: u64,
    /// The usage in bytes above which reclaim asks this group first; `u64::MAX` where there is
    /// none.
    #[cfg_attr(feature = "serde", serde(serialize_with = "limit"))]
    pub soft: u64,
    /// The bytes that reclaim touches last; 0 where none are protected, `u64::MAX` where all are.
    pub low: u64,
    /// The bytes that reclaim never touches; 0 where none are protected, `u64::MAX` where all are.
    pub min: u64,
    /// The group's own [share](crate::Limits::share); 0 where it has none.
    pub share: u32,
    /// The group's own [importance](crate::Limits::importance); `None` where it has that of the
    /// group above.
    pub importance: Option<u8>,
    /// Bytes above max: see [`Group::forced`].
    pub forced: u64,
    /// Live bytes in per cent of the group's own max, rounded down; `None` if there is no max, or a
    /// max of 0.
    pub percent_of_max: Option<u64>,
    /// Charges that wait in line at the group.
    pub waiting: usize,
    /// Charges refused because this group was full.
    pub refused: u64,
    #[cfg_attr(feature = "serde", serde(serialize_with = "by_name"))]
    events: Vec<(Event, u64)>,
    /// How long chargers of the group, and of groups below, stood still for memory: see
    /// [`Group::pressure`].
    pub pressure: GroupPressure,
    /// For the root: the bytes that its max leaves out because no group is charged for them. See
    /// [`show_uncharged`](crate::inspect::GroupInspector::show_uncharged).
    pub uncharged: u64,
    /// The pressure level of the group: see [`Group::pressure_level`].
    pub pressure_level: PressureLevel,
    /// What was charged and what was allocated: the parts of [`live`](Self::live).
    pub ledger: Ledger,
    /// Items of the statistics that are not 0, by name. Those of the
    /// [ledger](crate::StatKey::RESERVED) are among them, once an allocator has charged a group.
    pub stats: BTreeMap<String, i64>,
    /// The most that may be missing from each item, of all that was written before the call, in
    /// grains of its unit ([`Unit::grain`]): 0, unless an allocator takes the snapshot inside
    /// another call of this crate. For the items of the ledger see [`Ledger::max_error`].
    pub stats_max_error: u64,
    /// The counters beside memory, by name.
    pub counters: BTreeMap<String, CounterRow>,
}

/// One counter beside memory of a group in a [`Snapshot`], with all groups below it. Amounts are in
/// the counter's unit.
///
/// ```
/// let mut builder = memcg::Runtime::builder();
/// let spill = builder.counter("spill", memcg::Unit::Bytes);
/// let runtime = builder.build()?;
/// runtime.root().counter(spill)?.set_max(1_000)?;
/// let _held = runtime.root().charge_set(&[(spill, 10)])?;
/// let snapshot = runtime.snapshot();
/// let row = snapshot.rows()[0].counters["spill"];
/// assert!((10..=10 + row.stocked_bound).contains(&row.usage));
/// assert_eq!((row.max, row.refused), (1_000, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CounterRow {
    /// Live units and credit, which is what the max is compared with.
    pub usage: u64,
    /// The published bound on the credit in usage.
    pub stocked_bound: u64,
    /// The highest usage, credit included: no more was ever live.
    pub peak: u64,
    /// The max; `u64::MAX` where there is none.
    #[cfg_attr(feature = "serde", serde(serialize_with = "limit"))]
    pub max: u64,
    /// Charges refused because this counter was full.
    pub refused: u64,
}

impl Group {
    /// Returns this group and the groups below it with their figures, down to `depth` levels below:
    /// 0 is this group alone, [`usize::MAX`] all of them. The figures of a group on the last level
    /// still include all groups below it.
    ///
    /// The call flushes the statistics of the subtree and allocates. For each group it takes two
    /// locks for a moment, and looks at the slot of each thread that has charged it. Groups below
    /// the depth cost that, too, if they may have credit. It holds no lock over more than a few
    /// groups: see [`Snapshot`] for what is consistent.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let query = acme.create("q17", Limits::new())?;
    /// let _held = query.charge(1_024)?;
    /// let paths = |depth| acme.snapshot(depth).rows().iter().map(|row| row.path.clone()).collect::<Vec<_>>();
    /// assert_eq!((paths(0), paths(1)), (vec!["/acme".into()], vec!["/acme".into(), "/acme/q17".into()]));
    /// assert_eq!(acme.snapshot(0).rows()[0].live, 1_024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn snapshot(&self, depth: usize) -> Snapshot {
        let top = self.first();
        shares::look(top);
        // A snapshot only reads, so it runs no barrier: this flush unlists no cells.
        let is_flushed = stats::flush(top, UnlistPolicy::Never).is_some();
        let items: Vec<_> = stats::coordinator(top).items.iter().collect();
        let of_ledger = if ledger::any() {
            &StatKey::LEDGER[..]
        } else {
            &[]
        };
        let further = &group_tree::of(top).further;
        let now = clock::now();
        let rows = preorder::read(top, depth, |visited| {
            let read = stats::read(visited.group, Freshness::Stale);
            let max_error = if is_flushed { 0 } else { read.max_error() };
            let ledger = Ledger::of(visited.group, visited.live, visited.ledger);
            let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
            let written = items
                .iter()
                .filter(|_| !read.is_empty())
                .map(|item| (item.name, read.get(item.stat)));
            let allocated = ledger
                .items()
                .take(of_ledger.len())
                .map(|(name, _, figure)| (name, signed(figure)));
            let figures = written.chain(allocated).filter(|&(_, figure)| figure != 0);
            let stats = figures
                .map(|(name, figure)| (name.to_string(), figure))
                .collect();
            SnapshotRow::read(visited, further, now, ledger, stats, max_error)
        });
        let in_bytes = of_ledger.iter().map(|&(name, _)| (name, Unit::Bytes));
        let names = items
            .iter()
            .map(|item| (item.name, item.unit))
            .chain(in_bytes);
        Snapshot {
            rows,
            items: names.map(|(name, unit)| (name.to_string(), unit)).collect(),
            counters: further
                .iter()
                .map(|counter| (counter.name.to_string(), counter.unit))
                .collect(),
            barrier: top.tree().barrier.state(),
        }
    }
}

// === impl SnapshotRow ===

impl SnapshotRow {
    /// Its pressure is that of `now`, or of a moment since.
    #[inline]
    fn read(
        visited: VisitedGroup<'_>,
        further: &DeclaredCounters,
        now: Instant,
        ledger: Ledger,
        stats: BTreeMap<String, i64>,
        stats_max_error: u64,
    ) -> SnapshotRow {
        let group = &**visited.group;
        let live = visited.live;
        let max = group.max();
        let named =
            |(decl, counter): (&CounterDecl, _)| (decl.name.to_string(), CounterRow::read(counter));
        // Most groups never have an event.
        let mut events = Vec::new();
        if events::counts(group).is_some() {
            let counted = Event::ALL
                .into_iter()
                .map(|event| (event, events::read(group, event, false)));
            events.extend(counted.filter(|&(_, count)| count > 0));
        }
        SnapshotRow {
            path: visited.path,
            depth: visited.depth,
            live,
            usage: visited.usage,
            own: visited.own,
            stocked_bound: visited.bound.min(visited.usage),
            peak: group.peaks().ever(),
            max,
            high: limits::value(group, LimitKind::High),
            soft: limits::value(group, LimitKind::Soft),
            low: limits::value(group, LimitKind::Low),
            min: limits::value(group, LimitKind::Min),
            share: shares::of(group),
            importance: importance::own(group),
            forced: visited.usage.saturating_sub(max),
            percent_of_max: percent(live, max),
            waiting: line::length(group),
            refused: group.refusals(),
            events,
            pressure: GroupPressure::read_at(group, now),
            uncharged: group_tree::uncharged(group),
            pressure_level: PressureLevel::of(pressure_levels::shown(group)),
            ledger,
            stats,
            stats_max_error,
            counters: further
                .iter()
                .zip(group.group().skip(1))
                .map(named)
                .collect(),
        }
    }

    /// Returns the events of the group and of the groups below it that have happened, with their
    /// counts.
    ///
    /// ```
    /// # use memcg::Event;
    /// let runtime = memcg::Runtime::builder().max(100).build()?;
    /// assert!(runtime.root().charge(101).is_err());
    /// let snapshot = runtime.snapshot();
    /// assert_eq!(snapshot.rows()[0].events().collect::<Vec<_>>(), [(Event::Max, 1), (Event::Oom, 1)]);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn events(&self) -> impl Iterator<Item = (Event, u64)> {
        self.events.iter().copied()
    }
}

impl CounterRow {
    fn read(counter: &object::Counter) -> CounterRow {
        let before = counter.bound();
        let usage = counter.usage();
        let bound = before.max(counter.bound());
        CounterRow {
            usage,
            stocked_bound: bound.min(usage),
            peak: counter.peaks().ever(),
            max: counter.max(),
            refused: counter.refusals(),
        }
    }
}

fn percent(live: u64, max: u64) -> Option<u64> {
    let percent = (u128::from(live) * 100).checked_div(u128::from(max))?;
    (max < u64::MAX).then(|| u64::try_from(percent).unwrap_or(u64::MAX))
}

/// A limit; none where there is none, for the largest number means that here alone.
#[cfg(feature = "serde")]
#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn limit<S: serde::Serializer>(limit: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&(*limit < u64::MAX).then_some(*limit), serializer)
}

#[cfg(feature = "serde")]
fn by_name<S: serde::Serializer>(
    events: &[(Event, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(events.iter().map(|(event, count)| (event.name(), count)))
}

// === impl Snapshot ===

impl Snapshot {
    /// Returns the rows: each group after its parent, and before its parent's next child.
    pub fn rows(&self) -> &[SnapshotRow] {
        &self.rows
    }

    /// Returns the `n` rows that hold most bytes of their [own](SnapshotRow::own), the largest
    /// first. A row whose own bytes are not known counts with all that is live there. Rows that
    /// hold nothing are left out.
    ///
    /// ```
    /// # use memcg::Limits;
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let _held = [a.charge(10)?, b.charge(20)?, runtime.root().charge(5)?];
    /// let snapshot = runtime.snapshot();
    /// let top: Vec<_> = snapshot.top(2).into_iter().map(|row| (row.path.as_str(), row.own)).collect();
    /// assert_eq!(top, [("/b", Some(20)), ("/a", Some(10))]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn top(&self, n: usize) -> Vec<&SnapshotRow> {
        let held = |row: &SnapshotRow| row.own.unwrap_or(row.live);
        let mut rows: Vec<&SnapshotRow> = self.rows.iter().filter(|row| held(row) > 0).collect();
        rows.sort_by_key(|row| Reverse(held(row)));
        rows.truncate(n);
        rows
    }

    /// Returns the items of the runtime's statistics, by name, with what each counts.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// assert!(runtime.snapshot().items().any(|item| item == ("anon", memcg::Unit::Bytes)));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn items(&self) -> impl Iterator<Item = (&str, Unit)> {
        self.items.iter().map(|(name, unit)| (name.as_str(), *unit))
    }

    /// Returns the counters beside memory, by name, with what each counts.
    ///
    /// ```
    /// let mut builder = memcg::Runtime::builder();
    /// builder.counter("descriptors", memcg::Unit::Events);
    /// let snapshot = builder.build()?.snapshot();
    /// assert_eq!(snapshot.counters().collect::<Vec<_>>(), [("descriptors", memcg::Unit::Events)]);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn counters(&self) -> impl Iterator<Item = (&str, Unit)> {
        self.counters
            .iter()
            .map(|(name, unit)| (name.as_str(), *unit))
    }

    /// Returns the barrier pair of charges and drains: see
    /// [`Runtime::barrier`](crate::Runtime::barrier).
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().barrier(memcg::barrier::BarrierMode::Fence).build()?;
    /// assert_eq!(runtime.snapshot().barrier(), memcg::barrier::BarrierState::Fence);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn barrier(&self) -> BarrierState {
        self.barrier
    }

    /// Returns the same table with columns for items of the statistics, by their
    /// [names](crate::figures::StatItem::name). Such columns may make it wider than 80. An item
    /// that the runtime does not have is 0.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// runtime.root().stat_add(memcg::StatKey::ANON, 1_000);
    /// let expected = "\
    /// path  live  %max  max    anon
    /// /      0 B     -    -  1000 B
    /// ";
    /// assert_eq!(runtime.snapshot().with_stats(&["anon"]).to_string(), expected);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn with_stats<'a>(&'a self, names: &'a [&'a str]) -> impl fmt::Display + 'a {
        let unit = |name: &str| {
            self.items
                .iter()
                .find(|(item, _)| item == name)
                .map_or(Unit::Events, |item| item.1)
        };
        Table {
            rows: &self.rows,
            stats: names.iter().map(|&name| (name, unit(name))).collect(),
        }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Table {
            rows: &self.rows,
            stats: Vec::new(),
        }
        .fmt(f)
    }
}
