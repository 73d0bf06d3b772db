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
//! | file | what it holds |
//! |---|---|
//! | `round` | a round: which groups are asked, for how much, what came of it |
//! | `repeat` | round after round: how many, for how long |
//! | `registrations`, `excess`, `effective` | what a round knows of groups: their reclaimers, their excess, their protection |
//! | `rings` | which group has which ring |
//! | `turns`, `protection` | the turns in the rings and the arithmetic of protection, without any group |
//! | `report` | what a caller gets |
//!
//! `state::reclaim` has the rings and lists as data; `state::{reclaimer, reclaim_context, history}` what foreign code
//! implements, what it is called with, and what is remembered of it.
//!
//! The protocol and its races are in `README.md`.

pub(crate) mod effective;
pub(crate) mod excess;
mod protection;
pub(crate) mod registrations;
pub(crate) mod repeat;
pub(crate) mod report;
pub(crate) mod rings;
pub(crate) mod round;
pub(crate) mod turns;
