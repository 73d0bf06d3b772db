//! The cost of waiting for room, and of others' waits: the `wait/*`, `charge/high/*`,
//! `charge/no_waiters/*` and `charge/waiters_elsewhere/*` rows.
//!
//! `cargo bench --bench wait [-- FILTER]`, where the filter is a part of an id.
//!
//! * `wait/handover/threads2`: two threads, room for one charge: each waits for the other to give
//!   it back. Time of one iteration of one thread: two admissions, two wake-ups.
//! * `wait/try_refused`, `…_with_waiters`: a charge that is refused at a group that is full, and
//!   where a thread waits.
//! * `wait/async/groups100`: futures of a hundred groups with room for one charge each, polled by
//!   one thread: time of one admission.
//! * `wait/async/beside_a_cache/…`: a task charges what it puts into a cache in a full group. Time
//!   of one admission: the thread of the tree evicts, and wakes the task.
//! * `charge/high/…`: a charge that goes up the tree and its uncharge, with no high, below it, and
//!   above it without the delay.
//! * `charge/{no_waiters,waiters_elsewhere}/depth4/…`: a charge paid by the stock, and one that
//!   goes up the tree, with no thread waiting, and with a waiter in a group beside the path. Below
//!   the rows stand the goals.

#[cfg(not(loom))]
mod common;
#[cfg(not(loom))]
#[path = "wait/program.rs"]
mod program;

#[cfg(not(loom))]
fn main() {
    program::main();
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
