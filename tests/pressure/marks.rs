//! Marks that a program acts upon fall when live bytes fall, wherever the bytes went as credit: each
//! mark with each place of credit. No runtime here has a flusher, and no root a max.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memcg::CentralStock;
use memcg::{
    Bytes, Charge, Event, Group, Limits, OnFull, PressureLevel, Reclaim, ReclaimContext,
    ReclaimPriority, Runtime,
};

const KIB: u64 = 1 << 10;

/// What is live while a queue is full, and once it is empty again.
const FULL: u64 = 91 * KIB;
const EMPTY: u64 = KIB;

/// A batch of the kernel's, which its delays are for.
const BATCH: u64 = 256 * KIB;

/// Where credit lies that no charge uses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    ThisThread,
    SleepingThread,
    EndedThread,
    GroupBelow,
    CentralStock,
}

use Place::{CentralStock as Central, EndedThread, GroupBelow, SleepingThread, ThisThread};

const PLACES: [Place; 5] = [ThisThread, SleepingThread, EndedThread, GroupBelow, Central];

/// What keeps the credit where it is.
type Kept = (Option<Charge>, Option<Sleeper>, Option<Group>);

/// A thread that sleeps on its credit, until the value is dropped.
struct Sleeper(Option<(std::sync::mpsc::Sender<()>, thread::JoinHandle<()>)>);

impl Drop for Sleeper {
    fn drop(&mut self) {
        if let Some((wake, thread)) = self.0.take() {
            drop(wake);
            thread.join().expect("it only sleeps");
        }
    }
}

/// A charge that stays, and those that are given back.
fn fill(group: &Group) -> (Charge, [Charge; 2]) {
    let charge = |bytes| group.charge(Bytes(bytes)).expect("room");
    (charge(EMPTY), [charge(60 * KIB), charge(30 * KIB)])
}

impl Place {
    fn queue(self, limits: Limits) -> (Runtime, Group) {
        let builder = if self == Central {
            // Near its max a group of this size keeps no stock of threads.
            Runtime::builder()
        } else {
            Runtime::builder().adaptive(false).batch(Bytes(64 * KIB))
        };
        let runtime = builder.build().unwrap();
        let queue = runtime.root().create("queue", limits).unwrap();
        (runtime, queue)
    }

    /// Fills the queue, and empties it into the place. Usage stays as it was.
    fn credit(self, queue: &Group, at_full: impl FnOnce()) -> Kept {
        let is_full = || assert_eq!(queue.live(), FULL, "{self:?}");
        let kept: Kept = match self {
            ThisThread | GroupBelow => {
                let below =
                    (self == GroupBelow).then(|| queue.create("below", Limits::new()).unwrap());
                let (kept, given_back) = fill(below.as_ref().unwrap_or(queue));
                is_full();
                at_full();
                drop(given_back);
                (Some(kept), None, below)
            }
            Central => {
                let stock = CentralStock::of(queue);
                let (kept, given_back) = fill(queue);
                is_full();
                at_full();
                given_back
                    .into_iter()
                    .for_each(|charge| stock.give_back(charge));
                (Some(kept), None, None)
            }
            SleepingThread | EndedThread => {
                let ((full, is_filled), (go, may_empty)) = (channel(), channel::<()>());
                let ((empty, is_emptied), (wake, sleep)) = (channel(), channel::<()>());
                let (queue, ends) = (queue.clone(), self == EndedThread);
                let thread = thread::spawn(move || {
                    let (kept, given_back) = fill(&queue);
                    full.send(()).unwrap();
                    may_empty.recv().unwrap();
                    drop(given_back);
                    empty.send(kept).unwrap();
                    if !ends {
                        sleep.recv().unwrap_err();
                    }
                });
                is_filled.recv().unwrap();
                is_full();
                at_full();
                go.send(()).unwrap();
                let kept = is_emptied.recv().unwrap();
                let mut sleeper = Some(Sleeper(Some((wake, thread))));
                if ends {
                    sleeper = None;
                }
                (Some(kept), sleeper, None)
            }
        };
        assert!(queue.usage() >= FULL, "{self:?}: nothing told anyone");
        kept
    }
}

fn changes(group: &Group) -> u64 {
    group.events().local().get(Event::PressureLevel)
}

/// Elevated from 80 KiB on.
fn with_levels() -> Limits {
    Limits::new().max(Bytes(200 * KIB)).pressure_levels(40, 100)
}

#[test]
fn a_read_of_the_pressure_level() {
    for place in PLACES {
        let (_runtime, queue) = place.queue(with_levels());
        let below = queue.create("shows the queue's", Limits::new()).unwrap();
        let _kept = place.credit(&queue, || {
            let credit = queue.memory().stocked();
            for _ in 0..3 {
                assert_eq!(queue.pressure_level(), PressureLevel::Elevated, "{place:?}");
                assert_eq!(below.pressure_level(), PressureLevel::Elevated, "{place:?}");
            }
            assert_eq!(
                (queue.memory().stocked(), changes(&queue)),
                (credit, 1),
                "{place:?}: nothing is drained while live bytes are above the threshold"
            );
        });
        assert_eq!(below.pressure_level(), PressureLevel::Normal, "{place:?}");
        assert_eq!(queue.pressure_level(), PressureLevel::Normal, "{place:?}");
        assert_eq!((queue.live(), changes(&queue)), (EMPTY, 2), "{place:?}");
    }
}

/// A group that goes offline leaves its credit to the groups above.
#[test]
fn credit_that_an_offline_group_leaves() {
    let (_runtime, queue) = SleepingThread.queue(with_levels());
    let gone = queue.create("gone", Limits::new()).unwrap();
    thread::scope(|scope| {
        // The second thread that charges it: the group cannot settle on its own.
        scope.spawn(|| drop(gone.charge(1).unwrap()));
    });
    let _kept = SleepingThread.credit(&gone, || {
        assert_eq!(queue.pressure_level(), PressureLevel::Elevated);
    });
    gone.offline().unwrap();
    drop(gone);
    assert_eq!(queue.pressure_level(), PressureLevel::Normal);
    assert_eq!((queue.live(), changes(&queue)), (EMPTY, 2));
}

/// The figure of a table, too.
#[test]
fn a_row_of_a_snapshot() {
    for place in PLACES {
        let (runtime, queue) = place.queue(with_levels());
        let _kept = place.credit(&queue, || ());
        let snapshot = runtime.snapshot();
        let levels = snapshot.rows().iter().map(|row| row.pressure_level);
        assert!(
            levels
                .into_iter()
                .all(|level| level == PressureLevel::Normal),
            "{place:?}: {snapshot}"
        );
    }
}

/// The event of the change comes with the next slow path at the level, where nobody reads: here
/// with the first charge of another thread.
#[test]
fn the_event_without_a_read() {
    for place in PLACES {
        let (_runtime, queue) = place.queue(with_levels());
        let notified = Arc::new(AtomicU64::new(0));
        let _listener = queue.on_event(Event::PressureLevel, {
            let notified = Arc::clone(&notified);
            move |now| _ = notified.fetch_add(now.times(), Relaxed)
        });
        let _kept = place.credit(&queue, || ());
        assert_eq!(changes(&queue), 1, "{place:?}");
        thread::scope(|scope| {
            scope.spawn(|| drop(queue.charge(1).unwrap()));
        });
        assert_eq!(
            (changes(&queue), notified.load(Relaxed)),
            (2, 2),
            "{place:?}"
        );
    }
}

/// A reader may hold a lock that listeners take.
#[test]
fn a_read_calls_no_listener() {
    for place in PLACES {
        let (_runtime, queue) = place.queue(with_levels());
        let callers = Arc::new(Mutex::new(Vec::new()));
        let _listener = queue.on_event(Event::PressureLevel, {
            let callers = Arc::clone(&callers);
            move |_| callers.lock().unwrap().push(thread::current().id())
        });
        let _kept = place.credit(&queue, || callers.lock().unwrap().clear());
        {
            let _locked = callers.lock().unwrap();
            assert_eq!(queue.pressure_level(), PressureLevel::Normal, "{place:?}");
        }
        let end = Instant::now() + Duration::from_secs(60);
        while callers.lock().unwrap().is_empty() {
            assert!(Instant::now() < end, "{place:?}");
            thread::yield_now();
        }
        assert!(!callers.lock().unwrap().contains(&thread::current().id()));
    }
}

/// Usage is above high by credit alone: no charge is delayed, no event says so, and a wait is over.
#[test]
fn high() {
    for place in PLACES {
        let (_runtime, queue) =
            place.queue(Limits::new().max(Bytes(1024 * KIB)).high(Bytes(300 * KIB)));
        let _kept = place.credit(&queue, || ());
        let _held = queue.charge(Bytes(250 * KIB)).unwrap();
        assert_eq!(queue.live(), EMPTY + 250 * KIB);
        assert_eq!(queue.events().get(Event::High), 0, "{place:?}");
        assert_eq!(
            queue.inspect().high_delay(Bytes(BATCH)),
            Duration::ZERO,
            "{place:?}"
        );
        assert!(queue.below_high().wait(Duration::ZERO), "{place:?}");
    }
}

/// Live bytes are above high, and the delay is that of these alone.
#[test]
fn the_delay_above_high() {
    let limits = Limits::new().max(Bytes(1024 * KIB)).high(Bytes(300 * KIB));
    let bare = Runtime::builder().batch(0).build().unwrap();
    let same = bare.root().create("same", limits).unwrap();
    let _held = same.force_charge(Bytes(EMPTY + 600 * KIB));
    let expected = same.inspect().high_delay(Bytes(KIB));
    assert!(expected > Duration::from_millis(100), "{expected:?}");
    assert!(
        expected < Duration::from_secs(1),
        "the longest delay is 2 s"
    );
    for place in PLACES {
        let (_runtime, queue) = place.queue(limits);
        let _kept = place.credit(&queue, || ());
        let _held = queue
            .charge_with(Bytes(600 * KIB), OnFull::Reclaim)
            .unwrap();
        assert_eq!(
            queue.inspect().high_delay(Bytes(KIB)),
            expected,
            "{place:?}"
        );
    }
}

struct Cache(Mutex<Charge>);

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        self.0.lock().unwrap().shrink(Bytes(want))
    }
}

/// A mark of 500 KiB, which reclaim in the background goes down to a sixteenth below.
fn with_mark() -> Limits {
    Limits::new().reclaim_above(Bytes(500 * KIB))
}

fn register(queue: &Group, bytes: u64) -> memcg::Registration {
    let held = queue.charge(Bytes(bytes)).unwrap();
    queue.register_reclaimer(Arc::new(Cache(Mutex::new(held))), ReclaimPriority::NORMAL)
}

/// Usage is above the mark by credit alone: no reclaimer is asked.
#[test]
fn reclaim_above_by_credit() {
    for place in PLACES {
        let (_runtime, queue) = place.queue(with_mark().max(Bytes(1024 * KIB)));
        let _kept = place.credit(&queue, || ());
        let _registration = register(&queue, 450 * KIB);
        thread::sleep(Duration::from_millis(30));
        assert_eq!(queue.live(), EMPTY + 450 * KIB, "{place:?}");
    }
}

/// Live bytes are above the mark, too: reclaimers give so much as these are above, and nothing for
/// credit.
#[test]
fn reclaim_above_by_live_bytes() {
    for place in PLACES {
        let (_runtime, queue) = place.queue(Limits::new().max(Bytes(1024 * KIB)));
        let _kept = place.credit(&queue, || ());
        let _registration = register(&queue, 810 * KIB);
        queue.set_limits(with_mark()).unwrap();
        let down_to = 500 * KIB - 500 * KIB / 16;
        let end = Instant::now() + Duration::from_secs(60);
        while queue.live() > down_to {
            assert!(Instant::now() < end, "{place:?}: {queue:?}");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(10));
        assert_eq!(queue.live(), down_to, "{place:?}");
    }
}
