//! A random scheduler whose threads run in bursts.
//!
//! Shuttle's own random scheduler chooses anew at each step, so a thread hardly ever gets through a whole operation
//! while another one stands still. Most races need just that, once or twice. Here a run has a mean length of bursts,
//! from one step to a hundred or so, and a pause point or a yield ends a burst.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use shuttle::scheduler::{DataSource as _, RandomDataSource, Schedule, Scheduler, Task, TaskId};

/// Mean lengths of bursts are powers of two below two to this.
const LENGTHS: u32 = 8;

pub(super) struct Bursts {
    left: usize,
    rng: SmallRng,
    /// A burst ends at a step with one in so many.
    mean: u32,
    data: RandomDataSource,
}

impl Bursts {
    pub(super) fn new(seed: u64, schedules: usize) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        Bursts { left: schedules, rng, mean: 1, data: RandomDataSource::initialize(seed) }
    }
}

impl Scheduler for Bursts {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.left = self.left.checked_sub(1)?;
        self.mean = 1 << self.rng.random_range(0..LENGTHS);
        Some(Schedule::new(self.data.reinitialize()))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
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
