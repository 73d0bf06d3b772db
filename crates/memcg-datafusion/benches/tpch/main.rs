//! The 22 queries of TPC-H from end to end: a plain session with `GreedyMemoryPool` or DataFusion's
//! unbounded pool, a session for each query in a group with each kind of our pool, and the same where
//! the process's allocator charges groups.
//!
//! ```text
//! cargo build --release -p memcg-datafusion-benches --features engine --bins
//! target/release/tpch                                  time, below no limit that is met: 20 rounds at scale 0.1
//! target/release/tpch --scale 1 --rounds 5             with ten times the rows
//! target/release/tpch --scale 1 --limits 800,100       rows below two limits, in MiB
//! ```
//!
//! Each row is a process of its own, with the tables in memory and two workers. The program asks
//! them in turns, query by query, so all meet the same machine. A figure is the median over the
//! rounds of ratios to `GreedyMemoryPool` in the same round; the brackets have the true median in 95
//! of 100 runs. The ratio of processor time stands beside that of time: on a busy machine it is the
//! steadier one. All must give the same rows.
//!
//! With `--limits` each query runs once below each limit: it gives the rows of the plain session,
//! or a refusal that names its group.

mod child;
#[path = "../../tests/memory/queries.rs"]
mod queries;

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use clap::Parser;

#[derive(Parser)]
#[command(about = "TPC-H in groups, beside GreedyMemoryPool")]
struct Args {
    /// TPC-H's scale factor: 1 has 6 million rows, and each process holds them
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Each query runs so often in each process
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// The first so many queries
    #[arg(long, default_value_t = 22)]
    queries: usize,
    /// Each query runs once below each of these limits, in MiB
    #[arg(long, value_delimiter = ',')]
    limits: Vec<u64>,
    /// Used by the program itself: a process that answers
    #[arg(long, hide = true)]
    child: Option<child::Pool>,
    /// Used by the program itself: the bytes of the process's tenant
    #[arg(long, hide = true, default_value_t = FREE)]
    max: u64,
}

/// Above what all queries need at any scale.
const FREE: u64 = 1 << 40;

/// A process that runs a query when it is asked to.
struct Runner {
    process: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Answer of a process. The seconds are those of the clock, and of the processor.
enum Answer {
    Rows {
        seconds: [f64; 2],
        hash: u64,
        files: usize,
    },
    Refused(String),
}

impl Answer {
    fn parse(line: &str) -> Option<Answer> {
        let (kind, rest) = line.trim().split_once(' ')?;
        if kind == "refused" {
            return Some(Answer::Refused(rest.to_string()));
        }
        let mut words = rest.split(' ');
        let seconds = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
        let hash = words.next()?;
        let files = words.next()?;
        Some(Answer::Rows {
            seconds,
            hash: hash.parse().ok()?,
            files: files.parse().ok()?,
        })
    }
}

impl Runner {
    fn start(program: &str, pool: &str, scale: f64, max: u64) -> Result<Runner, Box<dyn Error>> {
        let path = std::env::current_exe()?
            .with_file_name(program)
            .with_extension(std::env::consts::EXE_EXTENSION);
        let mut command = Command::new(&path);
        command.args([
            "--child",
            pool,
            "--scale",
            &scale.to_string(),
            "--max",
            &max.to_string(),
        ]);
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = started.map_err(|error| {
            format!(
                "{}: {error}; build it with --features engine --bins",
                path.display()
            )
        })?;
        let (Some(asks), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("a process without its pipes".into());
        };
        Ok(Runner {
            process,
            asks,
            answers: BufReader::new(answers),
        })
    }

    fn run(&mut self, number: usize) -> Result<Answer, Box<dyn Error>> {
        writeln!(self.asks, "{number}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Answer::parse(&line).ok_or_else(|| format!("query {number}: no answer").into())
    }

    fn end(self) -> Result<(), Box<dyn Error>> {
        let Runner {
            mut process, asks, ..
        } = self;
        drop(asks);
        let status = process.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("a process ended with {status}").into())
        }
    }
}

/// The median, and an interval that has the true one in 95 of 100 runs, whatever the figures'
/// distribution.
fn median(mut figures: Vec<f64>) -> (f64, [f64; 2]) {
    figures.sort_by(f64::total_cmp);
    let count = figures.len() as f64;
    let half = 0.98 * (figures.len() as f64).sqrt();
    let at = |rank: f64| figures[(rank.max(0.0) as usize).min(figures.len() - 1)];
    (
        at(count / 2.0),
        [
            at((count / 2.0 - half).floor()),
            at((count / 2.0 + half).ceil()),
        ],
    )
}

const ROWS: [(&str, &str, &str); 6] = [
    ("GreedyMemoryPool", "tpch", "greedy"),
    ("unbounded pool", "tpch", "unbounded"),
    ("GroupPool", "tpch", "plain"),
    ("spill_on_demand", "tpch", "group"),
    ("with the queue", "tpch", "queue"),
    ("with memcg-alloc", "tpch_allocated", "group"),
];

/// Times each query in all processes, in turns.
fn time(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut runners = Vec::new();
    for (_, program, pool) in ROWS {
        runners.push(Runner::start(program, pool, args.scale, args.max)?);
    }
    let mut times = vec![[Vec::new(), Vec::new()]; ROWS.len()];
    // The first round warms up.
    for round in 0..=args.rounds {
        let mut sums = [[0.0; 2]; ROWS.len()];
        for number in 1..=args.queries {
            let mut rows = [0; ROWS.len()];
            for turn in 0..ROWS.len() {
                let at = (turn + round + number) % ROWS.len();
                match runners[at].run(number)? {
                    Answer::Rows { seconds, hash, .. } => {
                        sums[at]
                            .iter_mut()
                            .zip(seconds)
                            .for_each(|(sum, seconds)| *sum += seconds);
                        rows[at] = hash;
                    }
                    Answer::Refused(why) => return Err(format!("query {number}: {why}").into()),
                }
            }
            if rows.iter().any(|hash| *hash != rows[0]) {
                return Err(format!("query {number} gives other rows: {rows:?}").into());
            }
        }
        if round > 0 {
            times
                .iter_mut()
                .flatten()
                .zip(sums.as_flattened())
                .for_each(|(times, sum)| times.push(*sum));
        }
    }
    for runner in runners {
        runner.end()?;
    }
    println!(
        "TPC-H at scale {}, {} queries, {} rounds; by GreedyMemoryPool",
        args.scale, args.queries, args.rounds
    );
    for ((name, ..), own) in ROWS.iter().zip(&times) {
        let ratio = |of: usize| {
            let (ratio, [low, high]) = median(
                own[of]
                    .iter()
                    .zip(&times[0][of])
                    .map(|(own, base)| own / base)
                    .collect(),
            );
            format!("{ratio:.3} [{low:.3}, {high:.3}]")
        };
        let (seconds, _) = median(own[0].clone());
        println!(
            "{name:<26} {} {seconds:>9.2} s a round, {} of processor time",
            ratio(0),
            ratio(1)
        );
    }
    Ok(())
}

/// Runs each query below each limit, and compares its rows with those of the plain session.
fn limited(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut free = Runner::start("tpch", "unbounded", args.scale, args.max)?;
    let mut limited = Vec::new();
    for mib in &args.limits {
        limited.push((
            mib,
            Runner::start("tpch", "group", args.scale, mib << 20)?,
            [0; 3],
        ));
    }
    println!("TPC-H at scale {}, {} queries", args.scale, args.queries);
    for number in 1..=args.queries {
        let Answer::Rows { hash: expected, .. } = free.run(number)? else {
            return Err(format!("query {number} is refused without a limit").into());
        };
        for (mib, runner, [same, spilled, refused]) in &mut limited {
            match runner.run(number)? {
                Answer::Rows { hash, files, .. } if hash == expected => {
                    *same += 1;
                    *spilled += usize::from(files > 0);
                }
                Answer::Rows { .. } => {
                    return Err(format!("query {number} below {mib} MiB: other rows").into());
                }
                Answer::Refused(why) => {
                    if !why.contains("/tenant") {
                        return Err(format!(
                            "query {number} below {mib} MiB fails otherwise: {why}"
                        )
                        .into());
                    }
                    println!("query {number} below {mib} MiB: {why}");
                    *refused += 1;
                }
            }
        }
    }
    for (mib, runner, [same, spilled, refused]) in limited {
        runner.end()?;
        println!(
            "below {mib} MiB: {same} with the same rows, {spilled} of them spilled, {refused} refused"
        );
    }
    free.end()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if !(0.001..=10.0).contains(&args.scale)
        || args.rounds == 0
        || !(1..=22).contains(&args.queries)
    {
        return Err("--scale is from 0.001 to 10, --rounds from 1, --queries from 1 to 22".into());
    }
    if args.limits.iter().any(|mib| !(1..=1 << 20).contains(mib)) {
        return Err("--limits are numbers of MiB from 1 to 1048576".into());
    }
    match args.child {
        Some(pool) => child::run(pool, args.scale, args.max),
        None if args.limits.is_empty() => time(&args),
        None => limited(&args),
    }
}
