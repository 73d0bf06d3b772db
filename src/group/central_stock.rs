//! Charges that one thread makes and another gives back, near a limit: what a channel needs.

use std::mem::ManuallyDrop;

use super::charge::Charge;
use super::charge_with::{OnFull, charge_slow};
use super::handle::Group;
use crate::counter::central;
use crate::counter::central_word::CentralWord;
use crate::counter::object::{Counter, HeaderRef};
use crate::sync::Ordering;
use crate::thread::context;
use crate::thread::slot::Consume;
use crate::units::{Bytes, IntoBytes};

/// Credit of a group that all its threads share. It is for bytes that one thread charges and
/// another gives back, as the two ends of a channel do.
///
/// A thread keeps credit of its own as long as there is room. Near a limit it keeps none, and each
/// charge and each drop writes the usage of the group and of all groups above it. If two threads do
/// so in turn, the cache line of each level moves back and forth between their processors. With a
/// central stock the consumer leaves the bytes charged, as credit, and the producer takes them from
/// there: a single word moves.
///
/// The credit is part of [`usage`](Group::usage) and [`stocked`](crate::PageCounter::stocked), not
/// of [`live`](Group::live). No charge fails because of it: a charge that lacks bytes drains it
/// like all other credit, and so do a lowered max and a group that goes offline. [`OnFull::Now`],
/// which drains nothing else, takes it as well, unless another thread holds the tree's lock. The
/// stock keeps nothing while a charge waits at the group or above it, nor inside a reclaimer. It
/// neither keeps nor gives anything while one of these groups is above a limit, or is [only
/// observed](crate::Group::set_observe_only). After a charge or a limit has closed the stock, it
/// lets eight charges go up the tree before it keeps another.
///
/// The stock holds at most one [batch](crate::RuntimeBuilder::batch), or a quarter of the root's
/// [budget](crate::RuntimeBuilder::budget) if that is less, and never more than 4 GiB; with a batch
/// of 0 it holds nothing. All values made for one group are the same stock. A value keeps the
/// group's object.
///
/// **Cost**: that of [`Group::charge`] if the thread has a stock of its own, and otherwise one
/// exchange of a shared word. While any group of the tree is above a limit, a load for each group
/// above this one comes on top. If the stock has too little, the charge walks.
///
/// Source: the transfer cache of TCMalloc, between the caches of threads.
///
/// ```
/// use memcg::CentralStock;
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let queue = runtime.root().create("queue", Limits::new().max(1000))?;
/// let stock = CentralStock::of(&queue);
/// let message = stock.charge_if_room(600).ok_or("600 fit")?;
/// std::thread::spawn({
///     let stock = stock.clone();
///     move || stock.give_back(message) // the consumer
/// })
/// .join()
/// .unwrap();
/// assert_eq!((queue.live(), queue.usage(), stock.credit()), (0, 600, 600));
/// let next = stock.charge_if_room(500).ok_or("out of the stock")?;
/// assert_eq!((next.bytes(), queue.usage(), stock.credit()), (500, 600, 100));
/// let _other = queue.charge(500)?; // drains what it lacks
/// assert_eq!((queue.live(), stock.credit()), (1000, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CentralStock {
    group: Group,
    stock: &'static CentralWord,
}

impl CentralStock {
    /// Returns the central stock of `group`.
    ///
    /// The call takes the tree's lock, for which it may wait as long as a drain takes: make the
    /// value once and keep it. The first call for a group allocates one or two cache lines, which
    /// later groups reuse ([`Runtime::own_bytes`](crate::Runtime::own_bytes) counts them).
    pub fn of(group: &Group) -> CentralStock {
        CentralStock {
            group: group.clone(),
            stock: central::get_or_make(group.first()),
        }
    }

    /// Charges `bytes` if this thread's own stock or this one has them, or if there is room for
    /// them at each level. It never blocks. As with [`OnFull::IfRoom`], it stays below each high,
    /// and a refusal is not counted.
    ///
    /// If the stock has a part of the bytes, the call takes that part and walks for the rest. If
    /// the rest is refused, it gives the part back, and wakers of charges in line may run on this
    /// thread. It does not look for credit of other threads, so `None` means only that the bytes
    /// are not at hand. A caller that needs them goes on with [`Group::charge`] or
    /// [`Group::charge_async`], which drain all credit.
    #[inline]
    pub fn charge_if_room(&self, bytes: impl IntoBytes) -> Option<Charge> {
        let Bytes(bytes) = bytes.into_bytes();
        let header = self.group.header;
        let counter = self.group.first();
        if self.is_near() && central::take(counter, self.stock, bytes) {
            return Some(Charge::new(header, bytes));
        }
        match header.consume_open(bytes) {
            Consume::Hit => Some(Charge::new(header, bytes)),
            Consume::Miss if self.is_near() => self.charge_near(bytes),
            missed => charge_if_room_slow(header, bytes, missed),
        }
    }

    /// Takes what is here, and walks for what is missing.
    fn charge_near(&self, bytes: u64) -> Option<Charge> {
        let header = self.group.header;
        let counter = self.group.first();
        let credit = self.credit().min(bytes);
        // A producer that is ahead finds a level full at most of its looks: some loads, and no
        // walk. A walk that is refused would close the stock.
        let is_full = |level: &Counter| level.room(level.admits()) < bytes - credit;
        if counter.path_to_root().any(is_full) && !context::in_reclaim() {
            return None;
        }
        if !central::take(counter, self.stock, credit) {
            return charge_if_room_slow(header, bytes, Consume::Miss);
        }
        let mut charge = Charge::new(header, credit);
        if credit < bytes {
            let Some(missing) = charge_if_room_slow(header, bytes - credit, Consume::Miss) else {
                self.give_back(charge);
                return None;
            };
            charge.grown(ManuallyDrop::new(missing).bytes());
        }
        Some(charge)
    }

    /// Gives a charge back, and keeps its bytes as credit if no other charge is short of them.
    /// Otherwise it drops the charge, which may call listeners and wakers on this thread: a charge
    /// of another group, of a group that [covers](crate::Limits::cover_allocations), or one that a
    /// reclaimer gives back. It never blocks.
    #[inline]
    pub fn give_back(&self, charge: Charge) {
        let charge = ManuallyDrop::new(charge);
        let header = charge.header;
        let bytes = charge.bytes;
        // Bytes that reclaim frees go up the tree at once.
        let is_ours = header == self.group.header && self.is_near() && !context::in_reclaim();
        if !(is_ours && central::put(self.group.first(), self.stock, bytes)) {
            drop(ManuallyDrop::into_inner(charge));
        }
    }

    /// A limit is near: the stocks of threads are closed, so each of their charges would be a walk.
    #[inline]
    fn is_near(&self) -> bool {
        // Relaxed: where they open or close meanwhile, either way is right.
        self.group.header.capacity.load(Ordering::Relaxed) == 0
    }

    /// Closes the stock until the next charge is given back, and returns the bytes of credit that
    /// it had. If the stock is open, the call takes the tree's lock, for which it may wait as long
    /// as a drain takes.
    ///
    /// Call it at the end of a channel. There is no need to before that: a charge that is short of
    /// the credit takes it back. A stock that has not changed for two visits of
    /// [`Runtime::release_idle_credit`](crate::Runtime::release_idle_credit) or of a
    /// [flusher](crate::Runtime::start_flusher) closes by itself, and frees its part of the budget.
    ///
    /// ```
    /// # use memcg::{CentralStock, Limits, Runtime};
    /// # let runtime = Runtime::builder().build()?;
    /// # let queue = runtime.root().create("queue", Limits::new().max(1000))?;
    /// let stock = CentralStock::of(&queue);
    /// let message = stock.charge_if_room(600).ok_or("600 fit")?;
    /// stock.give_back(message); // stays charged, as credit
    /// assert_eq!((stock.release_credit(), stock.credit(), queue.usage()), (600, 0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release_credit(&self) -> u64 {
        central::release_credit(self.group.first())
    }

    /// Returns the credit in the stock, in bytes. One load; an estimate while other threads charge.
    pub fn credit(&self) -> u64 {
        self.stock.credit()
    }

    /// Returns the group whose stock this is.
    pub fn group(&self) -> &Group {
        &self.group
    }
}

#[cold]
#[inline(never)]
fn charge_if_room_slow(header: HeaderRef, bytes: u64, missed: Consume) -> Option<Charge> {
    charge_slow(header, bytes, missed, OnFull::IfRoom)
        .ok()
        .map(|()| Charge::new(header, bytes))
}

debug_figures!(CentralStock, |stock| group: stock.group, credit: stock.credit());
