//! A query service of three tenants below one budget: DataFusion with its own pools, and with
//! groups.
//!
//! ```text
//! cargo run --release --manifest-path crates/Cargo.toml -p memcg-examples-query-service           all policies, 4 minutes
//! ... -- --policy ours --seconds 2                                                                one of them, 15 seconds
//! ... -- --pinned --rounds 3                                         gold has a core of its own; goals by medians of three
//! ```
//!
//! Tenant `gold` sends short aggregates at a fixed rate, `silver` joins, and `heavy` sorts and
//! groups all rows, two queries at a time. Five phases follow each other: gold alone, with silver,
//! with heavy, heavy alone, and all three with less memory. A policy is the memory pool that stands
//! between the queries and the memory; `ranked` gives the groups importance, reclaim in the
//! background and victims.
//!
//! With `--features serve`, `--serve FILE` opens a socket for `memcg-top` (`crates/memcg-top`)
//! while `ours` runs.

mod data;
mod goals;
mod heap;
mod load;
mod outcome;
mod policy;
mod print;
mod sampler;
mod scene;

use std::error::Error;
#[cfg(feature = "serve")]
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use clap::{Parser, ValueEnum, value_parser};

use outcome::Outcome;
use policy::Policy;

#[derive(Parser)]
#[command(about = "Three tenants of a query service under one budget")]
pub(crate) struct Args {
    /// Only this one, and not all
    #[arg(long, value_enum)]
    policy: Option<Policy>,
    /// TPC-H's scale factor: 1 has 6 million rows, of some 160 bytes each
    #[arg(long, default_value_t = 0.1, value_parser = from_to::<1, 10_000>)]
    scale: f64,
    /// MiB of memory for all queries together. The tables have theirs beside it
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u64).range(1..=1 << 20))]
    memory: u64,
    /// Seconds of each phase but `heavy alone`, which has a fixed number of queries
    #[arg(long, default_value_t = 6.0, value_parser = from_to::<100, 3_600_000>)]
    seconds: f64,
    /// gold runs on one core, and the others on another one
    #[arg(long)]
    pinned: bool,
    /// Runs all so often, in turns: goals of time are judged by medians
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Opens a socket there that shows the groups of ours while it runs
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE")]
    serve: Option<PathBuf>,
    /// The form of the output
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Says nothing about the progress
    #[arg(long)]
    quiet: bool,
    /// Used by the program itself: runs one policy and prints its outcome
    #[arg(long, hide = true)]
    child: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// A number from so many thousandths to so many.
fn from_to<const LEAST: u32, const MOST: u32>(text: &str) -> Result<f64, String> {
    let [least, most] = [LEAST, MOST].map(|bound| f64::from(bound) / 1000.0);
    let number = text
        .parse()
        .ok()
        .filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("expected a number from {least} to {most}"))
}

/// Runs a policy in a process of its own, whose resident memory is its own.
fn child(policy: Policy, args: &Args) -> Result<Outcome, Box<dyn Error>> {
    let mut program = Command::new(std::env::current_exe()?);
    program.args(["--child", "--policy", policy.name()]);
    program.args([
        "--scale",
        &args.scale.to_string(),
        "--memory",
        &args.memory.to_string(),
    ]);
    program.args(["--seconds", &args.seconds.to_string()]);
    program
        .args(args.pinned.then_some("--pinned"))
        .args(args.quiet.then_some("--quiet"));
    #[cfg(feature = "serve")]
    if let Some(path) = &args.serve {
        program.arg("--serve").arg(path);
    }
    let output = program.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{}: {}", policy.name(), output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let policies = args
        .policy
        .map_or(Policy::value_variants().to_vec(), |policy| vec![policy]);
    if args.child {
        println!(
            "{}",
            serde_json::to_string(&scene::run(policies[0], &args)?)?
        );
        return Ok(ExitCode::SUCCESS);
    }
    let round = |_| {
        policies
            .iter()
            .map(|&policy| child(policy, &args))
            .collect::<Result<Vec<_>, _>>()
    };
    let rounds = (0..args.rounds).map(round).collect::<Result<Vec<_>, _>>()?;
    let goals = goals::of(&rounds);
    let outcomes = outcome::middle(rounds);
    match args.format {
        Format::Json => println!("{}", print::json(&outcomes, &goals)?),
        Format::Table => println!("{}", print::text(&outcomes, &goals)),
    }
    Ok(if goals.iter().all(|goal| goal.is_met || goal.is_of_time) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
