//! Senders that wait for room, served first come, first served. All of them have one place in the
//! group's line.
//!
//! # Protocol
//!
//! One lock guards the list of senders that wait, and the channel's *place* in the group's line: a
//! [`ChargeFuture`] for the bytes of the first sender. The rules:
//!
//! 1. **One place.** While senders wait, the place is in line for the bytes of the first one, or a
//!    thread has taken it out, or a sender is woken that has to see to it.
//! 2. **From hand to hand.** A receiver gives the bytes of a message back. If the place is in line
//!    and no other charge is in the way ([`ChargeFuture::is_served_by`]), the receiver gives them to
//!    the first sender, and usage does not move. The place then waits for the next sender, if there
//!    is one. Otherwise the bytes go back to the group, and the line serves the charge whose turn
//!    it is.
//! 3. **By the line.** The line decides, on any thread, and wakes the place. That only wakes the
//!    first sender. The first sender takes its bytes, and the place goes behind all charges that
//!    wait, for the next sender. So a channel has one turn at a time among the charges of its
//!    group. A sender that is polled or comes meanwhile does this for the first sender, and so does
//!    a receiver that gives bytes back.
//! 4. **By a sender.** If reclaimers have to be asked, a victim has to be chosen, or a delay
//!    follows, only a sender sees to it, in the same way.
//! 5. **Out.** The poll of the future may run reclaimers; its change or drop may run wakers. So a
//!    thread takes the place out of the lock for that, and no other thread does so meanwhile. A
//!    wake of the place meanwhile leaves a note. The thread puts the place back for the sender that
//!    is first then.
//! 6. **Leaving.** A send that is dropped leaves the list. The first sender leaves the place to the
//!    next one. A sender that was served gives its bytes to the first one that still waits, by rule
//!    2.
//! 7. **The end.** A receiver that closes ends all waits, and the place. A later send ends at once.
//!    A refusal of the group as such, as when it is offline, ends all waits, too; a refusal of a
//!    number of bytes ends the wait of the first sender alone.
//! 8. **What can never fit.** A max that falls wakes the place. Before the place is in line again,
//!    whoever sees to it ends the waits that no max admits any more, wherever they are in the list.
//!    A sender that comes enters the list first, and then looks whether its own bytes can ever fit:
//!    a max that falls before that look is seen by it, and one that falls later finds the sender in
//!    the list.
//!
//! No wake-up is lost. Bytes that go back to the group reach the place as they reach any future in
//! line: by rule 1 the place is there, or a thread is about to put it there. A receiver that looks
//! for senders may miss one that comes at that moment: then the bytes go back to the group. So that
//! look orders nothing, and the lock orders all else.
//!
//! Under the lock no thread allocates, frees memory, drops a charge or a future, or clones or wakes
//! a waker: each of these may run foreign code, which may send. A panic of a sender's waker ends in
//! this module.

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use memcg::CentralStock;
use memcg::{Bytes, Charge, ChargeError, ChargeFuture};

use super::SendError;
use super::slots::{Fate, Slots};

pub(super) struct Waiters {
    /// Number of senders that wait: a hint.
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
    /// The channel has no place.
    Nowhere,
    /// The future waits for `bytes`.
    InLine { charge: ChargeFuture, bytes: u64 },
    /// The future waits for `bytes`, and a sender is to poll it.
    Due { charge: ChargeFuture, bytes: u64 },
    /// A thread has the place. `is_woken`: it was woken meanwhile.
    Out { is_woken: bool },
}

/// Room that a wait has got.
pub(super) enum Room {
    Charged(Charge),
    /// The send is charged above a high, and the sender waits for the delay.
    Delayed(Box<ChargeFuture>),
}

/// Result of a charge that was handed to a sender.
struct Handed {
    waker: Option<Waker>,
    /// Bytes of the charge that the sender did not need.
    rest: Option<Charge>,
    /// The place, if it has to wait for another number of bytes, or for none.
    place: Option<(ChargeFuture, u64)>,
}

impl State {
    /// Hands the charge to the first sender (rule 2). `Err`: the charge is not for the senders that
    /// wait.
    fn hand_over(&mut self, mut charge: Charge) -> Result<Handed, Charge> {
        let (
            Some(bytes),
            Place::InLine {
                charge: waits,
                bytes: asked,
            },
        ) = (self.slots.first_bytes(), &self.place)
        else {
            return Err(charge);
        };
        // Not if the place still asks for the bytes of a sender that has gone, nor if the line
        // would give these bytes to another charge.
        if *asked != bytes || !waits.is_served_by(&charge) {
            return Err(charge);
        }
        let (part, rest) = if charge.bytes() == bytes {
            (charge, None)
        } else {
            match charge.split(Bytes(bytes)) {
                Ok(part) => (part, Some(charge)),
                // It has as many, or it would not serve the place.
                Err(_) => return Err(charge),
            }
        };
        let waker = self.slots.end_first(Fate::Served(part));
        // The next sender asks for as much, so the place can stay in line for it as it is.
        // Mutation: a-place-asks-for-what-the-served-one-wanted
        let place = if self.slots.first_bytes() == Some(bytes) {
            None
        } else {
            self.take_place()
        };
        Ok(Handed { waker, rest, place })
    }

    /// Takes the place out if it is in line, woken or not.
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

    /// Takes the waker of the first sender, which has to see to the place.
    fn first_sees_to_it(&mut self) -> Option<Waker> {
        if self.is_closed {
            None
        } else {
            self.slots.first_waker()
        }
    }

    /// If a sender has to see to the place, takes the place out, or the duty to make one
    /// (`Some(None)`).
    fn take_duty(&mut self) -> Option<Option<(ChargeFuture, u64)>> {
        let is_due = matches!(self.place, Place::Nowhere | Place::Due { .. });
        if self.is_closed || !is_due || self.slots.waiting() == 0 {
            return None;
        }
        let taken = self.take_place();
        self.place = Place::Out { is_woken: false };
        Some(taken)
    }

    /// Takes the note of a place that is out: true if it was woken since the last call.
    fn take_note(&mut self) -> bool {
        if let Place::Out { is_woken } = &mut self.place {
            mem::take(is_woken)
        } else {
            false
        }
    }
}

impl Waiters {
    pub(super) fn new() -> Arc<Waiters> {
        let state = State {
            slots: Slots::new(),
            place: Place::Nowhere,
            is_closed: false,
        };
        Arc::new(Waiters {
            waiting: AtomicUsize::new(0),
            state: Mutex::new(state),
        })
    }

    /// True if no sender seems to wait: a sender that comes now may be missed.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Runs `work` under the lock, and then updates the hint.
    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = work(&mut state);
        self.waiting.store(state.slots.waiting(), Ordering::Relaxed);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a wait for `bytes` of the group. All waits of a channel are in the same group.
    pub(super) fn wait<'a>(self: &'a Arc<Self>, stock: &'a CentralStock, bytes: Bytes) -> Wait<'a> {
        Wait {
            waiters: self,
            stock,
            bytes: bytes.0,
            at: None,
        }
    }

    /// Gives a charge to the senders that wait, and to the group what they do not take.
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

    /// Gives the first sender the charge that the line has decided about, if the sender has not
    /// looked yet (rule 3).
    fn take_turn(self: &Arc<Self>) {
        let due = self.with(|state| {
            if let Place::Due { .. } = state.place {
                state.take_place()
            } else {
                None
            }
        });
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

    /// Hands a charge to the senders that wait. Returns the part that they do not get.
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

    /// Ends all waits, and the place: the receiver has closed.
    pub(super) fn close(&self) {
        let place = self.with(|state| {
            state.is_closed = true;
            state.take_place()
        });
        // Mutation: a-closed-channel-leaves-its-senders
        self.end_all(|| Fate::Closed);
        if let Some((charge, bytes)) = place {
            drop(Out::new(self, charge, bytes));
        }
    }

    /// Ends the waits of all senders that wait now.
    fn end_all(&self, mut fate: impl FnMut() -> Fate) {
        // As many as wait now: senders that come meanwhile have to look for themselves, or this
        // might not end.
        let mut left = self.with(|state| state.slots.waiting());
        while left > 0 {
            // Without the lock: a refusal that is cloned allocates.
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

    /// Gives the first sender the result that the place has got for `bytes`. A result that no
    /// sender wants is dropped.
    fn deliver(&self, bytes: u64, ended: Result<Fate, ChargeError>) {
        let fate = match ended {
            Ok(fate) => fate,
            Err(refusal) if refusal.is_over_limit() && !refusal.is_in_reclaim() => {
                Fate::Refused(Box::new(refusal))
            }
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

    /// Ends the waits that no max of the group's path admits any more (rule 8). It looks at each of
    /// them only if the largest one cannot be served.
    fn refuse_too_large(&self, stock: &CentralStock) {
        let at_most = self.with(|state| Bytes(state.slots.at_most()));
        if stock.group().charge_async(at_most).is_servable(at_most) {
            return;
        }
        // Each sender that stays, and each that comes meanwhile, raises it anew.
        self.with(|state| state.slots.forget_at_most());
        let mut next = 0;
        while let Some((at, bytes)) = self.with(|state| state.slots.waiting_from(next)) {
            next = at + 1;
            let Some(refusal) = refusal(stock, bytes) else {
                // Mutation: senders-that-stay-are-not-counted-anew
                self.with(|state| state.slots.raise_at_most(bytes));
                continue;
            };
            // Another sender may have the slot by now: one that asks for as much is refused as well.
            let fate = Fate::Refused(Box::new(refusal));
            let ended = self.with(|state| match state.slots.waiting_from(at) {
                Some(found) if found == (at, bytes) => Ok(state.slots.end(at, fate)),
                _ => Err(fate),
            });
            match ended {
                Ok(waker) => wake(waker),
                Err(unwanted) => drop(unwanted),
            }
        }
    }

    /// Polls the place that this thread has taken out, or a new one, until the place is in line for
    /// the first sender.
    fn see_to(self: &Arc<Self>, stock: &CentralStock, taken: Option<(ChargeFuture, u64)>) {
        let waker = Waker::from(Arc::clone(self));
        let mut out = Out {
            waiters: self,
            place: taken,
            is_out: true,
        };
        loop {
            let first = self.with(|state| {
                state.take_note();
                if state.is_closed {
                    None
                } else {
                    state.slots.first_bytes()
                }
            });
            let Some(bytes) = first else { return };
            if out.take_decided(&waker) {
                if out.put() {
                    return;
                }
                continue;
            }
            self.refuse_too_large(stock);
            let kept = out.place.take().and_then(|(mut charge, asked)| {
                // With another number it keeps its place, unless the line has decided about the old
                // one meanwhile.
                let is_for_it = asked == bytes || charge.wait_for(Bytes(bytes));
                is_for_it.then_some(charge)
            });
            let charge =
                kept.unwrap_or_else(|| stock.group().charge_async(Bytes(bytes)).for_queue());
            let (charge, _) = out.place.insert((charge, bytes));
            match Pin::new(&mut *charge).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(ended) => {
                    out.place = None;
                    self.deliver(bytes, ended.map(Fate::Served));
                }
                // It is charged, and a delay above a high is left, which the sender takes itself:
                // the place is free for the next one.
                Poll::Pending if !charge.waits_in_line() => {
                    let delayed = out.place.take().map(|(charge, _)| Box::new(charge));
                    delayed
                        .into_iter()
                        .for_each(|delayed| self.deliver(bytes, Ok(Fate::Delayed(delayed))));
                }
                Poll::Pending if out.put() => return,
                Poll::Pending => {}
            }
        }
    }
}

/// The refusal of so many bytes, if a max can never admit them.
fn refusal(stock: &CentralStock, bytes: u64) -> Option<ChargeError> {
    let mut charge = stock.group().charge_async(Bytes(bytes));
    if charge.is_servable(Bytes(bytes)) {
        return None;
    }
    // If the max has risen meanwhile, the charge is made, or waits, and its drop takes that back.
    match Pin::new(&mut charge).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Err(refusal)) => Some(refusal),
        _ => None,
    }
}

/// Calls or drops a sender's waker. Its panic ends here, as in the group's line: the others are
/// woken, and the place is put back.
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

/// The waker of the place in line (rule 3). It holds no bytes, so a send that is dropped meanwhile
/// gives its bytes back.
impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        wake(self.with(
            |state| match mem::replace(&mut state.place, Place::Nowhere) {
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
            },
        ));
    }
}

/// The place while a thread has it out. If this value is dropped with the place, as by a panic, the
/// channel has none any more.
struct Out<'a> {
    waiters: &'a Waiters,
    place: Option<(ChargeFuture, u64)>,
    is_out: bool,
}

impl<'a> Out<'a> {
    fn new(waiters: &'a Waiters, charge: ChargeFuture, bytes: u64) -> Self {
        Out {
            waiters,
            place: Some((charge, bytes)),
            is_out: true,
        }
    }

    /// Gives the decision of the line to the first sender. Then the place is in line for the next
    /// sender, or gone. False: a sender has to see to the place.
    fn take_decided(&mut self, waker: &Waker) -> bool {
        let Some((charge, bytes)) = &mut self.place else {
            return false;
        };
        // If the first sender now waits for other bytes, the place is for that sender.
        let next = self.waiters.with(|state| match state.slots.first_bytes() {
            Some(first) if first == *bytes => state.slots.second_bytes(),
            first => first,
        });
        let Some(ended) = charge.take_decided(next.map(|bytes| (Bytes(bytes), waker))) else {
            return false;
        };
        let served = mem::replace(bytes, next.unwrap_or_default());
        if charge.waits_in_line() {
            // A max that fell before the place was in line again has woken no one (rule 8).
            let at_most = self.waiters.with(|state| Bytes(state.slots.at_most()));
            // Mutation: a-max-that-fell-meanwhile-ends-no-wait
            if !charge.is_servable(at_most) {
                self.waiters
                    .with(|state| state.place = Place::Out { is_woken: true });
            }
        } else {
            self.place = None;
        }
        self.waiters.deliver(served, ended.map(Fate::Served));
        true
    }

    /// Puts the place back in line if it is for the first sender and was not woken meanwhile.
    /// False: the caller still has it.
    fn put(&mut self) -> bool {
        let Some((charge, bytes)) = self.place.take() else {
            return false;
        };
        self.place = self.waiters.with(|state| {
            let is_quiet =
                matches!(state.place, Place::Out { is_woken: false }) && !state.is_closed;
            if !is_quiet || state.slots.first_bytes() != Some(bytes) {
                return Some((charge, bytes));
            }
            state.place = Place::InLine { charge, bytes };
            None
        });
        self.is_out = self.place.is_some();
        !self.is_out
    }

    /// Puts the place back for the first sender, and wakes that sender if the place was woken. The
    /// place is dropped if no sender waits, or if the line has decided about another number of
    /// bytes.
    fn put_back(mut self) {
        while let Some((charge, bytes)) = self.place.take() {
            let (waker, wanted) = self.waiters.with(|state| {
                let wanted = if state.is_closed {
                    None
                } else {
                    state.slots.first_bytes()
                };
                if wanted != Some(bytes) {
                    self.place = Some((charge, bytes));
                    return (None, wanted);
                }
                let is_woken = state.take_note();
                state.place = if is_woken {
                    Place::Due { charge, bytes }
                } else {
                    Place::InLine { charge, bytes }
                };
                self.is_out = false;
                let first = if is_woken {
                    state.first_sees_to_it()
                } else {
                    None
                };
                (first, None)
            });
            wake(waker);
            let (Some(wanted), Some((charge, bytes))) = (wanted, &mut self.place) else {
                return;
            };
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
        // The place leaves the line without the lock.
        drop(self.place.take());
        wake(self.waiters.with(|state| {
            state.place = Place::Nowhere;
            state.first_sees_to_it()
        }));
    }
}

/// A sender that waits. Its drop leaves the list.
pub(super) struct Wait<'a> {
    waiters: &'a Arc<Waiters>,
    stock: &'a CentralStock,
    bytes: u64,
    /// Number of the sender's slot, once it is in the list.
    at: Option<u32>,
}

/// State of a wait, as its sender finds it.
enum Look {
    Ended(Fate),
    Waits,
    /// The sender has to see to the place, which is out.
    Duty(Option<(ChargeFuture, u64)>),
}

impl Wait<'_> {
    /// Enters the list, and takes the duty to see to the place if no other sender has it.
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
                self.at = waker
                    .take()
                    .map(|waker| state.slots.push(self.bytes, waker));
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

    /// Returns the state of the wait. If the wait goes on, its end wakes `waker`.
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
                    // The waker is cloned and dropped without the lock.
                    mem::swap(known, other.as_mut()?);
                }
                Some((
                    state.take_duty().map_or(Look::Waits, Look::Duty),
                    None,
                    None,
                ))
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

    /// Leaves the list. The next sender gets the place if this one was first, and the bytes if it
    /// was served.
    fn leave(&mut self) {
        let Some(at) = self.at.take() else { return };
        let ((fate, known), place, waker, spare) = self.waiters.with(|state| {
            let is_first = state.slots.first() == Some(at);
            let left = state.slots.leave(at);
            let mut place = None;
            let mut waker = None;
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
                None => {
                    let look = self.enter(waker);
                    // The group's line knows only what the first one asks for. This look comes after
                    // the sender is in the list (rule 8).
                    if let Look::Waits = look
                        && let Some(refusal) = refusal(self.stock, self.bytes)
                    {
                        self.leave();
                        return Poll::Ready(Err(SendError::Refused((), refusal)));
                    }
                    look
                }
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
