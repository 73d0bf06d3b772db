//! Plain bytes of one group: what an attempt to charge them does at each step.

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::admission::attempt::{Attempt, AttemptTerms, ChargeResult, Progress, decided};
use crate::admission::wait::{LineTime, may_wait};
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::pressure::line::{self, Ticket};
use crate::pressure::wakers::{park_until, parked_waker};
use crate::state::waiting::PlaceHolder;
use crate::sync::clock;
use crate::sync::is_over;
use crate::thread::slot::Consume;

/// Period in which a charge looks whether a victim has more to give.
const LOOK: Duration = Duration::from_millis(5);

/// What a charge may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// Nothing: its thread drives futures.
    Nothing,
    /// Victims, promises, and rounds of reclaim on other threads.
    Others,
    /// The same, and then room in line.
    Until(LineTime),
}

impl<'a> AttemptTerms<'a> {
    pub(super) fn plain(group: &'a Counter, bytes: u64, wait_for: WaitFor) -> Self {
        let mut terms = AttemptTerms::new(group, bytes, wait_for != WaitFor::Nothing);
        if let WaitFor::Until(time) = wait_for {
            terms.end = time.reclaim_end();
            terms.cancels = !time.is_zero();
            terms.stays_in_line = true;
        }
        terms
    }

    fn enqueue(&self, level: &Counter) -> Ticket {
        line::enqueue(self.group, self.bytes, level, PlaceHolder::Charge, None)
    }

    /// Its place in line, which it takes at `level` where it has none.
    pub(super) fn into_line(self, level: &Counter) -> Ticket {
        let kept = self.line.take();
        kept.unwrap_or_else(|| self.enqueue(level))
    }

    /// Charges after a refusal, where the group is more important than all that wait at the level:
    /// a place in line is before theirs, and the charge leaves it again where there is no room.
    pub(super) fn go_first(&self, refusal: LevelRefusal<'a>) -> Progress<'a> {
        let level = refusal.level;
        if !line::goes_first(self.group, level) || !may_wait(self.group, self.bytes, &refusal) {
            return Progress::Continue(refusal);
        }
        let mut ticket = self.enqueue(level);
        match ticket.poll(Waker::noop()) {
            Ok(decision) => Progress::Break(decided(self.group, decision, self.bytes, false)),
            // The level may have served it, and another one have refused it then.
            Err(level) => match ticket.leave() {
                Some(decision) => Progress::Break(decided(self.group, decision, self.bytes, false)),
                None => Progress::Continue(self.group.level(&level).refusal_now()),
            },
        }
    }
}

impl<'a> Attempt<'a> for AttemptTerms<'a> {
    fn terms(&self) -> &AttemptTerms<'a> {
        self
    }

    fn charge(&self) -> Progress<'a> {
        match self.group.try_charge_once_slow(self.bytes, Consume::Miss) {
            Ok(walked) => Progress::Break(Ok(walked)),
            Err(refusal) => self.go_first(refusal),
        }
    }

    fn wait(
        &self,
        level: &'a Counter,
        until: Instant,
        more: &dyn Fn() -> bool,
    ) -> Option<ChargeResult<'a>> {
        // In line from the first victim on: a charge that comes later does not get what is freed
        // for this one.
        let mut line = self.line.borrow_mut();
        let ticket = line.get_or_insert_with(|| self.enqueue(level));
        let waker = parked_waker();
        let decision = loop {
            if let Ok(decision) = ticket.poll(&waker) {
                break decision;
            }
            if is_over(until) || !self.may_cancel() || !more() {
                return None;
            }
            // The end of a victim wakes nobody, so the thread looks from time to time.
            park_until(Some(until.min(clock::now() + LOOK)));
        };
        *line = None;
        Some(decided(self.group, decision, self.bytes, true))
    }
}
