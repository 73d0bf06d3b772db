//! Statistics of a group, and those on nodes: any thread writes them, and a reader chooses how
//! fresh they must be.

use std::fmt;

use super::charge::Charge;
use super::handle::Group;
use crate::hierarchy::node_stats::{self, NodeStats};
use crate::hierarchy::stats;
use crate::stat::reading::Freshness;
use crate::stat::{StatItem, StatKey, Stats, Unit};

/// # Statistics
impl Group {
    /// Adds `delta` to an item of this group, and so to the figures of all groups above. It takes 2
    /// ns at any depth, with no lock and no read-modify-write instruction. The first addition of a
    /// thread to a group makes the thread's cells, which takes the lock of the statistics. Now and
    /// then the thread announces to the ancestors what it has written, which takes about 5 ns for
    /// each.
    ///
    /// Adding zero does not make the thread a writer, so it makes no read less exact.
    ///
    /// It also works on a group that is offline. An addition to an item of another runtime is only
    /// counted, in [`Counts::foreign_stats`](crate::figures::TreeCounts::foreign_stats) only.
    ///
    /// Source: `mod_memcg_state` and `memcg_rstat_updated` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # use memcg::{Limits, StatKey};
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new())?;
    /// query.stat_add(StatKey::ANON, 65_536);
    /// query.stat_add(StatKey::ANON, -4_096);
    /// assert_eq!(runtime.root().read(memcg::Freshness::Exact).get(StatKey::ANON), 61_440);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn stat_add(&self, stat: StatKey, delta: i64) {
        node_stats::add(self.header, stat, delta);
    }

    /// Reads the statistics of the subtree and of the group alone, as fresh as the caller asks.
    /// [`Freshness`] says what each reading costs and what it may miss, and [`Stats::max_error`]
    /// how far the figures may be off.
    ///
    /// Readers that ask at the same time share the work, and none waits for more than a small part
    /// of another's. An allocator that calls this inside another call of this crate gets what is
    /// published, with what may be missing.
    ///
    /// If an allocator charges groups, an exact read has the items of the [ledger](StatKey::RESERVED),
    /// too. They cost what [`ledger`](Self::ledger) and
    /// [`ledger_local`](crate::inspect::GroupInspector::ledger_local) cost.
    ///
    /// Source: `mem_cgroup_flush_stats` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # use memcg::{Freshness, StatKey};
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let root = runtime.root();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| root.stat_add(StatKey::WORKINGSET_REFAULT, 1_000));
    /// });
    /// let near = root.read(Freshness::Within(4_096));
    /// assert!(near.get(StatKey::WORKINGSET_REFAULT).abs_diff(1_000) <= near.max_error());
    /// let exact = root.read(Freshness::Exact);
    /// assert_eq!((exact.get(StatKey::WORKINGSET_REFAULT), exact.max_error()), (1_000, 0));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn read(&self, freshness: Freshness) -> Stats {
        let mut stats = stats::read(self.first(), freshness);
        if freshness == Freshness::Exact {
            self.add_ledger(&mut stats);
        }
        stats
    }
}

/// # Memory on nodes
impl Group {
    /// Reads an item by node, as fresh as the caller asks. [`Freshness`] says what may be missing,
    /// over all nodes together, and [`NodeStats::max_error`] how far the figures may be off. An
    /// exact read costs two flushes of the statistics on each node below this group. Of the root,
    /// this reads the whole runtime.
    ///
    /// Source: `memory_numa_stat_show` in `mm/memcontrol.c`, and NR_KMEM by node in
    /// "per-memcg-per-node kmem accounting" (Ghiti, 2026, patch 5). See [`NodeStats`] for another
    /// example.
    ///
    /// ```
    /// # use memcg::{Freshness, StatKey};
    /// let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().numa_stat(StatKey::KERNEL, Freshness::Exact).sum(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn numa_stat(&self, stat: StatKey, freshness: Freshness) -> NodeStats {
        NodeStats::read(self.first(), stat, freshness)
    }
}

/// All items of a group that are counted by node. It prints as `memory.numa_stat` does.
///
/// ```
/// use memcg::kmem::{NodeId, NumaTable, Placement};
///
/// let runtime = memcg::Runtime::builder().nodes(2).build()?;
/// let _kmem = runtime.root().precharge(4_096)?.account(&Placement::on(NodeId::new(1), 4_096));
/// let table = NumaTable::of(&runtime.root());
/// assert!(table.rows().any(|(name, row)| name == "kernel" && row.sum() == 4_096));
/// assert!(table.to_string().lines().any(|line| line == "kernel N0=0 N1=4096"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaTable(Vec<(String, NodeStats)>);

impl NumaTable {
    /// Reads all items per node of `group` that are counted in bytes, exactly, in the form of
    /// `memory.numa_stat`. It costs an exact [`Group::numa_stat`], and a look at each item and
    /// node.
    pub fn of(group: &Group) -> NumaTable {
        let items = stats::coordinator(group.first()).items.iter();
        let mut freshness = Freshness::Exact;
        // Only the first row flushes. The other rows read what it published.
        let row = |item: StatItem<'_>| {
            (
                item.name.to_owned(),
                group.numa_stat(
                    item.stat,
                    std::mem::replace(&mut freshness, Freshness::Stale),
                ),
            )
        };
        NumaTable(
            items
                .filter(|item| item.per_node && item.unit == Unit::Bytes)
                .map(row)
                .collect(),
        )
    }

    /// Returns the items with their names.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &NodeStats)> {
        self.0.iter().map(|(name, row)| (name.as_str(), row))
    }
}

impl fmt::Display for NumaTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows()
            .try_for_each(|(name, row)| writeln!(f, "{name} {row}"))
    }
}

impl Charge {
    /// Does what [`Group::stat_add`] does on the group that is charged. This is for code that has
    /// the charge and no handle, as where the memory is freed. It takes some 20 ns through a charge
    /// of a further counter.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let charge = runtime.root().charge(4_096)?;
    /// charge.stat_add(memcg::StatKey::ANON, 4_096);
    /// std::thread::spawn(move || {
    ///     charge.stat_add(memcg::StatKey::ANON, -4_096); // before its bytes go: afterwards the group may be gone
    ///     drop(charge);
    /// })
    /// .join()
    /// .unwrap();
    /// assert_eq!(runtime.root().read(memcg::Freshness::Exact).get(memcg::StatKey::ANON), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn stat_add(&self, stat: StatKey, delta: i64) {
        node_stats::add(self.header(), stat, delta);
    }
}
