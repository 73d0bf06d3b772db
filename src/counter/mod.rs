//! A tree of counters with stock: limits that are exact and may refuse. Complete without any
//! policy.
//!
//! ```text
//! charge(n)
//!   this thread's stock ── hit ──> done                          no shared write, no read-modify-write
//!         │ miss: ask for a batch
//!   counter ─> parent ─> … ─> root                               each level: usage + n <= max, or refuse
//!         │ refused at level L
//!   close and drain L's subtree ─> retry ─> pressure hook ─> retry ─> refuse
//! ```
//!
//! `charge` is the story of a charge, and `uncharge` that of an uncharge. Both use `thread_stock`,
//! the slot and the transit of this thread; `walk`, all levels up and back (`look_ahead` spares one
//! that would be refused); and `level`, where usage of one level rises and falls. `at_limit` drains
//! for a charge that was refused, `drain` and `idle` move credit, `credit_return` gives it back up
//! the tree. What keeps an object is in `incarnation`, `claim` and `handle`. A file calls those
//! below it and no other. Charging notifies the policies through `object::tree::Policies` alone.
//! The protocol, its races and their answers are in `README.md`.

pub(crate) mod alerts;
pub(crate) mod allocator;
pub(crate) mod at_limit;
pub(crate) mod bookkeeping;
pub(crate) mod by_number;
pub(crate) mod cached_slot;
pub(crate) mod central;
pub(crate) mod central_word;
pub(crate) mod charge;
pub(crate) mod child_count;
pub(crate) mod children;
pub(crate) mod claim;
pub(crate) mod config;
pub(crate) mod cover;
pub(crate) mod creation;
pub(crate) mod credit;
pub(crate) mod credit_return;
pub(crate) mod drain;
pub(crate) mod effective;
pub(crate) mod exceeded_mark;
pub(crate) mod handle;
pub(crate) mod idle;
pub(crate) mod idle_visits;
pub(crate) mod incarnation;
pub(crate) mod index;
pub(crate) mod ledger;
pub(crate) mod level;
pub(crate) mod links;
pub(crate) mod live_peak;
pub(crate) mod look;
pub(crate) mod look_ahead;
pub(crate) mod make;
pub(crate) mod object;
pub(crate) mod open_count;
pub(crate) mod peak;
pub(crate) mod pressure_mark;
pub(crate) mod protection;
pub(crate) mod raw;
pub(crate) mod refusal;
pub(crate) mod reserve;
pub(crate) mod retire;
pub(crate) mod slow_path;
pub(crate) mod spare_word;
pub(crate) mod stocks;
pub(crate) mod thread_stock;
pub(crate) mod thresholds;
pub(crate) mod transfer;
pub(crate) mod uncharge;
pub(crate) mod verify;
pub(crate) mod walk;
pub(crate) mod watch;
pub(crate) mod width;
