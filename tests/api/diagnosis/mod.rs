//! A group at its limit names the groups that hold its memory, the charges that wait, and the
//! events.
//!
//! * `holders`: in the refusal; `top`: on request.

mod holders;
mod top;

use memcg::{Bytes, Group, OverLimitError};

pub(crate) use crate::support::reclaimers::{KIB, MIB};
pub(crate) use crate::support::trees::{
    build, charge, create, kinds, left_empty, limited, runtimes,
};

/// The refusal of a charge that does not fit, and its line.
#[track_caller]
pub(crate) fn refused(group: &Group, bytes: u64) -> (OverLimitError, String) {
    match group.charge(Bytes(bytes)) {
        Err(error) if error.is_over_limit() => {
            let refusal = error.over_limit().expect("a refusal").clone();
            (refusal, error.to_string())
        }
        other => panic!("{other:?}"),
    }
}
