//! Plain bytes of one group: what an attempt to charge them does at each step.

use std::cell::RefCell;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::admission::attempt::{Attempt, ChargeResult, Progress};
use crate::admission::wait::{decided, may_wait, wait_for_victim};
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::pressure::line::{self, Ticket};
use crate::sync::is_over;
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

impl WaitFor {
    /// When the caller's time is over.
    pub(crate) fn end(self) -> Option<Instant> {
        if let WaitFor::Until(time) = self { time.until } else { None }
    }
}

/// Time of a charge in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineTime {
    /// From here on it counts as waiting.
    pub(super) begun: Instant,
    /// `None`: without an end.
    pub(crate) until: Option<Instant>,
}

impl LineTime {
    /// So much time from now on. A charge that `time` ends has waited for no less.
    pub(crate) fn begin(time: Duration) -> Self {
        let begun = Instant::now();
        LineTime { begun, until: begun.checked_add(time) }
    }

    /// When it asks no reclaimer any more. A charge that waits for no time at all asks as one that does not wait.
    pub(super) fn reclaim_end(self) -> Option<Instant> {
        self.until.filter(|&until| until > self.begun)
    }
}

pub(super) struct Plain<'a> {
    group: &'a Counter,
    bytes: u64,
    /// Others may be cancelled for it.
    pub(super) cancels: bool,
    wait_for: WaitFor,
    /// When the caller's time is over, where it does not wait in line.
    pub(super) end: Option<Instant>,
    /// Its place in line, once it has one.
    line: RefCell<Option<Ticket>>,
}

impl<'a> Plain<'a> {
    pub(super) fn new(group: &'a Counter, bytes: u64, wait_for: WaitFor) -> Self {
        Plain { group, bytes, cancels: true, wait_for, end: None, line: RefCell::new(None) }
    }

    /// Its place in line, which it takes at `level` where it has none.
    pub(super) fn into_line(self, level: &Counter) -> Ticket {
        let kept = self.line.into_inner();
        kept.iter().for_each(Ticket::waits);
        kept.unwrap_or_else(|| line::enqueue(self.group, self.bytes, level))
    }

    /// Charges after a refusal, where the group is more important than all that wait at the level: a place in line is
    /// before theirs, and the charge leaves it again where there is no room.
    pub(super) fn go_first(&self, refusal: LevelRefusal<'a>) -> Progress<'a> {
        let level = refusal.level;
        if !line::goes_first(self.group, level) || !may_wait(self.bytes, &refusal) {
            return Progress::Refused(refusal);
        }
        let mut ticket = line::enqueue_for_now(self.group, self.bytes, level);
        match ticket.poll(Waker::noop()) {
            Ok(decision) => Progress::Ended(decided(self.group, decision, self.bytes, false)),
            // The level may have served it, and another one have refused it then.
            Err(level) => match ticket.leave() {
                Some(decision) => Progress::Ended(decided(self.group, decision, self.bytes, false)),
                None => Progress::Refused(self.group.level(&level).refusal_now()),
            },
        }
    }
}

impl<'a> Attempt<'a> for Plain<'a> {
    fn group(&self) -> &'a Counter {
        self.group
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn charge(&self) -> Progress<'a> {
        match self.group.try_charge_once_slow(self.bytes, Consume::Miss) {
            Ok(walked) => Progress::Ended(Ok(walked)),
            Err(refusal) => self.go_first(refusal),
        }
    }

    fn wait(&self, level: &'a Counter, until: Instant, more: &dyn Fn() -> bool) -> Option<ChargeResult<'a>> {
        // In line from the first victim on: a charge that comes later does not get what is freed for this one.
        let mut line = self.line.borrow_mut();
        let ticket = line.get_or_insert_with(|| line::enqueue_for_now(self.group, self.bytes, level));
        let decision = wait_for_victim(ticket, until, || self.may_cancel() && more())?;
        *line = None;
        Some(decided(self.group, decision, self.bytes, true))
    }

    fn leave(&self) -> Option<ChargeResult<'a>> {
        if let WaitFor::Until(_) = self.wait_for {
            return None;
        }
        self.line.take()?.leave().map(|decision| decided(self.group, decision, self.bytes, true))
    }

    fn ended(&self) -> Option<ChargeResult<'a>> {
        let mut line = self.line.borrow_mut();
        let decision = line.as_mut()?.poll(Waker::noop()).ok()?;
        *line = None;
        Some(decided(self.group, decision, self.bytes, true))
    }

    fn is_in_line(&self) -> bool {
        self.line.borrow().is_some()
    }

    fn may_block(&self) -> bool {
        self.wait_for != WaitFor::Nothing
    }

    fn may_cancel(&self) -> bool {
        self.cancels && !self.wait_for.end().is_some_and(is_over)
    }

    fn end(&self) -> Option<Instant> {
        if let WaitFor::Until(time) = self.wait_for { time.reclaim_end() } else { self.end }
    }
}
