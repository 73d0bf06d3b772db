//! Plain bytes of one group: what an attempt to charge them does at each step.

use std::cell::RefCell;
use std::task::Waker;
use std::time::Instant;

use crate::admission::attempt::{Attempt, ChargeResult, Progress, Terms};
use crate::admission::wait::{LineTime, decided, may_wait, wait_for_victim};
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::pressure::line::{self, Ticket};
use crate::thread::slot::Consume;

/// The waits that a charge allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// Nothing: its thread drives futures.
    Nothing,
    /// Victims, promises, and rounds of reclaim on other threads.
    Others,
    /// The same, and then room in line.
    Until(LineTime),
}

pub(super) struct Plain {
    pub(super) terms: Terms,
    wait_for: WaitFor,
    /// Its place in line, once it has one.
    line: RefCell<Option<Ticket>>,
}

impl Plain {
    pub(super) fn new(group: &'static Counter, bytes: u64, wait_for: WaitFor) -> Self {
        let mut terms = Terms::new(group, bytes, wait_for != WaitFor::Nothing);
        if let WaitFor::Until(time) = wait_for {
            (terms.end, terms.cancels) = (time.reclaim_end(), !time.is_zero());
        }
        Plain { terms, wait_for, line: RefCell::new(None) }
    }

    fn enqueue(&self, waits: bool, level: &'static Counter) -> Ticket {
        line::enqueue((self.terms.group, waits), self.terms.bytes, level, None)
    }

    /// Its place in line, which it takes at `level` where it has none.
    pub(super) fn into_line(self, level: &'static Counter) -> Ticket {
        let kept = self.line.take();
        kept.iter().for_each(Ticket::waits);
        kept.unwrap_or_else(|| self.enqueue(true, level))
    }

    /// Charges after a refusal, where the group is more important than all that wait at the level: a place in line is
    /// before theirs, and the charge leaves it again where there is no room.
    pub(super) fn go_first(&self, refusal: LevelRefusal<'static>) -> Progress {
        let level = refusal.level.header.counter();
        if !line::goes_first(self.terms.group, level) || !may_wait(self.terms.bytes, &refusal) {
            return Progress::Continue(refusal);
        }
        let mut ticket = self.enqueue(false, level);
        match ticket.poll(Waker::noop()) {
            Ok(decision) => Progress::Break(decided(decision, self.terms.bytes, false)),
            // The level may have served it, and another one have refused it then.
            Err(level) => match ticket.leave() {
                Some(decision) => Progress::Break(decided(decision, self.terms.bytes, false)),
                None => Progress::Continue(level.refusal_now()),
            },
        }
    }
}

impl Attempt for Plain {
    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn charge(&self) -> Progress {
        match self.terms.group.try_charge_once_slow(self.terms.bytes, Consume::Miss) {
            Ok(walked) => Progress::Break(Ok(walked)),
            Err(refusal) => self.go_first(refusal),
        }
    }

    fn wait(&self, level: &'static Counter, until: Instant, more: &dyn Fn() -> bool) -> Option<ChargeResult> {
        // In line from the first victim on: a charge that comes later does not get what is freed for this one.
        let mut line = self.line.borrow_mut();
        let ticket = line.get_or_insert_with(|| self.enqueue(false, level));
        let decision = wait_for_victim(ticket, until, || self.terms.may_cancel() && more())?;
        *line = None;
        Some(decided(decision, self.terms.bytes, true))
    }

    fn leave(&self) -> Option<ChargeResult> {
        if let WaitFor::Until(_) = self.wait_for {
            return None;
        }
        self.line.take()?.leave().map(|decision| decided(decision, self.terms.bytes, true))
    }

    fn ended(&self) -> Option<ChargeResult> {
        let mut line = self.line.borrow_mut();
        let decision = line.as_mut()?.poll(Waker::noop()).ok()?;
        *line = None;
        Some(decided(decision, self.terms.bytes, true))
    }

    fn is_in_line(&self) -> bool {
        self.line.borrow().is_some()
    }
}
