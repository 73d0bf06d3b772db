//! A sender for code that polls.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_sink::Sink;
use memcg::Weigh;
use tokio_util::sync::ReusableBoxFuture;

use super::{SendError, Sender};

/// A sender that is polled, and a [`Sink`]: as tokio-util's of the same name.
///
/// No caller knows the weight of a message before it is there. So `start_send` takes each message,
/// and the sink is ready for the next one once the bytes of that fit: it holds at most one message
/// that is not charged yet, as a task in [`send`](Sender::send) does. `poll_flush` waits until that
/// is in the channel, `poll_close` drops the sender then.
///
/// An error has the message, where there is one. A message whose group has refused it leaves the
/// sink in use.
pub struct PollSender<T> {
    sender: Option<Sender<T>>,
    sending: ReusableBoxFuture<'static, Result<(), SendError<T>>>,
    is_sending: bool,
}

async fn send<T: Weigh>(sender: Sender<T>, message: T) -> Result<(), SendError<T>> {
    sender.send(message).await
}

impl<T: Weigh + Send + 'static> PollSender<T> {
    /// Creates one.
    pub fn new(sender: Sender<T>) -> Self {
        let sending = ReusableBoxFuture::new(std::future::ready(Ok(())));
        PollSender {
            sender: Some(sender),
            sending,
            is_sending: false,
        }
    }

    /// Returns the sender, `None` after [`close`](Self::close).
    pub fn get_ref(&self) -> Option<&Sender<T>> {
        self.sender.as_ref()
    }

    /// True once the receiver or [`close`](Self::close) has closed it.
    pub fn is_closed(&self) -> bool {
        self.sender.as_ref().is_none_or(Sender::is_closed)
    }

    /// Drops the sender. A message that waits is still sent, where the sink is polled.
    pub fn close(&mut self) {
        self.sender = None;
    }

    /// Takes a message, and sends it at once where its bytes fit.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] with the message.
    ///
    /// # Panics
    ///
    /// A message waits, as `poll_ready` has said.
    pub fn send_item(&mut self, message: T) -> Result<(), SendError<Option<T>>> {
        assert!(
            !self.is_sending,
            "a message waits: `poll_ready` comes first"
        );
        let Some(sender) = &self.sender else {
            return Err(SendError::Closed(Some(message)));
        };
        match sender.try_send(message) {
            Ok(()) => Ok(()),
            Err(SendError::Closed(message)) => Err(SendError::Closed(Some(message))),
            Err(SendError::Refused(message, _)) => {
                // With a sender of its own, so that `close` may drop this one while the message
                // waits.
                self.sending.set(send(sender.clone(), message));
                self.is_sending = true;
                Ok(())
            }
        }
    }

    /// Polls until no message waits.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError<Option<T>>>> {
        if !self.is_sending {
            return Poll::Ready(Ok(()));
        }
        let sent = ready!(self.sending.poll(context));
        self.is_sending = false;
        // The future has a sender, which would keep the channel open.
        self.sending.set(std::future::ready(Ok(())));
        Poll::Ready(sent.map_err(|unsent| match unsent {
            SendError::Closed(message) => SendError::Closed(Some(message)),
            SendError::Refused(message, refusal) => SendError::Refused(Some(message), refusal),
        }))
    }
}

impl<T: Weigh + Send + 'static> Sink<T> for PollSender<T> {
    type Error = SendError<Option<T>>;

    fn poll_ready(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        let sink = self.get_mut();
        ready!(sink.poll_sent(context))?;
        Poll::Ready(if sink.is_closed() {
            Err(SendError::Closed(None))
        } else {
            Ok(())
        })
    }

    fn start_send(self: Pin<&mut Self>, message: T) -> Result<(), Self::Error> {
        self.get_mut().send_item(message)
    }

    fn poll_flush(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        self.get_mut().poll_sent(context)
    }

    fn poll_close(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        let sink = self.get_mut();
        let sent = ready!(sink.poll_sent(context));
        // Mutation: a-sink-that-ends-with-an-error-keeps-its-sender
        drop(mem::take(&mut sink.sender));
        Poll::Ready(sent)
    }
}

/// A message moves as any other value: nothing of it is pinned.
impl<T> Unpin for PollSender<T> {}

impl<T> fmt::Debug for PollSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollSender")
            .field("sender", &self.sender)
            .field("is_sending", &self.is_sending)
            .finish()
    }
}
