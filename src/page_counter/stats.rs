//! A counter's statistics: any thread writes them, and a reader chooses how fresh they must be.

use crate::hierarchy::node_stats::{self, NodeStats};
use crate::hierarchy::{group_tree, stats};
use crate::numa::Topology;
use crate::page_counter::handle::PageCounter;
use crate::stat::reading::Freshness;
use crate::stat::visits::UnlistPolicy;
use crate::stat::{StatItem, StatKey, Stats};

/// For counters whose configuration declares [statistics](crate::CounterConfig::statistics), and
/// for those of groups, where they are the group's. Without a declaration there is nothing to write
/// and all reads are 0.
impl<K> PageCounter<K> {
    fn has_stats(&self) -> bool {
        group_tree::if_groups(self.counter().tree()).is_some()
    }

    /// Adds to an item, here and in the figures of all ancestors: 2 ns, no lock, no
    /// read-modify-write instruction, at any depth. The first addition of a thread to a counter
    /// makes the thread's cells, which takes the lock of the statistics.
    ///
    /// An item of another tree is counted in
    /// [`Counts::foreign_stats`](crate::figures::TreeCounts::foreign_stats) only.
    ///
    /// ```
    /// # use memcg::{CounterConfig, Freshness, PageCounter, StatKey};
    /// let machine = PageCounter::root(CounterConfig::bytes().statistics());
    /// let job = machine.child();
    /// job.stat_add(StatKey::ANON, 65_536);
    /// job.stat_add(StatKey::ANON, -4_096);
    /// assert_eq!(machine.read(Freshness::Exact).get(StatKey::ANON), 61_440);
    /// ```
    #[inline]
    pub fn stat_add(&self, stat: StatKey, delta: i64) {
        node_stats::add(self.header(), stat, delta);
    }

    /// Reads the figures of the subtree, as fresh as the caller asks. [`Stats::max_error`] says
    /// what may be missing, and [`Freshness`] what each reading costs.
    ///
    /// ```
    /// # use memcg::{CounterConfig, Freshness, PageCounter, StatKey};
    /// let machine = PageCounter::root(CounterConfig::new().statistics());
    /// machine.stat_add(StatKey::WORKINGSET_REFAULT, 1_000);
    /// let near = machine.read(Freshness::Within(4_096));
    /// assert!(near.get(StatKey::WORKINGSET_REFAULT).abs_diff(1_000) <= near.max_error());
    /// assert_eq!(machine.read(Freshness::Exact).get(StatKey::WORKINGSET_REFAULT), 1_000);
    /// ```
    pub fn read(&self, freshness: Freshness) -> Stats {
        if self.has_stats() {
            stats::read(self.counter().first(), freshness)
        } else {
            Stats::new()
        }
    }

    /// Publishes everything that was written in this subtree before the call: half the cost of an
    /// exact read. Readers and flushes that run at once share the work.
    ///
    /// ```
    /// # use memcg::{CounterConfig, Freshness, PageCounter, StatKey};
    /// let machine = PageCounter::root(CounterConfig::new().statistics());
    /// machine.child().stat_add(StatKey::SOCK, 7);
    /// machine.flush();
    /// assert_eq!(machine.read(Freshness::Stale).get(StatKey::SOCK), 7);
    /// ```
    pub fn flush(&self) {
        if self.has_stats() {
            stats::flush(self.counter().first(), UnlistPolicy::Many);
        }
    }

    /// Does what [`flush`](Self::flush) does where more than [`Freshness::Threshold`] allows may be
    /// missing, and only while the last flush of the root is more than four seconds old. Returns
    /// whether it flushed.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter, StatKey};
    /// let machine = PageCounter::root(CounterConfig::new().statistics());
    /// machine.stat_add(StatKey::SLAB, 1 << 30);
    /// assert!(!machine.flush_ratelimited(), "the tree has just begun");
    /// ```
    pub fn flush_ratelimited(&self) -> bool {
        self.has_stats() && stats::flush_ratelimited(self.counter().first())
    }

    /// Returns the items of the statistics: those built in, then those that the configuration
    /// declares.
    pub fn items(&self) -> impl Iterator<Item = StatItem<'_>> {
        group_tree::if_groups(self.counter().tree())
            .into_iter()
            .flat_map(|groups| groups.stats.items.iter())
    }

    /// Returns the memory nodes that the counter accounts for; one node where none are declared.
    pub fn topology(&self) -> Topology {
        let declared =
            group_tree::if_groups(self.counter().tree()).map(|groups| groups.numa.topology.clone());
        declared.unwrap_or_else(Topology::one_node)
    }

    /// Reads an item by node, as fresh as the caller asks. [`NodeStats::max_error`] says how far
    /// the figures may be off, over all nodes together. An exact read costs two flushes of the
    /// statistics on each node.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter, StatKey};
    /// use memcg::kmem::{NodeId, Placement};
    ///
    /// let memory = PageCounter::root(CounterConfig::bytes().nodes(2));
    /// let _held = memory.child().precharge(64)?.account(&Placement::on(NodeId::new(1), 64));
    /// assert_eq!(memory.numa_stat(StatKey::KERNEL, memcg::Freshness::Exact).get(NodeId::new(1)), 64);
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn numa_stat(&self, stat: StatKey, freshness: Freshness) -> NodeStats {
        NodeStats::read(self.counter().first(), stat, freshness)
    }
}
