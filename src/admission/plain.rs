//! The attempt to charge plain bytes to one group.

use std::cell::RefCell;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::admission::attempt::{Attempt, ChargeFailure, ChargeResult};
use crate::admission::retry::reclaim_and_retry;
use crate::admission::wait::{decided, may_wait, wait_for_victim, wait_in_line};
use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::walk::Charged;
use crate::pressure::line::{self, Ticket};
use crate::sync::is_over;
use crate::thread::slot::Consume;
use crate::thread::{context, slow_path};

/// What a charge may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// Nothing: its thread drives futures.
    Nothing,
    /// Victims, promises, and rounds of reclaim on other threads.
    Others,
    /// The same, and then room in line: until this moment, or without an end.
    Until(Option<Instant>),
}

/// Plain bytes of one group.
pub(super) struct Plain {
    group: &'static Counter,
    bytes: u64,
    /// Others may be cancelled for it.
    cancels: bool,
    wait_for: WaitFor,
    /// Its place in line, once it has one.
    line: RefCell<Option<Ticket>>,
}

impl Plain {
    pub(super) fn new(group: &'static Counter, bytes: u64, wait_for: WaitFor) -> Self {
        Plain { group, bytes, cancels: true, wait_for, line: RefCell::new(None) }
    }

    /// Reclaim and victims, where the first try was refused.
    pub(super) fn go_on(&self, failure: ChargeFailure) -> ChargeResult {
        match failure {
            ChargeFailure::Refused { refusal, .. } => reclaim_and_retry(self, refusal),
            failure => Err(failure),
        }
    }
}

impl Attempt for Plain {
    fn group(&self) -> &'static Counter {
        self.group
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn charge(&self) -> Result<Charged, LevelRefusal<'static>> {
        self.group.try_charge_once_slow(self.bytes, Consume::Miss)
    }

    fn wait(&self, level: &'static Counter, until: Instant, more: &dyn Fn() -> bool) -> Option<ChargeResult> {
        // In line from the first victim on: a charge that comes later does not get what is freed for this one.
        let mut line = self.line.borrow_mut();
        let ticket = line.get_or_insert_with(|| line::enqueue(self.group, self.bytes, level));
        let decision = wait_for_victim(ticket, until, || self.may_cancel() && more())?;
        *line = None;
        Some(decided(decision, true))
    }

    fn leave(&self) -> Option<ChargeResult> {
        if let WaitFor::Until(_) = self.wait_for {
            return None;
        }
        self.line.take()?.leave().map(|decision| decided(decision, true))
    }

    fn ended(&self) -> Option<ChargeResult> {
        let mut line = self.line.borrow_mut();
        let decision = line.as_mut()?.poll(Waker::noop())?;
        *line = None;
        Some(decided(decision, true))
    }

    fn is_in_line(&self) -> bool {
        self.line.borrow().is_some()
    }

    fn may_block(&self) -> bool {
        self.wait_for != WaitFor::Nothing
    }

    fn may_cancel(&self) -> bool {
        self.cancels && !matches!(self.wait_for, WaitFor::Until(Some(until)) if is_over(until))
    }
}

/// Makes a charge that did not hit the stock. A charge of 0 bytes takes a handle. The caller sleeps the delay.
#[inline]
pub(crate) fn charge(group: &'static Counter, bytes: u64, missed: Consume, wait_for: WaitFor) -> ChargeResult {
    try_once(group, bytes, missed).or_else(|failure| charge_refused(group, bytes, wait_for, failure))
}

/// After a refusal: reclaim, victims, the line.
#[cold]
#[inline(never)]
fn charge_refused(group: &'static Counter, bytes: u64, wait_for: WaitFor, failure: ChargeFailure) -> ChargeResult {
    let begun = matches!(wait_for, WaitFor::Until(_)).then(Instant::now);
    let plain = Plain::new(group, bytes, wait_for);
    let (refusal, counted, until) = match (plain.go_on(failure), wait_for) {
        (Err(ChargeFailure::Refused { refusal, counted, .. }), WaitFor::Until(until)) if may_wait(bytes, &refusal) => {
            (refusal, counted, until)
        }
        (ended, _) => return ended.map_err(ChargeFailure::count),
    };
    let level = refusal.level.header.counter();
    let ticket = plain.line.take().unwrap_or_else(|| line::enqueue(group, bytes, level));
    let ended = match wait_in_line(ticket, bytes, until) {
        Ok(decision) => decided(decision, counted),
        Err(level) => {
            let waited = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
            Err(ChargeFailure::TimedOut { refusal: level.refusal_now(), counted, waited })
        }
    };
    ended.map_err(ChargeFailure::count)
}

/// The first try, with which most charges end.
#[inline]
pub(super) fn try_once(group: &'static Counter, bytes: u64, missed: Consume) -> ChargeResult {
    // What allocators have left to a slow path that was no charge, or a refused one, is not this charge's.
    if !slow_path::is_running() {
        context::take_nested_over_high();
    }
    if group.state().is_offline() {
        group.undo_slow(bytes, missed);
        return Err(ChargeFailure::Offline);
    }
    if bytes == 0 {
        Handle::pin(group).into_raw();
        return Ok(Charged::QUIETLY);
    }
    group.try_charge_once_slow(bytes, missed).map_err(ChargeFailure::refused)
}

/// Asks reclaimers, cancels no group and counts no refusal: where the charge does not fit its caller forces it.
pub(crate) fn charge_without_victims(group: &'static Counter, bytes: u64, missed: Consume) -> ChargeResult {
    let plain = Plain { cancels: false, ..Plain::new(group, bytes, WaitFor::Others) };
    try_once(group, bytes, missed).or_else(|failure| plain.go_on(failure))
}
