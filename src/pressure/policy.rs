//! What is set at a group for charges that do not fit: its OOM policy, and the marks beside it.

use crate::counter::object::Counter;
use crate::hierarchy::group_object;
use crate::state::oom::{EXEMPT, OomMarks, OomPolicy};

pub(crate) fn marks(of: &Counter) -> &OomMarks {
    &group_object::of(of).oom
}

/// Whether a victim is chosen for memory at this level: by its own policy, or by that of the nearest level above which
/// has one.
pub(crate) fn chooses(level: &Counter) -> bool {
    if !level.is_memory() {
        return false;
    }
    let mut policies = level.path_to_root().map(|level| marks(level).policy());
    policies.find(|&policy| policy != OomPolicy::Inherit) == Some(OomPolicy::Choose)
}

/// The group, or one above it, is exempt.
pub(crate) fn is_spared(group: &Counter) -> bool {
    group.path_to_root().any(|level| marks(level).has(EXEMPT))
}
