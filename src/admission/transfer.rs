//! Moving a charge to another group: a charge of the levels below the first common ancestor.

use std::cell::Cell;
use std::ptr;
use std::time::Instant;

use crate::admission::attempt::{Attempt, ChargeFailure, ChargeResult, Progress};
use crate::admission::steps::reclaim_and_retry;
use crate::counter::below::{self, Taken};
use crate::counter::cover;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::watch::WAITING;
use crate::pressure::line;
use crate::sync::{is_over, pause};

pub(crate) enum TransferFailure<'a> {
    /// The two groups belong to two runtimes.
    OtherTree,
    /// The other group went offline before.
    Offline,
    /// The other group cannot be charged.
    NotCharged { counter: &'a Counter, failure: ChargeFailure<'a> },
}

struct Below<'a> {
    counter: &'a Counter,
    bytes: u64,
    from: &'a Counter,
    common: &'a Counter,
    taken: Cell<Taken>,
}

impl<'a> Below<'a> {
    fn charge_below(&self) -> Result<u64, LevelRefusal<'a>> {
        let taken = below::charge_slow(self.counter, self.bytes, self.from, self.common)?;
        self.taken.set(taken);
        Ok(0)
    }
}

impl<'a> Attempt<'a> for Below<'a> {
    fn group(&self) -> &'a Counter {
        self.counter
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A transfer is not delayed.
    fn charge(&self) -> Progress<'a> {
        self.charge_below().into()
    }

    /// Not in line, where whole charges are made.
    fn wait(&self, level: &'a Counter, until: Instant, more: &dyn Fn() -> bool) -> Option<ChargeResult<'a>> {
        while !is_over(until) && more() {
            let needs = cover::rise_at(self.counter, self.bytes, level);
            if (ptr::eq(level, self.common) || level.room(level.admits()) >= needs) && self.charge_below().is_ok() {
                return Some(Ok(0));
            }
            pause();
        }
        None
    }
}

/// Move `bytes` from a counter to the same counter of the group `to`, which is returned.
pub(crate) fn move_charge<'a>(
    from: &'a Counter,
    to: &'a Counter,
    bytes: u64,
) -> Result<&'a Counter, TransferFailure<'a>> {
    let new = to.group().nth(from.number_in_group()).ok_or(TransferFailure::OtherTree)?;
    if ptr::eq(new, from) {
        return Ok(new);
    }
    if new.state().is_offline() {
        return Err(TransferFailure::Offline);
    }
    let common = new.path_to_root().find(|level| from.is_within(level)).ok_or(TransferFailure::OtherTree)?;
    if bytes > 0 {
        let attempt = Below { counter: new, bytes, from, common, taken: Cell::default() };
        if let Err(failure) = attempt.charge_below().or_else(|refusal| reclaim_and_retry(&attempt, refusal)) {
            return Err(TransferFailure::NotCharged { counter: new, failure: failure.count() });
        }
        // Mutation: transfer-leaves-the-old-side-charged
        below::uncharge_slow(from, bytes, common, attempt.taken.get());
        // Usage of the common level has not moved, and the bytes may now be those of tasks that wait.
        if common.path_to_root().any(|level| level.limits.watched.is_for(WAITING)) {
            line::look_at_tasks(common.tree());
        }
    }
    Ok(new)
}
