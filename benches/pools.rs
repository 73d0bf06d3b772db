//! The patch series' before and after, as seen here: what a group and its parts ask for, and what
//! size classes, objects at whole cache lines and packed ones give.
//!
//! `cargo bench --bench pools [-- --groups N --runs N]`
//!
//! As the series has it from the kernel's trace, all of it comes from the events of the pools, one
//! for each allocation, on machines of 1, 2 and 8 nodes; then what is really resident of so many
//! groups, each way in processes of its own. The events are feature `tracing`'s: built without, the
//! program has itself built and started with it.

#[cfg(all(not(loom), feature = "tracing"))]
mod common;
#[cfg(not(loom))]
#[path = "pools/options.rs"]
mod options;
#[cfg(all(not(loom), feature = "tracing"))]
#[path = "pools/program.rs"]
mod program;

#[cfg(all(not(loom), feature = "tracing"))]
fn main() {
    program::main();
}

#[cfg(all(not(loom), not(feature = "tracing")))]
fn main() -> std::process::ExitCode {
    use std::process::{Command, ExitCode};

    // A list and a wrong filter need no other build.
    let options = options::Options::read();
    let _chosen = options.chosen();
    // Set by `cargo bench`, which adds `--bench` itself.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--bench");
    // Cargo builds from the root, as it did before: then most of the dependencies are there. It is
    // not quiet: the rest takes a while, and cargo says what it does.
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let with_events = [
        "bench",
        "--manifest-path",
        root,
        "--bench",
        "pools",
        "--features",
        "memcg-benches/tracing",
        "--",
    ];
    match Command::new(cargo).args(with_events).args(args).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pools: cargo, to build with feature tracing: {error}");
            ExitCode::FAILURE
        }
    }
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
