//! Who waits for an event, and who listens.
//!
//! Whoever waits marks the level first and compares counts afterwards; whoever counts counts first and looks at the
//! mark afterwards, lists the level, and tells at the end of his slow path (E26).

use std::collections::BTreeMap;
use std::task::Waker;

use crate::counter::make::slow_path;
use crate::counter::object::Counter;
use crate::counter::tree::Tree;
use crate::counter::watch::LISTENS;
use crate::pressure::service::Due;
use crate::reclaim::Event;
use crate::reclaim::event::Happened;
use crate::sync::{Arc, fence_after_exchange, model_failed};
use crate::thread::context;
use crate::thread::foreign::{Calls, Foreign};

/// Listeners inside listeners: deeper ones are told with the next event.
const DEPTH_MAX: u32 = 4;

/// Everybody who waits for an event in a tree, by the key of the level.
#[derive(Default)]
pub(crate) struct Listeners {
    ears: u64,
    levels: BTreeMap<u64, BTreeMap<u64, Ear>>,
}

struct Ear {
    event: Event,
    /// Of the group alone, not of its subtree.
    local: bool,
    /// The count that is known.
    seen: u64,
    who: Who,
}

enum Who {
    Waits(Option<Foreign<Waker>>),
    Listens(Arc<Listener>),
}

/// What a user gives the crate to call.
type OnEvent = Box<dyn Fn(&Happened) + Send + Sync>;

/// Foreign code that is told of an event. Keeps its level: a call may outlive its place.
pub(crate) struct Listener {
    node: &'static Counter,
    calls: Calls,
    listener: Foreign<OnEvent>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        if self.listener.end().is_err() {
            slow_path(|_, _| self.node.count_event(Event::Panic));
        }
        self.node.first().release();
    }
}

/// A call that is due.
pub(crate) struct Told {
    listener: Arc<Listener>,
    event: Event,
    count: u64,
    times: u64,
}

impl Told {
    /// No lock is held. Whoever is gone by now is not called, and one who is called keeps his level.
    pub(crate) fn tell(self) {
        let Told { listener, event, count, times } = self;
        let node = listener.node;
        context::tell(|| {
            let happened = Happened { group: node.header, event, count, times };
            let told = listener.calls.begin().map(|_call| listener.listener.call(|listener| listener(&happened)));
            if let Some(Err(_)) = told {
                slow_path(|_, _| node.count_event(Event::Panic));
            }
            // Its place may be gone by now, and this the last of it: its drop is foreign code, too.
            drop(listener);
        });
    }
}

/// A place among those who wait or listen. Dropped, it is given up.
pub(crate) struct Hearing {
    node: &'static Counter,
    ear: u64,
    listener: Option<Arc<Listener>>,
}

impl Counter {
    fn hear(&'static self, ear: Ear, listener: Option<Arc<Listener>>) -> Hearing {
        self.first().state().pin();
        let number = slow_path(|_, _| {
            let mut listeners = self.tree().listeners.lock();
            listeners.ears += 1;
            let number = listeners.ears;
            listeners.levels.entry(self.key()).or_default().insert(number, ear);
            // E26: among them, then the mark, then a look at the counts.
            self.watch(LISTENS);
            number
        });
        Hearing { node: self, ear: number, listener }
    }

    /// A place among those who wait for `event` to be counted beyond `seen`.
    pub(crate) fn wait_for(&'static self, event: Event, local: bool, seen: u64) -> Hearing {
        self.hear(Ear { event, local, seen, who: Who::Waits(None) }, None)
    }

    /// From here on `listener` is told of `event` in the subtree.
    pub(crate) fn listen(&'static self, event: Event, listener: OnEvent) -> Hearing {
        self.first().state().pin();
        let listener = Arc::new(Listener { node: self, calls: Calls::new(), listener: Foreign::new(listener) });
        let seen = self.event_count(event, false);
        self.hear(Ear { event, local: false, seen, who: Who::Listens(Arc::clone(&listener)) }, Some(listener))
    }
}

impl Hearing {
    fn with<R>(&self, work: impl FnOnce(&mut Ear) -> R) -> Option<R> {
        slow_path(|_, _| {
            let mut listeners = self.node.tree().listeners.lock();
            listeners.levels.get_mut(&self.node.key())?.get_mut(&self.ear).map(work)
        })
    }

    /// The count, once it is beyond what was seen. Else `waker` is woken when it is.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<u64> {
        // A waker is foreign code: the thread clones and drops it without the lock.
        let mut old = Some(Foreign::new(waker.clone()));
        let about = self.with(|ear| {
            if let Who::Waits(waker) = &mut ear.who {
                std::mem::swap(waker, &mut old);
            }
            (ear.event, ear.local, ear.seen)
        });
        // SeqCst (E26): the mark and the waker, then the count; pairs with `Counter::count_event`.
        fence_after_exchange();
        let (event, local, seen) = about?;
        Some(self.node.event_count(event, local)).filter(|&count| count != seen)
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        if let Some(listener) = &self.listener {
            listener.calls.retire();
        }
        let gone = slow_path(|_, _| {
            let mut listeners = self.node.tree().listeners.lock();
            let ears = listeners.levels.get_mut(&self.node.key())?;
            let gone = ears.remove(&self.ear);
            if ears.is_empty() {
                listeners.levels.remove(&self.node.key());
                self.node.unwatch(LISTENS);
            }
            gone
        });
        // Inside a listener nobody waits: two that drop each other would wait for each other.
        if let Some(listener) = self.listener.take()
            && !context::in_foreign()
        {
            listener.calls.wait();
        }
        // Foreign code may be dropped with it: no lock is held here.
        drop(gone);
        self.node.first().release();
    }
}

impl Tree {
    /// Whose event has happened at `level`: wakers to wake, listeners to tell.
    pub(crate) fn hear(&self, level: &Counter, due: &mut Due) {
        if !level.is_watched_for(LISTENS) {
            return;
        }
        let mut listeners = self.listeners.lock();
        for ear in listeners.levels.get_mut(&level.key()).into_iter().flat_map(BTreeMap::values_mut) {
            let count = level.event_count(ear.event, ear.local);
            if count == ear.seen {
                continue;
            }
            match &mut ear.who {
                Who::Waits(waker) => due.wakers.extend(waker.take()),
                Who::Listens(_) if context::telling() >= DEPTH_MAX => {}
                Who::Listens(listener) => {
                    let times = count.wrapping_sub(ear.seen);
                    ear.seen = count;
                    due.told.push(Told { listener: Arc::clone(&*listener), event: ear.event, count, times });
                }
            }
        }
    }
}
