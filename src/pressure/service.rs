//! What a thread does for others at the end of its slow path, when it holds nothing: charge for those who wait, wake
//! them, tell those who listen.
//!
//! Levels are listed on the way, in the middle of walks and under locks; a level is in one thread's list at a time. It
//! leaves the list before anybody looks at what came for it, so whoever finds it listed afterwards need not list it
//! (E25, E26). No level is in the hands of a thread that runs foreign code: wakers and listeners are collected first.

use std::ptr;

use crate::counter::object::Counter;
use crate::counter::slow_path::release_all_claimed;
use crate::pressure::listeners::{self, Notification, Notifications};
use crate::pressure::wakers::Wakers;
use crate::sync::Ordering;
use crate::thread::{deferred, slow_path};

/// Serves what this thread has scheduled, and what it schedules meanwhile. No lock is held, and no slow path of this thread
/// is under way.
pub(crate) fn serve(scheduled: *const ()) {
    let mut first = scheduled;
    let (mut wakers, mut notifications) = (Wakers::default(), Notifications::new());
    while !first.is_null() {
        slow_path::run(|block, _| {
            let mut next = first.cast::<Counter>();
            // SAFETY: listed with a handle by `Counter::list`; objects are never freed.
            #[allow(unsafe_code)]
            while let Some(node) = unsafe { next.as_ref::<'static>() } {
                next = node.usage.next_served.load(Ordering::Relaxed);
                node.unschedule_service();
                node.tree().serve(node, block, &mut wakers);
                listeners::collect(node, &mut wakers, &mut notifications);
                if let Some(of) = node.first().unpin() {
                    node.first().part(of);
                }
            }
        });
        release_all_claimed();
        first = deferred::exchange_served(ptr::null());
    }
    wakers.wake();
    notifications.into_iter().for_each(Notification::dispatch);
}
