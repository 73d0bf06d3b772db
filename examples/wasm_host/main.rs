//! Three tenants run modules in one service, and the module of one grows without end. The service
//! runs three times in a control group of the system: without a limit, with `StoreLimits` of equal
//! shares, with groups. A table and JSON say who was served, who was refused, and whether the
//! kernel has killed the service (137).
//!
//! ```sh
//! cargo run --release --manifest-path crates/Cargo.toml -p memcg-examples-wasm-host
//! ```

#[path = "../ballista/control_group.rs"]
mod control_group;
mod load;
mod report;
mod service;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use memcg::Bytes;
use serde::Serialize;

/// The limiter of all modules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Policy {
    /// Nothing.
    None,
    /// wasmtime's own limiter: the budget in equal shares for each store that may run.
    StoreLimits,
    /// `memcg-wasmtime`.
    Groups,
}

const POLICIES: [Policy; 3] = [Policy::None, Policy::StoreLimits, Policy::Groups];

#[derive(Parser)]
struct Options {
    /// The limit of the service's control group; the modules share 70 % of it
    #[arg(long, default_value = "256MiB")]
    limit: Bytes,
    /// The number of requests of each tenant
    #[arg(long, default_value_t = 24)]
    requests: usize,
    /// Only one of the policies
    #[arg(long)]
    only: Option<Policy>,
    /// A file for the figures as JSON, in the place of the last line
    #[arg(long)]
    json: Option<PathBuf>,
    /// No control group: without a limit the service is killed by none, so that policy is left out
    #[arg(long)]
    quick: bool,
    /// The service itself
    #[arg(long, hide = true)]
    serve: Option<Policy>,
}

impl Options {
    fn check(&self) -> Result<(), &'static str> {
        if self.limit < Bytes(64 << 20) {
            return Err("--limit is at least 64 MiB");
        }
        if !(1..=10_000).contains(&self.requests) {
            return Err("--requests is a number from 1 to 10000");
        }
        if self.quick && self.only == Some(Policy::None) {
            return Err(
                "--quick has no control group: without a limit nothing would end the service",
            );
        }
        Ok(())
    }

    /// The bytes that the modules may have together.
    fn budget(&self) -> u64 {
        self.limit.0 / 10 * 7
    }

    fn policies(&self) -> impl Iterator<Item = Policy> {
        let chosen = move |policy: &Policy| match self.only {
            Some(only) => only == *policy,
            None => !self.quick || *policy != Policy::None,
        };
        POLICIES.into_iter().filter(chosen)
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    options.check()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()?;
    if let Some(policy) = options.serve {
        return runtime.block_on(service::serve(policy, options.budget()));
    }
    let mut outcomes = Vec::new();
    for (number, policy) in options.policies().enumerate() {
        outcomes.push(runtime.block_on(load::run(policy, number, options))?);
    }
    print!("{}", report::table(options, &outcomes));
    let json = serde_json::to_string(&outcomes)?;
    match &options.json {
        Some(file) => std::fs::write(file, json)?,
        None => println!("{json}"),
    }
    Ok(())
}
