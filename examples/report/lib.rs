//! What the examples and benches print and draw.
//!
//! * [`chart`]: pictures as SVG, readable on a light and on a dark page.

pub mod chart;
