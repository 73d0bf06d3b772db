//! The events of a group's limits, and their counts. A group has counts from its first event on.
//!
//! Edges: E26 (an event/a listener), E40 (counts are made/read).

use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};

use crate::pool::shape::{PoolKind, Shape};
use crate::pool::{Cache, PoolAlign, cache};
use crate::state::stalls::StallTimes;
use crate::sync::{AtomicPtr, AtomicU64, Ordering, Shared};

/// An event at a group's limits. [`Group::events`](crate::Group::events) counts them, for the group
/// and all groups below; the counts only grow.
///
/// Source: `enum memcg_memory_event` in `include/linux/memcontrol.h`.
///
/// ```
/// use memcg::{Event, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(100))?;
/// let query = acme.create("q17", Limits::new())?;
/// assert!(query.charge(101).is_err());
/// assert_eq!(acme.events().local().get(Event::Max), 1, "it is acme's max that was met");
/// assert_eq!(query.events().get(Event::Max), 0);
/// assert_eq!(runtime.root().events().get(Event::Oom), 1, "in the subtree");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// The group was reclaimed below its low, because no other memory was left.
    Low,
    /// A charge has left usage above high. It counts once for each charge and group. The charge
    /// reclaims the excess and is delayed, unless it is one that cannot be.
    High,
    /// A charge did not fit below the group's max after a drain of stranded credit, and before any
    /// reclaim.
    Max,
    /// Reclaim did not free enough for a charge. The charge is about to be refused, or to cancel a
    /// group. A charge made inside reclaim or a cancel hook does not count: it calls no reclaimer.
    Oom,
    /// The group was cancelled. It counts once for each hook of the group that was called.
    OomKill,
    /// The group's subtree was cancelled as one.
    OomGroupKill,
    /// A forced charge went above the group's max.
    Overcharge,
    /// A charge was let through above the max of a group whose limits are [only
    /// observed](crate::Group::set_observe_only).
    Observed,
    /// A charge waited in line at the group for as long as its caller allowed, and did not fit.
    TimedOut,
    /// A reclaimer, a listener or a cancel hook of the group panicked.
    Panic,
    /// The group's [pressure level](crate::Group::pressure_level) has changed. It counts once for
    /// each change.
    PressureLevel,
    /// A reclaimer of the group has not returned for a second. Usually it waits for a lock that its
    /// own thread held when it charged: charge before you lock, as [`Reclaim`](crate::Reclaim)
    /// says. Only builds with debug assertions look for this. It counts once for each such call.
    ReclaimStuck,
    /// More was given back than the group holds, which is a bug of whoever gave it back: see
    /// [`RawCharges::uncharge`](crate::RawCharges::uncharge). It counts once for each time that
    /// usage would have fallen below zero, at the group whose usage that was. What is given back in
    /// excess looks like credit at first, so the event may come later than the bug, and on another
    /// thread: the page *Recipes* of the book says how to find the caller.
    /// [`underflowed`](crate::inspect::GroupInspector::underflowed) has the bytes.
    Underflow,
}

impl Event {
    /// All events.
    pub const ALL: [Event; 13] = [
        Event::Low,
        Event::High,
        Event::Max,
        Event::Oom,
        Event::OomKill,
        Event::OomGroupKill,
        Event::Overcharge,
        Event::Observed,
        Event::TimedOut,
        Event::Panic,
        Event::PressureLevel,
        Event::ReclaimStuck,
        Event::Underflow,
    ];

    /// Returns the event's name as in `memory.events`. An event that the kernel does not have is
    /// named in the same style.
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
            Event::TimedOut => "timed_out",
            Event::Panic => "panic",
            Event::PressureLevel => "pressure_level",
            Event::ReclaimStuck => "reclaim_stuck",
            Event::Underflow => "underflow",
        }
    }
}

/// Count of each event: to a group itself, or to the groups below it.
#[derive(Default)]
pub(crate) struct EventTally([AtomicU64; Event::ALL.len()]);

impl EventTally {
    pub(crate) fn count(&self, event: Event) {
        // SeqCst (E26): before the thread looks for listeners; pairs with `get`.
        self.0[event as usize].fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn get(&self, event: Event) -> u64 {
        // SeqCst (E26): after the listener's mark; pairs with `count`.
        self.0[event as usize].load(Ordering::SeqCst)
    }
}

/// The counts of a group, and of all below it, and how long chargers stood still there: an object
/// of a pool.
#[derive(Default)]
pub(crate) struct EventCounts {
    pub(crate) local: EventTally,
    pub(crate) below: EventTally,
    pub(crate) stalls: StallsPlace,
    /// Until then, in nanoseconds since the tree was made, no credit is counted for the group's
    /// pressure level: see `pressure::pressure_levels`.
    pub(crate) credit_pause: AtomicU64,
    /// The object's number in its pool.
    pub(crate) number: u32,
}

/// Read and written under one lock of the tree.
#[derive(Default)]
pub(crate) struct StallsPlace(UnsafeCell<StallTimes>);

// SAFETY: `StallsPlace::times` alone reads and writes it, whose caller holds the lock.
#[allow(unsafe_code)]
unsafe impl Sync for StallsPlace {}

impl StallsPlace {
    /// # Safety
    ///
    /// The caller holds the tree's lock of stalls, and has no other reference to these times.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub(crate) unsafe fn times(&self) -> &mut StallTimes {
        // SAFETY: says the caller.
        unsafe { &mut *self.0.get() }
    }
}

impl EventCounts {
    /// In the whole subtree.
    pub(crate) fn subtree(&self, event: Event) -> u64 {
        self.local.get(event).wrapping_add(self.below.get(event))
    }
}

pub(crate) fn event_cache(align: PoolAlign) -> Shared<Cache> {
    cache(Shape {
        kind: PoolKind::Events,
        asked: size_of::<EventCounts>(),
        align,
        node: None,
    })
}

/// A group's counts; none before the first event of the group or of a group below.
#[derive(Default)]
pub(crate) struct EventsPlace(AtomicPtr<EventCounts>);

impl EventsPlace {
    /// Removes the counts, for a caller that gives them back to the pool. No other thread uses the
    /// group.
    pub(crate) fn take(&self) -> Option<NonNull<EventCounts>> {
        let counts = NonNull::from(self.get()?);
        // Relaxed: no thread uses the group any more, and the pool's lock comes before its next
        // use.
        self.0.store(ptr::null_mut(), Ordering::Relaxed);
        Some(counts)
    }

    #[allow(unsafe_code)]
    pub(crate) fn get(&self) -> Option<&EventCounts> {
        // SeqCst (E26): as for the counts themselves. Acquire (E40): a thread that finds the counts
        // finds them made. Both pair with `set_first`.
        let counts = self.0.load(Ordering::SeqCst);
        // SAFETY: an object of the pool, which never goes; the group has it until `take`, and the
        // caller keeps the group.
        unsafe { counts.as_ref() }
    }

    /// Shows counts to all threads. False: another thread has shown its own, and these are the
    /// caller's still.
    pub(crate) fn set_first(&self, made: NonNull<EventCounts>) -> bool {
        // SeqCst (E26): before the count; pairs with `get`. Release (E40): after all is made.
        // Mutation: e40-counts-of-events-shown-before-they-are-made
        // Mutation: e40-second-counts-replace-the-first
        let first = self.0.compare_exchange(
            ptr::null_mut(),
            made.as_ptr(),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        // Mutation: e40-second-counts-replace-the-first
        first.is_ok()
    }
}
