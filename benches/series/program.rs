//! Runs what the chapters of the patch series name, and says for each claim what came out:
//! `.ci/series`.
//!
//! The chapters are data: `docs/src/series/NAME.md`, in the form that `chapter.rs` explains. For
//! each chapter the program runs the tests that its claims and patches name (`cargo test`), then
//! its commands (`cargo bench --bench …`), whose lines `claim ID VERDICT: …` come from
//! `benches/common/claims.rs`; with `--full` the models as well (`.ci/loom`).
//!
//! It fails where a command or a test fails, where a claim gets no verdict, where a line names a
//! claim that no chapter has, and where a verdict contradicts the chapter. A quick run has few
//! rounds: what it says of times (`timed`) is printed and does not fail the run; *open* means that
//! this run cannot say.

#[cfg(not(loom))]
mod chapter;
#[cfg(not(loom))]
mod outcome;
#[cfg(not(loom))]
mod page;
#[cfg(not(loom))]
mod start;

#[cfg(not(loom))]
fn main() -> std::process::ExitCode {
    start::main()
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
