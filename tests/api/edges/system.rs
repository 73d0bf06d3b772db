//! Fork without exec, and a system that takes the barrier away.
//!
//! Both change the whole process, so each test starts this program again for itself alone and looks
//! at how it ends.

// Neither fork nor a seccomp filter has a safe form.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use memcg::barrier::{BarrierMode, BarrierState};
use memcg::{CounterConfig, PageCounter};

use crate::support::alone::alone;
use crate::support::denials::deny;
use crate::support::workers::Other;

// === Fork ===

/// In the child: only this thread is left, the others' credit is still to be found.
fn life_after_fork(root: &PageCounter, a: &PageCounter) {
    assert_eq!((a.live(), root.live()), (3, 3));
    a.charge(1).expect("a hit");
    a.uncharge(1);
    a.charge(200).expect("a walk");
    a.uncharge(200);
    let stocked = root.stocked();
    assert!(stocked > 0, "the thread that is gone left credit");
    assert_eq!(root.drain(), stocked);
    assert_eq!((root.usage(), root.stocked()), (3, 0));
    a.set_max(50).expect("3 are live");
    assert_eq!(a.charge(48).expect_err("51 of 50").usage, 3);
    a.charge(47).expect("50 of 50");
    let child = a.child();
    child.charge(1).expect_err("51 of 50");
    drop(child);
    a.uncharge(50);
    root.drain();
    assert_eq!((root.usage(), root.counts().underflows), (0, 0));
    let verdict = root.verify();
    assert!(verdict.is_ok(), "{verdict}");
}

fn fork_and_go_on(config: CounterConfig) {
    let root = PageCounter::root(config.audit(true));
    let a = root.child();
    let other = Other::spawn();
    other.with(&a, |a| a.charge(2)).expect("unlimited");
    a.charge(1).expect("unlimited");
    let usage = root.usage();
    let stocked = root.stocked();
    // SAFETY: the other thread waits on a channel and holds no lock; the child calls nothing but
    // the counters and what the test's messages need, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let code = match catch_unwind(AssertUnwindSafe(|| life_after_fork(&root, &a))) {
            Ok(()) => 0,
            Err(_) => 1,
        };
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child; `status` is ours.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child ended with {status}"
    );
    assert_eq!(
        (root.usage(), root.stocked(), root.live()),
        (usage, stocked, 3),
        "the parent saw nothing of it"
    );
    other.with(&a, |a| a.uncharge(3));
    root.drain();
    assert_eq!(root.usage(), 0);
}

#[test]
fn fork_without_exec() {
    alone("edges::system::fork_without_exec", &[], || {
        fork_and_go_on(CounterConfig::new().adaptive(false));
        fork_and_go_on(
            CounterConfig::new()
                .adaptive(false)
                .barrier(BarrierMode::Fence),
        );
        fork_and_go_on(CounterConfig::new());
    });
}

// === A barrier that fails later ===

/// From here on `membarrier` fails with EPERM on this thread and those it spawns.
fn deny_membarrier() {
    let denied = deny(libc::SYS_membarrier, libc::EPERM);
    assert!(denied, "{}", std::io::Error::last_os_error());
}

/// One thread holds credit, another one that may not call the barrier wants it.
fn barrier_fails_later(config: CounterConfig) {
    let root = PageCounter::root(config.audit(true));
    if root.barrier() != BarrierState::Membarrier {
        println!("no membarrier here: nothing to take away");
        return;
    }
    let a = root.child();
    a.set_max(1_000).expect("nothing is charged yet");
    let owner = Other::spawn();
    let denied = Other::spawn();
    // An adaptive stock opens with the first charge and is filled by the next.
    owner.with(&a, |a| a.charge(5)).expect("5 of 1000");
    owner.with(&a, |a| a.charge(1)).expect("6 of 1000");
    owner.with(&a, |a| a.uncharge(5));
    denied.with(&a, |_| deny_membarrier());
    let before = (root.usage(), root.stocked());

    denied.with(&a, PageCounter::drain);
    // Without a stock nothing was to be drained, and the barrier is not missed.
    let state = if before.1 > 0 {
        BarrierState::Degraded
    } else {
        BarrierState::Membarrier
    };
    assert_eq!(root.barrier(), state);
    assert_eq!(
        (root.usage(), root.stocked(), root.live()),
        (before.0, before.1, 1),
        "nothing is lost"
    );
    assert!(root.verify().is_ok(), "{}", root.verify());

    // The bytes fit without the owner's credit only, which may stay out of reach.
    let charged = denied.with(&a, |a| a.charge(999)).map_or(0, |()| 999);
    assert_eq!((root.live(), a.live()), (1 + charged, 1 + charged));
    assert_eq!(root.usage(), root.live() + root.stocked());
    denied
        .with(&a, |a| a.charge(1_000))
        .expect_err("1001 of 1000, whatever the barrier does");
    assert!(root.usage() <= 1_000, "limits hold");
    denied.with(&a, |a| a.force_charge(5_000));
    assert_eq!(a.live(), 5_001 + charged);
    assert!(a.usage() - a.forced() <= 1_000);
    denied.with(&a, move |a| a.uncharge(5_000 + charged));
    assert_eq!(a.live(), 1);
    assert!(root.verify().is_ok(), "{}", root.verify());

    // The owner gives its credit back by itself, the next time it charges and frees.
    for _ in 0..3 {
        owner.with(&a, |a| {
            a.charge(100).expect("room");
            a.uncharge(100);
        });
    }
    denied.with(&a, |a| a.set_batch(0));
    owner.with(&a, |a| {
        a.charge(100).expect("room");
        a.uncharge(100);
    });
    owner.with(&a, |a| a.uncharge(1));
    assert_eq!(root.live(), 0);
    drop((owner, denied));
    let verdict = root.verify();
    assert!(verdict.is_ok(), "{verdict}");
    drop(a);
    assert_eq!(root.usage(), 0, "nothing is left when the counter is gone");
}

#[test]
fn a_barrier_that_fails_later_loses_nothing() {
    alone(
        "edges::system::a_barrier_that_fails_later_loses_nothing",
        &[],
        || {
            barrier_fails_later(CounterConfig::new().adaptive(false));
            barrier_fails_later(CounterConfig::new().adaptive(true));
            barrier_fails_later(CounterConfig::new().adaptive(false).batch(0));
        },
    );
}
