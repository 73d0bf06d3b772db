//! The importance of groups: for whose sake others give. A group without one of its own has that of
//! the group above.

use crate::counter::object::Counter;
use crate::hierarchy::group_object;

/// The importance that the group was given itself.
pub(crate) fn own(group: &Counter) -> Option<u8> {
    group_object::of(group).oom.importance()
}

pub(crate) fn set(group: &Counter, importance: u8) {
    group_object::of(group).oom.set_importance(importance);
}

/// From here on the group has that of the group above.
pub(crate) fn clear(group: &Counter) {
    group_object::of(group).oom.clear_importance();
}

/// A few loads for each level up to the nearest that has one.
pub(crate) fn of(group: &Counter) -> u8 {
    group.path_to_root().find_map(own).unwrap_or(0)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

    use super::*;
    use crate::sync::many;
    use crate::{
        Bytes, Charge, ChargeError, ChargeFuture, Event, Group, Limit, Limits, OomPolicy, Reclaim,
        ReclaimContext, ReclaimPriority, Registration, Runtime,
    };

    fn build(max: u64) -> Runtime {
        let builder = Runtime::builder()
            .batch(0)
            .max(Limit::Bytes(max))
            .oom_time(Duration::from_millis(5));
        let runtime = builder.build().unwrap();
        runtime.root().set_oom_policy(OomPolicy::Choose);
        runtime
    }

    fn group(parent: &Group, name: &str, importance: u8) -> Group {
        parent
            .create(name, Limits::new().importance(importance))
            .unwrap()
    }

    #[test]
    fn a_group_has_that_of_the_nearest_above() {
        let runtime = build(100);
        let plain = runtime.root().create("plain", Limits::new()).unwrap();
        let tenant = group(&runtime.root(), "tenant", 3);
        let query = tenant.create("q", Limits::new()).unwrap();
        assert_eq!(
            [&plain, &tenant, &query].map(|group| of(group.first())),
            [0, 3, 3]
        );
        assert_eq!(
            [&plain, &tenant, &query].map(|group| group.limits().importance),
            [None, Some(3), None]
        );
        query.set_limits(Limits::new().importance(0)).unwrap();
        tenant.set_limits(Limits::new().importance(255)).unwrap();
        assert_eq!([&tenant, &query].map(|group| of(group.first())), [255, 0]);
        tenant.offline_tree();
        drop((tenant, query));
        runtime.settle();
        let next = ["a", "b"].map(|name| plain.create(name, Limits::new()).unwrap());
        assert_eq!(
            next.map(|group| of(group.first())),
            [0, 0],
            "objects that are used again"
        );
    }

    /// Groups below a root of 100 bytes, which hold all of it and give nothing. Returns the groups
    /// that are cancelled for a charge.
    fn victims(
        candidates: &[(&'static str, u8, u64)],
        importance: u8,
        wants: u64,
    ) -> Vec<&'static str> {
        let runtime = build(100);
        let cancelled = Arc::new(Mutex::new(Vec::new()));
        let mut kept: Vec<(Charge, Registration)> = Vec::new();
        for &(name, importance, bytes) in candidates {
            let group = group(&runtime.root(), name, importance);
            let cancelled = Arc::clone(&cancelled);
            kept.push((
                group.charge(Bytes(bytes)).unwrap(),
                group.on_cancel(move |_| cancelled.lock().unwrap().push(name)),
            ));
        }
        let asker = group(&runtime.root(), "asker", importance);
        let _rest = runtime
            .root()
            .force_charge(Bytes(100 - runtime.root().live()));
        assert!(
            asker.charge(Bytes(wants)).is_err(),
            "no group gives anything"
        );
        let cancelled = cancelled.lock().unwrap().clone();
        assert_eq!(
            runtime.root().events().get(Event::OomKill),
            cancelled.len() as u64
        );
        cancelled
    }

    #[test]
    fn victims_are_of_the_lowest_that_can_give_enough() {
        let three = [("low", 0, 30), ("middle", 1, 20), ("high", 2, 50)];
        assert_eq!(
            victims(&three, 9, 25),
            ["low", "high"],
            "the middle one would go in vain"
        );
        assert_eq!(
            victims(&three, 9, 40),
            ["high", "low"],
            "neither of the others has so much"
        );
        assert_eq!(
            victims(&three, 9, 60),
            ["low", "middle"],
            "none has so much alone"
        );
        assert_eq!(victims(&three, 1, 40), ["low"], "two of them have");
        assert_eq!(victims(&three, 1, 60), [""; 0], "they do not");
        assert_eq!(
            victims(&three[1..], 0, 1),
            [""; 0],
            "none gives for a less important one"
        );
        // Of one importance the one that is furthest above its share goes first.
        assert_eq!(
            victims(&[("a", 1, 20), ("b", 1, 40), ("c", 0, 5)], 1, 10),
            ["b", "a"]
        );
    }

    /// A subtree that goes as one is as important as the most important group in it that has a
    /// hook.
    #[test]
    fn a_subtree_counts_as_its_most_important_group() {
        for (asks, goes) in [(1, false), (2, true)] {
            let runtime = build(100);
            let tenant = group(&runtime.root(), "tenant", 0);
            crate::Group::set_oom_group(&tenant, true);
            let query = group(&tenant, "gold", 2);
            let _held = [tenant.charge(40).unwrap(), query.charge(60).unwrap()];
            let _hooks = [tenant.on_cancel(|_| ()), query.on_cancel(|_| ())];
            assert!(group(&runtime.root(), "asker", asks).charge(10).is_err());
            assert_eq!(
                runtime.root().events().get(Event::OomGroupKill),
                u64::from(goes)
            );
        }
    }

    struct Cache(Mutex<Charge>);

    impl Reclaim for Cache {
        fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
            self.0.lock().unwrap().shrink(Bytes(want))
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri: the time that reclaim may take is over")]
    fn low_holds_against_less_important_charges() {
        for (asks, gives) in [(0, false), (1, true), (2, true)] {
            let runtime = build(1 << 20);
            let gold = runtime
                .root()
                .create("gold", Limits::new().importance(1).low(512 << 10))
                .unwrap();
            let cache = Arc::new(Cache(Mutex::new(gold.charge(512 << 10).unwrap())));
            let _registration = gold.register_reclaimer(cache, ReclaimPriority::NORMAL);
            let _rest = runtime.root().charge(512 << 10).unwrap();
            let asker = group(&runtime.root(), "asker", asks);
            assert_eq!(asker.charge(64 << 10).is_ok(), gives, "{asks}");
            assert_eq!(gold.events().get(Event::Low), u64::from(gives));
            assert_eq!(gold.live() < 512 << 10, gives);
        }
    }

    /// The thread that reclaims what is above high for a charge breaks no low that the charge
    /// itself would not.
    #[test]
    fn low_holds_also_where_a_thread_reclaims_for_the_charge() {
        for (asks, gives) in [(0, false), (1, true)] {
            let runtime = build(2 << 20);
            let root = runtime.root();
            root.set_limits(Limits::new().high(768 << 10)).unwrap();
            let gold = root
                .create("gold", Limits::new().importance(1).low(512 << 10))
                .unwrap();
            let cache = Arc::new(Cache(Mutex::new(gold.charge(512 << 10).unwrap())));
            let _registration = gold.register_reclaimer(cache, ReclaimPriority::NORMAL);
            let asker = group(&root, "asker", asks);
            let _held = asker.charge_with(512 << 10, crate::OnFull::Start).unwrap();
            let end = std::time::Instant::now() + Duration::from_secs(if gives { 60 } else { 0 });
            while gives && gold.live() == 512 << 10 && std::time::Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            if !gives {
                std::thread::sleep(Duration::from_millis(30));
            }
            assert_eq!(gold.live() < 512 << 10, gives);
        }
    }

    // === The line ===

    /// Notes its number when it is woken.
    struct Notes(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Notes {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    struct Waits {
        future: Pin<Box<ChargeFuture>>,
        bytes: u64,
        importance: u8,
        number: usize,
        waker: Waker,
    }

    impl Waits {
        fn new(group: &Group, bytes: u64, number: usize, woken: &Arc<Mutex<Vec<usize>>>) -> Waits {
            let future = Box::pin(group.charge_async(Bytes(bytes)));
            let waker = Waker::from(Arc::new(Notes(number, Arc::clone(woken))));
            Waits {
                future,
                bytes,
                importance: of(group.first()),
                number,
                waker,
            }
        }

        fn begin(group: &Group, bytes: u64, number: usize) -> Waits {
            let mut waits = Waits::new(group, bytes, number, &Arc::default());
            assert!(waits.served().is_none());
            waits
        }

        fn served(&mut self) -> Option<Charge> {
            match self
                .future
                .as_mut()
                .poll(&mut Context::from_waker(&self.waker))
            {
                Poll::Ready(charge) => Some(charge.unwrap()),
                Poll::Pending => None,
            }
        }
    }

    #[test]
    fn the_most_important_goes_first_and_the_oldest_in_the_end() {
        let runtime = build(100);
        let [low, gold] =
            [("low", 0), ("gold", 7)].map(|(name, of)| group(&runtime.root(), name, of));
        let mut held = Some(runtime.root().charge(100).unwrap());
        let mut oldest = Waits::begin(&low, 10, 0);
        let mut important: Vec<Waits> = (1..30)
            .map(|number| Waits::begin(&gold, 10, number))
            .collect();
        held.as_mut().unwrap().shrink(Bytes(10));
        let mut passed = 0;
        while oldest.served().is_none() {
            drop(important.remove(0).served().expect("it is first"));
            passed += 1;
        }
        assert_eq!(passed, 16, "sixteen times the bytes that it asks for");
    }

    /// One that is behind is served through another line, and takes no more there than others of
    /// its importance may.
    #[test]
    fn the_oldest_is_not_passed_from_another_line() {
        let runtime = build(100);
        let root = runtime.root();
        let low = group(&root, "low", 0);
        let tenant = root
            .create("tenant", Limits::new().importance(1).max(20))
            .unwrap();
        let _held = root.charge(95).unwrap();
        let mut oldest = Waits::begin(&low, 6, 0);
        let mut passed = 0;
        for number in 1.. {
            // Its own tenant is full: it waits there, and is served by what comes back there.
            let full = tenant.force_charge(Bytes(20 - tenant.live()));
            let mut next = Waits::begin(&tenant, 4, number);
            drop(full);
            match next.served() {
                Some(charge) => passed += charge.bytes(),
                None => break,
            }
            assert!(oldest.served().is_none(), "there is no room for it");
        }
        assert!(
            (96..=96 + 6).contains(&passed),
            "{passed}: its own sixteen times, and those that may barge past the first"
        );
    }

    #[test]
    fn a_charge_that_does_not_wait_goes_first() {
        let runtime = build(100);
        let [low, gold] =
            [("low", 0), ("gold", 1)].map(|(name, of)| group(&runtime.root(), name, of));
        let _held = runtime.root().charge(50).unwrap();
        let mut oldest = Waits::begin(&low, 60, 0);
        let passes = |group: &Group| (0..1_000).take_while(|_| group.charge(10).is_ok()).count();
        assert_eq!(passes(&low), 6, "the barging budget");
        assert_eq!(passes(&gold), 96, "sixteen times sixty");
        assert!(oldest.served().is_none());
        assert_eq!(gold.usage() + low.usage(), 0);
    }

    /// A large important charge goes before a small one that is older: some patience is left.
    #[test]
    fn an_important_charge_may_be_large() {
        let runtime = build(100);
        let [low, gold] =
            [("low", 0), ("gold", 1)].map(|(name, of)| group(&runtime.root(), name, of));
        let held = runtime.root().charge(100).unwrap();
        let mut oldest = Waits::begin(&low, 1, 0);
        let mut large = [1, 2].map(|number| Waits::begin(&gold, 100, number));
        drop(held);
        let first = large[0].served().expect("it goes first");
        assert!(oldest.served().is_none() && large[1].served().is_none());
        drop(first);
        drop(oldest.served().expect("it goes before the second"));
        assert!(large[1].served().is_some());
    }

    /// Important charges that never fit come and give up, and others barge past them.
    #[test]
    fn what_barges_past_important_ones_has_passed_the_oldest() {
        let runtime = build(100);
        let [low, gold] =
            [("low", 0), ("gold", 1)].map(|(name, of)| group(&runtime.root(), name, of));
        let held = runtime.root().charge(90).unwrap();
        let mut oldest = Waits::begin(&low, 20, 0);
        let mut passed = 0;
        for number in 1..100 {
            let gives_up = Waits::begin(&gold, 100, number);
            passed += (0..1_000).take_while(|_| low.charge(10).is_ok()).count();
            drop(gives_up);
        }
        assert_eq!(
            passed,
            32 + 2,
            "sixteen times twenty bytes, and then its own barging budget"
        );
        drop(held);
        assert!(oldest.served().is_some());
    }

    /// Charges of three importances wait or give up, and bytes come back. While a charge is the
    /// oldest, more important ones, and those that barge past these, take sixteen times its bytes
    /// at most; with those that barge past itself seventeen times. Each is served in the end.
    #[test]
    #[cfg_attr(miri, ignore = "Miri: one of hundreds of rounds shows nothing")]
    fn no_charge_lets_others_pass_for_ever() {
        let mut seed = 3_u64;
        let mut below = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % most
        };
        let mut passes = 0;
        for _ in 0..many(200) {
            let runtime = build(64);
            let groups = [0, 1, 2]
                .map(|importance| group(&runtime.root(), &format!("of {importance}"), importance));
            let woken: Arc<Mutex<Vec<usize>>> = Arc::default();
            let mut held: Vec<Charge> = vec![runtime.root().charge(64).unwrap()];
            let mut line: Vec<Waits> = Vec::new();
            let mut passed = 0;
            for number in 0..400 {
                if line.len() < 12 && number < 300 {
                    let group = &groups[below(6).saturating_sub(3) as usize];
                    let mut waits = Waits::new(group, 1 + below(16), number, &woken);
                    match waits.served() {
                        Some(charge) => {
                            passed += if line.is_empty() { 0 } else { charge.bytes() };
                            held.push(charge);
                        }
                        None => line.push(waits),
                    }
                }
                if line.len() > 6 && below(4) == 0 {
                    // The most important ones give up: no byte of theirs is taken, and others may
                    // barge past them.
                    let gives_up = (1..line.len())
                        .max_by_key(|&at| line[at].importance)
                        .unwrap();
                    drop(line.remove(gives_up));
                }
                if !held.is_empty() && below(2) > 0 {
                    drop(held.swap_remove(below(held.len() as u64) as usize));
                }
                // In the order in which they are served.
                let served = std::mem::take(&mut *woken.lock().unwrap());
                for number in served {
                    let at = line
                        .iter()
                        .position(|waits| waits.number == number)
                        .unwrap();
                    let mut served = line.remove(at);
                    held.push(served.served().expect("it is woken once"));
                    match line.first() {
                        Some(oldest) if at > 0 => {
                            passed += served.bytes;
                            passes += u64::from(served.importance > oldest.importance);
                        }
                        _ => passed = 0,
                    }
                }
                if let Some(oldest) = line.first() {
                    assert!(
                        passed <= 17 * oldest.bytes,
                        "{passed} before {}",
                        oldest.bytes
                    );
                }
            }
            held.clear();
            while !line.is_empty() {
                line.retain_mut(|waits| waits.served().is_none());
            }
        }
        assert!(passes > many(1_000), "{passes}");
    }

    // === An order that a service gives itself ===

    /// Two groups of 40 and 60 bytes that give up what they have. Returns which one has, and what
    /// became of the charge.
    fn ordered(
        order: impl Fn(usize) -> Option<usize> + Send + Sync + 'static,
    ) -> (u64, u64, Result<u64, ChargeError>, u64) {
        let runtime = build(100);
        let root = runtime.root();
        root.set_oom_policy(OomPolicy::by(move |candidates| order(candidates.len())));
        let [small, large] =
            ["small", "large"].map(|name| root.create(name, Limits::new()).unwrap());
        let held = [(&small, 40), (&large, 60)]
            .map(|(group, bytes)| Mutex::new(Some(group.charge(Bytes(bytes)).unwrap())));
        let [small_held, large_held] = held;
        let _hooks = [
            small.on_cancel(move |_| drop(small_held.lock().unwrap().take())),
            large.on_cancel(move |_| drop(large_held.lock().unwrap().take())),
        ];
        let charged = root.charge(30).map(|charge| charge.bytes());
        (
            small.live(),
            large.live(),
            charged,
            root.events().get(Event::Panic),
        )
    }

    #[test]
    fn an_order_may_panic_and_lie() {
        assert!(
            matches!(ordered(|_| Some(0)), (40, 0, Ok(30), 0)),
            "the first is the crate's own choice"
        );
        assert!(matches!(ordered(|all| Some(all - 1)), (0, 60, Ok(30), 0)));
        assert!(matches!(ordered(|_| None), (40, 60, Err(error), 0) if error.is_over_limit()));
        assert!(matches!(ordered(|all| Some(all + 7)), (40, 0, Ok(30), 0)));
        assert!(matches!(
            ordered(|_| panic!("on purpose")),
            (40, 0, Ok(30), 1)
        ));
    }

    #[test]
    fn an_order_sees_those_that_may_go() {
        let runtime = build(100);
        let root = runtime.root();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&seen);
        root.set_oom_policy(OomPolicy::by(move |candidates| {
            let figures = |one: &crate::OomCandidate| {
                (
                    one.group().path(),
                    one.importance(),
                    one.overrun(),
                    one.wants(),
                    one.usage(),
                )
            };
            notes
                .lock()
                .unwrap()
                .push(candidates.iter().map(figures).collect::<Vec<_>>());
            None
        }));
        let groups = [("a", 0), ("b", 1), ("gold", 2)]
            .map(|(name, importance)| group(&root, name, importance));
        let _held = [30, 50, 20]
            .map(Bytes)
            .into_iter()
            .zip(&groups)
            .map(|(bytes, group)| group.charge(bytes).unwrap())
            .collect::<Vec<_>>();
        let _hooks = groups
            .each_ref()
            .map(|group| group.on_cancel(|_| unreachable!("the order spares all")));
        assert!(groups[1].charge(10).is_err());
        let seen = seen.lock().unwrap();
        let [seen] = &seen[..] else {
            panic!("one call")
        };
        assert_eq!(
            seen[..],
            [
                ("/a".to_string(), 0, 30, 0, 30),
                ("/b".to_string(), 1, 50, 10, 50)
            ]
        );
    }

    /// An order may hold a group of its own tree: they end with the runtime.
    #[test]
    fn an_order_ends_with_the_runtime() {
        let runtime = build(100);
        let root = runtime.root();
        let known = Arc::new(());
        let holds = (root.clone(), Arc::clone(&known));
        root.set_oom_policy(OomPolicy::by(move |_| {
            (!holds.0.is_offline()).then_some(Arc::strong_count(&holds.1))
        }));
        drop(root);
        assert_eq!(Arc::strong_count(&known), 2);
        drop(runtime);
        assert_eq!(Arc::strong_count(&known), 1);
    }

    /// A charge that finds room after all, or that other's victims serve, asks no order.
    #[test]
    fn an_order_is_asked_where_there_is_a_choice() {
        let runtime = build(100);
        let root = runtime.root();
        root.set_oom_policy(OomPolicy::by(|_| panic!("no group may go")));
        let hog = root.create("hog", Limits::new()).unwrap();
        let _hook = hog.on_cancel(|_| ());
        let _held = hog.charge(60).unwrap();
        assert!(root.charge(40).is_ok() && root.charge(101).is_err());
        assert_eq!(root.events().get(Event::Panic), 0);
    }

    /// An order that blocks holds up its own charge and no other one.
    #[test]
    fn an_order_may_block() {
        let runtime = build(100);
        let root = runtime.root();
        let (enter, entered) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let goes_on = Mutex::new(Some(goes_on));
        root.set_oom_policy(OomPolicy::by(move |_| {
            let first = goes_on.lock().unwrap().take();
            if let Some(goes_on) = first {
                enter.send(()).unwrap();
                let _ = goes_on.recv();
            }
            Some(0)
        }));
        let hog = root.create("hog", Limits::new()).unwrap();
        let held = Mutex::new(Some(hog.charge(100).unwrap()));
        let _hook = hog.on_cancel(move |_| drop(held.lock().unwrap().take()));
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| root.charge(30).map(drop));
            entered.recv().unwrap();
            drop(root.charge(40).expect("it chooses itself"));
            drop(go_on);
            assert!(blocked.join().unwrap().is_ok());
        });
        assert_eq!(root.events().get(Event::OomKill), 1);
    }

    /// The drop of an order is foreign, and runs without a lock.
    #[test]
    fn an_order_is_dropped_without_a_lock() {
        struct Charges(Group);
        impl Drop for Charges {
            fn drop(&mut self) {
                let _hook = self.0.on_cancel(|_| ());
                drop(self.0.charge(1).unwrap());
                panic!("on purpose");
            }
        }
        let runtime = build(100);
        let [first, second] =
            ["first", "second"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        let charges = Charges(second.clone());
        first.set_oom_policy(OomPolicy::by(move |_| {
            Some(usize::from(charges.0.is_offline()))
        }));
        first.offline().unwrap();
        // The group is gone, and the next setting drops its order.
        second.set_oom_policy(OomPolicy::Refuse);
        assert_eq!(second.usage(), 0);
    }
}
