//! What a thread does for others at the end of its slow path, when it holds nothing: charge for waiters, wake them, notify
//! listeners.
//!
//! Walks schedule levels on their way, also under locks; a level is in one thread's list at a time. It leaves the list
//! before the thread looks at what came for it, so a thread that finds it scheduled afterwards need not schedule it (E25,
//! E26). A thread that runs foreign code has no level in its hands: it collects wakers and notifications first.

use std::ptr;

use crate::counter::object::Counter;
use crate::counter::slow_path::release_all_claimed;
use crate::pressure::line;
use crate::pressure::listeners::{self, Notification, Notifications};
use crate::pressure::wakers::Wakers;
use crate::sync::Ordering;
use crate::thread::{deferred, slow_path};

/// Serve the levels that this thread has scheduled, and those that it schedules meanwhile. It holds no lock, and none of its
/// slow paths is under way.
pub(crate) fn serve(scheduled: *const ()) {
    let mut first = scheduled;
    let (mut wakers, mut notifications) = (Wakers::default(), Notifications::new());
    while !first.is_null() {
        slow_path::run(|block, _| {
            let mut next = first.cast::<Counter>();
            // SAFETY: scheduled with a handle by `Counter::schedule_service`; objects are never freed.
            #[allow(unsafe_code)]
            while let Some(level) = unsafe { next.as_ref::<'static>() } {
                next = level.usage.next_served.load(Ordering::Relaxed);
                level.unschedule_service();
                line::serve(level, block, &mut wakers);
                listeners::collect(level, &mut wakers, &mut notifications);
                if let Some(of) = level.first().unpin() {
                    level.first().part(of);
                }
            }
        });
        release_all_claimed();
        first = deferred::exchange_served(ptr::null());
    }
    wakers.wake();
    notifications.into_iter().for_each(Notification::dispatch);
}
