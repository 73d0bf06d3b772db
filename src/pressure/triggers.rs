//! Triggers: an event as soon as chargers of a group have stood still for so long in a window.
//!
//! A thread looks at a trigger when a charger stops or goes on, if the trigger is due then. While chargers stand still
//! nothing else happens, so a look is also due at the moment at which the time would be full. The thread that ends delays
//! wakes it: [`Look`] is the waker. One look at a time is planned. It is never too late, for no stall makes the time
//! full before that moment.
//!
//! A look schedules the group, and the service at the end of a slow path counts the event. So listeners run where they run
//! for other events: on the thread of a charger, or on the tree's own thread after a planned look.
//!
//! The table of triggers has each group with a trigger, as long as the group is online. So a thread that finds a group
//! there, under the lock, may take a handle on it. A planned look keeps neither the group nor the tree.

use std::mem;
use std::task::{Wake, Waker};

use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{events, group_tree, service};
use crate::pressure::delays::Alarm;
use crate::pressure::stalls;
use crate::state::events::Event;
use crate::state::stalls::TriggerSetting;
use crate::sync::{Arc, Ordering, TIME_PASSES, Weak};
use crate::thread::context;

/// Why a trigger was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSet {
    /// The runtime counts no stalls.
    Uncounted,
    Offline,
    NoMemory,
}

/// Sets the trigger of a group, or ends it.
pub(crate) fn set(group: &'static Counter, setting: Option<TriggerSetting>) -> Result<(), NotSet> {
    if setting.is_none() && events::counts(group).is_none() {
        return Ok(());
    }
    if setting.is_some() && !group_tree::of(group).pressure.counts_stalls {
        return Err(NotSet::Uncounted);
    }
    let _path = SlowPath::enter();
    if !events::make_all(group) {
        return Err(NotSet::NoMemory);
    }
    let mut stalls = stalls::lock(group);
    if setting.is_some() {
        // Under the lock: a group that goes offline leaves the table afterwards.
        if group.state().is_offline() {
            return Err(NotSet::Offline);
        }
        stalls.triggered.insert(group.key(), group);
    } else {
        stalls.triggered.remove(&group.key());
    }
    mark(group, setting.is_some());
    let now = stalls.now();
    let wants_look = stalls.with(group, |times| {
        times.advance(now);
        times.set_trigger(setting);
        times.wants_look()
    });
    drop(stalls);
    if wants_look == Some(true) {
        service::schedule(group);
    }
    Ok(())
}

/// Says whether the group has a trigger, for threads that serve it. Under the lock.
fn mark(group: &Counter, is_triggered: bool) {
    if let Some(counts) = events::counts(group) {
        // Relaxed: a thread that schedules the group for a look has had the lock, and the one that serves it sees all
        // before that (E26).
        counts.is_triggered.store(is_triggered, Ordering::Relaxed);
    }
}

pub(crate) fn setting(group: &Counter) -> Option<TriggerSetting> {
    events::counts(group)?;
    let _path = SlowPath::enter();
    stalls::lock(group).with(group, |times| times.trigger()).flatten()
}

/// The group goes offline: its trigger ends. The caller has set the mark.
pub(crate) fn went_offline(group: &Counter) {
    if TIME_PASSES && events::counts(group).is_some() {
        let mut stalls = stalls::lock(group);
        if stalls.triggered.remove(&group.key()).is_some() {
            mark(group, false);
            stalls.with(group, |times| times.set_trigger(None));
        }
    }
}

/// Looks at the trigger of a level that is being served, inside a slow path.
pub(crate) fn serve(level: &Counter) {
    // Relaxed: see `mark`.
    if !TIME_PASSES || !events::counts(level).is_some_and(|counts| counts.is_triggered.load(Ordering::Relaxed)) {
        return;
    }
    let mut stalls = stalls::lock(level);
    if !stalls.triggered.contains_key(&level.key()) {
        return;
    }
    let now = stalls.now();
    let looked = stalls.with(level, |times| {
        times.advance(now);
        times.look()
    });
    let (is_due, again) = looked.unwrap_or_default();
    let again = again.map(|moment| stalls.at(moment));
    drop(stalls);
    if is_due {
        events::count(level, Event::Pressure);
    }
    if let Some(again) = again {
        let tree = Arc::downgrade(&level.incarnation().tree.counted());
        let waker = Waker::from(Arc::new(Look { tree, group: level.key() }));
        match Alarm::set(None, again, &waker) {
            // It leaves the table of delays when it is over.
            Some(alarm) => mem::forget(alarm),
            None => _ = stalls::lock(level).with(level, |times| times.no_look()),
        }
    }
}

/// A look that is planned.
struct Look {
    tree: Weak<Tree>,
    group: u64,
}

impl Wake for Look {
    fn wake(self: Arc<Self>) {
        let Some(tree) = self.tree.upgrade() else { return };
        let group = {
            let _path = SlowPath::enter();
            let stalls = group_tree::shared(&tree).stalls.lock();
            // In the table, so it is online.
            stalls.triggered.get(&self.group).map(|group| Handle::pin(group))
        };
        if let Some(group) = group {
            // Listeners must not hold up the thread that ends delays.
            context::without_foreign(|| {
                let _path = SlowPath::enter();
                service::schedule(&group);
            });
        }
    }
}
