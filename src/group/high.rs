//! Charges above high: reclaim first, then a delay.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::error::{ChargeError, LimitError};
use super::reclaim::shrink_by;
use super::waiting::{Patience, charge_slow};
use super::{Charge, Group};
use crate::admission::attempt::{ROUNDS_MAX, deadline, may_call_out, note, spare};
use crate::counter::object::Counter;
use crate::counter::slow_path::slow_path;
use crate::hierarchy::limits::LimitKind;
use crate::pressure::delay::DELAY_MIN;
use crate::reclaim::round::{Request, TIME_MAX};
use crate::reclaim::{ReclaimCause, registrations, round};
use crate::state::events::Event;
use crate::sync::{is_over, sleep};
use crate::thread::slot::Consume;
use crate::thread::{context, slow_path};
use crate::units::Limit;

/// What is reclaimed at a time, at least: the kernel's SWAP_CLUSTER_MAX.
const RECLAIM_MIN: u64 = 32 * 4096;

/// How often a thread that is delayed looks whether there is still reason for it.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// After a charge that walked: reclaim where it left a level above high, which waits for the rounds of other threads
/// or does not. Returns the delay that remains.
#[inline]
pub(crate) fn throttled(node: &'static Counter, waits: bool) -> Duration {
    match context::take_over_high() {
        0 => Duration::ZERO,
        bytes => throttle(node, bytes, waits),
    }
}

/// [`throttled`], and sleep the delay.
#[inline]
pub(crate) fn sleep_off(node: &'static Counter) {
    let delay = throttled(node, true);
    if !delay.is_zero() {
        sleep_slow(node, delay);
    }
}

/// Somebody above is still above high.
pub(crate) fn holds_up(node: &'static Counter) -> bool {
    !node.state().is_offline() && node.over_high().any(|level| !level.is_observed())
}

#[cold]
fn throttle(node: &'static Counter, bytes: u64, waits: bool) -> Duration {
    let over = |node: &'static Counter| node.over_high().filter(|level| !level.is_observed());
    node.over_high().for_each(|level| note(level, Event::High));
    if slow_path::is_running() {
        // An allocator's charge: the one that it is part of is delayed.
        context::note_over_high(bytes);
    }
    if !may_call_out() {
        return Duration::ZERO;
    }
    let mut request = Request::new(ReclaimCause::High, deadline(node)).waits(waits);
    let mut fruitless = 0;
    loop {
        let (mut asked, mut freed) = (false, 0);
        for level in over(node).collect::<SmallVec<[&'static Counter; 4]>>() {
            if !registrations::any_below(level) {
                drain_excess(level);
                continue;
            }
            // What is freed is to show in usage, and not in a stock.
            drain(level);
            let above = level.above_high();
            let want = above.min(bytes.max(RECLAIM_MIN)) + spare(level, level.high());
            if above > 0
                && let Some(round) = round::run(level, want, &mut request)
            {
                asked = true;
                freed += round.report.freed;
            }
        }
        let delay = node.delay(bytes);
        if delay <= DELAY_MIN {
            return Duration::ZERO;
        }
        fruitless += usize::from(freed == 0);
        if !asked || fruitless > ROUNDS_MAX || request.is_over() {
            return delay;
        }
    }
}

fn drain(level: &'static Counter) {
    slow_path(|_, _| level.tree().close_below(level));
}

/// Credit is nobody's excess: it goes back where it may be all that is above high.
fn drain_excess(level: &'static Counter) {
    if level.above_high() <= level.bound() {
        drain(level);
    }
}

#[cold]
fn sleep_slow(node: &'static Counter, delay: Duration) {
    let until = Instant::now() + delay.min(TIME_MAX);
    while !is_over(until) && holds_up(node) {
        sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
    }
}

/// High has come below usage: what is above it is drained and reclaimed, as far as somebody gives it.
pub(crate) fn shrink_to_high(node: &'static Counter) {
    if node.above_high() > 0 && !node.is_observed() && may_call_out() {
        drain(node);
        shrink_by(node, &mut Request::new(ReclaimCause::High, deadline(node)), || node.above_high());
        // What came back may be credit of this thread.
        drain(node);
    }
}

impl Group {
    /// Set the usage above which charges slow down. May block: in async code call it on a thread for blocking work.
    /// [`Limit::Max`], as it is at first: never.
    ///
    /// Never refused for usage, and nothing on a group that is offline: what is above it is drained and reclaimed at
    /// once, as far as somebody gives it. Returns the bytes that are still above.
    ///
    /// A charge that walks the tree and leaves this group, or finds it, above high has the excess reclaimed and is
    /// delayed: by the kernel's formula, which grows with the square of the part by which usage is above, for at most
    /// [`delay_max`](crate::RuntimeBuilder::delay_max): so much for each charge, where a single one is as large as
    /// high. It is never refused for that. Not delayed: a charge from the stock, one that cannot be refused, one made
    /// inside reclaim, a transfer.
    ///
    /// Source: `memory_high_write` and `mem_cgroup_handle_over_high` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// As [`set_max`](Self::set_max).
    ///
    /// ```
    /// use memcg::{Event, Limit, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(1 << 20)?;
    /// assert!(root.set_high(Limit::Bytes(1_000_000))? > 0, "nobody gives anything");
    /// let _more = root.try_charge(1 << 20)?; // delayed
    /// assert!(root.events().get(Event::High) > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_high(&self, limit: Limit) -> Result<u64, LimitError> {
        self.memory().set(LimitKind::High, limit)?;
        let node = self.node();
        shrink_to_high(node);
        Ok(node.above_high())
    }

    /// The high in bytes, `u64::MAX` where there is none. One load.
    ///
    /// ```
    /// assert_eq!(memcg::Runtime::builder().build()?.root().high(), u64::MAX);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn high(&self) -> u64 {
        self.node().high()
    }

    /// What a charge of `bytes` that walks the tree would be delayed as things stand: the greatest delay among this
    /// group and those above. Charges do not sleep for 10 ms or less. Where credit may be all that is above a high it is
    /// drained first, which takes a barrier; else a few loads a level.
    ///
    /// Source: `calculate_high_delay` in `mm/memcontrol.c`.
    ///
    /// ```
    /// use memcg::{Limit, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// root.set_high(Limit::Bytes(100 << 20))?;
    /// let _held = root.charge(102 << 20);
    /// assert_eq!(root.high_delay(64 * 4096).as_millis(), 25);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn high_delay(&self, bytes: u64) -> Duration {
        let node = self.node();
        if may_call_out() {
            node.over_high().for_each(drain_excess);
        }
        node.delay(bytes)
    }

    /// [`try_charge`](Self::try_charge) that neither sleeps nor waits for others, for async code and for timers of one's
    /// own: it returns the delay above a high in the place of sleeping it; zero where there is none.
    ///
    /// Reclaimers run on this thread, and where the [policy](crate::OomPolicy) chooses so do the cancel hooks of one
    /// victim. What they give at once is this charge's. Memory that comes later is not waited for: that of the victim,
    /// what a reclaimer has promised ([`ReclaimContext::later`](crate::ReclaimContext::later)), what another thread's
    /// reclaim is about to free. The locks that it takes are held for bounded work of this crate.
    ///
    /// # Errors
    ///
    /// As [`try_charge`](Self::try_charge), and [`ChargeError::WouldBlock`] where memory is about to come: try again
    /// later, or wait with [`charge_async`](Self::charge_async).
    ///
    /// ```
    /// use memcg::{Limit, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let root = runtime.root();
    /// root.set_high(Limit::Bytes(1 << 20))?;
    /// let _held = root.charge(2 << 20);
    /// let (_charge, delay) = root.try_charge_undelayed(1 << 20)?;
    /// assert!(!delay.is_zero()); // to be awaited
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge_undelayed(&self, bytes: u64) -> Result<(Charge, Duration), ChargeError> {
        let delay = match self.header.consume_open(bytes) {
            Consume::Hit => Duration::ZERO,
            missed => {
                charge_slow(self.header, bytes, missed, Patience::None)?;
                throttled(self.node(), false)
            }
        };
        Ok((Charge::new(self.header, bytes), delay))
    }
}
