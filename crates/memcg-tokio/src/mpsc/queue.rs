//! The queue below the channel: tokio's unbounded one, whose places are small.
//!
//! It is made of blocks of 32 places, and keeps up to four of them while it is empty. No group pays
//! for these. So a large message is on the heap, with a pointer in its place: it is charged whole,
//! and an empty channel keeps little.
//!
//! Messages that a sender may drop are in a list beside the queue, which has turns for them:
//! [`droppable`](super::droppable) says how.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use memcg::Charged;
use tokio::sync::mpsc::error::{SendError, TryRecvError};
use tokio::sync::mpsc::{
    UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel,
};

use super::droppable::{self, Droppable};

/// The most bytes of a place.
const PLACE: usize = 64;

/// Messages that are taken out of the queue at once. The receiver keeps the room for so many.
const BATCH: usize = 32;

const fn is_large<T>() -> bool {
    size_of::<Charged<T>>() > PLACE
}

/// What a place has.
enum Placed<M> {
    Message(M),
    /// The turn of a message that may be dropped.
    Turn,
}

/// Bytes of a place, which is as large with a turn in it as with a message.
const fn place_size<T>() -> usize {
    if is_large::<T>() {
        size_of::<Placed<Box<Charged<T>>>>()
    } else {
        size_of::<Placed<Charged<T>>>()
    }
}

/// Bytes that a message has in the queue, beside its weight.
pub(super) const fn message_size<T>() -> usize {
    let on_heap = if is_large::<T>() {
        size_of::<Charged<T>>()
    } else {
        0
    };
    on_heap + place_size::<T>()
}

/// Bytes that a message which may be dropped has in the queue and in the list beside it.
pub(super) const fn droppable_size<T>() -> usize {
    droppable::message_size::<T>() + place_size::<T>()
}

/// Which one a queue has depends on the type of its messages alone.
enum Senders<T> {
    Small(UnboundedSender<Placed<Charged<T>>>),
    Large(UnboundedSender<Placed<Box<Charged<T>>>>),
}

enum WeakSenders<T> {
    Small(WeakUnboundedSender<Placed<Charged<T>>>),
    Large(WeakUnboundedSender<Placed<Box<Charged<T>>>>),
}

/// Beside each is the room for a batch, which is empty between calls.
enum Receivers<T> {
    Small(
        UnboundedReceiver<Placed<Charged<T>>>,
        Vec<Placed<Charged<T>>>,
    ),
    Large(
        UnboundedReceiver<Placed<Box<Charged<T>>>>,
        Vec<Placed<Box<Charged<T>>>>,
    ),
}

pub(super) struct QueueSender<T> {
    places: Senders<T>,
    droppable: Arc<Droppable<T>>,
}

pub(super) struct WeakQueueSender<T> {
    places: WeakSenders<T>,
    droppable: Arc<Droppable<T>>,
}

pub(super) struct QueueReceiver<T> {
    places: Receivers<T>,
    droppable: Arc<Droppable<T>>,
}

pub(super) fn queue<T>() -> (QueueSender<T>, QueueReceiver<T>) {
    let (sender, receiver) = if is_large::<T>() {
        let (sender, receiver) = unbounded_channel();
        (
            Senders::Large(sender),
            Receivers::Large(receiver, Vec::new()),
        )
    } else {
        let (sender, receiver) = unbounded_channel();
        (
            Senders::Small(sender),
            Receivers::Small(receiver, Vec::new()),
        )
    };
    let droppable = Arc::new(Droppable::new());
    (
        QueueSender {
            places: sender,
            droppable: Arc::clone(&droppable),
        },
        QueueReceiver {
            places: receiver,
            droppable,
        },
    )
}

/// Calls what both are asked alike.
macro_rules! either {
    ($which:ident, $self:expr, $messages:ident => $call:expr) => {
        match $self {
            $which::Small($messages, ..) => $call,
            $which::Large($messages, ..) => $call,
        }
    };
}

impl<T> QueueSender<T> {
    /// `Err`: the receiver has closed it, or is gone. The message's charge is dropped.
    #[inline]
    pub(super) fn send(&self, message: Charged<T>) -> Result<(), T> {
        match &self.places {
            Senders::Small(messages) => messages.send(Placed::Message(message)).map_err(unsent),
            Senders::Large(messages) => messages
                .send(Placed::Message(Box::new(message)))
                .map_err(unsent),
        }
    }

    /// Sends a message that [`take_oldest`](Self::take_oldest) may take out again.
    pub(super) fn send_droppable(&self, message: Charged<T>) -> Result<(), T> {
        let lacks_turn = self
            .droppable
            .push(message)
            .map_err(|unsent| Charged::into_parts(unsent).0)?;
        if lacks_turn {
            let is_sent =
                either!(Senders, &self.places, messages => messages.send(Placed::Turn).is_ok());
            // The message stays in the list, where the receiver looks at the end.
            if !is_sent {
                self.droppable.turn_came_too_late();
            }
        }
        Ok(())
    }

    /// Takes out the oldest message that may be dropped.
    pub(super) fn take_oldest(&self) -> Option<Charged<T>> {
        self.droppable.take_oldest()
    }

    /// Returns the bytes that are charged for messages that may be dropped.
    pub(super) fn droppable_bytes(&self) -> u64 {
        self.droppable.bytes()
    }

    pub(super) async fn closed(&self) {
        either!(Senders, &self.places, messages => messages.closed().await);
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        either!(Senders, &self.places, messages => messages.is_closed())
    }

    pub(super) fn same_channel(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.droppable, &other.droppable)
    }

    pub(super) fn downgrade(&self) -> WeakQueueSender<T> {
        let places = match &self.places {
            Senders::Small(messages) => WeakSenders::Small(messages.downgrade()),
            Senders::Large(messages) => WeakSenders::Large(messages.downgrade()),
        };
        WeakQueueSender {
            places,
            droppable: Arc::clone(&self.droppable),
        }
    }

    pub(super) fn strong_count(&self) -> usize {
        either!(Senders, &self.places, messages => messages.strong_count())
    }

    pub(super) fn weak_count(&self) -> usize {
        either!(Senders, &self.places, messages => messages.weak_count())
    }
}

impl<T> Clone for QueueSender<T> {
    fn clone(&self) -> Self {
        let places = match &self.places {
            Senders::Small(messages) => Senders::Small(messages.clone()),
            Senders::Large(messages) => Senders::Large(messages.clone()),
        };
        QueueSender {
            places,
            droppable: Arc::clone(&self.droppable),
        }
    }
}

impl<T> WeakQueueSender<T> {
    pub(super) fn upgrade(&self) -> Option<QueueSender<T>> {
        let places = match &self.places {
            WeakSenders::Small(messages) => Senders::Small(messages.upgrade()?),
            WeakSenders::Large(messages) => Senders::Large(messages.upgrade()?),
        };
        Some(QueueSender {
            places,
            droppable: Arc::clone(&self.droppable),
        })
    }

    pub(super) fn strong_count(&self) -> usize {
        either!(WeakSenders, &self.places, messages => messages.strong_count())
    }

    pub(super) fn weak_count(&self) -> usize {
        either!(WeakSenders, &self.places, messages => messages.weak_count())
    }
}

impl<T> Clone for WeakQueueSender<T> {
    fn clone(&self) -> Self {
        let places = match &self.places {
            WeakSenders::Small(messages) => WeakSenders::Small(messages.clone()),
            WeakSenders::Large(messages) => WeakSenders::Large(messages.clone()),
        };
        WeakQueueSender {
            places,
            droppable: Arc::clone(&self.droppable),
        }
    }
}

/// What a place has for a message.
trait IntoCharged<T> {
    fn into_charged(self) -> Charged<T>;
}

impl<T> IntoCharged<T> for Charged<T> {
    #[inline]
    fn into_charged(self) -> Charged<T> {
        self
    }
}

impl<T> IntoCharged<T> for Box<Charged<T>> {
    #[inline]
    fn into_charged(self) -> Charged<T> {
        *self
    }
}

/// Returns the message of a place that the queue has not taken.
fn unsent<T, M: IntoCharged<T>>(error: SendError<Placed<M>>) -> T {
    match error.0 {
        Placed::Message(message) => Charged::into_parts(message.into_charged()).0,
        Placed::Turn => unreachable!("what was sent is a message"),
    }
}

/// Returns the message of a place. `None`: the place is a turn whose message was dropped, so the
/// receiver looks at the next place.
#[inline]
fn message_of<T, M: IntoCharged<T>>(
    placed: Placed<M>,
    droppable: &Droppable<T>,
) -> Option<Charged<T>> {
    match placed {
        Placed::Message(message) => Some(message.into_charged()),
        Placed::Turn => droppable.take_turn(),
    }
}

impl<T> QueueReceiver<T> {
    #[inline]
    pub(super) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Charged<T>>> {
        let droppable = &*self.droppable;
        loop {
            let received = either!(Receivers, &mut self.places, messages => {
                ready!(messages.poll_recv(context)).map(|placed| message_of(placed, droppable))
            });
            match received {
                Some(Some(message)) => return Poll::Ready(Some(message)),
                Some(None) => {}
                // The queue is at its end. A message whose turn came when it was closed already is
                // in the list alone.
                None => return Poll::Ready(droppable.take_oldest()),
            }
        }
    }

    /// Takes up to `limit` messages, and returns how many. `Ready(0)`: none will come, or `limit`
    /// is 0.
    pub(super) fn poll_recv_many(
        &mut self,
        context: &mut Context<'_>,
        limit: usize,
        take: impl FnMut(Charged<T>),
    ) -> Poll<usize> {
        let droppable = &*self.droppable;
        match &mut self.places {
            Receivers::Small(messages, batch) => {
                poll_batches(messages, batch, droppable, context, limit, take)
            }
            Receivers::Large(messages, batch) => {
                poll_batches(messages, batch, droppable, context, limit, take)
            }
        }
    }

    pub(super) fn try_recv(&mut self) -> Result<Charged<T>, TryRecvError> {
        let droppable = &*self.droppable;
        loop {
            let received = either!(Receivers, &mut self.places, messages => {
                messages.try_recv().map(|placed| message_of(placed, droppable))
            });
            match received {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(TryRecvError::Empty) => return Err(TryRecvError::Empty),
                Err(TryRecvError::Disconnected) => {
                    return droppable.take_oldest().ok_or(TryRecvError::Disconnected);
                }
            }
        }
    }

    #[track_caller]
    pub(super) fn blocking_recv(&mut self) -> Option<Charged<T>> {
        let droppable = &*self.droppable;
        loop {
            let received = either!(Receivers, &mut self.places, messages => {
                messages.blocking_recv().map(|placed| message_of(placed, droppable))
            });
            match received {
                Some(Some(message)) => return Some(message),
                Some(None) => {}
                None => return droppable.take_oldest(),
            }
        }
    }

    /// Takes no more messages. What was sent before is still there.
    pub(super) fn close(&mut self) {
        self.droppable.close();
        either!(Receivers, &mut self.places, messages => messages.close());
    }

    pub(super) fn is_closed(&self) -> bool {
        either!(Receivers, &self.places, messages => messages.is_closed())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        let places = either!(Receivers, &self.places, messages => messages.len());
        self.droppable.count_messages(places)
    }

    pub(super) fn sender_strong_count(&self) -> usize {
        either!(Receivers, &self.places, messages => messages.sender_strong_count())
    }

    pub(super) fn sender_weak_count(&self) -> usize {
        either!(Receivers, &self.places, messages => messages.sender_weak_count())
    }
}

/// A list that senders keep holds no messages of a receiver that is gone.
impl<T> Drop for QueueReceiver<T> {
    fn drop(&mut self) {
        self.droppable.close();
        self.droppable.clear();
    }
}

fn poll_batches<T, M: IntoCharged<T>>(
    messages: &mut UnboundedReceiver<Placed<M>>,
    batch: &mut Vec<Placed<M>>,
    droppable: &Droppable<T>,
    context: &mut Context<'_>,
    limit: usize,
    mut take: impl FnMut(Charged<T>),
) -> Poll<usize> {
    let mut received = 0;
    while received < limit {
        let asked = (limit - received).min(BATCH);
        match messages.poll_recv_many(context, batch, asked) {
            Poll::Ready(0) => {
                // The queue is at its end, and the list may have more.
                let left = std::iter::from_fn(|| droppable.take_oldest()).take(limit - received);
                received += left.map(&mut take).count();
                break;
            }
            Poll::Ready(count) => {
                let places = batch.drain(..);
                let found = places.filter_map(|placed| message_of(placed, droppable));
                received += found.map(&mut take).count();
                // Where all were turns of dropped messages, a further poll waits for the next one.
                if count < asked && received > 0 {
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
