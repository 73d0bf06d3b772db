//! The queue below the channel: tokio's unbounded one, whose places are small.
//!
//! It is made of blocks of 32 places, and keeps up to four of them while it is empty. No group pays
//! for these. So a large message is on the heap, with a pointer in its place: it is charged whole,
//! and an empty channel keeps little.

use std::task::{Context, Poll};

use memcg::Charged;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{
    UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel,
};

/// The most bytes of a place.
const PLACE: usize = 64;

/// Messages that are taken out of the queue at once. The receiver keeps the room for so many.
const BATCH: usize = 32;

const fn is_large<T>() -> bool {
    size_of::<Charged<T>>() > PLACE
}

/// Bytes that a message has in the queue, beside its weight.
pub(super) const fn message_size<T>() -> usize {
    let pointer = if is_large::<T>() {
        size_of::<Box<Charged<T>>>()
    } else {
        0
    };
    size_of::<Charged<T>>() + pointer
}

/// Which one a queue is depends on its type alone.
pub(super) enum QueueSender<T> {
    Small(UnboundedSender<Charged<T>>),
    Large(UnboundedSender<Box<Charged<T>>>),
}

pub(super) enum WeakQueueSender<T> {
    Small(WeakUnboundedSender<Charged<T>>),
    Large(WeakUnboundedSender<Box<Charged<T>>>),
}

/// Beside each is the room for a batch, which is empty between calls.
pub(super) enum QueueReceiver<T> {
    Small(UnboundedReceiver<Charged<T>>, Vec<Charged<T>>),
    Large(UnboundedReceiver<Box<Charged<T>>>, Vec<Box<Charged<T>>>),
}

pub(super) fn queue<T>() -> (QueueSender<T>, QueueReceiver<T>) {
    if is_large::<T>() {
        let (sender, receiver) = unbounded_channel();
        (
            QueueSender::Large(sender),
            QueueReceiver::Large(receiver, Vec::new()),
        )
    } else {
        let (sender, receiver) = unbounded_channel();
        (
            QueueSender::Small(sender),
            QueueReceiver::Small(receiver, Vec::new()),
        )
    }
}

/// Calls what both are asked alike.
macro_rules! either {
    ($queue:ident, $self:expr, $messages:ident => $call:expr) => {
        match $self {
            $queue::Small($messages, ..) => $call,
            $queue::Large($messages, ..) => $call,
        }
    };
}

impl<T> QueueSender<T> {
    /// `Err`: the receiver has closed it, or is gone. The message's charge is dropped.
    #[inline]
    pub(super) fn send(&self, message: Charged<T>) -> Result<(), T> {
        match self {
            QueueSender::Small(messages) => messages
                .send(message)
                .map_err(|unsent| Charged::into_parts(unsent.0).0),
            QueueSender::Large(messages) => messages
                .send(Box::new(message))
                .map_err(|unsent| Charged::into_parts(*unsent.0).0),
        }
    }

    pub(super) async fn closed(&self) {
        either!(QueueSender, self, messages => messages.closed().await);
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        either!(QueueSender, self, messages => messages.is_closed())
    }

    pub(super) fn same_channel(&self, other: &Self) -> bool {
        match (self, other) {
            (QueueSender::Small(one), QueueSender::Small(other)) => one.same_channel(other),
            (QueueSender::Large(one), QueueSender::Large(other)) => one.same_channel(other),
            _ => false,
        }
    }

    pub(super) fn downgrade(&self) -> WeakQueueSender<T> {
        match self {
            QueueSender::Small(messages) => WeakQueueSender::Small(messages.downgrade()),
            QueueSender::Large(messages) => WeakQueueSender::Large(messages.downgrade()),
        }
    }

    pub(super) fn strong_count(&self) -> usize {
        either!(QueueSender, self, messages => messages.strong_count())
    }

    pub(super) fn weak_count(&self) -> usize {
        either!(QueueSender, self, messages => messages.weak_count())
    }
}

impl<T> Clone for QueueSender<T> {
    fn clone(&self) -> Self {
        match self {
            QueueSender::Small(messages) => QueueSender::Small(messages.clone()),
            QueueSender::Large(messages) => QueueSender::Large(messages.clone()),
        }
    }
}

impl<T> WeakQueueSender<T> {
    pub(super) fn upgrade(&self) -> Option<QueueSender<T>> {
        match self {
            WeakQueueSender::Small(messages) => messages.upgrade().map(QueueSender::Small),
            WeakQueueSender::Large(messages) => messages.upgrade().map(QueueSender::Large),
        }
    }

    pub(super) fn strong_count(&self) -> usize {
        either!(WeakQueueSender, self, messages => messages.strong_count())
    }

    pub(super) fn weak_count(&self) -> usize {
        either!(WeakQueueSender, self, messages => messages.weak_count())
    }
}

impl<T> Clone for WeakQueueSender<T> {
    fn clone(&self) -> Self {
        match self {
            WeakQueueSender::Small(messages) => WeakQueueSender::Small(messages.clone()),
            WeakQueueSender::Large(messages) => WeakQueueSender::Large(messages.clone()),
        }
    }
}

impl<T> QueueReceiver<T> {
    #[inline]
    pub(super) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Charged<T>>> {
        match self {
            QueueReceiver::Small(messages, _) => messages.poll_recv(context),
            QueueReceiver::Large(messages, _) => messages
                .poll_recv(context)
                .map(|message| message.map(|boxed| *boxed)),
        }
    }

    /// Takes up to `limit` messages, and returns how many. `Ready(0)`: none will come, or `limit`
    /// is 0.
    pub(super) fn poll_recv_many(
        &mut self,
        context: &mut Context<'_>,
        limit: usize,
        mut take: impl FnMut(Charged<T>),
    ) -> Poll<usize> {
        match self {
            QueueReceiver::Small(messages, batch) => {
                poll_batches(messages, batch, context, limit, take)
            }
            QueueReceiver::Large(messages, batch) => {
                poll_batches(messages, batch, context, limit, |boxed| take(*boxed))
            }
        }
    }

    pub(super) fn try_recv(&mut self) -> Result<Charged<T>, TryRecvError> {
        match self {
            QueueReceiver::Small(messages, _) => messages.try_recv(),
            QueueReceiver::Large(messages, _) => messages.try_recv().map(|boxed| *boxed),
        }
    }

    #[track_caller]
    pub(super) fn blocking_recv(&mut self) -> Option<Charged<T>> {
        match self {
            QueueReceiver::Small(messages, _) => messages.blocking_recv(),
            QueueReceiver::Large(messages, _) => messages.blocking_recv().map(|boxed| *boxed),
        }
    }

    pub(super) fn close(&mut self) {
        either!(QueueReceiver, self, messages => messages.close());
    }

    pub(super) fn is_closed(&self) -> bool {
        either!(QueueReceiver, self, messages => messages.is_closed())
    }

    pub(super) fn is_empty(&self) -> bool {
        either!(QueueReceiver, self, messages => messages.is_empty())
    }

    pub(super) fn len(&self) -> usize {
        either!(QueueReceiver, self, messages => messages.len())
    }

    pub(super) fn sender_strong_count(&self) -> usize {
        either!(QueueReceiver, self, messages => messages.sender_strong_count())
    }

    pub(super) fn sender_weak_count(&self) -> usize {
        either!(QueueReceiver, self, messages => messages.sender_weak_count())
    }
}

fn poll_batches<M>(
    messages: &mut UnboundedReceiver<M>,
    batch: &mut Vec<M>,
    context: &mut Context<'_>,
    limit: usize,
    mut take: impl FnMut(M),
) -> Poll<usize> {
    let mut received = 0;
    while received < limit {
        let asked = (limit - received).min(BATCH);
        match messages.poll_recv_many(context, batch, asked) {
            Poll::Ready(count) => {
                batch.drain(..).for_each(&mut take);
                received += count;
                if count < asked {
                    break;
                }
            }
            // Its budget is used up, or nothing more is there: the next call polls again.
            Poll::Pending if received > 0 => break,
            Poll::Pending => return Poll::Pending,
        }
    }
    Poll::Ready(received)
}
