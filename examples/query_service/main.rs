//! A query service of three tenants below one budget: DataFusion with its own pools, and with groups.
//!
//! ```text
//! cargo run --release --manifest-path crates/Cargo.toml -p memcg-examples-query-service           all policies, 4 minutes
//! ... -- --policy ours --seconds 2                                                                one of them, 15 seconds
//! ... -- --html page.html                                                                         a page with charts
//! ... -- --pinned --rounds 3                                         gold has a core of its own; goals by medians of three
//! ... -- --container                                   the system kills what passes the limit of a container: exit code 137
//! ```
//!
//! Tenant `gold` sends short aggregates at a fixed rate, `silver` joins, and `heavy` sorts and groups all rows, two queries
//! at a time. Five phases follow each other: gold alone, with silver, with heavy, heavy alone, and all three with less
//! memory. A policy is the memory pool that stands between the queries and the memory. `guard` is `GreedyMemoryPool` with a
//! thread that watches resident memory, and ends the query that has run longest while there is too much.
//!
//! With `--features serve`, `--serve FILE` opens a socket for `memcg-top` (`crates/memcg-top`) while `ours` runs.

mod container;
mod cores;
mod data;
mod goals;
mod load;
mod outcome;
mod policy;
mod print;
mod sampler;
mod scene;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use clap::{Parser, ValueEnum};

use outcome::Outcome;
use policy::Policy;

#[derive(Parser)]
#[command(about = "Three tenants of a query service under one budget")]
pub(crate) struct Args {
    /// unbounded, greedy, fair, track, split, guard, ours, or all
    #[arg(long, default_value = "all")]
    policy: String,
    /// TPC-H's scale factor: 1 has 6 million rows, of some 160 bytes each
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// MiB of memory for all queries together. The tables have theirs beside it
    #[arg(long, default_value_t = 64)]
    memory: u64,
    /// Seconds of each phase but `heavy alone`, which has a fixed number of queries
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// gold runs on one core, and the others on another one
    #[arg(long)]
    pinned: bool,
    /// Runs all so often, in turns: goals of time are judged by medians
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Each policy runs in a control group of the system with a limit, as in a container
    #[arg(long)]
    container: bool,
    /// Opens a socket there that shows the groups of ours while it runs
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE")]
    serve: Option<PathBuf>,
    /// The form of the output
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Also writes a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
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
    Csv,
}

impl Args {
    fn policies(&self) -> Result<Vec<Policy>, String> {
        if self.policy == "all" {
            return Ok(Policy::ALL.to_vec());
        }
        let names = || Policy::ALL.map(Policy::name).join(", ");
        let policy = Policy::ALL.into_iter().find(|policy| policy.name() == self.policy);
        policy
            .map(|policy| vec![policy])
            .ok_or_else(|| format!("no policy {:?}; there are {}, all", self.policy, names()))
    }

    fn check(&self) -> Result<(), &'static str> {
        if !(0.001..=10.0).contains(&self.scale) {
            return Err("--scale is a number from 0.001 to 10");
        }
        if !(0.1..=3_600.0).contains(&self.seconds) {
            return Err("--seconds is a number from 0.1 to 3600");
        }
        if !(1..=1 << 20).contains(&self.memory) {
            return Err("--memory is a number from 1 to 1048576, in MiB");
        }
        if !(1..=100).contains(&self.rounds) {
            return Err("--rounds is a number from 1 to 100");
        }
        Ok(())
    }
}

/// Runs a policy in a process of its own, whose resident memory is its own.
fn child(policy: Policy, args: &Args) -> Result<Outcome, Box<dyn Error>> {
    let mut program = Command::new(std::env::current_exe()?);
    program.args(["--child", "--policy", policy.name()]);
    program.args(["--scale", &args.scale.to_string(), "--memory", &args.memory.to_string()]);
    program.args(["--seconds", &args.seconds.to_string()]);
    program.args(args.pinned.then_some("--pinned")).args(args.quiet.then_some("--quiet"));
    program.args(args.container.then_some("--container"));
    #[cfg(feature = "serve")]
    if let Some(path) = &args.serve {
        program.arg("--serve").arg(path);
    }
    let mut running = program.stdout(Stdio::piped()).spawn()?;
    let output = running.stdout.take().ok_or("no output")?;
    // A line for each phase that is over, and one for the end.
    let lines = BufReader::new(output).lines().collect::<Result<Vec<_>, _>>()?;
    let status = running.wait()?;
    container::remove(running.id());
    let last = lines.last().map(|line| serde_json::from_str::<Outcome>(line)).transpose()?;
    match last {
        Some(outcome) if status.success() => Ok(outcome),
        Some(mut outcome) if args.container && is_killed(status) => {
            outcome.killed(lines.len());
            Ok(outcome)
        }
        _ => Err(format!("{}: {status}", policy.name()).into()),
    }
}

/// A shell shows such an end as exit code 137.
#[cfg(unix)]
fn is_killed(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
}

#[cfg(not(unix))]
fn is_killed(_status: ExitStatus) -> bool {
    false
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    args.check()?;
    let policies = args.policies()?;
    if args.child {
        let print = |outcome: &Outcome| {
            println!("{}", serde_json::to_string(outcome)?);
            Ok(())
        };
        print(&scene::run(policies[0], &args, print)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let round = |_| policies.iter().map(|&policy| child(policy, &args)).collect::<Result<Vec<_>, _>>();
    let rounds = (0..args.rounds).map(round).collect::<Result<Vec<_>, _>>()?;
    let goals = goals::of(&rounds);
    let outcomes = outcome::middle(rounds);
    match args.format {
        Format::Json => println!("{}", print::json(&outcomes, &goals)?),
        Format::Csv => println!("{}", print::table(&outcomes).csv()),
        Format::Table => println!("{}", print::text(&outcomes, &goals)),
    }
    if let Some(path) = &args.html {
        std::fs::write(path, print::page(&outcomes, &goals))?;
    }
    Ok(if goals.iter().all(|goal| goal.is_met || goal.is_of_time) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
