//! Waiters are served: freed bytes reach the first in line, whichever thread frees them and
//! whichever waiter leaves, events wake their listeners, and a victim's memory reaches the charge
//! that it was chosen for. A wake-up that is lost is a deadlock, which loom reports.

use std::future::{Future, poll_fn};
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::common::{block_on, end, group, waiting, waker};
use super::loom_lifecycle::{self, assert_released_once};
use super::loom_reclaim::ChargeCache;
use super::schedules::{EVER, in_one_go};
use super::{
    beside, build, large_model_without_pair, model, model_of_exchanges, model_without_pair, race,
};
use crate::hierarchy::events;
use crate::state::waiting::{FirstInLine, PlaceInLine};
use crate::sync::{AtomicU64, Ordering};
use crate::{
    Bytes, Charge, Event, Group, GroupCounter, Limit, Limits, OnFull, OomPolicy, ReclaimPriority,
    Runtime, RuntimeBuilder,
};

fn bare(max: u64) -> (Runtime, Group) {
    build(loom_lifecycle::bare().max(Limit::Bytes(max)))
}

/// A root of one byte, and its charge.
fn full() -> (Runtime, Group, Charge) {
    let (runtime, root) = bare(1);
    let held = root.charge(1).unwrap();
    (runtime, root, held)
}

/// The charge has the one byte of the root, and no other charge waits.
fn assert_has_it(root: &Group, charge: &Charge) {
    assert_eq!(
        (root.usage(), root.waiting_count(), charge.bytes()),
        (1, 0, 1)
    );
}

fn stocked(max: u64) -> RuntimeBuilder {
    Runtime::builder()
        .batch(Bytes(1))
        .budget(Bytes(max))
        .adaptive(false)
        .max(Limit::Bytes(max))
}

/// E25. Bytes go up the tree while a charge goes into line.
#[test]
fn loom_waiter_vs_uncharge() {
    model_without_pair(|| {
        let (_runtime, root, held) = full();
        let charge = race(held, drop, || {
            root.charge_with(1, OnFull::Wait(EVER)).unwrap()
        })
        .1;
        assert_has_it(&root, &charge);
        drop(charge);
    });
}

/// A charge barges past the first in line while another waiter becomes the first: its bytes are
/// taken from one budget.
#[test]
fn loom_barge_vs_next_first() {
    model_without_pair(|| {
        let line = Arc::new(FirstInLine::default());
        line.show(PlaceInLine::new(0, 2), 4, 4);
        let barges = |line: Arc<FirstInLine>| line.change_budget(|left| left.checked_sub(1));
        let (barged, left) = race(line.clone(), barges, || {
            line.show(PlaceInLine::new(0, 1), 8, 8)
        });
        assert!(barged);
        assert_eq!(left + line.budget(), 4 + 8 - 1);
    });
}

/// Two important charges come after an old one, and the second while bytes go up the tree. One goes
/// before the old one with sixteen times its bytes: the first, or the second where it barges past
/// that one. The other does not.
#[test]
fn loom_important_vs_oldest() {
    model_without_pair(|| {
        let (_runtime, root) = bare(16);
        let held = root.charge(16).unwrap();
        let gold = root.create("gold", Limits::new().importance(1)).unwrap();
        let old = waiting(&root, 1, &waker());
        let first = waiting(&gold, 16, &waker());
        let second = race(held, drop, || {
            let mut second = Box::pin(gold.charge_async(16));
            match second.as_mut().poll(&mut Context::from_waker(&waker())) {
                Poll::Ready(charge) => Ok(charge.unwrap()),
                Poll::Pending => Err(second),
            }
        });
        match second.1 {
            Ok(charge) => {
                drop(charge);
                drop(block_on(old).unwrap());
                drop(block_on(first).unwrap());
            }
            Err(second) => {
                drop(block_on(first).unwrap());
                drop(block_on(old).unwrap());
                drop(block_on(second).unwrap());
            }
        }
        assert_eq!((root.usage(), root.waiting_count()), (0, 0));
    });
}

/// A byte that is put into a stock while a charge goes into line does not stay there. The stock
/// opens meanwhile.
#[test]
fn loom_waiter_vs_put() {
    model(|| {
        let (_runtime, root) = build(stocked(4));
        let tenant = root.create("tenant", Limits::new().max(2)).unwrap();
        let [waits, busy] = ["waits", "busy"].map(|name| group(&tenant, name));
        tenant.memory().set_batch(0);
        let held = busy.charge(1).unwrap();
        let puts = |busy: GroupCounter| {
            busy.set_batch(1);
            drop(held);
        };
        let charge = race(busy.memory(), puts, || {
            waits.charge_with(2, OnFull::Wait(EVER)).unwrap()
        })
        .1;
        assert_eq!((tenant.usage(), tenant.waiting_count()), (2, 0));
        drop(charge);
    });
}

/// E25. Two threads give bytes back at once, and the level is in the list of one: that thread sees
/// both when it serves.
#[test]
fn loom_waiter_vs_two_uncharges() {
    large_model_without_pair(|| {
        let (_runtime, root) = bare(2);
        let held = [1, 1].map(|bytes| root.charge(bytes).unwrap());
        let future = waiting(&root, 2, &waker());
        let others = held.map(|held| beside(held, drop));
        let charge = block_on(future).unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(root.usage(), 2);
        drop(charge);
    });
}

/// E25. A queue's place in line is for less from here on while bytes go up the tree.
#[test]
fn loom_resized_waiter_vs_uncharge() {
    model_without_pair(|| {
        let (_runtime, root) = bare(2);
        let [held, kept] = [1, 1].map(|bytes| root.charge(bytes).unwrap());
        let mut future = waiting(&root, 2, &waker());
        race(held, drop, || assert!(future.wait_for(Bytes(1))));
        let charge = block_on(future).unwrap();
        assert_eq!((root.usage(), root.waiting_count()), (2, 0));
        drop((kept, charge));
    });
}

/// Bytes come back to a queue whose place in line is behind another charge: that one gets them, not
/// the queue.
#[test]
fn loom_handed_over_vs_older_waiter() {
    model_without_pair(|| {
        let (_runtime, root, held) = full();
        let older = waiting(&root, 1, &waker());
        let queue = waiting(&root, 1, Waker::noop());
        // The queue would keep what it gets.
        let other = beside((held, queue), |(held, queue)| {
            queue.is_served_by(&held).then(|| mem::forget(held))
        });
        let charge = block_on(older).unwrap();
        other.join().unwrap();
        assert_has_it(&root, &charge);
        drop(charge);
    });
}

/// E25. A queue takes what the line has decided, and its place is the next one's, which is served
/// and woken as the first was.
#[test]
fn loom_next_of_a_queue_vs_uncharge() {
    model_without_pair(|| {
        let (_runtime, root, held) = full();
        let mut place = waiting(&root, 1, &waker());
        let mut next = |others: Charge| {
            let other = beside(others, drop);
            let taken = block_on(poll_fn(|context| {
                let taken = place.take_decided(Some((Bytes(1), context.waker())));
                taken.map_or(Poll::Pending, Poll::Ready)
            }));
            other.join().unwrap();
            taken.unwrap()
        };
        let first = next(held);
        let second = next(first);
        assert_eq!((root.usage(), root.waiting_count()), (1, 1));
        drop((place, second));
        assert_eq!((root.usage(), root.waiting_count()), (0, 0));
    });
}

/// The first in line, past which no charge may barge any more, leaves: there is room for the next.
#[test]
fn loom_next_vs_cancel() {
    model(|| {
        let (_runtime, root) = bare(2);
        let held = root.charge(1).unwrap();
        let first = waiting(&root, 2, &waker());
        for _ in 0..2 {
            drop(root.charge(1).unwrap());
        }
        let charge = race(first, drop, || {
            root.charge_with(1, OnFull::Wait(EVER)).unwrap()
        })
        .1;
        assert_eq!((root.usage(), root.waiting_count()), (2, 0));
        drop((held, charge));
    });
}

/// E12, E25. The last bytes go back while the only waiter leaves: when their thread schedules the
/// level, the object may be in the pool.
#[test]
fn loom_last_waiter_vs_last_uncharge() {
    model_of_exchanges(|| {
        let (runtime, root) = build(loom_lifecycle::bare());
        let gone = root.create("gone", Limits::new().max(1)).unwrap();
        let held = gone.charge(1).unwrap();
        let future = waiting(&gone, 1, Waker::noop());
        let other = beside(held, drop);
        drop(future);
        // In one go: the model explores where the other thread is by then.
        in_one_go(|| end(gone));
        other.join().unwrap();
        assert_released_once(&runtime);
    });
}

/// A waiter moves to the line of a level above, where a cache has what it needs: it is woken to ask
/// there.
#[test]
fn loom_waiter_moves_to_a_cache() {
    model(|| {
        let (_runtime, root) = bare(2);
        let cache = group(&root, "cache");
        let tenant = root.create("tenant", Limits::new().max(1)).unwrap();
        let held = tenant.charge(1).unwrap();
        let kept = ChargeCache::of([cache.charge(1).unwrap()]);
        let _registration = cache.register_reclaimer(kept, ReclaimPriority::NORMAL);
        let future = waiting(&tenant, 1, Waker::noop());
        // The tenant has room once the other thread is done, the root has none.
        let more = root.force_charge(1);
        let charge = race(held, drop, || block_on(future).unwrap()).1;
        assert_eq!(
            (tenant.usage(), root.usage(), root.waiting_count()),
            (1, 2, 0)
        );
        drop((charge, more));
    });
}

/// A waker is exchanged while its owner is served: one of the two is woken, or the poll finds the
/// charge.
#[test]
fn loom_wake_vs_poll() {
    model(|| {
        let (_runtime, root, held) = full();
        let future = waiting(&root, 1, Waker::noop());
        let charge = race(held, drop, || block_on(future).unwrap()).1;
        drop(charge);
    });
}

/// The max is raised while a charge goes into line.
#[test]
fn loom_waiter_vs_set_max() {
    large_model_without_pair(|| {
        let (_runtime, root, held) = full();
        // A charge that can never fit is refused at once: then it came first.
        let set = |root: Group| root.set_max(2).unwrap();
        race(root.clone(), set, || {
            drop(
                root.charge_with(1, OnFull::Wait(EVER))
                    .unwrap_or_else(|error| panic!("{error}")),
            )
        });
        drop(held);
    });
}

/// The max is lowered below what a charge asks for, while the charge goes into line: it does
/// not wait.
#[test]
fn loom_waiter_vs_lowered_max() {
    large_model_without_pair(|| {
        let (_runtime, root) = bare(2);
        let held = root.charge(1).unwrap();
        let set = |root: Group| root.set_max(1).unwrap();
        let refused = race(root.clone(), set, || {
            root.charge_with(2, OnFull::Wait(EVER))
        })
        .1;
        assert!(matches!(&refused, Err(error) if error.is_over_limit()));
        drop(held);
    });
}

/// The max of the group is lowered below what its charge asks for, while the charge goes into the
/// line of the root: it does not wait.
#[test]
fn loom_waiter_vs_lowered_max_of_its_path() {
    model_without_pair(|| {
        let (_runtime, root) = bare(2);
        let held = root.charge(1).unwrap();
        let group = root.create("group", Limits::new().max(2)).unwrap();
        let set = |group: Group| group.memory().set_max_now(Limit::Bytes(1)).unwrap();
        let refused = race(group.clone(), set, || {
            group.charge_with(2, OnFull::Wait(EVER))
        })
        .1;
        assert!(refused.is_err_and(|error| error.is_over_limit()));
        drop(held);
    });
}

/// E27. The group goes offline while its charge goes into line.
#[test]
fn loom_waiter_vs_offline() {
    model_without_pair(|| {
        let (runtime, root) = bare(1);
        let held = root.charge(1).unwrap();
        let gone = group(&root, "gone");
        let other = beside(gone.clone(), |gone| gone.offline().unwrap());
        assert!(
            matches!(gone.charge_with(1, OnFull::Wait(EVER)), Err(error) if error.is_offline())
        );
        other.join().unwrap();
        assert_eq!(root.waiting_count(), 0);
        drop((held, gone));
        assert_eq!(runtime.dying_count(), 0);
    });
}

/// E26. An event happens while a listener begins to wait for it.
#[test]
fn loom_event_vs_waiter() {
    model_without_pair(|| {
        let (_runtime, root) = bare(1);
        let events = root.events();
        race(
            root.clone(),
            |root: Group| assert!(root.charge(2).is_err()),
            || assert!(events.wait(Event::Oom, EVER)),
        );
        assert_eq!(root.events().get(Event::Oom), 1);
    });
}

/// E40. A thread that finds the first counts of a group finds them made, and two events at once are
/// counted in the same.
#[test]
fn loom_first_events_vs_read() {
    model_without_pair(|| {
        let (_runtime, root) = bare(1);
        let query = group(&root, "query");
        let observed = |group: &Group| events::count(group.first(), Event::Panic);
        let other = beside(query.clone(), move |query| observed(&query));
        assert!(query.events().get(Event::Panic) <= 1);
        observed(&query);
        other.join().unwrap();
        assert_eq!(query.events().get(Event::Panic), 2);
    });
}

/// E40. A thread that finds the counts of a group finds those of the groups above: two first events
/// at once are counted there, too.
#[test]
fn loom_first_events_above() {
    model_without_pair(|| {
        let (_runtime, root) = bare(1);
        let acme = group(&root, "acme");
        let query = group(&acme, "query");
        let happens = |group: &Group| events::count(group.first(), Event::Panic);
        let other = beside(query.clone(), move |query| happens(&query));
        happens(&query);
        other.join().unwrap();
        assert_eq!(
            [&query, &acme, &root].map(|group| group.events().get(Event::Panic)),
            [2; 3]
        );
    });
}

/// A listener is dropped while an event happens: no call is under way afterwards.
#[test]
fn loom_event_vs_listener_dropped() {
    model_without_pair(|| {
        let (_runtime, root) = bare(1);
        let at_work = Arc::new(AtomicU64::new(0));
        let registration = root.on_event(Event::Oom, {
            let at_work = Arc::clone(&at_work);
            move |_| {
                at_work.store(1, Ordering::SeqCst);
                at_work.store(0, Ordering::SeqCst);
            }
        });
        let other = beside(root, |root: Group| assert!(root.charge(2).is_err()));
        drop(registration);
        assert_eq!(at_work.load(Ordering::SeqCst), 0, "a call is under way");
        other.join().unwrap();
    });
}

/// Two charges that do not fit, one victim that has enough for both: it is chosen once, and the
/// other group not at all.
#[test]
fn loom_one_victim_for_two() {
    large_model_without_pair(|| {
        let (_runtime, root) = bare(3);
        root.set_oom_policy(OomPolicy::Choose);
        let [hog, asks, small] = ["hog", "asks", "small"].map(|name| group(&root, name));
        let spared = small.charge(1).unwrap();
        let other_hook = small.on_cancel(|_| {});
        let held = Arc::new(std::sync::Mutex::new(vec![hog.charge(2).unwrap()]));
        let hook = hog.on_cancel({
            let held = Arc::clone(&held);
            move |_| {
                let given = held.lock().unwrap().pop();
                drop(given);
            }
        });
        let (theirs, ours) = race(
            asks.clone(),
            |asks| asks.charge(1).unwrap(),
            || asks.charge(1).unwrap(),
        );
        assert_eq!((asks.usage(), root.events().get(Event::OomKill)), (2, 1));
        drop((ours, theirs, hook, other_hook, spared));
    });
}
