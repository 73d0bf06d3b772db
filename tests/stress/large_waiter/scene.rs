//! The small ones, and what they count.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memcg::{Bytes, Charge, ChargeError, Group, Limit, Limits, OnFull, Runtime};

pub(crate) const SMALL: u64 = 1 << 10;
pub(crate) const LARGE: u64 = if cfg!(debug_assertions) {
    32 << 20
} else {
    64 << 20
};
/// So little besides the large one that it gets no room but by what the others give up.
const MAX: u64 = LARGE + (16 << 20);
pub(crate) const THREADS: usize = 4;

/// Short, for a charge that waits behind the large one keeps what that one needs.
const QUEUES_FOR: Duration = Duration::from_millis(2);

/// The group that the small ones charge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place {
    /// The group of the large one.
    Same,
    /// Groups beside it, below the one whose limit they share.
    Siblings,
}

pub(crate) struct Scene {
    runtime: Runtime,
    /// The group with the limit.
    pub(crate) level: Group,
    pub(crate) large: Group,
    smalls: Vec<Group>,
    /// The threads have what there is.
    pub(crate) full: Barrier,
    /// The bytes that may pass the first in line.
    passed_max: u64,
    /// Small ones may wait in line too.
    pub(crate) line: AtomicBool,
    /// The one large one is the first in line.
    pub(crate) counts: AtomicBool,
    pub(crate) over: AtomicBool,
    /// Bytes admitted to others while it was.
    pub(crate) passed: AtomicU64,
    /// No less than the small ones hold.
    held: AtomicU64,
    /// Small charges admitted.
    pub(crate) steps: AtomicU64,
}

impl Scene {
    /// `under_way`: as much as the large one asks for, and what is under way when it becomes the
    /// first: a charge of each thread.
    pub(crate) fn new(place: Place, under_way: bool) -> Self {
        let runtime = Runtime::builder()
            .build()
            .expect("a configuration that holds");
        let level = runtime
            .root()
            .create("level", Limits::new().max(Limit::Bytes(MAX)))
            .expect("a name");
        let below = |name: String| level.create(&name, Limits::new()).expect("a name");
        let (large, smalls) = match place {
            Place::Same => (level.clone(), vec![level.clone(); THREADS]),
            Place::Siblings => (
                below("large".to_owned()),
                (0..THREADS)
                    .map(|number| below(format!("small{number}")))
                    .collect(),
            ),
        };
        let count = || AtomicU64::new(0);
        Self {
            runtime,
            level,
            large,
            smalls,
            full: Barrier::new(THREADS + 1),
            passed_max: LARGE + if under_way { THREADS as u64 * SMALL } else { 0 },
            line: AtomicBool::new(false),
            counts: AtomicBool::new(false),
            over: AtomicBool::new(false),
            passed: count(),
            held: count(),
            steps: count(),
        }
    }

    /// One thread: takes what it can get; then, at once or when there is a line, gives back one and
    /// takes one, until it is `over`.
    pub(crate) fn churn(&self, number: usize, at_once: bool, queues: bool) {
        let group = &self.smalls[number];
        let mut held = Vec::new();
        while let Some(charge) = self.admitted(group.charge(Bytes(SMALL))) {
            held.push(charge);
        }
        self.full.wait();
        while !at_once && !self.line.load(Ordering::SeqCst) && !self.over.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let mut turn = 0_u64;
        while !self.over.load(Ordering::SeqCst) {
            turn += 1;
            if let Some(charge) = held.pop() {
                drop(charge);
                self.held.fetch_sub(SMALL, Ordering::SeqCst);
            }
            let counts = self.counts.load(Ordering::SeqCst);
            let queues = queues && turn.is_multiple_of(1_024) && self.line.load(Ordering::SeqCst);
            let result = if queues {
                group.charge_with(Bytes(SMALL), OnFull::Wait(QUEUES_FOR))
            } else {
                group.charge(Bytes(SMALL))
            };
            let Some(charge) = self.admitted(result) else {
                continue;
            };
            if counts && !self.large_is_in() {
                let passed = self.passed.fetch_add(SMALL, Ordering::SeqCst) + SMALL;
                assert!(
                    passed <= self.passed_max,
                    "{passed} bytes have passed the first in line"
                );
            }
            held.push(charge);
        }
        self.held
            .fetch_sub(held.len() as u64 * SMALL, Ordering::SeqCst);
    }

    fn admitted(&self, result: Result<Charge, ChargeError>) -> Option<Charge> {
        match result {
            Ok(charge) => {
                self.held.fetch_add(SMALL, Ordering::SeqCst);
                self.steps.fetch_add(1, Ordering::SeqCst);
                Some(charge)
            }
            Err(error) if error.is_over_limit() || error.is_timeout() => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// True if the level holds more than small ones: then the charge that was admitted may have
    /// come after it. Room that was handed over shows before its owner knows.
    fn large_is_in(&self) -> bool {
        // Usage first: threads that are through give back all that they hold.
        let usage = self.level.usage();
        let small = self.held.load(Ordering::SeqCst) + THREADS as u64 * SMALL;
        usage.saturating_sub(small) > LARGE / 2
    }

    /// Nothing is held.
    pub(crate) fn check_end(&self) {
        assert_eq!(self.held.load(Ordering::SeqCst), 0);
        self.level.memory().drain();
        assert_eq!(
            (
                self.level.usage(),
                self.level.forced(),
                self.level.waiting_count()
            ),
            (0, 0, 0)
        );
        assert!(self.level.peak() <= MAX);
        let verdict = self.runtime.verify();
        assert!(verdict.is_ok(), "{verdict}");
    }
}
