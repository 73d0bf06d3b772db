//! Senders that wait for room: first come, first served, with one place in the group's line for all of them.
//!
//! # Protocol
//!
//! One lock holds the list of those that wait, and the channel's *place* in the group's line: a [`ChargeFuture`] for the
//! bytes of the first. The rules:
//!
//! 1. **One place.** While the list has senders, the place is in line for the bytes of the first, or a thread has it out,
//!    or a sender is woken that has to see to it.
//! 2. **From hand to hand.** A receiver that gives bytes back, and finds the place in line with no other charge in the way
//!    ([`QueuePlace::is_served_by`]), gives them to the first. The usage does not move. The place then stands for the
//!    next one, where there is one. Else the bytes go back to the group, as those of any charge, and the line serves whose turn it
//!    is.
//! 3. **By the line.** The line decides, and wakes the place: that wakes the first, and does no more, for it may be on any
//!    thread. The first takes its bytes, and the place goes behind all that wait, for the next one. So a channel has one
//!    turn at a time among the charges of its group. Any sender that is polled meanwhile, or comes, does it for the first,
//!    and so does a receiver that gives bytes back.
//! 4. **By a sender.** Where reclaimers have to be asked or a victim chosen, or a delay follows, a sender alone sees to it,
//!    in the same way.
//! 5. **Out.** A future that is polled may run reclaimers, and one that changes or is dropped may run wakers. So a thread
//!    takes the place out of the lock for that, and no other thread does the same meanwhile. What wakes it meanwhile leaves
//!    a note. The thread puts it back for the sender that is first by then.
//! 6. **Leaving.** A send that is dropped leaves the list. The first one leaves the place to the next one. One that was served gives
//!    its bytes to the first of those that still wait, by rule 2.
//! 7. **The end.** The receiver that closes ends all waits, and the place. Those that come later end at once. A refusal
//!    that is of the group, as offline, ends all waits, too; one for its number of bytes that of the first alone.
//!
//! No wake-up is lost. Bytes that go back to the group reach the place, as any future in line: by rule 1 it is there, or
//! a thread is about to take it. The receiver's look whether a sender waits may miss one that comes just now: then the bytes
//! go back to the group. So the look orders nothing, and all else is under the lock.
//!
//! Under the lock no thread allocates, frees memory, drops a charge or a future, clones or wakes a waker: any of that may
//! run foreign code, which may send. A panic of a sender's waker ends in this module.

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use memcg::expert::{CentralStock, QueuePlace};
use memcg::{Bytes, Charge, ChargeError, ChargeFuture};

use super::SendError;
use super::slots::{Fate, Slots};

pub(super) struct Waiters {
    /// How many wait: a hint.
    waiting: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    slots: Slots,
    place: Place,
    is_closed: bool,
}

/// The channel's place in the group's line.
enum Place {
    /// There is none.
    Nowhere,
    /// For so many bytes.
    InLine { charge: ChargeFuture, bytes: u64 },
    /// The same, and a sender is to poll it.
    Due { charge: ChargeFuture, bytes: u64 },
    /// A thread has it. It was woken meanwhile, or not.
    Out { is_woken: bool },
}

/// How a wait ended.
pub(super) enum Room {
    Charged(Charge),
    /// Charged above a high: the delay is the sender's.
    Delayed(Box<ChargeFuture>),
}

/// One that was served.
struct Handed {
    waker: Option<Waker>,
    /// What is left of the charge.
    rest: Option<Charge>,
    /// The place, where it is to stand for another number of bytes, or for none.
    place: Option<(ChargeFuture, u64)>,
}

impl State {
    /// Hands the charge to the first one (rule 2). `Err`: it is not for those that wait.
    fn hand_over(&mut self, mut charge: Charge) -> Result<Handed, Charge> {
        let (Some(bytes), Place::InLine { charge: waits, bytes: asked }) = (self.slots.first_bytes(), &self.place)
        else {
            return Err(charge);
        };
        if *asked != bytes || !waits.is_served_by(&charge) {
            return Err(charge);
        }
        let (part, rest) = match charge.bytes() == bytes {
            true => (charge, None),
            false => match charge.split(Bytes(bytes)) {
                Ok(part) => (part, Some(charge)),
                Err(_) => return Err(charge),
            },
        };
        let waker = self.slots.end_first(Fate::Served(part));
        let place = if self.slots.first_bytes() == Some(bytes) { None } else { self.take_place() };
        Ok(Handed { waker, rest, place })
    }

    /// Takes the place out where it is in line, woken or not.
    fn take_place(&mut self) -> Option<(ChargeFuture, u64)> {
        let is_woken = match self.place {
            Place::Nowhere | Place::Out { .. } => return None,
            Place::InLine { .. } => false,
            Place::Due { .. } => true,
        };
        match mem::replace(&mut self.place, Place::Out { is_woken }) {
            Place::InLine { charge, bytes } | Place::Due { charge, bytes } => Some((charge, bytes)),
            Place::Nowhere | Place::Out { .. } => None,
        }
    }

    /// A sender has to see to the place: takes the waker of the first.
    fn first_sees_to_it(&mut self) -> Option<Waker> {
        if self.is_closed { None } else { self.slots.first_waker() }
    }

    /// Takes the place out, or the duty to make one, where a sender has to see to it.
    fn take_duty(&mut self) -> Option<Option<(ChargeFuture, u64)>> {
        let is_due = matches!(self.place, Place::Nowhere | Place::Due { .. });
        if self.is_closed || !is_due || self.slots.waiting() == 0 {
            return None;
        }
        let taken = self.take_place();
        self.place = Place::Out { is_woken: false };
        Some(taken)
    }

    /// Whether the place, which is out, was woken since this was asked last.
    fn take_note(&mut self) -> bool {
        if let Place::Out { is_woken } = &mut self.place { mem::take(is_woken) } else { false }
    }
}

impl Waiters {
    pub(super) fn new() -> Arc<Waiters> {
        let state = State { slots: Slots::new(), place: Place::Nowhere, is_closed: false };
        Arc::new(Waiters { waiting: AtomicUsize::new(0), state: Mutex::new(state) })
    }

    /// Whether no sender waits, as it seems.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Works under the lock.
    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = work(&mut state);
        self.waiting.store(state.slots.waiting(), Ordering::Relaxed);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `bytes` of the group, which is the same for all.
    pub(super) fn wait<'a>(self: &'a Arc<Self>, stock: &'a CentralStock, bytes: Bytes) -> Wait<'a> {
        Wait { waiters: self, stock, bytes: bytes.0, at: None }
    }

    /// Gives a charge to those that wait, or back.
    #[inline]
    pub(super) fn give_back(self: &Arc<Self>, stock: &CentralStock, charge: Charge) {
        if self.is_empty() {
            return stock.give_back(charge);
        }
        if let Some(charge) = self.hand_over(charge) {
            self.take_turn();
            stock.give_back(charge);
        }
    }

    /// Gives the first what the line has decided, where that has not looked yet (rule 3).
    fn take_turn(self: &Arc<Self>) {
        let due = self.with(|state| if let Place::Due { .. } = state.place { state.take_place() } else { None });
        let Some((charge, bytes)) = due else { return };
        let waker = Waker::from(Arc::clone(self));
        let mut out = Out::new(self, charge, bytes);
        self.with(State::take_note);
        while out.take_decided(&waker) {
            if !self.with(State::take_note) {
                return out.put_back();
            }
        }
        // A sender sees to it.
        self.with(|state| state.place = Place::Out { is_woken: true });
        out.put_back();
    }

    /// Returns what those that wait do not get.
    fn hand_over(&self, charge: Charge) -> Option<Charge> {
        let mut left = Some(charge);
        while let Some(charge) = left.take() {
            let Handed { waker, rest, place } = match self.with(|state| state.hand_over(charge)) {
                Ok(handed) => handed,
                Err(charge) => return Some(charge),
            };
            wake(waker);
            if let Some((charge, bytes)) = place {
                Out::new(self, charge, bytes).put_back();
            }
            left = rest;
        }
        None
    }

    /// The receiver has closed: all waits end.
    pub(super) fn close(&self) {
        let place = self.with(|state| {
            state.is_closed = true;
            state.take_place()
        });
        self.end_all(|| Fate::Closed);
        if let Some((charge, bytes)) = place {
            drop(Out::new(self, charge, bytes));
        }
    }

    /// Ends the waits of all that wait by now.
    fn end_all(&self, mut fate: impl FnMut() -> Fate) {
        let mut left = self.with(|state| state.slots.waiting());
        while left > 0 {
            let fate = fate();
            let ended = self.with(|state| match state.slots.first() {
                Some(_) => Ok(state.slots.end_first(fate)),
                None => Err(fate),
            });
            match ended {
                Ok(waker) => wake(waker),
                Err(_) => return,
            }
            left -= 1;
        }
    }

    /// Gives what the place has got, for `bytes`, to the first; what none wants goes back.
    fn deliver(&self, bytes: u64, ended: Result<Fate, ChargeError>) {
        let fate = match ended {
            Ok(fate) => fate,
            Err(refusal @ ChargeError::Limit(_)) => Fate::Refused(Box::new(refusal)),
            Err(refusal) => return self.end_all(|| Fate::Refused(Box::new(refusal.clone()))),
        };
        let ended = self.with(|state| match state.slots.first_bytes() {
            Some(first) if first == bytes => Ok(state.slots.end_first(fate)),
            _ => Err(fate),
        });
        match ended {
            Ok(waker) => wake(waker),
            Err(unwanted) => drop(unwanted),
        }
    }

    /// Sees to the place, which this thread has taken out: polls it, or a new one, until it is in line for the first.
    fn see_to(self: &Arc<Self>, stock: &CentralStock, taken: Option<(ChargeFuture, u64)>) {
        let waker = Waker::from(Arc::clone(self));
        let mut out = Out { waiters: self, place: taken, is_out: true };
        loop {
            let first = self.with(|state| {
                state.take_note();
                if state.is_closed { None } else { state.slots.first_bytes() }
            });
            let Some(bytes) = first else { return };
            if out.take_decided(&waker) {
                if out.put() {
                    return;
                }
                continue;
            }
            let kept = out.place.take().and_then(|(mut charge, asked)| {
                let is_for_it = asked == bytes || charge.wait_for(Bytes(bytes));
                is_for_it.then_some(charge)
            });
            let charge = kept.unwrap_or_else(|| stock.group().charge_async(Bytes(bytes)));
            let (charge, _) = out.place.insert((charge, bytes));
            match Pin::new(&mut *charge).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(ended) => {
                    out.place = None;
                    self.deliver(bytes, ended.map(Fate::Served));
                }
                Poll::Pending if !charge.waits_in_line() => {
                    let delayed = out.place.take().map(|(charge, _)| Box::new(charge));
                    delayed.into_iter().for_each(|delayed| self.deliver(bytes, Ok(Fate::Delayed(delayed))));
                }
                Poll::Pending if out.put() => return,
                Poll::Pending => {}
            }
        }
    }
}

/// Calls or drops a sender's waker. Its panic ends here, as in the group's line: the others are woken, and the place is
/// put back.
fn call(foreign: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(foreign)) {
        // Its drop may panic, too.
        mem::forget(payload);
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        call(|| waker.wake());
    }
}

/// The waker of the place in line (rule 3). It holds no bytes, so a send that is dropped meanwhile gives back what it has
/// got.
impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        wake(self.with(|state| match mem::replace(&mut state.place, Place::Nowhere) {
            Place::InLine { charge, bytes } => {
                state.place = Place::Due { charge, bytes };
                state.first_sees_to_it()
            }
            Place::Out { .. } => {
                state.place = Place::Out { is_woken: true };
                None
            }
            other => {
                state.place = other;
                None
            }
        }));
    }
}

/// The place, which a thread has taken out. Where it is dropped so, as by a panic, there is none any more.
struct Out<'a> {
    waiters: &'a Waiters,
    place: Option<(ChargeFuture, u64)>,
    is_out: bool,
}

impl<'a> Out<'a> {
    fn new(waiters: &'a Waiters, charge: ChargeFuture, bytes: u64) -> Self {
        Out { waiters, place: Some((charge, bytes)), is_out: true }
    }

    /// Gives what the line has decided to the first. The place is in line for the next one then, or nowhere. False: a
    /// sender has to see to it.
    fn take_decided(&mut self, waker: &Waker) -> bool {
        let Some((charge, bytes)) = &mut self.place else { return false };
        // Where the first has other bytes by now, the place is for it.
        let next = self.waiters.with(|state| match state.slots.first_bytes() {
            Some(first) if first == *bytes => state.slots.second_bytes(),
            first => first,
        });
        let Some(ended) = charge.take_decided(next.map(|bytes| (Bytes(bytes), waker))) else { return false };
        let served = mem::replace(bytes, next.unwrap_or_default());
        if !charge.waits_in_line() {
            self.place = None;
        }
        self.waiters.deliver(served, ended.map(Fate::Served));
        true
    }

    /// Puts it back in line, where it is for the first by now, and was not woken meanwhile.
    fn put(&mut self) -> bool {
        let Some((charge, bytes)) = self.place.take() else { return false };
        self.place = self.waiters.with(|state| {
            let is_quiet = matches!(state.place, Place::Out { is_woken: false }) && !state.is_closed;
            if !is_quiet || state.slots.first_bytes() != Some(bytes) {
                return Some((charge, bytes));
            }
            state.place = Place::InLine { charge, bytes };
            None
        });
        self.is_out = self.place.is_some();
        !self.is_out
    }

    /// Puts it back for the first; where it was woken, a sender sees to it. It is dropped where none waits, or where the
    /// line has decided about another number of bytes.
    fn put_back(mut self) {
        while let Some((charge, bytes)) = self.place.take() {
            let (waker, wanted) = self.waiters.with(|state| {
                let wanted = if state.is_closed { None } else { state.slots.first_bytes() };
                if wanted != Some(bytes) {
                    self.place = Some((charge, bytes));
                    return (None, wanted);
                }
                let is_woken = state.take_note();
                state.place = if is_woken { Place::Due { charge, bytes } } else { Place::InLine { charge, bytes } };
                self.is_out = false;
                (if is_woken { state.first_sees_to_it() } else { None }, None)
            });
            wake(waker);
            let (Some(wanted), Some((charge, bytes))) = (wanted, &mut self.place) else { return };
            if !charge.wait_for(Bytes(wanted)) {
                return;
            }
            *bytes = wanted;
        }
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        if !self.is_out {
            return;
        }
        // It leaves the line, without the lock.
        drop(self.place.take());
        wake(self.waiters.with(|state| {
            state.place = Place::Nowhere;
            state.first_sees_to_it()
        }));
    }
}

/// A sender that waits. Dropped, it leaves the list.
pub(super) struct Wait<'a> {
    waiters: &'a Arc<Waiters>,
    stock: &'a CentralStock,
    bytes: u64,
    /// Its number, once it is in the list.
    at: Option<u32>,
}

/// What one that looks finds.
enum Look {
    Ended(Fate),
    Waits,
    /// It has to see to the place, which is out.
    Duty(Option<(ChargeFuture, u64)>),
}

impl Wait<'_> {
    /// Goes into the list.
    fn enter(&mut self, waker: &Waker) -> Look {
        let mut waker = Some(waker.clone());
        loop {
            let entered = self.waiters.with(|state| {
                if state.is_closed {
                    return Ok(Look::Ended(Fate::Closed));
                }
                if let Some(lacks) = state.slots.lacks() {
                    return Err(lacks);
                }
                self.at = waker.take().map(|waker| state.slots.push(self.bytes, waker));
                Ok(state.take_duty().map_or(Look::Waits, Look::Duty))
            });
            match entered {
                Ok(look) => return look,
                Err(lacks) => {
                    let larger = Vec::with_capacity(lacks);
                    drop(self.waiters.with(|state| state.slots.grow(larger)));
                }
            }
        }
    }

    /// Looks how the wait stands. Until it ends, its end wakes `waker`.
    fn look(&mut self, at: u32, waker: &Waker) -> Look {
        let mut other = None;
        loop {
            let looked = self.waiters.with(|state| {
                if !matches!(state.slots.fate(at), Fate::Waits) {
                    let (fate, known) = state.slots.leave(at);
                    return Some((Look::Ended(fate), known, state.slots.spare()));
                }
                let known = state.slots.waker(at);
                if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
                    // It is cloned and dropped without the lock.
                    mem::swap(known, other.as_mut()?);
                }
                Some((state.take_duty().map_or(Look::Waits, Look::Duty), None, None))
            });
            match looked {
                Some((look, ..)) => {
                    if let Look::Ended(_) = look {
                        self.at = None;
                    }
                    if let Some(Some(old)) = other {
                        call(|| drop(old));
                    }
                    return look;
                }
                None => other = Some(Some(waker.clone())),
            }
        }
    }

    /// Leaves the list.
    fn leave(&mut self) {
        let Some(at) = self.at.take() else { return };
        let ((fate, known), place, waker, spare) = self.waiters.with(|state| {
            let is_first = state.slots.first() == Some(at);
            let left = state.slots.leave(at);
            let (mut place, mut waker) = (None, None);
            match &state.place {
                Place::Nowhere if is_first => waker = state.first_sees_to_it(),
                Place::InLine { bytes, .. } if state.slots.first_bytes() == Some(*bytes) => {}
                _ if is_first => place = state.take_place(),
                _ => {}
            }
            (left, place, waker, state.slots.spare())
        });
        drop(spare);
        if let Some(known) = known {
            call(|| drop(known));
        }
        wake(waker);
        if let Some((charge, bytes)) = place {
            Out::new(self.waiters, charge, bytes).put_back();
        }
        if let Fate::Served(charge) = fate {
            drop(self.waiters.hand_over(charge));
        }
    }
}

impl Future for Wait<'_> {
    type Output = Result<Room, SendError<()>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = context.waker();
        loop {
            let look = match self.at {
                None => self.enter(waker),
                Some(at) => self.look(at, waker),
            };
            return Poll::Ready(match look {
                Look::Waits => return Poll::Pending,
                Look::Duty(taken) => {
                    self.waiters.see_to(self.stock, taken);
                    continue;
                }
                Look::Ended(Fate::Served(charge)) => Ok(Room::Charged(charge)),
                Look::Ended(Fate::Delayed(charge)) => Ok(Room::Delayed(charge)),
                Look::Ended(Fate::Refused(refusal)) => Err(SendError::Refused((), *refusal)),
                Look::Ended(Fate::Closed | Fate::Waits | Fate::Free) => Err(SendError::Closed(())),
            });
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
