//! Any operations on the statistics of groups, in any order, against the naive twin in
//! `tests/properties/oracle/stats`.
//!
//! Under `cargo fuzz` this is a libFuzzer target; built without it, see `fuzz/replay.rs`.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../tests/properties/oracle/mod.rs"]
mod oracle;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| oracle::stats::run::run_bytes(data));

#[cfg(not(fuzzing))]
#[path = "../replay.rs"]
mod replay;

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    replay::replay(oracle::stats::run::run_bytes)
}
