//! Threads and futures that wait for an event of a tree's groups, and functions that are called for
//! one.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::counter::by_number::ByNumber;
use crate::counter::object::HeaderRef;
use crate::state::callback::Callback;
use crate::state::events::Event;
use crate::sync::Arc;
use crate::thread::foreign::Foreign;

/// What a listener is told: see [`Group::on_event`](crate::Group::on_event).
///
/// ```
/// use memcg::{Event, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(100))?;
/// let _registration = runtime.root().on_event(Event::Overcharge, |happened| {
///     assert_eq!((happened.group().path(), happened.event()), ("/".to_string(), Event::Overcharge));
///     assert_eq!((happened.count(), happened.times()), (1, 1));
/// });
/// let _held = acme.force_charge(130);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EventInfo {
    pub(crate) group: HeaderRef,
    pub(crate) event: Event,
    pub(crate) count: u64,
    pub(crate) times: u64,
}

impl EventInfo {
    /// Returns the event.
    pub fn event(&self) -> Event {
        self.event
    }

    /// Returns how often the event has happened in all, as
    /// [`Events::get`](crate::figures::Events::get) counts it.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns how often the event has happened since the listener was last called: at least once.
    pub fn times(&self) -> u64 {
        self.times
    }
}

debug_figures!(EventInfo, |happened| event: happened.event, count: happened.count, times: happened.times);

/// The listeners of a tree, by the key of their counter.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(crate) numbers: u64,
    pub(crate) counters: ByNumber<BTreeMap<u64, Listener>>,
}

pub(crate) struct Listener {
    pub(crate) event: Event,
    /// Of the group alone, not of its subtree.
    pub(crate) local: bool,
    /// The count that the listener knows.
    pub(crate) seen: u64,
    pub(crate) target: ListenerTarget,
}

/// What a change of the count wakes or calls.
pub(crate) enum ListenerTarget {
    Waker(Option<Foreign<Waker>>),
    Callback(Arc<Callback<EventInfo>>),
}
