//! `ChargeFuture`: a charge that waits without blocking.

mod queue_place;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::charge::Charge;
use super::error::ChargeError;
use super::handle::Group;
use crate::admission::attempt::ChargeResult;
use crate::admission::steps::{FirstPoll, begin};
use crate::admission::wait::{InLine, LineTime};
use crate::pressure::delayed::{self, Delayed};
use crate::pressure::line;
use crate::state::waiting::PlaceHolder;
use crate::sync::clock;
use crate::thread::slot::Consume;
use crate::units::{Bytes, IntoBytes};

/// The future of a charge that may wait for room: see [`Group::charge_async`].
///
/// # Panics
///
/// A poll panics after the future has returned its result.
///
/// ```
/// use std::time::Duration;
///
/// use memcg::{ChargeError, Limits, Runtime};
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let runtime = Runtime::builder().max(100).build()?;
///     let tenant = runtime.root().create("acme", Limits::new())?;
///     let held = tenant.charge_async(80).await?;
///     let late = tenant.charge_async(30).timeout(Duration::from_millis(5)).await;
///     assert!(matches!(&late, Err(error) if error.is_timeout()));
///     let waits = tokio::spawn(tenant.charge_async(30));
///     tokio::task::yield_now().await;
///     drop(held);
///     assert_eq!(waits.await??.bytes(), 30);
///     Ok(())
/// }
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct ChargeFuture {
    group: Group,
    bytes: u64,
    undelayed: bool,
    holder: PlaceHolder,
    /// The longest time from the first poll on until it is charged.
    time: Option<Duration>,
    /// When that is over, from the first poll on that misses.
    end: Option<Instant>,
    state: Stage,
}

enum Stage {
    New,
    InLine(InLine),
    /// Charged, above a high. The delay is dropped before the charge, which keeps the group.
    Delayed(Delayed, Charge),
    Done,
}

impl ChargeFuture {
    /// Gives the charge up if it has not been made `time` after the first poll. The future then
    /// returns [`ChargeErrorKind::TimedOut`](crate::ChargeErrorKind::TimedOut), and the group that
    /// refused counts [`Event::TimedOut`](crate::Event::TimedOut).
    ///
    /// A charge that was made in time is kept, even if the future is polled later. The time also
    /// ends a delay above a [high](crate::Limits::high): the future then returns the charge, which
    /// has been made. Reclaimers are asked within the time only. With a time of zero the future
    /// waits for nothing and asks no reclaimer, as [`Group::try_charge`]. A thread of this crate
    /// wakes the future at the end of the time, within 1 ms if a processor is free. If the system
    /// gives no thread, the first poll in line gives the charge up.
    ///
    /// ```
    /// # use memcg::{ChargeError, Event, Runtime};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let _held = root.charge(80)?;
    /// let late = root.charge_async(30).timeout(Duration::from_millis(5)).await.expect_err("20 bytes are left");
    /// assert_eq!((late.is_timeout(), late.requested()), (true, 30));
    /// assert_eq!(late.over_limit().unwrap().group(), &root);
    /// assert_eq!(root.events().get(Event::TimedOut), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Gives the charge up, as [`timeout`](Self::timeout) does, if it still waits in line when
    /// `sleep` is ready; a delay above a high ends then, too. `sleep` is the timer of an async
    /// runtime, or any other future. Its output is dropped, and it is polled only while the charge
    /// waits or is delayed.
    ///
    /// ```
    /// # use memcg::{ChargeError, Runtime};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let _held = root.charge(80)?;
    /// let patience = tokio::time::sleep(Duration::from_millis(5));
    /// let refused = root.charge_async(30).until(patience).await.unwrap_err();
    /// assert!(refused.is_timeout());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn until<S: Future>(mut self, sleep: S) -> Result<Charge, ChargeError> {
        let mut sleep = pin!(sleep);
        poll_fn(|context| {
            if let Poll::Ready(ended) = Pin::new(&mut self).poll(context) {
                return Poll::Ready(ended);
            }
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // From here on nothing is waited for, nor reclaimed.
            self.end = Some(clock::now());
            let this = &mut self;
            let mut ended = None;
            if let Stage::InLine(in_line) = &mut this.state {
                ended = Some(of_group(
                    in_line.time_out(this.group.first()),
                    &this.group,
                    this.bytes,
                ));
            }
            this.undelayed = true;
            this.ended(ended, context.waker())
        })
        .await
    }

    /// Makes the future ready as soon as the charge is made, without its delay above a
    /// [high](crate::Limits::high). It is for a caller that has a timer of its own, and takes the
    /// delay from [`high_delay`](crate::inspect::GroupInspector::high_delay), before the charge or
    /// after it.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().build()?;
    /// let limits = Limits::new().high(1 << 20).max(4 << 20);
    /// let acme = runtime.root().create("acme", limits)?;
    /// let charge = acme.charge_async(2 << 20).undelayed().await?;
    /// let delay = acme.inspect().high_delay(1 << 20); // for the next charge, as the caller's own timer sees fit
    /// assert!(!delay.is_zero());
    /// # drop(charge);
    /// # Ok(())
    /// # }
    /// ```
    pub fn undelayed(mut self) -> Self {
        self.undelayed = true;
        self
    }

    /// Returns the charge, or why there is none. Pending while it waits or is delayed.
    fn ended(
        &mut self,
        ended: Option<Result<u64, ChargeError>>,
        waker: &Waker,
    ) -> Poll<Result<Charge, ChargeError>> {
        let group = self.group.first();
        match ended {
            Some(Ok(walked)) => {
                // First of all: the bytes are charged, and a drop of the future during the delay
                // gives them back.
                let charge = Charge::new(self.group.header, self.bytes);
                self.state = Stage::Done;
                if self.undelayed {
                    let _ = delayed::delay_of_task(group, walked, self.end, None);
                } else if let Some(delayed) = Delayed::begin(group, walked, self.end, waker) {
                    self.state = Stage::Delayed(delayed, charge);
                    return Poll::Pending;
                }
                return Poll::Ready(Ok(charge));
            }
            Some(Err(refused)) => {
                self.state = Stage::Done;
                return Poll::Ready(Err(refused));
            }
            None => {}
        }
        let Stage::Delayed(delayed, _) = &self.state else {
            return Poll::Pending;
        };
        if !self.undelayed && delayed.lasts(waker) {
            return Poll::Pending;
        }
        match std::mem::replace(&mut self.state, Stage::Done) {
            Stage::Delayed(_, charge) => Poll::Ready(Ok(charge)),
            _ => Poll::Pending,
        }
    }
}

/// The end of a wait, with the error that the group's charge returns.
fn of_group(ended: ChargeResult<'_>, group: &Group, bytes: u64) -> Result<u64, ChargeError> {
    ended.map_err(|failure| ChargeError::new(failure, group.first(), bytes))
}

impl Future for ChargeFuture {
    type Output = Result<Charge, ChargeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = context.waker();
        let this = &mut *self;
        let mut ended = None;
        assert!(
            !matches!(this.state, Stage::Done),
            "a `ChargeFuture` is polled after it has returned its result"
        );
        if let Stage::New = this.state {
            // A charge from credit needs nothing of all that follows, neither the clock nor a
            // waker.
            match this.group.header.consume_open(this.bytes) {
                Consume::Hit => {
                    this.state = Stage::Done;
                    return Poll::Ready(Ok(Charge::new(this.group.header, this.bytes)));
                }
                missed => {
                    let time = LineTime::begin(this.time);
                    this.end = time.until;
                    match begin(this.group.first(), this.bytes, missed, time, this.holder) {
                        FirstPoll::InLine(in_line) => this.state = Stage::InLine(in_line),
                        FirstPoll::Ended(result) => {
                            ended = Some(of_group(result, &this.group, this.bytes));
                        }
                    }
                }
            }
        }
        if let Stage::InLine(in_line) = &mut this.state {
            // Also right after it has gone into line, which has taken no waker: it may be served by
            // now.
            let polled = in_line.poll(this.group.first(), waker);
            ended = polled.map(|ended| of_group(ended, &this.group, this.bytes));
        }
        this.ended(ended, waker)
    }
}

/// # Charges that wait for room
impl Group {
    /// Charges `bytes`. If they do not fit, the task waits in line, as a thread does with
    /// [`OnFull::Wait`](crate::OnFull::Wait), and for as long as it takes:
    /// [`timeout`](ChargeFuture::timeout) sets an end. A poll never blocks: it waits for no thread,
    /// and runs neither reclaimers nor cancel hooks. It drains unused credit before it takes a
    /// place in line, and may call listeners and wakers.
    ///
    /// The future needs no async runtime, only a [`Waker`]. A future that is dropped before it is
    /// done leaves the line, and nothing of it remains. One that is dropped after it was given the
    /// bytes, and before it was polled again, gives them back. For a time limit use `timeout`, or
    /// [`until`](ChargeFuture::until) with a timer of any runtime, rather than a timer around the
    /// future: the refusal then names the group and the amount, and is counted.
    ///
    /// A thread of the runtime, `memcg-reclaim`, asks reclaimers when the charge comes into a
    /// group's line. It charges what they give back for the first in line, whose task it wakes.
    /// Where the policy chooses victims, it cancels one group for this charge, and for others the
    /// next one. That thread starts when it is needed and ends a second after its last work. The
    /// hop to that thread and back costs some microseconds; a threshold of reclaim
    /// ([`reclaim_above`](crate::Limits::reclaim_above)) has memory freed before charges are short
    /// of it.
    ///
    /// Above a high the task waits, and no thread sleeps. `memcg-reclaim` reclaims the excess, and
    /// wakes the task when that is done; another thread wakes it when the delay is over, or usage
    /// is no longer above the high. There is one such thread for the process, which starts with the
    /// first delay and ends a second after the last. If the system cannot start it, the charge is
    /// made without a delay. [`undelayed`](ChargeFuture::undelayed) leaves the delay to the caller.
    ///
    /// # Errors
    ///
    /// As [`charge`](Self::charge). A task in line has its error as soon as the group goes offline
    /// or is cancelled. [`ChargeErrorKind::TimedOut`](crate::ChargeErrorKind::TimedOut) is returned
    /// only by a future that has a time limit.
    ///
    /// ```
    /// # use memcg::Runtime;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let held = root.charge_async(80).await?;
    /// let waits = tokio::spawn(root.charge_async(30));
    /// tokio::task::yield_now().await;
    /// assert_eq!((root.usage(), root.waiting_count()), (80, 1), "a charge that waits holds nothing");
    /// drop(held);
    /// assert_eq!(root.usage(), 30, "charged for the one in line");
    /// assert_eq!(waits.await??.bytes(), 30);
    /// # Ok(())
    /// # }
    /// ```
    pub fn charge_async(&self, bytes: impl IntoBytes) -> ChargeFuture {
        let Bytes(bytes) = bytes.into_bytes();
        ChargeFuture {
            group: self.clone(),
            bytes,
            undelayed: false,
            holder: PlaceHolder::Charge,
            time: None,
            end: None,
            state: Stage::New,
        }
    }

    /// Returns the number of charges that wait in line at this group because its own max has
    /// refused them. The group counts [`Event::Max`](crate::Event::Max) a moment before such a
    /// charge is in line.
    ///
    /// One load if no charge waits here, otherwise a lock for a moment. Exact at that moment.
    pub fn waiting_count(&self) -> usize {
        line::length(self.first())
    }
}

debug_figures!(ChargeFuture, |future| group: future.group, bytes: future.bytes);

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::Runtime;

    #[test]
    fn a_poll_after_the_result_panics() {
        let runtime = Runtime::builder().max(100).build().unwrap();
        for bytes in [10, 101] {
            let mut context = Context::from_waker(Waker::noop());
            let mut charge = runtime.root().charge_async(bytes);
            assert!(Pin::new(&mut charge).poll(&mut context).is_ready());
            let again = catch_unwind(move || {
                let _ = Pin::new(&mut charge).poll(&mut Context::from_waker(Waker::noop()));
            });
            assert!(again.is_err(), "{bytes} bytes");
        }
    }
}
