//! The name of a counter that every group of a runtime has.

use crate::counter::object;
use crate::hierarchy::group_tree;

/// Names one counter of every group of a runtime: [`MEMORY`](Self::MEMORY), or one that the builder
/// declared.
///
/// No counter beside memory asks reclaimers, cancels a group, waits in line, or slows a charge
/// above a high. A charge to it that does not fit is refused at once, by every call, and counts
/// [`Event::Max`](crate::Event::Max) at the counter that was full
/// ([`GroupCounter::events`](crate::GroupCounter::events)).
///
/// Counters are declared at the builder, because each group has all of them in one object; or, in
/// [places](crate::RuntimeBuilder::counter_places) that the root has for them, with
/// [`Runtime::declare_counter`](crate::Runtime::declare_counter) until the first group below the
/// root is created. [`Group::counter_key`](crate::Group::counter_key) finds one by its name.
///
/// A thread charges in advance as for memory: a batch of 262,144 units, or what
/// [`RuntimeBuilder::batch`](crate::RuntimeBuilder::batch) says. As long as the thread has not used
/// it, that credit is part of usage, and not of the live charge.
/// [`GroupCounter::set_batch`](crate::PageCounter::set_batch) sets the batch of one counter for a
/// group, the groups below and those created there later. A batch of 0 suits a counter of few
/// things.
///
/// ```
/// use memcg::{CounterKey, Limits, Runtime};
///
/// let mut builder = Runtime::builder();
/// let spill = builder.counter("spill", memcg::Unit::Bytes);
/// let runtime = builder.build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// query.counter(spill)?.set_max(1_000)?;
/// runtime.root().counter(spill)?.set_batch(64); // for every group
/// let held = query.charge_set(&[(CounterKey::MEMORY, 64), (spill, 1_000)])?;
/// assert!(query.charge_set(&[(CounterKey::MEMORY, 64), (spill, 1)]).is_err());
/// assert_eq!((query.live(), query.counter(spill)?.live()), (64, 1_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterKey {
    pub(super) number: usize,
    /// The builder that declared it; 0 for memory.
    pub(super) builder: u64,
}

impl CounterKey {
    /// The counter that [`Group::charge`](crate::Group::charge) charges.
    pub const MEMORY: CounterKey = CounterKey {
        number: 0,
        builder: 0,
    };

    pub(crate) fn new(number: usize, builder: u64) -> Self {
        CounterKey { number, builder }
    }

    /// Returns the name of that counter of a group.
    pub(super) fn of_counter(counter: &object::Counter) -> CounterKey {
        let number = counter.number_in_group();
        let declared = group_tree::of(counter).further.get(number);
        CounterKey::new(number, declared.map_or(0, |further| further.builder))
    }
}
