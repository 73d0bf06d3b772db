//! Charges that wait for room: they block, or are a future, or do what a configuration says.

use std::time::Duration;

use super::charge::{Charge, charge_undelayed};
use super::error::ChargeError;
use super::future::ChargeFuture;
use super::handle::Group;
use crate::admission::attempt::ChargeFailure;
use crate::admission::plain::{LineTime, WaitFor};
use crate::admission::steps;
use crate::pressure::exhausted::OnExhausted;
use crate::pressure::{line, throttle};
use crate::thread::slot::Consume;
use crate::units::Bytes;

/// # Charges that wait for room
impl Group {
    /// Charges `bytes`. Blocks for at most `time`, in line, where they do not fit: in async code use
    /// [`charge_async`](Self::charge_async) with its [`timeout`](ChargeFuture::timeout).
    ///
    /// The call first does all that [`try_charge`](Self::try_charge) does. Then the charge waits in line at the group
    /// whose max is met, behind those that came before. A thread that gives bytes back there charges them for the first
    /// in line, and wakes it with the charge made. A charge that waits holds nothing. Reclaimers are asked again from
    /// time to time.
    ///
    /// Other charges may barge past the first, those behind it and new ones, at whatever level. Once together they have
    /// been admitted as many bytes as the first asks for, none may any more. (They exceed this only by what other
    /// threads had in flight at the moment in which the charge became first.)
    ///
    /// `time` bounds all that the call waits for: the line, victims, reclaim, and the delay above a
    /// [high](Self::set_high), at whose end the charge returns. A reclaimer at work is not interrupted. Where `time` is
    /// zero, reclaimers are asked as `try_charge` asks them. To wait in line takes two locks and closes the stocks below
    /// that group.
    ///
    /// Do not wait while you hold memory that other charges wait for: they all would wait. A time limit ends that, and
    /// so does [`OomPolicy::Choose`](crate::OomPolicy::Choose).
    ///
    /// # Errors
    ///
    /// [`ChargeError::TimedOut`] after `time`; [`Event::TimedOut`](crate::Event::TimedOut) counts it.
    /// [`ChargeError::Limit`] at once, for a charge that could never fit.
    /// [`ChargeError::Offline`] as soon as the group goes offline. [`ChargeError::Cancelled`] as soon as the group is
    /// chosen to give its memory back. [`ChargeError::InReclaim`] at once inside a reclaimer.
    ///
    /// ```
    /// # use memcg::{ChargeError, Runtime};
    /// # use std::time::Duration;
    /// let runtime = Runtime::builder().max(100).build()?;
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
    pub fn charge_timeout(&self, bytes: impl Into<Bytes>, time: Duration) -> Result<Charge, ChargeError> {
        let Bytes(bytes) = bytes.into();
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => {
                let wait_for = WaitFor::Until(LineTime::begin(time));
                let charged = charge_undelayed(self.header, bytes, missed, wait_for)?;
                throttle::sleep_after(self.first(), charged, wait_for.end());
            }
        }
        Ok(Charge::new(self.header, bytes))
    }

    /// Charges `bytes`, or does what `exhausted` says. It may block: in async code use
    /// [`charge_async`](Self::charge_async). `exhausted` parses from text, for configuration files.
    ///
    /// # Errors
    ///
    /// As [`try_charge`](Self::try_charge) for `Fail`, and as [`charge_timeout`](Self::charge_timeout) for `Wait`. For
    /// `Overcharge` only [`ChargeError::Offline`].
    ///
    /// ```
    /// # use memcg::{OnExhausted, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let _held = root.charge_with(130, "overcharge".parse()?)?;
    /// assert_eq!(root.forced(), 30);
    /// assert!(root.charge_with(1, OnExhausted::Fail).is_err());
    /// assert!(root.charge_with(1, "wait(1ms)".parse()?).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge_with(&self, bytes: impl Into<Bytes>, exhausted: OnExhausted) -> Result<Charge, ChargeError> {
        let Bytes(bytes) = bytes.into();
        match exhausted {
            OnExhausted::Fail => self.try_charge(Bytes(bytes)),
            OnExhausted::Wait(time) => self.charge_timeout(Bytes(bytes), time),
            OnExhausted::Overcharge => self.charge_over(bytes),
        }
    }

    /// Charges as `try_charge` does and cancels no group. What does not fit goes above the limit.
    fn charge_over(&self, bytes: u64) -> Result<Charge, ChargeError> {
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => match steps::charge_without_victims(self.first(), bytes, missed) {
                Ok(charged) => throttle::sleep_after(self.first(), charged, None),
                Err(ChargeFailure::Offline) => {
                    return Err(ChargeError::new(ChargeFailure::Offline, self.first(), bytes));
                }
                Err(_) => return Ok(self.charge(Bytes(bytes))),
            },
        }
        Ok(Charge::new(self.header, bytes))
    }

    /// Charges `bytes` without blocking, and where they do not fit waits in line as
    /// [`charge_timeout`](Self::charge_timeout) does, without an end. A poll waits for no thread, and may run
    /// reclaimers and cancel hooks.
    ///
    /// The future needs no async runtime, only a [`Waker`](std::task::Waker). A future that is dropped before it is
    /// done leaves the line, and nothing of it remains. One that is dropped after it was given the bytes, and before it
    /// was polled again, gives them back. For a time limit use [`timeout`](ChargeFuture::timeout), or
    /// [`until`](ChargeFuture::until) with a timer of any runtime. The refusal then names the group and the amount, and
    /// is counted; a timer around the future would leave no trace.
    ///
    /// The polling thread asks reclaimers at the first poll and where the charge has moved to another group's line. It
    /// asks again where other threads were asking at the same time; the thread of this crate that ends delays wakes the
    /// future for that. Where the policy chooses victims, this charge cancels one group, and others cancel the next
    /// one.
    ///
    /// Above a high the future does not sleep. A thread of this crate wakes it once, when the delay is over or usage is
    /// not above high any more. That thread is one for the process. It starts with the first such delay and ends a
    /// second after the last. Where the system gives no thread, the charge is made without a delay.
    /// [`undelayed`](ChargeFuture::undelayed) leaves the delay to the caller; [`high_delay`](Self::high_delay) says it.
    ///
    /// # Errors
    ///
    /// As [`charge_timeout`](Self::charge_timeout); [`ChargeError::TimedOut`] only where the future has a time limit.
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
    pub fn charge_async(&self, bytes: impl Into<Bytes>) -> ChargeFuture {
        let Bytes(bytes) = bytes.into();
        ChargeFuture::new(self.clone(), bytes)
    }

    /// Returns the number of charges that wait in line at this group because its own max has refused them. The group
    /// counts [`Event::Max`](crate::Event::Max) a moment before such a charge is in line.
    pub fn waiting_count(&self) -> usize {
        line::length(self.first())
    }
}
