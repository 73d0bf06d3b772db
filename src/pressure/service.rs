//! What a thread does for others at the end of its slow path, when it holds nothing: charge for waiters, wake them, notify
//! listeners.
//!
//! Walks schedule levels on their way, also under locks; a level is in one thread's list at a time. It leaves the list
//! before the thread looks at what came for it, so a thread that finds it scheduled afterwards need not schedule it (E25,
//! E26). A thread that runs foreign code has no level in its hands: it collects wakers and notifications first.

use std::ptr;

use crate::counter::slow_path::release_all_claimed;
use crate::hierarchy::service::{self, Scheduled};
use crate::pressure::line;
use crate::pressure::listeners::{self, Notification, Notifications};
use crate::pressure::wakers::Wakers;
use crate::thread::slow_path::{Entered, exchange_served};

/// Serve the levels that this thread has scheduled, and those that it schedules meanwhile. It holds no lock, and none of its
/// slow paths is under way.
pub(crate) fn serve(scheduled: *const ()) {
    let mut first = scheduled;
    let (mut wakers, mut notifications) = (Wakers::default(), Notifications::new());
    while !first.is_null() {
        let entered = Entered::enter();
        for level in Scheduled::new(first) {
            service::unschedule(&level);
            line::serve(level.counter(), entered.block(), &mut wakers);
            listeners::collect(&level, &mut wakers, &mut notifications);
        }
        drop(entered);
        release_all_claimed();
        first = exchange_served(ptr::null());
    }
    wakers.wake();
    notifications.into_iter().for_each(Notification::dispatch);
}
