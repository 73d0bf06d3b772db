//! A task that allocates and never charges learns at its next checkpoint that it has to stop.
//!
//! * `refused`: above a max by force; `settings`: limits that move; `victims`: groups that are
//!   cancelled;
//! * `high`: delays; `tasks`: without blocking.

mod high;
mod refused;
mod settings;
mod tasks;
mod victims;

use memcg::Group;

pub(crate) use crate::support::reclaimers::{Cache, KIB, Log, MIB};
pub(crate) use crate::support::trees::{
    assert_empty, assert_sound, build, charge, create, kinds, left_empty, limited, runtimes,
};
pub(crate) use crate::support::waiters::{Polled, WATCHDOG, block_on, join, until};

/// The path of the group that is above its max.
#[track_caller]
pub(crate) fn refused_by(group: &Group) -> String {
    match group.run(Group::checkpoint) {
        Err(error) if error.is_over_limit() => {
            let refusal = error.over_limit().expect("a refusal");
            assert_eq!((refusal.requester(), refusal.requested()), (group, 0));
            refusal.group().path()
        }
        other => panic!("{other:?}"),
    }
}
