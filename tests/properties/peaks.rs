//! The peak of live bytes, where the true one is known: by one thread, by threads that meet, by
//! windows, and by a count of the test's own beside threads that run.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use memcg::{Bytes, CentralStock, Charge, Group, Limits, Runtime};

const KIB: u64 = 1 << 10;

fn kib(many: u64) -> Bytes {
    Bytes(many * KIB)
}

fn group(runtime: &Runtime, name: &str) -> Group {
    runtime.root().create(name, Limits::new()).unwrap()
}

fn bounds(group: &Group) -> (u64, u64) {
    let peak = group.peak_live();
    (peak.min(), peak.max())
}

/// What a query holds: growths from credit, of which no walk knows.
#[test]
fn growth_by_one_thread_is_known_exactly() {
    let runtime = Runtime::builder().build().unwrap();
    for (number, (step, most)) in [(4, 64), (8, 400), (64, 1_024), (100, 1_000), (8, 4_096)]
        .into_iter()
        .enumerate()
    {
        let group = group(&runtime, &format!("q{number}"));
        let mut charge = group.charge(1).unwrap();
        while charge.bytes() < most * KIB {
            charge.grow(kib(step)).unwrap();
        }
        let held = charge.bytes();
        assert_eq!(bounds(&group), (held, held), "before the drop");
        drop(charge);
        assert_eq!(bounds(&group), (held, held), "{step} KiB up to {most}");
    }
}

/// Small queries in a group that is warm: the peak is in the middle of a stretch without a walk.
#[test]
fn a_peak_between_two_walks_is_known_exactly() {
    let runtime = Runtime::builder().build().unwrap();
    let group = group(&runtime, "warm");
    for _ in 0..100 {
        drop(group.charge(kib(4)).unwrap());
    }
    let held: Vec<Charge> = (0..8).map(|_| group.charge(kib(25)).unwrap()).collect();
    drop(held);
    // Up the tree, and past what was held: neither hides it.
    for _ in 0..10 {
        drop((
            group.charge(kib(150)).unwrap(),
            group.charge(kib(40)).unwrap(),
        ));
    }
    group.memory().drain();
    runtime.release_idle_credit();
    let _small = group.charge(kib(1)).unwrap();
    assert_eq!(bounds(&group), (200 * KIB, 200 * KIB));
}

/// A stock that closes near the limit, one that is off, and limits that move: the peak goes on.
#[test]
fn a_stock_that_closes_and_opens_keeps_the_peak() {
    let runtime = Runtime::builder().build().unwrap();
    let group = group(&runtime, "limited");
    let mut held = vec![
        group.charge(kib(100)).unwrap(),
        group.charge(kib(60)).unwrap(),
    ];
    held.pop();
    group.set_max(Bytes(170 * KIB)).unwrap();
    held.push(group.charge(kib(65)).unwrap());
    assert!(group.charge(kib(10)).is_err());
    assert_eq!(bounds(&group), (165 * KIB, 165 * KIB), "closed");
    held.push(group.force_charge(kib(20)));
    held.pop();
    assert_eq!(bounds(&group), (185 * KIB, 185 * KIB), "forced");
    group.set_max(memcg::Limit::gib(1)).unwrap();
    for _ in 0..20 {
        drop(group.charge(kib(5)).unwrap());
    }
    held.push(group.charge(kib(30)).unwrap());
    assert_eq!(bounds(&group), (195 * KIB, 195 * KIB), "open again");
    group.memory().set_batch(0);
    held.push(group.charge(kib(7)).unwrap());
    drop(held);
    assert_eq!(bounds(&group), (202 * KIB, 202 * KIB), "without a stock");
}

/// A raw charge and a transfer move the same units.
#[test]
fn charges_of_all_kinds_count() {
    let runtime = Runtime::builder().build().unwrap();
    let (one, other) = (group(&runtime, "one"), group(&runtime, "other"));
    for _ in 0..50 {
        one.raw().charge(kib(3)).unwrap();
        one.raw().uncharge(kib(3));
    }
    one.raw().charge(kib(40)).unwrap();
    let mut moved = one.charge(kib(30)).unwrap();
    moved.transfer(&other).unwrap();
    one.raw().uncharge(kib(40));
    moved.shrink(kib(10));
    moved.grow(kib(15)).unwrap();
    drop(moved);
    assert_eq!(bounds(&one), (70 * KIB, 70 * KIB));
    assert_eq!(bounds(&other), (35 * KIB, 35 * KIB));
    // The first one alone moved the units of the root until then.
    let (min, max) = bounds(&runtime.root());
    assert!(min == 70 * KIB && max >= min, "{min} to {max}");
}

/// A tenant that has one query after the other knows its peak as long as one thread does all.
#[test]
fn one_child_after_the_other_leaves_the_parent_exact() {
    let runtime = Runtime::builder().build().unwrap();
    let tenant = group(&runtime, "tenant");
    for (number, most) in [30, 90, 50].into_iter().enumerate() {
        let query = tenant
            .create(format!("q{number}").as_str(), Limits::new())
            .unwrap();
        let mut charge = query.charge(1).unwrap();
        while charge.bytes() < most * KIB {
            charge.grow(kib(1)).unwrap();
        }
        assert_eq!(query.peak_live().exact(), Some(charge.bytes()));
        drop(charge);
        query.offline().unwrap();
        drop(query);
    }
    assert_eq!(bounds(&tenant), (90 * KIB + 1, 90 * KIB + 1));
    // Two at once: a bound on either side.
    let queries = ["a", "b"].map(|name| tenant.create(name, Limits::new()).unwrap());
    let held = queries
        .each_ref()
        .map(|query| query.charge(kib(100)).unwrap());
    let (min, max) = bounds(&tenant);
    assert!(
        min <= 200 * KIB && 200 * KIB <= max && max <= tenant.peak(),
        "{min} to {max}"
    );
    assert!(max - min <= max - 200 * KIB + 512 * KIB, "{min} to {max}");
    drop(held);
}

/// Threads that hold their bytes at one moment. A reader counts them then. At the peak of usage each
/// had a batch of credit at most, and gave nothing back before: so much lies between the bounds.
#[test]
fn threads_that_meet_leave_bounds_around_the_peak() {
    for (each, is_read) in [(100, false), (100, true), (2_000, false), (2_000, true)] {
        let runtime = Runtime::builder().build().unwrap();
        let group = group(&runtime, "threads");
        let root = runtime.root();
        let held = 4 * each * KIB;
        let meet = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        drop(group.charge(kib(4)).unwrap());
                    }
                    meet.wait();
                    let charges: Vec<_> = (0..each / 10)
                        .map(|_| group.charge(kib(10)).unwrap())
                        .collect();
                    if meet.wait().is_leader() && is_read {
                        assert_eq!((bounds(&group).0, bounds(&root).0), (held, held));
                    }
                    meet.wait();
                    drop(charges);
                });
            }
        });
        for group in [&group, &root] {
            let (min, max) = bounds(group);
            assert!(min <= held && held <= max, "{min} to {max}, held {held}");
            assert!(max - min <= 4 * 256 * KIB, "{min} to {max}, held {held}");
        }
    }
}

/// What the threads but the first do from half of their bytes on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Others {
    /// They grow to the peak, as the first one does.
    Grow,
    /// They free and charge, and hold no more. So a count of the first one finds that they have
    /// freed since their last walk.
    Churn,
}

/// Threads take turns, so that the test knows what is live after each step, and the credit beside
/// the highest usage. Before they grow, all have charged and freed 400 KiB. `own`: each in a group of
/// its own below the tenant.
fn peak_in_turns(threads: u64, each: u64, step: u64, others: Others, own: bool) {
    let what = format!("{threads} threads, {each} KiB by {step}, others {others:?}, own {own}");
    let runtime = Runtime::builder().build().unwrap();
    let tenant = group(&runtime, "tenant");
    let group_of = |thread| match own {
        true => tenant
            .create(format!("q{thread}").as_str(), Limits::new())
            .unwrap(),
        false => tenant.clone(),
    };
    let groups: Vec<Group> = (0..threads).map(group_of).collect();
    let meet = Barrier::new(threads as usize);
    let [live, most_live, most_usage, credit_then] = [const { AtomicU64::new(0) }; 4];
    // One thread at a time.
    let note_charged = |bytes: u64| {
        let now = live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        most_live.fetch_max(now, Ordering::Relaxed);
        let usage = tenant.usage();
        if usage > most_usage.fetch_max(usage, Ordering::Relaxed) {
            credit_then.store(usage - now, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        for (thread, group) in (0..threads).zip(&groups) {
            let (meet, live, note_charged) = (&meet, &live, &note_charged);
            scope.spawn(move || {
                let charge = |many: u64| {
                    let charge = group.charge(kib(many)).unwrap();
                    note_charged(charge.bytes());
                    charge
                };
                let free = |charge: Charge| {
                    live.fetch_sub(charge.bytes(), Ordering::Relaxed);
                    drop(charge);
                };
                let in_turn = |act: &mut dyn FnMut()| {
                    for turn in 0..threads {
                        meet.wait();
                        if turn == thread {
                            act();
                        }
                    }
                    meet.wait();
                };
                in_turn(&mut || (0..100).for_each(|_| free(charge(4))));
                let mut held = Vec::new();
                for number in 0..each / step {
                    in_turn(&mut || {
                        if others == Others::Churn && thread > 0 && number > each / step / 2 {
                            free(held.remove(0));
                        }
                        held.push(charge(step));
                    });
                }
                in_turn(&mut || held.drain(..).for_each(free));
            });
        }
    });
    let (held, most_usage) = (most_live.into_inner(), most_usage.into_inner());
    let credit = credit_then.into_inner();
    for group in [&tenant, &runtime.root()] {
        let (min, max) = bounds(group);
        assert!(
            min <= held && held <= max && max == most_usage,
            "{what}: {min} to {max}, held {held}, usage {most_usage}"
        );
        let step = if others == Others::Churn { max / 16 } else { 0 };
        assert!(
            max - min <= credit + step,
            "{what}: {min} to {max}, credit {credit} beside the peak of usage"
        );
    }
}

/// The two bounds lie within the credit beside the highest usage, and where threads had freed since
/// their last walk, within that and a sixteenth.
#[test]
fn bounds_lie_within_the_credit_at_the_peak() {
    for others in [Others::Grow, Others::Churn] {
        for own in [false, true] {
            peak_in_turns(4, 100, 10, others, own);
            peak_in_turns(4, 1_000, 25, others, own);
            peak_in_turns(2, 3_000, 10, others, own);
        }
    }
}

/// Without a stock each charge is a walk, and a peak is exact whoever charges.
#[test]
fn a_group_without_a_stock_knows_its_peak_exactly() {
    let runtime = Runtime::builder().batch(0).build().unwrap();
    let tenant = group(&runtime, "tenant");
    let groups = ["a", "b"].map(|name| tenant.create(name, Limits::new()).unwrap());
    let rounds = if cfg!(miri) { 20 } else { 5_000 };
    let meet = Barrier::new(3);
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (groups, meet) = (&groups, &meet);
            scope.spawn(move || {
                for round in 0..rounds {
                    let group = &groups[(round + thread) as usize % 2];
                    let first = group.charge(kib(thread + round % 5 + 1)).unwrap();
                    drop((group.charge(kib(3)).unwrap(), first));
                }
                meet.wait();
                let held = groups
                    .each_ref()
                    .map(|group| group.charge(kib(50)).unwrap());
                meet.wait();
                drop(held);
            });
        }
    });
    for (group, held) in [
        (&tenant, 300 * KIB),
        (&groups[0], 150 * KIB),
        (&groups[1], 150 * KIB),
        (&runtime.root(), 300 * KIB),
    ] {
        assert_eq!(bounds(group), (held, held), "{}", group.path());
    }
}

/// The credit of a central stock lies in no slot, and is no live byte.
#[test]
fn credit_of_a_central_stock_is_within_the_bounds() {
    let runtime = Runtime::builder().max(3_000).build().unwrap();
    let root = runtime.root();
    let stock = CentralStock::of(&root);
    stock.give_back(root.charge(12).unwrap());
    assert_eq!(stock.credit(), 12, "it has opened");
    drop(root.charge(10).unwrap());
    let (min, max) = bounds(&root);
    assert!(min <= 12 && max >= 12, "12 bytes, not {min} to {max}");
    let held = root.force_charge(9_000);
    drop(held);
    let (min, max) = bounds(&root);
    assert!(
        min <= 9_000 && max >= 9_000,
        "9,000 bytes, not {min} to {max}"
    );
}

/// Each window has the peak since its own reset.
#[test]
fn windows_are_independent() {
    let runtime = Runtime::builder().build().unwrap();
    let group = group(&runtime, "q");
    let hold = |many: u64| {
        let mut charge = group.charge(0).unwrap();
        for _ in 0..many {
            charge.grow(kib(1)).unwrap();
        }
        charge
    };
    let ever = group.memory().peak_live_window();
    drop(hold(90));
    let minute = group.memory().peak_live_window();
    assert_eq!(minute.peak().exact(), Some(0));
    drop(hold(40));
    assert_eq!(minute.peak().exact(), Some(40 * KIB));
    let kept = hold(10);
    minute.reset();
    assert_eq!(minute.peak().exact(), Some(10 * KIB));
    drop(hold(20));
    assert_eq!(minute.peak().exact(), Some(30 * KIB));
    assert_eq!(ever.peak().exact(), Some(90 * KIB));
    assert_eq!(bounds(&group), (90 * KIB, 90 * KIB));
    drop(kept);
    // From another thread: two bounds from now on.
    thread::scope(|scope| scope.spawn(|| minute.reset()).join().unwrap());
    drop(hold(50));
    let peak = minute.peak();
    assert!(peak.min() <= 50 * KIB && 50 * KIB <= peak.max(), "{peak}");
    let (min, max) = bounds(&group);
    assert!(min == 90 * KIB && max >= min, "{min} to {max}");
}

/// Beside threads that run: what all hold by the test's count is never above what the group has, and
/// never below it, so the peaks of both counts bound the true one.
#[test]
fn bounds_hold_beside_threads_that_run() {
    let rounds = if cfg!(miri) { 50 } else { 20_000 };
    let runtime = Runtime::builder().build().unwrap();
    let tenant = group(&runtime, "tenant");
    let queries = ["a", "b"].map(|name| tenant.create(name, Limits::new()).unwrap());
    let [held, reached] = [const { AtomicU64::new(0) }; 2];
    let [most_held, most_reached] = [const { AtomicU64::new(0) }; 2];
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (queries, tenant, runtime) = (&queries, &tenant, &runtime);
            let (held, reached, most_held, most_reached) =
                (&held, &reached, &most_held, &most_reached);
            scope.spawn(move || {
                let mut seed = thread + 1;
                let mut charges: Vec<Charge> = Vec::new();
                let give_back = |charge: Charge| {
                    let bytes = charge.bytes();
                    held.fetch_sub(bytes, Ordering::SeqCst);
                    drop(charge);
                    reached.fetch_sub(bytes, Ordering::SeqCst);
                };
                for round in 0..rounds {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    let bytes = seed % 40_000 + 1;
                    if !charges.is_empty() && (seed >> 62 == 0 || charges.len() > 40) {
                        give_back(charges.swap_remove(seed as usize % charges.len()));
                    } else {
                        let now = reached.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        most_reached.fetch_max(now, Ordering::SeqCst);
                        charges.push(queries[seed as usize % 2].charge(Bytes(bytes)).unwrap());
                        let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        most_held.fetch_max(now, Ordering::SeqCst);
                    }
                    if round % 64 == 0 {
                        let least = most_held.load(Ordering::SeqCst);
                        let (min, max) = bounds(tenant);
                        let most = most_reached.load(Ordering::SeqCst);
                        assert!(min <= most && least <= max, "{min} {max}, {least} {most}");
                        if round % 1_024 == 0 {
                            runtime.release_idle_credit();
                        }
                    }
                }
                charges.into_iter().for_each(give_back);
            });
        }
    });
    let (least, most) = (most_held.into_inner(), most_reached.into_inner());
    for group in [&tenant, &runtime.root()] {
        let (min, max) = bounds(group);
        assert!(min <= most && least <= max, "{min} {max}, {least} {most}");
        assert!(min > 0, "some walk has counted");
    }
}
