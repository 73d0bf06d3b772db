//! Charges and uncharges of an allocator whose thread has kept the way to its slot: see
//! `thread::slot_cache`.
//!
//! Each step is in two parts. The first is all that most steps take, and calls nothing. So an
//! allocator that calls the second part where it has nothing else left to do, saves no register for
//! it.

use crate::counter::allocator::{
    charge_current_slow, charge_owned, consume_and_count, header_of, uncharge_slow,
};
use crate::counter::object::HeaderRef;
use crate::thread::directory::Header;
use crate::thread::local::with_local;
use crate::thread::slot::{Consume, Put};

/// What the first part of a step has come to. An unfinished step is no error: it may have counted
/// the bytes, or lowered the slot, and an error is what a `?` hands on and a caller may drop.
#[must_use = "an unfinished step has to be finished"]
pub(crate) enum CachedStep<T> {
    Done(T),
    Unfinished(SlowWork),
}

/// What a first part has left to the slow path.
#[derive(Debug)]
pub(crate) enum SlowWork {
    /// All of it: the thread has not kept the way to the group, or the slot has no credit.
    All,
    /// The slot is lowered, and a drainer has claimed its credit: see [`Consume::Undone`].
    Undo,
    /// The bytes are counted, and not put back: see [`Put::Full`].
    GiveBack,
    /// The bytes are counted, and put into a slot that has closed: see [`Put::Closed`].
    TakeBack,
}

impl<T> CachedStep<T> {
    const NOT_BEGUN: CachedStep<T> = CachedStep::Unfinished(SlowWork::All);

    #[inline(always)]
    fn of_consume(consumed: Consume, hit: T) -> CachedStep<T> {
        match consumed {
            Consume::Hit => CachedStep::Done(hit),
            Consume::Miss => CachedStep::NOT_BEGUN,
            Consume::Undone => CachedStep::Unfinished(SlowWork::Undo),
        }
    }
}

/// The first part of [`charge_current`](super::allocator::charge_current), for the group that
/// `current` points to. Returns the owner's word.
#[inline(always)]
pub(crate) fn charge(current: *const Header, n: u64) -> CachedStep<u32> {
    with_local(|local| {
        let Some(cached) = local.slot_cache.group(current) else {
            return CachedStep::NOT_BEGUN;
        };
        // Inside a slow path the bytes are unowned, and a closed stock may hold credit that is not
        // to be spent: the whole step tells these cases apart.
        if local.is_in_slow_path() || !cached.header.may_hit(n) {
            return CachedStep::NOT_BEGUN;
        }
        let word = local.slot_cache.word();
        CachedStep::of_consume(consume_and_count(cached.slot, cached.counted, n), word)
    })
}

/// The second part, after [`SlowWork::Undo`].
pub(crate) fn undo_charge(header: HeaderRef, n: u64) -> u32 {
    charge_current_slow(header, n, Consume::Undone)
}

/// The first part of [`grow`](super::allocator::grow).
#[inline(always)]
pub(crate) fn grow(word: u32, n: u64) -> CachedStep<()> {
    with_local(|local| {
        let Some(cached) = local.slot_cache.owner(word) else {
            return CachedStep::NOT_BEGUN;
        };
        if !cached.header.may_hit(n) {
            return CachedStep::NOT_BEGUN;
        }
        CachedStep::of_consume(consume_and_count(cached.slot, cached.counted, n), ())
    })
}

/// The second part, after [`SlowWork::Undo`].
///
/// # Safety
///
/// As for [`grow`](super::allocator::grow).
#[allow(unsafe_code)]
pub(crate) unsafe fn undo_grow(word: u32, n: u64) {
    // SAFETY: says the caller.
    if let Some(header) = unsafe { header_of(word) } {
        charge_owned(header.counter(), n, Consume::Undone);
    }
}

/// The first part of [`uncharge`](super::allocator::uncharge).
#[inline(always)]
pub(crate) fn uncharge(word: u32, n: u64) -> CachedStep<()> {
    with_local(|local| {
        let Some(cached) = local.slot_cache.owner(word) else {
            return CachedStep::NOT_BEGUN;
        };
        // Counted first: once the bytes are back the group may be gone. So a put that misses leaves
        // less to do than the whole step, which would count them again.
        cached.counted.take(n);
        match cached.slot.put(n, &cached.header.capacity, false) {
            Put::Kept => CachedStep::Done(()),
            Put::Full => CachedStep::Unfinished(SlowWork::GiveBack),
            Put::Closed => CachedStep::Unfinished(SlowWork::TakeBack),
        }
    })
}

/// The second part, after [`SlowWork::GiveBack`], or after [`SlowWork::TakeBack`].
///
/// # Safety
///
/// As for [`uncharge`](super::allocator::uncharge); the first part was for the same word.
#[allow(unsafe_code)]
pub(crate) unsafe fn end_uncharge(word: u32, n: u64, missed: Put) {
    // SAFETY: says the caller; a header is never freed, and the word names one as long as the
    // process runs.
    if let Some(header) = unsafe { header_of(word) } {
        uncharge_slow(header, n, missed);
    }
}
