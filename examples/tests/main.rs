#![cfg(not(loom))]
//! The examples, run as their users run them.

mod prints;
mod program;

mod cache;
mod descriptors;
mod page_counter;
mod rayon;
mod table;
mod vector;
