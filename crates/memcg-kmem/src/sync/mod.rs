//! The one door to concurrency: locks enter the crate here and nowhere else.
//!
//! `real` has parking_lot's mutex, or under Miri that of the standard library, because parking_lot
//! makes pointers of integers. `model` has that of loom, which tries every schedule of two or three
//! threads, or of shuttle, which tries random schedules of many. `memcg` below is compiled for the
//! same checker.
//!
//! A thread that holds a lock calls no foreign code and allocates nothing, so locks need no order:
//! no thread takes two.

#[cfg(any(loom, shuttle))]
mod model;
#[cfg(not(any(loom, shuttle)))]
mod real;
#[cfg(any(loom, shuttle, miri))]
mod unpoisoned;

#[cfg(any(loom, shuttle))]
use model as side;
#[cfg(not(any(loom, shuttle)))]
use real as side;

#[cfg(not(any(loom, shuttle, miri)))]
pub(crate) use side::Mutex;
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use side::many;
pub(crate) use side::{model_failed, processor};
pub(crate) use std::sync::Arc;
#[cfg(any(loom, shuttle, miri))]
pub(crate) use unpoisoned::Mutex;
