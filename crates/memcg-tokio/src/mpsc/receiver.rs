//! The receiver's side.

use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use memcg::CentralStock;
use memcg::Charged;
use tokio::sync::mpsc::error::TryRecvError;

use super::queue::QueueReceiver;
use super::waiters::Waiters;

/// Receives messages: see [`channel`](crate::channel). The drop drops all messages that are left,
/// and gives their bytes back.
pub struct Receiver<T> {
    messages: QueueReceiver<T>,
    /// Holds the bytes of received messages for the next send.
    stock: CentralStock,
    /// Senders that wait: they get these bytes first.
    waiters: Arc<Waiters>,
    /// The receiver has learned that no message will come, or is gone.
    has_ended: bool,
}

/// Takes a message out. Its bytes go to the first sender that waits, or are credit for the next
/// send.
#[inline]
fn uncharge<T>(stock: &CentralStock, waiters: &Arc<Waiters>, message: Charged<T>) -> T {
    let (value, charge) = Charged::into_parts(message);
    waiters.give_back(stock, charge);
    value
}

impl<T> Receiver<T> {
    pub(super) fn new(
        messages: QueueReceiver<T>,
        stock: CentralStock,
        waiters: Arc<Waiters>,
    ) -> Self {
        Receiver {
            messages,
            stock,
            waiters,
            has_ended: false,
        }
    }

    /// Gives the credit back, once: other channels of the group may go on.
    #[cold]
    fn end(&mut self) {
        if !mem::replace(&mut self.has_ended, true) {
            self.stock.release_credit();
        }
    }

    #[inline]
    fn received(&mut self, message: Option<Charged<T>>) -> Option<T> {
        if message.is_none() {
            self.end();
        }
        message.map(|message| uncharge(&self.stock, &self.waiters, message))
    }

    /// Returns the next message, and gives its bytes back. Returns `None` where the channel is
    /// closed and empty.
    ///
    /// The bytes are free from here on, though the message is still there. Where its receiver holds
    /// it for long, use [`recv_charged`](Self::recv_charged). A call that is dropped loses no
    /// message.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Returns the next message with its charge. The bytes stay charged until the charge is
    /// dropped.
    ///
    /// ```
    /// # use memcg::{Charged, Runtime};
    /// # use memcg_tokio::channel;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let budget = Runtime::builder().max(1 << 20).build()?;
    /// let (sender, mut receiver) = channel::<String>(&budget.root());
    /// sender.send("a line".to_owned()).await?;
    /// let line = receiver.recv_charged().await.unwrap();
    /// assert_eq!((line.as_str(), budget.root().live()), ("a line", Charged::charge(&line).bytes()));
    /// drop(line);
    /// assert_eq!(budget.root().live(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn recv_charged(&mut self) -> Option<Charged<T>> {
        poll_fn(|context| self.poll_recv_charged(context)).await
    }

    /// Appends up to `limit` messages to `buffer`, and returns how many. It waits for the first one
    /// alone. Returns 0 where the channel is closed and empty, or `limit` is 0. A call that is
    /// dropped loses no message.
    pub async fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
        poll_fn(|context| self.poll_recv_many(context, buffer, limit)).await
    }

    /// Appends messages as [`recv_many`](Self::recv_many) does, with their charges, as
    /// [`recv_charged`](Self::recv_charged).
    pub async fn recv_many_charged(&mut self, buffer: &mut Vec<Charged<T>>, limit: usize) -> usize {
        poll_fn(|context| self.poll_recv_many_charged(context, buffer, limit)).await
    }

    /// Polls for messages, as [`recv_many`](Self::recv_many).
    pub fn poll_recv_many(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut Vec<T>,
        limit: usize,
    ) -> Poll<usize> {
        let stock = &self.stock;
        let waiters = &self.waiters;
        let take = |message| buffer.push(uncharge(stock, waiters, message));
        let received = self.messages.poll_recv_many(context, limit, take);
        received.map(|received| self.received_many(received, limit))
    }

    /// Polls for messages, as [`recv_many_charged`](Self::recv_many_charged).
    pub fn poll_recv_many_charged(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut Vec<Charged<T>>,
        limit: usize,
    ) -> Poll<usize> {
        let received = self
            .messages
            .poll_recv_many(context, limit, |message| buffer.push(message));
        received.map(|received| self.received_many(received, limit))
    }

    fn received_many(&mut self, received: usize, limit: usize) -> usize {
        if received == 0 && limit > 0 {
            self.end();
        }
        received
    }

    /// Returns the next message, where there is one.
    ///
    /// # Errors
    ///
    /// [`TryRecvError::Empty`] where there is none yet, [`TryRecvError::Disconnected`] where none
    /// will come.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        let received = self.try_recv_charged();
        received.map(|message| uncharge(&self.stock, &self.waiters, message))
    }

    /// Returns the next message with its charge, where there is one.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    pub fn try_recv_charged(&mut self) -> Result<Charged<T>, TryRecvError> {
        let received = self.messages.try_recv();
        if matches!(received, Err(TryRecvError::Disconnected)) {
            self.end();
        }
        received
    }

    /// Returns the next message on a thread that runs no tasks. It blocks: in async code use
    /// [`recv`](Self::recv).
    ///
    /// # Panics
    ///
    /// On a thread that runs tasks of tokio.
    #[track_caller]
    pub fn blocking_recv(&mut self) -> Option<T> {
        let message = self.messages.blocking_recv();
        self.received(message)
    }

    /// Polls for the next message, for a `Stream` or a future of yours.
    #[inline]
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.messages
            .poll_recv(context)
            .map(|message| self.received(message))
    }

    /// Polls for the next message with its charge.
    pub fn poll_recv_charged(&mut self, context: &mut Context<'_>) -> Poll<Option<Charged<T>>> {
        self.messages.poll_recv(context).map(|message| {
            if message.is_none() {
                self.end();
            }
            message
        })
    }

    /// Closes the channel: each later send, and each that waits, returns its message. What was sent
    /// before can still be received.
    pub fn close(&mut self) {
        self.messages.close();
        self.waiters.close();
    }

    /// Returns true if the channel is closed: by [`close`](Self::close), or because the last sender
    /// is gone.
    pub fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }

    /// Returns true if no message is there.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the number of messages that are there.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns the number of senders.
    pub fn sender_strong_count(&self) -> usize {
        self.messages.sender_strong_count()
    }

    /// Returns the number of [weak handles](crate::Sender::downgrade).
    pub fn sender_weak_count(&self) -> usize {
        self.messages.sender_weak_count()
    }
}

/// It ends as [`recv`](Receiver::recv) does. Its messages give their bytes back as there.
#[cfg(feature = "tokio-util")]
impl<T> futures_core::Stream for Receiver<T> {
    type Item = T;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.get_mut().poll_recv(context)
    }
}

/// A message moves as any other value: nothing of it is pinned.
#[cfg(feature = "tokio-util")]
impl<T> Unpin for Receiver<T> {}

/// The group keeps no credit of a channel that is gone. Messages that are left give their own bytes
/// back.
impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.close();
        self.end();
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
