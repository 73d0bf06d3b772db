//! Statistics of a group: written by any thread, read as fresh as the reader asks.

use super::{Charge, Group};
use crate::hierarchy::stats;
use crate::stat::reading::Freshness;
use crate::stat::visits::Unlist;
use crate::stat::{Stat, Stats};

impl Group {
    /// Add to an item: 2 ns, no lock, no read-modify-write instruction, whatever the depth. The first time on a thread
    /// makes its cells, which takes the lock of the statistics; every so often what was written is announced to the
    /// ancestors (about 5 ns for each).
    ///
    /// Zero makes no writer: nobody's read is the less exact for it.
    ///
    /// Also on a group that is offline. An item of another runtime is not counted, but in
    /// [`Counts::foreign_stats`](crate::Counts::foreign_stats).
    ///
    /// Source: `mod_memcg_state` and `memcg_rstat_updated` in `mm/memcontrol.c`.
    ///
    /// ```
    /// use memcg::{Limits, Stat};
    ///
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

    /// The figures as they were published last: loads only, about 10 ns. [`Stats::max_error`] says what may be missing:
    /// what was announced since, and half a batch for each writer.
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
        stats::read(self.node(), Freshness::Stale)
    }

    /// The figures with at most one batch for each writer missing of what was written before the call: published ones where that holds, else flushed. What
    /// reading `memory.stat` does, with writers in the place of processors.
    ///
    /// A thread that has stopped writing counts as a writer until flushes have found it idle. So a read flushes now and
    /// then though its bound would allow it not to: one of up to 64 while most writers write on, and each while most have
    /// stopped. So the error comes down to 0 once nobody writes, without a flusher: within a dozen reads where the group is
    /// read for the first time, within 140 where it was read often before (30 more where there are less than eight writers).
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
        stats::read(self.node(), Freshness::Threshold)
    }

    /// The figures with at most `max_error` grains of each item's unit missing ([`Unit::grain`](crate::Unit::grain)) of what
    /// was written before the call: published ones where that holds, else flushed. What is written while the read runs
    /// comes on top: only [`read_exact`](Self::read_exact) tells how much that was. Each writer of the subtree may hold back half a batch, so where
    /// less is asked for than that makes, every read flushes.
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
        stats::read(self.node(), Freshness::Within(max_error))
    }

    /// The figures with everything that was written before the call.
    ///
    /// Exact means: if nobody writes while the read runs, each figure is the sum of what was written, and
    /// [`Stats::max_error`] is 0. Threads that write while the read runs are read at different instants. So an item that
    /// rises on one thread and falls on another may come out as a value that it never had, such as a gauge below 0. Then
    /// `max_error` is what all of them wrote between two looks at them, the first before the figures and the second after
    /// them. There is an instant during the call at which every figure was within `max_error` of the sum of all that had
    /// been written, for all items at once.
    ///
    /// Flushes the subtree twice: two visits to each pair of a thread and a group in it that has written lately. No barrier, but where visits to idle pairs have come to cost as
    /// much: those are forgotten, with one barrier, until they write.
    ///
    /// Readers that ask at once share the work, and nobody waits for more than a small part of somebody else's. Called
    /// by an allocator inside another call of this crate, it reads what is published and says what may be missing.
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
        stats::read(self.node(), Freshness::Exact)
    }

    /// Publish everything that was written in this subtree before the call. As [`read_exact`](Self::read_exact).
    ///
    /// Source: `do_flush_stats` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// root.stat_add(memcg::Stat::SLAB, 1);
    /// root.flush();
    /// assert_eq!(root.read_stale().get(memcg::Stat::SLAB), 1);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn flush(&self) {
        stats::flush(self.node(), Unlist::Many);
    }

    /// [`flush`](Self::flush) where more than [`read`](Self::read) allows may be missing, and only while the periodic
    /// flush is more than one full cycle late. Returns whether it flushed.
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
        stats::flush_ratelimited(self.node())
    }
}

impl Charge {
    /// [`Group::stat_add`] on the group that is charged: for who has no handle, as where the memory is freed. A charge
    /// of a further counter takes some 20 ns for it.
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
