//! Charges that wait for room: blocking, as a future, as configured.

use std::cell::Cell;
use std::ptr;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use super::error::ChargeError;
use super::{Charge, ChargeFuture, Group, high, zero};
use crate::admission::attempt::{Attempt, ChargeFailure, deadline, fits_ever, may_call_out, reclaim_and_retry, refuse};
use crate::counter::charge::Charged;
use crate::counter::object::Counter;
use crate::counter::refusal::Refusal as NodeRefusal;
use crate::pressure::OnExhausted;
use crate::pressure::line::{Decision, Ticket};
use crate::reclaim::round::Request;
use crate::reclaim::{ReclaimCause, registrations, round};
use crate::sync::{Arc, Thread, is_over, park, this_thread};
use crate::thread::directory::Header;
use crate::thread::slot::Consume;
use crate::thread::{context, slow_path};

/// What a charge may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Nobody: its thread drives futures.
    None,
    /// Victims, promises, and rounds of reclaim on other threads.
    Others,
    /// The same, and then room in line, until then; without an end where that is not a point in time.
    Until(Option<Instant>),
}

/// Plain bytes of one group.
pub(crate) struct Plain {
    pub(crate) node: &'static Counter,
    pub(crate) bytes: u64,
    /// Others may be cancelled for it.
    pub(crate) cancels: bool,
    pub(crate) patience: Patience,
    /// Its place in line, once it has one.
    pub(crate) line: Cell<Option<Ticket>>,
}

impl Plain {
    pub(crate) fn new(node: &'static Counter, bytes: u64, patience: Patience) -> Self {
        Plain { node, bytes, cancels: true, patience, line: Cell::new(None) }
    }
}

impl Attempt for Plain {
    fn node(&self) -> &'static Counter {
        self.node
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn charge(&self) -> Result<(), NodeRefusal<'static>> {
        self.node.try_charge_once_slow(self.bytes, Consume::Miss).map(Charged::note)
    }

    fn wait(
        &self,
        level: &'static Counter,
        until: Instant,
        more: &dyn Fn() -> bool,
    ) -> Option<Result<(), ChargeFailure>> {
        // In line from the first victim on: who comes later does not get what is freed for this charge.
        let mut ticket = self.line.take().unwrap_or_else(|| self.node.stand_in_line(self.bytes, level));
        let waker = parked_waker();
        loop {
            if let Some(decision) = ticket.poll(&waker) {
                return Some(unmet(decision, true));
            }
            if !self.may_cancel() || is_over(until) || !more() {
                self.line.set(Some(ticket));
                return None;
            }
            // Nobody tells that there is no more.
            park_until(Some(until.min(Instant::now() + LOOK)));
        }
    }

    fn leave(&self) -> Option<Result<(), ChargeFailure>> {
        if let Patience::Until(_) = self.patience {
            return None;
        }
        self.line.take()?.leave().map(|decision| unmet(decision, true))
    }

    fn ended(&self) -> Option<Result<(), ChargeFailure>> {
        let mut ticket = self.line.take()?;
        let decision = ticket.poll(Waker::noop());
        if decision.is_none() {
            self.line.set(Some(ticket));
        }
        decision.map(|decision| unmet(decision, true))
    }

    fn is_in_line(&self) -> bool {
        let ticket = self.line.take();
        let is_in_line = ticket.is_some();
        self.line.set(ticket);
        is_in_line
    }

    fn may_block(&self) -> bool {
        self.patience != Patience::None
    }

    fn may_cancel(&self) -> bool {
        self.cancels && !matches!(self.patience, Patience::Until(Some(until)) if is_over(until))
    }
}

/// `counted`: its failure has been.
pub(crate) fn unmet(decision: Decision, counted: bool) -> Result<(), ChargeFailure> {
    match decision {
        Decision::Granted => Ok(()),
        Decision::Full(level) => Err(ChargeFailure::Refused { refusal: level.refusal_now(), counted, pending: None }),
        Decision::Offline => Err(ChargeFailure::Offline),
        Decision::Cancelled => Err(ChargeFailure::Cancelled),
    }
}

/// A charge that did not hit. For none, a handle. The delay for high is not slept yet.
#[inline]
pub(crate) fn charge_slow(
    header: &'static Header,
    bytes: u64,
    missed: Consume,
    patience: Patience,
) -> Result<(), ChargeError> {
    let node = header.node();
    match try_once(node, bytes, missed) {
        Ok(()) => Ok(()),
        Err(unmet) => charge_unmet(node, bytes, patience, unmet),
    }
}

/// A charge that did not fit: reclaim, victims, the line.
#[cold]
#[inline(never)]
fn charge_unmet(
    node: &'static Counter,
    bytes: u64,
    patience: Patience,
    unmet_once: ChargeFailure,
) -> Result<(), ChargeError> {
    let begun = matches!(patience, Patience::Until(_)).then(Instant::now);
    let plain = Plain::new(node, bytes, patience);
    let (refusal, counted, until) = match (plain.reclaim_and_retry(unmet_once), patience) {
        (Err(ChargeFailure::Refused { refusal, counted, .. }), Patience::Until(until)) if may_wait(bytes, &refusal) => {
            (refusal, counted, until)
        }
        (ended, _) => return ended.map_err(|unmet| unmet.into_error(node, bytes)),
    };
    let level = refusal.level.header.node();
    let ticket = plain.line.take().unwrap_or_else(|| node.stand_in_line(bytes, level));
    match wait_in_line(ticket, bytes, until) {
        Ok(decision) => unmet(decision, counted).map_err(|unmet| unmet.into_error(node, bytes)),
        Err(level) => {
            let refusal = Box::new(refuse(node, bytes, &level.refusal_now(), counted));
            Err(ChargeError::TimedOut { refusal, waited: begun.map_or(Duration::ZERO, |begun| begun.elapsed()) })
        }
    }
}

/// The first try, which is mostly all.
#[inline]
pub(crate) fn try_once(node: &'static Counter, bytes: u64, missed: Consume) -> Result<(), ChargeFailure> {
    // What a charge that is not delayed has noted is not for this one. An allocator's inside another one leaves it.
    if !slow_path::is_running() {
        context::take_over_high();
    }
    if node.state().is_offline() {
        node.undo_slow(bytes, missed);
        return Err(ChargeFailure::Offline);
    }
    if bytes == 0 {
        zero::hold(node);
        return Ok(());
    }
    node.try_charge_once_slow(bytes, missed).map(Charged::note).map_err(|refusal| ChargeFailure::Refused {
        refusal,
        counted: false,
        pending: None,
    })
}

impl Plain {
    /// What is done for a charge that did not fit, before it waits.
    pub(crate) fn reclaim_and_retry(&self, unmet: ChargeFailure) -> Result<(), ChargeFailure> {
        match unmet {
            ChargeFailure::Refused { refusal, .. } => reclaim_and_retry(self, refusal),
            unmet => Err(unmet),
        }
    }
}

/// In reclaim nobody waits: what is waited for may be what the waiter is to free.
pub(crate) fn may_wait(bytes: u64, refusal: &NodeRefusal<'_>) -> bool {
    may_call_out() && fits_ever(bytes, refusal) && refusal.level.is_memory()
}

/// In line until it is decided. `Err`: time is over; where it stood.
fn wait_in_line(mut ticket: Ticket, bytes: u64, until: Option<Instant>) -> Result<Decision, &'static Counter> {
    let waker = parked_waker();
    let mut asked = ticket.level();
    loop {
        if let Some(decision) = ticket.poll(&waker) {
            return Ok(decision);
        }
        if until.is_some_and(is_over) {
            let level = ticket.level();
            return ticket.leave().ok_or(level);
        }
        // What nobody could give when this charge came somebody may be able to give by now, somebody new perhaps; and in
        // another line nobody has been asked.
        let level = ticket.level();
        let time = if registrations::any_below(level) { ask_again_after(level) } else { ASK_AGAIN_MAX };
        let again = if ptr::eq(asked, level) { Instant::now() + time } else { Instant::now() };
        park_until(Some(until.map_or(again, |until| until.min(again))));
        if is_over(again) && !ticket.is_decided() {
            asked = level;
            ask(level, bytes, until, true);
        }
    }
}

/// One round of reclaim for a charge in line, which waits for the rounds of other threads or does not. True: it came to
/// nothing, theirs may not have, and it has not waited for them.
pub(crate) fn ask(level: &'static Counter, bytes: u64, until: Option<Instant>, waits: bool) -> bool {
    let end = deadline(level);
    let end = until.map_or(end, |until| until.min(end));
    let mut request = Request::new(ReclaimCause::Full, end).waits(waits);
    let round = round::run(level, bytes.saturating_sub(level.room(level.admits())), &mut request);
    round.is_some_and(|round| round.unwaited)
}

/// When a charge in line has reclaimers asked again.
pub(crate) fn ask_again_after(level: &Counter) -> Duration {
    level.tree().reclaim.time.clamp(ASK_AGAIN_MIN, ASK_AGAIN_MAX)
}

/// How often a charge looks whether a victim has more to give.
const LOOK: Duration = Duration::from_millis(5);

/// How often a charge in line has reclaimers asked again.
const ASK_AGAIN_MIN: Duration = Duration::from_millis(10);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(1);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Wakes this thread from [`park_until`].
pub(crate) fn parked_waker() -> Waker {
    Waker::from(Arc::new(Unpark(this_thread())))
}

/// Sleep until woken, or for no reason at all. False: time is over.
pub(crate) fn park_until(until: Option<Instant>) -> bool {
    match until {
        Some(until) if is_over(until) => false,
        Some(until) => {
            park(Some(until.saturating_duration_since(Instant::now())));
            true
        }
        None => {
            park(None);
            true
        }
    }
}

impl Group {
    /// Charge `bytes`, and where they do not fit wait in line for so long at most. Blocks: in async code
    /// [`charge_async`](Self::charge_async) with a time limit around it.
    ///
    /// First all that [`try_charge`](Self::try_charge) does. Then it stands in line at the group whose max is met,
    /// behind those that came before; whoever gives bytes back there charges them for the first in line and wakes him
    /// with the charge made. Others may pass the first, those behind him and newcomers, until together they have been
    /// admitted as many bytes as he asks for, at whatever level; from then on nobody passes. (More only by what others had in flight at
    /// the moment in which he became first.) Who waits holds nothing. Reclaimers are asked again from time to time.
    /// The time is for the line and for victims: a first reclaim, and the delay above a [high](Self::set_high), come on
    /// top. To stand in line takes two locks and closes the stocks below that group.
    ///
    /// Do not wait while you hold memory that others wait for: what nobody gives back nobody gets. A time limit ends
    /// that, and so does [`OomPolicy::Choose`](crate::OomPolicy::Choose).
    ///
    /// # Errors
    ///
    /// [`ChargeError::TimedOut`]; [`ChargeError::Limit`] at once, for what could never fit;
    /// [`ChargeError::Offline`] as soon as the group goes offline, [`ChargeError::Cancelled`] as soon as it is chosen
    /// to give its memory back; [`ChargeError::InReclaim`] at once inside a reclaimer.
    ///
    /// ```
    /// use memcg::{ChargeError, Limit, Runtime};
    /// use std::time::Duration;
    ///
    /// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
    /// let root = runtime.root();
    /// let held = root.try_charge(80)?;
    /// let refused = root.charge_timeout(30, Duration::from_millis(1)).unwrap_err();
    /// assert!(matches!(refused, ChargeError::TimedOut { .. }));
    /// let giver = std::thread::spawn(move || drop(held));
    /// let charge = root.charge_timeout(30, Duration::from_secs(10))?;
    /// assert_eq!(charge.bytes(), 30);
    /// # giver.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn charge_timeout(&self, bytes: u64, time: Duration) -> Result<Charge, ChargeError> {
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => {
                charge_slow(self.header, bytes, missed, Patience::Until(Instant::now().checked_add(time)))?;
                high::sleep_off(self.node());
            }
        }
        Ok(Charge::new(self.header, bytes))
    }

    /// Charge `bytes`, and where they do not fit do what `exhausted` says. May block: in async code
    /// [`charge_async`](Self::charge_async). Configuration files can say it, too.
    ///
    /// # Errors
    ///
    /// As [`try_charge`](Self::try_charge) for `Fail`, as [`charge_timeout`](Self::charge_timeout) for `Wait`. For
    /// `Overcharge` only [`ChargeError::Offline`].
    ///
    /// ```
    /// use memcg::{Limit, OnExhausted, Runtime};
    ///
    /// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
    /// let root = runtime.root();
    /// let _held = root.charge_with(130, "overcharge".parse()?)?;
    /// assert_eq!(root.forced(), 30);
    /// assert!(root.charge_with(1, OnExhausted::Fail).is_err());
    /// assert!(root.charge_with(1, "wait(1ms)".parse()?).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge_with(&self, bytes: u64, exhausted: OnExhausted) -> Result<Charge, ChargeError> {
        match exhausted {
            OnExhausted::Fail => self.try_charge(bytes),
            OnExhausted::Wait(time) => self.charge_timeout(bytes, time),
            OnExhausted::Overcharge => self.charge_over(bytes),
        }
    }

    /// Reclaim is excluded, and nobody cancelled; what does not fit goes above the limit.
    fn charge_over(&self, bytes: u64) -> Result<Charge, ChargeError> {
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => {
                let plain = Plain { cancels: false, ..Plain::new(self.node(), bytes, Patience::Others) };
                match try_once(plain.node, bytes, missed).or_else(|unmet| plain.reclaim_and_retry(unmet)) {
                    Ok(()) => high::sleep_off(self.node()),
                    Err(ChargeFailure::Offline) => return Err(ChargeFailure::Offline.into_error(self.node(), bytes)),
                    Err(_) => return Ok(self.charge(bytes)),
                }
            }
        }
        Ok(Charge::new(self.header, bytes))
    }

    /// Charge `bytes`, and where they do not fit wait in line, as [`charge_timeout`](Self::charge_timeout) without an
    /// end and without blocking: a poll waits for nobody, and may run reclaimers and cancel hooks.
    ///
    /// Needs no runtime, only a [`Waker`]. Dropped before it is done it leaves the line, and nothing of it remains;
    /// dropped after it was given the bytes and before it was polled again it gives them back. A time limit is the
    /// caller's timer around it. Reclaimers are asked when it is polled first, on the polling thread, where it has
    /// moved to another group's line, and again where other threads were asking at the same time: the same thread of this
    /// crate that ends delays wakes it for that. Where the policy chooses, one group is cancelled for it, and the next one
    /// by others that do not fit.
    ///
    /// Above a high it does not sleep: it is woken once, when the delay is over or usage is not above high any more. A
    /// thread of this crate does that, one for the process, which starts with the first such delay and ends a second after
    /// the last. Where the system gives no thread the charge is made without a delay.
    /// [`undelayed`](ChargeFuture::undelayed) leaves the delay to the caller, to whom
    /// [`high_delay`](Self::high_delay) says how long it is.
    ///
    /// # Errors
    ///
    /// As [`charge_timeout`](Self::charge_timeout), but [`ChargeError::TimedOut`].
    ///
    /// ```
    /// use memcg::{Limit, Runtime};
    /// use std::future::Future;
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    ///
    /// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
    /// let root = runtime.root();
    /// let held = root.try_charge(80)?;
    /// let mut charge = pin!(root.charge_async(30));
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(charge.as_mut().poll(&mut context).is_pending());
    /// assert_eq!((root.usage(), root.waiting()), (80, 1), "who waits holds nothing");
    /// drop(held);
    /// assert_eq!(root.usage(), 30, "charged for the one in line");
    /// let Poll::Ready(charge) = charge.poll(&mut context) else { panic!() };
    /// assert_eq!(charge?.bytes(), 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge_async(&self, bytes: u64) -> ChargeFuture {
        ChargeFuture::new(self.clone(), bytes)
    }

    /// Charges that wait in line at this group: its own max has refused them. [`Event::Max`](crate::Event::Max) is
    /// counted a moment before such a charge stands in line.
    ///
    /// ```
    /// assert_eq!(memcg::Runtime::builder().build()?.root().waiting(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn waiting(&self) -> usize {
        self.node().waiting()
    }
}
