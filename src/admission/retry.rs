//! Reclaim and victims for a charge that was refused, before it waits in line.

use std::ptr;

use crate::admission::attempt::{Attempt, ChargeFailure, ChargeResult, Efforts, Progress};
use crate::admission::cancelling::cancel_for;
use crate::admission::rounds::reclaim_for;
use crate::counter::refusal::LevelRefusal;
use crate::reclaim::repeat::ROUNDS_MAX;

/// Reclaims below the level that refused while reclaimers free anything, then cancels groups there. It does the same at
/// another level, where that one refuses then. Foreign code runs on this thread, which holds no lock of this crate.
#[cold]
pub(super) fn reclaim_and_retry(attempt: &impl Attempt, mut refusal: LevelRefusal<'static>) -> ChargeResult {
    let mut efforts = Efforts::default();
    for _ in 0..ROUNDS_MAX {
        efforts.pending = None;
        refusal = match reclaim_for(attempt, refusal, &mut efforts) {
            Progress::Charged(charged) => return Ok(charged),
            Progress::Failed(failure) => return Err(failure),
            Progress::Refused(refusal) => refusal,
        };
        let level = refusal.level;
        refusal = match cancel_for(attempt, refusal, &mut efforts) {
            Progress::Charged(charged) => return Ok(charged),
            Progress::Failed(failure) => return Err(failure),
            Progress::Refused(refusal) => refusal,
        };
        if ptr::eq(refusal.level, level) || attempt.is_in_line() {
            break;
        }
    }
    Err(ChargeFailure::Refused { refusal, counted: efforts.counted, pending: efforts.pending })
}
