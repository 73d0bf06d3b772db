//! What is set at a group for charges that do not fit: its OOM policy, and the marks beside it, in one word.

use crate::counter::object::Counter;
use crate::pressure::cancel::OomPolicy;
use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU8;

/// The group stands for its whole subtree: all of it is cancelled at once.
pub(crate) const TOGETHER: u8 = 1;
/// The group and all below it are spared.
pub(crate) const EXEMPT: u8 = 1 << 1;
/// The group and all below it are only observed.
pub(crate) const OBSERVES: u8 = 1 << 2;
const REFUSES: u8 = 1 << 3;
const CHOOSES: u8 = 1 << 4;

/// Relaxed, all of them: settings, of which no order is relied on.
fn flags(of: &Counter) -> &AtomicU8 {
    &of.oom
}

/// The group's own policy, as it was set.
pub(crate) fn own(group: &Counter) -> OomPolicy {
    match flags(group).load(Ordering::Relaxed) & (REFUSES | CHOOSES) {
        0 => OomPolicy::Inherit,
        REFUSES => OomPolicy::Refuse,
        _ => OomPolicy::Choose,
    }
}

pub(crate) fn set_own(group: &Counter, policy: OomPolicy) {
    let bits = match policy {
        OomPolicy::Inherit => 0,
        OomPolicy::Refuse => REFUSES,
        OomPolicy::Choose => CHOOSES,
    };
    let set = |old: u8| Some(old & !(REFUSES | CHOOSES) | bits);
    let _ = flags(group).fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
}

/// Whether a victim is chosen at this level: by its own policy, or by that of the nearest level above which has one.
pub(crate) fn chooses(level: &Counter) -> bool {
    let policy = level.path_to_root().map(own).find(|&policy| policy != OomPolicy::Inherit);
    policy == Some(OomPolicy::Choose)
}

pub(crate) fn set_mark(group: &Counter, mark: u8, set: bool) {
    if set {
        flags(group).fetch_or(mark, Ordering::Relaxed)
    } else {
        flags(group).fetch_and(!mark, Ordering::Relaxed)
    };
}

pub(crate) fn has_mark(group: &Counter, mark: u8) -> bool {
    flags(group).load(Ordering::Relaxed) & mark != 0
}

/// The group, or one above it, is exempt.
pub(crate) fn is_spared(group: &Counter) -> bool {
    group.path_to_root().any(|level| has_mark(level, EXEMPT))
}
