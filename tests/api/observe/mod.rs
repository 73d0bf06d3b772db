//! Observe-only: limits of a subtree that are counted, and refuse and delay no group.
//!
//! * `through`: what is let through, and what is said of it; `switching`: on and off, at whatever
//!   usage;
//! * `subtree`: for which groups it holds; `waiting`: charges that wait when it begins; `pressure`:
//!   no group is asked for anything.

mod pressure;
mod subtree;
mod switching;
mod through;
mod waiting;

use memcg::{Event, Group};

pub(crate) use crate::support::reclaimers::{Cache, KIB, Log};
pub(crate) use crate::support::trees::{
    assert_sound, build, charge, create, kinds, left_empty, limited, runtimes, stocked,
};
pub(crate) use crate::support::waiters::{WATCHDOG, admitted, block_on, blocked, in_line, join};

/// *max*, *observed*, *oom* of the group alone.
pub(crate) fn locals(group: &Group) -> [u64; 3] {
    [Event::Max, Event::Observed, Event::Oom].map(|event| group.events().local().get(event))
}
