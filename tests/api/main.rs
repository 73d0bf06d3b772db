#![cfg(not(loom))]
//! Groups, counters and their events, as the programs that embed the library use them.
//!
//! * `groups`: groups in a tree, from create to offline; `events`: what is counted, waited for and
//!   listened to;
//! * `cover`: charges that pay for allocations; `current`: the group that a thread or a task is in;
//! * `observe`: limits that count and refuse no charge; `diagnosis`: what a group at its limit
//!   says;
//! * `drains`: what drains the stock of a counter; `idle`: credit of threads that sleep goes home;
//! * `edges`: threads that begin and end, calls of the system that fail;
//! * `page_counter`: nodes, statistics and names of counters alone;
//! * `refusals`: what a charge that is refused prints;
//! * `spec`: a tree of groups from a file, applied as a whole;
//! * `snapshot`: all groups with their figures, and the table of them;
//! * `incidents`: the last refusals and victims;
//! * `misuse`: wrong use of counters; `bad_input`: names, limits and configurations that do not
//!   hold;
//! * `pools`: with feature `tracing`, an event for each object that is taken, and for each drain;
//!   `refused`: and for refusals, in bounds.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod cover;
mod current;
mod diagnosis;
mod drains;
mod edges;
mod events;
mod groups;
mod idle;
mod incidents;
mod misuse;
mod observe;
mod page_counter;
#[cfg(feature = "tracing")]
mod pools;
mod refusals;
#[cfg(feature = "tracing")]
mod refused;
mod snapshot;
mod spec;
