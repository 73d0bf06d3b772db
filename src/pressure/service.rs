//! Work of a thread for others at the end of its slow path, when it holds nothing: charge for
//! waiters, wake them, notify listeners.
//!
//! Walks schedule levels on their way, also under locks; a level is in one thread's list at a time.
//! It leaves the list before the thread looks at what came for it, so a thread that finds it
//! scheduled afterwards need not schedule it (E25, E26). A thread that runs foreign code has no
//! level in its hands: it collects wakers and notifications first.

use smallvec::SmallVec;

use crate::counter::handle::Handle;
use crate::counter::slow_path::{SlowPath, release_all_claimed};
use crate::hierarchy::service::{self, ScheduledLevels};
use crate::pressure::listeners::{self, Notification, Notifications};
use crate::pressure::wakers::Wakers;
use crate::pressure::{line, pressure_levels, started};
use crate::state::started::ListeningLevel;
use crate::thread::block::Block;
use crate::thread::context;
use crate::thread::slow_path::Entered;

/// Levels whose listeners another thread calls.
type ListeningLevels = SmallVec<[Handle; 2]>;

/// Serves the levels that this thread has scheduled, or leaves them to another thread where this
/// one may run no foreign code. It holds no lock, and none of its slow paths is under way.
pub(crate) fn serve(scheduled: *const ()) {
    let levels = ScheduledLevels::new(scheduled);
    match levels.first() {
        Some(level) if context::leaves_foreign() => {
            // The tree by a reference of its own: the levels in the list may be the last that keep
            // it, and the other thread is done with them at any moment.
            let tree = level.incarnation().tree.counted();
            // Memory of the crate, and of no group.
            let job = {
                let _path = Entered::enter();
                Box::new(move || serve_levels(levels))
            };
            if let Err(serve) = started::leave_service(&tree, job) {
                // The system has no thread. Foreign code on this one is the lesser evil: waiters
                // would sleep for ever.
                serve();
            }
        }
        _ => serve_levels(levels),
    }
}

/// Serves these levels, and those that the thread schedules meanwhile.
fn serve_levels(mut levels: ScheduledLevels) {
    let mut wakers = Wakers::default();
    let mut notifications = Notifications::new();
    let mut listened = ListeningLevels::new();
    let mut is_scheduled_here = false;
    while levels.first().is_some() {
        let entered = Entered::enter();
        for level in levels.by_ref() {
            // Mutation: e25-unscheduled-after-the-look
            service::unschedule(&level);
            release_credit_and_serve(&level, !is_scheduled_here, entered.block(), &mut wakers);
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
        // What was served may have been the last unit of a group, and may have scheduled further
        // levels. Both are done here and not by a further slow path, which would nest once for
        // each.
        release_all_claimed();
        levels = ScheduledLevels::take();
        is_scheduled_here = true;
    }
    // Foreign code from here on, when no level is in this thread's hands: what it does may schedule
    // levels anew, and a slow path of its own then serves them.
    wakers.wake();
    notifications.into_iter().for_each(Notification::dispatch);
    for level in listened {
        if let Err(ListeningLevel { level, call }) = started::leave_listeners(ListeningLevel {
            level,
            call: call_listeners,
        }) {
            call(level);
        }
    }
}

/// Gives back the credit that keeps the level's pressure up, if that is asked for, and then serves
/// its line, which may get those bytes.
fn release_credit_and_serve(
    level: &Handle,
    releases_credit: bool,
    block: Option<&Block>,
    wakers: &mut Wakers,
) {
    // Not for what comes of that: beside threads that charge there may be no end.
    if releases_credit {
        pressure_levels::release_credit(level);
    }
    line::serve(level, block, wakers);
}

/// Calls the listeners of a level whose event has happened.
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::counter::look;
    use crate::counter::slow_path::{LOOKS, LinkedObjects};
    use crate::counter::watch::DEFERRED;
    use crate::thread::deferred::deferred;
    use crate::{Group, Limits, Runtime};

    /// A panic of the engine leaves a slow path in which bytes have come back, and the thread ends
    /// with it. The next slow path of another thread, of another runtime even, serves the line.
    #[test]
    fn the_line_of_a_thread_that_has_unwound_is_served() {
        let runtime = Runtime::builder().audit(true).batch(0).build().unwrap();
        let group = runtime.root().create("q", Limits::new().max(100)).unwrap();
        let gone = group.create("gone", Limits::new()).unwrap();
        let held = gone.charge(100).unwrap();
        let mut future = pin!(group.charge_async(40));
        let mut poll = || {
            future
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
        };
        assert!(poll().is_pending());
        thread::scope(|scope| {
            let unwinds = scope.spawn(move || {
                let _path = SlowPath::enter();
                drop((held, gone));
                panic!("as a fault of the engine would");
            });
            unwinds.join().unwrap_err();
        });
        // The bytes are back; or a slow path of another test has served the line already.
        let usage = group.usage();
        assert!(usage == 0 || usage == 40, "{usage} are charged");
        drop(Runtime::builder().build().unwrap());
        // A slow path of another test may have taken the list, and may be at it.
        let end = Instant::now() + Duration::from_secs(60);
        let charge = loop {
            if let Poll::Ready(charge) = poll() {
                break charge.unwrap();
            }
            assert!(Instant::now() < end, "nothing serves the line");
            thread::yield_now();
        };
        assert_eq!((charge.bytes(), group.waiting_count()), (40, 0));
    }

    /// So are the levels that a thread has not come to when it unwinds.
    #[test]
    fn levels_that_a_service_has_not_come_to_are_left() {
        let runtime = Runtime::builder().audit(true).batch(0).build().unwrap();
        let groups = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        {
            let _path = Entered::enter();
            groups
                .iter()
                .for_each(|group| service::schedule(group.first()));
        }
        let mut levels = ScheduledLevels::take();
        let first = levels.next().expect("two are listed");
        service::unschedule(&first);
        assert!(levels.first().is_some());
        drop((first, levels));
        drop(Runtime::builder().build().unwrap());
        // A slow path of another test may have taken the list, and may be at it.
        let is_listed = |group: &Group| group.first().limits.watched.is_for(service::LISTED);
        let end = Instant::now() + Duration::from_secs(60);
        while groups.iter().any(is_listed) {
            assert!(Instant::now() < end, "no slow path serves it");
            thread::yield_now();
        }
    }

    /// Of a list that a thread unwinds out of, the rest goes to the next slow path of any thread.
    #[test]
    #[allow(unsafe_code)]
    fn looks_that_a_thread_has_not_come_to_are_left() {
        let runtime = Runtime::builder().build().unwrap();
        let groups =
            ["a", "b", "c"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        for group in &groups {
            look::defer(group.first(), DEFERRED);
        }
        // A slow path of another test may take the list before, and those of other tests are there.
        let mut list = LinkedObjects::new(deferred().looks.take(), LOOKS);
        if let Some(first) = list.next() {
            // SAFETY: the list has a handle, which the call gives up.
            let counter: &crate::counter::object::Counter = unsafe { first.kept() };
            counter.tree().policies().unwrap().look_again(first);
        }
        drop(list);
        drop(Runtime::builder().build().unwrap());
        let is_deferred = |group: &Group| group.first().limits.watched.is_for(DEFERRED);
        let end = Instant::now() + Duration::from_secs(60);
        while groups.iter().any(is_deferred) {
            assert!(Instant::now() < end, "no slow path looks at it");
            thread::yield_now();
        }
    }
}
