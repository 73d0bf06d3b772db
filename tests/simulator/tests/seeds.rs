#![cfg(all(debug_assertions, not(any(loom, shuttle))))]
//! Some hundreds of seeds, as part of the ordinary tests.

use std::time::{Duration, Instant};

use memcg_simulator::{run, run_at_once, script};

/// Other seeds than a run by hand begins with.
const FROM: u64 = 1_000_000;
const SEEDS: u64 = 400;

#[test]
fn runs_agree_with_the_twin() {
    for seed in FROM..FROM + SEEDS {
        let (setup, ops) = script::draw(seed);
        if let Err(failure) = run(&setup, &ops) {
            panic!("`cargo run -p memcg-simulator -- {seed}` tells it: {failure}");
        }
    }
}

/// The step of the adapters runs it: `cargo test` compiles none of them.
#[cfg(feature = "adapters")]
#[test]
fn runs_with_adapters_agree_with_the_twin() {
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

/// For some seconds; the program runs longer.
#[test]
fn threads_that_run_at_once_come_to_rest() {
    let until = Instant::now() + Duration::from_secs(4);
    for seed in (FROM..).take_while(|_| Instant::now() < until) {
        let (setup, ops) = script::draw(seed);
        if let Err(failure) = run_at_once(&setup, &ops) {
            panic!("seed {seed} of `cargo run -p memcg-simulator -- --at-once`: {failure}");
        }
    }
}
