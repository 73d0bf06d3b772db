//! The handle on a counter, its charges and its limits.

use std::fmt;

use crate::counter::at_limit;
use crate::counter::config::{BATCH_MAX, CounterConfig, TreeExtension};
use crate::counter::handle::Handle;
use crate::counter::object::{Counter, CounterRef, HeaderRef, Object};
use crate::counter::protection::Protection;
use crate::counter::slow_path::{LazySlowPath, SlowPath};
use crate::counter::uncharge::uncharge_missed;
use crate::counter::{creation, retire, thresholds};
use crate::error::{CounterChargeError, CounterId, CounterLimitError, USAGE_MAX};
use crate::sync::{Arc, model_failed};
use crate::thread::slot::{Consume, Put};
use crate::thread::{context, slow_path};

/// Most calls of the pressure hook for one charge: the kernel's MAX_RECLAIM_RETRIES.
const HOOK_CALLS_MAX: usize = 16;

/// A hierarchical counter: a usage, a limit, a parent, and a stock of pre-charged credit for each
/// thread. Its owner decides what a unit is: a byte, a page, a connection.
///
/// A charge to a counter charges all its ancestors. It is admitted when it fits at every level, and
/// leaves no trace when it does not. The calling thread's stock pays most charges. Those touch no
/// shared memory: a charge and its uncharge cost about 2 ns together, at any depth.
///
/// The type is a handle. Clones name the same counter, and comparison is by identity. When the last
/// handle is gone and no children are left, the counter is gone, and what is still charged to it
/// leaves its ancestors.
///
/// With a configuration that declares them ([`CounterConfig::nodes`],
/// [`CounterConfig::statistics`]), the counter also accounts for memory by node
/// ([`precharge`](Self::precharge), [`numa_stat`](Self::numa_stat)), and its tree gathers
/// statistics ([`stat_add`](Self::stat_add), [`read`](Self::read), [`flush`](Self::flush)). What is
/// not declared costs nothing.
///
/// The counters of a [`Group`](crate::Group) are of this type, too, for reading, limiting and
/// draining: [`Group::counter`](crate::Group::counter) returns a
/// [`GroupCounter`](crate::GroupCounter). The group charges them and keeps them.
///
/// At every quiescent point and every level, usage is the live charges of the subtree and the
/// credit in its stocks.
///
/// Source: `mm/page_counter.c`, and "move stock from mem_cgroup to page_counter" (J. Hahn,
/// linux-mm, 2026).
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let machine = PageCounter::root(CounterConfig::new().batch(64));
/// let job = machine.child();
/// machine.set_max(1_000)?;
/// job.charge(10)?;
/// assert_eq!(machine.usage(), job.live() + job.stocked());
/// job.uncharge(10);
/// machine.drain();
/// assert_eq!(machine.usage(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PageCounter<K = Alone> {
    header: HeaderRef,
    keep: K,
}

/// The keeper of a [`PageCounter`] that belongs to no group: it keeps the counter and its ancestors
/// in the tree.
#[derive(Clone)]
pub struct Alone(Arc<CounterKeep>);

impl fmt::Debug for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

struct CounterKeep {
    /// With a handle of this value.
    counter: CounterRef,
    name: Box<str>,
    parent: Option<Arc<CounterKeep>>,
}

impl Drop for CounterKeep {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        // The counter may be the last of its tree, which has the extension.
        match extension(&self.counter) {
            Some(extension) => extension.end(self.counter.header),
            None => retire::retire(&self.counter),
        }
        // A loop, not a recursion: a tree may be deeper than a stack. Each ancestor drops without
        // its parent.
        let mut parent = self.parent.take();
        while let Some(mut keep) = parent.and_then(Arc::into_inner) {
            parent = keep.parent.take();
        }
    }
}

/// Returns the extension that has made the counter, unless it is a bare one.
fn extension(counter: &Counter) -> Option<Arc<dyn TreeExtension>> {
    counter.tree().config.extension.clone()
}

impl<K> PageCounter<K> {
    /// The handle on a counter that `keep` keeps.
    #[allow(unsafe_code)]
    pub(crate) fn new(counter: &Counter, keep: K) -> Self {
        // SAFETY: `keep` keeps the counter, and lives as long as the value.
        let header = unsafe { CounterRef::new(counter) }.header();
        PageCounter { header, keep }
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> HeaderRef {
        self.header
    }

    pub(crate) fn keep_of(&self) -> &K {
        &self.keep
    }

    #[inline(always)]
    pub(crate) fn counter(&self) -> &Counter {
        self.header.counter()
    }

    /// Returns the counter's id, by which errors and reports name it.
    pub fn id(&self) -> CounterId {
        self.counter().id()
    }
}

impl PageCounter {
    /// The default max: no limit but those of the ancestors.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().max(10));
    /// let job = machine.child();
    /// assert_eq!(job.max(), PageCounter::UNLIMITED);
    /// assert!(job.charge(11).is_err());
    /// ```
    pub const UNLIMITED: u64 = u64::MAX;

    /// The most units that a counter can hold, 2^63 - 1. Beyond it charges are refused whatever max
    /// says. Forced charges are clamped there and counted in [`Counts::overflows`].
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let counter = PageCounter::root(CounterConfig::new());
    /// counter.charge(PageCounter::USAGE_MAX)?;
    /// assert_eq!(counter.charge(1).unwrap_err().max, PageCounter::UNLIMITED);
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    ///
    /// [`Counts::overflows`]: crate::figures::TreeCounts::overflows
    pub const USAGE_MAX: u64 = USAGE_MAX;

    /// Creates a counter without a parent, the root of a new tree.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().max(8_192));
    /// assert_eq!(machine.parent(), None);
    /// assert_eq!(machine.max(), 8_192);
    /// ```
    pub fn root(config: CounterConfig) -> PageCounter {
        let counter = match &config.extension {
            Some(extension) => Handle::adopt(Object::of(extension.root(&config))),
            None => {
                let _path = SlowPath::enter();
                creation::bare_root(&config)
            }
        };
        PageCounter::keep(counter, config.name, None)
    }

    /// Creates a counter below this one, with the batch of this one and without limits of its own.
    ///
    /// When its first child is created, a counter gives its own credit back. The call takes the
    /// tree's lock, and allocates.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().batch(0));
    /// let web = machine.child();
    /// let import = machine.child();
    /// web.force_charge(3);
    /// import.force_charge(4);
    /// assert_eq!((machine.usage(), web.parent()), (7, Some(machine.clone())));
    /// drop(import); // and what it still held
    /// assert_eq!(machine.usage(), 3);
    /// ```
    pub fn child(&self) -> PageCounter {
        self.named_child("")
    }

    /// Does what [`child`](Self::child) does, and gives the counter a name.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let files = PageCounter::root(CounterConfig::new().name("files"));
    /// assert_eq!(files.named_child("spill").name(), "spill");
    /// ```
    pub fn named_child(&self, name: &str) -> PageCounter {
        let child = match extension(self.counter()) {
            Some(extension) => Handle::adopt(Object::of(extension.child(self.header.header()))),
            None => {
                let _path = SlowPath::enter();
                creation::child(self.counter())
            }
        };
        PageCounter::keep(child, name.into(), Some(Arc::clone(&self.keep.0)))
    }

    /// Returns the name, which is empty if the counter was given none. Several counters may have
    /// the same name.
    pub fn name(&self) -> &str {
        &self.keep.0.name
    }

    /// Returns the counter of that id if it is this one or an ancestor: the level that an error
    /// names.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().name("machine").max(10));
    /// let job = machine.named_child("job");
    /// let refused = job.charge(11).unwrap_err();
    /// assert_eq!(job.level(refused.level).as_ref().map(|level| level.name()), Some("machine"));
    /// ```
    pub fn level(&self, id: CounterId) -> Option<PageCounter> {
        std::iter::successors(Some(self.clone()), PageCounter::parent)
            .find(|level| level.id() == id)
    }

    /// Returns the parent, `None` for the root.
    pub fn parent(&self) -> Option<PageCounter> {
        let keep = self.keep.0.parent.as_ref()?;
        Some(PageCounter::new(&keep.counter, Alone(Arc::clone(keep))))
    }

    #[allow(unsafe_code)]
    fn keep(counter: Handle, name: Box<str>, parent: Option<Arc<CounterKeep>>) -> PageCounter {
        // SAFETY: the value has the handle.
        let kept = unsafe { CounterRef::new(&counter) };
        counter.into_raw();
        PageCounter::new(
            &kept,
            Alone(Arc::new(CounterKeep {
                counter: kept,
                name,
                parent,
            })),
        )
    }

    // === Charge and uncharge ===

    /// Charges `n` units here and at all ancestors, or nowhere. It may block in the pressure hook,
    /// if there is one.
    ///
    /// Before it is refused, the charge drains all credit below the level that is full
    /// ([`Counts::refused_in_transit`] counts the exceptions), and asks the pressure hook. A charge
    /// of 0 units always succeeds.
    ///
    /// A charge and its uncharge cost 2.5 ns from the stock, and otherwise two or three
    /// read-modify-write instructions for each level. It is exact: once it has succeeded, usage is
    /// within max at every level, forced charges aside.
    ///
    /// # Errors
    ///
    /// [`CounterChargeError`] names the level that was full. Nothing of the charge remains.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().max(1_000));
    /// let job = machine.child();
    /// job.charge(900)?;
    /// let refused = job.charge(101).unwrap_err();
    /// assert_eq!(refused.level, machine.id(), "the level that was full");
    /// assert_eq!((refused.usage, refused.max), (900, 1_000));
    /// assert_eq!(job.live(), 900);
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    ///
    /// [`Counts::refused_in_transit`]: crate::figures::TreeCounts::refused_in_transit
    #[inline]
    pub fn charge(&self, n: u64) -> Result<(), CounterChargeError> {
        match self.header.consume(n) {
            Consume::Hit => Ok(()),
            missed => self.charge_or_refuse_slow(n, missed),
        }
    }

    #[cold]
    #[inline(never)]
    fn charge_or_refuse_slow(&self, n: u64, missed: Consume) -> Result<(), CounterChargeError> {
        let counter = self.counter();
        let mut charged = counter.try_charge_once_slow(n, missed);
        for _ in 0..HOOK_CALLS_MAX {
            let Err(refusal) = &charged else {
                return Ok(());
            };
            // An allocator that charges inside a slow path calls no foreign code.
            let Some(hook) = counter
                .tree()
                .config
                .hook
                .as_ref()
                .filter(|_| !slow_path::is_running())
            else {
                break;
            };
            let refused = refusal.refused(counter, n);
            // `None`: this charge is made inside the hook.
            if context::in_hook(|| hook(&refused)).unwrap_or(0) == 0 {
                break;
            }
            // Mutation: a-hook-is-called-once
            charged = counter.try_charge_once_slow(n, Consume::Miss);
        }
        charged.map(drop).map_err(|refusal| {
            refusal.level.count_refusal();
            refusal.refused(counter, n)
        })
    }

    /// Charges `n` units here and at all ancestors, or nowhere, and never blocks: before a refusal
    /// it drains all credit below the refusing level, as [`charge`](Self::charge) does, and asks no
    /// pressure hook.
    ///
    /// The drain takes the tree's lock and runs one heavy barrier. Where the units fit it costs
    /// what [`charge`](Self::charge) costs.
    ///
    /// Source: `page_counter_try_charge` in `mm/page_counter.c`.
    ///
    /// # Errors
    ///
    /// [`CounterChargeError`] names the level that was full. Nothing of the charge remains.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().max(1_000));
    /// let job = machine.child();
    /// job.try_charge(900)?;
    /// assert_eq!(job.try_charge(101).unwrap_err().level, machine.id());
    /// assert_eq!(job.live(), 900);
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    #[inline]
    pub fn try_charge(&self, n: u64) -> Result<(), CounterChargeError> {
        match self.header.consume(n) {
            Consume::Hit => Ok(()),
            missed => self.try_charge_or_refuse_slow(n, missed),
        }
    }

    #[cold]
    #[inline(never)]
    fn try_charge_or_refuse_slow(&self, n: u64, missed: Consume) -> Result<(), CounterChargeError> {
        let counter = self.counter();
        // Work that an allocator of ours has left on this thread may be due: it wakes and notifies.
        context::without_foreign(|| counter.try_charge_once_slow(n, missed))
            .map(drop)
            .map_err(|refusal| {
                refusal.level.count_refusal();
                refusal.refused(counter, n)
            })
    }

    /// Charges `n` units here and at all ancestors, whatever the limits say. Use it for memory that
    /// exists already.
    ///
    /// The charge drains stranded credit first. What still does not fit goes above max, and
    /// [`forced`](Self::forced) counts it. The call does not ask the pressure hook. It never
    /// blocks, and costs what a [`charge`](Self::charge) costs; above max, one more atomic
    /// instruction for each level, and a lock if a stock is open below.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let job = PageCounter::root(CounterConfig::new().max(100));
    /// job.force_charge(130); // a library has allocated it already
    /// assert_eq!((job.usage(), job.forced()), (130, 30));
    /// assert!(job.charge(1).is_err());
    /// ```
    #[inline]
    pub fn force_charge(&self, n: u64) {
        match self.header.consume(n) {
            Consume::Hit => {}
            missed => drop(self.counter().force_slow(n, missed)),
        }
    }

    /// Gives `n` units back, on any thread. It never fails and never blocks.
    ///
    /// To give back more than was charged is a bug of the caller. Usage of the level where it shows
    /// then ends at 0, [`Counts::underflows`] counts it, and [`verify`](Self::verify) reports it.
    /// From then on this counter goes without stock. Only what it really held is uncharged from its
    /// ancestors.
    ///
    /// [`charge`](Self::charge) has the cost.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let uploads = PageCounter::root(CounterConfig::new().max(100));
    /// uploads.charge(100)?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| uploads.uncharge(100));
    /// });
    /// uploads.charge(100)?;
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    ///
    /// [`Counts::underflows`]: crate::figures::TreeCounts::underflows
    #[inline]
    pub fn uncharge(&self, n: u64) {
        match self.header.put(n) {
            Put::Kept => {}
            missed => uncharge_missed(&self.header, n, missed),
        }
    }

    /// Takes `n` units off this level alone, and leaves the ancestors as they are: one step of
    /// undoing a charge by hand.
    ///
    /// If `n` is more than usage, usage ends at 0, and [`Counts::underflows`] counts it. It costs
    /// one read-modify-write instruction.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().batch(0));
    /// let job = machine.child();
    /// job.force_charge(10);
    /// job.cancel(4);
    /// assert_eq!((job.usage(), machine.usage()), (6, 10));
    /// ```
    ///
    /// [`Counts::underflows`]: crate::figures::TreeCounts::underflows
    pub fn cancel(&self, n: u64) {
        self.counter()
            .subtract(n.min(USAGE_MAX), &LazySlowPath::outside());
    }

    // === Limits ===

    /// Sets the most units that charges may bring this counter to. Credit below is drained first.
    /// Unlike [`Group::set_max`](crate::Group::set_max) it refuses a max below live charge.
    ///
    /// The call takes the tree's lock. A lower max costs a heavy barrier, and another if credit is
    /// drained. Once it has succeeded, usage stays within max, forced charges aside.
    ///
    /// # Errors
    ///
    /// [`CounterLimitError`] if live charge is above `max`; the old max stays in force. After
    /// forced charges even a raised max may be refused.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let tenant = PageCounter::root(CounterConfig::new().max(100));
    /// tenant.charge(60)?;
    /// let busy = tenant.set_max(59).unwrap_err();
    /// assert_eq!((busy.usage, busy.max), (60, 59));
    /// assert_eq!(tenant.max(), 100, "busy changes nothing");
    /// tenant.set_max(60)?;
    /// assert!(tenant.charge(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_max(&self, max: u64) -> Result<(), CounterLimitError> {
        at_limit::set_max(self.counter(), max).map_err(|usage| CounterLimitError {
            level: self.id(),
            usage,
            max,
        })
    }

    /// Sets the units that reclaim never touches. The parent sums what its children protect
    /// ([`children_min_usage`](Self::children_min_usage)) for the code that reclaims; charges do
    /// not look at it.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().batch(0));
    /// let index = machine.child();
    /// index.set_min(100);
    /// assert_eq!((index.min(), index.usage()), (100, 0), "a promise charges nothing");
    /// index.force_charge(30);
    /// assert_eq!(machine.children_min_usage(), 30, "what is not used needs no protection");
    /// ```
    pub fn set_min(&self, units: u64) {
        thresholds::set_protection(self.counter(), Protection::Min, units);
    }

    /// Sets the units that reclaim touches last. The parent sums what its children protect
    /// ([`children_low_usage`](Self::children_low_usage)) for the code that reclaims; charges do
    /// not look at it.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().batch(0));
    /// let cache = machine.child();
    /// cache.set_low(50);
    /// cache.force_charge(80);
    /// assert_eq!(machine.children_low_usage(), 50);
    /// assert_eq!((cache.low(), cache.child().low()), (50, 0), "children have their own");
    /// ```
    pub fn set_low(&self, units: u64) {
        thresholds::set_protection(self.counter(), Protection::Low, units);
    }
}

impl<K> PageCounter<K> {
    /// Returns the max in units, [`UNLIMITED`](PageCounter::UNLIMITED) by default. One load.
    pub fn max(&self) -> u64 {
        self.counter().max()
    }

    /// Returns the units that reclaim never touches, 0 by default. One load.
    pub fn min(&self) -> u64 {
        thresholds::protection(self.counter(), Protection::Min)
    }

    /// Returns the units that reclaim touches last, 0 by default. One load.
    pub fn low(&self) -> u64 {
        thresholds::protection(self.counter(), Protection::Low)
    }

    /// Changes the batch of this counter and of all below it to `units`, at most 2^40. 0 switches
    /// their stocks off.
    ///
    /// The call drains their credit first, which takes the tree's lock and a heavy barrier. A
    /// counter whose credit is out of reach (see [`Counts::refused_in_transit`]) keeps its batch.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().batch(64).adaptive(false));
    /// let job = machine.child();
    /// job.charge(10)?;
    /// assert_eq!(job.usage(), 64);
    /// machine.set_batch(0);
    /// assert_eq!((job.batch(), job.usage(), job.stocked_bound()), (0, 10, 0));
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    ///
    /// [`Counts::refused_in_transit`]: crate::figures::TreeCounts::refused_in_transit
    pub fn set_batch(&self, units: u64) {
        self.counter()
            .tree()
            .set_batch(self.counter(), units.min(BATCH_MAX));
    }

    /// Returns the units that a thread charges in advance. One load.
    pub fn batch(&self) -> u64 {
        self.counter().batch()
    }

    /// Takes back all credit of this counter and of all below it, and what groups that have gone
    /// offline anywhere in the tree still had. Returns the units taken back.
    ///
    /// The call does not wait for charges in flight. It takes the tree's lock, looks at one slot
    /// for each thread and open stock, and if there is credit runs a heavy barrier, at most four of
    /// them while other threads charge. The drain is complete if no thread charges meanwhile.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().batch(64).adaptive(false));
    /// let job = machine.child();
    /// job.charge(10)?;
    /// job.uncharge(10);
    /// assert_eq!(machine.usage(), 64);
    /// assert_eq!((machine.drain(), machine.usage()), (64, 0));
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn drain(&self) -> u64 {
        self.counter().tree().drain(self.counter())
    }
}

impl<K> PartialEq for PageCounter<K> {
    fn eq(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

impl<K> Eq for PageCounter<K> {}

debug_figures!(PageCounter, |it| id: it.id().0, name: it.name(), usage: it.usage(), max: it.max());

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use crate::{CounterConfig, PageCounter};

    #[test]
    fn a_root_that_ends_lets_its_tree_go() {
        let root = PageCounter::root(CounterConfig::new());
        let child = root.child();
        let tree = root.counter().incarnation().tree.counted();
        drop((root, child));
        assert_eq!(Arc::strong_count(&tree), 1);
    }
}
