//! Room for one, wanted by several: a thread that has it gives it back in one way or another, and
//! the next must have it then.
//!
//! In each round every thread takes it once. A thread that has had it waits for the others and does
//! nothing that could help one that was forgotten: a wake-up that is lost stops every thread, and
//! the watchdog says where.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::time::{Duration, Instant};

use memcg::{Bytes, Charge, Group, Limit, Limits, OnFull, Runtime};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::seconds;
use crate::support::poll::poll_for;
use crate::support::turns::turn;
use crate::support::watchdog::Watchdog;

const THREADS: u64 = 3;
const TENANT_MAX: u64 = 64 << 10;
/// Less than two tenants may have.
const ROOT_MAX: u64 = 100 << 10;
/// Two of them never fit below one tenant.
const BATON: u64 = 40 << 10;

/// For a machine that is busy with other things: no thread may wait so long.
const PATIENCE: Duration = Duration::from_secs(30);
const EVER: Duration = Duration::from_secs(600);
const ROUNDS: u64 = if cfg!(debug_assertions) { 200 } else { 500 };

/// A root, two tenants, and two queries of each.
struct Course {
    runtime: Runtime,
    tenants: Vec<Group>,
    queries: Vec<Group>,
    /// Another tree's limits do not count there.
    outside: Group,
    admitted: Arc<AtomicU64>,
    round: Barrier,
}

impl Course {
    fn new(seed: u64, admitted: &Arc<AtomicU64>) -> Self {
        let batch = [4_096, 0, 1_024][seed as usize % 3];
        let runtime = Runtime::builder()
            .batch(Bytes(batch))
            .audit(seed.is_multiple_of(2))
            .build()
            .expect("it holds");
        let max = |bytes| Limits::new().max(Limit::Bytes(bytes));
        let service = runtime
            .root()
            .create("service", max(ROOT_MAX))
            .expect("a name");
        let outside = runtime
            .root()
            .create("outside", Limits::new())
            .expect("a name");
        let tenants: Vec<Group> = ["a", "b"]
            .iter()
            .map(|name| service.create(name, max(TENANT_MAX)).expect("a name"))
            .collect();
        let query = |number: usize| {
            tenants[number % 2]
                .create(&format!("query{number}"), Limits::new())
                .expect("a name")
        };
        let queries = (0..4).map(query).collect();
        Self {
            runtime,
            tenants,
            queries,
            outside,
            admitted: Arc::clone(admitted),
            round: Barrier::new(THREADS as usize),
        }
    }

    fn run(&self, seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        for _ in 0..ROUNDS {
            self.round.wait();
            let query = &self.queries[rng.random_range(0..self.queries.len())];
            // Leaves credit behind wherever no thread waits.
            for _ in 0..rng.random_range(0..3) {
                drop(query.charge(rng.random_range(1..1_500)));
            }
            if rng.random_bool(0.05) {
                self.move_limits(&mut rng);
                continue;
            }
            // All there is, half of the time: then a single byte that is hidden somewhere is
            // missed.
            let rest = TENANT_MAX - BATON;
            let bytes = BATON
                + if rng.random_bool(0.5) {
                    rest
                } else {
                    rng.random_range(0..rest)
                };
            if let Some(charge) = self.take(query, bytes, &mut rng) {
                self.admitted.fetch_add(1, Ordering::SeqCst);
                self.give_back(charge, &mut rng);
            }
        }
    }

    fn take(&self, query: &Group, bytes: u64, rng: &mut SmallRng) -> Option<Charge> {
        let result = match rng.random_range(0..10) {
            0..4 => query.charge_with(Bytes(bytes), OnFull::Wait(EVER)),
            4..8 => match poll_for(&mut query.charge_async(Bytes(bytes)), EVER) {
                Poll::Ready(result) => result,
                Poll::Pending => panic!("{bytes} in {}: the watchdog sleeps", query.path()),
            },
            8 => query.charge_with(
                Bytes(bytes),
                OnFull::Wait(Duration::from_micros(rng.random_range(0..100))),
            ),
            _ => {
                let patience = Duration::from_micros(rng.random_range(0..100));
                match poll_for(&mut query.charge_async(Bytes(bytes)), patience) {
                    Poll::Ready(result) => result,
                    Poll::Pending => return None,
                }
            }
        };
        match result {
            Ok(charge) => Some(charge),
            // The limits that move leave no room, or the charge was not waited for.
            Err(error) if error.is_over_limit() || error.is_timeout() => None,
            Err(other) => panic!("{other}"),
        }
    }

    fn give_back(&self, mut charge: Charge, rng: &mut SmallRng) {
        match rng.random_range(0..7) {
            0 => drop(charge.shrink(Bytes(BATON))),
            1 => charge.resize(1).expect("it becomes less"),
            2 => {
                let part = charge.split(Bytes(BATON / 2)).expect("it is larger");
                drop(charge);
                return drop(part);
            }
            3 => charge.transfer(&self.outside).expect("there is no limit"),
            4 => std::thread::yield_now(),
            _ => {}
        }
        drop(charge);
    }

    /// Raised again before anything else is done: what was refused for it must not wait for the
    /// next thread that gives back.
    fn move_limits(&self, rng: &mut SmallRng) {
        let tenant = &self.tenants[rng.random_range(0..2)];
        let set = [Group::set_max, |group: &Group, max| {
            group.memory().set_max_now(max)
        }][rng.random_range(0..2)];
        set(tenant, Limit::Bytes(TENANT_MAX / 2)).expect("a number");
        std::thread::yield_now();
        tenant.set_max(Limit::Bytes(TENANT_MAX)).expect("a number");
    }

    fn check_end(&self) {
        let verdict = self.runtime.verify();
        assert!(verdict.is_ok(), "{verdict}");
        let root = self.runtime.root();
        root.memory().drain();
        for group in root.inspect().descendants().chain([root]) {
            assert_eq!(
                (group.usage(), group.forced(), group.waiting_count()),
                (0, 0, 0),
                "{}",
                group.path()
            );
        }
    }
}

/// For the reader of a failure: what hides in stocks is what a reader looks for first.
fn describe(root: &Group) -> String {
    let row = |group: Group| {
        let usage = group.usage();
        let live = group.live();
        let stocked = group.memory().stocked();
        format!(
            "{}: usage {usage}, live {live}, stocked {stocked}, {} wait",
            group.path(),
            group.waiting_count()
        )
    };
    let rows: Vec<String> = root.inspect().descendants().map(row).collect();
    format!("{}\n{}", root.snapshot(usize::MAX), rows.join("\n"))
}

#[test]
fn a_thread_that_is_next_gets_what_is_given_back() {
    let _turn = turn(module_path!());
    // The storm has its time too.
    let length = Duration::from_secs(seconds()) / 2;
    let began = Instant::now();
    let admitted = Arc::new(AtomicU64::new(0));
    let mut trees = 0;
    while began.elapsed() < length {
        trees += 1;
        let course = Course::new(trees, &admitted);
        let progress = Arc::clone(&admitted);
        let root = course.runtime.root();
        let describe = Arc::new(move || describe(&root));
        let watchdog = Watchdog::start(
            "baton",
            PATIENCE,
            move || progress.load(Ordering::SeqCst),
            describe,
        );
        std::thread::scope(|scope| {
            let course = &course;
            (0..THREADS)
                .for_each(|thread| drop(scope.spawn(move || course.run(trees * THREADS + thread))));
        });
        drop(watchdog);
        course.check_end();
    }
    println!(
        "{trees} trees, {} batons handed over, {:.1?}",
        admitted.load(Ordering::SeqCst),
        began.elapsed()
    );
}
