//! Counts of instructions, which a noisy machine does not change.
//!
//! A program has paths, each with a loop that goes through it so often. For each path the program
//! starts itself under callgrind and says `--run NAME`. That run prepares the path and hands the
//! loop to [`counted`], and callgrind counts inside of it, callees included.

use std::env;
use std::hint::black_box;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;

use crate::{Bench, Choice, Progress, parse};

/// Rounds of a loop where the ends of the loop must not show.
pub const ROUNDS: u64 = 100_000;

/// A path of a program, and the most instructions of one round through it.
pub struct CountedPath<P> {
    /// As a row has it, behind the name of the bench.
    pub name: &'static str,
    /// The words of the line that is printed: "one charge and one uncharge".
    pub what: &'static str,
    /// The ceiling.
    pub most: f64,
    /// Rounds to count over.
    pub rounds: u64,
    /// Prepares the path, and has [`counted`] run so many rounds.
    pub run: fn(&P, u64),
    /// The same without what is counted: its instructions are taken off. An empty loop, if there is
    /// no other.
    pub beside: Option<fn(&P, u64)>,
}

impl<P> CountedPath<P> {
    /// A path beside an empty loop.
    pub const fn new(
        name: &'static str,
        what: &'static str,
        most: f64,
        run: fn(&P, u64),
    ) -> CountedPath<P> {
        CountedPath {
            name,
            what,
            most,
            rounds: ROUNDS,
            run,
            beside: None,
        }
    }

    /// The same over so many rounds, for a path that is long by itself.
    #[must_use]
    pub const fn over(mut self, rounds: u64) -> CountedPath<P> {
        self.rounds = rounds;
        self
    }

    /// The same beside another loop.
    #[must_use]
    pub const fn beside(mut self, beside: fn(&P, u64)) -> CountedPath<P> {
        self.beside = Some(beside);
        self
    }
}

/// The arguments of such a program.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    choice: Choice,
    /// The run under callgrind
    #[arg(long, hide = true)]
    run: Option<String>,
}

/// What the name of a run ends in that shows what is taken off, and the run that shows it for most.
const BESIDE: &str = "/beside";
const EMPTY: &str = "empty";

/// The function that callgrind counts in.
const SYMBOL: &str = "memcg_bench_counted";

/// Runs the loop of a path, in which callgrind counts. Threads may call this at once: each counts
/// its own.
pub fn counted(mut rounds: impl FnMut()) {
    memcg_bench_counted(&mut rounds);
}

// SAFETY of the exported name: the prefix is the crate's, and nothing else defines it.
#[allow(unsafe_code, reason = "an exported name, so that callgrind finds it")]
#[unsafe(no_mangle)]
#[inline(never)]
fn memcg_bench_counted(rounds: &mut dyn FnMut()) {
    rounds();
}

/// The loop round a path.
#[inline(never)]
fn empty(rounds: u64) {
    for _ in 0..rounds {
        black_box(1u64);
    }
}

/// The program: counts the chosen paths, prints each, and fails where one is above its ceiling.
/// Without valgrind it says so and passes. `prepare` makes what the paths share, and words that stand
/// behind each count.
pub fn count_paths<P>(
    bench: &Bench,
    paths: &[CountedPath<P>],
    prepare: impl FnOnce() -> (P, String),
) -> ExitCode {
    let options: Options = parse(bench);
    if let Some(name) = &options.run {
        return run(bench, paths, name, prepare);
    }
    if options.choice.is_trial() {
        let (prepared, _) = prepare();
        paths.iter().for_each(|path| (path.run)(&prepared, 2));
        println!(
            "{0}: the paths work; `cargo bench --bench {0}` counts",
            bench.name
        );
        return ExitCode::SUCCESS;
    }
    let id = |path: &CountedPath<P>| format!("{}/{}", bench.name, path.name);
    let ids = options
        .choice
        .choose(bench.name, paths.iter().map(id).collect());
    let chosen: Vec<_> = paths.iter().filter(|path| ids.wants(&id(path))).collect();
    match hold(bench, &chosen, &prepare().1) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("{}: a path has grown above its ceiling", bench.name);
            ExitCode::FAILURE
        }
        Err(Failure::NoValgrind) => {
            println!("{}: skipped, no valgrind found", bench.name);
            ExitCode::SUCCESS
        }
        Err(Failure::Broken(why)) => {
            eprintln!("{}: {why}", bench.name);
            ExitCode::FAILURE
        }
    }
}

/// The run of one loop.
fn run<P>(
    bench: &Bench,
    paths: &[CountedPath<P>],
    name: &str,
    prepare: impl FnOnce() -> (P, String),
) -> ExitCode {
    if name == EMPTY {
        counted(|| empty(ROUNDS));
        return ExitCode::SUCCESS;
    }
    let found = paths.iter().find_map(|path| {
        let beside = name.strip_suffix(BESIDE) == Some(path.name);
        let loop_of = if beside {
            path.beside
        } else {
            (name == path.name).then_some(path.run)
        };
        Some((loop_of?, path.rounds))
    });
    let Some((found, rounds)) = found else {
        eprintln!("{}: no path has a run of the name {name}", bench.name);
        return ExitCode::FAILURE;
    };
    found(&prepare().0, rounds);
    ExitCode::SUCCESS
}

/// True if every chosen path is within its ceiling.
fn hold<P>(bench: &Bench, chosen: &[&CountedPath<P>], note: &str) -> Result<bool, Failure> {
    let start = Instant::now();
    let empty = count(EMPTY)? as f64 / ROUNDS as f64;
    // Most of what a run takes is valgrind's start, which the first has shown.
    let runs = chosen.len();
    let mut progress = Progress::bar(
        bench.name,
        &format!("{runs} paths under valgrind"),
        runs,
        start.elapsed() * runs as u32,
    );
    let mut held = true;
    for path in chosen {
        let each = |run: &str| Ok(count(run)? as f64 / path.rounds as f64);
        let beside = match path.beside {
            Some(_) => each(&format!("{}{BESIDE}", path.name))?,
            None => empty,
        };
        let all = each(path.name)? - beside;
        progress.say(format!(
            "instructions: {all:.2} for {} ({note}; {beside:.2} beside them), at most {}",
            path.what, path.most,
        ));
        progress.step();
        held &= all <= path.most;
    }
    Ok(held)
}

enum Failure {
    NoValgrind,
    Broken(String),
}

/// The instructions that a run of this program counts.
fn count(run: &str) -> Result<u64, Failure> {
    let program = env::current_exe()
        .map_err(|error| Failure::Broken(format!("cannot find itself: {error}")))?;
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--callgrind-out-file=/dev/null",
        ])
        .arg(format!("--toggle-collect={SYMBOL}"))
        .arg(program)
        .args(["--run", run])
        .stdin(Stdio::null())
        .output()
        .map_err(|_| Failure::NoValgrind)?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(Failure::Broken(format!(
            "the run {run} under callgrind failed:\n{report}"
        )));
    }
    let collected = report
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .map(|(_, count)| count.trim());
    match collected.and_then(|count| count.parse().ok()) {
        Some(count) if count > 0 => Ok(count),
        _ => Err(Failure::Broken(format!(
            "callgrind counted nothing in the run {run}:\n{report}"
        ))),
    }
}
