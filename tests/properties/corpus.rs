//! The committed corpora of the fuzz targets, replayed on the stable toolchain.

use std::path::Path;

use crate::oracle;
use crate::units::twin;

/// Calls `target` with every file of a corpus, and names the one that fails.
fn replay(corpus: &str, target: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(corpus);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut replayed = 0;
    for entry in entries {
        let path = entry.expect("a folder can be read to its end").path();
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        println!("{}", path.display());
        target(&bytes);
        replayed += 1;
    }
    assert!(replayed > 0, "{} is empty", folder.display());
}

#[test]
fn ops() {
    replay("ops", oracle::counters::run::run_bytes);
}

#[test]
fn stats() {
    replay("stats", oracle::stats::run::run_bytes);
}

#[test]
fn limits_parse() {
    replay("limits_parse", |bytes| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            twin::check(text);
        }
    });
}
