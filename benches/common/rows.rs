//! Rows of a table under criterion: each an id, a team that runs it, and the median kept for what is printed at the
//! end.

#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::time::Duration;

use criterion::Criterion;

use super::stats::median;
use super::team::Team;

/// Short, so that all rows take minutes; the medians of quiet machines are steady to a few per cent.
const WARM_UP: Duration = Duration::from_millis(300);
const MEASUREMENT: Duration = Duration::from_secs(1);
const SAMPLES: usize = 24;

/// Nanoseconds of one iteration of one thread, by id.
pub(crate) type Medians = BTreeMap<String, f64>;

/// Criterion, and the medians of the rows that it has run.
pub(crate) struct Rows {
    criterion: Criterion,
    medians: Medians,
}

impl Rows {
    /// As the command line says.
    pub(crate) fn from_args() -> Self {
        let criterion = Criterion::default()
            .warm_up_time(WARM_UP)
            .measurement_time(MEASUREMENT)
            .sample_size(SAMPLES)
            .nresamples(10_000)
            .without_plots()
            .configure_from_args();
        Rows { criterion, medians: BTreeMap::new() }
    }

    /// A row measured by wall time. The team is made only if the row is run.
    pub(crate) fn wall(&mut self, id: &str, team: impl Fn() -> Team) {
        self.row(id, team, Team::wall);
    }

    /// A row whose threads time themselves.
    pub(crate) fn timed(&mut self, id: &str, team: impl Fn() -> Team) {
        self.row(id, team, Team::timed);
    }

    fn row(&mut self, id: &str, make: impl Fn() -> Team, lap: impl Fn(&Team, u64) -> Duration) {
        // Criterion calls the closure for each sample: the team stays from one to the next.
        let mut team = None;
        let mut samples = Vec::new();
        self.criterion.bench_function(id, |bencher| {
            let team = team.get_or_insert_with(&make);
            bencher.iter_custom(|iters| {
                let time = lap(team, iters);
                samples.push(time.as_secs_f64() * 1e9 / iters as f64);
                time
            });
        });
        // What came before the last samples was the warm-up. A row that was only tried has one sample.
        let warm_up = samples.len().saturating_sub(SAMPLES);
        if samples.len() > 1
            && let Some(median) = median(samples.split_off(warm_up))
        {
            self.medians.insert(id.to_owned(), median);
        }
    }

    /// Whether the row has been run, for what is printed beside it.
    pub(crate) fn ran(&self, id: &str) -> bool {
        self.medians.contains_key(id)
    }

    /// No further rows: what the last line of criterion is, and the medians.
    pub(crate) fn finish(self) -> Medians {
        self.criterion.final_summary();
        self.medians
    }
}
