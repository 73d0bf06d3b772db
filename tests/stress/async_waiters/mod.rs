//! Thousands of tasks that wait for room, on two threads: each finishes, and none is woken for
//! nothing.
//!
//! Ten tenants of ten queries each. A query holds less than its tasks want, a tenant less than its
//! queries do, so that tasks wait at two levels.

mod leave;
mod world;

use memcg::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memcg::Charge;
use world::{TASKS, World};

use crate::support::executor::Executor;
use crate::support::turns::turn;
use crate::support::watchdog::Watchdog;

/// Threads that poll.
const WORKERS: usize = 2;

/// For a machine that is busy with other things: so long nothing at all has to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most wakes that the tests allow: a task that waits at a query and then at the tenant could
/// be woken at each.
const WAKES_PER_ADMISSION_MAX: f64 = 1.5;

/// Its threads return, by a panic too.
struct End<'a>(&'a Executor);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Spawns by `spawn`, runs all tasks on two threads, calls `begin` when each of them waits, and
/// returns when all have finished.
fn run(
    what: &'static str,
    world: &World,
    spawn: impl FnOnce(&Arc<Executor>),
    begin: impl FnOnce(),
) -> Arc<Executor> {
    let executor = Arc::new(Executor::default());
    let watched = Arc::clone(&executor);
    let tree = world.runtime.root();
    let describe = Arc::new(move || {
        let waiting: Vec<String> = std::iter::once(tree.clone())
            .chain(tree.inspect().descendants())
            .filter(|group| group.waiting_count() > 0)
            .map(|group| {
                format!(
                    "{}: {} wait, usage {} of {}",
                    group.path(),
                    group.waiting_count(),
                    group.usage(),
                    group.max()
                )
            })
            .collect();
        waiting.join("\n")
    });
    let progress = move || watched.polls() + watched.finished() as u64;
    let _watchdog = Watchdog::start(what, PATIENCE, progress, describe);
    spawn(&executor);
    std::thread::scope(|scope| {
        let _end = End(&executor);
        for _ in 0..WORKERS {
            scope.spawn(|| executor.work());
        }
        while !executor.is_idle() {
            std::thread::sleep(Duration::from_millis(1));
        }
        begin();
        while executor.finished() < executor.spawned() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    executor
}

/// A task's whole life: it waits for its bytes, keeps them while others run, gives them back; so
/// many times.
async fn hold_in_turn(executor: Arc<Executor>, world: Arc<World>, number: usize, times: usize) {
    for time in 0..times {
        let charge: Charge = world
            .group_of(number)
            .charge_async(Bytes(world.bytes_of(number + time)))
            .await
            .expect("it fits");
        for _ in 0..number % 3 {
            executor.pass_on().await;
        }
        world.admitted(&charge);
        drop(charge);
    }
}

#[test]
fn all_wait_and_all_finish() {
    let _turn = turn(module_path!());
    let world = Arc::new(World::new());
    let plugs = world.plug();
    let began = Instant::now();
    let spawn = |executor: &Arc<Executor>| {
        for number in 0..TASKS {
            executor.spawn(hold_in_turn(
                Arc::clone(executor),
                Arc::clone(&world),
                number,
                1,
            ));
        }
    };
    let executor = run("all wait", &world, spawn, || {
        assert_eq!(
            world.waiting_count(),
            TASKS,
            "every task waits: there is no room"
        );
        let (tenants, queries) = world.waiting_by_level();
        assert!(
            tenants > TASKS / 4 && queries > TASKS / 4,
            "{tenants} at tenants, {queries} at queries"
        );
        drop(plugs);
    });
    world.check_end(TASKS);
    let wakes = executor.wakes() as f64 / TASKS as f64;
    println!(
        "{TASKS} tasks, all waited: {wakes:.3} wake-ups an admission, {:.1?}",
        began.elapsed()
    );
    assert!(
        wakes >= 1.0,
        "{wakes} wake-ups an admission: a waiter was not woken?"
    );
    assert!(
        wakes <= WAKES_PER_ADMISSION_MAX,
        "{wakes} wake-ups an admission"
    );
}

#[test]
fn tasks_that_come_back_all_finish() {
    let _turn = turn(module_path!());
    const TIMES: usize = 3;
    let world = Arc::new(World::new());
    let began = Instant::now();
    let spawn = |executor: &Arc<Executor>| {
        for number in 0..TASKS {
            executor.spawn(hold_in_turn(
                Arc::clone(executor),
                Arc::clone(&world),
                number,
                TIMES,
            ));
        }
    };
    let executor = run("come back", &world, spawn, || ());
    world.check_end(TASKS * TIMES);
    let wakes = executor.wakes() as f64 / (TASKS * TIMES) as f64;
    println!(
        "{TASKS} tasks, {TIMES} times each: {wakes:.3} wake-ups an admission, {:.1?}",
        began.elapsed()
    );
    assert!(
        wakes <= WAKES_PER_ADMISSION_MAX,
        "{wakes} wake-ups an admission"
    );
}
