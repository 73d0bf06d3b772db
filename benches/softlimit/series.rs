//! The patch series' averages in per cent of its base, to stand beside ours.

#![cfg(not(loom))]

use super::policy::Variant;

/// The setups of the tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Setup {
    NoLimit,
    ZeroLimit,
    Stream,
}

/// A figure that the series measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Figure {
    System,
    Elapsed,
    Refaults,
}

pub(crate) fn print() {
    println!(
        "For comparison, Michal Hocko, \"[patch v4] Soft limit rework\", 3 June 2013: two kernel builds with -j4 each\n\
         on 8 processors and 1 GB, 6 runs; a stream of 4 x memory beside a program that holds all but 1 GB of 8 GB, 3\n\
         runs. Seconds of base: no limit, system 243.92, elapsed 605.52; 0 limit, 250.19 and 784.87, with 29,961.83\n\
         major faults; stream, 130.77 and 407.62.\n"
    );
}

/// Averages of rework and reworkoptim.
fn averages(setup: Setup, figure: Figure) -> Option<(f64, f64)> {
    Some(match (setup, figure) {
        (Setup::NoLimit, Figure::System) => (99.5, 99.9),
        (Setup::NoLimit, Figure::Elapsed) => (98.4, 99.0),
        (Setup::ZeroLimit, Figure::System) => (96.7, 97.7),
        (Setup::ZeroLimit, Figure::Elapsed) => (76.1, 76.6),
        (Setup::ZeroLimit, Figure::Refaults) => (2.7, 3.0),
        (Setup::Stream, Figure::System) => (133.2, 229.7),
        (Setup::Stream, Figure::Elapsed) => (108.2, 97.9),
        (Setup::NoLimit | Setup::Stream, Figure::Refaults) => return None,
    })
}

/// The series' figure, if it has one.
pub(crate) fn per_cent(setup: Setup, figure: Figure, variant: Variant) -> Option<f64> {
    let (rework, reworkoptim) = averages(setup, figure)?;
    match variant {
        Variant::Base => Some(100.0),
        Variant::BaseQuarter => None,
        Variant::Rework => Some(rework),
        Variant::Reworkoptim => Some(reworkoptim),
    }
}
