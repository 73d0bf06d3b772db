//! More counters than memory: spill files, swap, a tier of memory. Each has its own limits; one
//! call charges a set.

use super::counter::CounterKey;
use super::error::{ChargeError, LimitError, Repr};
use super::events::Events;
use super::handle::Group;
use crate::admission::lowered;
use crate::counter::object;
use crate::counter::object::HeaderRef;
use crate::hierarchy::{group_object, group_tree, limits};
use crate::page_counter::PageCounter;
use crate::reclaim::rings;
use crate::stat::Unit;
use crate::state::applied::Settings;
use crate::state::limits::LimitKind;
use crate::units::{IntoLimit, Limit};

/// # Counters
impl Group {
    /// Returns the group's counter of memory: to drain its stock, to set its batch, or to open a
    /// peak of your own. The figures and limits of the group are those of this counter;
    /// [`GroupCounter`] has more of them.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let root = runtime.root();
    /// let _held = root.charge(10)?;
    /// assert_eq!((root.usage(), root.live(), root.memory().stocked()), (262_144, 10, 262_134));
    /// assert_eq!((root.memory().drain(), root.usage()), (262_134, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory(&self) -> GroupCounter {
        GroupCounter::new(self.first(), self.clone())
    }

    /// Returns one counter of this group, to read it or to limit it.
    ///
    /// # Errors
    ///
    /// [`ChargeErrorKind::OtherRuntime`](crate::ChargeErrorKind::OtherRuntime) if this runtime has
    /// no such counter.
    ///
    /// ```
    /// # let mut builder = memcg::Runtime::builder();
    /// let spill = builder.counter("spill", memcg::Unit::Bytes);
    /// # let runtime = builder.build()?;
    /// assert_eq!(runtime.root().counter(spill)?.name(), "spill");
    /// assert!(memcg::Runtime::builder().build()?.root().counter(spill).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counter(&self, counter: CounterKey) -> Result<GroupCounter, ChargeError> {
        match self.header_of(counter) {
            Some(header) => Ok(GroupCounter::new(header.counter(), self.clone())),
            None => Err(self.unknown_counter_slow(counter)),
        }
    }

    /// Returns the key of the counter of that name, for code that has not declared it: `memory`, or
    /// a name that was declared. `None` where this runtime has no such counter. It
    /// compares the names one by one; keep the key.
    ///
    /// ```
    /// # let mut builder = memcg::Runtime::builder();
    /// let sort = builder.counter("engine_sort", memcg::Unit::Bytes);
    /// # let runtime = builder.build()?;
    /// let root = runtime.root();
    /// assert_eq!(root.counter_key("engine_sort"), Some(sort));
    /// assert_eq!(root.counter_key("memory"), Some(memcg::CounterKey::MEMORY));
    /// assert_eq!(root.counter_key("engine_join"), None);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn counter_key(&self, name: &str) -> Option<CounterKey> {
        let named = |counter: &&object::Counter| {
            group_tree::further_name(counter).unwrap_or("memory") == name
        };
        self.first().group().find(named).map(CounterKey::of_counter)
    }

    /// Returns the counters of this group beside memory, tiers among them, in the order in which
    /// they were declared. It takes no lock, and costs a handle for each.
    ///
    /// ```
    /// # let mut builder = memcg::Runtime::builder();
    /// builder.counter("spill", memcg::Unit::Bytes);
    /// builder.counter("memsw", memcg::Unit::Bytes);
    /// # let runtime = builder.build()?;
    /// let root = runtime.root();
    /// assert_eq!(root.counters().map(|counter| counter.name().to_string()).collect::<Vec<_>>(), ["spill", "memsw"]);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn counters(&self) -> impl Iterator<Item = GroupCounter> {
        let declared = group_tree::of(self.first()).further.count();
        let further = self.first().group().skip(1).take(declared);
        further.map(|counter| GroupCounter::new(counter, self.clone()))
    }

    /// The counter of that name, if this runtime has it.
    #[inline(always)]
    pub(super) fn header_of(&self, counter: CounterKey) -> Option<HeaderRef> {
        match counter.number {
            0 => Some(self.header),
            number => group_object::further(self.first()).header(number, counter.builder),
        }
    }

    /// The same for several keys, one after the other.
    #[inline(always)]
    pub(super) fn headers(&self) -> impl Fn(CounterKey) -> Option<HeaderRef> {
        let further = group_object::further(self.first());
        move |counter| match counter.number {
            0 => Some(self.header),
            number => further.header(number, counter.builder),
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn unknown_counter_slow(&self, counter: CounterKey) -> ChargeError {
        Repr::UnknownCounter {
            group: self.clone(),
            counter: counter.number,
        }
        .into()
    }

    /// Sets limits of a counter of this group: all that are due, or none. Returns the usage above a
    /// max then. `due` and `also` run under the tree's lock, see [`limits::set`].
    pub(super) fn set_kinds(
        &self,
        counter: &object::Counter,
        wanted: &[(LimitKind, Option<Limit>)],
        due: impl FnOnce() -> Settings,
        also: impl FnOnce(Settings),
    ) -> Result<u64, LimitError> {
        let has_soft =
            |&(kind, limit): &(_, Option<Limit>)| kind == LimitKind::Soft && limit.is_some();
        if wanted.iter().any(has_soft) {
            // Before the lock is taken, under which nothing is allocated.
            rings::make_in_any_case(counter);
        }
        let excess = limits::set(counter, wanted, due, also)
            .map_err(|(kind, none)| self.limit_error(kind, none, None))?;
        let sets_max =
            |&(kind, limit): &(_, Option<Limit>)| kind == LimitKind::Max && limit.is_some();
        if wanted.iter().any(sets_max) {
            lowered::end_vain_waits(counter);
        }
        Ok(excess)
    }
}

/// One counter of a group. Its figures are those of the subtree. [`Group`]'s methods say what each
/// figure means and costs.
///
/// It is a [`PageCounter`] that keeps its group. So it has the methods of that type beside those
/// listed for this one:
/// * what is charged: [`usage`](PageCounter::usage), [`live`](PageCounter::live),
///   [`headroom`](PageCounter::headroom), [`peak`](PageCounter::peak),
///   [`peak_window`](PageCounter::peak_window),
///   [`peak_live`](PageCounter::peak_live), [`peak_live_window`](PageCounter::peak_live_window),
///   [`forced`](PageCounter::forced);
/// * its limits: [`max`](PageCounter::max), [`min`](PageCounter::min), [`low`](PageCounter::low),
///   and [`refused_count`](PageCounter::refused_count);
/// * its stock: [`batch`](PageCounter::batch), [`set_batch`](PageCounter::set_batch),
///   [`drain`](PageCounter::drain), [`stocked`](PageCounter::stocked),
///   [`stocked_bound`](PageCounter::stocked_bound).
///
/// Charges go through the group, [`Group::charge_set`], or without a guard through
/// [`raw`](Self::raw).
///
/// ```
/// # let runtime = memcg::Runtime::builder().build()?;
/// let root = runtime.root();
/// let _held = root.charge(10)?;
/// let memory = root.memory();
/// assert_eq!((memory.name(), memory.live(), memory.peak()), ("memory", 10, 10));
/// memory.set_max(20)?;
/// assert_eq!(memory.max(), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type GroupCounter = PageCounter<Group>;

impl GroupCounter {
    /// Returns `memory`, or the name that the builder gave the counter.
    pub fn name(&self) -> &str {
        group_tree::further_name(self.counter()).unwrap_or("memory")
    }

    /// Returns the unit that the counter counts: [`Unit::Bytes`], or the one that
    /// [`RuntimeBuilder::counter`](crate::RuntimeBuilder::counter) was given.
    pub fn unit(&self) -> Unit {
        group_tree::unit(self.counter())
    }

    /// Sets the max of the counter, as [`Group::set_max`] does for memory. It may block: in async
    /// code use [`set_max_now`](Self::set_max_now). Returns the units that are still above the max,
    /// 0 if usage fits. Only memory asks reclaimers for them.
    ///
    /// # Errors
    ///
    /// [`LimitError::NoLimitedAncestor`]. The old max holds.
    pub fn set_max(&self, limit: impl IntoLimit) -> Result<u64, LimitError> {
        let excess = self.set_max_now(limit)?;
        // Reclaimers and victims give memory back and no other resource.
        Ok(if self.counter().is_memory() {
            lowered::shrink_to_max(self.counter())
        } else {
            excess
        })
    }

    /// Does what [`set_max`](Self::set_max) does, but asks no reclaimer and cancels no group, and
    /// so waits for neither. Bytes above the max stay until they are given back.
    ///
    /// Source: a write to `memory.max` with `O_NONBLOCK`.
    ///
    /// # Errors
    ///
    /// [`LimitError::NoLimitedAncestor`]. The old max holds.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// let _held = root.charge(10)?;
    /// assert_eq!(root.memory().set_max_now(4)?, root.usage() - 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_max_now(&self, limit: impl IntoLimit) -> Result<u64, LimitError> {
        self.keep_of().set_kinds(
            self.counter(),
            &[(LimitKind::Max, Some(limit.into_limit()))],
            || Settings::ALL,
            |_| {
                if self.counter().is_memory() {
                    group_object::of(self.counter())
                        .applied
                        .remove(Settings::limit(LimitKind::Max));
                }
            },
        )
    }

    /// Reads the events of this counter in the subtree, as [`Group::events`] does: some loads, so
    /// they are not all of one instant. Those of memory are the group's.
    pub fn events(&self) -> Events {
        Events::read(self.keep_of(), self.counter(), false)
    }
}

debug_figures!(GroupCounter, |counter| name: counter.name(), group: counter.keep_of());
