//! `PageCounter`: the handle that users hold.

use std::fmt;

use crate::counter::config::{BATCH_MAX, CounterConfig};
use crate::counter::join;
use crate::counter::object::{Counter, USAGE_MAX};
use crate::counter::protection::Protection;
use crate::counter::retire;
use crate::counter::slow_path::slow_path;
use crate::counter::tree::Tree;
use crate::error::{Busy, CounterId, Refused};
use crate::sync::{Arc, model_failed};
use crate::thread::directory::Header;
use crate::thread::slot::{Consume, Put};

pub(crate) mod reading;
pub(crate) mod set;

pub use reading::{Counts, PeakWindow};

/// A hierarchical counter: a usage, a limit, a parent, and a stock of pre-charged credit for each thread. What a unit
/// is (a byte, a page, a connection) is the owner's affair.
///
/// Charging a counter charges all its ancestors; a charge is admitted when it fits at every level and leaves no trace
/// when it does not. Most charges are paid from the calling thread's stock and touch no shared memory (about 2 ns for a
/// charge and its uncharge, at any depth).
///
/// The type is a handle: clones name the same counter, comparison is by identity. When the last handle is gone and no
/// children are left, the counter goes, and what is still charged to it leaves its ancestors.
///
/// At every quiescent point and every level, `usage == live charges of the subtree + credit in its stocks`.
///
/// Source: `mm/page_counter.c`, and "move stock from mem_cgroup to page_counter" (J. Hahn, linux-mm, 2026).
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let machine = PageCounter::root(CounterConfig::new().batch(64));
/// let job = machine.child();
/// machine.set_max(1_000)?;
/// job.try_charge(10)?;
/// assert_eq!(machine.usage(), job.live() + job.stocked());
/// job.uncharge(10);
/// machine.drain();
/// assert_eq!(machine.usage(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PageCounter {
    /// The hit path needs nothing else.
    header: &'static Header,
    keep: Arc<Keep>,
}

/// Keeps a counter and its ancestors in the tree.
struct Keep {
    node: &'static Counter,
    parent: Option<Arc<Keep>>,
}

impl Drop for Keep {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        slow_path(|_, _| retire::retire(self.node));
        // Not by recursion: a tree may be deeper than a stack. Each ancestor drops without a parent to go on to.
        let mut parent = self.parent.take();
        while let Some(mut keep) = parent.and_then(Arc::into_inner) {
            parent = keep.parent.take();
        }
    }
}

// === impl PageCounter: the tree ===

impl PageCounter {
    /// The default max: no limit but the ancestors'.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().max(10));
    /// let job = machine.child();
    /// assert_eq!(job.max(), PageCounter::UNLIMITED);
    /// assert!(job.try_charge(11).is_err());
    /// ```
    pub const UNLIMITED: u64 = u64::MAX;

    /// The most units that a counter can hold, 2^63 - 1. Beyond it charges are refused whatever max says, and forced
    /// charges clamped and counted in [`Counts::overflows`].
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let counter = PageCounter::root(CounterConfig::new());
    /// counter.try_charge(PageCounter::USAGE_MAX)?;
    /// assert_eq!(counter.try_charge(1).unwrap_err().max, PageCounter::UNLIMITED);
    /// # Ok::<(), memcg::Refused>(())
    /// ```
    pub const USAGE_MAX: u64 = USAGE_MAX;

    /// A counter without parent, and a tree of its own below it. As long as it has children it has no stock.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().max(8_192));
    /// assert_eq!(machine.parent(), None);
    /// assert_eq!(machine.max(), 8_192);
    /// ```
    pub fn root(config: CounterConfig) -> PageCounter {
        slow_path(|_, _| PageCounter::keep_root(join::root(&Tree::new(config.clone()), &config, true)))
    }

    /// A counter below this one, with its batch and without limits.
    ///
    /// The first child makes the parent give its own credit back. Takes the tree's lock and allocates a few cache
    /// lines.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().batch(0));
    /// let (web, import) = (machine.child(), machine.child());
    /// web.charge(3);
    /// import.charge(4);
    /// assert_eq!(machine.usage(), 7);
    /// drop(import); // and what it still held
    /// assert_eq!(machine.usage(), 3);
    /// ```
    pub fn child(&self) -> PageCounter {
        self.child_with_stock(true)
    }

    pub(crate) fn child_with_stock(&self, stock: bool) -> PageCounter {
        slow_path(|_, _| {
            let node = join::child(self.node().tree(), self.node(), stock);
            PageCounter::keep(node, Some(Arc::clone(&self.keep)))
        })
    }

    /// The parent, if any.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new());
    /// let job = machine.child();
    /// assert_eq!(job.parent().as_ref(), Some(&machine));
    /// ```
    pub fn parent(&self) -> Option<PageCounter> {
        let keep = self.keep.parent.as_ref()?;
        Some(PageCounter { header: keep.node.header, keep: Arc::clone(keep) })
    }

    /// The counter's name in errors and verdicts.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().max(10));
    /// let refused = machine.child().try_charge(11).unwrap_err();
    /// assert_eq!(refused.level, machine.id(), "who was full");
    /// ```
    pub fn id(&self) -> CounterId {
        self.node().id()
    }

    pub(crate) fn keep_root(node: &'static Counter) -> PageCounter {
        PageCounter::keep(node, None)
    }

    fn keep(node: &'static Counter, parent: Option<Arc<Keep>>) -> PageCounter {
        PageCounter { header: node.header, keep: Arc::new(Keep { node, parent }) }
    }

    #[inline(always)]
    pub(crate) fn node(&self) -> &'static Counter {
        self.keep.node
    }
}

// === impl PageCounter: charge and uncharge ===

impl PageCounter {
    /// Charge `n` units here and at all ancestors, or nowhere. May block: in the pressure hook, if there is one.
    ///
    /// Exact: after a success usage is within max at every level, unless a forced charge is on top. Before a refusal
    /// all credit below the refusing level has been drained ([`Counts::refused_in_transit`] counts the exceptions) and
    /// the pressure hook asked. Charging 0 always succeeds. About 1 ns from the stock; else two or three
    /// read-modify-write instructions a level.
    ///
    /// # Errors
    ///
    /// [`Refused`] names the level that was full. Nothing of the charge remains.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().max(1_000));
    /// let job = machine.child();
    /// job.try_charge(900)?;
    /// let refused = job.try_charge(101).unwrap_err();
    /// assert_eq!((refused.level, refused.usage, refused.max), (machine.id(), 900, 1_000));
    /// assert_eq!(job.live(), 900);
    /// # Ok::<(), memcg::Refused>(())
    /// ```
    #[inline]
    pub fn try_charge(&self, n: u64) -> Result<(), Refused> {
        match self.header.consume(n) {
            Consume::Hit => Ok(()),
            missed => self.try_charge_slow(n, missed),
        }
    }

    #[cold]
    #[inline(never)]
    fn try_charge_slow(&self, n: u64, missed: Consume) -> Result<(), Refused> {
        self.node().try_charge_slow(n, missed).map_err(|refusal| refusal.refused(self.node(), n))
    }

    /// Charge `n` units here and at all ancestors, whatever the limits say.
    ///
    /// For memory that exists already. Stranded credit is drained first; what still does not fit goes above max and is
    /// kept apart in [`forced`](Self::forced). The pressure hook is not asked. Costs what a
    /// [`try_charge`](Self::try_charge) costs; above max a lock for each level.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let job = PageCounter::root(CounterConfig::new().max(100));
    /// job.charge(130); // a library has allocated it already
    /// assert_eq!((job.usage(), job.forced()), (130, 30));
    /// assert!(job.try_charge(1).is_err());
    /// ```
    #[inline]
    pub fn charge(&self, n: u64) {
        match self.header.consume(n) {
            Consume::Hit => {}
            missed => drop(self.node().force_slow(n, missed)),
        }
    }

    /// Give `n` units back, on whatever thread. Never fails.
    ///
    /// Giving back more than was charged is a bug of the caller: it is clamped at the level where it shows, counted in
    /// [`Counts::underflows`] and reported by [`verify`](Self::verify); this counter then goes without stock, and its
    /// ancestors keep what belongs to others.
    ///
    /// About 1 ns into the stock; else a read-modify-write instruction a level.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let uploads = PageCounter::root(CounterConfig::new().max(100));
    /// uploads.try_charge(100)?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| uploads.uncharge(100));
    /// });
    /// uploads.try_charge(100)?;
    /// # Ok::<(), memcg::Refused>(())
    /// ```
    #[inline]
    pub fn uncharge(&self, n: u64) {
        match self.header.put(n) {
            Put::Kept => {}
            missed => self.header.uncharge_slow(n, missed),
        }
    }

    /// Take `n` units off this level only, leaving the ancestors as they are: one step of undoing a charge by hand.
    ///
    /// More than usage is clamped and counted in [`Counts::underflows`]. One read-modify-write instruction.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().batch(0));
    /// let job = machine.child();
    /// job.charge(10);
    /// job.cancel(4);
    /// assert_eq!((job.usage(), machine.usage()), (6, 10));
    /// ```
    pub fn cancel(&self, n: u64) {
        self.node().subtract(n.min(USAGE_MAX));
    }
}

// === impl PageCounter: limits ===

impl PageCounter {
    /// Set the most units that charges may bring this counter to. Credit below it is drained before live charge is in
    /// the way.
    ///
    /// From a success on, usage stays within max but for forced charges. Takes the tree's lock; lowering costs a heavy
    /// barrier, and another where credit is drained.
    ///
    /// # Errors
    ///
    /// [`Busy`] when live charge is above `max`, which forced charges may bring about even where `max` is raised; the
    /// old max holds.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let tenant = PageCounter::root(CounterConfig::new());
    /// tenant.try_charge(60)?;
    /// let busy = tenant.set_max(59).unwrap_err();
    /// assert_eq!((busy.usage, busy.max), (60, 59));
    /// tenant.set_max(60)?;
    /// assert!(tenant.try_charge(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_max(&self, max: u64) -> Result<(), Busy> {
        slow_path(|_, _| self.node().tree().set_max(self.node(), max)).map_err(|usage| Busy {
            level: self.id(),
            usage,
            max,
        })
    }

    /// The most units, [`UNLIMITED`](Self::UNLIMITED) by default. One load.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let tenant = PageCounter::root(CounterConfig::new().max(100));
    /// tenant.charge(60);
    /// assert!(tenant.set_max(59).is_err());
    /// assert_eq!(tenant.max(), 100, "busy changes nothing");
    /// ```
    pub fn max(&self) -> u64 {
        self.node().max()
    }

    /// Set the units that reclaim never touches. Told to the parent ([`children_min_usage`](Self::children_min_usage))
    /// for whoever reclaims; charges do not look at it.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().batch(0));
    /// let index = machine.child();
    /// index.charge(30);
    /// index.set_min(100);
    /// assert_eq!(machine.children_min_usage(), 30, "what is not used needs no protection");
    /// ```
    pub fn set_min(&self, units: u64) {
        self.node().set_protection(Protection::Min, units);
    }

    /// The units that reclaim never touches, 0 by default. One load.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let index = PageCounter::root(CounterConfig::new());
    /// index.set_min(100);
    /// assert_eq!((index.min(), index.usage()), (100, 0), "a promise charges nothing");
    /// ```
    pub fn min(&self) -> u64 {
        self.node().setting(Protection::Min)
    }

    /// Set the units that reclaim touches last. Told to the parent ([`children_low_usage`](Self::children_low_usage))
    /// for whoever reclaims; charges do not look at it.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().batch(0));
    /// let cache = machine.child();
    /// cache.set_low(50);
    /// cache.charge(80);
    /// assert_eq!(machine.children_low_usage(), 50);
    /// ```
    pub fn set_low(&self, units: u64) {
        self.node().set_protection(Protection::Low, units);
    }

    /// The units that reclaim touches last, 0 by default. One load.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let tenant = PageCounter::root(CounterConfig::new());
    /// tenant.set_low(50);
    /// assert_eq!((tenant.low(), tenant.child().low()), (50, 0), "children have their own");
    /// ```
    pub fn low(&self) -> u64 {
        self.node().setting(Protection::Low)
    }

    /// Change the batch of this counter and all below it to `units`, at most 2^40; 0 switches their stock off.
    ///
    /// Their credit is drained first: the tree's lock and a heavy barrier. A counter whose credit is out of reach (see
    /// [`Counts::refused_in_transit`]) keeps its batch.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let job = PageCounter::root(CounterConfig::new().batch(64).adaptive(false));
    /// job.try_charge(10)?;
    /// assert_eq!(job.usage(), 64);
    /// job.set_batch(0);
    /// assert_eq!((job.usage(), job.stocked_bound()), (10, 0));
    /// # Ok::<(), memcg::Refused>(())
    /// ```
    pub fn set_batch(&self, units: u64) {
        slow_path(|_, _| self.node().tree().set_batch(self.node(), units.min(BATCH_MAX)));
    }

    /// Units that a thread charges in advance. One load.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new());
    /// let job = machine.child();
    /// machine.set_batch(16);
    /// assert_eq!(job.batch(), 16);
    /// ```
    pub fn batch(&self) -> u64 {
        self.node().batch()
    }

    /// Take back all credit of this counter and all below it. Returns the units; complete when nobody charges
    /// meanwhile.
    ///
    /// Waits for no charge in flight. Takes the tree's lock, looks at one slot for each thread and open stock, and
    /// where there is credit runs a heavy barrier, at most four while others charge.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().batch(64).adaptive(false));
    /// let job = machine.child();
    /// job.try_charge(10)?;
    /// job.uncharge(10);
    /// assert_eq!(machine.usage(), 64);
    /// assert_eq!((machine.drain(), machine.usage()), (64, 0));
    /// # Ok::<(), memcg::Refused>(())
    /// ```
    pub fn drain(&self) -> u64 {
        slow_path(|_, _| self.node().tree().drain(self.node()))
    }
}

impl Clone for PageCounter {
    fn clone(&self) -> Self {
        PageCounter { header: self.header, keep: Arc::clone(&self.keep) }
    }
}

impl PartialEq for PageCounter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.keep, &other.keep)
    }
}

impl Eq for PageCounter {}

impl fmt::Debug for PageCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCounter")
            .field("id", &self.node().id().0)
            .field("usage", &self.usage())
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}
