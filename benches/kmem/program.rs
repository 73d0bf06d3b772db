//! The order of the tables and rows, and what is measured.

#![cfg(not(loom))]

mod end_to_end;
mod machine;
mod rows;
mod series;
mod table;
mod turns;
mod variant;
mod walk;

pub(crate) const SIZES: [usize; 5] = [64, 256, 1_024, 4_096, 8_192];

pub(crate) fn main() {
    let word = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let bench = std::env::args().any(|word| word == "--bench");
    if word.is_none() || word.as_deref() == Some("table") {
        // Tried, as `cargo test` does: a few turns show that it works.
        table::print(if bench { turns::TURNS } else { 2 });
    }
    if word.as_deref() != Some("table") {
        rows::run();
    }
}
