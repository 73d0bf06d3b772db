//! Tasks above a high: a thread of the tree reclaims, the task is delayed.

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::counter::object::{Counter, CounterRef};
use crate::hierarchy::{events, importance};
use crate::pressure::delays::Alarm;
use crate::pressure::high::{
    DELAY_MIN, delay_of, drain_excess, is_any_above, is_delayed, levels_above, levels_that_delay,
};
use crate::pressure::stalls::Stall;
use crate::pressure::started;
use crate::pressure::throttle::{shrink_to_high, stand_still};
use crate::pressure::victims::has_ended;
use crate::reclaim::registrations;
use crate::reclaim::repeat::may_call_out;
use crate::reclaim::round::TIME_MAX;
use crate::state::events::Event;
use crate::sync::clock;
use crate::sync::is_over;
use crate::thread::foreign::Foreign;

/// [`delay_after`](crate::pressure::throttle::delay_after) for a task, which shares its thread with others: a thread of the tree asks the
/// reclaimers, and wakes `waker`. The delay is the one from before that.
pub(crate) fn delay_of_task(
    group: &Counter,
    bytes: u64,
    end: Option<Instant>,
    waker: Option<&Waker>,
) -> Duration {
    if !is_any_above(group, bytes) {
        return Duration::ZERO;
    }
    levels_above(group).for_each(|level| events::count(level, Event::High));
    if !may_call_out() || end.is_some_and(is_over) {
        return Duration::ZERO;
    }
    for level in levels_that_delay(group) {
        if !registrations::any_below(level) {
            // Nobody to ask, so the drain is all that can help, and is cheap enough for a task.
            drain_excess(level);
            continue;
        }
        let waker = Foreign::new(waker.unwrap_or(Waker::noop()).clone());
        if !started::shrink_to_high_and_wake(level, importance::of(group), waker) {
            // The system has no thread. Then this one asks the reclaimers: a task that is delayed
            // for what nobody reclaims would be delayed each time.
            shrink_to_high(level, importance::of(group));
        }
    }
    let delay = delay_of(group, bytes);
    if delay <= DELAY_MIN {
        return Duration::ZERO;
    }
    end.map_or(delay, |end| {
        delay.min(end.saturating_duration_since(clock::now()))
    })
}

/// A future that is delayed above a high. Its owner keeps the group meanwhile.
pub(crate) struct Delayed {
    group: CounterRef,
    until: Instant,
    alarm: Alarm,
    _stall: Option<Stall>,
}

impl Delayed {
    /// [`delay_after`](super::throttle::delay_after), for a future. `None`: it goes on; also if there is no thread to wake it,
    /// for the future would have to wake itself time and again.
    #[allow(unsafe_code)]
    pub(crate) fn begin(
        group: &Counter,
        bytes: u64,
        end: Option<Instant>,
        waker: &Waker,
    ) -> Option<Delayed> {
        let delay = delay_of_task(group, bytes, end, Some(waker)).min(TIME_MAX);
        let until = clock::now() + delay;
        if is_over(until) || !is_delayed(group) {
            return None;
        }
        // Without a thread to wake it the future would have to wake itself time and again, on a
        // thread that others need. Then it goes on instead.
        let alarm = alarm(group, until, waker)?;
        let _stall = stand_still(group, clock::now());
        // SAFETY: the owner keeps the group as long as it has the value.
        let group = unsafe { CounterRef::new(group) };
        Some(Delayed {
            group,
            until,
            alarm,
            _stall,
        })
    }

    /// True: the waker is woken when the delay may be over.
    pub(crate) fn lasts(&self, waker: &Waker) -> bool {
        !is_over(self.until) && is_delayed(&self.group) && self.alarm.renew(waker)
    }
}

/// The alarm of a future that is delayed until then, which `waker` is woken for. The caller keeps
/// the group. `None`: the delay is over, because the group is cancelled or offline, or because the
/// system has no thread that wakes the future.
pub(crate) fn alarm(group: &Counter, until: Instant, waker: &Waker) -> Option<Alarm> {
    // In the table, then the look: a thread that cancels the group after this finds the delay
    // there.
    Alarm::set(Some(group), until, waker).filter(|_| !has_ended(group))
}
