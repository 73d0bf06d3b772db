//! Which groups give memory back, and in which order.
//!
//! ```text
//! a charge refused at L, or L.set_max below usage, or L.reclaim(n)
//!   round ─> soft pass: groups in excess below L ─┐
//!         ─> all groups that are not protected    ├─ ring by ring, lap by lap: weigh, ask, count what came back
//!         ─> where nothing came: those below low ─┘
//!   charge again, at most 16 rounds ─> refuse
//! ```
//!
//! `round` asks groups, `repeat` asks for rounds, `start` has reclaimers begin on threads of their
//! own; `registrations`, `excess` and `effective` say what a round knows of a group; `rings` and
//! `turns` say whose turn it is; `watch` says which reclaimer does not return. `state::{reclaim, reclaimer}` have the data.
//!
//! The protocol and its races are in `README.md`.

pub(crate) mod excess;
pub(crate) mod registrations;
pub(crate) mod repeat;
pub(crate) mod rings;
pub(crate) mod round;
pub(crate) mod shares;
pub(crate) mod start;
pub(crate) mod turns;
pub(crate) mod watch;
