//! Tasks in groups: of an engine alone, and of a cluster in this process.

mod cluster;
mod data;
mod tasks;
