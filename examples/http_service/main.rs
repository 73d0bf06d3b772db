//! A service of axum with three tenants under one budget, and a client of its own process that
//! floods it.
//!
//! ```text
//! cargo run --release --manifest-path crates/Cargo.toml --example http_service                   ours, about 20 s
//! cargo run --release --manifest-path crates/Cargo.toml --example http_service -- --policy all   with all peers
//! ```
//!
//! With `--features serve`, `--serve FILE` opens a socket for `memcg-top`.
//!
//! Tenant `a` reads values of 4 KiB, of which a hot set fits its `low`. Tenant `b` scans values of
//! 256 KiB over eight times the budget. Tenant `c` reads answers of 1 MiB slowly, and has idle
//! connections. The client runs `a` alone, then all three, then `a` alone again, and at last `b`
//! alone beside the cache that `a` has left. A policy is what stands between them and the memory.

mod client;
mod policy;
mod service;

use std::error::Error;
use std::net::Ipv4Addr;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::{Parser, value_parser};
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;

use policy::{Policy, Sizes};

#[derive(Parser)]
#[command(about = "Three tenants of an HTTP service under one budget")]
struct Args {
    /// ours, unlimited, concurrency, split, or all
    #[arg(long, default_value = "ours")]
    policy: String,
    /// Divides the budget of 256 MiB, and all values with it
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u16).range(1..))]
    scale: u16,
    /// Seconds for each of the three phases
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..))]
    seconds: u64,
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
}

/// Resident bytes of this process; 0 where the system does not say.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .unwrap_or(0)
        * 4096
}

/// Runs one policy and its client. Returns whether the goals were met; a peer has none.
fn run(name: &str, args: &Args) -> Result<bool, Box<dyn Error>> {
    let sizes = Sizes::new(args.scale.into());
    let policy = Policy::new(name, sizes)?;
    #[cfg(feature = "serve")]
    let shown = match (&args.serve, &policy) {
        (Some(path), Policy::Ours(ours)) => Some(memcg_observe::serve(&ours.budget, path)?),
        _ => None,
    };
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let before = resident();
    let (report, most, resident) = tokio.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.set_send_buffer_size(u32::try_from(sizes.socket)?)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let listener = socket.listen(1024)?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(service::serve(listener, policy.clone()));
        let mut client = tokio::process::Command::new(std::env::current_exe()?)
            .args([
                "--client",
                &address.to_string(),
                "--scale",
                &args.scale.to_string(),
            ])
            .args(["--seconds", &args.seconds.to_string()])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut most = 0;
        let mut most_resident = 0;
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
    let report = serde_json::from_str(&report)?;
    println!("{name:<11}{report} {:>8} {:>8}", mib(most), mib(resident));
    policy.end(most, &report)
}

/// Each policy in a process of its own, whose resident memory is its own.
fn run_all(args: &Args) -> Result<bool, Box<dyn Error>> {
    let mut met = true;
    for name in policy::NAMES {
        let mut program = std::process::Command::new(std::env::current_exe()?);
        program.args([
            "--bare",
            "--policy",
            name,
            "--scale",
            &args.scale.to_string(),
        ]);
        met &= program
            .args(["--seconds", &args.seconds.to_string()])
            .status()?
            .success();
    }
    Ok(met)
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let sizes = Sizes::new(args.scale.into());
    if let Some(address) = args.client {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let report = tokio.block_on(client::run(address, sizes, args.seconds));
        println!(
            "{}",
            serde_json::to_string(&report.map_err(|failure| failure as Box<dyn Error>)?)?
        );
        return Ok(ExitCode::SUCCESS);
    }
    if !args.bare {
        println!("Tenant a before, during and after the flood; charged and resident in MiB.");
        println!(
            "{:<11}{} {:>8} {:>8}",
            "",
            client::Report::HEAD,
            "charged",
            "resident"
        );
    }
    let met = if args.policy == "all" {
        run_all(&args)?
    } else {
        run(&args.policy, &args)?
    };
    Ok(if met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
