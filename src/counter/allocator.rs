//! Charges for an allocator: forced, counting only, through the stock. `allocator.md` is their
//! protocol.
//!
//! A hit is that of any charge. A miss takes no lock, allocates nothing and calls no policy: what
//! these would do it leaves to the next outer slow path (`look::defer`, and the list of claimed
//! groups). So the calls here are safe at any moment of a thread's life, and inside every slow path
//! and callback of the crate.

use crate::counter::charge::MissedCharge;
use crate::counter::credit::online_or_above;
use crate::counter::level::ChargeMode;
use crate::counter::object::{Counter, HeaderRef};
use crate::counter::slow_path::defer_releases;
use crate::counter::thread_stock::take_back;
use crate::counter::watch::DEFERRED;
use crate::counter::{at_limit, bookkeeping, look};
use crate::error::USAGE_MAX;
use crate::sync::Ordering;
use crate::thread::deferred::deferred;
use crate::thread::directory::Header;
use crate::thread::local::with_local;
use crate::thread::owner;
use crate::thread::slot::{Consume, Put, Slot};
use crate::thread::slow_path;
use crate::thread::slow_path::Entered;
use crate::thread::tally::Tally;
use crate::thread::transit::ANY;
use crate::thread::unowned::{self, UnownedCount};

/// An allocator's slow path. Groups that the thread claims meanwhile go to the process, where no
/// outer slow path of the thread releases them.
struct AllocatorPath(Entered);

// === The hit path ===

impl Header {
    /// True if an allocator's charge of `n` units may hit: at least one unit, and no more than the
    /// capacity.
    #[inline(always)]
    pub(super) fn may_hit(&self, n: u64) -> bool {
        // Relaxed: as in `miss_mask`.
        // Mutation: offline-leaves-credit-to-allocator
        n.wrapping_sub(1) < self.capacity.load(Ordering::Relaxed)
    }

    /// [`consume_open`](Self::consume_open) for an allocator. `keeps`: after a hit the thread keeps
    /// what it has found.
    #[inline(always)]
    fn consume_allocated(&'static self, n: u64, keeps: bool) -> Consume {
        if !self.may_hit(n) {
            return Consume::Miss;
        }
        with_local(|local| {
            let consume = |slot: &Slot, counted: &Tally| {
                let consumed = consume_and_count(slot, counted, n);
                if keeps && consumed == Consume::Hit {
                    local.slot_cache.keep(self, slot, counted);
                }
                consumed
            };
            local
                .fast_block()
                .and_then(|block| block.owned_behind(self, consume))
                .unwrap_or(Consume::Miss)
        })
    }

    /// [`put`](Self::put) for an allocator. It counts the bytes first: once they are back, the
    /// group may be gone. `None`: they are not counted, and not back.
    #[inline(always)]
    fn put_allocated(&self, n: u64) -> Option<Put> {
        with_local(|local| {
            let put = |slot: &Slot, counted: &Tally| {
                counted.take(n);
                slot.put(n, &self.capacity, false)
            };
            local
                .fast_block()
                .and_then(|block| block.owned_behind(self, put))
        })
    }
}

#[inline(always)]
pub(super) fn consume_and_count(slot: &Slot, counted: &Tally, n: u64) -> Consume {
    let consumed = slot.consume_within_capacity(n);
    if consumed == Consume::Hit {
        counted.add(n);
    }
    consumed
}

/// Charges `n` units, at least one, to the counter behind a header. A group that is offline leaves
/// them to its nearest live ancestor. Returns the owner's word; `None` where no word can name a
/// counter of the path, and nothing was charged.
#[inline(always)]
pub(crate) fn charge(header: HeaderRef, n: u64) -> Option<u32> {
    match header.header().consume_allocated(n, false) {
        Consume::Hit => Some(header.word()),
        missed => charge_slow(header, n, missed),
    }
}

/// [`charge`] to the thread's current group. Inside a slow path of the crate, and where no word can
/// name a group of the path, the bytes count as unowned, and the word is 0.
#[inline(always)]
pub(crate) fn charge_current(header: HeaderRef, n: u64) -> u32 {
    let missed = if slow_path::is_running() {
        Consume::Miss
    } else {
        header.header().consume_allocated(n, true)
    };
    match missed {
        Consume::Hit => header.word(),
        missed => charge_current_slow(header, n, missed),
    }
}

/// Charges `n` units to the owner of an object: it grows.
///
/// # Safety
///
/// The word is from [`charge`] or [`charge_current`], and the caller holds the object: units that
/// the owner was charged for.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn grow(word: u32, n: u64) {
    // SAFETY: says the caller.
    match unsafe { header_of(word) } {
        Some(header) => match header.header().consume_allocated(n, false) {
            Consume::Hit => {}
            missed => charge_owned(header.counter(), n, missed),
        },
        None => unowned::count(UnownedCount::Allocated, n),
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
    match unsafe { header_of(word) } {
        Some(header) => match header.put_allocated(n) {
            Some(Put::Kept) => {}
            Some(missed) => uncharge_slow(header, n, missed),
            None => uncharge_uncounted_slow(header, n),
        },
        None => uncharge_unowned(n),
    }
}

#[inline(never)]
fn uncharge_unowned(n: u64) {
    unowned::count(UnownedCount::Freed, n);
}

/// The owner that a word names; `None` for 0.
///
/// # Safety
///
/// As for [`grow`].
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn header_of(word: u32) -> Option<HeaderRef> {
    // SAFETY: says the caller.
    (word != 0).then(|| unsafe { HeaderRef::new(owner::header(word)) })
}

/// No thread has charged the counter through its stock yet.
pub(crate) fn is_new(counter: &Counter) -> bool {
    // Relaxed: a hint.
    counter.header.capacity.load(Ordering::Relaxed) == 0
        && counter.charger.load(Ordering::Relaxed) == 0
}

// === The slow path ===

#[cold]
#[inline(never)]
pub(super) fn charge_current_slow(header: HeaderRef, n: u64, missed: Consume) -> u32 {
    let charged = if slow_path::is_running() {
        None
    } else {
        charge_slow(header, n, missed)
    };
    charged.unwrap_or_else(|| {
        unowned::count(UnownedCount::Allocated, n);
        0
    })
}

#[cold]
#[inline(never)]
fn charge_slow(header: HeaderRef, n: u64, missed: Consume) -> Option<u32> {
    let charged = header.counter();
    let mut path = online_or_above(charged).path_to_root();
    let counter = path
        // There are words for four million counters of the process. What is charged to one beyond
        // those goes to the nearest group above that has a word.
        .find(|level| level.header.word() != 0)
        .filter(|_| n > 0);
    let missed = match counter {
        Some(counter) if std::ptr::eq(counter, charged) => missed,
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
pub(super) fn uncharge_slow(header: HeaderRef, n: u64, missed: Put) {
    uncharge_allocated(header, n, missed, &AllocatorPath::enter());
}

/// This thread has not counted owned bytes of the counter yet.
#[cold]
#[inline(never)]
fn uncharge_uncounted_slow(header: HeaderRef, n: u64) {
    let path = AllocatorPath::enter();
    match owned_cell(header.counter(), &path) {
        Some(cell) => cell.take(n),
        None => header.owned.take_shared(n),
    }
    uncharge_allocated(header, n, header.put(n), &path);
}

fn uncharge_allocated(header: HeaderRef, n: u64, missed: Put, path: &AllocatorPath) {
    match missed {
        Put::Full if n > 0 => header
            .counter()
            .give_back_entered(&path.0, n.min(USAGE_MAX)),
        Put::Kept | Put::Full => {}
        Put::Closed => {
            let block = path.0.block();
            take_back(
                &header,
                block.and_then(|block| Some((block, block.objects_slot_behind(&header)?))),
                ANY,
                false,
            );
        }
    }
}

/// The thread's cell of owned bytes; `None` where it has no block, and where the counter has no
/// index.
fn owned_cell<'a>(counter: &Counter, path: &'a AllocatorPath) -> Option<&'a Tally> {
    path.0.block()?.owned_or_make(counter.index)
}

impl AllocatorPath {
    fn enter() -> AllocatorPath {
        AllocatorPath(Entered::no_alloc())
    }
}

impl Drop for AllocatorPath {
    fn drop(&mut self) {
        // Mutation: e15-runtime-ends-before-the-allocators-last-object
        if self.0.is_alone() {
            // Mutation: e15-allocator-forgets-what-it-has-claimed
            defer_releases();
        }
    }
}

/// Gives back what was charged by [`charge_owned`]. Afterwards the counter may be gone.
#[cold]
#[allow(unsafe_code)]
pub(crate) fn uncharge_owned(counter: &Counter, n: u64) {
    // SAFETY: the units keep the counter until they are back.
    uncharge_uncounted_slow(unsafe { HeaderRef::new(counter.header) }, n);
}

#[cold]
#[inline(never)]
pub(crate) fn charge_owned(counter: &Counter, n: u64, missed: Consume) {
    let path = AllocatorPath::enter();
    let units = n.min(USAGE_MAX);
    if units > 0 && missed != Consume::Hit {
        deferred().note_charge();
        // By force, so it is never refused. The look at a level above its max is deferred.
        if let Ok(MissedCharge::Walked(walked)) =
            counter.consume_or_walk(&path.0, units, missed, ChargeMode::Force)
        {
            // To open or close the stock takes the tree's lock.
            if at_limit::is_due(counter, walked.stock) {
                look::defer(counter, DEFERRED);
            }
        }
        // Counted without a block: a cell's page may be missing. A covering group counts the units
        // that it is charged for elsewhere.
        if counter.cover().is_none() {
            bookkeeping::note_charged(counter, units);
        }
        bookkeeping::audit_charged(counter, None, units);
    }
    match owned_cell(counter, &path) {
        Some(cell) => cell.add(n),
        None => counter.header.owned.add_shared(n),
    }
}

#[cold]
fn undo_allocated(counter: &Counter, n: u64, missed: Consume) {
    if missed == Consume::Undone {
        let path = AllocatorPath::enter();
        counter.undo(path.0.block(), n);
    }
}
