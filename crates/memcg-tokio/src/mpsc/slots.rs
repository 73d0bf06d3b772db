//! The list of senders that wait, in the order in which they came. Each has a slot, whose number
//! does not change.
//!
//! No call allocates or frees memory, and none runs a waker: the caller does so outside of its
//! lock.

use std::mem;
use std::task::Waker;

use memcg::{Charge, ChargeError, ChargeFuture};

/// Slots whose memory stays while no sender waits.
const KEPT: usize = 16;

/// The number of no slot.
const NONE: u32 = u32::MAX;

/// State of a wait.
pub(super) enum Fate {
    /// The sender is in the list.
    Waits,
    /// The sender has its bytes.
    Served(Charge),
    /// The sender has its bytes, above a high, and waits for the delay.
    Delayed(Box<ChargeFuture>),
    Refused(Box<ChargeError>),
    /// The channel is closed.
    Closed,
    /// No sender has the slot.
    Free,
}

pub(super) struct Slot {
    bytes: u64,
    before: u32,
    behind: u32,
    /// `None`: the sender is woken, and has not looked yet.
    waker: Option<Waker>,
    fate: Fate,
}

pub(super) struct Slots {
    slots: Vec<Slot>,
    first: u32,
    last: u32,
    /// First free slot; `behind` links the others.
    free: u32,
    /// Number of senders in the list.
    waiting: usize,
    /// Number of slots that are not free.
    used: usize,
    /// No sender in the list waits for more bytes. Some that did may have left.
    at_most: u64,
}

impl Slots {
    pub(super) const fn new() -> Slots {
        Slots {
            slots: Vec::new(),
            first: NONE,
            last: NONE,
            free: NONE,
            waiting: 0,
            used: 0,
            at_most: 0,
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Capacity to grow to before the next [`push`](Self::push). `None`: there is room for one
    /// more.
    pub(super) fn lacks(&self) -> Option<usize> {
        let is_full = self.free == NONE && self.slots.len() == self.slots.capacity();
        is_full.then(|| KEPT.max(2 * self.slots.len()))
    }

    /// Moves all slots into `larger` if that is larger. Returns the vector that is not needed, for
    /// the caller to drop.
    pub(super) fn grow(&mut self, mut larger: Vec<Slot>) -> Vec<Slot> {
        // Memory is allocated without the lock, so another sender may have been first.
        if larger.capacity() > self.slots.capacity() {
            larger.append(&mut self.slots);
            mem::swap(&mut self.slots, &mut larger);
        }
        larger
    }

    /// Takes out the memory of more than [`KEPT`] slots, if all are free.
    pub(super) fn spare(&mut self) -> Option<Vec<Slot>> {
        // Mutation: room-of-many-senders-stays
        let is_spare = self.used == 0 && self.slots.capacity() > KEPT;
        is_spare.then(|| mem::replace(self, Slots::new()).slots)
    }

    /// Puts a sender at the end of the list. Returns its slot. The caller has made room for it.
    pub(super) fn push(&mut self, bytes: u64, waker: Waker) -> u32 {
        let slot = Slot {
            bytes,
            before: self.last,
            behind: NONE,
            waker: Some(waker),
            fate: Fate::Waits,
        };
        let at = if self.free == NONE {
            self.slots.push(slot);
            (self.slots.len() - 1) as u32
        } else {
            let at = self.free;
            self.free = mem::replace(&mut self.slots[at as usize], slot).behind;
            at
        };
        match self.last {
            NONE => self.first = at,
            last => self.slots[last as usize].behind = at,
        }
        self.last = at;
        // An empty list needs no look at each sender to lower the bound.
        self.at_most = if self.waiting == 0 {
            bytes
        } else {
            self.at_most.max(bytes)
        };
        self.waiting += 1;
        self.used += 1;
        at
    }

    /// A number of bytes that no sender in the list exceeds.
    pub(super) fn at_most(&self) -> u64 {
        self.at_most
    }

    /// Before a look at each sender in the list, which raises it anew.
    pub(super) fn forget_at_most(&mut self) {
        self.at_most = 0;
    }

    pub(super) fn raise_at_most(&mut self, bytes: u64) {
        self.at_most = self.at_most.max(bytes);
    }

    /// The first slot from `at` on, by number, whose sender is in the list, and the bytes that it
    /// waits for.
    pub(super) fn waiting_from(&self, at: u32) -> Option<(u32, u64)> {
        let mut slots = self.slots.iter().enumerate().skip(at as usize);
        slots.find_map(|(at, slot)| {
            matches!(slot.fate, Fate::Waits).then_some((at as u32, slot.bytes))
        })
    }

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Bytes that the first sender waits for.
    pub(super) fn first_bytes(&self) -> Option<u64> {
        self.first().map(|first| self.slots[first as usize].bytes)
    }

    /// Bytes that the second sender waits for.
    pub(super) fn second_bytes(&self) -> Option<u64> {
        let second = self.slots[self.first()? as usize].behind;
        (second != NONE).then(|| self.slots[second as usize].bytes)
    }

    pub(super) fn fate(&self, at: u32) -> &Fate {
        &self.slots[at as usize].fate
    }

    /// Waker of the sender; `None` once it was taken to be woken.
    pub(super) fn waker(&mut self, at: u32) -> &mut Option<Waker> {
        &mut self.slots[at as usize].waker
    }

    /// Takes the waker of the first sender.
    pub(super) fn first_waker(&mut self) -> Option<Waker> {
        self.first().and_then(|first| self.waker(first).take())
    }

    /// Ends the first sender's wait with `fate`: it leaves the list, and keeps its slot until it
    /// looks. Returns its waker.
    pub(super) fn end_first(&mut self, fate: Fate) -> Option<Waker> {
        let first = self.first()?;
        self.end(first, fate)
    }

    /// Ends the wait of a sender in the list, as [`end_first`](Self::end_first) does.
    pub(super) fn end(&mut self, at: u32, fate: Fate) -> Option<Waker> {
        self.unlink(at);
        self.slots[at as usize].fate = fate;
        self.waker(at).take()
    }

    fn unlink(&mut self, at: u32) {
        let Slot { before, behind, .. } = self.slots[at as usize];
        match before {
            NONE => self.first = behind,
            before => self.slots[before as usize].behind = behind,
        }
        // Mutation: the-last-sender-that-leaves-stays-the-last
        match behind {
            NONE => self.last = before,
            behind => self.slots[behind as usize].before = before,
        }
        self.waiting -= 1;
    }

    /// Frees the slot, and takes its sender out of the list if it is there. Returns the state of
    /// the wait, and its waker.
    pub(super) fn leave(&mut self, at: u32) -> (Fate, Option<Waker>) {
        if let Fate::Waits = self.fate(at) {
            self.unlink(at);
        }
        let slot = &mut self.slots[at as usize];
        slot.behind = mem::replace(&mut self.free, at);
        self.used -= 1;
        // Mutation: a-sender-that-leaves-is-still-known
        (mem::replace(&mut slot.fate, Fate::Free), slot.waker.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list asks for memory before a push, and gives back all beyond what it keeps once no
    /// sender has a slot.
    #[test]
    fn memory_comes_before_a_push_and_goes_when_all_are_free() {
        let mut slots = Slots::new();
        let mut grown = Vec::new();
        for bytes in 0..2 * KEPT {
            if let Some(capacity) = slots.lacks() {
                grown.push(capacity);
                drop(slots.grow(Vec::with_capacity(capacity)));
            }
            let before = slots.slots.capacity();
            slots.push(bytes as u64, Waker::noop().clone());
            assert_eq!(slots.slots.capacity(), before, "a push allocates nothing");
        }
        assert_eq!(grown, [KEPT, 2 * KEPT]);
        for at in (0..2 * KEPT as u32).rev() {
            assert!(slots.spare().is_none(), "{at} is in use");
            slots.leave(at);
        }
        assert!(
            slots
                .spare()
                .is_some_and(|spare| spare.capacity() >= 2 * KEPT)
        );
        assert!(slots.spare().is_none());
    }
}
