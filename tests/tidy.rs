#![cfg(not(loom))]
//! Holds what a compiler does not: files that use each other in one direction, one door to
//! concurrency, an explanation and a model for every ordering edge, pages that name what exists. It
//! reads the sources as text, for what it looks for is written, not compiled. `tidy/rules.rs` has
//! the rules with their reasons; there is none for form.

#[path = "tidy/calls.rs"]
mod calls;
#[path = "tidy/changelog.rs"]
mod changelog;
#[path = "tidy/door.rs"]
mod door;
#[path = "tidy/edges.rs"]
mod edges;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/graph.rs"]
mod graph;
#[path = "tidy/made_up.rs"]
mod made_up;
#[path = "tidy/mutations.rs"]
mod mutations;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/orderings.rs"]
mod orderings;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/parts.rs"]
mod parts;
#[path = "tidy/reader.rs"]
mod reader;
#[path = "tidy/readme.rs"]
mod readme;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/series.rs"]
mod series;
#[path = "tidy/workflows.rs"]
mod workflows;
