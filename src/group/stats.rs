//! Statistics of a group: any thread writes them, and a reader chooses how fresh they must be.

use super::charge::Charge;
use super::handle::Group;
use crate::hierarchy::stats;
use crate::stat::reading::Freshness;
use crate::stat::visits::Unlist;
use crate::stat::{Stat, Stats};

/// # Statistics
impl Group {
    /// Adds to an item: 2 ns, no lock, no read-modify-write instruction, at any depth. The first addition of a thread
    /// to a group makes the thread's cells, which takes the lock of the statistics. Now and then the thread announces
    /// to the ancestors what it has written, about 5 ns for each.
    ///
    /// Adding zero makes no writer, so no read is less exact for it.
    ///
    /// This works on a group that is offline too. An item of another runtime is counted in
    /// [`Counts::foreign_stats`](crate::Counts::foreign_stats) only.
    ///
    /// Source: `mod_memcg_state` and `memcg_rstat_updated` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # use memcg::{Limits, Stat};
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new())?;
    /// query.stat_add(Stat::ANON, 65_536);
    /// query.stat_add(Stat::ANON, -4_096);
    /// assert_eq!(runtime.root().read_exact().get(Stat::ANON), 61_440);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn stat_add(&self, stat: Stat, delta: i64) {
        stats::add(self.header, stat, delta);
    }

    /// Reads the figures that were published last. It costs loads only, about 10 ns. [`Stats::max_error`] says what may
    /// be missing: what was announced since, and half a batch for each writer.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// root.stat_add(memcg::Stat::ANON, 4_096);
    /// let before = root.read_stale();
    /// assert!(before.get(memcg::Stat::ANON).abs_diff(4_096) <= before.max_error_of(memcg::Stat::ANON));
    /// root.flush();
    /// assert_eq!(root.read_stale().get(memcg::Stat::ANON), 4_096);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn read_stale(&self) -> Stats {
        stats::read(self.first(), Freshness::Stale)
    }

    /// Reads figures that miss at most one batch for each writer of what was written before the call. The read flushes
    /// where the published figures may miss more. This is what reading `memory.stat` does, with writers in the place of
    /// processors.
    ///
    /// A thread that has stopped writing counts as a writer until flushes have found it idle. So now and then a read
    /// flushes though its bound would allow it not to: one of up to 64 while most writers write on, and each while most
    /// have stopped. Without a flusher too, the error comes down to 0 once all writers have stopped. That takes a dozen
    /// reads where the group is read for the first time, and 140 where it was read often before. With less than eight
    /// writers it takes 30 more.
    ///
    /// Source: `mem_cgroup_flush_stats` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// for _ in 0..10_000 {
    ///     root.stat_add(memcg::Stat::WORKINGSET_REFAULT, 1);
    /// }
    /// let now = root.read();
    /// assert!(now.max_error() <= 1_024);
    /// assert!(now.get(memcg::Stat::WORKINGSET_REFAULT).abs_diff(10_000) <= now.max_error());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn read(&self) -> Stats {
        stats::read(self.first(), Freshness::Threshold)
    }

    /// Reads figures that miss at most `max_error` grains of each item's unit ([`Unit::grain`](crate::Unit::grain)) of
    /// what was written before the call. The read flushes where the published figures may miss more. What threads write
    /// while the read runs comes on top: only [`read_exact`](Self::read_exact) says how much that is. Each writer of
    /// the subtree may hold back half a batch, so a read that allows less than all of them together always flushes.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// root.stat_add(memcg::Stat::WORKINGSET_REFAULT, 1_000);
    /// assert_eq!(root.read_within(4_096).get(memcg::Stat::WORKINGSET_REFAULT), 0, "near enough");
    /// assert_eq!(root.read_within(100).get(memcg::Stat::WORKINGSET_REFAULT), 1_000);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn read_within(&self, max_error: u64) -> Stats {
        stats::read(self.first(), Freshness::Within(max_error))
    }

    /// Reads figures with everything that was written before the call.
    ///
    /// Exact means: if no thread writes while the read runs, each figure is the sum of what was written, and
    /// [`Stats::max_error`] is 0. The read visits threads that write meanwhile at different instants. So an item that
    /// rises on one thread and falls on another may have a value that it never had, such as a gauge below 0. Then
    /// `max_error` is what all threads wrote between two looks at them, the first before the figures and the second
    /// after them. There is one instant during the call at which, for all items at once, every figure was within
    /// `max_error` of all that had been written.
    ///
    /// The read flushes the subtree twice: two visits to each pair of a thread and a group in it that has written
    /// lately. It runs no barrier, unless visits to idle pairs have come to cost as much: then one barrier takes them
    /// out of later flushes until they write again.
    ///
    /// Readers that ask at once share the work, and none waits for more than a small part of another's. An allocator
    /// that calls this inside another call of this crate gets what is published, with what may be missing.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| root.stat_add(memcg::Stat::FILE, 7));
    /// });
    /// assert_eq!(root.read_exact().get(memcg::Stat::FILE), 7);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn read_exact(&self) -> Stats {
        stats::read(self.first(), Freshness::Exact)
    }

    /// Publishes everything that was written in this subtree before the call. Costs half of
    /// [`read_exact`](Self::read_exact).
    ///
    /// Source: `do_flush_stats` in `mm/memcontrol.c`.
    pub fn flush(&self) {
        stats::flush(self.first(), Unlist::Many);
    }

    /// Does what [`flush`](Self::flush) does where more than [`read`](Self::read) allows may be missing, and only while
    /// the periodic flush is more than one full cycle late. Returns whether it flushed.
    ///
    /// Source: `mem_cgroup_flush_stats_ratelimited` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// root.stat_add(memcg::Stat::SLAB, 1 << 30);
    /// assert!(!root.flush_ratelimited(), "the runtime has just begun");
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn flush_ratelimited(&self) -> bool {
        stats::flush_ratelimited(self.first())
    }
}

impl Charge {
    /// Does what [`Group::stat_add`] does on the group that is charged. This is for code that has the charge and no
    /// handle, as where the memory is freed. It takes some 20 ns through a charge of a further counter.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let charge = runtime.root().try_charge(4_096)?;
    /// charge.stat_add(memcg::Stat::ANON, 4_096);
    /// std::thread::spawn(move || {
    ///     charge.stat_add(memcg::Stat::ANON, -4_096); // before its bytes go: afterwards the group may be gone
    ///     drop(charge);
    /// })
    /// .join()
    /// .unwrap();
    /// assert_eq!(runtime.root().read_exact().get(memcg::Stat::ANON), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn stat_add(&self, stat: Stat, delta: i64) {
        stats::add(self.header(), stat, delta);
    }
}
