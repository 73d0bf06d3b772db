//! Charges that wait for room as a future.

use super::future::ChargeFuture;
use super::handle::Group;
use crate::pressure::line;
use crate::units::{Bytes, IntoBytes};

/// # Charges that wait for room
impl Group {
    /// Charges `bytes` without blocking, and where they do not fit waits in line as
    /// [`OnFull::Wait`](crate::OnFull::Wait) does, without an end. A poll waits for no thread, and may run
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
    /// [`undelayed`](ChargeFuture::undelayed) leaves the delay to the caller;
    /// [`high_delay`](crate::expert::Inspect::high_delay) says it.
    ///
    /// # Errors
    ///
    /// As [`try_charge`](Self::try_charge), and at once in line as soon as the group goes offline or is cancelled.
    /// [`ChargeError::TimedOut`](crate::ChargeError::TimedOut) only where the future has a time limit.
    /// [`ChargeError::Deadlock`](crate::ChargeError::Deadlock) where no wait in the line can end.
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
        ChargeFuture::new(self.clone(), bytes)
    }

    /// Returns the number of charges that wait in line at this group because its own max has refused them. The group
    /// counts [`Event::Max`](crate::Event::Max) a moment before such a charge is in line.
    pub fn waiting_count(&self) -> usize {
        line::length(self.first())
    }
}
