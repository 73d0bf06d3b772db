//! What happened to a group's limits, counted: at the group, and at all above it.

use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU64;

/// What can happen. Counts only grow.
///
/// Source: `enum memcg_memory_event` in `include/linux/memcontrol.h`.
///
/// ```
/// use memcg::{Event, Limit, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(Limit::Bytes(100)))?;
/// let query = acme.create("q17", Limits::new())?;
/// assert!(query.try_charge(101).is_err());
/// assert_eq!(acme.events_local().get(Event::Max), 1, "it is acme's max that was met");
/// assert_eq!(query.events().get(Event::Max), 0);
/// assert_eq!(runtime.root().events().get(Event::Oom), 1, "in the subtree");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// The group was reclaimed below its low: nothing else was left.
    Low,
    /// Usage was above high. None yet: high is not enforced in this version.
    High,
    /// A charge did not fit below the group's max, after stranded credit was drained; reclaim was tried.
    Max,
    /// And was refused, for reclaim did not bring enough.
    Oom,
    /// A charge that is never refused went above the group's max.
    Overcharge,
    /// A reclaimer of the group panicked.
    Panic,
}

impl Event {
    /// All there are.
    ///
    /// ```
    /// assert_eq!(memcg::Event::ALL[0], memcg::Event::Low);
    /// ```
    pub const ALL: [Event; 6] = [Event::Low, Event::High, Event::Max, Event::Oom, Event::Overcharge, Event::Panic];

    /// Its name in `memory.events`, or ours in that manner.
    ///
    /// ```
    /// assert_eq!(memcg::Event::Oom.name(), "oom");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Event::Low => "low",
            Event::High => "high",
            Event::Max => "max",
            Event::Oom => "oom",
            Event::Overcharge => "overcharge",
            Event::Panic => "panic",
        }
    }
}

/// How often each event has happened, as of one moment.
///
/// ```
/// use memcg::Event;
///
/// let events = memcg::Runtime::builder().build()?.root().events();
/// assert_eq!(events.get(Event::Max), 0);
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Events([u64; Event::ALL.len()]);

impl Events {
    /// How often.
    pub fn get(&self, event: Event) -> u64 {
        self.0[event as usize]
    }

    /// All of them.
    ///
    /// ```
    /// let events = memcg::Runtime::builder().build()?.root().events();
    /// assert_eq!(events.iter().map(|(event, _)| event.name()).next(), Some("low"));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (Event, u64)> {
        Event::ALL.into_iter().zip(self.0)
    }
}

/// Counts of one group, or of a subtree.
pub(crate) struct EventCounts([AtomicU64; Event::ALL.len()]);

impl EventCounts {
    pub(crate) const fn new() -> Self {
        EventCounts([const { AtomicU64::new(0) }; Event::ALL.len()])
    }

    pub(crate) fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Events {
        Events(std::array::from_fn(|event| self.0[event].load(Ordering::Relaxed)))
    }

    pub(crate) fn forget(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}
