//! A service of axum with three tenants under one budget, and a client of its own process that floods it.
//!
//! ```text
//! cargo run --release --manifest-path crates/Cargo.toml --example http_service                   ours, about 20 s
//! cargo run --release --manifest-path crates/Cargo.toml --example http_service -- --policy all   with all peers
//! ```
//!
//! `--throughput 300` has ours answer in turns with the same service without it, about a minute, and prints the ratio of
//! their requests a second, and in a second of processor time.
//!
//! With `--features serve`, `--serve FILE` opens a socket for `memcg-top`.
//!
//! Tenant `a` reads values of 4 KiB, of which a hot set fits its `low`. Tenant `b` scans values of 256 KiB over eight times
//! the budget. Tenant `c` reads answers of 1 MiB slowly, and has idle connections. The client runs `a` alone, then all
//! three, then `a` alone again, and at last `b` alone beside the cache that `a` has left. A policy is
//! what stands between them and the memory.

mod client;
mod policy;
mod service;
mod throughput;

use std::error::Error;
use std::net::Ipv4Addr;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;

use policy::{Policy, Sizes};

#[derive(Parser)]
#[command(about = "Three tenants of an HTTP service under one budget")]
struct Args {
    /// ours, unlimited, concurrency, semaphore, moka, moka-static, foyer, or all
    #[arg(long, default_value = "ours")]
    policy: String,
    /// Divides the budget of 256 MiB, and all values with it
    #[arg(long, default_value_t = 1)]
    scale: usize,
    /// Seconds for each of the three phases
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Asks ours and the same service without it in so many pairs of turns, and prints the ratio of their throughput
    #[arg(long, value_name = "PAIRS")]
    throughput: Option<usize>,
    /// Opens a socket there that shows the groups of ours while they serve
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE")]
    serve: Option<std::path::PathBuf>,
    /// Used by the program itself: prints no head
    #[arg(long, hide = true)]
    bare: bool,
    /// Used by the program itself: runs the client against this address
    #[arg(long, hide = true)]
    client: Option<std::net::SocketAddr>,
    /// Used by the program itself: the service to ask in turns with that
    #[arg(long, hide = true, requires = "client")]
    other: Option<std::net::SocketAddr>,
}

/// Resident bytes of this process; 0 where the system does not say.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Runs one policy and its client. Returns whether the goals were met; a peer has none.
fn run(name: &str, args: &Args) -> Result<bool, Box<dyn Error>> {
    let sizes = Sizes::new(args.scale);
    let policy = Policy::new(name, sizes)?;
    #[cfg(feature = "serve")]
    let shown = match (&args.serve, &policy) {
        (Some(path), Policy::Ours(ours)) => Some(memcg_observe::serve(&ours.budget, path)?),
        _ => None,
    };
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let before = resident();
    let (report, most, resident) = tokio.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.set_send_buffer_size(u32::try_from(sizes.socket)?)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let listener = socket.listen(1024)?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(service::serve(listener, policy.clone()));
        let mut client = tokio::process::Command::new(std::env::current_exe()?)
            .args(["--client", &address.to_string(), "--scale", &args.scale.to_string()])
            .args(["--seconds", &args.seconds.to_string()])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (mut most, mut most_resident) = (0, 0);
        let status = loop {
            tokio::select! {
                status = client.wait() => break status?,
                () = tokio::time::sleep(Duration::from_millis(1)) => {
                    most = most.max(policy.charged());
                    most_resident = most_resident.max(resident());
                }
            }
        };
        let mut report = String::new();
        if let Some(mut printed) = client.stdout.take() {
            printed.read_to_string(&mut report).await?;
        }
        server.abort();
        if !status.success() {
            return Err(format!("the client failed: {status}\n{report}").into());
        }
        Ok::<_, Box<dyn Error>>((report, most, most_resident.saturating_sub(before)))
    })?;
    drop(tokio);
    #[cfg(feature = "serve")]
    drop(shown);
    let report = client::Report::parse(&report)?;
    println!("{name:<12} {report} {:>8} {:>8}", mib(most), mib(resident));
    policy.end(most, &report)
}

/// Each policy in a process of its own, whose resident memory is its own.
fn run_all(args: &Args) -> Result<bool, Box<dyn Error>> {
    let mut met = true;
    for name in policy::NAMES {
        let mut program = std::process::Command::new(std::env::current_exe()?);
        program.args(["--bare", "--policy", name, "--scale", &args.scale.to_string()]);
        met &= program.args(["--seconds", &args.seconds.to_string()]).status()?.success();
    }
    Ok(met)
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    if args.scale == 0 || args.seconds == 0 {
        return Err("--scale and --seconds are numbers from 1 on".into());
    }
    if args.throughput.is_some_and(|pairs| pairs < throughput::PAIRS_MIN) {
        return Err(format!("--throughput is a number from {} on", throughput::PAIRS_MIN).into());
    }
    let sizes = Sizes::new(args.scale);
    if let Some(address) = args.client {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        if let (Some(other), Some(pairs)) = (args.other, args.throughput) {
            let pairs = tokio.block_on(throughput::client([address, other], sizes, pairs));
            print!("{}", pairs.map_err(|failure| failure as Box<dyn Error>)?);
            return Ok(ExitCode::SUCCESS);
        }
        let report = tokio.block_on(client::run(address, sizes, args.seconds));
        println!("{}", report.map_err(|failure| failure as Box<dyn Error>)?.line());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(pairs) = args.throughput {
        throughput::run(pairs, sizes, args.scale)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.bare {
        println!("{:<12} {} {:>8} {:>8}", "", client::Report::HEAD, "charged", "resident");
    }
    let met = if args.policy == "all" { run_all(&args)? } else { run(&args.policy, &args)? };
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
