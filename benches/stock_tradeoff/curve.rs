//! The cost of a charge against the stranded credit, over the batch and the number of counters: the
//! figures, and a chart.

#![cfg(not(loom))]

use std::cell::Cell;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::{Bytes, PageCounter};
use memcg_bench_rows::target_folder;
use memcg_report::chart::{Axis, Chart, Series, Unit};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

use super::typical::ZIPF_EXPONENT;
use super::{PAGE, Setup};
use crate::common::clock::thread_time;
use crate::common::host::{Others, describe};
use crate::common::slices::{Series as Slices, Way, in_turn};
use crate::common::slots7::{Random, Slots7};
use crate::common::team::{Station, Team};
use crate::common::tree::fan;
use crate::common::{BATCH, Library, Policy};

/// Units that a stock takes in advance; none is no stock, which the others are compared with.
const BATCHES: [u64; 5] = [0, 4, 16, 64, 256];

/// Counters below the root.
pub(crate) const COUNTERS: [usize; 4] = [1, 8, 32, 1_000];

/// Tasks of one thread, which it does round and round.
const TASKS: usize = 8_192;

/// A task charges so often before it uncharges, and so many units each time.
const CHARGES_MAX: u32 = 8;
const SIZE_MAX: u64 = 16;

/// Slices of each way, and how long each is.
const TURNS: usize = 61;
const SLICE: Duration = Duration::from_millis(8);

/// The same to show that it works.
const SMALL: (usize, Duration) = (2, Duration::from_millis(1));

/// The picture: higher than others, for its lines lie close.
const SIZE: (u32, u32) = (860, 480);

/// The number of slices, and the length of each.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    turns: usize,
    slice: Duration,
}

impl Scale {
    pub(crate) fn new(is_small: bool) -> Scale {
        let (turns, slice) = if is_small { SMALL } else { (TURNS, SLICE) };
        Scale { turns, slice }
    }

    /// The time of all slices.
    pub(crate) fn takes(self) -> Duration {
        self.slice * (COUNTERS.len() * (BATCHES.len() + 1) * self.turns) as u32
    }
}

/// One way of charging so many counters.
struct Point {
    counters: usize,
    /// `None` for seven slots.
    batch: Option<u64>,
    /// Of a task's time without stock: the middle of the turns, and one standard deviation.
    cost: f64,
    std: f64,
    nanos: f64,
    /// Units: the most after any slice.
    stranded: u64,
}

/// Measure, print, draw. `step` is called after each number of counters.
pub(crate) fn run(setup: &Setup, scale: Scale, mut step: impl FnMut()) -> Result<(), String> {
    let others = Others::watch();
    let mut points = Vec::new();
    for counters in COUNTERS {
        points.extend(measure(setup, scale, counters));
        step();
    }
    println!(
        "Cost of a charge and its uncharge against what is stranded: {} threads, tasks of 1 to {CHARGES_MAX} charges of 1\n\
         to {SIZE_MAX} pages, then as many uncharges; counters by popularity (Zipf {ZIPF_EXPONENT}). Medians of {} slices\n\
         of {} ms, in turn; a thread's own time counts, without its wait for a processor. Stranded is the most that all\n\
         stocks held after any slice.\n",
        setup.threads,
        scale.turns,
        scale.slice.as_millis(),
    );
    println!("{}\n{others}\n", table(&points).trim_fmt());
    let path = target_folder().join("stock_tradeoff.svg");
    let written = fs::write(&path, chart(setup, scale, &points).svg(SIZE));
    written.map_err(|error| {
        format!(
            "{}: {error}; the folder must be one to write to",
            path.display()
        )
    })?;
    println!("The same as a picture: {}\n", path.display());
    Ok(())
}

/// All ways with so many counters, slice by slice in turn.
fn measure(setup: &Setup, scale: Scale, counters: usize) -> Vec<Point> {
    let stocks = BATCHES.map(|batch| (Some(batch), stock(setup, counters, batch)));
    let scenes: Vec<(Option<u64>, Scene)> = stocks
        .into_iter()
        .chain([(None, slots7(setup, counters))])
        .collect();
    let most: Vec<Cell<u64>> = scenes.iter().map(|_| Cell::new(0)).collect();
    let mut ways: Vec<Way<'_>> = Vec::new();
    for ((_, scene), most) in scenes.iter().zip(&most) {
        ways.push(Box::new(|tasks| {
            let took = scene.team.timed(tasks) / setup.threads as u32;
            most.set(most.get().max((scene.stranded)()));
            took
        }));
    }
    let series: Vec<Slices> = in_turn(scale.turns, scale.slice, &mut ways);
    drop(ways);
    let mut points = Vec::new();
    for (place, slices) in series.iter().enumerate() {
        let of_no_stock = slices.against(&series[0]);
        points.push(Point {
            counters,
            batch: scenes[place].0,
            cost: of_no_stock.ratio,
            std: of_no_stock.std,
            nanos: slices.median(),
            stranded: most[place].get(),
        });
    }
    points
}

/// Threads that charge in one way, and what that way strands at the moment.
struct Scene {
    team: Team,
    stranded: Box<dyn Fn() -> u64>,
}

fn stock(setup: &Setup, counters: usize, batch: u64) -> Scene {
    let (root, leaves) = fan(setup.config().batch(batch), counters);
    let leaves: Arc<[PageCounter]> = leaves.into();
    let team = Team::new(setup.threads, move |station| {
        serve(
            &station,
            leaves.len(),
            &mut Library { leaves: &leaves },
            |_| {},
        );
    });
    Scene {
        team,
        stranded: Box::new(move || root.stocked()),
    }
}

fn slots7(setup: &Setup, counters: usize) -> Scene {
    let (_root, leaves) = fan(setup.unstocked(), counters);
    let leaves: Arc<[PageCounter]> = leaves.into();
    let gauges: Arc<[AtomicU64]> = (0..setup.threads).map(|_| AtomicU64::new(0)).collect();
    let told = Arc::clone(&gauges);
    let team = Team::new(setup.threads, move |station| {
        let index = station.index;
        let gauges = &gauges;
        let tell =
            |slots: &Slots7<'_, Random>| gauges[index].store(slots.stocked(), Ordering::Relaxed);
        serve(
            &station,
            leaves.len(),
            &mut Slots7::<Random>::new(&leaves),
            tell,
        );
    });
    Scene {
        team,
        stranded: Box::new(move || told.iter().map(|gauge| gauge.load(Ordering::Relaxed)).sum()),
    }
}

#[derive(Clone, Copy)]
struct Task {
    leaf: u32,
    charges: u32,
    size: u64,
}

/// The same tasks in the same order for every way; each thread has its own.
fn tasks(thread: usize, counters: usize) -> Vec<Task> {
    let mut random = SmallRng::seed_from_u64(thread as u64);
    let popularity = Zipf::new(counters as f64, ZIPF_EXPONENT).expect("at least one counter");
    let mut task = || Task {
        leaf: popularity.sample(&mut random) as u32 - 1,
        charges: random.random_range(1..=CHARGES_MAX),
        size: random.random_range(1..=SIZE_MAX),
    };
    (0..TASKS).map(|_| task()).collect()
}

/// One iteration is one task. `tell` hands out what the thread itself knows, once a slice.
fn serve<P: Policy>(station: &Station, counters: usize, policy: &mut P, tell: impl Fn(&P)) {
    let tasks = tasks(station.index, counters);
    let mut next = 0;
    let mut run = |times: u64, policy: &mut P| {
        for _ in 0..times {
            let task = tasks[next];
            next = if next + 1 == TASKS { 0 } else { next + 1 };
            for _ in 0..task.charges {
                policy
                    .charge(task.leaf as usize, task.size)
                    .expect("below the limit");
            }
            for _ in 0..task.charges {
                policy.uncharge(task.leaf as usize, task.size);
            }
        }
    };
    run(TASKS as u64, policy);
    station.serve_timed(|times| {
        let start = Instant::now();
        let before = thread_time();
        run(times, policy);
        let own = thread_time()
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before));
        tell(policy);
        own.unwrap_or_else(|| start.elapsed())
    });
}

fn name(batch: Option<u64>) -> String {
    match batch {
        None => format!("seven slots of {}", Bytes(BATCH * PAGE)),
        Some(0) => "no stock".to_owned(),
        Some(batch) => Bytes(batch * PAGE).to_string(),
    }
}

fn table(points: &[Point]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "counters",
        "batch",
        "stranded",
        "a task, ns",
        "of no stock",
    ]);
    for point in points {
        table.add_row([
            point.counters.to_string(),
            name(point.batch),
            Bytes(point.stranded * PAGE).to_string(),
            format!("{:.0}", point.nanos),
            format!("{:.1} % +-{:.1}", point.cost * 100.0, point.std * 100.0),
        ]);
    }
    table
}

/// A line for each number of counters, from no stock to the largest batch; seven slots beside.
fn chart(setup: &Setup, scale: Scale, points: &[Point]) -> Chart {
    let note = format!(
        "{} threads, medians of {} turns on {}. Each line goes from no stock over batches of {} to {}; seven slots stand beside, labelled with their counters.",
        setup.threads,
        scale.turns,
        describe(),
        name(BATCHES[1..].first().copied()),
        name(BATCHES.last().copied()),
    );
    let mut chart = Chart::new("What a stock strands, and what a charge costs with it")
        .note(note)
        .x(
            Axis::new("cost of a charge and its uncharge, of the same without stock")
                .unit(Unit::Percent)
                .log(),
        )
        .y(Axis::new("bytes stranded").unit(Unit::Bytes).log());
    for counters in COUNTERS {
        let name_of = if counters == 1 {
            "1 counter".to_owned()
        } else {
            format!("{counters} counters")
        };
        let mut line = Series::line(name_of);
        for point in points.iter().filter(|point| point.counters == counters) {
            if point.batch.is_some() {
                line = line.at(point.cost * 100.0, (point.stranded * PAGE) as f64);
                // The batches of the lines between are the same, in the same order.
                if [COUNTERS[0], COUNTERS[COUNTERS.len() - 1]].contains(&counters) {
                    line = line.labelled(name(point.batch));
                }
            }
        }
        chart = chart.with(line);
    }
    let mut slots = Series::points(name(None));
    for point in points.iter().filter(|point| point.batch.is_none()) {
        slots = slots
            .at(point.cost * 100.0, (point.stranded * PAGE) as f64)
            .labelled(point.counters.to_string());
    }
    chart.with(slots)
}
