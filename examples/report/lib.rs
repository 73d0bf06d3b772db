//! The tables and pictures of the examples and benches.
//!
//! * [`terminal`]: how wide it is, colours by state, lines drawn in place.
//! * [`table`]: tables that fit it; the same as CSV.
//! * [`chart`]: pictures as SVG, readable on a light and on a dark page.
//! * [`page`]: one page of HTML with tables and charts, which needs nothing from outside.

pub mod chart;
pub mod page;
pub mod table;
pub mod terminal;
