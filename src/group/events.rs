//! Events of a group: a caller reads them, waits for them, or registers a listener.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::handle::Group;
use super::registration::Registration;
use crate::counter::object::{Counter, CounterRef};
use crate::hierarchy::events;
use crate::pressure::listeners::{self, ListenerGuard};
use crate::pressure::wakers::{park_until, parked_waker};
use crate::state::events::Event;
use crate::state::listeners::EventInfo;
use crate::sync::clock;

/// How often each event has happened, as of the moment of the reading, from which on a caller can
/// wait for the next one.
///
/// ```
/// use memcg::Event;
///
/// let events = memcg::Runtime::builder().build()?.root().events();
/// assert_eq!(events.get(Event::Max), 0);
/// assert!(events.iter().all(|(_, count)| count == 0));
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Events {
    counts: [u64; Event::ALL.len()],
    /// Keeps the counter.
    group: Group,
    counter: CounterRef,
    local: bool,
}

impl Events {
    #[allow(unsafe_code)]
    pub(crate) fn read(group: &Group, counter: &Counter, local: bool) -> Events {
        let counts = Event::ALL.map(|event| events::read(counter, event, local));
        // SAFETY: the counter is one of the group, on which the value has a handle.
        let counter = unsafe { CounterRef::new(counter) };
        Events {
            counts,
            group: group.clone(),
            counter,
            local,
        }
    }

    /// Reads what happened to the limits of this group alone, as it is now.
    ///
    /// Source: `memory.events.local`.
    ///
    /// ```
    /// # use memcg::{Event, Limits};
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(10))?;
    /// let _held = acme.force_charge(11);
    /// assert_eq!(acme.events().local().get(Event::Overcharge), 1);
    /// assert_eq!(runtime.root().events().local().get(Event::Overcharge), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn local(&self) -> Events {
        Events::read(&self.group, &self.counter, true)
    }

    /// Returns how often `event` had happened.
    pub fn get(&self, event: Event) -> u64 {
        self.counts[event as usize]
    }

    /// Returns all events with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Event, u64)> {
        Event::ALL.into_iter().zip(self.counts)
    }

    /// Blocks until `event` has happened more often than this count says, or for `time`. Returns
    /// true if it has. In async code use [`changed`](Self::changed).
    ///
    /// If the event has happened since these counts were read, the call returns at once, so nothing
    /// is missed between the reading and the wait. A group that goes offline does not end the wait.
    /// The call takes one lock.
    ///
    /// ```
    /// # use memcg::{Event, Runtime};
    /// # use std::time::Duration;
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let events = root.events();
    /// assert!(!events.wait(Event::Oom, Duration::from_millis(1)));
    /// assert!(root.charge(101).is_err());
    /// assert!(events.wait(Event::Oom, Duration::from_secs(10)));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn wait(&self, event: Event, time: Duration) -> bool {
        let until = clock::now().checked_add(time);
        let listener = self.listener(event);
        let waker = parked_waker();
        while listener.poll(&waker).is_none() {
            // Time is over. The event may have happened after the look above, so there is one more.
            if !park_until(until) {
                return listener.poll(&waker).is_some();
            }
        }
        true
    }

    /// Waits for the event as [`wait`](Self::wait) does, but as a task, and without a time limit.
    /// The future resolves to the new count. It needs no async runtime, and its drop ends the wait.
    ///
    /// ```
    /// # use memcg::{Event, Runtime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let refused = root.events().changed(Event::Oom);
    /// assert!(root.charge(101).is_err());
    /// assert_eq!(refused.await, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn changed(&self, event: Event) -> EventFuture {
        EventFuture {
            listener: self.listener(event),
        }
    }

    fn listener(&self, event: Event) -> ListenerGuard {
        listeners::wait(&self.counter, event, self.local, self.get(event))
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(event, count)| (event.name(), count)))
            .finish()
    }
}

/// The future of a wait for an event: see [`Events::changed`].
///
/// ```
/// use memcg::{Event, Runtime};
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let runtime = Runtime::builder().max(100).build()?;
///     let refused = tokio::spawn(runtime.root().events().changed(Event::Oom));
///     tokio::task::yield_now().await;
///     assert!(runtime.root().charge(101).is_err());
///     assert_eq!(refused.await?, 1);
///     Ok(())
/// }
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct EventFuture {
    listener: ListenerGuard,
}

impl Future for EventFuture {
    type Output = u64;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u64> {
        self.listener
            .poll(context.waker())
            .map_or(Poll::Pending, Poll::Ready)
    }
}

debug_figures!(EventFuture, |_future|);

impl EventInfo {
    /// Returns the group whose listener is called. The event happened there or below.
    pub fn group(&self) -> Group {
        Group::pinned(self.group.counter())
    }
}

/// # Events
impl Group {
    /// Reads how often each event has happened at the limits of this group and of all groups below
    /// it. It costs a few loads, which are not all of one instant.
    ///
    /// Source: `memory.events`.
    pub fn events(&self) -> Events {
        Events::read(self, self.first(), false)
    }

    /// Registers `listener`, to be called after `event` has happened here or below.
    ///
    /// The thread that made the event happen calls it, at the end of that operation, with no lock
    /// of this crate held. The listener may use the whole crate; if its thread is in a reclaimer or
    /// a hook, it counts as inside reclaim as well. One call may stand for several events. If a
    /// listener makes its own event happen, the thread calls it again for that at once, up to four
    /// deep, and after that together with the next event. To register takes one lock. A panic is
    /// caught and counted as [`Event::Panic`], also a panic in the listener's drop.
    ///
    /// ```
    /// # use memcg::{Event, Runtime};
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let refused = Arc::new(AtomicU64::new(0));
    /// let registration = root.on_event(Event::Oom, {
    ///     let refused = Arc::clone(&refused);
    ///     move |happened| {
    ///         refused.fetch_add(happened.times(), Ordering::Relaxed);
    ///     }
    /// });
    /// assert!(root.charge(101).is_err());
    /// drop(registration);
    /// assert!(root.charge(101).is_err());
    /// assert_eq!(refused.load(Ordering::Relaxed), 1);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn on_event(
        &self,
        event: Event,
        listener: impl Fn(&EventInfo) + Send + Sync + 'static,
    ) -> Registration {
        Registration::new(listeners::call(self.first(), event, Box::new(listener)))
    }
}
