//! Wrong and hostile use: more uncharged than charged, settings changed under way, handles dropped
//! in any order, hooks that panic. Limits hold, credit stays bounded, and `verify` names what the
//! caller did wrong.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use memcg::inspect::{VerifyFaultKind, VerifyReport};
use memcg::{CounterConfig, CounterId, PageCounter};

/// Runs `other` again and again on threads of its own for as long as `work` takes.
fn beside(threads: usize, other: impl Fn() + Sync, work: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                ready.wait();
                while !stop.load(Ordering::Relaxed) {
                    other();
                }
            });
        }
        let _stop = Stop(&stop);
        ready.wait();
        work();
    });
}

#[track_caller]
fn assert_names(verdict: &VerifyReport, counter: CounterId, kind: VerifyFaultKind) {
    let named = verdict
        .faults()
        .iter()
        .any(|fault| fault.counter == counter && fault.kind == kind);
    assert!(named, "no {kind:?} of {counter} in: {verdict}");
}

// === More uncharged than charged ===

#[test]
fn the_largest_uncharge_with_credit_above_a_batch() {
    for config in [CounterConfig::new(), CounterConfig::new().audit(true)] {
        let counter = PageCounter::root(config.adaptive(false).max(100_000));
        counter.force_charge(64);
        counter.force_charge(1);
        counter.uncharge(60);
        assert_eq!(
            (counter.usage(), counter.stocked()),
            (128, 123),
            "more than a batch of 64"
        );
        counter.uncharge(u64::MAX);
        assert_eq!((counter.usage(), counter.stocked()), (0, 0));
        assert!(counter.counts().underflows > 0);
        assert_names(&counter.verify(), counter.id(), VerifyFaultKind::Underflow);
        for units in [100_001, 1_000_000_000, u64::MAX] {
            counter.charge(units).expect_err("above max");
        }
        counter.charge(100_000).expect("exactly max");
        counter.charge(1).expect_err("full");
        assert_eq!(counter.usage(), 100_000);
    }
}

#[test]
fn over_uncharging_lets_no_thread_pass_the_limit() {
    for batch in [0, 8] {
        let root = PageCounter::root(CounterConfig::new().adaptive(false).batch(batch).max(100));
        let a = root.child();
        let check = || {
            // In this order: in between usage can only fall.
            let forced = root.forced();
            let usage = root.usage();
            assert!(usage <= 100 + forced, "{usage} with {forced} forced");
        };
        beside(
            1,
            || a.uncharge(1_000_000),
            || {
                for round in 0..200_000_u64 {
                    let _ = a.charge(90);
                    check();
                    if round % 16 == 0 {
                        a.force_charge(50);
                        check();
                    }
                }
            },
        );
        assert!(root.counts().underflows > 0);
        assert_names(&root.verify(), a.id(), VerifyFaultKind::Underflow);
    }
}

/// Each level is within u64, their sum is not.
#[test]
fn verify_adds_up_more_than_it_can_count() {
    for protected in [false, true] {
        let root = PageCounter::root(CounterConfig::new().batch(0));
        let children = [root.child(), root.child(), root.child()];
        for child in &children {
            child.charge(PageCounter::USAGE_MAX).expect("just fits");
            // Misuse: the root loses what its children hold.
            root.cancel(u64::MAX);
            if protected {
                child.set_min(u64::MAX);
                child.set_low(u64::MAX);
            }
        }
        let verdict = root.verify();
        assert_names(&verdict, root.id(), VerifyFaultKind::Children);
        assert!(
            verdict.to_string().contains(&root.id().to_string()),
            "{verdict}"
        );
    }
}

// === Settings changed under way ===

#[test]
fn a_smaller_batch_bounds_what_is_stocked() {
    const ROUNDS: u64 = if cfg!(debug_assertions) { 40 } else { 200 };
    for round in 0..ROUNDS {
        let counter = PageCounter::root(CounterConfig::new().adaptive(false).batch(1_024));
        beside(
            2,
            || {
                counter.force_charge(1_000);
                counter.uncharge(1_000);
            },
            || {
                for _ in 0..60 {
                    counter.set_batch(1_024);
                    counter.set_batch(1);
                }
            },
        );
        let stocked = counter.stocked();
        let bound = counter.stocked_bound();
        assert!(stocked <= bound, "round {round}: {stocked} of {bound}");
        let verdict = counter.verify();
        assert!(verdict.is_ok(), "round {round}: {verdict}");
        assert_eq!(counter.live(), 0);
    }
}

// === Counters that go ===

/// Live charge is 71 at most, and the rest is credit of a counter that goes.
#[test]
fn a_counter_goes_with_its_credit_while_a_sibling_charges() {
    let config = CounterConfig::new()
        .adaptive(false)
        .batch(0)
        .max(128)
        .budget(u64::MAX);
    let root = PageCounter::root(config);
    let sibling = root.child();
    // The way from the child to the level that refuses takes its time.
    let far = (0..32).fold(root.child(), |above, _| above.child());
    beside(
        1,
        || {
            let child = far.child();
            child.set_batch(64);
            child.force_charge(1);
        },
        || {
            let mut in_transit = 0;
            for round in 0..400_000 {
                let charged = sibling.charge(70);
                if charged.is_ok() {
                    sibling.uncharge(70);
                    continue;
                }
                // The other thread was preempted with credit in its hands for longer than a refusal
                // waits: that one is counted.
                let counts = root.counts();
                assert!(
                    counts.refused_in_transit > in_transit,
                    "round {round}: {charged:?} {counts:?}"
                );
                in_transit = counts.refused_in_transit;
            }
        },
    );
    assert_eq!(root.usage(), 0);
}

#[test]
fn a_deep_chain_goes_on_a_small_stack() {
    const LEVELS: usize = 25_000;
    // Less than any recursion takes: 20 bytes for each level.
    const STACK: usize = 512 << 10;
    let chain = |leaf_first: bool| {
        let mut handles = vec![PageCounter::root(CounterConfig::new().batch(0))];
        for level in 1..LEVELS {
            handles.push(handles[level - 1].child());
        }
        handles[LEVELS - 1].charge(1).expect("unlimited");
        assert_eq!(handles[0].usage(), 1);
        if leaf_first {
            while handles.len() > 1 {
                handles.pop();
            }
            assert_eq!(handles[0].usage(), 0, "what was charged below left");
        } else {
            handles.drain(..LEVELS - 1);
            assert_eq!(handles[0].usage(), 1);
        }
    };
    for leaf_first in [false, true] {
        let thread = std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || chain(leaf_first));
        thread
            .expect("a thread starts")
            .join()
            .expect("the chain goes without recursion");
    }
}

// === Peaks and hooks ===
