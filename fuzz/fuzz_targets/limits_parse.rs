//! Any text against the naive second parser of `tests/properties/units/twin.rs`.
//!
//! Under `cargo fuzz` this is a libFuzzer target; built without it, see `fuzz/replay.rs`.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../tests/properties/units/twin.rs"]
mod twin;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));

/// One input; bytes that are no text have nothing to say to a parser of `&str`.
fn run(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        twin::check(text);
    }
}

#[cfg(not(fuzzing))]
#[path = "../replay.rs"]
mod replay;

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    replay::replay(run)
}
