//! Any operations on groups under pressure, with reclaimers of all characters: see
//! `tests/properties/oracle/reclaim`.
//!
//! Under `cargo fuzz` this is a libFuzzer target; built without it, see `fuzz/replay.rs`.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../tests/properties/oracle/mod.rs"]
mod oracle;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| oracle::reclaim::run::run_bytes(data));

#[cfg(not(fuzzing))]
#[path = "../replay.rs"]
mod replay;

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    replay::replay(oracle::reclaim::run::run_bytes)
}
