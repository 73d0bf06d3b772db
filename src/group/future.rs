//! `ChargeFuture`: a charge that waits without blocking.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::error::ChargeError;
use super::waiting::{Patience, Plain, ask, ask_again_after, may_wait, try_once, unmet};
use super::{Charge, Group, high};
use crate::admission::attempt::{ChargeFailure, Pending, may_call_out};
use crate::counter::object::Counter;
use crate::pressure::delays::Alarm;
use crate::pressure::line::{Decision, Ticket};
use crate::reclaim::round::TIME_MAX;
use crate::sync::is_over;
use crate::thread::slot::Consume;

/// A charge that waits: see [`Group::charge_async`]. Polled after it was done it stays pending.
#[must_use = "futures do nothing unless they are polled"]
pub struct ChargeFuture {
    group: Group,
    bytes: u64,
    undelayed: bool,
    state: State,
}

enum State {
    New,
    InLine {
        ticket: Ticket,
        /// Where reclaimers have been asked.
        asked: &'static Counter,
        /// When they are asked again: other threads were at them.
        again: Option<Alarm>,
    },
    /// Charged, above a high.
    Delayed {
        until: Instant,
        /// Once it has been polled: before the charge, which keeps its group.
        alarm: Option<Alarm>,
        charge: Charge,
    },
    Done,
}

impl ChargeFuture {
    pub(crate) fn new(group: Group, bytes: u64) -> Self {
        ChargeFuture { group, bytes, undelayed: false, state: State::New }
    }

    /// Ready as soon as it is charged, above a [high](Group::set_high), too: for who has a timer of his own, and asks
    /// [`Group::high_delay`] how long to wait, before this charge or after it.
    ///
    /// ```
    /// use memcg::{Limit, Limits, Runtime};
    /// use std::future::Future;
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let limits = Limits::new().high(Limit::Bytes(1 << 20)).max(Limit::Bytes(4 << 20));
    /// let acme = runtime.root().create("acme", limits)?;
    /// let held = acme.charge(4 << 20);
    /// let mut charge = pin!(acme.charge_async(2 << 20).undelayed());
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(charge.as_mut().poll(&mut context).is_pending(), "in line");
    /// drop(held);
    /// let Poll::Ready(charge) = charge.poll(&mut context) else { panic!() };
    /// assert_eq!(charge?.bytes(), 2 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn undelayed(mut self) -> Self {
        self.undelayed = true;
        self
    }

    /// The first poll that misses: what [`Group::try_charge`] does, but for waiting. `None`: in line.
    fn begin(&mut self, missed: Consume, waker: &Waker) -> Option<Result<(), ChargeError>> {
        let (node, bytes) = (self.group.node(), self.bytes);
        let plain = Plain::new(node, bytes, Patience::None);
        match try_once(node, bytes, missed).or_else(|unmet| plain.reclaim_and_retry(unmet)) {
            Err(ChargeFailure::Refused { refusal, pending, .. }) if may_wait(bytes, &refusal) => {
                let level = refusal.level.header.node();
                self.state = State::InLine { ticket: node.stand_in_line(bytes, level), asked: level, again: None };
                self.ask_again(pending == Some(Pending::Round), waker);
                None
            }
            begun => Some(begun.map_err(|unmet| unmet.into_error(node, bytes))),
        }
    }

    /// In line, it asks again where the rounds of other threads may have come to nothing.
    fn ask_again(&mut self, whether: bool, waker: &Waker) {
        if let State::InLine { again, asked, .. } = &mut self.state {
            *again = if whether { Alarm::after(ask_again_after(asked), waker) } else { None };
        }
    }

    /// How it ended in line, if it did. Where it has moved to another line nobody has been asked.
    fn wait_in_line(&mut self, waker: &Waker) -> Option<Decision> {
        let bytes = self.bytes;
        let State::InLine { ticket, asked, again } = &mut self.state else { return None };
        // Nothing foreign runs between a decision and its return: a grant is not lost to a panic.
        if let Some(decision) = ticket.poll(waker) {
            return Some(decision);
        }
        let level = ticket.level();
        let is_due = !ptr::eq(level, *asked) || again.as_ref().is_some_and(|again| !again.renew(waker));
        if !is_due || !may_call_out() {
            return None;
        }
        *asked = level;
        let unwaited = ask(level, bytes, None, false);
        self.ask_again(unwaited, waker);
        let State::InLine { ticket, .. } = &mut self.state else { return None };
        ticket.poll(waker)
    }

    /// It is charged by a walk, and perhaps delayed.
    fn charged(&mut self) {
        let charge = Charge::new(self.group.header, self.bytes);
        let until = Instant::now() + high::throttled(self.group.node(), false).min(TIME_MAX);
        self.state = State::Delayed { until, alarm: None, charge };
    }

    /// It is not charged yet, or delayed, and will be woken when that is over.
    fn is_held_up(&mut self, waker: &Waker) -> bool {
        let State::Delayed { until, alarm, .. } = &mut self.state else { return true };
        let node = self.group.node();
        if self.undelayed || is_over(*until) || !high::holds_up(node) {
            return false;
        }
        match alarm {
            Some(alarm) => alarm.renew(waker),
            None => {
                // Without a thread it is not delayed: it would have to wake itself time and again.
                *alarm = Alarm::delay(node, *until, waker);
                alarm.is_some()
            }
        }
    }
}

impl Future for ChargeFuture {
    type Output = Result<Charge, ChargeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let node = self.group.node();
        let mut ended = None;
        if let State::New = self.state {
            match self.group.header.consume_open(self.bytes) {
                Consume::Hit => {
                    self.state = State::Done;
                    return Poll::Ready(Ok(Charge::new(self.group.header, self.bytes)));
                }
                missed => ended = self.begin(missed, context.waker()),
            }
        }
        if let Some(decision) = self.wait_in_line(context.waker()) {
            ended = Some(unmet(decision, false).map_err(|unmet| unmet.into_error(node, self.bytes)));
        }
        match ended {
            Some(Ok(())) => self.charged(),
            Some(Err(error)) => {
                self.state = State::Done;
                return Poll::Ready(Err(error));
            }
            None => {}
        }
        if self.is_held_up(context.waker()) {
            return Poll::Pending;
        }
        match std::mem::replace(&mut self.state, State::Done) {
            State::Delayed { charge, .. } => Poll::Ready(Ok(charge)),
            _ => Poll::Pending,
        }
    }
}

impl fmt::Debug for ChargeFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeFuture").field("group", &self.group).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
