//! Rows of a table under criterion: each an id, a team that runs it, and one figure kept for what
//! is printed at the end. That is the median of the samples. Under `--quick` there are two samples,
//! and the figure is criterion's own estimate.

#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{AxisScale, BenchmarkGroup, BenchmarkId, Criterion, PlotConfiguration};
use memcg_bench_rows::{
    Bench, Choice, Chosen, Measured, Medians, Progress, RowOptions, RowProgram, parse_rows,
    target_folder,
};

use super::stats::median;
use super::team::Team;

/// Rows as a bench defines them. It does so twice: first it names them all, then it runs those that
/// are asked for.
pub(crate) enum Rows {
    Named(Vec<Named>),
    Run(Box<Run>),
}

/// A row before it runs.
pub(crate) struct Named {
    id: String,
    takes: Duration,
}

/// The rows that are asked for, and the medians of those that have been run.
pub(crate) struct Run {
    bench: &'static str,
    options: RowOptions,
    chosen: Chosen,
    progress: Progress,
    /// By the first part of the id. A group stays open until all rows have been run: then criterion
    /// draws its summary.
    groups: BTreeMap<String, BenchmarkGroup<'static, WallTime>>,
    medians: Medians,
}

/// The time of one sample.
#[derive(Clone, Copy)]
struct Lap {
    iterations: f64,
    nanos: f64,
}

/// Run the rows of a bench, as the command line says.
pub(crate) fn run(bench: &Bench, define: impl FnMut(&mut Rows)) -> Measured {
    run_with(bench, &parse_rows::<RowProgram>(bench).rows, define)
}

/// The same with arguments that have been read.
pub(crate) fn run_with(
    bench: &Bench,
    options: &RowOptions,
    mut define: impl FnMut(&mut Rows),
) -> Measured {
    let named = named(options, &mut define);
    let chosen = options.choice.choose(bench.name, ids(&named));
    let takes = named
        .iter()
        .filter(|row| chosen.wants(&row.id))
        .map(|row| row.takes)
        .sum();
    let steps = chosen.ids().len();
    let what = if steps == 1 {
        "1 row".to_owned()
    } else {
        format!("{steps} rows")
    };
    let progress = Progress::start(bench.name, &what, steps, takes);
    let run = Run {
        bench: bench.name,
        options: options.clone(),
        chosen,
        progress,
        groups: BTreeMap::new(),
        medians: Medians::new(),
    };
    let mut rows = Rows::Run(Box::new(run));
    define(&mut rows);
    let Rows::Run(run) = rows else {
        unreachable!("a bench has defined its rows, and they stay what they are")
    };
    run.finish()
}

/// The ids of all rows of a bench.
pub(crate) fn all_ids(options: &RowOptions, mut define: impl FnMut(&mut Rows)) -> Vec<String> {
    ids(&named(options, &mut define))
}

fn named(options: &RowOptions, define: &mut impl FnMut(&mut Rows)) -> Vec<Named> {
    let mut rows = Rows::Named(Vec::new());
    define(&mut rows);
    let Rows::Named(mut named) = rows else {
        unreachable!("a bench has defined its rows, and they stay what they are")
    };
    for row in &mut named {
        row.takes = if row.takes.is_zero() {
            options.row_takes()
        } else {
            row.takes
        };
    }
    named
}

fn ids(named: &[Named]) -> Vec<String> {
    named.iter().map(|row| row.id.clone()).collect()
}

impl Rows {
    /// A row measured by wall time. The team is made only if the row is run.
    pub(crate) fn wall(&mut self, id: &str, team: impl Fn() -> Team) {
        self.row(id, team, Team::wall);
    }

    /// A row whose threads time themselves.
    pub(crate) fn timed(&mut self, id: &str, team: impl Fn() -> Team) {
        self.row(id, team, Team::timed);
    }

    fn row(&mut self, id: &str, make: impl Fn() -> Team, lap: impl Fn(&Team, u64) -> Duration) {
        match self {
            Rows::Named(named) => named.push(Named {
                id: id.to_owned(),
                takes: Duration::ZERO,
            }),
            Rows::Run(run) => run.row(id, make, lap),
        }
    }

    /// A row that measures and prints by itself, and how long that takes.
    pub(crate) fn table(&mut self, id: &str, takes: Duration, print: impl FnOnce(&Choice)) {
        match self {
            Rows::Named(named) => named.push(Named {
                id: id.to_owned(),
                takes,
            }),
            Rows::Run(run) => {
                if run.chosen.wants(id) {
                    run.progress.next();
                    print(&run.options.choice);
                    run.progress.step();
                }
            }
        }
    }

    /// True if the row has been run, for the figures that are printed beside it.
    pub(crate) fn ran(&self, id: &str) -> bool {
        match self {
            Rows::Named(_) => false,
            Rows::Run(run) => run.medians.contains_key(id),
        }
    }
}

impl Run {
    fn row(&mut self, id: &str, make: impl Fn() -> Team, lap: impl Fn(&Team, u64) -> Duration) {
        if !self.chosen.wants(id) {
            return;
        }
        self.progress.next();
        // Criterion calls the closure for each sample: the team stays from one to the next.
        let mut team = None;
        let mut laps = Vec::new();
        let (group, within) = split(id);
        let bench = self.bench;
        let options = &self.options;
        let group = self
            .groups
            .entry(group.to_owned())
            .or_insert_with(|| open(bench, group, options));
        group.bench_function(within, |bencher| {
            let team = team.get_or_insert_with(&make);
            bencher.iter_custom(|iterations| {
                let time = lap(team, iterations);
                laps.push(Lap {
                    iterations: iterations as f64,
                    nanos: time.as_secs_f64() * 1e9,
                });
                time
            });
        });
        let figure = if self.options.choice.is_small() {
            quick_figure(&laps)
        } else {
            figure(&laps, self.options.samples())
        };
        if let Some(figure) = figure {
            self.medians.insert(id.to_owned(), figure);
        }
        self.progress.step();
    }

    /// No further rows: what the last line of criterion is, and the medians.
    fn finish(self) -> Measured {
        let has_rows = !self.groups.is_empty();
        // Summaries of groups first, then the page that links to them.
        drop(self.groups);
        if has_rows {
            let criterion = criterion(self.bench, &self.options);
            criterion.final_summary();
            if cfg!(feature = "plots") && !self.options.choice.is_trial() {
                eprintln!(
                    "plots: {}",
                    output(self.bench).join("report/index.html").display()
                );
            }
        }
        Measured {
            medians: self.medians,
            is_small: self.options.choice.is_small(),
        }
    }
}

/// As the command line says.
fn criterion(bench: &str, options: &RowOptions) -> Criterion {
    let criterion = Criterion::default()
        .warm_up_time(options.warm_up())
        .measurement_time(options.measurement())
        .sample_size(options.samples())
        .nresamples(10_000);
    #[cfg(feature = "plots")]
    let criterion = criterion.plotting_backend(criterion::PlottingBackend::Plotters);
    #[cfg(not(feature = "plots"))]
    let criterion = criterion.without_plots();
    criterion
        .output_directory(&output(bench))
        .configure_from_args()
}

/// The folder where criterion writes the figures and the report of a bench: each has its own, for
/// two may have groups of one name.
fn output(bench: &str) -> PathBuf {
    env::var_os("CRITERION_HOME")
        .map_or_else(|| target_folder().join("criterion"), PathBuf::from)
        .join(bench)
}

/// A group borrows its criterion for as long as it is open, which is until the program ends: there
/// are a few.
fn open(bench: &str, group: &str, options: &RowOptions) -> BenchmarkGroup<'static, WallTime> {
    let criterion: &'static mut Criterion = Box::leak(Box::new(criterion(bench, options)));
    let mut group = criterion.benchmark_group(group);
    group.plot_config(PlotConfiguration::default().summary_scale(AxisScale::Logarithmic));
    group
}

/// The group of a row, and its place there: what the last part of the id says, such as the number
/// of threads, is what rows of one group are compared by.
fn split(id: &str) -> (&str, BenchmarkId) {
    let (group, within) = id.split_once('/').unwrap_or((id, "row"));
    match within.rsplit_once('/') {
        Some((function, parameter)) => (group, BenchmarkId::new(function, parameter)),
        None => (group, BenchmarkId::from_parameter(within)),
    }
}

/// The median of the last laps. What came before them was the warm-up; a row that was only tried
/// has one lap.
fn figure(laps: &[Lap], samples: usize) -> Option<f64> {
    let warm_up = laps.len().saturating_sub(samples);
    let sampled = laps[warm_up..]
        .iter()
        .map(|lap| lap.nanos / lap.iterations)
        .collect();
    if laps.len() > 1 {
        median(sampled)
    } else {
        None
    }
}

/// The slope through the last two laps, as criterion estimates it when it is quick: the second is
/// twice as long.
fn quick_figure(laps: &[Lap]) -> Option<f64> {
    let [.., one, two] = laps else { return None };
    let products = one.iterations * one.nanos + two.iterations * two.nanos;
    Some(products / (one.iterations * one.iterations + two.iterations * two.iterations))
}
