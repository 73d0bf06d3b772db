//! A checkpoint that does not find the tree's word at zero: is the group cancelled, is a level above it over its max or
//! its high?
//!
//! A level above max is treated as one that has refused a charge: credit is drained, reclaimers are asked, victims are
//! chosen. What is above max after that is the refusal of the checkpoint.

use std::ptr;
use std::time::Instant;

use crate::admission::attempt::{Attempt, ChargeFailure, ChargeResult};
use crate::admission::plain::WaitFor;
use crate::admission::steps::reclaim_and_retry;
use crate::counter::credit;
use crate::counter::exceeded::is_above_max;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::walk::Charged;
use crate::pressure::high::{BATCH, levels_that_delay};
use crate::pressure::victims;
use crate::reclaim::repeat::close_below;
use crate::sync::{is_over, pause};
use crate::thread::slow_path;

/// Looks at the group and all levels above. Foreign code runs on this thread, which holds no lock of this crate. The
/// caller delays the task by what it returns.
#[cold]
pub(crate) fn check(group: &'static Counter, wait_for: WaitFor) -> ChargeResult {
    // Code that runs inside a slow path is an allocator: it is told nothing.
    if slow_path::is_running() || group.state().is_offline() {
        return Ok(Charged::QUIETLY);
    }
    if victims::is_cancelled(group) {
        return Err(ChargeFailure::Cancelled);
    }
    for level in group.path_to_root() {
        let excess = Excess { group, level, wait_for };
        let Err(refusal) = excess.charge() else { continue };
        match reclaim_and_retry(&excess, refusal) {
            // The group went offline meanwhile: the next checkpoint asks for the group above.
            Ok(_) | Err(ChargeFailure::Offline) => {}
            Err(failure) => return Err(failure.count()),
        }
    }
    let is_delayed = levels_that_delay(group).next().is_some();
    // A checkpoint is delayed as a charge of one batch of the kernel's.
    Ok(Charged { over_high: if is_delayed { BATCH } else { 0 } })
}

/// Whether a checkpoint of the group has anything to find. It calls no foreign code and takes no lock.
pub(crate) fn concerns(group: &'static Counter) -> bool {
    group.tree().alerts.any_victim()
        || group.path_to_root().any(is_above_max)
        || levels_that_delay(group).next().is_some()
}

/// What a level has above its max, as an attempt to charge that fits once nothing is above.
struct Excess {
    group: &'static Counter,
    level: &'static Counter,
    wait_for: WaitFor,
}

impl Attempt for Excess {
    fn group(&self) -> &'static Counter {
        self.group
    }

    /// What reclaim makes room for: the next byte.
    fn bytes(&self) -> u64 {
        1
    }

    fn charge(&self) -> Result<Charged, LevelRefusal<'static>> {
        if is_above_max(self.level) && credit::may_be_below(self.level) {
            close_below(self.level);
        }
        if is_above_max(self.level) { Err(self.level.refusal_now()) } else { Ok(Charged::QUIETLY) }
    }

    fn wait(&self, level: &'static Counter, until: Instant, more: &dyn Fn() -> bool) -> Option<ChargeResult> {
        debug_assert!(ptr::eq(level, self.level));
        while is_above_max(level) {
            if is_over(until) || !more() {
                return None;
            }
            pause();
        }
        Some(Ok(Charged::QUIETLY))
    }

    fn may_block(&self) -> bool {
        self.wait_for != WaitFor::Nothing
    }
}
