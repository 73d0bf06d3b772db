//! Scenarios of shuttle run as random schedules in bursts, schedules with priorities, or one that a
//! failure has printed. The file imports nothing of the crate, because the models of `memcg-kmem`
//! share it.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use shuttle::scheduler::{
    DataSource as _, PctScheduler, RandomDataSource, ReplayScheduler, Schedule, Scheduler, Task,
    TaskId,
};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// As unoptimised code needs it.
const STACK: usize = 1 << 19;

/// A run that takes so many steps spins for ever.
const STEPS: usize = 300_000;

/// Points where a run with priorities preempts.
const DEPTH: usize = 4;

/// The same in each run, so that what passes once passes again; `SHUTTLE_SEED` sets another one.
const SEED: u64 = 7;

/// Runs so many random schedules of `scenario`, and as many with priorities.
pub(super) fn check(schedules: usize, scenario: fn()) {
    if let Ok(file) = std::env::var("SHUTTLE_REPLAY") {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        return run(ReplayScheduler::new_from_encoded(text.trim()), scenario);
    }
    let number =
        |name, default| std::env::var(name).map_or(default, |set| set.parse().expect("a number"));
    let seed = number("SHUTTLE_SEED", SEED);
    // `SHUTTLE_RUNS=0` is one schedule of each kind: enough to see whether a scenario passes at all.
    let schedules = (schedules * number("SHUTTLE_RUNS", 1) as usize).max(1);
    run(Bursts::new(seed, schedules), scenario);
    run(
        PctScheduler::new_from_seed(seed, DEPTH, schedules),
        scenario,
    );
    println!("{} schedules", 2 * schedules);
}

/// Runs one schedule of `scenario`: a random one, or one with priorities, as the seed is.
#[allow(
    dead_code,
    reason = "of those that share the file, the simulator alone has a scenario for each seed"
)]
pub(super) fn one(seed: u64, scenario: impl Fn() + Send + Sync + 'static) {
    let mut config = config();
    // The seed tells it.
    config.failure_persistence = FailurePersistence::None;
    // A script may be of many charges that are delayed, whose threads look again and again.
    config.max_steps = MaxSteps::FailAfter(100 * STEPS);
    if seed.is_multiple_of(2) {
        Runner::new(Bursts::new(seed, 1), config).run(scenario);
    } else {
        Runner::new(PctScheduler::new_from_seed(seed, DEPTH, 1), config).run(scenario);
    }
}

fn run(scheduler: impl Scheduler + 'static, scenario: fn()) {
    Runner::new(scheduler, config()).run(scenario);
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.silence_warnings = true;
    config
}

/// Threads that begin together.
pub(super) struct Threads<T = ()>(Vec<Box<dyn FnOnce() -> T + Send>>);

impl<T: Send + 'static> Threads<T> {
    pub(super) fn new() -> Self {
        Threads(Vec::new())
    }

    /// One more thread, which does `work` with what it is given.
    pub(super) fn add<G: Send + 'static>(
        &mut self,
        given: G,
        work: impl FnOnce(G) -> T + Send + 'static,
    ) {
        self.0.push(Box::new(move || work(given)));
    }

    /// Runs all threads and waits for all. What they return is in the order in which they were
    /// added.
    pub(super) fn join(self) -> Vec<T> {
        let threads: Vec<_> = self.0.into_iter().map(shuttle::thread::spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    }
}

/// Mean lengths of bursts are powers of two below two to this.
const LENGTHS: u32 = 8;

/// A random scheduler whose threads run in bursts.
///
/// Shuttle's own random scheduler chooses anew at each step, so a thread hardly ever gets through a
/// whole operation while another one stands still. Most races need just that, once or twice. Here a
/// run has a mean length of bursts, from one step to a hundred or so, and a pause point or a yield
/// ends a burst.
struct Bursts {
    left: usize,
    rng: SmallRng,
    /// A burst ends at a step with one in so many.
    mean: u32,
    data: RandomDataSource,
}

impl Bursts {
    fn new(seed: u64, schedules: usize) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        Bursts {
            left: schedules,
            rng,
            mean: 1,
            data: RandomDataSource::initialize(seed),
        }
    }
}

impl Scheduler for Bursts {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.left = self.left.checked_sub(1)?;
        self.mean = 1 << self.rng.random_range(0..LENGTHS);
        Some(Schedule::new(self.data.reinitialize()))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        yields: bool,
    ) -> Option<TaskId> {
        let goes_on = current.filter(|current| runnable.iter().any(|task| task.id() == *current));
        if !yields && !self.rng.random_ratio(1, self.mean) && goes_on.is_some() {
            return goes_on;
        }
        Some(runnable[self.rng.random_range(0..runnable.len())].id())
    }

    fn next_u64(&mut self) -> u64 {
        self.data.next_u64()
    }
}
