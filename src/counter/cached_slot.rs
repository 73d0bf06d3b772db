//! Charges and uncharges of an allocator whose thread has kept the way to its slot: see
//! `thread::slot_cache`.
//!
//! Each step is in two parts. The first is all that most steps take, and calls nothing. So an
//! allocator that calls the second part where it has nothing else left to do, saves no register for
//! it.

use crate::counter::allocator::{
    charge_current_slow, charge_owned, consume_and_count, header_of, uncharge_slow,
};
use crate::counter::object::KeptHeader;
use crate::thread::directory::Header;
use crate::thread::local::with_local;
use crate::thread::slot::{Consume, Put};

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

impl SlowWork {
    #[inline(always)]
    fn of_consume(consumed: Consume) -> Result<(), SlowWork> {
        match consumed {
            Consume::Hit => Ok(()),
            Consume::Miss => Err(SlowWork::All),
            Consume::Undone => Err(SlowWork::Undo),
        }
    }
}

/// The first part of [`charge_current`](super::allocator::charge_current), for the group that
/// `current` points to.
#[inline(always)]
pub(crate) fn charge(current: *const Header, n: u64) -> Result<u32, SlowWork> {
    with_local(|local| {
        let cached = local.slot_cache.group(current).ok_or(SlowWork::All)?;
        if local.is_in_slow_path() || !cached.header.may_hit(n) {
            return Err(SlowWork::All);
        }
        let word = local.slot_cache.word();
        SlowWork::of_consume(consume_and_count(cached.slot, cached.counted, n)).map(|()| word)
    })
}

/// The second part, after [`SlowWork::Undo`].
pub(crate) fn undo_charge(header: KeptHeader, n: u64) -> u32 {
    charge_current_slow(header, n, Consume::Undone)
}

/// The first part of [`grow`](super::allocator::grow).
#[inline(always)]
pub(crate) fn grow(word: u32, n: u64) -> Result<(), SlowWork> {
    with_local(|local| {
        let cached = local.slot_cache.owner(word).ok_or(SlowWork::All)?;
        if !cached.header.may_hit(n) {
            return Err(SlowWork::All);
        }
        SlowWork::of_consume(consume_and_count(cached.slot, cached.counted, n))
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
pub(crate) fn uncharge(word: u32, n: u64) -> Result<(), SlowWork> {
    with_local(|local| {
        let cached = local.slot_cache.owner(word).ok_or(SlowWork::All)?;
        cached.counted.take(n);
        match cached.slot.put(n, &cached.header.capacity, false) {
            Put::Kept => Ok(()),
            Put::Full => Err(SlowWork::GiveBack),
            Put::Closed => Err(SlowWork::TakeBack),
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
