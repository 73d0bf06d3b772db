//! The tables and pictures of the examples and benches.
//!
//! * [`terminal`]: how wide it is, colours by state, lines drawn in place.
//! * [`table`]: tables that fit it.
//! * [`chart`]: pictures as SVG, readable on a light and on a dark page.

pub mod chart;
pub mod table;
pub mod terminal;
