//! Settings of a tree of counters.

use std::any::Any;

use crate::error::CounterChargeError;
use crate::sync::Arc;
use crate::sync::barrier::BarrierMode;
use crate::thread::directory::Header;

/// Units that a thread charges in advance, unless configured otherwise: the kernel's
/// MEMCG_CHARGE_BATCH.
pub(crate) const BATCH: u64 = 64;

/// The same where units are bytes: 64 pages of 4 KiB.
pub(crate) const BATCH_OF_BYTES: u64 = 64 * 4096;

/// The largest batch. Two of them are a slot's capacity, which must stay far from the sign bit.
pub(crate) const BATCH_MAX: u64 = 1 << 40;

/// Share of the root's max that may be stranded as credit, unless configured otherwise.
pub(crate) const BUDGET_SHARE: u64 = 16;

/// Maker of the counters of a tree that has nodes or statistics: a layer above this one. Each
/// counter is passed by its header.
pub(crate) trait TreeExtension: Any + Send + Sync {
    /// Makes a root.
    fn root(&self, config: &CounterConfig) -> &'static Header;

    /// Makes a counter below `parent`, which the caller keeps.
    fn child(&self, parent: &'static Header) -> &'static Header;

    /// Ends a counter without children that no handle names any more. What is charged to it leaves
    /// its ancestors.
    fn end(&self, counter: &'static Header);

    /// Counts of the statistics of the tree: flushes, visits, lists, unlists, foreign, nested.
    fn stat_counts(&self, counter: &'static Header) -> [u64; 6];
}

type PressureHook = dyn Fn(&CounterChargeError) -> u64 + Send + Sync;

/// Configuration of a tree of [`PageCounter`](crate::PageCounter)s, fixed at its root.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let machine = PageCounter::root(CounterConfig::new().batch(32).audit(true));
/// assert_eq!(machine.batch(), 32);
/// ```
#[derive(Clone)]
pub struct CounterConfig {
    pub(crate) batch: u64,
    pub(crate) adaptive: bool,
    pub(crate) audit: bool,
    pub(crate) budget: Option<u64>,
    pub(crate) max: u64,
    pub(crate) barrier: BarrierMode,
    pub(crate) hook: Option<Arc<PressureHook>>,
    pub(crate) recursive: bool,
    pub(crate) name: Box<str>,
    /// `None`: a bare counter.
    pub(crate) extension: Option<Arc<dyn TreeExtension>>,
}

impl CounterConfig {
    /// Makes the default configuration: no max, a batch of 64 units, adaptive stocks, a budget of a
    /// sixteenth of the max, no audit, and the best barrier that the system has.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new());
    /// assert_eq!((machine.batch(), machine.max()), (64, PageCounter::UNLIMITED));
    /// ```
    pub fn new() -> Self {
        CounterConfig {
            batch: BATCH,
            adaptive: true,
            audit: false,
            budget: None,
            max: u64::MAX,
            barrier: BarrierMode::Auto,
            hook: None,
            recursive: true,
            name: Box::default(),
            extension: None,
        }
    }

    /// Makes the default configuration for counters of bytes: as [`new`](Self::new), but with a
    /// batch of 256 KiB.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// assert_eq!(PageCounter::root(CounterConfig::bytes()).batch(), 256 << 10);
    /// ```
    pub fn bytes() -> Self {
        CounterConfig {
            batch: BATCH_OF_BYTES,
            ..CounterConfig::new()
        }
    }

    /// Sets the name of the root, which [`PageCounter::name`](crate::PageCounter::name) returns.
    /// None by default.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// assert_eq!(PageCounter::root(CounterConfig::new().name("connections")).name(), "connections");
    /// ```
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the units that a thread charges in advance, at most 2^40; an [adaptive](Self::adaptive)
    /// stock begins with fewer. 0 switches the stock off: every charge walks the tree, and usage is
    /// live.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let usage = |batch| {
    ///     let job = PageCounter::root(CounterConfig::new().batch(batch).adaptive(false));
    ///     job.force_charge(10);
    ///     job.usage()
    /// };
    /// assert_eq!((usage(0), usage(32)), (10, 32));
    /// ```
    pub fn batch(mut self, units: u64) -> Self {
        self.batch = units.min(BATCH_MAX);
        self
    }

    /// Sets whether stocks adapt (default), or are always open and take whole batches.
    ///
    /// A stock that adapts closes near a limit, begins small, and is wider for charges above the
    /// batch. [`RuntimeBuilder::adaptive`](crate::RuntimeBuilder::adaptive) has the figures, which
    /// hold here in units of this counter, and says what stocks that do not adapt are for.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let job = PageCounter::root(CounterConfig::new().adaptive(false));
    /// job.force_charge(10);
    /// assert_eq!(job.usage(), 64);
    /// ```
    pub fn adaptive(mut self, adaptive: bool) -> Self {
        self.adaptive = adaptive;
        self
    }

    /// Sets whether the tree keeps a second, independent count for
    /// [`PageCounter::verify`](crate::PageCounter::verify). It costs a call and a store for each
    /// charge. Use it in tests, and to find drift.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let found = |audit| {
    ///     let job = PageCounter::root(CounterConfig::new().audit(audit));
    ///     job.force_charge(10);
    ///     job.cancel(3); // half an undo
    ///     !job.verify().is_ok()
    /// };
    /// assert_eq!((found(false), found(true)), (false, true));
    /// ```
    pub fn audit(mut self, audit: bool) -> Self {
        self.audit = audit;
        self
    }

    /// Sets the most units that may lie in threads as credit, over all threads and counters below
    /// the root; a sixteenth of the root's max by default. Once the budget is used up, further
    /// charges go up the tree one by one.
    ///
    /// The budget is exact: [`stocked_bound`](crate::PageCounter::stocked_bound) of the root is
    /// never above it.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().batch(64).adaptive(false).budget(128));
    /// let first = machine.child();
    /// let second = machine.child();
    /// first.force_charge(10);
    /// second.force_charge(10); // two batches are all that may be stranded
    /// assert_eq!((machine.stocked_bound(), machine.usage()), (128, 64 + 10));
    /// ```
    pub fn budget(mut self, units: u64) -> Self {
        self.budget = Some(units);
        self
    }

    /// Sets the max of the root, in units. No max by default.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().max(1_000));
    /// machine.charge(1_000)?;
    /// assert!(machine.charge(1).is_err());
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn max(mut self, units: u64) -> Self {
        self.max = units;
        self
    }

    /// Sets the barrier pair that charges and drains use:
    /// [`BarrierMode::Auto`] by default.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// # use memcg::barrier::{BarrierMode, BarrierState};
    /// let machine = PageCounter::root(CounterConfig::new().barrier(BarrierMode::Fence));
    /// assert_eq!(machine.barrier(), BarrierState::Fence);
    /// ```
    pub fn barrier(mut self, mode: BarrierMode) -> Self {
        self.barrier = mode;
        self
    }

    /// Sets whether the part of a counter's min or low that its children do not claim protects
    /// those of them that use more than they claim, in proportion. True by default; with false that
    /// part protects no child.
    ///
    /// Source: the mount option `memory_recursiveprot`.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let protected = |recursive| {
    ///     let machine = PageCounter::root(CounterConfig::new().batch(0).recursive_protection(recursive));
    ///     let tenant = machine.child();
    ///     tenant.set_low(50);
    ///     let job = tenant.child();
    ///     job.force_charge(80);
    ///     job.effective_low(&machine)
    /// };
    /// assert_eq!((protected(true), protected(false)), (50, 0));
    /// ```
    pub fn recursive_protection(mut self, recursive: bool) -> Self {
        self.recursive = recursive;
        self
    }

    /// Sets a hook that a charge calls if it does not fit even after stranded credit was drained,
    /// before it is refused. The hook gets the error that the charge returns if the hook frees
    /// nothing.
    ///
    /// The hook runs on the charging thread, with no lock of this crate held, and returns the units
    /// that it has freed. It may charge and uncharge. As long as it returns more than 0 the charge
    /// tries again, at most 16 times. Pressure does not nest: a charge made inside the hook is
    /// refused at once if it does not fit.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// static CACHE: std::sync::OnceLock<PageCounter> = std::sync::OnceLock::new();
    /// let machine = PageCounter::root(CounterConfig::new().max(100).on_pressure(|pressure| {
    ///     let Some(cache) = CACHE.get() else { return 0 };
    ///     cache.uncharge(pressure.want()); // evict
    ///     pressure.want()
    /// }));
    /// let cache = CACHE.get_or_init(|| machine.child());
    /// cache.charge(80)?;
    /// machine.child().charge(50)?;
    /// assert_eq!(cache.live(), 50);
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn on_pressure(
        mut self,
        hook: impl Fn(&CounterChargeError) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }
}

impl Default for CounterConfig {
    fn default() -> Self {
        CounterConfig::new()
    }
}

debug_figures!(CounterConfig, |it| batch: it.batch, adaptive: it.adaptive, audit: it.audit, budget: it.budget,
    max: it.max, barrier: it.barrier, on_pressure: it.hook.is_some(), recursive_protection: it.recursive,
    name: it.name, declares: it.extension.is_some());
