//! Rows of a table under criterion: each an id, a team that runs it, and one figure kept for what is printed at the end.
//! That is the median of the samples. Under `--quick` there are two samples, and the figure is criterion's own estimate.

#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::env;
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
    /// Rows that there are, and rows that the filter has let through.
    offered: usize,
    run: usize,
}

/// What one sample took.
#[derive(Clone, Copy)]
struct Lap {
    iterations: f64,
    nanos: f64,
}

/// Whether the program is to show that it works rather than to measure: a goal says nothing then.
pub(crate) fn is_quick() -> bool {
    env::args().any(|arg| arg == "--quick")
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
        Rows { criterion, medians: BTreeMap::new(), offered: 0, run: 0 }
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
        let mut laps = Vec::new();
        self.criterion.bench_function(id, |bencher| {
            let team = team.get_or_insert_with(&make);
            bencher.iter_custom(|iterations| {
                let time = lap(team, iterations);
                laps.push(Lap { iterations: iterations as f64, nanos: time.as_secs_f64() * 1e9 });
                time
            });
        });
        self.offered += 1;
        self.run += usize::from(!laps.is_empty());
        let figure = if is_quick() { quick_figure(&laps) } else { figure(&laps, samples()) };
        if let Some(figure) = figure {
            self.medians.insert(id.to_owned(), figure);
        }
    }

    /// Whether the row has been run, for what is printed beside it.
    pub(crate) fn ran(&self, id: &str) -> bool {
        self.medians.contains_key(id)
    }

    /// No further rows: what the last line of criterion is, and the medians.
    pub(crate) fn finish(self) -> Medians {
        self.criterion.final_summary();
        let is_list = env::args().any(|arg| arg == "--list");
        if self.run == 0 && !is_list {
            eprintln!("no row matches the filter; `-- --list` prints the ids of all {} rows", self.offered);
        }
        self.medians
    }
}

/// Samples of a row: as many as the command line asks for.
fn samples() -> usize {
    let mut args = env::args().skip_while(|arg| !arg.starts_with("--sample-size"));
    let asked =
        args.next().and_then(|arg| arg.strip_prefix("--sample-size=").map(str::to_owned).or_else(|| args.next()));
    asked.and_then(|number| number.parse().ok()).unwrap_or(SAMPLES)
}

/// The median of the last laps. What came before them was the warm-up; a row that was only tried has one lap.
fn figure(laps: &[Lap], samples: usize) -> Option<f64> {
    let warm_up = laps.len().saturating_sub(samples);
    let sampled = laps[warm_up..].iter().map(|lap| lap.nanos / lap.iterations).collect();
    if laps.len() > 1 { median(sampled) } else { None }
}

/// The slope through the last two laps, as criterion estimates it when it is quick: the second is twice as long.
fn quick_figure(laps: &[Lap]) -> Option<f64> {
    let [.., one, two] = laps else { return None };
    let products = one.iterations * one.nanos + two.iterations * two.nanos;
    Some(products / (one.iterations * one.iterations + two.iterations * two.iterations))
}
