#![cfg(not(any(loom, shuttle)))]
//! Some hundreds of seeds, as part of the ordinary tests.

use memcg_simulator::{run, script};

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
