#![cfg(not(loom))]
//! Holds the architecture: which file imports which, which folder uses which part of `sync`, one
//! door to concurrency, every ordering edge explained and modelled, types in few files, plain
//! words. It reads the sources as text, for what it looks for is written, not compiled. Each rule
//! is tried on a made-up tree that breaks it.

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
#[path = "tidy/types.rs"]
mod types;
#[path = "tidy/words.rs"]
mod words;
#[path = "tidy/workflows.rs"]
mod workflows;
