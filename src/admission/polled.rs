//! A charge that waits without blocking: what a future does for it at each poll.

use std::ptr;
use std::task::Waker;
use std::time::Instant;

use crate::admission::attempt::{ChargeFailure, ChargeResult, Pending};
use crate::admission::plain::{LineTime, Plain, WaitFor};
use crate::admission::steps::{go_on, try_once};
use crate::admission::wait::{ask_again_after, ask_reclaimers, decided, may_wait};
use crate::counter::object::{Counter, Kept};
use crate::pressure::delays::Alarm;
use crate::pressure::line::{self, Ticket};
use crate::pressure::stalls::Stall;
use crate::pressure::victims;
use crate::reclaim::registrations;
use crate::reclaim::repeat::may_call_out;
use crate::state::waiting::Decision;
use crate::thread::foreign::Foreign;
use crate::thread::slot::Consume;

pub(crate) enum Begun<'a> {
    Ended(ChargeResult<'a>),
    InLine(InLine),
}

/// A charge in line. Dropped, it leaves the line.
pub(crate) struct InLine {
    /// Until the future is polled and goes on, or is dropped. Before the ticket, which keeps the group.
    stall: Option<Stall>,
    ticket: Ticket,
    bytes: u64,
    /// Level where reclaimers have been asked.
    asked: Kept,
    /// When to ask them again, where other threads were asking.
    again: Option<Alarm>,
    begun: Instant,
    /// When the caller's time is over.
    end: Option<Instant>,
}

/// The first poll that misses. It does all that a charge does, and waits for no other thread. A charge whose time is
/// bounded counts as waiting from when that began on; else from when it is in line.
pub(crate) fn begin<'a>(
    group: &'a Counter,
    bytes: u64,
    missed: Consume,
    time: Option<LineTime>,
    waker: &Waker,
) -> Begun<'a> {
    let mut plain = Plain::new(group, bytes, WaitFor::Nothing);
    plain.end = time.and_then(LineTime::reclaim_end);
    match try_once(group, bytes, missed).or_else(|failure| go_on(&plain, failure)) {
        Err(ChargeFailure::Refused { refusal, pending, .. }) if may_wait(bytes, &refusal) => {
            let level = refusal.level;
            let (ticket, end) = (line::enqueue(group, bytes, level), plain.end);
            let now = Instant::now();
            let begun = time.map_or(now, |time| time.begun);
            let stall = Stall::begin(group, level, now);
            let asked = ticket.kept(level);
            let mut in_line = InLine { stall, ticket, bytes, asked, again: None, begun, end };
            in_line.ask_again(pending == Some(Pending::Round), waker);
            Begun::InLine(in_line)
        }
        // A max was lowered meanwhile, say: no memory may come for it any more.
        Err(ChargeFailure::Refused { refusal, counted, .. }) => {
            Begun::Ended(Err(ChargeFailure::Refused { refusal, counted, pending: None }.count()))
        }
        begun => Begun::Ended(begun.map_err(ChargeFailure::count)),
    }
}

impl InLine {
    /// Sets when to ask again, where the rounds of other threads may come to nothing.
    fn ask_again(&mut self, whether: bool, waker: &Waker) {
        let again = whether.then(|| Instant::now() + ask_again_after(&self.asked));
        self.again = again.and_then(|again| Alarm::set(again, waker));
    }

    pub(crate) fn is_served_by(&self, bytes: u64) -> bool {
        self.ticket.is_served_by(bytes)
    }

    /// False: the wait is decided.
    pub(crate) fn resize(&mut self, bytes: u64) -> bool {
        let resized = self.ticket.resize(bytes);
        if resized {
            self.bytes = bytes;
        }
        resized
    }

    /// Takes the decision of the line, with the level in whose line the wait was. `None`: there is none yet, or a delay
    /// above a high follows.
    pub(crate) fn take_decided(&mut self) -> Option<(ChargeResult<'_>, Kept)> {
        let (decision, level) = self.ticket.take_decided()?;
        Some((decided(self.ticket.group(), decision, self.bytes, false).map_err(ChargeFailure::count), level))
    }

    /// After the end of the wait: takes a place anew, behind all that wait at the level, for so many bytes. False: it
    /// took none, because reclaimers have to be asked first, or a victim has to be chosen.
    pub(crate) fn wait_again(&mut self, level: &Counter, bytes: u64, waker: &Waker) -> bool {
        if registrations::any_below(level) || victims::chooses(level) {
            return false;
        }
        // Mutation: the-next-of-a-queue-is-not-woken
        let waker = Foreign::new(waker.clone());
        self.ticket = line::enqueue_with(self.ticket.group(), bytes, level, waker);
        (self.bytes, self.asked) = (bytes, self.ticket.kept(level));
        true
    }

    pub(crate) fn poll(&mut self, waker: &Waker) -> Option<ChargeResult<'_>> {
        let decision = self.poll_line(waker)?;
        self.stall = None;
        Some(decided(self.ticket.group(), decision, self.bytes, false).map_err(ChargeFailure::count))
    }

    /// Time is over: the charge leaves the line. What was decided in time holds.
    pub(crate) fn time_out(&mut self) -> ChargeResult<'_> {
        self.stall = None;
        let level = self.ticket.level();
        let ended = match self.ticket.leave() {
            Some(decision) => decided(self.ticket.group(), decision, self.bytes, false),
            None => {
                let (refusal, waited) = (self.ticket.group().level(&level).refusal_now(), self.begun.elapsed());
                Err(ChargeFailure::TimedOut { refusal, counted: false, waited })
            }
        };
        ended.map_err(ChargeFailure::count)
    }

    /// Asks the reclaimers where the charge has moved to another line: those there were not asked yet.
    fn poll_line(&mut self, waker: &Waker) -> Option<Decision> {
        // Nothing foreign runs between a decision and its return: a grant is not lost to a panic.
        let level = match self.ticket.poll(waker) {
            Ok(decision) => return Some(decision),
            Err(level) => level,
        };
        self.stall.iter_mut().for_each(|stall| stall.moves_to(&level));
        let is_due = !ptr::eq(&*level, &*self.asked) || self.again.as_ref().is_some_and(|again| !again.renew(waker));
        if !is_due || !may_call_out() {
            return None;
        }
        self.asked = level;
        let group = self.ticket.group();
        let unwaited = ask_reclaimers((group, self.bytes), &level, self.end, false);
        self.ask_again(unwaited, waker);
        self.ticket.poll(waker).ok()
    }
}
