//! In line: until the wait is decided or time is over, with reclaimers asked again from time to
//! time.

use std::ptr;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::admission::attempt::{ChargeFailure, ChargeResult, RefusalKind, decided, fits_ever};
use crate::counter::cover;
use crate::counter::object::{Counter, CounterRef};
use crate::counter::refusal::LevelRefusal;
use crate::hierarchy::importance;
use crate::pressure::delays::Alarm;
use crate::pressure::line::{self, Ticket};
use crate::pressure::stalls::Stall;
use crate::pressure::wakers::{park_until, parked_waker};
use crate::pressure::{started, victims};
use crate::reclaim::repeat::{ASK_AGAIN_MAX, ask_again_after, deadline, may_call_out};
use crate::reclaim::round::{ReclaimRequest, earlier};
use crate::reclaim::{registrations, round};
use crate::state::reclaimer::ReclaimCause;
use crate::state::waiting::{Decision, PlaceHolder};
use crate::sync::clock;
use crate::sync::is_over;
use crate::thread::foreign::Foreign;

/// True if a charge may wait in line. Inside reclaim none may: it could wait for what its own
/// thread is to free.
pub(super) fn may_wait(group: &Counter, bytes: u64, refusal: &LevelRefusal<'_>) -> bool {
    may_call_out() && refusal.level.is_memory() && line::in_the_way(group, bytes).is_none()
}

/// Time of a charge in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineTime {
    /// From here on it counts as waiting.
    begun: Instant,
    /// `None`: without an end.
    pub(crate) until: Option<Instant>,
}

impl LineTime {
    /// So much time from now on. A charge that `time` ends has waited for no less.
    pub(crate) fn begin(time: Option<Duration>) -> Self {
        let begun = clock::now();
        LineTime {
            begun,
            // Mutation: a-thread-waits-twice-its-time
            until: time.and_then(|time| begun.checked_add(time)),
        }
    }

    pub(super) fn is_zero(self) -> bool {
        self.until == Some(self.begun)
    }

    /// From when on it asks no reclaimer any more. A charge that waits for no time at all still
    /// asks them, as one that does not wait.
    pub(super) fn reclaim_end(self) -> Option<Instant> {
        // Mutation: no-time-asks-nobody
        self.until.filter(|_| !self.is_zero())
    }
}

/// A charge in line. Dropped, it leaves the line.
pub(crate) struct InLine {
    /// Counts as a stall until the charger goes on, or the charge is dropped. It is declared before
    /// the ticket, which keeps the group, so that it is dropped first.
    stall: Option<Stall>,
    pub(crate) ticket: Ticket,
    /// Level where reclaimers have been asked.
    asked: CounterRef,
    /// [`Event::Oom`](crate::Event::Oom) has been counted.
    counted: bool,
    time: LineTime,
    /// When a future's time is over. Set by the first poll in line.
    over: Option<Alarm>,
}

impl InLine {
    /// In the line of `level`, at whose reclaimers the charge has asked.
    pub(super) fn begin(ticket: Ticket, level: &Counter, counted: bool, time: LineTime) -> InLine {
        // A charge that waits for no time at all does not stand still.
        let stall = if time.is_zero() {
            None
        } else {
            Stall::begin(&ticket.group, level, clock::now())
        };
        let asked = ticket.kept(level);
        InLine {
            stall,
            ticket,
            asked,
            counted,
            time,
            over: None,
        }
    }

    /// Blocks the thread until the wait of the `group`'s charge is decided or time is over.
    pub(super) fn wait(mut self, group: &Counter) -> ChargeResult<'_> {
        let waker = parked_waker();
        let mut is_due = false;
        loop {
            // Before the look at the clock: a charge that was served in time is served, however
            // late its thread wakes.
            if let Some(decision) = self.look(&waker, is_due, true) {
                return self.ended(group, decision);
            }
            // Mutation: a-thread-gives-up-when-it-has-asked-again
            if self.time.until.is_some_and(is_over) {
                return self.time_out(group);
            }
            // A reclaimer that had nothing to give when this charge came may have something by now,
            // and there may be a new one.
            let any = registrations::any_below(&self.asked);
            let again = clock::now()
                + if any {
                    ask_again_after(&self.asked)
                } else {
                    ASK_AGAIN_MAX
                };
            park_until(Some(earlier(again, self.time.until)));
            is_due = is_over(again);
        }
    }

    /// Looks once, for a future. `None`: a wake follows.
    pub(crate) fn poll<'a>(
        &mut self,
        group: &'a Counter,
        waker: &Waker,
    ) -> Option<ChargeResult<'a>> {
        match self.look(waker, false, false) {
            Some(decision) => Some(self.ended(group, decision)),
            None => self.is_over(waker).then(|| self.time_out(group)),
        }
    }

    /// The decision, if there is one. Asks reclaimers where that is due, and where the charge has
    /// moved to another line: those there were not asked yet. A thread asks them itself; a task,
    /// which shares its thread with others, has them asked.
    fn look(&mut self, waker: &Waker, mut is_due: bool, is_thread: bool) -> Option<Decision> {
        loop {
            // Nothing foreign runs between a decision and its return: a grant is not lost to a
            // panic.
            let level = match self.ticket.poll(waker) {
                Ok(decision) => return Some(decision),
                Err(level) => level,
            };
            self.stall
                .iter_mut()
                .for_each(|stall| stall.moves_to(&level));
            let has_moved = !ptr::eq(&*level, &*self.asked);
            if !(is_due || has_moved) || self.time.until.is_some_and(is_over) || !may_call_out() {
                return None;
            }
            // The charge may move again meanwhile.
            self.asked = level;
            is_due = false;
            if is_thread {
                self.ask_reclaimers(&level, true);
            } else {
                self.has_room_made();
            }
        }
    }

    /// Has a thread of the tree ask the reclaimers, and choose a victim, at the level in whose line
    /// the charge is. Where the system has no thread, this one asks.
    pub(super) fn has_room_made(&self) {
        let level = &*self.asked;
        let is_use = registrations::any_below(level) || victims::chooses(level);
        // Where the max has fallen below the charge, it may rise again in time. Until then no cache
        // is emptied for a charge that cannot fit.
        if is_use
            && !self.time.is_zero()
            && fits_ever(&self.ticket.group, self.ticket.bytes)
            && !started::make_room_in_line(level, importance::of(&self.ticket.group))
        {
            self.ask_reclaimers(level, false);
        }
    }

    /// Runs one round of reclaim. The round waits for those of other threads or does not.
    fn ask_reclaimers(&self, level: &Counter, waits: bool) {
        let group = &*self.ticket.group;
        if !registrations::any_below(level) || !fits_ever(group, self.ticket.bytes) {
            return;
        }
        let mut request = ReclaimRequest::new(ReclaimCause::Full, deadline(level))
            .until(self.time.reclaim_end())
            .waits(waits)
            .ends_with(group, victims::ends(group));
        let adds = cover::rise_at(group, self.ticket.bytes, level);
        let missing = adds.saturating_sub(level.room(level.admits()));
        let _ = round::run(level, missing, &mut request);
    }

    /// Returns true if a future's time is over; else a wake follows when it is. It is over at once
    /// if there is no thread to wake the future, which would wait without an end.
    fn is_over(&mut self, waker: &Waker) -> bool {
        let Some(until) = self.time.until else {
            return false;
        };
        if is_over(until) {
            return true;
        }
        match &self.over {
            Some(alarm) => !alarm.renew(waker),
            None => {
                self.over = Alarm::set(None, until, waker);
                self.over.is_none()
            }
        }
    }

    fn ended<'a>(&mut self, group: &'a Counter, decision: Decision) -> ChargeResult<'a> {
        self.stall = None;
        decided(group, decision, self.ticket.bytes, self.counted).map_err(ChargeFailure::count)
    }

    /// Time is over, and the charge leaves the line. Whoever serves the line may have decided it
    /// just before, and that holds.
    pub(crate) fn time_out<'a>(&mut self, group: &'a Counter) -> ChargeResult<'a> {
        let level = self.ticket.level();
        if let Some(decision) = self.ticket.leave() {
            return self.ended(group, decision);
        }
        self.stall = None;
        let kind = RefusalKind::TimedOut(clock::now().saturating_duration_since(self.time.begun));
        // Mutation: a-wait-that-is-over-counts-its-shortage-again
        Err(ChargeFailure::Refused {
            refusal: group.level(&level).refusal_now(),
            counted: self.counted,
            kind,
        }
        .count())
    }

    // === A place for a queue of waiters ===

    /// Takes the decision of the line, with the level in whose line the wait was. `None`: there is
    /// none yet, or a delay above a high follows.
    pub(crate) fn take_decided<'a>(
        &mut self,
        group: &'a Counter,
    ) -> Option<(ChargeResult<'a>, CounterRef)> {
        let (decision, level) = self.ticket.take_decided()?;
        Some((
            decided(group, decision, self.ticket.bytes, self.counted).map_err(ChargeFailure::count),
            level,
        ))
    }

    /// After the end of the wait: takes a place anew, behind all that wait at the level, for so
    /// many bytes. False: it took none, because reclaimers have to be asked first, or a victim has
    /// to be chosen.
    pub(crate) fn wait_again(&mut self, level: &Counter, bytes: u64, waker: &Waker) -> bool {
        if registrations::any_below(level) || victims::chooses(level) {
            return false;
        }
        // Mutation: the-next-of-a-queue-is-not-woken
        let waker = Foreign::new(waker.clone());
        let group = &self.ticket.group;
        self.ticket = line::enqueue(group, bytes, level, PlaceHolder::Queue, Some(waker));
        (self.asked, self.counted) = (self.ticket.kept(level), false);
        true
    }
}
