#![cfg(all(debug_assertions, not(loom)))]
//! Some hundreds of seeds, as part of the ordinary tests.

use std::sync::{Mutex, MutexGuard, PoisonError};
#[cfg(not(shuttle))]
use std::time::{Duration, Instant};

#[cfg(not(shuttle))]
use memcg_simulator::run_at_once;
#[cfg(shuttle)]
use memcg_simulator::script::{Op, Setup};
use memcg_simulator::{run, script};

/// Other seeds than a run by hand begins with.
const FROM: u64 = 1_000_000;
const SEEDS: u64 = 400;

/// One test at a time: a life looks at the size of the heap, which the script that another test draws
/// would be a part of.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(shuttle))]
#[test]
fn runs_agree_with_the_twin() {
    let _alone = alone();
    for seed in FROM..FROM + SEEDS {
        let (setup, ops) = script::draw(seed);
        if let Err(failure) = run(&setup, &ops) {
            panic!("`cargo run -p memcg-simulator -- {seed}` tells it: {failure}");
        }
    }
}

/// The step of the adapters runs it: `cargo test` compiles none of them.
#[cfg(all(feature = "adapters", not(shuttle)))]
#[test]
fn runs_with_adapters_agree_with_the_twin() {
    let _alone = alone();
    for seed in FROM..FROM + SEEDS {
        let (setup, ops) = script::draw_with_adapters(seed);
        if let Err(failure) = run(&setup, &ops) {
            panic!(
                "`cargo run -p memcg-simulator --features adapters -- --adapters {seed}` tells it: \
                 {failure}"
            );
        }
    }
}

/// Each seed is a script and a schedule of shuttle's threads. `SHUTTLE_RUNS=20`: so many times as many;
/// `SHUTTLE_SEED=N`: others.
#[cfg(shuttle)]
fn threads_come_to_rest(draw: fn(u64) -> (Setup, Vec<Op>), words: &str) {
    let _alone = alone();
    let number =
        |name, default| std::env::var(name).map_or(default, |set| set.parse().expect("a number"));
    let from = FROM + number("SHUTTLE_SEED", 0) * 10_000;
    for seed in from..from + SEEDS * number("SHUTTLE_RUNS", 1) {
        let (setup, ops) = draw(seed);
        if let Err(failure) = run(&setup, &ops) {
            panic!(
                "`RUSTFLAGS='--cfg shuttle' cargo run --profile shuttle -p memcg-simulator -- {words}{seed}` \
                 tells it: {failure}"
            );
        }
    }
}

#[cfg(shuttle)]
#[test]
fn shuttle_threads_of_a_seed_come_to_rest() {
    threads_come_to_rest(script::draw, "");
}

#[cfg(all(feature = "kmem", shuttle))]
#[test]
fn shuttle_threads_that_share_containers_come_to_rest() {
    threads_come_to_rest(script::draw_with_containers, "--containers ");
}

/// For some seconds; the program runs longer.
#[cfg(not(shuttle))]
#[test]
fn threads_that_run_at_once_come_to_rest() {
    let _alone = alone();
    let until = Instant::now() + Duration::from_secs(4);
    for seed in (FROM..).take_while(|_| Instant::now() < until) {
        let (setup, ops) = script::draw(seed);
        if let Err(failure) = run_at_once(&setup, &ops) {
            panic!("seed {seed} of `cargo run -p memcg-simulator -- --at-once`: {failure}");
        }
    }
}
