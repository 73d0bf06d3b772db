//! The sender's side.

mod lossy;
mod permit;

pub use lossy::{DropPolicy, LossySender};
pub use permit::OwnedPermit;

use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use memcg::CentralStock;
use memcg::{Bytes, Charge, ChargeError, Charged, Group, IntoBytes, Weigh};
use tokio::task::coop::consume_budget;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::blocking::block_on;
use super::queue::{QueueSender, WeakQueueSender};
use super::waiters::{Room, Waiters};
use super::{SendError, message_overhead};

/// Times that a send that finds no room lets the other tasks of its worker run before it goes into
/// line.
const LOOKS: usize = 2;

/// Sends messages: see [`channel`](crate::channel). A clone sends to the same receiver.
pub struct Sender<T> {
    messages: QueueSender<T>,
    stock: CentralStock,
    waiters: Arc<Waiters>,
}

impl<T> Sender<T> {
    pub(super) fn new(
        messages: QueueSender<T>,
        stock: CentralStock,
        waiters: Arc<Waiters>,
    ) -> Self {
        Sender {
            messages,
            stock,
            waiters,
        }
    }

    /// Charges `bytes` for a message that is not made yet, and waits in line where they do not fit.
    /// Send it with [`send_charged`](Self::send_charged); a drop of the charge gives the bytes
    /// back.
    ///
    /// A caller that drops this future keeps the message. `bytes` should be the message's weight
    /// and [`message_overhead`]. Other than a permit of tokio's channel, a charge sends nothing
    /// after the receiver has closed.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    ///
    /// ```
    /// # use memcg::{Charged, Runtime};
    /// # use memcg_tokio::{channel, message_overhead};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let budget = Runtime::builder().max(1 << 20).build()?;
    /// let (sender, mut receiver) = channel::<Vec<u8>>(&budget.root());
    /// let charge = sender.reserve(message_overhead::<Vec<u8>>() + 4096).await?;
    /// sender.send_charged(Charged::new(vec![0; 4096], charge))?; // charged before it was allocated
    /// assert_eq!(receiver.recv().await.map(|message| message.len()), Some(4096));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve(&self, bytes: impl IntoBytes) -> Result<Charge, SendError<()>> {
        let bytes = bytes.into_bytes();
        consume_budget().await;
        if self.is_closed() {
            return Err(SendError::Closed(()));
        }
        match self.charge_if_first(bytes) {
            Some(charge) => Ok(charge),
            None => self.charge_missed(bytes).await,
        }
    }

    /// Sends a message that is charged already: to the channel's group, or to any other one, as
    /// that of the request that the message is part of. A [received](crate::Receiver::recv_charged)
    /// one goes on as it is. It never waits.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`]; the charge is dropped.
    #[inline]
    pub fn send_charged(&self, message: Charged<T>) -> Result<(), SendError<T>> {
        self.messages.send(message).map_err(SendError::Closed)
    }

    /// Waits until the receiver closes the channel, or is gone.
    pub async fn closed(&self) {
        self.messages.closed().await;
    }

    /// Returns true if the receiver has closed the channel, or is gone.
    pub fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }

    /// True if the other one sends to the same receiver.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.messages.same_channel(&other.messages)
    }

    /// Returns the group that messages are charged to. Its [`live`](Group::live) is what the
    /// channel holds, and its [`set_max`](Group::set_max) moves the bound. A producer that sheds
    /// what can wait asks its [`pressure_level`](Group::pressure_level), which is one load while
    /// the queue is below the threshold, and finds an empty queue normal:
    ///
    /// ```
    /// # use memcg::{Limits, PressureLevel, Runtime};
    /// # use memcg_tokio::channel;
    /// let budget = Runtime::builder().build()?;
    /// let queue = budget.root().create("queue", Limits::new().max(1_000).pressure_levels(70, 95))?;
    /// let (sender, _receiver) = channel::<Vec<u8>>(&queue);
    /// let mut shed = 0;
    /// for _ in 0..20 {
    ///     if sender.group().pressure_level() == PressureLevel::Normal {
    ///         sender.try_send(vec![0; 100])?;
    ///     } else {
    ///         shed += 1; // what is important is sent all the same
    ///     }
    /// }
    /// assert!(shed >= 12, "{shed}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group(&self) -> &Group {
        self.stock.group()
    }

    /// Returns the number of senders. Each clone is one.
    pub fn strong_count(&self) -> usize {
        self.messages.strong_count()
    }

    /// Returns the number of [weak handles](Self::downgrade).
    pub fn weak_count(&self) -> usize {
        self.messages.weak_count()
    }

    /// Returns the bytes that fit now: the least of what each max has left, of the group and those
    /// above. It is 0 where others wait for them, and [`u64::MAX`] where there is no max. Bytes
    /// that a reclaimer could give back are not part of it. What it says may have changed by the
    /// next call. It adds up the bytes of each group.
    ///
    /// A number of messages is this by their weight and [`message_overhead`].
    pub fn capacity(&self) -> u64 {
        let group = self.group();
        let left = |group: Group| match (group.max(), group.waiting_count()) {
            (u64::MAX, _) => u64::MAX,
            (_, 1..) => 0,
            (max, 0) => max.saturating_sub(group.live()),
        };
        group
            .ancestors()
            .map(left)
            .fold(left(group.clone()), u64::min)
    }

    /// Returns the bytes that could fit: the least max of the group and those above, [`u64::MAX`]
    /// where there is none.
    pub fn max_capacity(&self) -> u64 {
        self.group().effective_max()
    }

    /// Returns a handle that does not keep the channel open.
    pub fn downgrade(&self) -> WeakSender<T> {
        WeakSender {
            messages: self.messages.downgrade(),
            stock: self.stock.clone(),
            waiters: Arc::clone(&self.waiters),
        }
    }

    /// Charges `bytes` if there is room and no sender waits.
    #[inline]
    fn charge_if_first(&self, bytes: Bytes) -> Option<Charge> {
        if self.waiters.is_empty() {
            self.stock.charge_if_room(bytes)
        } else {
            None
        }
    }

    /// Charges what fits at once.
    fn charge_now(&self, bytes: Bytes) -> Result<Charge, ChargeError> {
        self.stock
            .charge_if_room(bytes)
            .map_or_else(|| self.group().try_charge(bytes), Ok)
    }

    /// Charges `bytes` that have found no room: after the other tasks of this worker have run, or
    /// else in turn behind the senders that wait.
    async fn charge_missed(&self, bytes: Bytes) -> Result<Charge, SendError<()>> {
        if let Some(charge) = self.charge_in_turn(bytes).await {
            return Ok(charge);
        }
        match self.waiters.wait(&self.stock, bytes).await? {
            Room::Charged(charge) => Ok(charge),
            // On the heap, so that a task that sends is small.
            Room::Delayed(charge) => Box::pin(self.or_closed(charge)).await,
        }
    }

    /// Does what [`charge_missed`](Self::charge_missed) does, for at most `time`.
    async fn charge_in_time(&self, bytes: Bytes, time: Duration) -> Result<Charge, SendError<()>> {
        let begun = Instant::now();
        let mut over = pin!(sleep(time));
        if let Some(charge) = self.charge_in_turn(bytes).await {
            return Ok(charge);
        }
        let mut wait = self.waiters.wait(&self.stock, bytes);
        let ended = poll_fn(|context| match Pin::new(&mut wait).poll(context) {
            // Asked first: what has come by the end of the time counts.
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending => over.as_mut().poll(context).map(|()| None),
        })
        .await;
        // It leaves the line first: those behind it are not to wait for what follows.
        drop(wait);
        let charged = match ended.transpose()? {
            Some(Room::Charged(charge)) => return Ok(charge),
            // Mutation: a-delay-outlives-the-time-of-its-send
            Some(Room::Delayed(charge)) => self.or_closed(charge.until(over)).await,
            // A charge without time to wait counts the refusal, and tells which group is full.
            None => {
                self.or_closed(self.group().charge_async(bytes).until(ready(())))
                    .await
            }
        };
        charged.map_err(|refused| match refused {
            SendError::Refused((), error) => {
                SendError::Refused((), error.with_waited(begun.elapsed()))
            }
            refused => refused,
        })
    }

    /// Lets the other tasks of this worker run, and looks for room again. A receiver that lags only
    /// a little has made room by then, which costs less than a place in line. The call gives up if
    /// senders wait already: then the receiver lags more.
    async fn charge_in_turn(&self, bytes: Bytes) -> Option<Charge> {
        for _ in 0..LOOKS {
            if !self.waiters.is_empty() {
                break;
            }
            yield_now().await;
            if let Some(charge) = self.stock.charge_if_room(bytes) {
                return Some(charge);
            }
        }
        None
    }

    /// Waits for the charge, or until the channel closes. The drop of the charge's future leaves
    /// the line.
    async fn or_closed(
        &self,
        charge: impl Future<Output = Result<Charge, ChargeError>>,
    ) -> Result<Charge, SendError<()>> {
        let mut charge = pin!(charge);
        let mut closed = pin!(self.messages.closed());
        poll_fn(|context| match charge.as_mut().poll(context) {
            Poll::Ready(charged) => {
                Poll::Ready(charged.map_err(|refusal| SendError::Refused((), refusal)))
            }
            Poll::Pending => closed
                .as_mut()
                .poll(context)
                .map(|()| Err(SendError::Closed(()))),
        })
        .await
    }
}

/// Bytes that a message is charged for.
fn cost<T: Weigh>(message: &T) -> Bytes {
    weight(message, message_overhead::<T>())
}

/// The heap behind a message, and what its place costs.
fn weight<T: Weigh>(message: &T, overhead: usize) -> Bytes {
    Bytes(message.heap_bytes().saturating_add(overhead) as u64)
}

impl<T: Weigh> Sender<T> {
    /// Sends a message, and waits in line where its bytes do not fit.
    ///
    /// A message that fits costs one exchange of a shared word beside tokio's unbounded channel, or
    /// two charges at most. A send that finds no room lets other tasks run twice, and then takes
    /// its place in line. Above a [high](memcg::Limits::high) the send is delayed, as
    /// [`Group::charge_async`] says. The send counts in tokio's budget of a task, as a send of
    /// tokio does.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] where the receiver has closed, also while this waits.
    /// [`SendError::Refused`] where the message could never fit, or its group is offline or
    /// cancelled. Both have the message.
    pub async fn send(&self, message: T) -> Result<(), SendError<T>> {
        consume_budget().await;
        let bytes = cost(&message);
        let charge = match self.charge_if_first(bytes) {
            Some(charge) => charge,
            None => match self.charge_missed(bytes).await {
                Ok(charge) => charge,
                Err(refused) => return Err(refused.with(message)),
            },
        };
        self.send_charged(Charged::new(message, charge))
    }

    /// Sends a message from a thread that runs no tasks. It blocks where its bytes do not fit: in
    /// async code use [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    ///
    /// # Panics
    ///
    /// On a thread that runs tasks of tokio.
    ///
    /// ```
    /// use memcg::{Limits, Runtime};
    /// use memcg_tokio::{channel, message_overhead};
    ///
    /// let budget = Runtime::builder().build()?;
    /// let queue = budget.root().create("queue", Limits::new().max(2 * message_overhead::<u64>()))?;
    /// let (sender, mut receiver) = channel::<u64>(&queue);
    /// let sends = std::thread::spawn(move || (0..100).try_for_each(|number| sender.blocking_send(number)));
    /// let received: u64 = std::iter::from_fn(|| receiver.blocking_recv()).sum();
    /// assert_eq!(received, 4950);
    /// sends.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn blocking_send(&self, message: T) -> Result<(), SendError<T>> {
        block_on(self.send(message))
    }

    /// Sends a message, and waits for at most `time` by tokio's clock where its bytes do not fit.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`SendError::Refused`] with
    /// [`ChargeErrorKind::TimedOut`](memcg::ChargeErrorKind::TimedOut) after `time`.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime whose timer is enabled, where the message does not fit at once.
    pub async fn send_timeout(&self, message: T, time: Duration) -> Result<(), SendError<T>> {
        consume_budget().await;
        let bytes = cost(&message);
        let charge = match self.charge_if_first(bytes) {
            Some(charge) => charge,
            None => match self.charge_in_time(bytes, time).await {
                Ok(charge) => charge,
                Err(refused) => return Err(refused.with(message)),
            },
        };
        self.send_charged(Charged::new(message, charge))
    }

    /// Sends a message where its bytes fit at once, and never blocks: it waits for no room, calls
    /// no reclaimer, and is not delayed above a high. It is not refused beside unused credit. The
    /// receiver's waker runs on this thread.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); [`SendError::Refused`] where the bytes do not fit now, as
    /// [`Group::try_charge`] says it.
    pub fn try_send(&self, message: T) -> Result<(), SendError<T>> {
        if self.is_closed() {
            return Err(SendError::Closed(message));
        }
        match self.charge_now(cost(&message)) {
            Ok(charge) => self.send_charged(Charged::new(message, charge)),
            Err(refusal) => Err(SendError::Refused(message, refusal)),
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender {
            messages: self.messages.clone(),
            stock: self.stock.clone(),
            waiters: Arc::clone(&self.waiters),
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages = &self.messages;
        f.debug_struct("Sender")
            .field("group", self.group())
            .field("is_closed", &messages.is_closed())
            .finish_non_exhaustive()
    }
}

/// A sender that does not keep the channel open: see [`Sender::downgrade`].
pub struct WeakSender<T> {
    messages: WeakQueueSender<T>,
    stock: CentralStock,
    waiters: Arc<Waiters>,
}

impl<T> WeakSender<T> {
    /// Returns a sender, `None` where the last one is gone.
    pub fn upgrade(&self) -> Option<Sender<T>> {
        let stock = self.stock.clone();
        let waiters = Arc::clone(&self.waiters);
        Some(Sender {
            messages: self.messages.upgrade()?,
            stock,
            waiters,
        })
    }

    /// Returns the number of senders.
    pub fn strong_count(&self) -> usize {
        self.messages.strong_count()
    }

    /// Returns the number of handles as this one.
    pub fn weak_count(&self) -> usize {
        self.messages.weak_count()
    }
}

impl<T> Clone for WeakSender<T> {
    fn clone(&self) -> Self {
        WeakSender {
            messages: self.messages.clone(),
            stock: self.stock.clone(),
            waiters: Arc::clone(&self.waiters),
        }
    }
}

impl<T> fmt::Debug for WeakSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakSender")
            .field("group", self.stock.group())
            .finish_non_exhaustive()
    }
}
