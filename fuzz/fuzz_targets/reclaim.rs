//! Any operations on groups under pressure, with reclaimers of all characters: see `tests/oracle/reclaim`.
//!
//! Under `cargo fuzz` this is a libFuzzer target. Built without it, it is a program that replays
//! the files and folders it is given, so a corpus can be checked on the stable toolchain.
#![cfg_attr(fuzzing, no_main)]

#[path = "../../tests/oracle/mod.rs"]
mod oracle;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| oracle::reclaim::run::run_bytes(data));

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
            oracle::reclaim::run::run_bytes(&std::fs::read(path)?);
            replayed += 1;
        }
    }
    println!("{replayed} inputs hold");
    Ok(())
}
