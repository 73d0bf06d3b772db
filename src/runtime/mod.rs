//! `Runtime`: the owner of a tree of groups.

mod builder;
mod declare;
mod flusher;
mod nodes;

pub use builder::{BuildError, RuntimeBuilder};
pub use declare::DeclareError;

use std::time::Duration;

use crate::counter::idle;
use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::counter::slow_path::SlowPath;
use crate::counter::verify::{KnownOutside, VerifyReport, verify};
use crate::group::{Group, GroupId, Snapshot};
use crate::hierarchy::{group_tree, names, stats};
use crate::lifecycle::own_bytes::{self, OwnBytes};
use crate::page_counter::TreeCounts;
use crate::page_counter::reading::counts;
use crate::pool::PoolTable;
use crate::pressure::{incidents, started, victims};
use crate::reclaim::excess;
use crate::stat::StatItem;
use crate::stat::coordinator::PERIOD;
use crate::sync::Arc;
use crate::sync::barrier::BarrierState;
use crate::sync::lock::{Lock, Rank};
use crate::units::Bytes;
use flusher::Flusher;

/// The most that a runtime keeps of its refusals and victims.
const INCIDENTS_MAX: usize = 1 << 16;

/// A handle on a tree of groups and its configuration. A handle is cheap to clone, send and share.
/// Keep one for as long as groups charge. The drop of the last one may block: in async code drop it
/// on another thread.
///
/// The drop of the last handle takes every group offline, and waits for the end of a
/// [flusher](Self::start_flusher) that runs. Handles on groups, and charges, may outlive it. A
/// charge that is dropped later still finds its group, and the last one gives the tree's memory
/// back to the pool.
///
/// ```
/// use memcg::{ChargeError, Limits, Runtime};
///
/// let runtime = Runtime::builder().max(memcg::Limit::gib(2)).build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let charge = query.charge(10)?;
/// let other = runtime.clone();
/// drop(runtime);
/// assert!(!query.is_offline(), "a handle is left");
/// drop(other);
/// assert!(matches!(query.charge(1), Err(error) if error.is_offline()));
/// assert_eq!(charge.group().live(), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Runtime {
    owned: Arc<RuntimeState>,
}

/// The state that ends with the last handle.
struct RuntimeState {
    root: Group,
    tree: Arc<Tree>,
    flusher: Lock<Option<Flusher>>,
}

impl Runtime {
    /// Returns the configuration of a new runtime, with all defaults. [`RuntimeBuilder::build`]
    /// makes it.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::new()
    }

    fn new(root: Group) -> Runtime {
        let tree = root.first().incarnation().tree.counted();
        Runtime {
            owned: Arc::new(RuntimeState {
                root,
                tree,
                flusher: Lock::new(Rank::Bookkeeping, None),
            }),
        }
    }

    /// Returns the root, the group above all others. It never fails, and costs a handle.
    pub fn root(&self) -> Group {
        self.owned.root.clone()
    }

    /// Returns the group at a path, as in `/acme/q17`; `/` is the root. For each name the call
    /// takes the lock of one shard and looks into a hash table.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert_eq!((runtime.group("/"), runtime.group("/acme")), (Some(runtime.root()), Some(acme)));
    /// assert_eq!(runtime.group("acme"), None, "a path starts at the root");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group(&self, path: &str) -> Option<Group> {
        let names = path.strip_prefix('/')?;
        if names.is_empty() {
            return Some(self.root());
        }
        names
            .split('/')
            .try_fold(self.root(), |group, name| group.child(name))
    }

    /// Returns the group of an id, if it still exists. Another group may have its object by now,
    /// but never its id. The call takes no lock; it costs a look into the directory of objects and
    /// one exchange.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let id = runtime.root().id();
    /// assert_eq!(runtime.find(id), Some(runtime.root()));
    /// assert_eq!(memcg::Runtime::builder().build()?.find(id), None, "not one of this runtime's");
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn find(&self, id: GroupId) -> Option<Group> {
        let group = id.pin().map(Group::from_handle)?;
        // Mutation: a-group-of-another-runtime-is-found
        std::ptr::eq(group.first().tree(), &*self.owned.tree).then_some(group)
    }

    /// Checks that the counts of all groups agree with each other, and with the second count if
    /// [`audit`](RuntimeBuilder::audit) is on. Further counters are included.
    ///
    /// The audit counts each charge and uncharge a second time. It finds what the crate itself
    /// loses or makes: usage that is not live charge and credit. It cannot tell whether the holder
    /// of a charge will give it back: one that was forgotten, as by
    /// [`mem::forget`](std::mem::forget) or in a cycle of `Arc`s, is live like any other. Its bytes
    /// stay in [`Group::live`] and keep an offline group among [`dying_count`](Self::dying_count).
    ///
    /// The call holds the tree's lock, looks at one slot for each thread and group, and allocates.
    /// It is exact at a quiescent point; charges and uncharges in flight show up as faults. That
    /// [`live`](Group::live) is 0 does not say that there are none: bytes that are given back are
    /// credit first, and a thread may be taking that off its levels.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().audit(true).build()?;
    /// let _held = runtime.root().charge(10)?;
    /// assert_eq!(runtime.verify().to_string(), "1 counter verified against the audited count: all add up");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn verify(&self) -> VerifyReport {
        let known = KnownOutside {
            path: &|counter| Some(path_of(counter)),
            children_in_excess: &|counter| excess::children(counter),
        };
        let verdicts = self
            .owned
            .root
            .first()
            .group()
            .map(|counter| verify(&self.owned.tree, counter, &known));
        verdicts.reduce(VerifyReport::merge).unwrap_or_default()
    }

    /// Returns every group that is online with its figures; it prints as a table.
    /// [`Group::snapshot`] takes one of a subtree, to a depth, and says what it costs.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().max(memcg::Limit::mib(1)).build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let _held = acme.charge(1_024)?;
    /// let snapshot = runtime.snapshot();
    /// assert_eq!((snapshot.rows()[1].path.as_str(), snapshot.rows()[1].live), ("/acme", 1_024));
    /// println!("{snapshot}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        self.owned.root.snapshot(usize::MAX)
    }

    /// Takes back the credit of groups that went offline. It costs one barrier, however many groups
    /// there are, and none if there is nothing to do. It may wait for the tree's lock as long as a
    /// drain takes.
    ///
    /// The crate does this by itself for every 64 such groups, whenever a limit needs the credit,
    /// and with each [`release_idle_credit`](Self::release_idle_credit).
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// runtime.root().create("q17", memcg::Limits::new())?.offline()?;
    /// runtime.settle();
    /// assert_eq!(runtime.dying_count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle(&self) {
        self.owned.tree.close_offline_stocks();
    }

    /// Returns the number of groups that are online, the root included. It takes all locks under
    /// which groups are created and go offline, for a moment, and is exact at that moment.
    pub fn group_count(&self) -> usize {
        let _path = SlowPath::enter();
        self.owned.tree.hierarchy.snapshot().groups().0
    }

    /// Returns the number of groups that went offline and still exist, because a handle or a charge
    /// of them exists or their credit is not settled. It costs what
    /// [`group_count`](Self::group_count) costs, and is as exact.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// let held = query.charge(10)?;
    /// query.offline()?;
    /// drop(query);
    /// assert_eq!((runtime.group_count(), runtime.dying_count()), (1, 1));
    /// drop(held);
    /// assert_eq!(runtime.dying_count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dying_count(&self) -> usize {
        let _path = SlowPath::enter();
        self.owned.tree.hierarchy.snapshot().groups().1
    }

    /// Returns the items of the statistics: those built in, then those that the builder declared.
    /// See [`RuntimeBuilder::stat_per_node`] for an example.
    pub fn items(&self) -> impl Iterator<Item = StatItem<'_>> {
        stats::coordinator(self.owned.root.first()).items.iter()
    }

    /// Takes back the credit that no thread uses, and returns how many bytes of memory that were.
    /// The call may block: in async code call it on a thread for blocking work. Further counters
    /// give back theirs, too; the figure leaves them out.
    ///
    /// Credit is idle where the last two calls found the same, and at once where its thread has
    /// ended or its group is offline. So with one call in each period, credit is uncharged after
    /// two to three periods. [`start_flusher`](Self::start_flusher) calls this in each of its own.
    /// Usage then comes down to [`live`](crate::Group::live) in each group whose threads sleep.
    ///
    /// No guarantee depends on it: a charge that needs the credit of a sleeping thread gets it
    /// without this. What it changes is [`usage`](crate::Group::usage), and how often a limit has
    /// to drain. The stocks of threads stay open, and a thread that wakes up refills its own with
    /// its next charge. A [central stock](crate::CentralStock) that has not changed closes,
    /// and its part of the budget is free. A thread that charges and uncharges the same amount,
    /// over and over, may look idle; it then refills once, in every third call at most.
    ///
    /// The call looks at every slot of every thread. It runs one barrier for each 4,096 slots with
    /// idle credit, one where groups have gone offline, and none where no credit is idle. It holds
    /// the tree's lock for those 4,096 at most, for as many central stocks, or for all groups that
    /// have gone offline. The call remembers 16 bytes for each slot with credit. Another call waits
    /// meanwhile, and the flusher leaves its own out. Inside an allocator that charges the call does
    /// nothing and returns 0.
    ///
    /// ```
    /// use memcg::{Bytes, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// let held = [root.charge(100)?, root.charge(100)?];
    /// let more = root.charge(100)?; // takes credit for the charges to come
    /// assert!(root.usage() > 300);
    /// runtime.release_idle_credit();
    /// runtime.release_idle_credit();
    /// assert!(runtime.release_idle_credit() > Bytes(0), "the third call finds what the first one saw");
    /// assert_eq!((root.usage(), root.live()), (300, 300));
    /// # drop((held, more));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release_idle_credit(&self) -> Bytes {
        Bytes(idle::release_credit(&self.owned.tree))
    }

    /// Gives the calling thread's own credit back, and returns how many bytes of memory that were.
    /// For a thread that is about to sleep: a hook such as tokio's `on_thread_park`.
    ///
    /// It runs no barrier, takes no lock of the tree and waits for no other thread. It looks at
    /// each slot of the thread, 252 for each 252 groups or part of them that the thread has ever
    /// charged, and uncharges each that has credit. The next charge of each such group refills. So
    /// it pays where threads park for long. Where they park for microseconds,
    /// [`release_idle_credit`](Self::release_idle_credit) costs them nothing.
    ///
    /// ```
    /// use memcg::{Bytes, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let hook = {
    ///     let runtime = runtime.clone();
    ///     move || runtime.release_thread_credit() // tokio: `.on_thread_park(move || { hook(); })`
    /// };
    /// let root = runtime.root();
    /// let held = [root.charge(100)?, root.charge(100)?];
    /// let more = root.charge(100)?; // takes credit for the charges to come
    /// assert!(hook() > Bytes(0));
    /// assert_eq!((root.usage(), root.live()), (300, 300));
    /// # drop((held, more));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release_thread_credit(&self) -> Bytes {
        Bytes(idle::release_own_credit(&self.owned.tree))
    }

    /// Starts the flusher: a thread that flushes the statistics of all groups once in every
    /// `period`. If one runs already it is replaced, and the call may block until that has ended: in
    /// async code call it on a thread for blocking work.
    ///
    /// Published figures are then never older than `period`. The kernel's period is two seconds.
    /// The flusher stops with the runtime.
    ///
    /// No guarantee depends on it: without it [`Group::read`] is exact, or within its bound. The
    /// flusher visits the cells that were written lately, and unlists those that were not, with one
    /// barrier. Then it takes back credit that no thread uses: it calls [`settle`](Self::settle)
    /// and [`release_idle_credit`](Self::release_idle_credit). It runs no barrier where there is
    /// nothing to unlist, to settle or to take back.
    ///
    /// # Errors
    ///
    /// The system has no thread for it, or the period is zero
    /// ([`InvalidInput`](std::io::ErrorKind::InvalidInput)); the flusher that ran before goes on.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// runtime.start_flusher(std::time::Duration::from_secs(2))?;
    /// runtime.stop_flusher();
    /// let refused = runtime.start_flusher(std::time::Duration::ZERO).unwrap_err();
    /// assert_eq!(refused.to_string(), "a flusher needs a period longer than nothing");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start_flusher(&self, period: Duration) -> std::io::Result<()> {
        let new = Flusher::start(self.root(), period)?;
        self.owned.set_flusher(Some(new), period);
        Ok(())
    }

    /// Stops the flusher, if one runs, and returns when it has stopped. It may block: in async code
    /// call it on a thread for blocking work.
    ///
    /// Inside a listener, a waker, a reclaimer or a hook neither this call nor the drop of the
    /// runtime waits. The flusher's own thread may run that code. The flusher stops all the same.
    pub fn stop_flusher(&self) {
        self.owned.set_flusher(None, PERIOD);
    }

    /// Returns the event counts of the whole tree. One load for each, so they are not all of the
    /// same instant.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.counts().barriers, 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn counts(&self) -> TreeCounts {
        counts(
            &self.owned.tree,
            group_tree::shared(&self.owned.tree).stats.counts.all(),
        )
    }

    /// Returns the barrier pair of charges and drains. Export it as a metric:
    /// [`BarrierState::Degraded`] does not go away. See [`RuntimeBuilder::barrier`] for an example.
    pub fn barrier(&self) -> BarrierState {
        self.owned.tree.barrier.state()
    }

    /// Keeps the last `most` refusals and victims from now on, which
    /// [`incidents`](crate::inspect::GroupInspector::incidents) returns. 0, the default, keeps
    /// none; more than 65,536 are never kept.
    ///
    /// A charge that is refused then takes one more lock, and allocates two paths. A refusal of an
    /// allocator inside another call of this crate is not kept.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().max(100).build()?;
    /// assert!(runtime.root().charge(101).is_err());
    /// runtime.keep_incidents(1);
    /// assert!(runtime.root().charge(102).is_err());
    /// assert!(runtime.root().charge(103).is_err());
    /// let kept = runtime.root().inspect().incidents();
    /// assert_eq!(kept.iter().map(|kept| (kept.number, kept.requested)).collect::<Vec<_>>(), [(2, 103)]);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn keep_incidents(&self, most: usize) {
        incidents::keep(self.owned.root.first(), most.min(INCIDENTS_MAX));
    }

    /// Returns the bytes that the accounting itself takes: for objects of groups, slots of threads,
    /// statistics, tables. Memory that belongs to the process is in the figure of each of its
    /// runtimes.
    ///
    /// The call takes the tree's lock and that of the statistics, one after the other, and visits
    /// each thread. The figure is within a few per cent of what the runtime makes resident memory
    /// grow by.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// let before = runtime.own_bytes();
    /// let root = runtime.root();
    /// let groups: Vec<_> = (0..1_000).map(|number| root.create(&number.to_string(), memcg::Limits::new())).collect();
    /// assert!(runtime.own_bytes().total() > before.total());
    /// # assert!(groups.iter().all(Result::is_ok));
    /// ```
    pub fn own_bytes(&self) -> OwnBytes {
        own_bytes::figure(&self.owned.tree)
    }

    /// Returns the pools that this runtime takes from: their sizes, and how many objects each has,
    /// as `/proc/slabinfo` does for the kernel's. The call takes the locks of each pool in turn,
    /// and allocates.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().pool_align(memcg::footprint::PoolAlign::Packed).build()?;
    /// let _query = runtime.root().create("q17", memcg::Limits::new())?;
    /// let pools = runtime.pools();
    /// let groups = &pools.rows()[0];
    /// assert_eq!((groups.name, groups.waste), ("group", 0));
    /// assert!(groups.live >= 2 && groups.given == groups.asked);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pools(&self) -> PoolTable {
        let _path = SlowPath::enter();
        PoolTable::of(group_tree::caches(&self.owned.tree))
    }
}

impl RuntimeState {
    fn set_flusher(&self, new: Option<Flusher>, period: Duration) {
        let mut flusher = self.flusher.lock();
        stats::coordinator(self.root.first()).set_period(period);
        let old = std::mem::replace(&mut *flusher, new);
        drop(flusher);
        // The drop joins the old flusher's thread, so it comes after the lock.
        drop(old);
    }
}

impl Drop for RuntimeState {
    fn drop(&mut self) {
        if !crate::sync::model_failed() {
            self.set_flusher(None, PERIOD);
            started::end(&self.tree);
            victims::forget_orders(&self.tree);
            self.root.end_tree(true);
        }
    }
}

debug_figures!(Runtime, |runtime| usage: runtime.root().usage(), max: runtime.root().max(), groups: runtime.group_count());

/// The path of a counter's group, after the counter's name where it is a further one.
fn path_of(counter: &Counter) -> String {
    match group_tree::further_name(counter) {
        Some(name) => format!("{name} of {}", names::path(counter)),
        None => names::path(counter),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::counter::level::ChargeMode;
    use crate::counter::slow_path::LazySlowPath;
    use crate::counter::verify::VerifyFaultKind;
    use crate::counter::walk::walk;

    /// No call of a user brings a fault about, so the test takes bytes off a level.
    #[test]
    fn a_fault_names_its_group_and_counter() {
        let mut builder = Runtime::builder().audit(true);
        let spill = builder.counter("spill", crate::Unit::Bytes);
        let runtime = builder.build().unwrap();
        let acme = runtime.root().create("acme", Limits::new()).unwrap();
        let held = acme
            .charge_set(&[(crate::CounterKey::MEMORY, 10), (spill, 20)])
            .unwrap();
        let counters: Vec<_> = acme.first().group().collect();
        let subtract = |counter: &crate::counter::object::Counter, n| {
            counter.subtract(n, &LazySlowPath::inside())
        };
        assert_eq!((subtract(counters[0], 3), subtract(counters[1], 4)), (3, 4));
        let verdict = runtime.verify();
        let found: Vec<_> = verdict
            .faults()
            .iter()
            .map(|fault| (fault.path.as_deref(), fault.kind))
            .collect();
        assert_eq!(
            found,
            [
                (Some("/acme"), VerifyFaultKind::Identity),
                (Some("spill of /acme"), VerifyFaultKind::Identity)
            ]
        );
        assert!(
            verdict
                .to_string()
                .ends_with("spill of /acme: usage is 16, live charge and credit are 20: 4 too few")
        );
        // The test puts the levels right again, so that the charge gives back what they hold.
        assert!(walk(counters[0], 3, ChargeMode::Force, None).is_ok());
        assert!(walk(counters[1], 4, ChargeMode::Force, None).is_ok());
        runtime
            .root()
            .first()
            .group()
            .zip([3, 4])
            .for_each(|(root, n)| assert_eq!(subtract(root, n), n));
        drop(held);
        assert!(runtime.verify().is_ok());
    }
}
