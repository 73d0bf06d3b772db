//! An example's program, as `cargo test` has built it beside this test.

use std::path::{Path, PathBuf};

/// `cargo test --test NAME` builds no example: add `--examples`. Cargo is not asked to build this
/// one here: it would be for one package alone, with fewer features, and so most of the
/// dependencies would be compiled once more.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("a profile folder");
    let program = profile
        .join("examples")
        .join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(
        program.exists(),
        "no example at {}: cargo test --examples builds it",
        program.display()
    );
    program
}
