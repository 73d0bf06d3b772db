#![cfg(not(loom))]
//! The examples, run as their users run them.

mod prints;
mod program;

mod cache;
mod descriptors;
mod etl;
mod page_counter;
mod shuffle;
mod table;
