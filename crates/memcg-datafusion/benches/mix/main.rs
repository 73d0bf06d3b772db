//! A mix of queries below limits that are too small for it: how many end well with each pool.
//!
//! ```text
//! cargo build --release -p memcg-datafusion-benches --features engine,parquet --bins
//! target/release/mix                                            all pools at 512, 128, 48 and 16 MiB: medians of five runs
//! target/release/mix --kib 49152 --pools greedy,queue --runs 1  in a shorter time
//! target/release/mix --why                                      and why queries were refused
//! ```
//!
//! There are 18 kinds of queries, and each runs once for each of two tenants, six at a time, in an
//! order of its own for each run. The tenants share the limit. Each run of a pool is a process of
//! its own. A figure is the median over the runs. The last rows of a limit run each query alone,
//! one after another: `alone` says how many kinds end well each time. Then the queue runs the
//! queries of these kinds side by side, and `queue` has the ratio of the two times.
//!
//! Without the feature `parquet` the copy writes CSV.

mod child;
mod kinds;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::process::Command;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use child::{Mix, Pool};
use kinds::KINDS;

#[derive(Parser)]
#[command(about = "A mix of queries below limits, with each pool")]
struct Args {
    /// The pools
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "greedy,fair,plain,demand,reserve,queue"
    )]
    pools: Vec<Pool>,
    /// The limits of all queries together, in KiB
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "524288,131072,49152,16384"
    )]
    kib: Vec<u64>,
    /// Rows of the larger table, of some 110 bytes each
    #[arg(long, default_value_t = 150_000)]
    rows: u64,
    /// Each pool runs the mix so often
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Queries at a time
    #[arg(long, default_value_t = 6)]
    at_once: usize,
    /// Seconds that a query waits in the queue in all
    #[arg(long, default_value_t = 100)]
    patience: u64,
    /// Leaves out the queries alone
    #[arg(long)]
    no_alone: bool,
    /// Also says which queries were refused, and why
    #[arg(long)]
    why: bool,
    /// Used by the program itself: a process that runs the mix once
    #[arg(long, hide = true)]
    child: Option<u64>,
    /// Used by the program itself: a bit for each kind that runs
    #[arg(long, hide = true, default_value_t = ALL)]
    kinds: u32,
}

const ALL: u32 = u32::MAX;

/// Figures that a process has printed, parsed.
#[derive(Default)]
struct Run {
    /// Times of the queries of each kind that ended well, in the order of their ends.
    ended: BTreeMap<usize, Vec<f64>>,
    rows: BTreeMap<usize, BTreeSet<u64>>,
    refused: Vec<(usize, String)>,
    hangs: usize,
    /// The figures of the mix.
    figures: Vec<f64>,
}

impl Run {
    fn parse(printed: &str) -> Option<Run> {
        let mut run = Run::default();
        for line in printed.lines() {
            let mut words = line.splitn(4, ' ');
            match (words.next()?, words.next()?.parse().ok()?) {
                ("ended", kind) => {
                    run.ended
                        .entry(kind)
                        .or_default()
                        .push(words.next()?.parse().ok()?);
                    run.rows
                        .entry(kind)
                        .or_default()
                        .insert(words.next()?.parse().ok()?);
                }
                ("refused", kind) => run
                    .refused
                    .push((kind, words.nth(1).unwrap_or_default().to_string())),
                ("hangs", _) => run.hangs += words.next()?.parse::<usize>().ok()?,
                _ => {
                    run.figures = line
                        .split(' ')
                        .skip(1)
                        .map(str::parse)
                        .collect::<Result<_, _>>()
                        .ok()?
                }
            }
        }
        (run.figures.len() == 6).then_some(run)
    }

    fn of(mix: &Mix) -> Result<Run, Box<dyn Error>> {
        let Mix {
            pool,
            limit,
            rows,
            at_once,
            seed,
            times,
            kinds,
            patience,
        } = *mix;
        let pool = pool
            .to_possible_value()
            .ok_or("a pool without a name")?
            .get_name()
            .to_string();
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "--child",
            &seed.to_string(),
            "--pools",
            &pool,
            "--kib",
            &(limit >> 10).to_string(),
        ]);
        command.args([
            "--rows",
            &rows.to_string(),
            "--at-once",
            &at_once.to_string(),
            "--runs",
            &times.to_string(),
            "--patience",
            &patience.as_secs().to_string(),
        ]);
        let output = command.args(["--kinds", &kinds.to_string()]).output()?;
        let printed = String::from_utf8(output.stdout)?;
        let said = String::from_utf8_lossy(&output.stderr);
        Run::parse(&printed)
            .ok_or_else(|| format!("{pool}: {}: {printed}{said}", output.status).into())
    }

    /// Each query that ends well gives as many rows as in other runs.
    fn compare(&self, all: &mut BTreeMap<usize, BTreeSet<u64>>) -> Result<(), String> {
        for (kind, rows) in &self.rows {
            let known = all.entry(*kind).or_default();
            known.extend(rows);
            if known.len() > 1 {
                return Err(format!("{} gives {known:?} rows", KINDS[*kind].0));
            }
        }
        Ok(())
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// Runs each kind alone, as often as there are runs. Returns those that end well each time, and the
/// time of one round.
fn alone(args: &Args, limit: u64) -> Result<(BTreeSet<usize>, f64), Box<dyn Error>> {
    let mix = Mix {
        pool: Pool::Demand,
        limit,
        rows: args.rows,
        at_once: 1,
        seed: 1,
        times: args.runs,
        kinds: ALL,
        patience: Duration::from_secs(args.patience),
    };
    let run = Run::of(&mix)?;
    let is_well = |times: &&Vec<f64>| times.len() == 2 * args.runs;
    let well: BTreeMap<_, _> = run
        .ended
        .iter()
        .filter(|(_, times)| is_well(times))
        .collect();
    let seconds = well
        .values()
        .map(|times| 2.0 * times.iter().sum::<f64>() / times.len() as f64)
        .sum();
    Ok((well.into_keys().copied().collect(), seconds))
}

/// Runs the queries of these kinds side by side in the queue. Returns the number that ended well,
/// and the seconds.
fn side_by_side(args: &Args, limit: u64, kinds: u32) -> Result<[f64; 2], Box<dyn Error>> {
    let mut runs = Vec::new();
    for seed in 1..=args.runs as u64 {
        let Args { rows, at_once, .. } = *args;
        runs.push(Run::of(&Mix {
            pool: Pool::Queue,
            limit,
            rows,
            at_once,
            seed,
            times: 1,
            kinds,
            patience: Duration::from_secs(args.patience),
        })?);
    }
    Ok([0, 1].map(|at| median(runs.iter().map(|run| run.figures[at]).collect())))
}

fn measure(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut rows = BTreeMap::new();
    println!(
        "{} queries of {} kinds, {} at a time, {} rows; medians of {} runs",
        KINDS.len() * 2,
        KINDS.len(),
        args.at_once,
        args.rows,
        args.runs
    );
    println!(
        "  MiB pool      ended  of those alone  seconds   peak MiB  resident MiB  restarts  after first row  hangs"
    );
    for &kib in &args.kib {
        let limit = kib << 10;
        let (fit, serial) = if args.no_alone {
            (BTreeSet::new(), 0.0)
        } else {
            alone(args, limit)?
        };
        for &pool in &args.pools {
            let mut runs = Vec::new();
            for seed in 1..=args.runs as u64 {
                let mix = Mix {
                    pool,
                    limit,
                    rows: args.rows,
                    at_once: args.at_once,
                    seed,
                    times: 1,
                    kinds: ALL,
                    patience: Duration::from_secs(args.patience),
                };
                let run = Run::of(&mix)?;
                run.compare(&mut rows)?;
                for (kind, why) in run.refused.iter().filter(|_| args.why) {
                    println!("      {}: {why}", KINDS[*kind].0);
                }
                runs.push(run);
            }
            let figure = |at: usize| median(runs.iter().map(|run| run.figures[at]).collect());
            let of_alone = |run: &Run| {
                fit.iter()
                    .map(|kind| run.ended.get(kind).map_or(0, Vec::len))
                    .sum::<usize>() as f64
            };
            let mib = |at: usize| figure(at) / f64::from(1 << 20);
            let name = pool
                .to_possible_value()
                .map_or_else(String::new, |pool| pool.get_name().to_string());
            println!(
                "{:>5.1} {name:<9} {:>5} {:>9} of {:>2} {:>8.1} {:>10.1} {:>13.0} {:>9} {:>16} {:>6}",
                limit as f64 / f64::from(1 << 20),
                figure(0),
                median(runs.iter().map(of_alone).collect()),
                2 * fit.len(),
                figure(1),
                mib(2),
                mib(3),
                figure(4),
                figure(5),
                median(runs.iter().map(|run| run.hangs as f64).collect()),
            );
        }
        if !args.no_alone {
            println!(
                "      alone: {} of {} kinds, twice each in {serial:.1} s one after another",
                fit.len(),
                KINDS.len()
            );
            let kinds = fit.iter().fold(0, |kinds, kind| kinds | 1 << kind);
            let [ended, seconds] = side_by_side(args, limit, kinds)?;
            println!(
                "      queue: {ended} of {} side by side in {seconds:.1} s, {:.2} of the time one after another",
                2 * fit.len(),
                seconds / serial
            );
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let is_well = (100..=100_000_000).contains(&args.rows)
        && (1..=100).contains(&args.runs)
        && args.at_once > 0;
    if !is_well || args.kib.iter().any(|kib| !(64..=1 << 30).contains(kib)) {
        return Err(
            "--rows is from 100 to 100000000, --runs from 1 to 100, --kib from 64 to 1073741824"
                .into(),
        );
    }
    let (Some(seed), Some(&pool), Some(&kib)) = (args.child, args.pools.first(), args.kib.first())
    else {
        return measure(&args);
    };
    let Args {
        rows,
        at_once,
        runs: times,
        kinds,
        patience,
        ..
    } = args;
    child::run(&Mix {
        pool,
        limit: kib << 10,
        rows,
        at_once,
        seed,
        times,
        kinds,
        patience: Duration::from_secs(patience),
    })
}
