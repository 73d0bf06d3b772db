//! Producers and consumers on threads of their own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use memcg::{Bytes, CentralStock, Charge, OnFull};

use super::{MAX, Scene, assert_adds_up, assert_empty, audited, build, create, kinds};
use crate::support::waiters::WATCHDOG;

const MESSAGES: u64 = 20_000;

/// From a byte to 300, so that what is in the stock and what is left of max are never both too little for long.
fn bytes_of(number: u64) -> u64 {
    1 + number * 7_919 % 300
}

fn sum() -> u64 {
    (0..MESSAGES).map(bytes_of).sum()
}

fn produce(stock: &CentralStock, to: &Sender<Charge>) {
    for number in 0..MESSAGES {
        let charge = loop {
            match stock.charge_if_room(Bytes(bytes_of(number))) {
                Some(charge) => break charge,
                None => thread::yield_now(),
            }
        };
        to.send(charge).expect("the consumer listens");
    }
}

fn consume(stock: &CentralStock, from: Receiver<Charge>) -> u64 {
    let mut bytes = 0;
    for charge in from {
        bytes += charge.bytes();
        stock.give_back(charge);
    }
    bytes
}

#[test]
fn a_producer_and_a_consumer() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        let (to, from) = channel();
        let consumed = thread::scope(|scope| {
            let consumer = scope.spawn(|| consume(&scene.stock, from));
            produce(&scene.stock, &to);
            drop(to);
            consumer.join().expect("no panic there")
        });
        assert_eq!(consumed, sum());
        let [usage, live, parent_usage, parent_live, credit] = scene.figures();
        assert_eq!((live, parent_live, usage, parent_usage), (0, 0, credit, credit));
        assert!(scene.parent.peak() <= MAX, "peak {}", scene.parent.peak());
        scene.end();
    }
}

/// Two channels that share a max: what lies in the stock of the one is room for the other.
#[test]
fn two_channels_below_one_max() {
    let runtime = build(audited());
    let parent = super::limited(&runtime.root(), "parent", MAX);
    let stocks = ["one", "other"].map(|name| create(&parent, name).central_stock());
    let consumed = AtomicU64::new(0);
    thread::scope(|scope| {
        for stock in &stocks {
            let (to, from) = channel();
            let consumed = &consumed;
            scope.spawn(move || consumed.fetch_add(consume(stock, from), Ordering::Relaxed));
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    let bytes = Bytes(bytes_of(number));
                    let charge = stock.charge_if_room(bytes);
                    let charge =
                        charge.map_or_else(|| stock.group().try_charge_with(bytes, OnFull::Wait(WATCHDOG)), Ok);
                    to.send(charge.expect("its turn comes")).expect("the consumer listens");
                }
            });
        }
    });
    assert_eq!((consumed.into_inner(), parent.live(), parent.waiting_count()), (2 * sum(), 0, 0));
    assert!(parent.peak() <= MAX, "{}", parent.peak());
    assert_adds_up(&runtime);
    drop((stocks, parent));
    assert_empty(&runtime);
}

/// Each byte of credit pays one charge. All of max is credit, so that no charge walks and closes the stock.
#[test]
fn no_byte_is_taken_twice() {
    const THREADS: u64 = 4;
    let scene = Scene::with_credit(MAX);
    for _ in 0..200 {
        let charges: Vec<Charge> = thread::scope(|scope| {
            let takes = || (0..30).filter_map(|_| scene.stock.charge_if_room(10)).collect::<Vec<_>>();
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(takes)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic there")).collect()
        });
        let bytes: u64 = charges.iter().map(Charge::bytes).sum();
        assert_eq!((bytes, scene.queue.live(), scene.queue.usage()), (MAX, MAX, MAX), "all there is, and no more");
        thread::scope(|scope| {
            let mut charges = charges.into_iter();
            for _ in 0..THREADS {
                let part: Vec<Charge> = charges.by_ref().take(25).collect();
                scope.spawn(|| part.into_iter().for_each(|charge| scene.stock.give_back(charge)));
            }
        });
        assert_eq!(scene.figures(), [MAX, 0, MAX, 0, MAX]);
    }
    scene.end();
}

/// A thread that has stopped in the middle of a put goes on when the stock has closed and is open again with a smaller
/// batch: it holds no more than that one.
#[test]
fn a_smaller_batch_holds_at_once() {
    const LARGE: u64 = 1_000;
    const SMALL: u64 = 100;
    // The threads' stocks stay closed.
    let runtime = build(audited().batch(Bytes(SMALL)));
    let queue = super::limited(&runtime.root(), "queue", 15 * SMALL);
    let stock = queue.central_stock();
    for round in 0..60 {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..6 {
                let (stock, over) = (&stock, &over);
                let bytes = if thread < 4 { 3 * SMALL } else { SMALL / 4 };
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        stock.charge_if_room(Bytes(bytes)).into_iter().for_each(|charge| stock.give_back(charge));
                    }
                });
            }
            for batch in [LARGE, SMALL].into_iter().cycle().take(40) {
                queue.set_batch(Bytes(batch));
                thread::sleep(Duration::from_micros(50));
            }
            over.store(true, Ordering::Relaxed);
        });
        let credit = stock.credit();
        let all = queue.try_charge(Bytes(15 * SMALL));
        assert!(all.is_ok(), "round {round}: no byte is live, {credit} of credit: {all:?}");
        assert!(credit <= SMALL, "round {round}: {credit} of credit with a batch of {SMALL}");
        drop(all);
        assert_adds_up(&runtime);
    }
    drop((stock, queue));
    assert_empty(&runtime);
}
