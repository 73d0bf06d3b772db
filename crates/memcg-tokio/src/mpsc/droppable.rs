//! The list of messages that a sender may drop to make room: those of senders that drop the oldest.
//!
//! No sender can take a message out of tokio's queue. So such a message is in this list, and the
//! queue has a *turn* in its place: a receiver that comes to a turn takes the oldest message of the
//! list.
//!
//! # Protocol
//!
//! One lock guards the list and the number of turns. The rules:
//!
//! 1. **A turn for each.** For each message in the list there is a turn: in the queue, or with a
//!    sender that is about to send it, or with the receiver that is about to look here.
//! 2. **A turn stays.** The turn of a message that was dropped cannot be taken out of the queue,
//!    either: the next message that comes takes it over. So while a receiver stands still, the queue
//!    has no more turns than messages were ever in the list at once, however many are dropped. The
//!    message that takes a turn over may arrive before what was sent without this list meanwhile. A
//!    turn for which the list has no message is passed over.
//! 3. **The end.** A receiver that closes says so here first, and then closes the queue. A message
//!    that was in the list by then is sent, even if its turn comes too late for the queue: the
//!    receiver takes what is left in the list once the queue is at its end.
//!
//! Under the lock no thread allocates, frees memory, or drops a message: each of these may run
//! foreign code, which may send. So a message goes in and out as a list of its own, whose node the
//! caller makes and frees: linked lists are joined and split by their ends alone.

use std::collections::LinkedList;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memcg::Charged;

/// Bytes that a message has here: itself, and the two links of its node.
pub(super) const fn message_size<T>() -> usize {
    size_of::<Charged<T>>() + 2 * size_of::<usize>()
}

pub(super) struct Droppable<T> {
    list: Mutex<List<T>>,
}

struct List<T> {
    oldest_first: LinkedList<Charged<T>>,
    /// Sum of the charges in the list.
    bytes: u64,
    /// Turns at which no receiver has looked here yet.
    turns: usize,
    is_closed: bool,
}

impl<T> List<T> {
    /// Takes out the oldest message, as a list that has one or none.
    fn take_oldest(&mut self) -> LinkedList<Charged<T>> {
        let Some(oldest) = self.oldest_first.front() else {
            return LinkedList::new();
        };
        // Mutation: what-was-taken-may-still-be-dropped
        self.bytes -= Charged::charge(oldest).bytes();
        let others = self.oldest_first.split_off(1);
        mem::replace(&mut self.oldest_first, others)
    }
}

impl<T> Droppable<T> {
    pub(super) fn new() -> Self {
        let list = List {
            oldest_first: LinkedList::new(),
            bytes: 0,
            turns: 0,
            is_closed: false,
        };
        Droppable {
            list: Mutex::new(list),
        }
    }

    fn lock(&self) -> MutexGuard<'_, List<T>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message at the end of the list. Returns true if the caller has to send a turn for it.
    /// `Err`: the receiver has closed the channel, or is gone.
    pub(super) fn push(&self, message: Charged<T>) -> Result<bool, Charged<T>> {
        let bytes = Charged::charge(&message).bytes();
        let mut node = LinkedList::from([message]);
        {
            let mut list = self.lock();
            if !list.is_closed {
                list.oldest_first.append(&mut node);
                list.bytes += bytes;
                // Rule 2: a turn that was left behind is in the queue already.
                // Mutation: a-turn-is-sent-for-the-first-alone
                // Mutation: a-turn-is-sent-for-each-message
                let lacks_turn = list.turns < list.oldest_first.len();
                list.turns += usize::from(lacks_turn);
                return Ok(lacks_turn);
            }
        }
        match node.pop_front() {
            Some(message) => Err(message),
            None => unreachable!("a closed list takes no message"),
        }
    }

    /// Takes the oldest message out, for the caller to drop. Its turn stays.
    pub(super) fn take_oldest(&self) -> Option<Charged<T>> {
        let mut taken = self.lock().take_oldest();
        taken.pop_front()
    }

    /// Takes the message of a turn that has come. `None`: it was dropped.
    pub(super) fn take_turn(&self) -> Option<Charged<T>> {
        let mut taken = {
            let mut list = self.lock();
            list.turns -= 1;
            list.take_oldest()
        };
        taken.pop_front()
    }

    /// The queue has refused a turn, because it is closed (rule 3).
    pub(super) fn turn_came_too_late(&self) {
        self.lock().turns -= 1;
    }

    /// Returns the bytes that are charged for messages in the list.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Returns how many messages there are if the queue has `places`, turns included.
    pub(super) fn count_messages(&self, places: usize) -> usize {
        let list = self.lock();
        // A turn that is about to be sent is no place yet.
        (places + list.oldest_first.len()).saturating_sub(list.turns)
    }

    /// Takes no message from here on (rule 3).
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Drops all messages: the receiver is gone, and senders keep the list.
    pub(super) fn clear(&self) {
        let left = {
            let mut list = self.lock();
            list.bytes = 0;
            mem::take(&mut list.oldest_first)
        };
        drop(left);
    }
}
