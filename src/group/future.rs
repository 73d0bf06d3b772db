//! `ChargeFuture`: a charge that waits without blocking.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::charge::Charge;
use super::error::ChargeError;
use super::handle::Group;
use crate::admission::polled::{Begun, InLine, begin};
use crate::counter::walk::Charged;
use crate::pressure::delays::Alarm;
use crate::pressure::throttle;
use crate::reclaim::round::TIME_MAX;
use crate::sync::is_over;
use crate::thread::slot::Consume;

/// A charge that waits: see [`Group::charge_async`]. Polled after it has returned its result, it stays pending.
#[must_use = "futures do nothing unless they are polled"]
pub struct ChargeFuture {
    group: Group,
    bytes: u64,
    undelayed: bool,
    state: Stage,
}

enum Stage {
    New,
    InLine(InLine),
    /// Charged, above a high.
    Delayed {
        until: Instant,
        /// Set by the first poll that delays. It drops before `charge`, which keeps the group.
        alarm: Option<Alarm>,
        charge: Charge,
    },
    Done,
}

impl ChargeFuture {
    pub(crate) fn new(group: Group, bytes: u64) -> Self {
        ChargeFuture { group, bytes, undelayed: false, state: Stage::New }
    }

    /// Makes the future ready as soon as it is charged, also above a [high](Group::set_high). Use it where the caller
    /// has a timer of its own, and asks [`Group::high_delay`] how long to wait, before this charge or after it.
    ///
    /// ```
    /// # use memcg::{Limit, Limits, Runtime};
    /// # use std::future::Future;
    /// # use std::pin::pin;
    /// # use std::task::{Context, Poll, Waker};
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

    /// A walk has charged it. A delay may follow.
    fn charged(&mut self, charged: Charged) {
        let charge = Charge::new(self.group.header, self.bytes);
        let until = Instant::now() + throttle::delay_after(self.group.first(), charged, false).min(TIME_MAX);
        self.state = Stage::Delayed { until, alarm: None, charge };
    }

    /// Whether it is not charged yet, or delayed. A wake follows when that is over.
    fn is_held_up(&mut self, waker: &Waker) -> bool {
        let Stage::Delayed { until, alarm, .. } = &mut self.state else { return true };
        let group = self.group.first();
        if self.undelayed || is_over(*until) || !throttle::is_delayed(group) {
            return false;
        }
        match alarm {
            Some(alarm) => alarm.renew(waker),
            None => {
                // Where there is no thread to wake it the charge is not delayed: the future would have to wake itself
                // time and again.
                *alarm = Alarm::set(Some(group), *until, waker);
                alarm.is_some()
            }
        }
    }
}

impl Future for ChargeFuture {
    type Output = Result<Charge, ChargeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (counter, bytes, waker) = (self.group.first(), self.bytes, context.waker());
        let mut ended = None;
        if let Stage::New = self.state {
            match self.group.header.consume_open(self.bytes) {
                Consume::Hit => {
                    self.state = Stage::Done;
                    return Poll::Ready(Ok(Charge::new(self.group.header, self.bytes)));
                }
                missed => match begin(counter, bytes, missed, waker) {
                    Begun::Ended(begun) => ended = Some(begun),
                    Begun::InLine(in_line) => self.state = Stage::InLine(in_line),
                },
            }
        }
        if let Stage::InLine(in_line) = &mut self.state {
            ended = in_line.poll(waker);
        }
        match ended {
            Some(Ok(charged)) => self.charged(charged),
            Some(Err(failure)) => {
                self.state = Stage::Done;
                return Poll::Ready(Err(ChargeError::new(failure, counter, bytes)));
            }
            None => {}
        }
        if self.is_held_up(waker) {
            return Poll::Pending;
        }
        match std::mem::replace(&mut self.state, Stage::Done) {
            Stage::Delayed { charge, .. } => Poll::Ready(Ok(charge)),
            _ => Poll::Pending,
        }
    }
}

impl fmt::Debug for ChargeFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeFuture").field("group", &self.group).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
