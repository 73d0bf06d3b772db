//! The main job: all tenants under one policy, watched while they are served, and a report of it.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use memcg::figures::Stats;
use memcg::{Bytes, Freshness, Group, StatKey};
use memcg_report::chart::{Axis, Chart, Unit, WIDE};
use memcg_report::table::{Column, Table};
use memcg_report::terminal::{self, InPlace};

use crate::args::Args;
use crate::report::Report;
use crate::scene::Scene;
use crate::setup::Setup;
use crate::work::Work;
use crate::{Failure, memory, print};

/// Between two looks at all limits: some thousands in a run, for a hundredth of a processor.
const PAUSE: Duration = Duration::from_micros(500);

/// When the first live table is due. On a terminal it is drawn anew in its place; elsewhere the
/// next ones follow after twice as long each time: few, however long it runs.
const FIRST_TABLE: Duration = Duration::from_millis(1_500);
const REDRAWN: Duration = Duration::from_millis(250);

/// Of a live figure, the grains that it may miss: so many that most reads gather nothing.
const MAY_MISS: u64 = 1 << 12;

/// Tenants in a live table, and those with a layer of their own in the chart.
const SHOWN: usize = 5;
const LAYERS: usize = 7;

/// Between two samples of the chart.
const SAMPLED: Duration = Duration::from_millis(40);

/// The sights of another thread while the workers charged.
#[derive(Default)]
pub(crate) struct Seen {
    /// Looks at all groups.
    pub(crate) looks: u64,
    /// The most that usage, less what was forced, was above max anywhere.
    pub(crate) excess: u64,
    /// When, and what each tenant had charged then.
    samples: Vec<(Duration, Vec<u64>)>,
}

/// Sets up, serves, reports; returns what does not add up.
pub(crate) fn run(args: &Args, scene: &Scene) -> Result<Vec<String>, Failure> {
    if let Some(path) = &args.svg {
        writable(path)?;
    }
    let mut setup = Setup::new(args, scene, args.policy, args.seed)?;
    let threads = args.threads().min(setup.service.tenants.len());
    let time = args.time();
    if args.is_live() {
        let end = match (args.requests, time) {
            (Some(requests), _) => format!("{} requests", HumanCount(requests)),
            (None, time) => format!("{} s", time.unwrap_or_default().as_secs_f64()),
        };
        let tenants = scene.candidates.len();
        let budget = Bytes(scene.budget);
        print(&format!(
            "{tenants} tenants under {budget}: a warm-up, then {end}."
        ))?;
    }
    let rss_before = memory::resident();
    let (seconds, seen) = {
        #[cfg(feature = "serve")]
        let _serving = args
            .serve
            .as_ref()
            .map(|path| serve(&setup, path))
            .transpose()?;
        let work = Work {
            service: &setup.service,
            threads,
            time,
            requests: args.requests,
            seed: args.seed,
            only: None,
            arrivals: &scene.arrivals,
            taken: AtomicU64::new(0),
            started: OnceLock::new(),
        };
        watched(args, &setup, &work)
    };
    let chart = args
        .svg
        .as_ref()
        .map(|path| (path, usage(&seen, &setup, scene.budget)));
    let report = Report::gather(args, &mut setup, seconds, &seen, rss_before);
    print(&if args.json {
        report.json()
    } else {
        report.text(args.all)
    })?;
    if let Some((path, chart)) = chart {
        write(path, &chart.svg(WIDE))?;
    }
    Ok(report.faults)
}

/// Writes a file that an argument names.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|fault| Failure::Write {
        path: path.to_owned(),
        fault,
    })
}

/// Before a run, that what it draws can be written: a run takes long.
pub(crate) fn writable(path: &Path) -> Result<(), Failure> {
    let opened: io::Result<_> = OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|fault| Failure::Write {
        path: path.to_owned(),
        fault,
    })
}

/// Answers questions about the groups until the result is dropped.
#[cfg(feature = "serve")]
fn serve(setup: &Setup, path: &Path) -> Result<memcg_observe::EndpointGuard, Failure> {
    let endpoint = memcg_observe::Endpoint::new(&setup.runtime).allow_set(true);
    endpoint.serve(path).map_err(|fault| Failure::Serve {
        path: path.to_path_buf(),
        fault,
    })
}

/// Warms up and serves, while another thread looks at the limits, shows tables and moves the bar.
fn watched(args: &Args, setup: &Setup, work: &Work<'_>) -> (Duration, Seen) {
    let length = args
        .requests
        .unwrap_or_else(|| args.time().map_or(0, |time| time.as_millis() as u64));
    let bar = progress(args, length, "{percent} %");
    let end = AtomicBool::new(false);
    let mut drawn = InPlace::default();
    let (seconds, seen) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(args, setup, work, &end, &bar, &mut drawn));
        // Ends the other thread in a panic, too.
        let running = End(&end);
        work.warm_up();
        let seconds = work.serve();
        drop(running);
        (
            seconds,
            watcher
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    });
    bar.finish_and_clear();
    // The report takes the place of the last table.
    let _ = drawn.clear();
    (seconds, seen)
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Looks at the groups until told to end, once at least.
fn watch(
    args: &Args,
    setup: &Setup,
    work: &Work<'_>,
    end: &AtomicBool,
    bar: &ProgressBar,
    drawn: &mut InPlace,
) -> Seen {
    let tenants = &setup.service.tenants;
    let groups: Vec<Group> = [setup.runtime.root()]
        .into_iter()
        .chain(tenants.iter().map(|tenant| tenant.group.clone()))
        .collect();
    let began = Instant::now();
    let mut seen = Seen::default();
    let mut table_at = FIRST_TABLE;
    loop {
        for group in &groups {
            // Read last: a max that a client of the socket lowers meanwhile is not passed by what
            // was read before.
            let usage = group.usage().saturating_sub(group.forced());
            seen.excess = seen.excess.max(usage.saturating_sub(group.max()));
        }
        seen.looks += 1;
        let at = began.elapsed();
        if args.svg.is_some()
            && seen
                .samples
                .last()
                .is_none_or(|(last, _)| at - *last >= SAMPLED)
        {
            seen.samples.push((
                at,
                tenants.iter().map(|tenant| tenant.group.live()).collect(),
            ));
        }
        let serving = work.started.get().map(Instant::elapsed).unwrap_or_default();
        if args.is_live() && serving >= table_at {
            table_at = if terminal::is_terminal() {
                serving + REDRAWN
            } else {
                2 * table_at
            };
            // A program that cannot print it says so when it comes to the report.
            bar.suspend(|| drop(drawn.draw(&live(setup, serving))));
        }
        let taken = work.taken.load(Ordering::Relaxed);
        let position = if args.requests.is_some() {
            taken
        } else {
            serving.as_millis() as u64
        };
        bar.set_position(position);
        if end.load(Ordering::Relaxed) {
            return seen;
        }
        thread::sleep(PAUSE);
    }
}

/// A bar on the terminal; `indicatif` itself hides it where stderr is none.
pub(crate) fn progress(args: &Args, length: u64, position: &str) -> ProgressBar {
    let bar = if args.quiet {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(length)
    };
    match ProgressStyle::with_template(&format!("{{bar:40}} {position}, {{eta}} left")) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The tenants that hold most, then the service, each figure with the error that it may have.
fn live(setup: &Setup, elapsed: Duration) -> String {
    let Setup {
        runtime,
        service,
        items,
        ..
    } = setup;
    let read = |group: &Group| group.read(Freshness::Within(MAY_MISS));
    let mut rows: Vec<(&str, Stats)> = service
        .tenants
        .iter()
        .map(|tenant| (&*tenant.name, read(&tenant.group)))
        .collect();
    rows.sort_by_key(|(_, stats)| std::cmp::Reverse(stats.get(StatKey::FILE)));
    rows.truncate(SHOWN);
    rows.push(("the service", read(&runtime.root())));
    let mut table = Table::new([
        Column::words("most cached"),
        Column::figures("bytes"),
        Column::figures("hits").leaves(2),
        Column::figures("hit ratio"),
        Column::figures("evictions").leaves(1),
        Column::figures("off by at most").leaves(3),
    ]);
    for (name, stats) in rows {
        // A live figure may miss the rise and have the fall: less than nothing is nothing.
        let figure = |stat| stats.get(stat).max(0).unsigned_abs();
        let gets = figure(items.gets).max(1);
        let hits = figure(items.hits);
        let events = HumanCount(stats.max_error_of(items.hits));
        table.add([
            name.to_string(),
            Bytes(figure(StatKey::FILE)).to_string(),
            HumanCount(hits).to_string(),
            // The hits may be fresher than the gets.
            format!("{:.4}", (hits as f64 / gets as f64).min(1.0)),
            HumanCount(figure(items.evictions)).to_string(),
            format!("{events}, {}", Bytes(stats.max_error_of(StatKey::FILE))),
        ]);
    }
    format!(
        "Live, after {:.1} s:\n{}\n",
        elapsed.as_secs_f64(),
        table.text(terminal::width())
    )
}

/// A chart of what the tenants held, one above the other, under the limit.
fn usage(seen: &Seen, setup: &Setup, budget: u64) -> Chart {
    let xs: Vec<f64> = seen
        .samples
        .iter()
        .map(|(at, _)| at.as_secs_f64())
        .collect();
    let tenants = &setup.service.tenants;
    let mut order: Vec<usize> = (0..tenants.len()).collect();
    let all = |&tenant: &usize| {
        seen.samples
            .iter()
            .map(|(_, live)| live[tenant])
            .sum::<u64>()
    };
    order.sort_by_key(|tenant| std::cmp::Reverse(all(tenant)));
    let (own, others) = order.split_at(LAYERS.min(order.len()));
    let layer = |tenants: &[usize]| -> Vec<f64> {
        let sum = |live: &[u64]| tenants.iter().map(|&tenant| live[tenant]).sum::<u64>() as f64;
        seen.samples.iter().map(|(_, live)| sum(live)).collect()
    };
    let named = own
        .iter()
        .map(|&tenant| (tenants[tenant].name.clone(), layer(&[tenant])));
    let others = [(format!("{} others", others.len()), layer(others))];
    Chart::new(format!(
        "{} tenants under one limit of {}",
        order.len(),
        Bytes(budget)
    ))
    .note("bytes charged over time, stacked by tenant; the caches are filled first")
    .x(Axis::new("").unit(Unit::Seconds))
    .y(Axis::new("").unit(Unit::Bytes))
    .stack(&xs, named.chain(others))
    .rule(
        format!("max of the service: {}", Bytes(budget)),
        budget as f64,
    )
}
