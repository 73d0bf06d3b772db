//! Statements 11 to 26: what the stock may hold, and that it never shows in an outcome.
//!
//! Work on shared counters is counted by what can be seen of it: a walk up the tree changes usage
//! or the counts.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memcg::{CounterConfig, PageCounter};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Other, adaptive, assert_sound, fixed};

const BATCH: u64 = 64;

/// T: R{A}, one thread: the first charge takes a batch, the next 63 touch nothing shared, the 65th
/// takes another.
#[test]
fn s011_a_batch_serves_64_charges() {
    let r = PageCounter::root(fixed());
    let a = r.child();
    a.charge(1).expect("unlimited");
    assert_eq!(
        (a.usage(), r.usage(), a.live(), a.stocked()),
        (64, 64, 1, 63)
    );
    let before = r.counts();
    for charged in 2..=64 {
        a.charge(1).expect("unlimited");
        assert_eq!((a.usage(), r.usage(), a.live()), (64, 64, charged));
    }
    a.charge(1).expect("unlimited");
    assert_eq!(
        (a.usage(), r.usage(), a.live(), a.stocked()),
        (128, 128, 65, 63)
    );
    let after = r.counts();
    assert_eq!(
        (after.drains, after.barriers, after.drained),
        (before.drains, before.barriers, before.drained)
    );
    assert_sound(&r);
}

#[test]
fn s011_adaptive() {
    let r = PageCounter::root(adaptive());
    let a = r.child();
    for charged in 1..=65 {
        a.charge(1).expect("unlimited");
        assert_eq!((a.live(), r.live()), (charged, charged));
    }
    assert_sound(&r);
}

/// A charge above the batch is charged as it is, without surplus.
#[test]
fn s012_more_than_a_batch_is_charged_exactly() {
    let r = PageCounter::root(fixed());
    let a = r.child();
    a.charge(65).expect("unlimited");
    assert_eq!((a.usage(), r.usage(), a.stocked()), (65, 65, 0));
    assert_sound(&r);
}

#[test]
fn s012_adaptive() {
    let r = PageCounter::root(adaptive());
    let a = r.child();
    a.charge(65).expect("unlimited");
    assert_eq!((a.live(), r.live()), (65, 65));
    assert_sound(&r);
}

/// A.max = 64: another thread's credit is within reach of this thread's charge.
fn credit_of_another_thread_is_found(config: CounterConfig, exact: bool) {
    let r = PageCounter::root(config);
    let a = r.child();
    a.set_max(64).expect("nothing is charged yet");
    let t1 = Other::spawn();
    let t2 = Other::spawn();
    let handle = a.clone();
    t1.run(move || handle.charge(1)).expect("1 of 64");
    if exact {
        assert_eq!((a.usage(), a.stocked()), (64, 63));
    }
    let handle = a.clone();
    t2.run(move || handle.charge(2)).expect("3 of 64");
    assert_eq!((a.live(), r.live()), (3, 3));
    let handle = a.clone();
    t1.run(move || handle.charge(61)).expect("64 of 64");
    let handle = a.clone();
    let refused = t2.run(move || handle.charge(1)).expect_err("65 of 64");
    assert_eq!((refused.level, refused.usage), (a.id(), 64));
    assert_sound(&r);
}

twins! {
    credit_of_another_thread_is_found:
    /// The kernel drains asynchronously and may reclaim or kill while the credit is on its way.
    /// Here it is back before the second try.
    s014_no_refusal_while_credit_is_stranded(fixed(), true),
    s014_adaptive(adaptive(), false),
}

/// Each of four threads holds a quarter of the limit at most, so no group may ever be refused,
/// wherever the credit is.
fn threads_within_the_limit(config: CounterConfig, quarter: u64) {
    let r = PageCounter::root(config.budget(1 << 20));
    let a = r.child();
    a.set_max(4 * quarter).expect("nothing is charged yet");
    let leaves = [a.child(), a.child()];
    let refusals = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let leaves = &leaves;
            let refusals = &refusals;
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(thread);
                for _ in 0..20_000 {
                    let leaf = &leaves[rng.random_range(0..2)];
                    let units = rng.random_range(1..=quarter);
                    match leaf.charge(units) {
                        Ok(()) => leaf.uncharge(units),
                        Err(_) => drop(refusals.fetch_add(1, Ordering::Relaxed)),
                    }
                }
            });
        }
    });
    // A thread that is suspended in the middle of a walk may cost a refusal, which is counted.
    let refusals = refusals.into_inner();
    let excused = r.counts().refused_in_transit;
    assert!(
        refusals <= excused,
        "{refusals} refusals, {excused} of them excused"
    );
    assert_eq!(r.live(), 0);
    assert_sound(&r);
}

/// 14 with all threads at once: credit moves all the time and must be found nevertheless.
#[test]
fn s014_threads_within_the_limit_are_never_refused() {
    for quarter in [1, 16, 50, 100] {
        threads_within_the_limit(fixed(), quarter);
    }
}

#[test]
fn s014_threads_within_the_limit_adaptive() {
    for quarter in [16, 600, 1_000] {
        threads_within_the_limit(adaptive(), quarter);
    }
}

/// A counter and what the test knows to be charged to it.
struct Tally {
    counter: PageCounter,
    live: AtomicI64,
}

fn random_life(tree: &[Tally], seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut held: Vec<(usize, u64)> = Vec::new();
    for _ in 0..2_000 {
        let index = rng.random_range(0..tree.len());
        let counter = &tree[index].counter;
        match rng.random_range(0..100) {
            0 => drop(counter.set_max(rng.random_range(100..5_000_u64))),
            1 => drop(counter.set_max(PageCounter::UNLIMITED)),
            2 => drop(counter.drain()),
            3 => {
                let passing = counter.child();
                if passing.charge(10).is_ok() {
                    passing.uncharge(10);
                }
            }
            4..60 => {
                let units = rng.random_range(0..100);
                if counter.charge(units).is_ok() {
                    tree[index].live.fetch_add(units as i64, Ordering::Relaxed);
                    held.push((index, units));
                }
            }
            _ => {
                if let Some((index, units)) = held.pop() {
                    tree[index].counter.uncharge(units);
                    tree[index].live.fetch_sub(units as i64, Ordering::Relaxed);
                }
            }
        }
    }
}

fn usage_is_live_and_stock(config: CounterConfig) {
    let r = PageCounter::root(config);
    let a = r.child();
    let b = r.child();
    let c = a.child();
    let d = a.child();
    // Each entry with the entries of its subtree.
    let subtrees: [&[usize]; 5] = [&[0, 1, 2, 3, 4], &[1, 3, 4], &[2], &[3], &[4]];
    let tree: Vec<Tally> = [r.clone(), a, b, c, d]
        .into_iter()
        .map(|counter| Tally {
            counter,
            live: AtomicI64::new(0),
        })
        .collect();
    for round in 0..30_u64 {
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let tree = &tree;
                scope.spawn(move || random_life(tree, round * 3 + thread));
            }
        });
        for (tally, subtree) in tree.iter().zip(subtrees) {
            let live: i64 = subtree
                .iter()
                .map(|&index| tree[index].live.load(Ordering::Relaxed))
                .sum();
            let counter = &tally.counter;
            assert_eq!(
                counter.live() as i64,
                live,
                "round {round}: {}",
                counter.id()
            );
            assert_eq!(
                counter.usage(),
                counter.live() + counter.stocked(),
                "round {round}"
            );
            assert!(
                counter.stocked() <= counter.stocked_bound(),
                "round {round}"
            );
        }
        assert_sound(&r);
    }
}

twins! {
    usage_is_live_and_stock:
    /// The accounting identity at rest, after random charges, frees, limits, drains and passing
    /// children.
    s015_usage_is_live_and_stock_at_rest(fixed()),
    s015_adaptive(adaptive()),
}

/// Charge and uncharge of one unit, a million times: usage moves once, and nothing else is ever
/// counted. (The kernel's versions without credit on uncharge walked every second time.)
fn free_and_charge_again_is_local(config: CounterConfig) {
    let r = PageCounter::root(config);
    let a = r.child();
    // The first walk opens no adaptive stock, the second does.
    for _ in 0..2 {
        a.charge(1).expect("unlimited");
        a.uncharge(1);
    }
    let usage = r.usage();
    let before = r.counts();
    for _ in 0..1_000_000 {
        a.charge(1).expect("unlimited");
        a.uncharge(1);
        assert_eq!(r.usage(), usage);
    }
    let after = r.counts();
    assert_eq!(
        (after.drains, after.barriers, after.drained),
        (before.drains, before.barriers, before.drained)
    );
    assert_eq!(r.live(), 0);
    assert_sound(&r);
}

twins! {
    free_and_charge_again_is_local:
    s017_free_and_charge_again_is_local(fixed()),
    s017_adaptive(adaptive()),
}

fn drain_is_complete(config: CounterConfig) {
    let r = PageCounter::root(config);
    let leaves: Vec<PageCounter> = (0..5).map(|_| r.child().child()).collect();
    let others: Vec<Other> = (0..3).map(|_| Other::spawn()).collect();
    for (thread, other) in others.iter().enumerate() {
        for (index, leaf) in leaves.iter().enumerate() {
            let leaf = leaf.clone();
            other
                .run(move || leaf.charge((thread + index) as u64))
                .expect("unlimited");
        }
    }
    let stocked = r.stocked();
    assert_eq!(r.drain(), stocked);
    for counter in leaves.iter().chain([&r]) {
        assert_eq!(counter.stocked(), 0);
        assert_eq!(counter.usage(), counter.live());
    }
    assert_eq!(r.usage(), 45, "0 + … + 4, 1 + … + 5, 2 + … + 6");
    assert_sound(&r);
}

twins! {
    drain_is_complete:
    /// When a drain returns, no credit is left below, on whatever thread; no group had to
    /// cooperate.
    s020_drain_is_complete_on_return(fixed()),
    s020_adaptive(adaptive()),
}

fn gone_counter_returns_its_stock(config: CounterConfig) {
    let r = PageCounter::root(config);
    let kept = r.child();
    kept.charge(100).expect("unlimited");
    let others: Vec<Other> = (0..3).map(|_| Other::spawn()).collect();
    for _ in 0..50 {
        let usage = r.usage();
        let a = r.child();
        for other in &others {
            let a = a.clone();
            other.run(move || {
                a.charge(10).expect("unlimited");
                a.uncharge(10);
            });
        }
        assert_eq!((a.live(), r.live()), (0, 100));
        let stocked = a.stocked();
        assert_eq!(r.usage(), usage + stocked);
        drop(a);
        assert_eq!(
            r.usage(),
            usage,
            "exactly the stock of the gone counter leaves"
        );
    }
    drop(others);
    // The next users of the threads' ids and of the counter's slots start clean.
    let next = r.child();
    let handle = next.clone();
    Other::spawn()
        .run(move || handle.charge(7))
        .expect("unlimited");
    assert_eq!((next.live(), r.live()), (7, 107));
    r.drain();
    assert_eq!((next.usage(), r.usage()), (7, 107));
    assert_eq!(r.counts().underflows, 0);
    assert_sound(&r);
}

twins! {
    gone_counter_returns_its_stock:
    /// A counter goes while other threads hold credit for it: the parent loses exactly that credit,
    /// once, and threads that end later do no harm.
    s021_gone_counter_returns_its_stock_once(fixed()),
    s021_adaptive(adaptive()),
}

/// Charges one unit to each of 32 counters in turn and returns how often the usage of one moved.
fn walks_in_turn(config: CounterConfig, rounds: u64) -> u64 {
    let r = PageCounter::root(config);
    let groups: Vec<PageCounter> = (0..32).map(|_| r.child()).collect();
    let mut walks = 0;
    for _ in 0..rounds {
        for group in &groups {
            let before = group.usage();
            group.charge(1).expect("unlimited");
            walks += u64::from(group.usage() != before);
        }
    }
    assert_eq!(r.live(), 32 * rounds);
    assert!(groups.iter().all(|group| group.live() == rounds));
    assert_sound(&r);
    walks
}

/// Any number of counters keeps its stock: 63 of 64 charges hit. (Seven slots a processor thrash
/// from the eighth counter on.)
#[test]
fn s023_many_counters_in_turn_keep_their_hits() {
    assert_eq!(walks_in_turn(fixed(), 10 * BATCH), 32 * 10);
}

#[test]
fn s023_adaptive() {
    walks_in_turn(adaptive(), 10 * BATCH);
}

/// A hook that charges and uncharges the tree that is under pressure, and is refused in there as
/// well.
fn charge_inside_the_hook(config: CounterConfig) {
    let cell: Arc<Mutex<Option<PageCounter>>> = Arc::default();
    let calls = Arc::new(AtomicU64::new(0));
    let refused = Arc::new(AtomicU64::new(0));
    let target = cell.clone();
    let hook_calls = calls.clone();
    let hook_refused = refused.clone();
    let r = PageCounter::root(config.on_pressure(move |_| {
        hook_calls.fetch_add(1, Ordering::Relaxed);
        let counter = target
            .lock()
            .expect("no thread panics with it")
            .clone()
            .expect("set before the first charge");
        counter.charge(1).expect("95 and 1 of 100");
        counter.uncharge(1);
        counter.drain();
        hook_refused.fetch_add(u64::from(counter.charge(50).is_err()), Ordering::Relaxed);
        counter.uncharge(20);
        20
    }));
    let a = r.child();
    a.set_max(100).expect("nothing is charged yet");
    *cell.lock().expect("no thread panics with it") = Some(a.clone());
    a.charge(95).expect("95 of 100");
    a.charge(10).expect("the hook made room");
    assert_eq!((a.live(), r.live()), (85, 85));
    assert_eq!(
        refused.load(Ordering::Relaxed),
        1,
        "refused inside the hook, without a deadlock"
    );
    assert_eq!(calls.load(Ordering::Relaxed), 1, "pressure does not nest");
    assert_sound(&r);
    *cell.lock().expect("no thread panics with it") = None;
}

twins! {
    charge_inside_the_hook:
    /// A charge from any callback of ours never waits for itself. A signal handler is out of scope,
    /// as for malloc.
    s025_charge_inside_a_callback(fixed()),
    s025_adaptive(adaptive()),
}

/// One life of two counters that are charged together, the second first, and sometimes drained
/// alone.
fn paired_life(
    [memory, memsw]: &[PageCounter; 2],
    seed: u64,
    mut each: impl FnMut(&PageCounter, &PageCounter),
) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut held = Vec::new();
    let uncharge = |units| {
        [memory, memsw]
            .into_iter()
            .for_each(|counter| counter.uncharge(units))
    };
    for _ in 0..5_000 {
        match rng.random_range(0..100) {
            0 => drop(memory.drain()),
            1 => drop(memsw.drain()),
            2 => drop(memory.drain() + memsw.drain()),
            3..55 => {
                let units = rng.random_range(0..90);
                [memsw, memory]
                    .into_iter()
                    .for_each(|counter| counter.charge(units).expect("unlimited"));
                held.push(units);
            }
            _ => held.pop().into_iter().for_each(uncharge),
        }
        each(memory, memsw);
    }
    let rest = held.into_iter().sum();
    assert_eq!((memory.live(), memsw.live()), (rest, rest));
    uncharge(rest);
}

fn independent_stocks_differ_by_the_bound(config: impl Fn() -> CounterConfig) {
    let roots = [(); 2].map(|()| PageCounter::root(config()));
    let mut lower = 0;
    paired_life(
        &roots.each_ref().map(PageCounter::child),
        26,
        |memory, memsw| {
            lower += usize::from(memsw.usage() < memory.usage());
            let bound = memory.stocked_bound().max(memsw.stocked_bound());
            assert!(memory.stocked().abs_diff(memsw.stocked()) <= bound);
            assert!(
                memsw.usage() + bound >= memory.usage(),
                "lower than memory by more than the bound"
            );
            // Charges of up to 89 widen a stock of 64 that adapts, to a batch of twice as much.
            assert!(bound <= 2 * 4 * BATCH, "one thread, two batches of that");
        },
    );
    assert!(lower > 0, "the second read lower now and then");
    for root in &roots {
        let verdict = root.verify();
        assert!(verdict.is_ok(), "{verdict}");
    }
}

twins! {
    independent_stocks_differ_by_the_bound:
    /// Memory and memory + swap charged together, each with its own stock: the second may read
    /// lower than the first by the stock's bound at most (the kernel: one batch a processor; here
    /// two batches a thread).
    s026_independent_stocks_differ_by_the_bound(fixed),
    s026_independent_adaptive(adaptive),
}
