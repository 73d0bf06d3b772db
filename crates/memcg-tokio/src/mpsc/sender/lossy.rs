//! A sender that drops messages where others wait.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{Bytes, Charge, ChargeError, Charged, Group, Weigh};

use super::{Sender, cost, weight};
use crate::mpsc::{SendError, queue};

/// Times that a send that finds nothing to drop looks again, if there should be room.
const LOOKS: usize = 3;

/// Which message goes where a [`LossySender`] finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropPolicy {
    /// The oldest ones that were sent with this policy, until the new one fits: for values of which
    /// the latest counts. Such a message costs its place twice: in the queue, and in the list of
    /// those that may be dropped.
    Oldest,
    /// The new one: for lines of which the first ones tell most. What was sent stays.
    Newest,
}

/// Sends messages that may be lost, and never waits: see [`Sender::lossy`]. A clone has the same
/// policy and the same count.
pub struct LossySender<T> {
    sender: Sender<T>,
    policy: DropPolicy,
    /// Messages that this one and its clones have dropped.
    dropped: Arc<AtomicU64>,
}

impl<T> Sender<T> {
    /// Returns a sender to the same receiver that drops messages rather than wait, and counts them.
    /// It keeps the channel open, as a clone does.
    ///
    /// What other senders send is never dropped for it. So a service may send its errors with
    /// [`send`](Self::send), its samples with [`DropPolicy::Oldest`] and its lines for debugging with
    /// [`DropPolicy::Newest`], through one channel.
    ///
    /// ```
    /// use memcg::{Limits, Runtime};
    /// use memcg_tokio::{DropPolicy, channel};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let budget = Runtime::builder().build()?;
    /// let queue = budget.root().create("queue", Limits::new().max(4_000))?;
    /// let (sender, mut receiver) = channel::<Vec<u8>>(&queue);
    /// let samples = sender.lossy(DropPolicy::Oldest);
    /// sender.send(vec![255; 1_000]).await?;
    /// for number in 0..10 {
    ///     samples.send(vec![number; 1_000])?;
    /// }
    /// assert_eq!(samples.dropped(), 8);
    /// drop((sender, samples));
    /// let mut received = Vec::new();
    /// while let Some(message) = receiver.recv().await {
    ///     received.push(message[0]);
    /// }
    /// assert_eq!(received, [255, 8, 9]); // the latest, and what was not to be lost
    /// # Ok(())
    /// # }
    /// ```
    pub fn lossy(&self, policy: DropPolicy) -> LossySender<T> {
        LossySender {
            sender: self.clone(),
            policy,
            dropped: Arc::new(AtomicU64::new(0)),
        }
    }

    /// True if no group of the path would hold more than its max with `bytes` more, once all that may
    /// be dropped is gone.
    fn could_fit(&self, bytes: Bytes) -> bool {
        let droppable = self.messages.droppable_bytes();
        self.all_of_path(|group| {
            let left = group.live().saturating_sub(droppable);
            left.saturating_add(bytes.0) <= group.max()
        })
    }

    /// True if a group of the path holds more than its max, as after the max was lowered.
    fn is_above_max(&self) -> bool {
        !self.all_of_path(|group| group.live() <= group.max())
    }

    fn all_of_path(&self, is_so: impl Fn(&Group) -> bool) -> bool {
        is_so(self.group()) && self.group().ancestors().all(|group| is_so(&group))
    }

    /// Charges `bytes`, of which a part may be `freed` by messages that were dropped. Where it is
    /// refused, that stays as it is.
    fn charge_beside(
        &self,
        freed: &mut Option<Charge>,
        bytes: Bytes,
    ) -> Result<Charge, ChargeError> {
        if self.is_above_max() {
            drop(freed.take());
        }
        let Some(mut charge) = freed.take() else {
            return self.charge_now(bytes);
        };
        let held = charge.bytes();
        charge.shrink(Bytes(held.saturating_sub(bytes.0)));
        match charge.try_grow(Bytes(bytes.0.saturating_sub(held))) {
            Ok(()) => Ok(charge),
            Err(refused) => {
                *freed = Some(charge);
                Err(refused)
            }
        }
    }
}

impl<T> LossySender<T> {
    /// Returns the number of messages that this sender and its clones have dropped. A message that
    /// [`send`](Self::send) returns with an error is not dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns what it drops.
    pub fn policy(&self) -> DropPolicy {
        self.policy
    }

    /// Returns a sender to the same receiver that drops nothing.
    pub fn sender(&self) -> &Sender<T> {
        &self.sender
    }

    /// Drops a message. Its drop is foreign code, which may send or panic: no lock is held, and the
    /// message is counted by then.
    fn lose(&self, message: T) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        drop(message);
    }

    /// Drops the oldest messages until `bytes` are charged for a new one, and counts them in `lost`.
    ///
    /// What a dropped message was charged becomes the charge of the new one: usage does not move,
    /// and no other charge takes the bytes in between. Only while a group holds more than its max,
    /// as after that was lowered, they go back, and the new message is charged anew.
    #[cold]
    fn make_room(
        &self,
        bytes: Bytes,
        refusal: ChargeError,
        lost: &mut u64,
    ) -> Result<Charge, ChargeError> {
        let sender = &self.sender;
        // Where all that may be dropped would not do, nothing is dropped in vain.
        if !refusal.is_over_limit() || !sender.could_fit(bytes) {
            return Err(refusal);
        }
        let mut freed = None;
        let mut looks = LOOKS;
        loop {
            let oldest = sender.messages.take_oldest();
            let is_empty = oldest.is_none();
            if let Some(oldest) = oldest {
                let (message, mut charge) = Charged::into_parts(oldest);
                *lost += 1;
                self.lose(message);
                // Mutation: a-second-message-lets-go-what-the-first-freed
                if let Some(more) = freed.take() {
                    // All are of the channel's group. What could not be merged is given back here.
                    drop(charge.merge(more));
                }
                freed = Some(charge);
            }
            match sender.charge_beside(&mut freed, bytes) {
                Ok(charge) => return Ok(charge),
                Err(refused) if !refused.is_over_limit() => return Err(refused),
                Err(_) if !is_empty => {}
                // The receiver has taken what was there, and others have taken the room.
                Err(_) if looks > 0 && sender.could_fit(bytes) => looks -= 1,
                Err(_) => return Err(refusal),
            }
        }
    }
}

impl<T: Weigh> LossySender<T> {
    /// Sends a message, or drops what the policy says where it does not fit at once. It never
    /// waits, calls no reclaimer, and is not delayed above a high. Returns how many messages were
    /// dropped: 0 where the message fits; with [`DropPolicy::Newest`] it is 1 where the message
    /// itself is.
    ///
    /// With [`DropPolicy::Oldest`] the oldest messages that were sent so are dropped one by one on
    /// this thread, until the new one fits in the place of them; the receiver finds the new one
    /// behind all others that were sent so. It may come before what others have sent meanwhile. A
    /// message that is dropped is gone, and its bytes are free, before the new one has them.
    ///
    /// It costs what [`try_send`](Sender::try_send) costs, and with [`DropPolicy::Oldest`] an
    /// allocation and two short locks.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`]. [`SendError::Refused`] where the policy cannot make room enough: the
    /// message is larger than a max, or than what is free and what may be dropped together, and
    /// then nothing is dropped; or the group is offline or cancelled. Both have the message.
    ///
    /// With [`DropPolicy::Oldest`] it may be refused beside other threads that send to a channel of
    /// a few messages, while they have in their hands what could be dropped. Messages that were
    /// dropped for one that is refused in the end are counted by [`dropped`](Self::dropped).
    ///
    /// # Panics
    ///
    /// Where the drop of a message panics that was to make room. The new message is dropped then.
    pub fn send(&self, message: T) -> Result<u64, SendError<T>> {
        let sender = &self.sender;
        if sender.is_closed() {
            return Err(SendError::Closed(message));
        }
        let may_be_dropped = self.policy == DropPolicy::Oldest;
        let bytes = if may_be_dropped {
            weight(&message, queue::droppable_size::<T>())
        } else {
            cost(&message)
        };
        let mut lost = 0;
        let charge = match (sender.charge_now(bytes), self.policy) {
            (Ok(charge), _) => charge,
            (Err(refusal), DropPolicy::Oldest) => match self.make_room(bytes, refusal, &mut lost) {
                Ok(charge) => charge,
                Err(refusal) => return Err(SendError::Refused(message, refusal)),
            },
            // Where it could fit later it is lost; what never fits is an error, as of any send.
            // Mutation: what-no-group-takes-is-lost
            (Err(refusal), DropPolicy::Newest)
                if refusal.is_over_limit() && bytes.0 <= sender.max_capacity() =>
            {
                self.lose(message);
                return Ok(1);
            }
            (Err(refusal), DropPolicy::Newest) => return Err(SendError::Refused(message, refusal)),
        };
        let message = Charged::new(message, charge);
        let sent = if may_be_dropped {
            sender.messages.send_droppable(message)
        } else {
            sender.messages.send(message)
        };
        sent.map(|()| lost).map_err(SendError::Closed)
    }
}

impl<T> Clone for LossySender<T> {
    fn clone(&self) -> Self {
        LossySender {
            sender: self.sender.clone(),
            policy: self.policy,
            dropped: Arc::clone(&self.dropped),
        }
    }
}

impl<T> fmt::Debug for LossySender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossySender")
            .field("sender", &self.sender)
            .field("policy", &self.policy)
            .field("dropped", &self.dropped())
            .finish()
    }
}
