//! A pipeline of 20 groups with 10 tasks each, under an allocator that charges groups: who has the memory, and what it
//! costs to know.
//!
//! ```text
//! cd examples/pipeline
//! cargo run --release --example pipeline -- --live       the table, each second
//! cargo run --release --example pipeline -- --compare    the allocators side by side, in turns
//! ```
//!
//! With `--features serve`, `--serve FILE` opens a socket for `memcg-top` (`crates/memcg-top`), which shows the same
//! table and more. With `--features jemalloc` all of them wrap jemalloc in the place of the system's allocator.

mod allocator;
mod foreign;
mod samples;
mod scene;

use std::error::Error;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use allocator::{Chosen, Wrapper};
use clap::Parser;
use memcg::{Bytes, Group, Limit, Limits, Runtime};
use samples::Samples;
use scene::Progress;

#[global_allocator]
static ALLOCATOR: Chosen = Chosen;

/// Tasks of 20 groups pass buffers of 4 KiB to 1 MiB on to each other.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// The time of a run.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Print the table each second.
    #[arg(long)]
    live: bool,
    /// Many small objects beside the buffers.
    #[arg(long)]
    strings: bool,
    /// Run each allocator in turns, each so often as --rounds says.
    #[arg(long)]
    compare: bool,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Open a socket there that shows the groups of a run.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    serve: Option<std::path::PathBuf>,
}

/// The findings of one run, as a line that the comparison reads.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    messages_per_second: u64,
    /// Of processor time: what else the machine does shows less.
    messages_per_cpu_second: u64,
    residual: u64,
    drift: u64,
    samples: Samples,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match if args.compare { compare(&args) } else { run(&args) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pipeline: {error}");
            ExitCode::FAILURE
        }
    }
}

// === One run ===

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    allocator::prepare();
    let runtime = Runtime::builder().max(Limit::gib(2)).build()?;
    let shared = runtime.root().create("small", Limits::new())?;
    memcg_alloc::charge_unowned_to(Some(&shared));
    let limits = Limits::new().max(Limit::mib(256)).cover_allocations();
    let create = |number: u64| runtime.root().create(number, limits);
    let groups = (1..=20).map(create).collect::<Result<Vec<Group>, _>>()?;
    #[cfg(feature = "serve")]
    let shown = args.serve.as_ref().map(|path| memcg_observe::serve(&runtime, path)).transpose()?;
    let outcome = work(args, &runtime, &groups)?;
    #[cfg(feature = "serve")]
    drop(shown);
    memcg_alloc::charge_unowned_to(None);
    let verdict = runtime.verify();
    let Samples { taken, beyond, error, shown, apart } = outcome.samples;
    let Outcome { messages_per_second, messages_per_cpu_second, residual, drift, .. } = outcome;
    println!(
        "{}: messages/s {messages_per_second} messages/cpu-s {messages_per_cpu_second} residual {residual} drift {drift} \
         samples {taken} beyond {beyond} error {error} shown {shown} apart {apart}",
        Wrapper::chosen().name()
    );
    println!("{verdict}");
    if residual > 0 || beyond > 0 || !verdict.is_ok() || runtime.dying_count() > 0 {
        return Err("what is left is not what was there".into());
    }
    Ok(())
}

fn work(args: &Args, runtime: &Runtime, groups: &[Group]) -> Result<Outcome, Box<dyn Error>> {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let progress = Arc::new(Progress::default());
    let started = Instant::now();
    let tasks = {
        let _entered = tokio.enter();
        scene::start(groups, &progress, args.strings)
    };
    let samples = std::thread::scope(|scope| {
        let samples = scope.spawn(|| samples::take(groups, &progress));
        let until = started + Duration::from_secs_f64(args.seconds);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_secs(1).min(until.saturating_duration_since(Instant::now())));
            if args.live {
                print(runtime, &progress, started);
            }
        }
        progress.stop.store(true, Ordering::Relaxed);
        samples.join()
    });
    let messages = progress.messages.load(Ordering::Relaxed);
    let messages_per_second = (messages as f64 / started.elapsed().as_secs_f64()) as u64;
    let messages_per_cpu_second = (messages as f64 / processor_time().as_secs_f64()) as u64;
    tokio.block_on(async {
        for task in tasks {
            let _ = task.await;
        }
    });
    drop(tokio);
    memcg_alloc::settle();
    runtime.settle();
    let samples = samples.map_err(|_| "a sample panicked")?;
    Ok(Outcome {
        messages_per_second,
        messages_per_cpu_second,
        residual: samples::residual(groups),
        drift: samples::drift(),
        samples,
    })
}

/// The processor time of all threads of the process so far.
#[allow(unsafe_code)]
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the time.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(read, 0, "the clock of the process");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Prints the table in place: what each group has reserved and allocated.
fn print(runtime: &Runtime, progress: &Progress, started: Instant) {
    const HOME_AND_CLEAR: &str = "\x1b[H\x1b[J";
    let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    println!("{HOME_AND_CLEAR}{}", runtime.root().snapshot(1));
    println!(
        "{:.0} s, {} messages, {} passed on, {} groups came and went, {} tasks stopped at a checkpoint",
        started.elapsed().as_secs_f64(),
        load(&progress.messages),
        Bytes(load(&progress.bytes)),
        load(&progress.groups),
        load(&progress.refused),
    );
}

// === The allocators side by side ===

fn compare(args: &Args) -> Result<(), Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let mut rows: Vec<(Wrapper, Vec<u64>, String)> =
        Wrapper::ALL.map(|wrapper| (wrapper, Vec::new(), String::new())).into();
    let seconds = args.rounds as f64 * rows.len() as f64 * args.seconds;
    eprintln!("{} runs, {seconds:.0} s", args.rounds * rows.len());
    for _ in 0..args.rounds {
        for (wrapper, rates, last) in &mut rows {
            let mut child = Command::new(&program);
            child.env(allocator::VARIABLE.to_str()?, wrapper.name()).args(["--seconds", &args.seconds.to_string()]);
            if args.strings {
                child.arg("--strings");
            }
            let output = child.output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if !output.status.success() {
                return Err(format!("{}: {text}{}", wrapper.name(), String::from_utf8_lossy(&output.stderr)).into());
            }
            rates.push(figure(&text, "messages/cpu-s").ok_or("a run has no rate")?);
            *last = text;
        }
    }
    let bare = rows[0].1.clone();
    println!(
        "{:10} {:>14} {:>22} {:>10} {:>14}",
        "allocator", "messages/cpu-s", "of bare: least..most", "left over", "a group is off"
    );
    for (wrapper, mut rates, last) in rows {
        let mut ratios: Vec<f64> = rates.iter().zip(&bare).map(|(&rate, &bare)| rate as f64 / bare as f64).collect();
        ratios.sort_by(f64::total_cmp);
        rates.sort_unstable();
        let (least, most, middle) = (ratios[0], ratios[ratios.len() - 1], ratios[ratios.len() / 2]);
        println!(
            "{:10} {:>14} {:>22} {:>10} {:>14}",
            wrapper.name(),
            rates[rates.len() / 2],
            format!("{middle:.3}: {least:.3}..{most:.3}"),
            figure(&last, "residual").unwrap_or(0),
            match wrapper {
                Wrapper::Naive | Wrapper::Tracking => Bytes(figure(&last, "drift").unwrap_or(0)).to_string(),
                _ => "-".into(),
            },
        );
        if wrapper == Wrapper::Exact {
            println!("  {}", last.lines().next().unwrap_or_default());
        }
    }
    Ok(())
}

/// The number behind a word.
fn figure(text: &str, name: &str) -> Option<u64> {
    text.split_whitespace().skip_while(|&word| word != name).nth(1)?.parse().ok()
}
