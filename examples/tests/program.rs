//! An example's program, built as this test was, to be run as its users run it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder where cargo puts examples: beside the folder of this test's own program.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("a profile folder");
    let program = profile
        .join("examples")
        .join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    // `cargo test` builds the examples, `cargo test --test NAME` does not, and leaves what is there
    // as it was.
    build(name, profile);
    assert!(program.exists(), "no example at {}", program.display());
    program
}

/// With the workspace's packages as `cargo test` has chosen them: for one package alone cargo would
/// compile most of the dependencies once more, with fewer features.
fn build(name: &str, profile: &Path) {
    let folder = profile
        .file_name()
        .expect("target/<profile>")
        .to_str()
        .expect("a profile's name");
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = above
        .find(|folder| folder.join("Cargo.lock").exists())
        .expect("a workspace with a lock file");
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--locked",
            "--quiet",
            "--example",
            name,
            "--manifest-path",
        ])
        .arg(root.join("Cargo.toml"))
        .args([
            "--profile",
            if folder == "debug" { "dev" } else { folder },
            "--target-dir",
        ])
        .arg(profile.parent().expect("a target folder"))
        .status();
    assert!(status.expect("cargo runs").success());
}
