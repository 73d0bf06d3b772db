//! Covered bytes: what an allocator hands out under a charge that pays for it. `cover.md` is the protocol.
//!
//! Every call here but [`look_below`] is safe inside an allocator: no lock, no allocation, no foreign code. To make a
//! record allocates; that is the first cover of a group.
//!
//! Edges: E49 (a covered object is freed/what is covered is added up), E50 (asked for a look/the look ends), E51 (a
//! record is made/found), E52 (a charge goes, another covers/what is held is read).

use std::ptr;

use crate::counter::allocator::{AllocatorPath, charge_units, uncharge_units};
use crate::counter::handle::Handle;
use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::sync::stat_atomic::{AtomicPtr as StatPtr, AtomicU32 as StatU32, AtomicU64 as StatU64};
use crate::sync::{AtomicU64, Ordering};
use crate::thread::directory::Header;
use crate::thread::ledger::{CoveredCell, passed_coarse_step};
use crate::thread::left::left;
use crate::thread::local::with_local;
use crate::thread::slot::Put;
use crate::thread::{owner, slow_path};

/// The bit of `Header::cover` for a record in debt.
const IN_DEBT: usize = 1;

/// One more request for a look, and one more for a whole look.
pub(super) const ASKED: u64 = 1;
pub(super) const ASKED_WHOLE: u64 = 1 << 32;

/// What a group has for its covering charges. The object's from its first cover on, whichever group has the object.
#[repr(align(64))]
pub(crate) struct Cover {
    header: &'static Header,
    /// The generation of the group that covered last.
    generation: StatU32,
    /// The record that was made before this one.
    next: StatPtr<Cover>,
    /// Bytes that charges cover with, as they came; less those of charges that cover no longer and keep their bytes.
    pub(super) added: AtomicU64,
    /// Bytes that covering charges have left to the record.
    pub(super) given_up: AtomicU64,
    /// Requests for a look, whole ones in the high half. Not 0: a thread looks.
    asked: AtomicU64,
    /// Covered bytes counted in debt, and by threads without a cell.
    allocated: AtomicU64,
    freed: AtomicU64,
    /// Covers of charges without a guard that live. Not 0: the record is coarse.
    pub(super) coarse: AtomicU64,

    // The thread that looks stores these.
    /// Of `given_up`: what the record has taken over.
    taken_over: StatU64,
    /// Covered bytes of all cells at the last whole look.
    in_cells: StatU64,
    /// Covered bytes that no covering charge pays for: the group is charged for them.
    pub(super) unpaid: StatU64,
}

/// The figures of one group's covers.
#[derive(Clone, Copy, Default)]
pub(crate) struct CoverFigures {
    pub(crate) held: u64,
    /// What `held` may be off by.
    pub(crate) error: u64,
    /// What the record is charged with: unpaid bytes as the last look found them, and what was given up since.
    pub(crate) charged: u64,
}

// === What an allocator counts ===

/// Counts an object that is allocated under a cover. Returns the owner's word.
#[inline(always)]
pub(crate) fn allocate(header: &'static Header, n: u64) -> u32 {
    match count_in_cell(header, |cell| cell.allocated(n)) {
        Some(false) => {}
        Some(true) => step_slow(header, n),
        None => allocate_slow(header, n),
    }
    owner::covered(header.word())
}

/// Counts an object that grows.
#[inline(always)]
pub(crate) fn grow(header: &'static Header, n: u64) {
    allocate(header, n);
}

/// Counts bytes that are freed. Afterwards the counter may be gone.
#[inline(always)]
pub(crate) fn free(header: &'static Header, n: u64) {
    if count_in_cell(header, |cell| cell.freed_within_step(n)) != Some(true) {
        free_slow(header, n);
    }
}

/// What `count` returns for this thread's cell. `None`: it has none, or the record is in debt.
#[inline(always)]
fn count_in_cell<R>(header: &Header, count: impl FnOnce(&CoveredCell) -> R) -> Option<R> {
    with_local(|local| {
        let cell = local.fast_block().and_then(|block| block.covered_behind(header))?;
        // Relaxed: a hint. The sum is right in whichever place a thread counts.
        (header.cover.load(Ordering::Relaxed).addr() & IN_DEBT == 0).then(|| count(cell))
    })
}

/// The count of this thread has passed a multiple of the step with its last `n` bytes.
#[cold]
#[inline(never)]
fn step_slow(header: &'static Header, n: u64) {
    let Some(cover) = of(header) else { return };
    let passed = |cell: &CoveredCell| passed_coarse_step(cell.sum_allocated(), n);
    if !cover.is_coarse() || count_in_cell(header, passed).unwrap_or(true) {
        uncharge_units(header, cover.compare(ASKED_WHOLE));
    }
}

#[cold]
#[inline(never)]
fn allocate_slow(header: &'static Header, n: u64) {
    let Some(cover) = of(header) else { return };
    match cover.count_in_new_cell(|cell| cell.allocated(n)) {
        Some(false) => {}
        Some(true) => step_slow(header, n),
        None => {
            // Relaxed (E49): as in the cell; the free of the object comes after this.
            cover.allocated.fetch_add(n, Ordering::Relaxed);
            uncharge_units(header, cover.compare(ASKED));
        }
    }
}

#[cold]
#[inline(never)]
fn free_slow(header: &'static Header, n: u64) {
    let Some(cover) = of(header) else { return };
    // The object keeps the group until it is counted; from here on the handle does.
    // Mutation: e15-covered-free-without-handle
    let handle = Handle::pin(header.counter());
    match cover.count_in_new_cell(|cell| cell.freed(n)) {
        // Where all is paid, or in debt, there is nothing to look for here.
        Some(now) if passed_coarse_step(now, n) && cover.has_unpaid() => {
            uncharge_units(header, cover.compare(ASKED_WHOLE));
        }
        Some(_) => {}
        None => {
            // Release (E49): as in the cell.
            cover.freed.fetch_add(n, Ordering::Release);
            uncharge_units(header, cover.compare(ASKED));
        }
    }
    let path = AllocatorPath::enter();
    drop(handle);
    drop(path);
}

// === What a covering charge tells ===

/// A charge of `n` bytes begins to cover, or a covering one grows by so many. The charge keeps the counter.
pub(crate) fn hold(header: &'static Header, n: u64) {
    let Some(cover) = of(header) else { return };
    // Relaxed (E50), in all that follows: before the thread asks. Release (E52): what this charge follows was given up
    // before; pairs with `figures`.
    // Mutation: e52-cover-begins-relaxed
    cover.added.fetch_add(n, Ordering::Release);
    if cover.has_unpaid() {
        cover.compare_and_return(ASKED);
    }
}

/// A covering charge leaves `n` charged bytes to the record. Afterwards the counter may be gone.
pub(crate) fn give_up(header: &'static Header, n: u64) {
    let Some(cover) = of(header) else { return };
    let handle = Handle::pin(header.counter());
    cover.given_up.fetch_add(n, Ordering::Relaxed);
    cover.compare_and_return(ASKED_WHOLE);
    drop(handle);
}

/// A covering charge of `n` bytes covers no longer, and keeps its bytes or has taken them elsewhere. The caller keeps the
/// counter.
pub(crate) fn release(header: &'static Header, n: u64) {
    let Some(cover) = of(header) else { return };
    cover.added.fetch_sub(n, Ordering::Relaxed);
    cover.compare_and_return(ASKED_WHOLE);
}

/// The record of a counter, made where there is none. False: the counter's bytes cannot be covered. The caller keeps the
/// counter, and runs no slow path.
pub(crate) fn prepare(counter: &'static Counter) -> bool {
    let header = counter.header;
    if header.word() == 0 || !counter.is_memory() || counter.tree().policies().is_none() {
        return false;
    }
    left().note_charge();
    let cover = of(header).unwrap_or_else(|| make(counter));
    cover.generation.store(counter.state().generation().0, Ordering::Relaxed);
    true
}

/// Makes the record of a counter. Two threads may do so at once: the first one's counts.
#[cold]
fn make(counter: &'static Counter) -> &'static Cover {
    // Memory of the crate, and of no group: allocated in a slow path.
    let path = SlowPath::enter();
    let made: &'static Cover = Box::leak(Box::new(Cover::new(counter.header)));
    let place = ptr::from_ref(made).cast_mut().cast();
    // Release (E51): after all is made; pairs with `of`. Acquire: the record of the other thread.
    // Mutation: e51-record-published-relaxed
    let first = counter.header.cover.compare_exchange(ptr::null_mut(), place, Ordering::Release, Ordering::Acquire);
    if let Err(first) = first {
        // SAFETY: no other thread has seen it: it comes from the box above.
        #[allow(unsafe_code)]
        drop(unsafe { Box::from_raw(ptr::from_ref(made).cast_mut()) });
        drop(path);
        return cover_at(first).expect("another thread has made it");
    }
    left().covers.push(place, |next| made.next.store(next.cast_mut().cast(), Ordering::Relaxed));
    drop(path);
    made
}

/// The record of the counter behind a header, if a charge has ever covered there.
#[inline]
pub(super) fn of(header: &Header) -> Option<&'static Cover> {
    // Acquire (E51): pairs with `make`.
    cover_at(header.cover.load(Ordering::Acquire))
}

#[allow(unsafe_code)]
fn cover_at(place: *mut ()) -> Option<&'static Cover> {
    // SAFETY: null, or a record that `make` has leaked, whose alignment leaves the bit free.
    unsafe { place.map_addr(|at| at & !IN_DEBT).cast::<Cover>().as_ref() }
}

impl Cover {
    fn new(header: &'static Header) -> Cover {
        Cover {
            header,
            generation: StatU32::new(0),
            next: StatPtr::new(ptr::null_mut()),
            added: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            coarse: AtomicU64::new(0),
            taken_over: StatU64::new(0),
            in_cells: StatU64::new(0),
            unpaid: StatU64::new(0),
        }
    }

    /// Relaxed (E50): a cover that ends is before the look that its thread asks for.
    fn is_coarse(&self) -> bool {
        self.coarse.load(Ordering::Relaxed) > 0
    }

    /// A hint: what the last look has found.
    fn has_unpaid(&self) -> bool {
        self.unpaid.load(Ordering::Relaxed) > 0
    }

    fn is_in_debt(&self) -> bool {
        self.header.cover.load(Ordering::Relaxed).addr() & IN_DEBT != 0
    }

    fn set_in_debt(&self, in_debt: bool) {
        let bit = if in_debt { IN_DEBT } else { 0 };
        let place = ptr::from_ref(self).cast_mut().cast::<()>().map_addr(|at| at | bit);
        if self.is_in_debt() != in_debt {
            // Release (E51): a thread may find the record here.
            self.header.cover.store(place, Ordering::Release);
        }
    }

    /// What `count` returns for the thread's cell, which is made where there is none. `None`: the record is in debt, or the
    /// thread has no block.
    fn count_in_new_cell<R>(&self, count: impl FnOnce(&CoveredCell) -> R) -> Option<R> {
        if self.is_in_debt() {
            return None;
        }
        let path = AllocatorPath::enter();
        path.block()?.covered_or_make(self.header.counter().index).map(count)
    }

    // === The comparison of what is covered with what is held ===

    /// A look outside of an allocator. The caller keeps the counter.
    pub(super) fn compare_and_return(&self, what: u64) {
        let over = self.compare(what);
        self.return_over(over);
    }

    /// Gives back what a look has found over.
    pub(super) fn return_over(&self, over: u64) {
        if over > 0 {
            match self.header.put(over) {
                Put::Kept => {}
                missed => self.header.uncharge_slow(over, missed),
            }
        }
        // What the look has charged or given back is told to waiters and listeners.
        drop(SlowPath::enter());
    }

    /// Asks for a look, and looks unless another thread does. Returns charged units for the caller to give back. The
    /// caller keeps the counter.
    pub(super) fn compare(&self, what: u64) -> u64 {
        // AcqRel (E50): pairs with itself and with the exchange below. A thread that is not the first leaves all before
        // this to the first one.
        if self.asked.fetch_add(what, Ordering::AcqRel) > 0 {
            return 0;
        }
        let (mut seen, mut asked, mut over) = (0, what, 0);
        loop {
            over = self.compare_alone(over, asked / ASKED_WHOLE != seen / ASKED_WHOLE);
            seen = asked;
            // AcqRel (E50): another thread has asked meanwhile: again. A thread that asks after this looks itself.
            // Mutation: e50-look-ends-without-exchange
            match self.asked.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return over,
                Err(now) => asked = now,
            }
        }
    }

    /// The look itself, by one thread at a time. `over` is charged and no charge's; returns what is so afterwards.
    fn compare_alone(&self, over: u64, whole: bool) -> u64 {
        let load = |word: &StatU64| word.load(Ordering::Relaxed);
        let covered = self.sum(whole);
        let given_up = self.given_up.load(Ordering::Relaxed);
        let held = self.added.load(Ordering::Relaxed).wrapping_sub(given_up).cast_signed().max(0);
        let unpaid = covered.saturating_sub(held).max(0).cast_unsigned();
        // Mutation: covering-charge-is-uncharged
        let has = load(&self.unpaid) + given_up.wrapping_sub(load(&self.taken_over)) + over;
        self.taken_over.store(given_up, Ordering::Relaxed);
        charge_units(self.header, unpaid.saturating_sub(has));
        self.unpaid.store(unpaid, Ordering::Relaxed);
        self.set_in_debt(unpaid > 0 && !self.is_coarse());
        has.saturating_sub(unpaid)
    }

    /// Covered bytes. A part of them: of what was counted in cells, what was so at the last whole look.
    fn sum(&self, whole: bool) -> i64 {
        if whole {
            let (in_cells, covered) = self.sum_whole();
            self.in_cells.store(in_cells, Ordering::Relaxed);
            return covered;
        }
        // Acquire (E49): as below.
        let freed = self.freed.load(Ordering::Acquire);
        let in_record = self.allocated.load(Ordering::Relaxed).wrapping_sub(freed);
        self.in_cells.load(Ordering::Relaxed).wrapping_add(in_record).cast_signed()
    }

    /// What is covered by the counts of cells, and by all counts: at most too much, where threads free meanwhile.
    fn sum_whole(&self) -> (u64, i64) {
        // Acquire (E49): frees before allocations, here and in the cells.
        let freed = self.freed.load(Ordering::Acquire);
        // Mutation: e49-allocated-is-read-first
        let freed_in_cells = self.cells().map(CoveredCell::sum_freed).fold(0, u64::wrapping_add);
        let allocated_in_cells = self.cells().map(CoveredCell::sum_allocated).fold(0, u64::wrapping_add);
        let in_cells = allocated_in_cells.wrapping_sub(freed_in_cells);
        let in_record = self.allocated.load(Ordering::Relaxed).wrapping_sub(freed);
        (in_cells, in_cells.wrapping_add(in_record).cast_signed())
    }

    fn cells(&self) -> impl Iterator<Item = &CoveredCell> {
        let counter = self.header.counter();
        counter.tree().registry.blocks().filter_map(|block| block.covered(counter.index))
    }
}

// === The looks of readers ===

/// A checkpoint of the group of a counter, which the caller keeps.
#[inline]
pub(crate) fn look_at(header: &'static Header) {
    if !header.cover.load(Ordering::Relaxed).is_null() {
        look_at_slow(header);
    }
}

#[cold]
fn look_at_slow(header: &'static Header) {
    if let Some(cover) = of(header) {
        cover.compare_and_return(ASKED_WHOLE);
    }
}

/// A whole look at each record of a tree at or below a counter; of every tree where there is no counter. The caller
/// holds no lock.
pub(crate) fn look_below(top: Option<&Counter>) {
    if !left().covers.first().is_null() {
        look_below_slow(top);
    }
}

#[cold]
fn look_below_slow(top: Option<&Counter>) {
    if slow_path::is_running() {
        return;
    }
    for cover in records() {
        let of = Generation(cover.generation.load(Ordering::Relaxed));
        let counter = cover.header.counter();
        // A group whose generation is over has nothing covered.
        if let Some(handle) = Handle::try_pin(counter, of) {
            let is_below = top.is_none_or(|top| handle.path_to_root().any(|level| ptr::eq(level, top)));
            if is_below {
                cover.compare_and_return(ASKED_WHOLE);
            }
        }
    }
}

/// All records of the process.
fn records() -> impl Iterator<Item = &'static Cover> {
    let mut next = left().covers.first().cast::<Cover>();
    std::iter::from_fn(move || {
        // SAFETY: `make` has listed it, and no thread takes it off.
        #[allow(unsafe_code)]
        let cover = unsafe { next.as_ref::<'static>() }?;
        next = cover.next.load(Ordering::Relaxed);
        Some(cover)
    })
}

/// What the covering charges of a counter hold, and what its record is charged with. The caller keeps the counter.
pub(crate) fn figures(counter: &Counter) -> CoverFigures {
    let Some(cover) = of(counter.header) else { return CoverFigures::default() };
    let earlier = cover.given_up.load(Ordering::Relaxed);
    // Acquire (E52): before what was given up is read again; pairs with `hold`.
    let added = cover.added.load(Ordering::Acquire);
    // Mutation: e52-given-up-is-read-once
    let given_up = cover.given_up.load(Ordering::Relaxed);
    let held = added.wrapping_sub(given_up).cast_signed().max(0).cast_unsigned();
    let unpaid = cover.unpaid.load(Ordering::Relaxed);
    let charged = unpaid.saturating_add(given_up.wrapping_sub(cover.taken_over.load(Ordering::Relaxed)));
    CoverFigures { held, error: given_up.wrapping_sub(earlier), charged }
}

/// Covered bytes that were counted outside of cells: freed, then allocated.
pub(crate) fn counts(counter: &Counter) -> (u64, u64) {
    of(counter.header).map_or((0, 0), |cover| {
        // Acquire (E49): as in `sum_whole`.
        let freed = cover.freed.load(Ordering::Acquire);
        (freed, cover.allocated.load(Ordering::Relaxed))
    })
}

/// Bytes of all records of the process.
pub(crate) fn bytes() -> u64 {
    records().count() as u64 * size_of::<Cover>() as u64
}

/// What a whole look finds covered.
#[cfg(test)]
#[allow(dead_code)]
pub(crate) fn covered(counter: &Counter) -> i64 {
    of(counter.header).map_or(0, |cover| cover.sum_whole().1)
}
