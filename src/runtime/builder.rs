//! The configuration of a runtime. `build` checks it, once.

use std::fmt;
use std::time::Duration;

use super::Runtime;
use crate::counter::config::{BATCH_MAX, CounterConfig};
use crate::counter::slow_path::SlowPath;
use crate::group::{CounterKey, Group, LimitError, Limits};
use crate::hierarchy::declared_counters::{CounterDecl, DeclaredCounters, is_bad_name};
use crate::hierarchy::group_tree::{GroupConfig, GroupSettings};
use crate::lifecycle::create;
use crate::numa::config::{Numa, NumaConfig};
use crate::numa::{NodeId, Topology, TopologyError};
use crate::pool::{NoMemory, PoolAlign};
use crate::stat::coordinator::{Coordinator, STAT_BATCH, STAT_BATCH_MAX};
use crate::stat::item::{ITEMS_MAX, StatItems};
use crate::stat::{StatKey, Unit};
use crate::state::name::beginning;
use crate::sync::Arc;
use crate::sync::barrier::BarrierMode;
use crate::units::{Bytes, IntoBytes, IntoLimit, Limit};

/// The most counters of a group, that of memory included. They are one object.
const COUNTERS_MAX: usize = 1_024;

/// The configuration of a [`Runtime`]. The defaults suit most services: no max, batches of 256 KiB,
/// a sixteenth of max for credit.
///
/// ```
/// use memcg::{Bytes, Limit, Runtime};
///
/// let runtime = Runtime::builder().max(Limit::gib(2)).batch("64KiB".parse::<Bytes>()?).build()?;
/// assert_eq!(runtime.root().max(), 2 << 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A clone knows what was declared before it was made. What either declares afterwards is known to
/// that one alone.
#[derive(Clone, Debug)]
#[must_use = "`build` makes the runtime"]
pub struct RuntimeBuilder {
    limits: Limits,
    /// Of memory; the other counters have no budget.
    config: CounterConfig,
    settings: GroupSettings,
    pub(super) counters: Vec<CounterDecl>,
    /// Of the root, for counters that are declared later.
    counter_places: usize,
    pub(super) items: Arc<StatItems>,
    stat_batch: u64,
    pub(super) numa: NumaConfig,
}

/// Why [`RuntimeBuilder::build`] has made no runtime.
///
/// ```
/// use memcg::{BuildError, Runtime};
///
/// let refused = Runtime::builder().max("50%".parse::<memcg::Limit>()?).build().unwrap_err();
/// assert_eq!(refused, BuildError::PercentOfNothing);
/// # Ok::<(), memcg::errors::ParseLimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The root's max is a percentage, and the root has no ancestor that it could be a part of.
    PercentOfNothing,
    /// Another limit of the root cannot be set.
    Limits(LimitError),
    /// The batch is larger than 1 TiB: two batches must stay far below what a counter can hold.
    BatchTooLarge(Bytes),
    /// The budget for credit is above the root's max.
    BudgetAboveMax {
        /// The budget.
        budget: Bytes,
        /// The max.
        max: Bytes,
    },
    /// [`groups_max`](RuntimeBuilder::groups_max) is 0, and the root is a group already.
    NoGroups,
    /// A further counter's name is empty, is `memory`, or has been given before.
    CounterName(String),
    /// An item's name is empty, is that of one built in or [of the
    /// ledger](crate::StatKey::RESERVED), or has been given before.
    StatName(String),
    /// There are too many items of statistics: a thread keeps one bit for each.
    TooManyStats {
        /// Items declared and built in.
        items: usize,
        /// The most.
        most: usize,
    },
    /// The batch of statistics is too large: error bounds would come near the end of what can be
    /// counted.
    StatBatchTooLarge(u64),
    /// There are too many counters for one group.
    TooManyCounters {
        /// Counters declared, places for more, and that of memory.
        counters: usize,
        /// The most.
        most: usize,
    },
    /// The system gives no memory for the root.
    Memory(Bytes),
    /// The nodes do not make a topology.
    Topology(TopologyError),
    /// A tier has no node, or a node that the topology does not have.
    Tier {
        /// The name of the tier's counter.
        name: String,
        /// The node that the topology does not have.
        node: Option<NodeId>,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PercentOfNothing => f.write_str(
                "the root's max is a percentage, and nothing is above the root: give it bytes",
            ),
            Self::Limits(inner) => fmt::Display::fmt(inner, f),
            Self::BatchTooLarge(inner) => {
                write!(
                    f,
                    "a batch of {inner} is above the largest, {max}",
                    max = Bytes(BATCH_MAX)
                )
            }
            Self::BudgetAboveMax { budget, max } => {
                write!(
                    f,
                    "a budget of {budget} for credit of threads is above the root's max, {max}"
                )
            }
            Self::NoGroups => f.write_str("groups_max is 0, and the root is a group already"),
            Self::CounterName(inner) => {
                write!(
                    f,
                    "{:?} is no name for a further counter: empty, taken, or that of memory",
                    beginning(inner)
                )
            }
            Self::StatName(inner) => {
                write!(
                    f,
                    "{:?} is no name for an item of the statistics: empty or taken",
                    beginning(inner)
                )
            }
            Self::TooManyStats { items, most } => {
                write!(
                    f,
                    "{items} items of the statistics, those built in included; at most {most}"
                )
            }
            Self::StatBatchTooLarge(inner) => {
                write!(
                    f,
                    "a batch of {inner} grains is above the largest, {STAT_BATCH_MAX}"
                )
            }
            Self::TooManyCounters { counters, most } => {
                write!(
                    f,
                    "{counters} counters for each group, memory included; at most {most}"
                )
            }
            Self::Memory(inner) => write!(f, "the system has no {inner} of memory for the root"),
            Self::Topology(inner) => fmt::Display::fmt(inner, f),
            Self::Tier { name, node } => write!(
                f,
                "tier {:?} is of no node of the topology{}",
                beginning(name),
                node.map(|node| format!(": there is no node {node}"))
                    .unwrap_or_default()
            ),
        }
    }
}

impl std::error::Error for BuildError {}

impl RuntimeBuilder {
    pub(super) fn new() -> Self {
        RuntimeBuilder {
            limits: Limits::new(),
            config: CounterConfig::bytes(),
            settings: GroupSettings::DEFAULT,
            counters: Vec::new(),
            counter_places: 0,
            items: Arc::default(),
            stat_batch: STAT_BATCH,
            numa: NumaConfig::default(),
        }
    }

    /// Sets the max of the root, which bounds all groups together; no max by default. It leaves the
    /// other [`limits`](Self::limits) of the root as they are.
    pub fn max(mut self, limit: impl IntoLimit) -> Self {
        self.limits = self.limits.max(limit);
        self
    }

    /// Sets the limits of the root, none by default. They replace all that were set before, the max
    /// among them. A share has no effect, for a root has no siblings.
    ///
    /// ```
    /// use memcg::{Limit, Limits, Runtime};
    ///
    /// let limits = Limits::new().max(Limit::gib(2)).high(Limit::mib(1900)).pressure_levels(80, 95);
    /// let runtime = Runtime::builder().limits(limits).build()?;
    /// assert_eq!((runtime.root().max(), runtime.root().inspect().high()), (2 << 30, 1900 << 20));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the bytes that a thread charges in advance, 256 KiB by default and at most 1 TiB. An
    /// [adaptive](Self::adaptive) stock begins with fewer, and for charges above the batch may have
    /// up to 16 times as many. 0 switches the stock off: each charge then walks the tree, and usage
    /// is live.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().batch(memcg::Bytes(0)).adaptive(false).build()?;
    /// let _held = runtime.root().charge(10)?;
    /// assert_eq!(runtime.root().usage(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn batch(mut self, bytes: impl IntoBytes) -> Self {
        self.config.batch = bytes.into_bytes().0;
        self
    }

    /// Sets whether stocks adapt (default), or are always open and take whole batches.
    ///
    /// A stock that adapts closes near a limit and opens again with room. Near is less than 4
    /// batches of room at any level, room is 16; both grow with the number of threads above two. It
    /// also begins small: a thread charges a 64th of a batch in advance, four times as much with
    /// each further refill, up to the batch. [`Runtime::release_idle_credit`] has it begin again.
    /// So a thread that charged little and sleeps leaves little behind. For charges above the batch
    /// it gets up to 16 times as large, where all that may be stranded then is at most a 32nd of
    /// the room at each limited group: charges up to 4 MiB hit in a tenant of gigabytes. The
    /// kernel's stock is always open and takes whole batches: figures of usage are round then, and
    /// a comparison with the kernel is fair. The [bound](crate::PageCounter::stocked_bound) is the
    /// same.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let _held = runtime.root().charge(10)?;
    /// assert_eq!(runtime.root().usage(), 262_144, "the first charge takes a batch");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adaptive(mut self, adaptive: bool) -> Self {
        self.config.adaptive = adaptive;
        self
    }

    /// Sets the most bytes that may lie in threads as credit, over all threads and groups; a
    /// sixteenth of the root's max by default. Once the budget is used up, further charges walk the
    /// tree one by one.
    ///
    /// ```
    /// let budget = memcg::Bytes(512 << 10);
    /// let runtime = memcg::Runtime::builder().budget(budget).adaptive(false).build()?;
    /// let _held = runtime.root().charge(10)?;
    /// assert!(runtime.root().memory().stocked_bound() <= budget.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn budget(mut self, bytes: impl IntoBytes) -> Self {
        self.config.budget = Some(bytes.into_bytes().0);
        self
    }

    /// Sets whether the runtime keeps a second, independent count for [`Runtime::verify`], which
    /// has an example. It costs a call and a store for each charge. Use it in tests, and to find
    /// drift.
    pub fn audit(mut self, audit: bool) -> Self {
        self.config.audit = audit;
        self
    }

    /// Sets the barrier pair of charges and drains.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().barrier(memcg::barrier::BarrierMode::Fence).build()?;
    /// assert_eq!(runtime.barrier(), memcg::barrier::BarrierState::Fence);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn barrier(mut self, mode: BarrierMode) -> Self {
        self.config.barrier = mode;
        self
    }

    /// Sets how many groups may exist at a time, 2^32 - 1 by default. The root counts, and so do
    /// groups that went offline and still hold something.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().groups_max(2).build()?;
    /// let _first = runtime.root().create("first", memcg::Limits::new()).unwrap();
    /// let refused = runtime.root().create("second", memcg::Limits::new()).unwrap_err();
    /// assert!(matches!(refused, memcg::errors::CreateError::Full { most: 2, .. }));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn groups_max(mut self, most: u32) -> Self {
        self.settings.groups_max = most;
        self
    }

    /// Sets how groups lie in memory: at whole cache lines (default), or without a byte between
    /// them. See [`Runtime::pools`] for an example.
    pub fn pool_align(mut self, align: PoolAlign) -> Self {
        self.settings.pool_align = align;
        self
    }

    /// Declares a counter that every group has beside memory, with a stock of its own. Returns the
    /// handle that [`Group::counter`](crate::Group::counter) and
    /// [`Group::charge_set`](crate::Group::charge_set) take.
    ///
    /// It counts bytes, or with [`Unit::Events`] descriptors, sessions or other things. Its errors
    /// print amounts in this unit. Amounts and limits are numbers of the unit, and cost the same.
    /// [`CounterKey`] says what such a counter does not do (reclaim, waiting, a high), and how
    /// large its batch is.
    ///
    /// ```
    /// use memcg::{CounterKey, Limits, Runtime, Unit};
    ///
    /// let mut builder = Runtime::builder();
    /// let spill = builder.counter("spill", Unit::Bytes);
    /// let descriptors = builder.counter("descriptors", Unit::Events);
    /// let runtime = builder.build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// acme.counter(descriptors)?.set_max(3)?;
    /// let held = acme.charge_set(&[(CounterKey::MEMORY, 64), (spill, 1_000), (descriptors, 3)])?;
    /// assert_eq!(held.each_ref().map(memcg::Charge::bytes), [64, 1_000, 3]);
    /// let refused = acme.charge_set(&[(descriptors, 1)]).unwrap_err();
    /// let line = "/acme refused 1 of descriptors for /acme: short by 1, usage 3 of max 3; \
    ///             neither waiting nor reclaim can help; to fit, uncharge some of descriptors in /acme \
    ///             or raise max of descriptors of /acme";
    /// assert_eq!(refused.to_string(), line);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counter(&mut self, name: &str, unit: Unit) -> CounterKey {
        let builder = Arc::make_mut(&mut self.items).builder;
        self.counters.push(CounterDecl {
            name: name.into(),
            builder,
            unit,
        });
        CounterKey::new(self.counters.len(), builder)
    }

    /// Sets how many further counters can be declared after the runtime is built, with
    /// [`Runtime::declare_counter`](crate::Runtime::declare_counter), until its first group is
    /// created; none by default. It is for a service whose parts bring counters of their own, which
    /// it does not know when it builds the runtime.
    ///
    /// A place takes half a kilobyte of the root alone. A group has the counters that are declared
    /// by then.
    ///
    /// ```
    /// use memcg::{Limits, Runtime, Unit};
    ///
    /// let runtime = Runtime::builder().counter_places(16).build()?;
    /// let vectors = runtime.declare_counter("vectors", Unit::Bytes)?;
    /// runtime.root().counter(vectors)?.set_max(2 << 30)?;
    /// let tenant = runtime.root().create("t7", Limits::new())?;
    /// let _held = tenant.try_charge_set(&[(memcg::CounterKey::MEMORY, 4_096), (vectors, 4_096)])?;
    /// assert_eq!(tenant.counter(vectors)?.live(), 4_096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counter_places(mut self, places: usize) -> Self {
        self.counter_places = places;
        self
    }

    /// Declares an item of the statistics that every group has. [`StatKey`] has the items that are
    /// built in.
    ///
    /// ```
    /// let mut builder = memcg::Runtime::builder();
    /// let rows = builder.stat("rows_scanned", memcg::Unit::Events);
    /// let runtime = builder.build()?;
    /// runtime.root().stat_add(rows, 1_000);
    /// assert_eq!(runtime.root().read(memcg::Freshness::Exact).get(rows), 1_000);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn stat(&mut self, name: &str, unit: Unit) -> StatKey {
        Arc::make_mut(&mut self.items).declare(name, unit, false)
    }

    /// Declares an item as [`stat`](Self::stat) does, one that counts memory which lies on nodes.
    ///
    /// ```
    /// let mut builder = memcg::Runtime::builder();
    /// let arena = builder.stat_per_node("arena", memcg::Unit::Bytes);
    /// let runtime = builder.build()?;
    /// assert!(runtime.items().any(|item| item.stat == arena && item.per_node));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn stat_per_node(&mut self, name: &str, unit: Unit) -> StatKey {
        Arc::make_mut(&mut self.items).declare(name, unit, true)
    }

    /// Sets how many grains a read with [`Freshness::Threshold`](crate::Freshness::Threshold) may
    /// miss for each writer: 1,024 by default, at most 2^40. A thread announces what it has written
    /// to the ancestors after half of them, and a read flushes after the other half. A larger batch
    /// makes announcements rarer; with 0 a thread announces every addition.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().stat_batch(64).build()?;
    /// runtime.root().stat_add(memcg::StatKey::WORKINGSET_REFAULT, 1);
    /// assert_eq!(runtime.root().read(memcg::Freshness::Threshold).max_error(), 32);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn stat_batch(mut self, grains: u64) -> Self {
        self.stat_batch = grains;
        self
    }

    /// Sets whether the part of a group's min or low that its children do not claim protects those
    /// of them that use more than they claim, in proportion. True by default; with false each group
    /// protects what it claims itself and no more.
    ///
    /// Source: the mount option `memory_recursiveprot`.
    ///
    /// ```
    /// for (recursive, protected) in [(true, 50), (false, 0)] {
    ///     let runtime = memcg::Runtime::builder().recursive_protection(recursive).build()?;
    ///     let tenant = runtime.root().create("tenant", memcg::Limits::new().low(50))?;
    ///     let query = tenant.create("q17", memcg::Limits::new())?;
    ///     let _held = query.charge(80)?;
    ///     assert_eq!(query.memory().effective_low(&runtime.root().memory()), protected);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recursive_protection(mut self, recursive: bool) -> Self {
        self.config.recursive = recursive;
        self
    }

    /// Sets how long one charge, one [`Group::set_limits`](crate::Group::set_limits) or one
    /// [`Group::reclaim`](crate::Group::reclaim) may spend in reclaim, 100 ms by default. After
    /// that time it asks no further reclaimer, and a charge that does not fit is refused. It always
    /// asks at least one, and does not interrupt the one at work. A charge that has waited for [a
    /// promise](crate::ReclaimContext::promise) in vain has as much time again.
    ///
    /// ```
    /// assert!(memcg::Runtime::builder().reclaim_time(std::time::Duration::from_millis(5)).build().is_ok());
    /// ```
    pub fn reclaim_time(mut self, time: Duration) -> Self {
        self.settings.reclaim_time = time;
        self
    }

    /// Sets the longest delay of a charge above [high](crate::Limits::high), 2 seconds by default.
    /// A charge does not sleep for 10 ms or less, so such a time means no delay.
    ///
    /// Source: `MEMCG_MAX_HIGH_DELAY_JIFFIES`.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().delay_max(std::time::Duration::from_millis(100)).build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new().high(1))?;
    /// let _held = acme.force_charge(1 << 30);
    /// assert_eq!(acme.inspect().high_delay(1 << 20), std::time::Duration::from_millis(100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn delay_max(mut self, time: Duration) -> Self {
        self.settings.delay_max = time;
        self
    }

    /// Sets whether groups count how long their chargers stand still, which they do by default. If
    /// they do not, [`Group::pressure`](crate::Group::pressure) is always zero. A charge that
    /// stands still pays a reading of the clock and takes a lock twice; other charges pay nothing.
    ///
    /// Source: `cgroup.pressure`.
    ///
    /// ```
    /// # use memcg::figures::GroupPressure;
    /// # use memcg::Runtime;
    /// let root = Runtime::builder().count_stalls(false).build()?.root();
    /// assert_eq!(root.pressure(), GroupPressure::default());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn count_stalls(mut self, whether: bool) -> Self {
        self.settings.counts_stalls = whether;
        self
    }

    /// Sets how long a charge waits for the memory of one group that was
    /// [cancelled](crate::OomPolicy::Choose) for it, 1 second by default. After that time it
    /// chooses the next one.
    ///
    /// ```
    /// assert!(memcg::Runtime::builder().oom_time(std::time::Duration::from_secs(5)).build().is_ok());
    /// ```
    pub fn oom_time(mut self, time: Duration) -> Self {
        self.settings.oom_time = time;
        self
    }

    /// Checks the configuration and makes the runtime. It allocates the root, and starts no thread.
    ///
    /// # Errors
    ///
    /// [`BuildError`] says which setting is not possible.
    pub fn build(self) -> Result<Runtime, BuildError> {
        let (max, topology) = self.check()?;
        let memory = CounterConfig {
            max,
            ..self.config.clone()
        };
        let further = CounterConfig {
            // The budget is in bytes, and the others may count something else.
            budget: None,
            ..self.config.clone()
        };
        let further = vec![further; self.counters.len() + self.counter_places];
        let configs: Vec<_> = std::iter::once(memory).chain(further).collect();
        let numa = Numa::new(topology, self.numa.node_of, self.numa.tiers.into());
        let root = {
            let _path = SlowPath::enter();
            let nodes: Vec<_> = numa.topology.nodes().collect();
            let stats = Coordinator::new(
                self.items,
                &nodes,
                self.settings.pool_align,
                self.stat_batch,
            );
            let groups = GroupConfig {
                settings: self.settings,
                further: DeclaredCounters::new(self.counters, self.counter_places),
                stats,
                numa,
            };
            create::root_group(groups, &configs, self.limits.cover_allocations)
                .map_err(|NoMemory { bytes }| BuildError::Memory(Bytes(bytes as u64)))?
        };
        let runtime = Runtime::new(Group::from_handle(root));
        // The root has its max from the start: the credit of threads is a part of it.
        let mut rest = self.limits;
        rest.max = None;
        if rest != Limits::new() {
            let root = runtime.root();
            root.set_limits(rest).map_err(BuildError::Limits)?;
        }
        Ok(runtime)
    }

    /// Returns the max of the root, and the nodes.
    fn check(&self) -> Result<(u64, Topology), BuildError> {
        let max = match self.limits.max {
            Some(Limit::Percent(_)) => return Err(BuildError::PercentOfNothing),
            Some(Limit::Bytes(bytes)) => Bytes(bytes),
            Some(Limit::Unlimited) | None => Bytes(u64::MAX),
        };
        if self.config.batch > BATCH_MAX {
            return Err(BuildError::BatchTooLarge(Bytes(self.config.batch)));
        }
        if let Some(budget) = self.config.budget.map(Bytes).filter(|budget| *budget > max) {
            return Err(BuildError::BudgetAboveMax { budget, max });
        }
        if self.settings.groups_max == 0 {
            return Err(BuildError::NoGroups);
        }
        self.check_counters()?;
        if self.items.len() > ITEMS_MAX {
            return Err(BuildError::TooManyStats {
                items: self.items.len(),
                most: ITEMS_MAX,
            });
        }
        if let Some(name) = self.items.bad_name() {
            return Err(BuildError::StatName(name.to_string()));
        }
        if self.stat_batch > STAT_BATCH_MAX {
            return Err(BuildError::StatBatchTooLarge(self.stat_batch));
        }
        Ok((max.0, self.check_nodes()?))
    }

    fn check_nodes(&self) -> Result<Topology, BuildError> {
        let topology = self.numa.topology.clone().map_err(BuildError::Topology)?;
        for tier in &self.numa.tiers {
            let unknown = tier
                .nodes
                .iter()
                .find(|&&node| topology.index_of(node).is_none())
                .copied();
            if unknown.is_some() || tier.nodes.is_empty() {
                let name = self.counters[tier.counter - 1].name.to_string();
                return Err(BuildError::Tier {
                    name,
                    node: unknown,
                });
            }
        }
        Ok(topology)
    }

    fn check_counters(&self) -> Result<(), BuildError> {
        for (before, CounterDecl { name, .. }) in self.counters.iter().enumerate() {
            let earlier = self.counters[..before].iter().map(|other| &*other.name);
            if is_bad_name(name, earlier) {
                return Err(BuildError::CounterName(name.to_string()));
            }
        }
        let counters = (1 + self.counters.len()).saturating_add(self.counter_places);
        if counters > COUNTERS_MAX {
            return Err(BuildError::TooManyCounters {
                counters,
                most: COUNTERS_MAX,
            });
        }
        Ok(())
    }
}
