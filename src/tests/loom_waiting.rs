//! Waiters are served: freed bytes reach the first in line, whichever thread frees them and whichever waiter leaves,
//! events wake their listeners, and a victim's memory reaches the charge that it was chosen for. A wake-up that is lost
//! is a deadlock, which loom reports.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use loom::sync::{Condvar, Mutex};

use super::loom_lifecycle::{assert_buried_once, beside, group};
use super::{large_model_without_pair, model, model_of_exchanges, model_without_pair};
use crate::hierarchy::events;
use crate::sync::{AtomicU64, Ordering, Thread, park, this_thread};
use crate::{
    Bytes, Charge, ChargeError, Event, Group, Limit, Limits, OomPolicy, Priority, Reclaim, ReclaimContext, Runtime,
    RuntimeBuilder,
};

/// Time stands still in a model.
const EVER: Duration = Duration::from_secs(1);

/// Units go up the tree one by one, up to `max`.
fn bare(max: u64) -> Runtime {
    Runtime::builder().batch(Bytes(0)).max(Limit::Bytes(max)).build().unwrap()
}

/// A stock that has credit to lose.
fn stocked(max: u64) -> RuntimeBuilder {
    Runtime::builder().batch(Bytes(1)).budget(Bytes(max)).adaptive(false).max(Limit::Bytes(max))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(this_thread())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => park(None),
        }
    }
}

/// E25. Bytes go up the tree while a charge goes into line.
#[test]
fn loom_waiter_vs_uncharge() {
    model_without_pair(|| {
        let runtime = bare(1);
        let root = runtime.root();
        let held = root.try_charge(1).unwrap();
        let other = beside(held, drop);
        let charge = root.charge_timeout(1, EVER).unwrap();
        other.join().unwrap();
        assert_eq!((root.usage(), root.waiting()), (1, 0));
        drop(charge);
    });
}

/// A byte that is put into a stock while a charge goes into line does not stay there.
#[test]
fn loom_waiter_vs_put() {
    model(|| {
        let runtime = stocked(4).build().unwrap();
        let tenant = runtime.root().create("tenant", Limits::new().max(Limit::Bytes(2))).unwrap();
        let [waits, busy] = ["waits", "busy"].map(|name| group(&tenant, name));
        let other = beside(busy, |busy| drop(busy.try_charge(1)));
        let charge = waits.charge_timeout(2, EVER).unwrap();
        other.join().unwrap();
        assert_eq!((tenant.usage(), tenant.waiting()), (2, 0));
        drop(charge);
    });
}

/// E25. Two threads give bytes back at once, and the level is in the list of one: that thread sees both when it serves.
#[test]
fn loom_waiter_vs_two_uncharges() {
    large_model_without_pair(|| {
        let runtime = bare(2);
        let root = runtime.root();
        let held = [root.try_charge(1).unwrap(), root.try_charge(1).unwrap()];
        let mut future = pin!(root.charge_async(2));
        let waker = Waker::from(Arc::new(Unpark(this_thread())));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let [first, second] = held;
        let others = [beside(first, drop), beside(second, drop)];
        let charge = block_on(future).unwrap();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(root.usage(), 2);
        drop(charge);
    });
}

/// The first in line leaves while it is served: what it was given goes to the next.
#[test]
fn loom_wake_vs_cancel() {
    model(|| {
        let runtime = bare(1);
        let root = runtime.root();
        let held = root.try_charge(1).unwrap();
        let waker = Waker::from(Arc::new(Unpark(this_thread())));
        let mut first = Box::pin(root.charge_async(1));
        let mut second = Box::pin(root.charge_async(1));
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let other = beside(held, drop);
        drop(first);
        let charge = block_on(second).unwrap();
        other.join().unwrap();
        assert_eq!((root.usage(), root.waiting()), (1, 0));
        drop(charge);
        assert_eq!(root.usage(), 0);
    });
}

/// The first in line, past which no charge may barge any more, leaves: there is room for the next.
#[test]
fn loom_next_vs_cancel() {
    model(|| {
        let runtime = bare(2);
        let root = runtime.root();
        let held = root.try_charge(1).unwrap();
        let waker = Waker::from(Arc::new(Unpark(this_thread())));
        let mut first = Box::pin(root.charge_async(2));
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        for _ in 0..2 {
            drop(root.try_charge(1).unwrap());
        }
        let other = beside(first, drop);
        let charge = root.charge_timeout(1, EVER).unwrap();
        other.join().unwrap();
        assert_eq!((root.usage(), root.waiting()), (2, 0));
        drop((held, charge));
    });
}

/// E12, E25. The last bytes go back while the only waiter leaves: when their thread schedules the level, the object
/// may be in the pool.
#[test]
fn loom_last_waiter_vs_last_uncharge() {
    model_of_exchanges(|| {
        let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
        let gone = runtime.root().create("gone", Limits::new().max(Limit::Bytes(1))).unwrap();
        let held = gone.try_charge(1).unwrap();
        let mut future = Box::pin(gone.charge_async(1));
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let other = beside(held, drop);
        drop(future);
        // In one go: the model explores where the other thread is by then.
        loom::stop_exploring();
        gone.offline().unwrap();
        drop(gone);
        loom::explore();
        other.join().unwrap();
        assert_buried_once(&runtime);
    });
}

/// A cache with one charge to give.
struct One(std::sync::Mutex<Option<Charge>>);

impl Reclaim for One {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        let given = self.0.lock().unwrap().take();
        given.map_or(0, |charge| charge.bytes())
    }
}

/// A waiter moves to the line of a level above, where a cache has what it needs: it is woken to ask there.
#[test]
fn loom_waiter_moves_to_a_cache() {
    model(|| {
        let runtime = bare(2);
        let root = runtime.root();
        let cache = group(&root, "cache");
        let tenant = root.create("tenant", Limits::new().max(Limit::Bytes(1))).unwrap();
        let held = tenant.try_charge(1).unwrap();
        let kept = One(std::sync::Mutex::new(Some(cache.try_charge(1).unwrap())));
        let _registration = cache.register_reclaimer(Arc::new(kept), Priority::NORMAL);
        let mut future = Box::pin(tenant.charge_async(1));
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // The tenant has room once the other thread is done, the root has none.
        let more = root.charge(1);
        let other = beside(held, drop);
        let charge = block_on(future).unwrap();
        other.join().unwrap();
        assert_eq!((tenant.usage(), root.usage(), root.waiting()), (1, 2, 0));
        drop((charge, more));
    });
}

/// A waker is exchanged while its owner is served: one of the two is woken, or the poll finds the charge.
#[test]
fn loom_wake_vs_poll() {
    model(|| {
        let runtime = bare(1);
        let root = runtime.root();
        let held = root.try_charge(1).unwrap();
        let mut future = Box::pin(root.charge_async(1));
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let other = beside(held, drop);
        let charge = block_on(future).unwrap();
        other.join().unwrap();
        drop(charge);
    });
}

/// The max is raised while a charge goes into line.
#[test]
fn loom_waiter_vs_set_max() {
    large_model_without_pair(|| {
        let runtime = bare(1);
        let root = runtime.root();
        let held = root.try_charge(1).unwrap();
        let other = beside(root.clone(), |root| root.set_max(Limit::Bytes(2)).unwrap());
        // What can never fit is refused at once: then it came first.
        match root.charge_timeout(1, EVER) {
            Ok(charge) => drop(charge),
            Err(error) => panic!("{error}"),
        }
        other.join().unwrap();
        drop(held);
    });
}

/// E27. The group goes offline while its charge goes into line.
#[test]
fn loom_waiter_vs_offline() {
    model_without_pair(|| {
        let runtime = bare(1);
        let root = runtime.root();
        let held = root.try_charge(1).unwrap();
        let gone = group(&root, "gone");
        let other = beside(gone.clone(), |gone| gone.offline().unwrap());
        let refused = gone.charge_timeout(1, EVER).map(drop);
        assert!(matches!(&refused, Err(ChargeError::Offline { .. })));
        drop(refused);
        other.join().unwrap();
        assert_eq!(root.waiting(), 0);
        drop((held, gone));
        assert_eq!(runtime.dying(), 0);
    });
}

/// E26. An event happens while a listener begins to wait for it.
#[test]
fn loom_event_vs_waiter() {
    model_without_pair(|| {
        let runtime = bare(1);
        let root = runtime.root();
        let events = root.events();
        let other = beside(root.clone(), |root: Group| assert!(root.try_charge(2).is_err()));
        assert!(events.wait(Event::Oom, EVER));
        other.join().unwrap();
        assert_eq!(root.events().get(Event::Oom), 1);
    });
}

/// E40. A thread that finds the first counts of a group finds them made, and two events at once are counted in the
/// same.
#[test]
fn loom_first_events_vs_read() {
    model_without_pair(|| {
        let runtime = bare(1);
        let query = group(&runtime.root(), "query");
        let observed = |group: &Group| events::count(group.first(), Event::Panic);
        let other = beside(query.clone(), move |query| observed(&query));
        assert!(query.events().get(Event::Panic) <= 1);
        observed(&query);
        other.join().unwrap();
        assert_eq!(query.events().get(Event::Panic), 2);
    });
}

/// A listener is dropped while an event happens: no call is under way afterwards.
#[test]
fn loom_event_vs_listener_dropped() {
    model_without_pair(|| {
        let runtime = bare(1);
        let root = runtime.root();
        let at_work = Arc::new(AtomicU64::new(0));
        let subscription = root.on_event(Event::Oom, {
            let at_work = Arc::clone(&at_work);
            move |_| {
                at_work.store(1, Ordering::SeqCst);
                at_work.store(0, Ordering::SeqCst);
            }
        });
        let other = beside(root, |root: Group| assert!(root.try_charge(2).is_err()));
        drop(subscription);
        assert_eq!(at_work.load(Ordering::SeqCst), 0, "a call is under way");
        other.join().unwrap();
    });
}

/// The victim's thread gives its memory back when its hook is called; the charge that it was chosen for gets it.
#[test]
fn loom_victim_vs_charger() {
    model(|| {
        let runtime = bare(1);
        let root = runtime.root();
        root.set_oom_policy(OomPolicy::Choose);
        let [hog, asks] = ["hog", "asks"].map(|name| group(&root, name));
        let held = hog.try_charge(1).unwrap();
        let called = Arc::new((Mutex::new(false), Condvar::new()));
        let victim = beside((held, Arc::clone(&called)), |(held, called)| {
            let (called, changed) = &*called;
            let mut called = called.lock().unwrap();
            while !*called {
                called = changed.wait(called).unwrap();
            }
            drop(called);
            drop(held);
        });
        let hook = hog.on_cancel(move |_| {
            *called.0.lock().unwrap() = true;
            called.1.notify_one();
        });
        let charge = asks.try_charge(1);
        assert!(charge.is_ok(), "the victim's byte");
        victim.join().unwrap();
        assert_eq!((hog.usage(), asks.usage(), hog.events().get(Event::OomKill)), (0, 1, 1));
        drop((hook, charge));
    });
}

/// Two charges that do not fit, one victim that has enough for both: it is chosen once, and the other group not at all.
#[test]
fn loom_one_victim_for_two() {
    large_model_without_pair(|| {
        let runtime = bare(3);
        let root = runtime.root();
        root.set_oom_policy(OomPolicy::Choose);
        let [hog, asks, small] = ["hog", "asks", "small"].map(|name| group(&root, name));
        let spared = small.try_charge(1).unwrap();
        let other_hook = small.on_cancel(|_| {});
        let held = Arc::new(std::sync::Mutex::new(vec![hog.try_charge(2).unwrap()]));
        let hook = hog.on_cancel({
            let held = Arc::clone(&held);
            move |_| {
                let given = held.lock().unwrap().pop();
                drop(given);
            }
        });
        let other = beside(asks.clone(), |asks| asks.try_charge(1).unwrap());
        let ours = asks.try_charge(1).unwrap();
        let theirs = other.join().unwrap();
        assert_eq!((asks.usage(), root.events().get(Event::OomKill)), (2, 1));
        drop((ours, theirs, hook, other_hook, spared));
    });
}
