//! What happened to a group's limits, counted: at the group, and at all above it.
//!
//! Edge: E26 (an event/somebody who waits for it).

use crate::sync::{AtomicU64, Ordering};
use crate::thread::directory::Header;

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
    /// A charge has left usage above high: once for each charge and group. The excess is reclaimed and the charge
    /// delayed, if it can be.
    High,
    /// A charge did not fit below the group's max, after stranded credit was drained; reclaim was excluded.
    Max,
    /// And is about to be refused, for reclaim did not bring enough: refused, or somebody is chosen to be cancelled. Not
    /// for a charge that is made inside reclaim or a cancel hook, for which nobody is asked.
    Oom,
    /// The group was cancelled: once for each hook of it that was called.
    OomKill,
    /// The group's subtree was cancelled as one.
    OomGroupKill,
    /// A charge that is never refused went above the group's max.
    Overcharge,
    /// A charge that is above the max of a group which is only observed was let through.
    Observed,
    /// A reclaimer, a listener or a cancel hook of the group panicked.
    Panic,
}

impl Event {
    /// All there are.
    ///
    /// ```
    /// assert_eq!(memcg::Event::ALL[0], memcg::Event::Low);
    /// ```
    pub const ALL: [Event; 9] = [
        Event::Low,
        Event::High,
        Event::Max,
        Event::Oom,
        Event::OomKill,
        Event::OomGroupKill,
        Event::Overcharge,
        Event::Observed,
        Event::Panic,
    ];

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
            Event::OomKill => "oom_kill",
            Event::OomGroupKill => "oom_group_kill",
            Event::Overcharge => "overcharge",
            Event::Observed => "observed",
            Event::Panic => "panic",
        }
    }
}

/// What a listener is told: see [`Group::on_event`](crate::Group::on_event).
///
/// ```
/// use memcg::{Event, Limit, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(Limit::Bytes(100)))?;
/// let _subscription = runtime.root().on_event(Event::Overcharge, |happened| {
///     assert_eq!((happened.group().path(), happened.event()), ("/".to_string(), Event::Overcharge));
///     assert_eq!((happened.count(), happened.times()), (1, 1));
/// });
/// let _held = acme.charge(130);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Happened {
    pub(crate) group: &'static Header,
    pub(crate) event: Event,
    pub(crate) count: u64,
    pub(crate) times: u64,
}

impl Happened {
    /// What happened.
    pub fn event(&self) -> Event {
        self.event
    }

    /// How often it has, by now: as [`Events::get`](crate::Events::get).
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How often since the listener was told last: at least once.
    pub fn times(&self) -> u64 {
        self.times
    }
}

impl std::fmt::Debug for Happened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Happened { event, count, times, .. } = self;
        f.debug_struct("Happened")
            .field("event", event)
            .field("count", count)
            .field("times", times)
            .finish_non_exhaustive()
    }
}

/// Counts of one kind.
pub(crate) struct Counts([AtomicU64; Event::ALL.len()]);

impl Counts {
    pub(crate) fn count(&self, event: Event) {
        // SeqCst (E26): before the look for somebody who waits.
        self.0[event as usize].fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn get(&self, event: Event) -> u64 {
        // SeqCst (E26): after the mark of whoever waits.
        self.0[event as usize].load(Ordering::SeqCst)
    }
}

/// What has happened to a group, and in its subtree: an object of a pool.
pub(crate) struct EventCounts {
    pub(crate) local: Counts,
    pub(crate) subtree: Counts,
    /// Names the object in its pool.
    pub(crate) number: u32,
}

impl EventCounts {
    /// Nothing has.
    pub(crate) fn new(number: u32) -> EventCounts {
        let none = || Counts(std::array::from_fn(|_| AtomicU64::new(0)));
        EventCounts { local: none(), subtree: none(), number }
    }
}
