//! Bytes that are reserved with a sender of their own.

use std::fmt;

use memcg::{Charge, Charged, IntoBytes};

use super::Sender;
use crate::mpsc::SendError;

/// Bytes that are charged for a message which is not made yet, and the sender for it: see
/// [`Sender::reserve_owned`]. The drop gives the bytes back.
pub struct OwnedPermit<T> {
    sender: Sender<T>,
    charge: Charge,
}

impl<T> OwnedPermit<T> {
    /// Sends the message, which the permit's bytes are for. It never waits. Returns the sender.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] where the receiver has closed: other than a permit of tokio's channel,
    /// this one sends nothing after that.
    pub fn send(self, message: T) -> Result<Sender<T>, SendError<T>> {
        let OwnedPermit { sender, charge } = self;
        sender.send_charged(Charged::new(message, charge))?;
        Ok(sender)
    }

    /// Gives the bytes back, and returns the sender.
    pub fn release(self) -> Sender<T> {
        self.sender
    }

    /// Returns the bytes that are charged.
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// True if both are for the same receiver.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.sender.same_channel(&other.sender)
    }

    /// True if the other one sends to the same receiver.
    pub fn same_channel_as_sender(&self, sender: &Sender<T>) -> bool {
        self.sender.same_channel(sender)
    }
}

impl<T> fmt::Debug for OwnedPermit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedPermit")
            .field("sender", &self.sender)
            .field("bytes", &self.bytes())
            .finish()
    }
}

impl<T> Sender<T> {
    /// Charges `bytes` for a message that is not made yet, where they fit at once:
    /// [`reserve`](Self::reserve) that does not wait. As [`try_send`](Self::try_send) it calls no
    /// reclaimer.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_reserve(&self, bytes: impl IntoBytes) -> Result<Charge, SendError<()>> {
        if self.is_closed() {
            return Err(SendError::Closed(()));
        }
        self.charge_now(bytes.into_bytes())
            .map_err(|refusal| SendError::Refused((), refusal))
    }

    /// Charges as [`reserve`](Self::reserve) does, and keeps the sender with the charge: for a task
    /// that holds no reference to a sender. Where it is dropped the sender is dropped, too.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    ///
    /// ```
    /// # use memcg::Runtime;
    /// # use memcg_tokio::{channel, message_overhead};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let budget = Runtime::builder().max(1 << 20).build()?;
    /// let (sender, mut receiver) = channel::<Vec<u8>>(&budget.root());
    /// let permit = sender.reserve_owned(message_overhead::<Vec<u8>>() + 4096).await?;
    /// let sender = permit.send(vec![0; 4096])?;
    /// assert_eq!(receiver.recv().await.map(|message| message.len()), Some(4096));
    /// # drop(sender);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve_owned(
        self,
        bytes: impl IntoBytes,
    ) -> Result<OwnedPermit<T>, SendError<()>> {
        let charge = self.reserve(bytes).await?;
        Ok(OwnedPermit {
            sender: self,
            charge,
        })
    }

    /// Charges as [`try_reserve`](Self::try_reserve) does, and keeps the sender with the charge.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send), with the sender.
    #[allow(
        clippy::result_large_err,
        reason = "it has the sender, as a send has the message"
    )]
    pub fn try_reserve_owned(
        self,
        bytes: impl IntoBytes,
    ) -> Result<OwnedPermit<T>, SendError<Self>> {
        match self.try_reserve(bytes) {
            Ok(charge) => Ok(OwnedPermit {
                sender: self,
                charge,
            }),
            Err(refused) => Err(refused.with(self)),
        }
    }
}
