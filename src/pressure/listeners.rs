//! Listeners: threads and futures that wait for an event, and functions that are called for one.
//!
//! A listener marks the group first and reads its counts afterwards. A thread that counts an event
//! counts first, looks at the mark afterwards, schedules the group for service, and notifies at the
//! end of its slow path (E26).

use std::collections::BTreeMap;
use std::task::Waker;

use smallvec::SmallVec;

use crate::counter::by_number::take_out;
use crate::counter::handle::Handle;
use crate::counter::object::{Counter, CounterRef};
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::service::LISTENS;
use crate::hierarchy::{events, group_tree};
use crate::pressure::pressure_levels;
use crate::pressure::wakers::Wakers;
use crate::state::callback::{Callback, CallbackFunction};
use crate::state::events::Event;
use crate::state::listeners::{EventInfo, Listener, ListenerTarget, Listeners};
use crate::sync::lock::Lock;
use crate::sync::{Arc, fence_after_exchange, model_failed};
use crate::thread::context;
use crate::thread::foreign::Foreign;

/// Callbacks inside callbacks: deeper ones are called with the next event.
const DEPTH_MAX: u32 = 4;

/// A call that is due.
pub(crate) struct Notification {
    callback: Arc<Callback<EventInfo>>,
    happened: EventInfo,
}

pub(crate) type Notifications = SmallVec<[Notification; 2]>;

impl Notification {
    /// Makes the call. This thread holds no lock.
    pub(crate) fn dispatch(self) {
        context::in_listener(|| {
            if !self.callback.call(&self.happened) {
                self.callback.count_panic();
            }
            // The guard may be gone by now, and this the last reference: the drop runs foreign
            // code, too.
            drop(self);
        });
    }
}

/// A listener in the table. Dropped, it is removed.
pub(crate) struct ListenerGuard {
    number: u64,
    group: Handle,
}

fn table(of: &Counter) -> &Lock<Listeners> {
    &group_tree::of(of).listeners
}

/// Listen for `event` at `group` to be counted beyond `seen`: see [`ListenerGuard::poll`].
pub(crate) fn wait(group: &Counter, event: Event, local: bool, seen: u64) -> ListenerGuard {
    if event == Event::PressureLevel {
        // Nobody is to wait for a change that a read would count.
        pressure_levels::shown(group);
    }
    insert(
        group,
        Listener {
            event,
            local,
            seen,
            target: ListenerTarget::Waker(None),
        },
    )
}

/// From here on `function` is called for `event` in the subtree.
pub(crate) fn call(
    group: &Counter,
    event: Event,
    function: CallbackFunction<EventInfo>,
) -> ListenerGuard {
    let target = ListenerTarget::Callback(Callback::new(group, function));
    insert(
        group,
        Listener {
            event,
            local: false,
            seen: events::read(group, event, false),
            target,
        },
    )
}

fn insert(group: &Counter, listener: Listener) -> ListenerGuard {
    // The listener keeps its group: an event of the next group in the same object is none of its
    // business.
    let kept = Handle::pin(group);
    let _path = SlowPath::enter();
    let mut listeners = table(group).lock();
    // Mutation: two-listeners-of-one-number
    listeners.numbers += 1;
    let number = listeners.numbers;
    listeners
        .counters
        .entry(group.key())
        .or_default()
        .insert(number, listener);
    // E26: in the table, then the mark, then a look at the counts; pairs with `events::count`.
    group.limits.watched.set(LISTENS);
    ListenerGuard {
        number,
        group: kept,
    }
}

impl ListenerGuard {
    /// The count, once it is beyond what was seen. Until then the next such event wakes `waker`.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<u64> {
        // A waker is foreign code: the thread clones and drops it without the lock.
        let mut old = Some(Foreign::new(waker.clone()));
        let known = self.exchange_waker(&mut old);
        // SeqCst (E26): the mark and the waker, then the count; pairs with `events::count`.
        fence_after_exchange();
        let (event, local, seen) = known?;
        // Mutation: e26-count-is-not-looked-at-again
        Some(events::read(&self.group, event, local)).filter(|&count| count != seen)
    }

    /// Returns the event, whether it is a local one, and the count that was seen.
    fn exchange_waker(&self, other: &mut Option<Foreign<Waker>>) -> Option<(Event, bool, u64)> {
        let _path = SlowPath::enter();
        let mut listeners = table(&self.group).lock();
        let listener = listeners
            .counters
            .get_mut(&self.group.key())?
            .get_mut(&self.number)?;
        // The old waker comes back to the caller, which drops it without the lock.
        if let ListenerTarget::Waker(waker) = &mut listener.target {
            std::mem::swap(waker, other);
        }
        Some((listener.event, listener.local, listener.seen))
    }

    fn remove(&self) -> Option<Listener> {
        let _path = SlowPath::enter();
        let mut listeners = table(&self.group).lock();
        let here = listeners.counters.get_mut(&self.group.key())?;
        let removed = here.remove(&self.number);
        // Mutation: a-listener-that-ends-takes-those-of-others
        if here.is_empty() {
            // Mutation: a-listener-that-ends-leaves-its-group-in-the-table
            take_out(&mut listeners.counters, self.group.key());
            self.group.limits.watched.clear(LISTENS);
        }
        removed
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        // Foreign code ends and is dropped: this thread holds no lock here.
        if let Some(Listener {
            target: ListenerTarget::Callback(callback),
            ..
        }) = self.remove()
        {
            callback.end();
        }
    }
}

/// Collect what is due at `level`, whose events were counted: wakers to wake, callbacks to call.
/// `None` for these leaves them to another call. Returns whether some are left.
#[allow(unsafe_code)]
pub(crate) fn collect(
    level: &Counter,
    wakers: &mut Wakers,
    mut notifications: Option<&mut Notifications>,
) -> bool {
    if !level.limits.watched.is_for(LISTENS) {
        return false;
    }
    let mut is_left = false;
    let mut listeners = table(level).lock();
    for listener in listeners
        .counters
        .get_mut(&level.key())
        .into_iter()
        .flat_map(BTreeMap::values_mut)
    {
        let count = events::read(level, listener.event, listener.local);
        if count == listener.seen {
            continue;
        }
        match &mut listener.target {
            ListenerTarget::Waker(waker) => wakers.extend(waker.take()),
            ListenerTarget::Callback(_) if context::listener_depth() >= DEPTH_MAX => {}
            ListenerTarget::Callback(callback) => {
                let Some(notifications) = &mut notifications else {
                    is_left = true;
                    continue;
                };
                let times = count.wrapping_sub(std::mem::replace(&mut listener.seen, count));
                // SAFETY: the callback has a handle on the group, and the notification has the
                // callback.
                let group = unsafe { CounterRef::new(&callback.group) }.header();
                let happened = EventInfo {
                    group,
                    event: listener.event,
                    count,
                    times,
                };
                // Mutation: one-listener-of-two-is-told
                notifications.push(Notification {
                    callback: Arc::clone(callback),
                    happened,
                });
            }
        }
    }
    is_left
}
