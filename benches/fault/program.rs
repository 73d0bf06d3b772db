//! The trials and their tables.

#![cfg(not(loom))]

mod others;
mod region;
mod series;
mod verdicts;

use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::{CounterConfig, PageCounter};
use memcg_bench_rows::{Bench, Choice, Progress, parse};

use self::region::Region;
use crate::common::clock::OwnTime;
use crate::common::host::Others;
use crate::common::slots7::{Random, Slots7};
use crate::common::stats::Summary;
use crate::common::tree::{fan, unstocked};
use crate::common::{Library, Policy, Uncounted};

const BENCH: Bench = Bench {
    name: "fault",
    about: "Pages are faulted in and released, and each is charged.\n\
            A row for each number of counters: four ways of charging take turns, trial by trial.",
};

/// Numbers of counters.
const COUNTS: [usize; 3] = [1, 4, 32];

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    choice: Choice,
    /// Trials of each variant
    #[arg(long, default_value_t = 40)]
    trials: usize,
    /// Iterations in a trial, which counts with their mean
    #[arg(long, default_value_t = 50)]
    iterations: usize,
    /// Pages of each counter's region [default: 4096 / counters, at most 512]
    #[arg(long)]
    pages: Option<usize>,
    /// Finish one counter's region before the next, instead of page by page in turn
    #[arg(long)]
    by_region: bool,
}

fn id(count: usize) -> String {
    format!("fault/counters{count}")
}

/// Against no accounting at all, in per cent.
const DELTA_MAX: f64 = 1.0;

/// The stressors run for so many iterations less.
const OTHERS_SHARE: usize = 2;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Variant {
    None,
    NoStock,
    Slots7,
    Stock,
}

impl Variant {
    const ALL: [Variant; 4] = [
        Variant::None,
        Variant::NoStock,
        Variant::Slots7,
        Variant::Stock,
    ];

    fn name(self) -> &'static str {
        match self {
            Variant::None => "none",
            Variant::NoStock => "no_stock",
            Variant::Slots7 => "slots7",
            Variant::Stock => "stock",
        }
    }
}

pub(crate) fn main() {
    let mut options: Options = parse(&BENCH);
    let chosen = options.choice.choose(BENCH.name, COUNTS.map(id).into());
    let counts: Vec<usize> = COUNTS
        .into_iter()
        .filter(|count| chosen.wants(&id(*count)))
        .collect();
    if options.choice.is_small() {
        options = Options {
            trials: 1,
            iterations: 1,
            pages: Some(16),
            ..options
        };
    }
    let scenes: Vec<Scene> = counts
        .iter()
        .map(|&count| Scene::new(&options, count))
        .collect();
    let trials = options.trials + 1;
    let fault: Duration = scenes
        .iter()
        .map(|scene| scene.iteration_takes() * (options.iterations * trials) as u32)
        .sum();
    let stressor_iterations = options.iterations.div_ceil(OTHERS_SHARE);
    let takes = fault + others::takes(options.trials, stressor_iterations);
    let what = format!(
        "{trials} trials of each of {} numbers of counters",
        counts.len()
    );
    let mut progress = Progress::bar(BENCH.name, &what, trials * counts.len(), takes);
    let others = Others::watch();
    progress.say(format!(
        "{} trials of {} iterations, pages of {} bytes, {};\nms of the thread's own processor time an iteration, deltas in per cent,\n\
         `~` where inside one standard deviation\n",
        options.trials,
        options.iterations,
        Region::page_size(),
        if options.by_region { "region after region" } else { "page by page in turn" },
    ));
    let mut missed = 0;
    let mut all = Vec::new();
    for (&count, scene) in counts.iter().zip(&scenes) {
        let trials = run(&options, scene, &mut progress);
        progress.say(table(count, &trials));
        let none = trials.of(Variant::None);
        let stock = trials.of(Variant::Stock);
        missed += usize::from(stock.delta(&none) > DELTA_MAX && !stock.is_noise(&none));
        all.push((count, trials));
    }
    drop(progress);
    series::print(&all);
    let stressors = others::run(options.trials, stressor_iterations);
    match missed {
        _ if options.choice.is_small() => {}
        0 => println!(
            "stock against none: at most {DELTA_MAX} %, or inside one std, with all numbers of counters"
        ),
        n => println!(
            "stock against none: above {DELTA_MAX} % and outside one std with {n} of {} numbers of counters",
            counts.len()
        ),
    }
    println!("{others}\n");
    verdicts::print(&all, &stressors);
}

/// The mean of each trial, by variant.
pub(crate) struct Trials([Vec<f64>; 4]);

impl Trials {
    fn of(&self, variant: Variant) -> Summary {
        Summary::of(self.runs(variant))
    }

    fn runs(&self, variant: Variant) -> &[f64] {
        &self.0[variant as usize]
    }
}

/// The scene of all trials with one number of counters.
struct Scene {
    stocked: Vec<PageCounter>,
    unstocked: Vec<PageCounter>,
    regions: Vec<Region>,
    pages: usize,
    by_region: bool,
}

fn run(options: &Options, bench: &Scene, progress: &mut Progress) -> Trials {
    // The slots outlive the trial, as a processor's do.
    let mut slots7 = Slots7::<Random>::new(&bench.unstocked);
    let mut trials = Trials(std::array::from_fn(|_| Vec::new()));
    for trial in 0..=options.trials {
        // Each variant is first, second, third and last equally often.
        for place in 0..Variant::ALL.len() {
            let variant = Variant::ALL[(trial + place) % Variant::ALL.len()];
            let start = OwnTime::start();
            for _ in 0..options.iterations {
                match variant {
                    Variant::None => bench.iteration(&mut Uncounted),
                    Variant::NoStock => bench.iteration(&mut Library {
                        leaves: &bench.unstocked,
                    }),
                    Variant::Slots7 => bench.iteration(&mut slots7),
                    Variant::Stock => bench.iteration(&mut Library {
                        leaves: &bench.stocked,
                    }),
                }
            }
            // The first trial is the warm-up.
            if trial > 0 {
                trials.0[variant as usize]
                    .push(start.elapsed().as_secs_f64() * 1e3 / options.iterations as f64);
            }
        }
        progress.step();
    }
    trials
}

impl Scene {
    /// Small regions for many counters, so that each number of counters takes about as long.
    fn new(options: &Options, count: usize) -> Scene {
        let pages = options.pages.unwrap_or((4_096 / count).min(512));
        Scene {
            stocked: fan(CounterConfig::new(), count).1,
            unstocked: fan(unstocked(), count).1,
            regions: (0..count).map(|_| Region::map(pages)).collect(),
            pages,
            by_region: options.by_region,
        }
    }

    /// One iteration of each variant, measured. The first touches more, so the second counts.
    fn iteration_takes(&self) -> Duration {
        self.iteration(&mut Uncounted);
        let start = Instant::now();
        self.iteration(&mut Uncounted);
        start.elapsed() * Variant::ALL.len() as u32
    }

    /// Never inlined, so that the variants are four loops of one shape.
    #[inline(never)]
    fn iteration(&self, policy: &mut impl Policy) {
        self.each_page(|leaf, page| {
            policy.charge(leaf, 1).expect("no limit is set");
            self.regions[leaf].touch(page);
        });
        self.each_page(|leaf, _| policy.uncharge(leaf, 1));
        for region in &self.regions {
            region.release();
        }
    }

    #[inline(always)]
    fn each_page(&self, mut step: impl FnMut(usize, usize)) {
        if self.by_region {
            for leaf in 0..self.regions.len() {
                (0..self.pages).for_each(|page| step(leaf, page));
            }
        } else {
            for page in 0..self.pages {
                (0..self.regions.len()).for_each(|leaf| step(leaf, page));
            }
        }
    }
}

fn table(count: usize, trials: &Trials) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "counters",
        "variant",
        "runs",
        "mean",
        "std",
        "min",
        "max",
        "to slots7",
        "to none",
    ]);
    let none = trials.of(Variant::None);
    let slots7 = trials.of(Variant::Slots7);
    for variant in Variant::ALL {
        let row = trials.of(variant);
        let to = |base: &Summary, of: Variant| {
            if variant == of {
                String::new()
            } else {
                format!(
                    "{}{:+.2}",
                    if row.is_noise(base) { "~" } else { "" },
                    row.delta(base)
                )
            }
        };
        table.add_row([
            count.to_string(),
            variant.name().to_owned(),
            trials.runs(variant).len().to_string(),
            format!("{:.3}", row.mean),
            format!("{:.3}", row.std),
            format!("{:.3}", row.min),
            format!("{:.3}", row.max),
            to(&slots7, Variant::Slots7),
            to(&none, Variant::None),
        ]);
    }
    format!("{}\n", table.trim_fmt())
}
