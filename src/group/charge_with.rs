//! Charges whose caller says what becomes of them where they do not fit.

use std::mem::ManuallyDrop;
use std::time::Duration;

use super::charge::{Charge, charge_at_once, charge_undelayed};
use super::error::{ChargeError, Repr};
use super::handle::Group;
use crate::admission::at_once::{self, AtOnceEffort};
use crate::admission::plain::WaitFor;
use crate::admission::steps;
use crate::admission::wait::LineTime;
use crate::counter::object::Counter;
use crate::counter::object::HeaderRef;
use crate::pressure::high::{above, is_any_above, levels_that_delay};
use crate::pressure::throttle;
use crate::thread::context;
use crate::thread::slot::Consume;
use crate::units::{Bytes, IntoBytes};

/// What to do when a charge does not fit immediately: the argument of
/// [`Group::charge_with`](crate::Group::charge_with), which compares all ways to charge in one
/// table.
///
/// ```
/// use memcg::{Limit, Limits, OnFull, Runtime};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(Limit::kib(1)))?;
/// let held = acme.charge_with(1_000, OnFull::Now)?;
/// assert!(acme.charge_with(1_000, OnFull::Wait(Duration::from_millis(1))).is_err());
/// # drop(held);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFull {
    /// Do what [`charge`](crate::Group::charge) does, and then wait in line. The time bounds the
    /// whole call, but for a reclaimer that is at work.
    Wait(Duration),
    /// Do what [`charge`](crate::Group::charge) does, without sleeping or waiting for others, and
    /// cancel at most one victim. The call may block in reclaimers, which run on this thread.
    Reclaim,
    /// Never block: have other threads begin to drain, reclaim and cancel, and refuse the charge
    /// for now.
    Start,
    /// Never block, drain nothing and start nothing.
    Now,
    /// Never block, as with `Now`, and take room only below each high as well. A refusal is not
    /// counted and has no figures.
    IfRoom,
}

/// # Charges that say what to do without room
impl Group {
    /// Charges `bytes` here and at all ancestors, or nowhere. If the bytes do not fit at once, it
    /// does what `full` says; whether it may block depends on that:
    ///
    /// | | it sleeps, or waits for others | foreign code on this thread | before it refuses |
    /// |---|---|---|---|
    /// | [`charge`](Self::charge) | above high, for victims and promises | reclaimers, cancel hooks, a policy's function, listeners, wakers | drains, reclaims, cancels |
    /// | [`Wait`](OnFull::Wait) | the same, and in line | the same | the same, and waits |
    /// | [`Reclaim`](OnFull::Reclaim) | no | the same | drains, reclaims, cancels one |
    /// | [`try_charge`](Self::try_charge) | no | none | drains |
    /// | [`Start`](OnFull::Start) | no | [`start`](crate::Reclaim::start) of reclaimers | has other threads drain, reclaim, cancel one |
    /// | [`Now`](OnFull::Now), [`IfRoom`](OnFull::IfRoom) | no | none | nothing |
    /// | a poll of [`charge_async`](Self::charge_async) | no | listeners, wakers | drains; the task waits in line, and another thread reclaims and cancels for it |
    /// | [`force_charge`](Self::force_charge) | no | listeners, wakers | drains, then goes above max |
    ///
    /// `Wait` is for threads, `Reclaim` for a thread that drives other work as well. `Start`, `Now`
    /// and `IfRoom` are for code that may never block: an allocator, an event loop, code that holds
    /// locks. If the charge fits, all cost what `charge` costs; if it does not, `Now` and `IfRoom`
    /// cost one walk. Each is exact: once it has succeeded, usage is within max at every level.
    ///
    /// * `Wait`: the charge waits in line at the group whose max is met, behind those that came
    ///   before and are no less [important](crate::Limits::importance). A thread that gives bytes
    ///   back there charges them for the first in line, and wakes it with the charge made. A charge
    ///   that waits holds nothing. Reclaimers are asked again from time to time. Other charges may
    ///   barge past the first, until together they have been admitted as many bytes as the first
    ///   asks for. (They exceed this only by what other threads had in flight when the charge
    ///   became first.) The time bounds all that the call waits for: the line, victims, reclaim,
    ///   and the delay above a [high](crate::Limits::high), at whose end the charge returns. A
    ///   reclaimer at work is not interrupted. With a time of zero, reclaimers are still asked as
    ///   by `charge`. Do not wait while you hold memory that other charges wait for.
    /// * `Reclaim`: the charge gets the bytes that reclaimers and the victim's hooks give at once.
    ///   It does not wait for memory that comes later. Above a high the charge is made without its
    ///   delay, which [`high_delay`](crate::inspect::GroupInspector::high_delay) returns.
    /// * `Start`: the call tells reclaimers below the level that has refused by
    ///   [`Reclaim::start`](crate::Reclaim::start), which must not block. If they promise fewer
    ///   bytes than are missing, the runtime's thread `memcg-reclaim` does once what `charge` does.
    ///   That thread starts when it is needed and ends a second after its last work. Bytes that are
    ///   freed belong to no charge: try again a little later. Above a high the charge is made, and
    ///   the thread reclaims the bytes above it.
    /// * `Now`: the call takes no lock that another thread holds over a drain, a barrier, or
    ///   foreign code. It allocates where the thread charges for the first time. Credit of other
    ///   threads is not drained, so it may be refused beside some: [`try_charge`](Self::try_charge)
    ///   is not. Wakers and listeners that it finds due are called by a thread of the crate, and by
    ///   this thread only if the system cannot start one.
    /// * `IfRoom`: the charge has to stay below each high, too, and so does what the thread charges
    ///   ahead with it; a high that is [only observed](Self::set_observe_only) does not count. It
    ///   is meant as the first step of a charge that goes on in another way, and costs as little as
    ///   `Now`. Its refusal has no figures and is counted by no event and by no
    ///   [`refused_count`](Self::refused_count).
    ///
    /// To make a charge in any case, but have memory reclaimed for it first, call
    /// [`charge`](Self::charge), and [`force_charge`](Self::force_charge) if that is refused.
    ///
    /// Source: `try_charge_memcg` in `mm/memcontrol.c`; `Now` is a charge without
    /// `__GFP_DIRECT_RECLAIM`.
    ///
    /// # Errors
    ///
    /// As [`charge`](Self::charge), and:
    ///
    /// * `Wait`: [`ChargeErrorKind::TimedOut`](crate::ChargeErrorKind::TimedOut) after the time;
    ///   [`Event::TimedOut`](crate::Event::TimedOut) counts it.
    ///   [`ChargeErrorKind::OverLimit`](crate::ChargeErrorKind::OverLimit) at once, for a charge
    ///   that could never fit.
    /// * `Reclaim`, `Start`, `Now`:
    ///   [`ChargeErrorKind::WouldBlock`](crate::ChargeErrorKind::WouldBlock) where memory may come.
    ///   Then try again later, or wait. The refusals of `Start` and `Now` are counted by
    ///   `refused_count` and by no event, as in the kernel.
    /// * `IfRoom`: [`ChargeErrorKind::WouldBlock`](crate::ChargeErrorKind::WouldBlock), whatever
    ///   stands in the way, be it that the group is offline: what the charge goes on with says what
    ///   it was.
    ///
    /// ```
    /// # use memcg::{ChargeError, OnFull, Runtime};
    /// # use std::time::Duration;
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let held = root.charge_with(80, OnFull::Now)?;
    /// assert!(matches!(root.charge_with(30, OnFull::IfRoom), Err(error) if error.is_would_block()));
    /// let refused = root.charge_with(30, OnFull::Wait(Duration::from_millis(1))).unwrap_err();
    /// assert!(refused.is_timeout());
    /// let giver = std::thread::spawn(move || drop(held));
    /// let charge = root.charge_with(30, OnFull::Wait(Duration::from_secs(10)))?;
    /// assert_eq!((charge.bytes(), root.live()), (30, 30));
    /// # giver.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A thread that may not block lets others make room:
    ///
    /// ```
    /// # use memcg::{Bytes, Charge, ChargeError, OnFull, ReclaimPriority, Reclaim, ReclaimContext, Runtime};
    /// # use std::sync::{Arc, Mutex};
    /// # use std::time::Duration;
    /// struct Cache(Mutex<Option<Charge>>);
    /// impl Reclaim for Cache {
    ///     fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
    ///         self.0.lock().unwrap().as_mut().map_or(0, |held| held.shrink(Bytes(want)))
    ///     }
    /// }
    ///
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let cache = Arc::new(Cache(Mutex::new(Some(root.charge(80)?))));
    /// let _registration = root.register_reclaimer(cache, ReclaimPriority::NORMAL);
    /// let charge = loop {
    ///     match root.charge_with(30, OnFull::Start) {
    ///         Err(error) if error.is_would_block() => std::thread::sleep(Duration::from_millis(1)), // or do something else
    ///         ended => break ended?,
    ///     }
    /// };
    /// assert_eq!((charge.bytes(), root.live()), (30, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn charge_with(&self, bytes: impl IntoBytes, full: OnFull) -> Result<Charge, ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => charge_slow(self.header, bytes, missed, full)?,
        }
        Ok(Charge::new(self.header, bytes))
    }
}

impl Charge {
    /// Charges `bytes` more, as [`Group::charge_async`] does: the task waits in line, and no thread
    /// is blocked. If the future is dropped before it is done, the charge stays as it was. A charge
    /// of a counter beside memory never waits: it is refused at once if it does not fit.
    ///
    /// # Errors
    ///
    /// [`ChargeError`]; the charge is as it was.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let held = root.charge(60)?;
    /// let mut charge = root.charge(30)?;
    /// let grows = tokio::spawn(async move { charge.grow_async(20).await.map(|()| charge) });
    /// tokio::task::yield_now().await;
    /// assert_eq!((root.waiting_count(), root.live()), (1, 90));
    /// drop(held);
    /// assert_eq!(grows.await??.bytes(), 50);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn grow_async(&mut self, bytes: impl IntoBytes) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        let group = self.group();
        // To grow by 0 bytes needs no admission, and the charge has its handle or its bytes
        // already.
        if bytes == 0 {
            return Ok(());
        }
        if self.header == group.header {
            let more = group.charge_async(Bytes(bytes)).await?;
            self.grown(ManuallyDrop::new(more).bytes());
        } else {
            charge_slow(self.header, bytes, Consume::Miss, OnFull::Reclaim)?;
            self.grown(bytes);
        }
        Ok(())
    }
}

/// Makes a charge that did not hit. A charge of 0 bytes takes a handle.
#[cold]
#[inline(never)]
pub(super) fn charge_slow(
    header: HeaderRef,
    bytes: u64,
    missed: Consume,
    full: OnFull,
) -> Result<(), ChargeError> {
    let counter = header.counter();
    match full {
        OnFull::Wait(time) => {
            let time = LineTime::begin(Some(time));
            let walked = charge_undelayed(header, bytes, missed, WaitFor::Until(time))?;
            // The charge keeps the group.
            throttle::sleep_after(counter, walked, time.until);
            Ok(())
        }
        OnFull::Reclaim => {
            let walked = charge_undelayed(header, bytes, missed, WaitFor::Nothing)?;
            // Reclaim takes the excess above a high, and the caller asks for the delay that
            // remains.
            let _ = throttle::delay_after(counter, walked, false, None);
            Ok(())
        }
        OnFull::Start => charge_at_once(header, bytes, missed, AtOnceEffort::Start),
        OnFull::Now => charge_at_once(header, bytes, missed, AtOnceEffort::Own),
        OnFull::IfRoom => context::without_foreign(|| charge_if_room(header, bytes, missed)),
    }
}

/// How a collection charges that grows.
#[derive(Clone, Copy)]
pub(crate) enum GrowBy {
    /// As [`Group::charge`].
    Charge,
    /// As [`Group::try_charge`].
    TryCharge,
    /// As [`Group::charge_with`].
    With(OnFull),
}

impl Group {
    pub(crate) fn charge_by(&self, bytes: Bytes, grow: GrowBy) -> Result<Charge, ChargeError> {
        match grow {
            GrowBy::Charge => self.charge(bytes),
            GrowBy::TryCharge => self.try_charge(bytes),
            GrowBy::With(full) => self.charge_with(bytes, full),
        }
    }

    /// Charges more than the caller needs, which asks for less then: a refusal counts as none. What
    /// waits in line waits for what it needs, so here that takes room alone.
    pub(crate) fn charge_spare(&self, Bytes(bytes): Bytes, grow: GrowBy) -> Option<Charge> {
        let is_made = match self.header.consume_open(bytes) {
            Consume::Hit => true,
            missed => charge_spare_slow(self.header, bytes, missed, grow),
        };
        is_made.then(|| Charge::new(self.header, bytes))
    }
}

#[cold]
fn charge_spare_slow(header: HeaderRef, bytes: u64, missed: Consume, grow: GrowBy) -> bool {
    let counter = header.counter();
    let blocking = |wait_for| steps::charge_spare(counter, bytes, missed, wait_for);
    let at_once = |effort| {
        context::without_foreign(|| at_once::charge_spare(counter, bytes, missed, effort)).is_ok()
    };
    match grow {
        GrowBy::Charge => blocking(WaitFor::Others)
            .map(|walked| throttle::sleep_after(counter, walked, None))
            .is_some(),
        GrowBy::With(OnFull::Reclaim) => blocking(WaitFor::Nothing)
            .map(|walked| throttle::delay_after(counter, walked, false, None))
            .is_some(),
        GrowBy::TryCharge => at_once(AtOnceEffort::Drain),
        GrowBy::With(OnFull::Start) => at_once(AtOnceEffort::Start),
        GrowBy::With(OnFull::Now) => at_once(AtOnceEffort::Own),
        // The caller can do without these bytes: to wait in line for them would hold it up, and the
        // charges behind it.
        GrowBy::With(OnFull::IfRoom | OnFull::Wait(_)) => {
            context::without_foreign(|| charge_if_room(header, bytes, missed)).is_ok()
        }
    }
}

/// It has no edge of its own: the walk is that of `OnFull::Now`, and what is above a high is given
/// back as any charge is, which serves a waiter that came meanwhile (E25).
fn charge_if_room(header: HeaderRef, bytes: u64, missed: Consume) -> Result<(), ChargeError> {
    let counter = header.counter();
    if let Ok(walked) = steps::try_with(counter, bytes, missed, Counter::try_charge_now_slow) {
        // What the thread has charged ahead is credit, which is no group's excess.
        let ahead = walked.saturating_sub(bytes);
        let delays = |level: &Counter| above(level) > ahead;
        if !is_any_above(counter, walked) || !levels_that_delay(counter).any(delays) {
            return Ok(());
        }
        // Above a high it is given back: the caller's next step makes it, with its delay.
        // Mutation: no-room-below-high-keeps-the-bytes
        drop(Charge::new(header, bytes));
    }
    Err(Repr::NoRoom {
        group: Group::pinned(counter.first()),
        requested: bytes,
    }
    .into())
}
