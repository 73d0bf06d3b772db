//! Work of a thread for others at the end of its slow path, when it holds nothing: charge for
//! waiters, wake them, notify listeners.
//!
//! Walks schedule levels on their way, also under locks; a level is in one thread's list at a time.
//! It leaves the list before the thread looks at what came for it, so a thread that finds it
//! scheduled afterwards need not schedule it (E25, E26). A thread that runs foreign code has no
//! level in its hands: it collects wakers and notifications first.

use std::ptr;

use smallvec::SmallVec;

use crate::counter::handle::Handle;
use crate::counter::slow_path::{SlowPath, release_all_claimed};
use crate::hierarchy::service::{self, Scheduled};
use crate::pressure::line;
use crate::pressure::listeners::{self, Notification, Notifications};
use crate::pressure::started;
use crate::pressure::wakers::Wakers;
use crate::state::started::Listened;
use crate::thread::context;
use crate::thread::slow_path::{Entered, exchange_served};

/// Levels that a thread serves, each with a handle.
type Due = SmallVec<[Handle; 2]>;

/// Serve the levels that this thread has scheduled, or leave them to another thread where this one
/// may run no foreign code. It holds no lock, and none of its slow paths is under way.
pub(crate) fn serve(scheduled: *const ()) {
    let levels: Due = Scheduled::new(scheduled).collect();
    match levels.first() {
        Some(level) if context::leaves_foreign() => {
            let tree = level.incarnation().tree.counted();
            // Memory of the crate, and of no group.
            let job = {
                let _path = Entered::enter();
                Box::new(move || serve_levels(levels))
            };
            if let Err(serve) = started::leave_service(&tree, job) {
                serve();
            }
        }
        _ => serve_levels(levels),
    }
}

/// Serve these levels, and those that the thread schedules meanwhile.
fn serve_levels(mut levels: Due) {
    let mut wakers = Wakers::default();
    let mut notifications = Notifications::new();
    let mut listened = Due::new();
    while !levels.is_empty() {
        let entered = Entered::enter();
        for level in levels {
            // Mutation: e25-unscheduled-after-the-look
            service::unschedule(&level);
            line::serve(&level, entered.block(), &mut wakers);
            started::reclaim_if_crossed(&level);
            let calls = if context::leaves_listeners() {
                None
            } else {
                Some(&mut notifications)
            };
            if listeners::collect(&level, &mut wakers, calls) {
                listened.push(level);
            }
        }
        drop(entered);
        release_all_claimed();
        levels = Scheduled::new(exchange_served(ptr::null())).collect();
    }
    wakers.wake();
    notifications.into_iter().for_each(Notification::dispatch);
    for level in listened {
        if let Err(Listened { level, call }) = started::leave_listeners(Listened {
            level,
            call: call_listeners,
        }) {
            call(level);
        }
    }
}

/// Call the listeners of a level whose event has happened.
fn call_listeners(level: Handle) {
    let mut wakers = Wakers::default();
    let mut notifications = Notifications::new();
    {
        let _path = SlowPath::enter();
        listeners::collect(&level, &mut wakers, Some(&mut notifications));
    }
    drop(level);
    wakers.wake();
    notifications.into_iter().for_each(Notification::dispatch);
}
