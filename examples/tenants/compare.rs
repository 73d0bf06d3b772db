//! The comparison: each tenant alone, then all of them under each policy beside those that flood.
//!
//! Every run serves the same arrivals, and each tenant the same requests: alone, those of the
//! others are left out. The caches are filled first, the first quarter of the requests is served,
//! and what comes after it counts.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use indicatif::ProgressBar;
use memcg::Bytes;
use memcg_report::chart::{Axis, Chart, Series, Unit, WIDE};
use memcg_report::table::{Column, Table};
use memcg_report::terminal::{self, State};
use serde::Serialize;

use crate::args::{Args, Policy};
use crate::job::{progress, writable, write};
use crate::report::{close, percent};
use crate::scene::Scene;
use crate::setup::Setup;
use crate::work::{SLICE, Work};
use crate::{Failure, print};

/// Each with a seed of its own.
const REPEATS: u64 = 3;

/// Of the requests, those that only warm up.
const WARM_UP_PART: u64 = 4;

/// Bytes that a tenant alone is offered to see how much of the budget it gets, as a multiple of
/// that.
const OFFERED: u64 = 2;

/// Points of hit ratio that a tenant may lose to others under memcg; that tenants of one shared LRU
/// lose at least, for the load to show anything; and the percentage of the budget that a tenant
/// which is alone can use.
const LOST_MAX: f64 = 2.0;
const SHARED_LOST_MIN: f64 = 10.0;
const USED_MIN: f64 = 95.0;

/// The whole comparison.
#[derive(Debug, Serialize)]
struct Comparison {
    budget_bytes: u64,
    requests: u64,
    noisy: u16,
    tenants: Vec<String>,
    /// Alone, then under each policy.
    rows: Vec<Row>,
    goals: Vec<Goal>,
    /// One line for each count that does not add up.
    faults: Vec<String>,
}

/// One line of the table: ratios in percent, differences in points; a figure for each repeat, the
/// least first.
#[derive(Debug, Default, Serialize)]
struct Row {
    how: &'static str,
    hit_ratio: Vec<f64>,
    lost: Vec<f64>,
    lost_by_worst: Vec<f64>,
    used_alone: Vec<f64>,
}

/// A bound to be reached, by the repeat that is furthest from it.
#[derive(Debug, Serialize)]
struct Goal {
    goal: String,
    found: f64,
    reached: bool,
}

/// Look-ups of a tenant that count.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    gets: u64,
    hits: u64,
    /// Of all requests, in their order.
    digest: u64,
}

/// Runs it, prints the table, returns what does not add up.
pub(crate) fn run(args: &Args, scene: &Scene) -> Result<Vec<String>, Failure> {
    if let Some(path) = &args.svg {
        writable(path)?;
    }
    let calm = scene.calm();
    let bar = progress(
        args,
        REPEATS * (calm + 2 * Policy::ALL.len()) as u64,
        "{pos} of {len} runs",
    );
    let hows = ["alone"].into_iter().chain(Policy::ALL.map(Policy::name));
    let mut rows: Vec<Row> = hows
        .map(|how| Row {
            how,
            ..Row::default()
        })
        .collect();
    let mut faults = Vec::new();
    for seed in (0..REPEATS).map(|repeat| args.seed.wrapping_add(repeat)) {
        let mut bench = Bench {
            args,
            scene,
            seed,
            faults: &mut faults,
            bar: &bar,
        };
        let alone = (0..calm)
            .map(|tenant| bench.alone(tenant))
            .collect::<Result<Vec<_>, _>>()?;
        add(&mut rows[0].hit_ratio, total(&alone));
        for policy in Policy::ALL {
            let together = bench.together(policy)?;
            let row = &mut rows[1 + policy as usize];
            add(&mut row.hit_ratio, total(&together[..calm]));
            add(&mut row.lost, total(&alone) - total(&together[..calm]));
            let lost = alone
                .iter()
                .zip(&together)
                .map(|(alone, together)| alone.ratio() - together.ratio());
            add(&mut row.lost_by_worst, lost.fold(0.0, f64::max));
            add(&mut row.used_alone, bench.used_alone(policy)?);
            for ((alone, together), tenant) in alone.iter().zip(&together).zip(&scene.candidates) {
                if alone.digest != together.digest {
                    bench.faults.push(format!(
                        "{}, seed {seed}: not the same requests in each run",
                        tenant.name
                    ));
                }
            }
        }
    }
    bar.finish_and_clear();
    let comparison = Comparison {
        budget_bytes: scene.budget,
        requests: args.requests_compared(),
        noisy: args.noisy(),
        tenants: scene.candidates[..calm]
            .iter()
            .map(|one| one.name.clone())
            .collect(),
        goals: goals(&rows),
        rows,
        faults,
    };
    print(&if args.json {
        comparison.json()
    } else {
        comparison.text()
    })?;
    if let Some(path) = &args.svg {
        write(path, &comparison.chart().svg(WIDE))?;
    }
    Ok(comparison.faults)
}

/// One repeat.
struct Bench<'a> {
    args: &'a Args,
    scene: &'a Scene,
    seed: u64,
    faults: &'a mut Vec<String>,
    bar: &'a ProgressBar,
}

impl Bench<'_> {
    /// One tenant by itself in the whole budget.
    fn alone(&mut self, tenant: usize) -> Result<Counted, Failure> {
        let setup = self.setup(Policy::Shared)?;
        setup.service.warm_up(tenant);
        let counted = self.serve(&setup, Some(tenant));
        self.check("alone", setup);
        Ok(counted[tenant])
    }

    /// All tenants.
    fn together(&mut self, policy: Policy) -> Result<Vec<Counted>, Failure> {
        let setup = self.setup(policy)?;
        setup
            .service
            .largest_first()
            .into_iter()
            .for_each(|tenant| setup.service.warm_up(tenant));
        let counted = self.serve(&setup, None);
        self.check(policy.name(), setup);
        Ok(counted)
    }

    /// The percentage of the budget that a tenant gets which is alone and has use for more than all
    /// of it.
    fn used_alone(&mut self, policy: Policy) -> Result<f64, Failure> {
        let setup = self.setup(policy)?;
        let tenant = setup.service.tenants.len() - 1;
        let offered = self.scene.budget.saturating_mul(OFFERED)
            / self.scene.candidates[tenant].sizes.block(1, 0);
        (0..offered).for_each(|_| setup.service.serve(tenant));
        let used = percent(
            setup.service.tenants[tenant].group.live(),
            self.scene.budget,
        );
        self.check(policy.name(), setup);
        Ok(used)
    }

    fn setup(&self, policy: Policy) -> Result<Setup, Failure> {
        Ok(Setup::new(self.args, self.scene, policy, self.seed)?)
    }

    /// Serves the warm-up, then the requests that count.
    fn serve(&self, setup: &Setup, only: Option<usize>) -> Vec<Counted> {
        let service = &setup.service;
        let all = self.args.requests_compared();
        // A tenant that is alone is served by one worker at a time.
        let threads = if only.is_some() {
            1
        } else {
            self.args.threads().min(service.tenants.len())
        };
        let warm = all / WARM_UP_PART / SLICE * SLICE;
        let mut counted = vec![Counted::default(); service.tenants.len()];
        for (from, to) in [(0, warm), (warm, all)] {
            let work = Work {
                service,
                threads,
                time: None,
                requests: Some(to),
                seed: self.seed,
                only,
                arrivals: &self.scene.arrivals,
                taken: AtomicU64::new(from),
                started: OnceLock::new(),
            };
            work.serve();
            for (counted, tenant) in counted.iter_mut().zip(&service.tenants) {
                let figures = tenant.turn.lock().cache.figures;
                let gets = figures.gets - counted.gets;
                let hits = figures.hits - counted.hits;
                *counted = Counted {
                    gets,
                    hits,
                    digest: figures.digest,
                };
            }
        }
        counted
    }

    /// Checks what must hold after each run; empties the caches.
    fn check(&mut self, run: &str, mut setup: Setup) {
        let faults = close(&mut setup)
            .into_iter()
            .map(|fault| format!("{run}, seed {}: {fault}", self.seed));
        self.faults.extend(faults);
        self.bar.inc(1);
    }
}

fn goals(rows: &[Row]) -> Vec<Goal> {
    let row = |policy: Policy| &rows[1 + policy as usize];
    let lost = row(Policy::Memcg)
        .lost_by_worst
        .last()
        .copied()
        .unwrap_or(f64::INFINITY);
    let shared = row(Policy::Shared).lost.first().copied().unwrap_or(0.0);
    let used = row(Policy::Memcg)
        .used_alone
        .first()
        .copied()
        .unwrap_or(0.0);
    [
        (
            format!("memcg: no tenant loses more than {LOST_MAX} points"),
            lost,
            lost <= LOST_MAX,
        ),
        (
            format!("shared: all together lose {SHARED_LOST_MIN} points or more"),
            shared,
            shared >= SHARED_LOST_MIN,
        ),
        (
            format!("memcg: one alone uses {USED_MIN} % of the budget or more"),
            used,
            used >= USED_MIN,
        ),
    ]
    .map(|(goal, found, reached)| Goal {
        goal,
        found,
        reached,
    })
    .into()
}

impl Comparison {
    /// For programs.
    fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a tree of numbers and texts has a JSON form")
    }

    /// For people: the verdict first.
    fn text(&self) -> String {
        let columns = terminal::width();
        let verdict = |Goal {
                           goal,
                           found,
                           reached,
                       }: &Goal| {
            let (word, state) = if *reached {
                ("ok", State::Good)
            } else {
                ("missed", State::Bad)
            };
            state.paint(&terminal::wrap(
                &format!("{goal}: {found:.2}, {word}"),
                columns,
            ))
        };
        let verdicts: Vec<String> = self.goals.iter().map(verdict).collect();
        let mut table = Table::new([
            Column::words("policy"),
            Column::figures("hit ratio, %"),
            Column::figures("points lost"),
            Column::figures("by the worst"),
            Column::figures("one alone, %").leaves(1),
        ]);
        for row in &self.rows {
            let spreads = [
                &row.hit_ratio,
                &row.lost,
                &row.lost_by_worst,
                &row.used_alone,
            ]
            .map(|figures| cell(figures));
            table.add([row.how.to_string()].into_iter().chain(spreads));
        }
        let foot = format!(
            "{} tenants under {}, and {} that flood. Points are lost against each tenant alone in the whole budget, in \
             percent of the look-ups: median of {REPEATS} seeds, and least to most. One alone: the part of the budget \
             that a tenant gets while all others are idle.",
            self.tenants.len(),
            Bytes(self.budget_bytes),
            self.noisy,
        );
        format!(
            "{}\n\n{}\n\n{}",
            verdicts.join("\n"),
            table.text(columns),
            terminal::wrap(&foot, columns)
        )
    }

    /// The policies side by side.
    fn chart(&self) -> Chart {
        let ratios = self.rows.iter().map(|row| median(&row.hit_ratio));
        let worst = self
            .rows
            .iter()
            .map(|row| 100.0 - median(&row.lost_by_worst));
        Chart::new("Hit ratio by policy, beside tenants that flood")
            .note(format!("median of {REPEATS} seeds"))
            .x(Axis::new("").categories(self.rows.iter().map(|row| row.how)))
            .y(Axis::new("").unit(Unit::Percent).to(100.0))
            .with(Series::bars("all tenants", ratios))
            .with(Series::bars(
                "the tenant that loses most, of 100 % alone",
                worst,
            ))
    }
}

impl Counted {
    /// Hits among the look-ups, in percent.
    fn ratio(&self) -> f64 {
        percent(self.hits, self.gets)
    }
}

/// Of all these tenants' look-ups those that hit, in percent.
fn total(tenants: &[Counted]) -> f64 {
    let sum = |figure: fn(&Counted) -> u64| tenants.iter().map(figure).sum();
    percent(sum(|one| one.hits), sum(|one| one.gets))
}

/// The figures stay in the order of their size.
fn add(figures: &mut Vec<f64>, figure: f64) {
    figures.insert(figures.partition_point(|&other| other <= figure), figure);
}

fn median(figures: &[f64]) -> f64 {
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// The median, the least and the most.
fn cell(figures: &[f64]) -> String {
    match figures {
        [least, .., most] => format!("{:.2}\n{least:.2} to {most:.2}", median(figures)),
        _ => "-".to_string(),
    }
}
