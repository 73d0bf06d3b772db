//! Charges for an allocator: forced, counting only, through the stock. `allocator.md` is their protocol.
//!
//! A hit is that of any charge. A miss takes no lock, allocates nothing and calls no policy: what these would do it
//! leaves to the next outer slow path (`noted`, and the list of claimed groups). So the calls here are safe at any
//! moment of a thread's life, and inside every slow path and callback of the crate.

use std::convert::Infallible;
use std::ptr;

use crate::counter::cover;
use crate::counter::credit::online_or_above;
use crate::counter::object::Counter;
use crate::counter::spare::Side;
use crate::counter::watch::{HIGH, NOT_OF_WALKS, NOTED, NOTED_FORCED, OBSERVED, REPORTED};
use crate::counter::{counted, exceeded, make, marks, noted};
use crate::error::USAGE_MAX;
use crate::sync::Ordering;
use crate::thread::block::Block;
use crate::thread::directory::Header;
use crate::thread::left::{LISTS, left};
use crate::thread::local::with_local;
use crate::thread::owner::{self, Named};
use crate::thread::slot::{Consume, Put, Slot};
use crate::thread::slow_path::{Quiet, exchange_release_queue};
use crate::thread::tally::Tally;
use crate::thread::{context, slow_path, unowned};

/// Levels of a walk for a batch: below a deeper path an allocator charges nothing in advance.
const LEVELS_MAX: usize = 16;

/// An allocator's slow path. Groups that the thread claims meanwhile go to the process, where no outer slow path of the
/// thread releases them.
struct AllocatorPath(Quiet);

/// What a walk has found.
#[derive(Default)]
struct Found {
    /// What the next slow path does: see `noted`.
    marks: u64,
    /// The walk left a level above its high.
    over_high: bool,
    /// The smallest room that the walk left.
    margin: u64,
}

// === The hit path ===

impl Header {
    /// Whether an allocator's charge of `n` units may hit: at least one unit, and no more than the capacity.
    #[inline(always)]
    pub(super) fn may_hit(&self, n: u64) -> bool {
        // Relaxed: as in `bar`.
        // Mutation: offline-leaves-credit-to-allocator
        n.wrapping_sub(1) < self.capacity.load(Ordering::Relaxed)
    }

    /// [`consume_open`](Self::consume_open) for an allocator. `keeps`: after a hit the thread keeps what it has found.
    #[inline(always)]
    fn consume_allocated(&'static self, n: u64, keeps: bool) -> Consume {
        if !self.may_hit(n) {
            return Consume::Miss;
        }
        with_local(|local| {
            let consume = |slot: &Slot, counted: &Tally| {
                let consumed = consume_and_count(slot, counted, n);
                if keeps && consumed == Consume::Hit {
                    local.near.keep(self, slot, counted);
                }
                consumed
            };
            local.fast_block().and_then(|block| block.owned_behind(self, consume)).unwrap_or(Consume::Miss)
        })
    }

    /// [`put`](Self::put) for an allocator. It counts the bytes first: once they are back, the group may be gone. `None`:
    /// they are not counted, and not back.
    #[inline(always)]
    fn put_allocated(&self, n: u64) -> Option<Put> {
        with_local(|local| {
            let put = |slot: &Slot, counted: &Tally| {
                counted.take(n);
                slot.put(n, &self.capacity, false)
            };
            local.fast_block().and_then(|block| block.owned_behind(self, put))
        })
    }
}

#[inline(always)]
pub(super) fn consume_and_count(slot: &Slot, counted: &Tally, n: u64) -> Consume {
    let consumed = slot.consume_within_capacity(n, false);
    if consumed == Consume::Hit {
        counted.add(n);
    }
    consumed
}

/// Charges `n` units, at least one, to the counter behind a header, which the caller keeps. A group that is offline
/// leaves them to its nearest live ancestor. Returns the owner's word; `None` where no word can name a counter of the
/// path, and nothing was charged.
#[inline(always)]
pub(crate) fn charge(header: &'static Header, n: u64) -> Option<u32> {
    match header.consume_allocated(n, false) {
        Consume::Hit => Some(header.word()),
        missed => charge_slow(header, n, missed),
    }
}

/// [`charge`] to the thread's current group. Inside a slow path of the crate, and where no word can name the group, the
/// bytes count as unowned, and the word is 0.
#[inline(always)]
pub(crate) fn charge_current(header: &'static Header, n: u64) -> u32 {
    let missed = if slow_path::is_running() { Consume::Miss } else { header.consume_allocated(n, true) };
    match missed {
        Consume::Hit => header.word(),
        missed => charge_current_slow(header, n, missed),
    }
}

/// Charges `n` units to the owner of an object: it grows.
///
/// # Safety
///
/// The word is from [`charge`] or [`charge_current`], and the caller holds the object: units that the owner was charged
/// for.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn grow(word: u32, n: u64) {
    // SAFETY: says the caller.
    match unsafe { header_of(word) } {
        Some(header) => match header.consume_allocated(n, false) {
            Consume::Hit => {}
            missed => charge_owned(header.counter(), n, missed),
        },
        None => unowned::count_other(n),
    }
}

/// Gives `n` units back to the owner of an object. Afterwards the counter may be gone.
///
/// # Safety
///
/// As for [`grow`]; so many units of the object are charged.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn uncharge(word: u32, n: u64) {
    // SAFETY: says the caller.
    unsafe {
        if owner::is_by_index(word) {
            uncharge_from(owner::header(word), n);
        } else {
            uncharge_other(word, n);
        }
    }
}

#[inline(always)]
fn uncharge_from(header: &Header, n: u64) {
    match header.put_allocated(n) {
        Some(Put::Kept) => {}
        Some(missed) => uncharge_slow(header, n, missed),
        None => uncharge_uncounted_slow(header, n),
    }
}

/// For a word of no counter, or of one without an index.
///
/// # Safety
///
/// As for [`uncharge`].
#[inline(never)]
#[allow(unsafe_code)]
unsafe fn uncharge_other(word: u32, n: u64) {
    // SAFETY: says the caller.
    match unsafe { header_of(word) } {
        Some(header) => uncharge_from(header, n),
        None => unowned::count_freed(n),
    }
}

/// The owner that a word names; `None` for 0.
///
/// # Safety
///
/// As for [`grow`].
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn header_of(word: u32) -> Option<&'static Header> {
    if owner::is_by_index(word) {
        // SAFETY: says the caller.
        return Some(unsafe { owner::header(word) });
    }
    // SAFETY: says the caller.
    if word == 0 { None } else { unsafe { header_of_number(word) } }
}

/// No thread has charged the counter through its stock yet.
pub(crate) fn is_new(counter: &Counter) -> bool {
    // Relaxed: a hint.
    counter.header.capacity.load(Ordering::Relaxed) == 0 && counter.charger.load(Ordering::Relaxed) == 0
}

#[cold]
#[inline(never)]
#[allow(unsafe_code)]
unsafe fn header_of_number(word: u32) -> Option<&'static Header> {
    // SAFETY: says the caller.
    match unsafe { owner::named(word) } {
        Named::Number(number) => make::group(number).map(|group| group.header),
        Named::Index(_) => None,
    }
}

// === The slow path ===

#[cold]
#[inline(never)]
pub(super) fn charge_current_slow(header: &'static Header, n: u64, missed: Consume) -> u32 {
    let charged = if slow_path::is_running() { None } else { charge_slow(header, n, missed) };
    charged.unwrap_or_else(|| {
        unowned::count_other(n);
        0
    })
}

#[cold]
#[inline(never)]
fn charge_slow(header: &'static Header, n: u64, missed: Consume) -> Option<u32> {
    let charged = header.counter();
    let mut path = online_or_above(charged).path_to_root();
    let counter = path.find(|level| level.header.word() != 0).filter(|_| n > 0);
    let missed = match counter {
        Some(counter) if ptr::eq(counter, charged) => missed,
        // A miss of another counter says nothing of this one's slot.
        _ => {
            undo_allocated(charged, n, missed);
            Consume::Miss
        }
    };
    counter.map(|counter| {
        charge_owned(counter, n, missed);
        counter.header.word()
    })
}

#[cold]
#[inline(never)]
pub(super) fn uncharge_slow(header: &Header, n: u64, missed: Put) {
    uncharge_allocated(header, n, missed, &AllocatorPath::enter());
}

/// This thread has not counted owned bytes of the counter yet.
#[cold]
#[inline(never)]
fn uncharge_uncounted_slow(header: &Header, n: u64) {
    let path = AllocatorPath::enter();
    match owned_cell(header.counter(), &path) {
        Some(cell) => cell.take(n),
        None => header.owned.take_shared(n),
    }
    uncharge_allocated(header, n, header.put(n), &path);
}

fn uncharge_allocated(header: &Header, n: u64, missed: Put, path: &AllocatorPath) {
    match missed {
        Put::Kept => {}
        Put::Full => give_back_allocated(header.counter(), n, path),
        Put::Closed => {
            let slot = path.block().and_then(|block| Some((block, block.objects_slot_behind(header)?)));
            header.take_back_any(slot);
        }
    }
}

/// The thread's cell of owned bytes; `None` where it has no block, and where the counter has no index.
fn owned_cell<'a>(counter: &Counter, path: &'a AllocatorPath) -> Option<&'a Tally> {
    path.block()?.owned_or_make(counter.index)
}

impl AllocatorPath {
    fn enter() -> AllocatorPath {
        AllocatorPath(Quiet::enter())
    }

    fn block(&self) -> Option<&Block> {
        self.0.block()
    }
}

impl Drop for AllocatorPath {
    fn drop(&mut self) {
        // Mutation: e15-runtime-ends-before-the-allocators-last-object
        if self.0.is_outermost() {
            // Mutation: e15-allocator-forgets-what-it-has-claimed
            leave_claimed();
        }
    }
}

/// Leaves the groups that this thread has claimed to the next outer slow path of any thread.
#[allow(unsafe_code)]
fn leave_claimed() {
    let first = exchange_release_queue(ptr::null());
    // SAFETY: `claim` queued it, and its exchange gave the object to this thread; objects are never freed.
    let Some(group) = (unsafe { first.cast::<Counter>().as_ref::<'static>() }) else { return };
    let next = |group: &Counter| group.usage.next_to_release.load(Ordering::Relaxed);
    // SAFETY: as above, for each of the queue.
    let last = std::iter::successors(Some(group), |group| unsafe { next(group).as_ref() }).last().unwrap_or(group);
    let left = left();
    left.claimed.push(first, |after| last.usage.next_to_release.store(after.cast_mut().cast(), Ordering::Relaxed));
    left.announce(LISTS);
}

/// Gives back what was charged by [`charge_owned`]. Afterwards the counter may be gone.
#[cold]
pub(crate) fn uncharge_owned(counter: &Counter, n: u64) {
    uncharge_uncounted_slow(counter.header, n);
}

#[cold]
#[inline(never)]
pub(crate) fn charge_owned(counter: &Counter, n: u64, missed: Consume) {
    let path = AllocatorPath::enter();
    charge_allocated(counter, n, missed, &path);
    match owned_cell(counter, &path) {
        Some(cell) => cell.add(n),
        None => counter.header.owned.add_shared(n),
    }
}

fn charge_allocated(counter: &Counter, n: u64, missed: Consume, path: &AllocatorPath) {
    let n = n.min(USAGE_MAX);
    if n == 0 || missed == Consume::Hit {
        return;
    }
    left().note_charge();
    let missed = if counter.incarnation().careful { counter.consume_careful(path.0.block(), n) } else { missed };
    if missed == Consume::Undone {
        counter.undo(path.0.block(), n);
    }
    // Mutation: e2-allocator-spends-what-a-drain-has-claimed
    if missed != Consume::Hit {
        let found = match path.0.own_block() {
            Some(block) => refill_allocated(counter, block, n),
            None => force_covered(counter, n),
        };
        leave_found(counter, &found, n);
    }
    // Without a block: a cell's page may be missing.
    count_charged(counter, n);
}

/// What a covering group is charged for is counted where it is known.
fn count_charged(counter: &Counter, n: u64) {
    match counter.cover() {
        None => counted::charged(counter, None, n),
        Some(_) => counted::audit_charged(counter, None, n),
    }
}

#[cold]
fn undo_allocated(counter: &Counter, n: u64, missed: Consume) {
    if missed == Consume::Undone {
        let path = AllocatorPath::enter();
        counter.undo(path.0.block(), n);
    }
}

fn leave_found(counter: &Counter, found: &Found, n: u64) {
    if found.over_high {
        context::leave_over_high(n);
    }
    if found.marks != 0 {
        noted::note(counter, found.marks);
    }
}

/// As `refill`, but that it drains nothing, and forces what does not fit.
fn refill_allocated(counter: &Counter, block: &Block, n: u64) -> Found {
    counter.enter(block);
    let _transit = block.transit.until_dropped();
    // SeqCst (E5, E14): as in `refill`.
    let capacity = counter.header.capacity.load(Ordering::SeqCst);
    let batch = if context::in_reclaim() { 0 } else { capacity / 2 };
    let slot = counter.ready_slot(block, capacity);
    let mut found = None;
    if let Some(slot) = slot.filter(|_| n <= batch) {
        let units = if counter.tree().adaptive { block.next_refill(counter.index, n, batch) } else { batch };
        found = walk_covered(counter, units);
        if found.is_some() {
            // Mutation: e3-allocator-puts-and-does-not-look-again
            counter.keep_surplus(slot, units - n);
        }
    }
    let mut found = found.unwrap_or_else(|| force_covered(counter, n));
    found.marks |= wants_look(counter, capacity, found.margin);
    found
}

/// Whether the stock is to open or to close, for which the tree's lock is needed.
fn wants_look(counter: &Counter, capacity: u64, margin: u64) -> u64 {
    let (tree, batch) = (counter.tree(), counter.batch());
    if batch == 0 {
        return 0;
    }
    let closes = tree.adaptive && capacity > 0 && margin < tree.close_margin(batch);
    let opens = capacity == 0 && margin >= tree.open_margin(batch);
    if closes || opens { NOTED } else { 0 }
}

/// [`walk_allocated`], where the group covers for what is unpaid.
fn walk_covered(counter: &Counter, n: u64) -> Option<Found> {
    if counter.cover().is_none() {
        return walk_allocated(counter, n, None);
    }
    let mut found = Found::nothing();
    let come = cover::come(counter, n, Side::Allocated, None, |level, more, above| {
        found.merge(&walk_allocated(level, more, above).ok_or(())?);
        cover::note_charged(level, more, above);
        Ok::<_, ()>(())
    });
    come.is_ok().then_some(found)
}

/// [`force_allocated`], likewise.
fn force_covered(counter: &Counter, n: u64) -> Found {
    if counter.cover().is_none() {
        return force_allocated(counter, n, None);
    }
    let mut found = Found::nothing();
    let Ok(_) = cover::come(counter, n, Side::Allocated, None, |level, more, above| {
        found.merge(&force_allocated(level, more, above));
        cover::note_charged(level, more, above);
        Ok::<_, Infallible>(())
    });
    found
}

/// Charges exactly `n` at every level below `top`, or at none. `None`: a level has no room, or watches charges.
fn walk_allocated(counter: &Counter, n: u64, top: Option<&Counter>) -> Option<Found> {
    let mut usages = [0; LEVELS_MAX];
    let mut found = Found::nothing();
    for (at, level) in counter.path_below(top).enumerate() {
        let admitted = usages.get_mut(at).and_then(|usage| Some((usage, level.admit_unwatched(n)?)));
        let Some((usage, admitted)) = admitted else {
            counter.path_to_root().take(at).for_each(|level| level.take_off(n));
            return None;
        };
        *usage = admitted.usage;
        found.margin = found.margin.min(admitted.room);
    }
    for (level, usage) in counter.path_below(top).zip(usages) {
        level.peaks().record(usage);
        found.look_at(level, usage);
    }
    Some(found)
}

/// Charges exactly `n` at every level below `top`, whatever the limits say.
fn force_allocated(counter: &Counter, n: u64, top: Option<&Counter>) -> Found {
    let mut found = Found::nothing();
    for level in counter.path_below(top) {
        let forced = level.add_forced(n);
        level.peaks().record(forced.usage);
        found.margin = found.margin.min(forced.room);
        if forced.is_above {
            exceeded::rose(level);
            found.marks |= NOTED | NOTED_FORCED;
        }
        found.look_at(level, forced.usage);
    }
    found
}

/// As `give_back`, without what takes a lock or calls a policy.
fn give_back_allocated(counter: &Counter, n: u64, path: &AllocatorPath) {
    let n = n.min(USAGE_MAX);
    if n == 0 {
        return;
    }
    let (fenced, careful) = (counter.incarnation().fenced, counter.incarnation().careful);
    // The audit counts first, and without a block: see `give_back` and `charge_allocated`.
    match counter.cover() {
        None => counted::uncharged(counter, None, n),
        Some(_) => counted::audit_uncharged(counter, None, n),
    }
    if careful {
        let slot = counter.slot_of(path.0.block());
        match slot.map_or(Put::Full, |(_, slot)| slot.put(n, &counter.header.capacity, fenced)) {
            Put::Kept => return,
            Put::Closed => return counter.header.take_back_any(slot),
            Put::Full => {}
        }
    }
    let Some(block) = path.0.own_block() else {
        counter.uncharge_levels(n);
        return;
    };
    counter.enter(block);
    let _transit = block.transit.until_dropped();
    // SeqCst (E5, E14): as in `refill`.
    let capacity = counter.header.capacity.load(Ordering::SeqCst);
    let slot = counter.ready_slot(block, capacity);
    counter.cut_to(slot, n, capacity);
}

impl Found {
    fn nothing() -> Found {
        Found { margin: u64::MAX, ..Found::default() }
    }

    fn merge(&mut self, other: &Found) {
        self.marks |= other.marks;
        self.over_high |= other.over_high;
        self.margin = self.margin.min(other.margin);
    }

    /// Compares the marks of a level that a walk has passed with the usage that it left there.
    #[inline(always)]
    fn look_at(&mut self, level: &Counter, usage: u64) {
        let watched = level.limits.watched.bits() & !NOT_OF_WALKS;
        if watched != 0 {
            self.look_at_watched(level, usage, watched);
        }
    }

    #[cold]
    fn look_at_watched(&mut self, level: &Counter, usage: u64, watched: u64) {
        if watched & HIGH != 0 && usage > marks::high(level) {
            self.over_high = true;
            exceeded::rose(level);
        }
        if watched & REPORTED != 0 {
            marks::report_protected(level);
        }
        if (watched & OBSERVED != 0 && usage > level.max()) || marks::is_excess_wrong(level) {
            self.marks |= NOTED;
        }
    }
}
