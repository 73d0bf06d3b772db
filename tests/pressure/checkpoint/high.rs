//! Above high a checkpoint is delayed, as a charge is, and refuses nothing.

use std::thread;
use std::time::{Duration, Instant};

use memcg::{Bytes, Event, Group, Limit, Limits, RuntimeBuilder};

use super::{KIB, MIB, Polled, assert_empty, build, create, kinds, until};

/// It would be the end of the test.
const LONG: Duration = Duration::from_secs(600);

fn with_high(builder: RuntimeBuilder, delay_max: Duration) -> (memcg::Runtime, Group, Group) {
    let runtime = build(builder.delay_max(delay_max));
    let top = runtime
        .root()
        .create("top", Limits::new().high(Limit::Bytes(MIB)))
        .unwrap();
    let query = create(&top, "query");
    (runtime, top, query)
}

#[test]
fn the_thread_is_delayed() {
    for builder in kinds() {
        let (runtime, top, query) = with_high(builder, Duration::from_millis(50));
        let held = query.force_charge(Bytes(8 * MIB));
        assert_eq!(
            top.events().get(Event::High),
            0,
            "what is forced is not delayed"
        );
        let started = Instant::now();
        query.run(Group::checkpoint).expect("high refuses nothing");
        assert!(
            started.elapsed() >= Duration::from_millis(50),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(top.events().get(Event::High), 1);
        drop(held);
        query.run(Group::checkpoint).unwrap();
        assert_eq!(top.events().get(Event::High), 1);
        drop((query, top));
        assert_empty(&runtime);
    }
}

/// The delay ends as soon as usage is below high again, and where high moves above usage.
#[test]
fn the_delay_ends_with_its_reason() {
    for builder in kinds() {
        let (runtime, top, query) = with_high(builder, LONG);
        let mut held = Some(query.force_charge(Bytes(8 * MIB)));
        for turn in 0..2 {
            let delayed = thread::spawn({
                let query = query.clone();
                move || query.run(Group::checkpoint)
            });
            until("it is delayed", || top.events().get(Event::High) > turn);
            assert!(!delayed.is_finished());
            if turn == 0 {
                top.set_limits(Limits::new().high(Bytes(16 * MIB))).unwrap();
            } else {
                held = None;
            }
            super::join(delayed).unwrap();
            top.set_limits(Limits::new().high(Bytes(MIB))).unwrap();
        }
        drop((held, query, top));
        assert_empty(&runtime);
    }
}

/// Two polls and one wake. A neighbour on the same thread goes on.
#[test]
fn a_task_is_delayed_and_blocks_nobody() {
    for builder in kinds() {
        let (runtime, top, query) = with_high(builder, LONG);
        let free = create(&runtime.root(), "free");
        let held = query.force_charge(Bytes(8 * MIB));
        let mut delayed = Polled::new(query.run(Group::checkpoint_async));
        for _ in 0..100 {
            assert!(delayed.poll().is_pending());
            assert!(
                Polled::new(free.run(Group::checkpoint_async))
                    .poll()
                    .is_ready()
            );
        }
        assert_eq!(delayed.wakes(), 0);
        drop(held);
        until("it is woken", || delayed.wakes() == 1);
        assert!(delayed.poll().is_ready());
        // Dropped while it is delayed, it leaves nothing.
        let held = query.force_charge(Bytes(8 * MIB));
        let mut dropped = Polled::new(query.run(Group::checkpoint_async));
        assert!(dropped.poll().is_pending());
        drop((dropped, delayed, held, free, query, top));
        assert_empty(&runtime);
    }
}

/// A little above: too little for a delay.
#[test]
fn a_little_is_not_felt() {
    for builder in kinds() {
        let (runtime, top, query) = with_high(builder, LONG);
        let held = query.force_charge(Bytes(MIB + KIB));
        query.run(Group::checkpoint).unwrap();
        assert!(
            Polled::new(query.run(Group::checkpoint_async))
                .poll()
                .is_ready()
        );
        drop((held, query, top));
        assert_empty(&runtime);
    }
}
