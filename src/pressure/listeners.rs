//! Listeners: threads and futures that wait for an event, and functions that are called for one.
//!
//! A listener marks the group first and reads its counts afterwards. A thread that counts an event counts first, looks
//! at the mark afterwards, schedules the group for service, and notifies at the end of its slow path (E26).

use std::collections::BTreeMap;
use std::task::Waker;

use smallvec::SmallVec;

use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::slow_path::slow_path;
use crate::hierarchy::events;
use crate::hierarchy::group_tree;
use crate::pressure::wakers::Wakers;
use crate::state::events::Event;
use crate::state::service::LISTENS;
use crate::sync::lock::Lock;
use crate::sync::{Arc, fence_after_exchange, model_failed};
use crate::thread::context;
use crate::thread::directory::Header;
use crate::thread::foreign::{Calls, Foreign};

/// Callbacks inside callbacks: deeper ones are called with the next event.
const DEPTH_MAX: u32 = 4;

/// What a listener is called with: see [`Group::on_event`](crate::Group::on_event).
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

    /// How often it has happened by now: as [`Events::get`](crate::Events::get).
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How often since the listener's last call: at least once.
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

/// The listeners of a tree, by the key of their counter.
#[derive(Default)]
pub(crate) struct Listeners {
    numbers: u64,
    counters: BTreeMap<u64, BTreeMap<u64, Listener>>,
}

struct Listener {
    event: Event,
    /// Of the group alone, not of its subtree.
    local: bool,
    /// The count that the listener knows.
    seen: u64,
    target: Target,
}

/// What a notification goes to.
enum Target {
    Waker(Option<Foreign<Waker>>),
    Callback(Arc<Callback>),
}

/// What a user gives the crate to call.
type OnEvent = Box<dyn Fn(&Happened) + Send + Sync>;

/// Foreign code that is called for an event. Keeps its group: a call may outlive its guard.
struct Callback {
    group: Handle,
    calls: Calls,
    function: Foreign<OnEvent>,
}

impl Drop for Callback {
    fn drop(&mut self) {
        if !model_failed() && self.function.end().is_err() {
            events::count_and_notify(&self.group, Event::Panic);
        }
    }
}

/// A call that is due.
pub(crate) struct Notification {
    callback: Arc<Callback>,
    event: Event,
    count: u64,
    times: u64,
}

/// Calls that are due.
pub(crate) type Notifications = SmallVec<[Notification; 2]>;

impl Notification {
    /// Make the call. This thread holds no lock. A callback whose guard is dropped by now is not called; one that is
    /// called keeps its group.
    pub(crate) fn dispatch(self) {
        let Notification { callback, event, count, times } = self;
        context::tell(|| {
            let group = &callback.group;
            let happened = Happened { group: group.header, event, count, times };
            let called = callback.calls.begin().map(|_call| callback.function.call(|function| function(&happened)));
            if let Some(Err(_)) = called {
                events::count_and_notify(group, Event::Panic);
            }
            // The guard may be gone by now, and this the last reference: the drop runs foreign code, too.
            drop(callback);
        });
    }
}

/// A listener in the table. Dropped, it is removed.
pub(crate) struct ListenerGuard {
    number: u64,
    callback: Option<Arc<Callback>>,
    group: Handle,
}

fn table(of: &Counter) -> &Lock<Listeners> {
    &group_tree::of(of).listeners
}

/// Listen for `event` at `group` to be counted beyond `seen`: see [`ListenerGuard::poll`].
pub(crate) fn wait(group: &'static Counter, event: Event, local: bool, seen: u64) -> ListenerGuard {
    insert(group, Listener { event, local, seen, target: Target::Waker(None) }, None)
}

/// From here on `function` is called for `event` in the subtree.
pub(crate) fn call(group: &'static Counter, event: Event, function: OnEvent) -> ListenerGuard {
    let callback = Callback { group: Handle::pin(group), calls: Calls::new(), function: Foreign::new(function) };
    let callback = Arc::new(callback);
    let seen = events::read(group, event, false);
    let target = Target::Callback(Arc::clone(&callback));
    insert(group, Listener { event, local: false, seen, target }, Some(callback))
}

fn insert(group: &'static Counter, listener: Listener, callback: Option<Arc<Callback>>) -> ListenerGuard {
    let group = Handle::pin(group);
    let number = slow_path(|_, _| {
        let mut listeners = table(&group).lock();
        listeners.numbers += 1;
        let number = listeners.numbers;
        listeners.counters.entry(group.key()).or_default().insert(number, listener);
        // E26: in the table, then the mark, then a look at the counts.
        group.limits.watched.set(LISTENS);
        number
    });
    ListenerGuard { number, callback, group }
}

impl ListenerGuard {
    /// The count, once it is beyond what was seen. Until then the next such event wakes `waker`.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<u64> {
        // A waker is foreign code: the thread clones and drops it without the lock.
        let mut old = Some(Foreign::new(waker.clone()));
        let known = slow_path(|_, _| {
            let mut listeners = table(&self.group).lock();
            let listener = listeners.counters.get_mut(&self.group.key())?.get_mut(&self.number)?;
            if let Target::Waker(waker) = &mut listener.target {
                std::mem::swap(waker, &mut old);
            }
            Some((listener.event, listener.local, listener.seen))
        });
        // SeqCst (E26): the mark and the waker, then the count; pairs with `events::count`.
        fence_after_exchange();
        let (event, local, seen) = known?;
        Some(events::read(&self.group, event, local)).filter(|&count| count != seen)
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        if let Some(callback) = &self.callback {
            callback.calls.retire();
        }
        let removed = slow_path(|_, _| {
            let mut listeners = table(&self.group).lock();
            let here = listeners.counters.get_mut(&self.group.key())?;
            let removed = here.remove(&self.number);
            if here.is_empty() {
                listeners.counters.remove(&self.group.key());
                self.group.limits.watched.clear(LISTENS);
            }
            removed
        });
        // Inside a callback no thread waits for calls: two callbacks that drop each other would wait for each other.
        if let Some(callback) = self.callback.take()
            && !context::in_foreign()
        {
            callback.calls.wait();
        }
        // Foreign code may be dropped with it: this thread holds no lock here.
        drop(removed);
    }
}

/// Collect what is due at `level`, whose events were counted: wakers to wake, callbacks to call.
pub(crate) fn collect(level: &Counter, wakers: &mut Wakers, notifications: &mut Notifications) {
    if !level.limits.watched.is_for(LISTENS) {
        return;
    }
    let mut listeners = table(level).lock();
    for listener in listeners.counters.get_mut(&level.key()).into_iter().flat_map(BTreeMap::values_mut) {
        let count = events::read(level, listener.event, listener.local);
        if count == listener.seen {
            continue;
        }
        match &mut listener.target {
            Target::Waker(waker) => wakers.extend(waker.take()),
            Target::Callback(_) if context::telling() >= DEPTH_MAX => {}
            Target::Callback(callback) => {
                let times = count.wrapping_sub(listener.seen);
                listener.seen = count;
                let (callback, event) = (Arc::clone(callback), listener.event);
                notifications.push(Notification { callback, event, count, times });
            }
        }
    }
}
