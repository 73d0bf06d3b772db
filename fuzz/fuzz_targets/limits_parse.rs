//! Any text against the naive second parser of `tests/units/twin.rs`.
//!
//! Under `cargo fuzz` this is a libFuzzer target. Built without it, it is a program that replays
//! the files and folders it is given, so a corpus can be checked on the stable toolchain.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../tests/units/twin.rs"]
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
fn main() -> std::io::Result<()> {
    let mut paths: Vec<std::path::PathBuf> = std::env::args_os().skip(1).map(Into::into).collect();
    let mut replayed = 0_usize;
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            for entry in std::fs::read_dir(path)? {
                paths.push(entry?.path());
            }
        } else {
            run(&std::fs::read(path)?);
            replayed += 1;
        }
    }
    println!("{replayed} inputs hold");
    Ok(())
}
