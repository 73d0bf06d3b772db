//! Who waits for room: a line at each level that has refused, and how those in it are served.
//!
//! A waiter holds nothing but a handle on its group. As long as somebody stands in line at a level nothing below it has
//! a stock, so whatever is given back is in the level's usage at once, and whoever gives it back serves the line: he
//! charges for the first as that one's own walk would, then wakes him with the charge made. So nobody is woken in vain,
//! and nobody takes the room in between.
//!
//! All of it is under one lock for each tree. Edges: E25 (a waiter/freed bytes), E27 (a waiter/offline).

use std::collections::{BTreeMap, BTreeSet};
use std::ptr;
use std::task::Waker;

use smallvec::SmallVec;

use crate::counter::object::Counter;
use crate::counter::refusal::Refusal;
use crate::counter::slow_path::slow_path;
use crate::counter::tree::Tree;
use crate::counter::walk::{Amount, Walked};
use crate::counter::watch::{WAITING, WAITS};
use crate::pressure::wakers::Wakers;
use crate::reclaim::registrations;
use crate::sync::{Ordering, fence_after_exchange, model_failed};
use crate::thread::block::Block;
use crate::thread::context;
use crate::thread::foreign::Foreign;

/// How far behind the first somebody may stand who passes him.
const WINDOW: usize = 64;

/// Everybody who waits in a tree.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Tickets that were given out.
    tickets: u64,
    seats: BTreeMap<u64, Seat>,
    /// By the key of the level.
    lines: BTreeMap<u64, Line>,
    /// Charges that each group waits with, by its key.
    groups: BTreeMap<u64, usize>,
}

#[derive(Default)]
struct Line {
    tickets: BTreeSet<u64>,
    /// Whose bytes and allowance the level's `first` and `pass` are.
    first: u64,
    /// What the level admitted when all in it were looked at.
    admits: u64,
}

/// One charge that waits.
struct Seat {
    node: &'static Counter,
    bytes: u64,
    /// In whose line; its group keeps it.
    level: &'static Counter,
    /// What may yet pass it, as long as it is not first: one allowance for the whole wait.
    pass: u64,
    /// What was decided. Then it is in no line.
    decided: Option<Decision>,
    /// Units of the walk, where it left a level above its high: for the waiter, who is delayed.
    over_high: u64,
    waker: Option<Foreign<Waker>>,
}

/// How a wait ends.
#[derive(Clone, Copy)]
pub(crate) enum Decision {
    /// The bytes are charged.
    Granted,
    /// They can never fit below this level.
    Full(&'static Counter),
    /// The group went offline.
    Offline,
    /// The group was chosen to give its memory back.
    Cancelled,
}

/// A place in line. Dropped, it is given up, and so is what was charged for it.
pub(crate) struct Ticket {
    node: &'static Counter,
    bytes: u64,
    number: u64,
    /// The end was told.
    over: bool,
}

impl Seat {
    /// Its waiter takes what was decided, and what comes with it.
    fn taken(self) -> Option<Decision> {
        if let Some(Decision::Granted) = self.decided {
            context::note_over_high(self.over_high);
        }
        self.decided
    }
}

// === impl Counter: the level's side ===

impl Counter {
    /// May a charge of `n` be admitted here before the first in line? Who came before him passes nobody, in whatever line
    /// he stands: else two of them could send him to and fro. All others together may take as many bytes as he asks for.
    /// Inside reclaim always: what it frees may be what he waits for. Relaxed, here and below: nothing but the sum depends
    /// on it.
    pub(crate) fn may_pass(&self, n: u64) -> bool {
        let less = |left: u64| left.checked_sub(n);
        self.is_before_the_first()
            || context::in_reclaim()
            || self.pass.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// This thread charges for somebody who waits, and came no later than the first in line here. Under the lock, if so.
    fn is_before_the_first(&self) -> bool {
        context::is_no_later_than(self.first_ticket.load(Ordering::Relaxed))
    }

    /// A charge of `n` that may have passed the first in line was refused further up. If another one is first by now he
    /// may be passed by so much more, but never by more than he asks for at a time.
    pub(crate) fn has_not_passed(&self, n: u64) {
        let passed = !self.is_before_the_first() && !context::in_reclaim();
        if passed && self.is_watched_for(WAITING) {
            let most = self.first.load(Ordering::Relaxed);
            let more = |left: u64| Some(left.saturating_add(n).min(most));
            let _ = self.pass.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    /// Charges that wait in line here.
    pub(crate) fn waiting(&self) -> usize {
        if !self.is_watched_for(WAITING) {
            return 0;
        }
        slow_path(|_, _| self.tree().waiting.lock().lines.get(&self.key()).map_or(0, |line| line.tickets.len()))
    }

    /// Bytes of who is first in line here.
    pub(crate) fn first_in_line(&self) -> u64 {
        self.first.load(Ordering::Relaxed)
    }

    /// Charge `n` for somebody who waits. Never from a stock: none is open below. Returns what was noted of a high.
    fn grant(&self, block: Option<&Block>, n: u64, ticket: u64) -> Result<u64, Refusal<'_>> {
        // In transit, so that whoever lowers a max waits for the walk (E5).
        let block = block.filter(|block| block.transit.is_over());
        if let Some(block) = block {
            block.transit.begin(self.tree().number, self.incarnation().fenced);
        }
        let walked = context::for_another(ticket, || self.walk(n, Amount::Needed));
        if let Some(block) = block {
            block.transit.end();
        }
        let Walked { over_high, .. } = walked?;
        // Not this thread's own charge: what it has freed for others it has freed.
        if self.tree().audited {
            self.usage.audit_shared.charged_shared(n);
        }
        Ok(over_high)
    }
}

// === impl Waiting: under the lock ===

impl Waiting {
    fn stand_in_line(&mut self, ticket: u64, level: &'static Counter) {
        let line = self.lines.entry(level.key()).or_default();
        line.tickets.insert(ticket);
        if self.seats.get(&ticket).is_some_and(|seat| seat.bytes > level.admits()) {
            // Lowered meanwhile: all are looked at again.
            line.admits = u64::MAX;
        }
        self.note_first(level);
        // E25: in line, then the mark, then a look at usage.
        level.watch(WAITING);
    }

    fn leave_line(&mut self, ticket: u64, level: &'static Counter) {
        if let Some(line) = self.lines.get_mut(&level.key()) {
            line.tickets.remove(&ticket);
            self.note_first(level);
        }
    }

    /// Another one may be first: who was takes what is left of his allowance with him, to another line or to his next
    /// turn.
    fn note_first(&mut self, level: &'static Counter) {
        let Some(line) = self.lines.get_mut(&level.key()) else { return };
        let first = line.tickets.first().and_then(|first| Some((*first, self.seats.get(first)?)));
        if first.is_some_and(|(ticket, _)| ticket == line.first) {
            return;
        }
        // Who has seen the mark and finds nobody in line passes.
        let (ticket, bytes, pass) = first.map_or((0, 0, u64::MAX), |(ticket, seat)| (ticket, seat.bytes, seat.pass));
        level.first_ticket.store(ticket, Ordering::Relaxed);
        level.first.store(bytes, Ordering::Relaxed);
        let left = level.pass.swap(pass, Ordering::Relaxed);
        if let Some(was) = self.seats.get_mut(&std::mem::replace(&mut line.first, ticket)) {
            was.pass = left;
        }
        if ticket == 0 {
            self.lines.remove(&level.key());
            level.unwatch(WAITING);
        }
    }

    fn decide(&mut self, ticket: u64, decision: Decision, wakers: &mut Wakers) {
        let Some(seat) = self.seats.get_mut(&ticket) else { return };
        seat.decided = Some(decision);
        wakers.extend(seat.waker.take());
        let (node, level) = (seat.node, seat.level);
        self.leave_line(ticket, level);
        self.forget(node);
    }

    /// One charge less that this group waits with.
    fn forget(&mut self, node: &'static Counter) {
        if let Some(waits) = self.groups.get_mut(&node.key()) {
            *waits -= 1;
            if *waits == 0 {
                self.groups.remove(&node.key());
                node.unwatch(WAITS);
            }
        }
    }

    /// Charge for those in line at `level`, the first and then those who may pass him. Who turns out to be refused
    /// elsewhere moves there.
    fn serve(&mut self, level: &'static Counter, service: &mut Service<'_>) {
        self.turn_away(level, service.wakers);
        while let Some(first) = self.lines.get(&level.key()).and_then(|line| line.tickets.first().copied()) {
            if !self.try_serve(first, level, service) {
                break;
            }
        }
        let Some(line) = self.lines.get(&level.key()) else { return };
        let behind: SmallVec<[u64; WINDOW]> = line.tickets.iter().skip(1).take(WINDOW).copied().collect();
        for ticket in behind {
            let bytes = self.seats.get(&ticket).map_or(u64::MAX, |seat| seat.bytes);
            let (room, pass) = (level.room(level.admits()), level.pass.load(Ordering::Relaxed));
            if room == 0 || pass == 0 {
                break;
            }
            if bytes <= room.min(pass) {
                self.try_serve(ticket, level, service);
            }
        }
    }

    /// Who asks for more than the level admits by now can never be served, wherever he stands.
    fn turn_away(&mut self, level: &'static Counter, wakers: &mut Wakers) {
        let admits = level.admits();
        let Some(line) = self.lines.get_mut(&level.key()) else { return };
        if std::mem::replace(&mut line.admits, admits) <= admits {
            return;
        }
        let line: Vec<u64> = line.tickets.iter().copied().collect();
        for ticket in line {
            if self.seats.get(&ticket).is_some_and(|seat| seat.bytes > admits) {
                self.decide(ticket, Decision::Full(level), wakers);
            }
        }
    }

    /// False: there is no room for it at `level`, where it goes on waiting.
    fn try_serve(&mut self, ticket: u64, level: &'static Counter, service: &mut Service<'_>) -> bool {
        let Some(&Seat { node, bytes, .. }) = self.seats.get(&ticket) else { return false };
        if bytes > level.admits() {
            self.decide(ticket, Decision::Full(level), service.wakers);
            return true;
        }
        match node.grant(service.block, bytes, ticket) {
            Ok(noted) => {
                if let Some(seat) = self.seats.get_mut(&ticket) {
                    seat.over_high = noted;
                }
                self.decide(ticket, Decision::Granted, service.wakers);
            }
            Err(refusal) if ptr::eq(refusal.level, level) => return false,
            Err(refusal) => {
                let other = refusal.level.header.node();
                self.leave_line(ticket, level);
                if let Some(seat) = self.seats.get_mut(&ticket) {
                    seat.level = other;
                    // Nobody has been asked there: he is woken to do it.
                    if registrations::any_below(other) {
                        service.wakers.extend(seat.waker.take());
                    }
                }
                self.stand_in_line(ticket, other);
                service.moved.push(other);
            }
        }
        true
    }
}

/// Serving one level.
struct Service<'a> {
    block: Option<&'a Block>,
    wakers: &'a mut Wakers,
    /// Levels where somebody stands in line who did not before.
    moved: SmallVec<[&'static Counter; 2]>,
}

// === impl Tree ===

impl Tree {
    /// Serve who waits at `level`. The caller keeps it and holds nothing.
    pub(crate) fn serve(&self, level: &'static Counter, block: Option<&Block>, wakers: &mut Wakers) {
        if level.is_watched_for(WAITS) && level.state().is_offline() {
            self.expel(Decision::Offline, |node| ptr::eq(node, level), wakers);
        }
        if !level.is_watched_for(WAITING) {
            return;
        }
        let mut service = Service { block, wakers, moved: SmallVec::new() };
        self.waiting.lock().serve(level, &mut service);
        for other in service.moved {
            // What hides in stocks below it comes up, and it is served in its turn.
            self.close_below(other);
            other.schedule_service();
        }
    }

    /// Nobody of those waits any longer.
    pub(crate) fn expel(&self, decision: Decision, is_meant: impl Fn(&Counter) -> bool, wakers: &mut Wakers) {
        let mut waiting = self.waiting.lock();
        let below = |seat: &Seat| seat.decided.is_none() && is_meant(seat.node);
        let expelled: Vec<u64> =
            waiting.seats.iter().filter(|(_, seat)| below(seat)).map(|(&ticket, _)| ticket).collect();
        for ticket in expelled {
            let level = waiting.seats[&ticket].level;
            waiting.decide(ticket, decision, wakers);
            // Who stood behind may be first now.
            level.schedule_service();
        }
    }
}

// === impl Ticket: the waiter's side ===

impl Counter {
    /// Stand in line at `level`, which has refused `bytes`. The caller keeps this group meanwhile.
    pub(crate) fn stand_in_line(&'static self, bytes: u64, level: &'static Counter) -> Ticket {
        self.state().pin();
        let number = slow_path(|_, _| {
            let tree = self.tree();
            let mut waiting = tree.waiting.lock();
            waiting.tickets += 1;
            let number = waiting.tickets;
            let seat = Seat { node: self, bytes, level, pass: bytes, decided: None, over_high: 0, waker: None };
            waiting.seats.insert(number, seat);
            *waiting.groups.entry(self.key()).or_default() += 1;
            // E27: marked, then a look whether the group is offline.
            self.watch(WAITS);
            waiting.stand_in_line(number, level);
            drop(waiting);
            // From here on what is given back below goes up the tree.
            tree.close_below(level);
            fence_after_exchange();
            if self.state().is_offline() {
                self.schedule_service();
            }
            // Served at the end of this slow path: what came back before the mark was told to nobody (E25).
            level.schedule_service();
            number
        });
        Ticket { node: self, bytes, number, over: false }
    }
}

impl Ticket {
    /// How it ended, once. Else `waker` is woken when it does.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Option<Decision> {
        let is_known = |known: &Foreign<Waker>| known.get().will_wake(waker);
        let waits_with_it = |seat: &Seat| seat.decided.is_none() && seat.waker.as_ref().is_some_and(is_known);
        if self.with(|waiting| waiting.seats.get(&self.number).is_some_and(waits_with_it)) {
            return None;
        }
        // A waker is foreign code: the thread clones and drops it without the lock.
        let mut old = Some(Foreign::new(waker.clone()));
        let decided = self.with(|waiting| {
            let seat = waiting.seats.get_mut(&self.number)?;
            if seat.decided.is_none() {
                std::mem::swap(&mut seat.waker, &mut old);
                return None;
            }
            waiting.seats.remove(&self.number)?.taken()
        });
        self.over = decided.is_some();
        decided
    }

    fn with<R>(&self, work: impl FnOnce(&mut Waiting) -> R) -> R {
        slow_path(|_, _| work(&mut self.node.tree().waiting.lock()))
    }

    /// Where it waits, as long as it does.
    pub(crate) fn level(&self) -> &'static Counter {
        self.with(|waiting| waiting.seats.get(&self.number).map(|seat| seat.level)).unwrap_or(self.node)
    }
}

impl Ticket {
    pub(crate) fn is_decided(&self) -> bool {
        self.with(|waiting| waiting.seats.get(&self.number).is_none_or(|seat| seat.decided.is_some()))
    }

    /// Out of the line. What was decided in time holds.
    pub(crate) fn leave(mut self) -> Option<Decision> {
        self.give_up()
    }

    fn give_up(&mut self) -> Option<Decision> {
        if std::mem::replace(&mut self.over, true) {
            return None;
        }
        // The seat's waker is dropped without the lock.
        let left = self.with(|waiting| {
            let seat = waiting.seats.remove(&self.number)?;
            if seat.decided.is_none() {
                waiting.leave_line(self.number, seat.level);
                waiting.forget(self.node);
                // Who stood behind may be first now, or fit.
                seat.level.schedule_service();
            }
            Some(seat)
        });
        left.and_then(Seat::taken)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        if let Some(Decision::Granted) = self.give_up() {
            self.node.give_back(self.bytes);
        }
        self.node.release();
    }
}
