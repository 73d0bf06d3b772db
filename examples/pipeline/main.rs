//! A pipeline of 20 groups with 10 tasks each, under an allocator that charges groups: who has the
//! memory. The program counts for itself what each group owns, and fails where the ledgers say
//! something else.
//!
//! ```text
//! cd examples/pipeline
//! cargo run --release --example pipeline -- --live       the table, each second
//! ```
//!
//! With `--features serve`, `--serve FILE` opens a socket for `memcg-top` (`crates/memcg-top`),
//! which shows the same table and more. With `--features jemalloc` the allocator wraps jemalloc in
//! the place of the system's.

mod allocator;
mod foreign;
mod samples;
mod scene;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use allocator::Counting;
use clap::Parser;
use memcg::{Bytes, Group, Limit, Limits, Runtime};
use samples::Samples;
use scene::Progress;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    /// Open a socket there that shows the groups of a run.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE")]
    serve: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pipeline: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().max(Limit::gib(2)).build()?;
    let shared = runtime.root().create("small", Limits::new())?;
    memcg_alloc::charge_unowned_to(Some(&shared));
    let limits = Limits::new().max(Limit::mib(256)).cover_allocations();
    let create = |number: u64| runtime.root().create(number, limits);
    let groups = (1..=20).map(create).collect::<Result<Vec<Group>, _>>()?;
    #[cfg(feature = "serve")]
    let shown = args
        .serve
        .as_ref()
        .map(|path| memcg_observe::serve(&runtime, path))
        .transpose()?;
    let (messages_per_second, samples) = work(args, &runtime, &groups)?;
    #[cfg(feature = "serve")]
    drop(shown);
    let residual = samples::residual(&groups);
    memcg_alloc::charge_unowned_to(None);
    let verdict = runtime.verify();
    let Samples {
        taken,
        beyond,
        error,
    } = samples;
    println!(
        "{messages_per_second} messages/s; {taken} samples, {beyond} of them off, by {error} bytes at most"
    );
    println!("at the end the ledgers are off by {residual} bytes");
    println!("{verdict}");
    if residual > 0 || beyond > 0 || !verdict.is_ok() || runtime.dying_count() > 0 {
        return Err("what is left is not what was there".into());
    }
    Ok(())
}

/// Returns the messages per second and the samples.
fn work(
    args: &Args,
    runtime: &Runtime,
    groups: &[Group],
) -> Result<(u64, Samples), Box<dyn Error>> {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()?;
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
            std::thread::sleep(
                Duration::from_secs(1).min(until.saturating_duration_since(Instant::now())),
            );
            if args.live {
                print(runtime, &progress, started);
            }
        }
        progress.stop.store(true, Ordering::Relaxed);
        samples.join()
    });
    let messages = progress.messages.load(Ordering::Relaxed);
    let messages_per_second = (messages as f64 / started.elapsed().as_secs_f64()) as u64;
    tokio.block_on(async {
        for task in tasks {
            let _ = task.await;
        }
    });
    drop(tokio);
    memcg_alloc::catch_up();
    runtime.settle();
    Ok((
        messages_per_second,
        samples.map_err(|_| "a sample panicked")?,
    ))
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
