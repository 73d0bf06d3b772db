//! Charges of an allocator: the group that owns an object, and the bytes that no group owns.

use super::handle::Group;
use crate::counter::allocator;
use crate::counter::at_limit::{self, StockFinding};
use crate::counter::cached_slot::{self, CachedStep, SlowWork};
use crate::counter::object::HeaderRef;
use crate::counter::slow_path::SlowPath;
use crate::lifecycle::unowned as unowned_group;
use crate::sync::Ordering;
use crate::thread::context;
use crate::thread::current;
use crate::thread::deferred::{LISTS, deferred};
use crate::thread::slot::Put;
use crate::thread::unowned::{self, UnownedCount};

/// The group that is charged for an object of an allocator, as a word of 4 bytes that the allocator
/// keeps beside the object.
///
/// The word names the group within the process, whichever [`Runtime`](crate::Runtime) made the
/// group. It is the charged bytes of the object that keep the group, so the word is no handle and
/// counts nothing: it is valid from [`charge`](Self::charge) to [`uncharge`](Self::uncharge), on
/// any thread, even after the group went offline and its runtime is gone.
///
/// The calls are for the inside of an allocator. A charge is forced: it is never refused and never
/// delayed. It takes no lock, allocates nothing, runs no foreign code and does not unwind. That
/// holds before `main`, in destructors of thread-locals, on threads that others made, in a child
/// after `fork`, and inside the crate's own slow paths and callbacks. What else would follow from a
/// charge is left to the next call of the crate outside of an allocator: draining stocks below a
/// level that is above its max, waking waiters, releasing a group.
///
/// ```
/// use memcg::allocator::Owner;
/// use memcg::{Group, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new().max(4_096))?;
/// let owner = query.run(|| Owner::charge(6_000));
/// assert_eq!((query.live(), query.forced()), (6_000, 1_904));
/// // SAFETY: the bytes are charged, and each is given back once.
/// unsafe {
///     owner.grow(1_000);
///     owner.uncharge(7_000);
/// }
/// assert_eq!(query.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u32);

/// How far the first of two calls has come: see [`Owner::begin_charge`].
///
/// An unfinished step is not an error, so it does not travel as one: some bytes may be counted
/// already, and stay counted wrongly for ever if the second call does not follow.
///
/// ```
/// use memcg::allocator::{BegunStep, Owner};
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let owner = query.run(|| match Owner::begin_charge(64) {
///     BegunStep::Done(owner) => owner,
///     // SAFETY: begun just before, for the same bytes. An allocator has this in a function apart.
///     BegunStep::Unfinished(rest) => unsafe { Owner::finish_charge(64, rest) },
/// });
/// assert_eq!(query.live(), 64);
/// // SAFETY: the bytes are charged, and given back once.
/// unsafe {
///     if let BegunStep::Unfinished(rest) = owner.begin_uncharge(64) {
///         owner.finish_uncharge(64, rest);
///     }
/// }
/// assert_eq!(query.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an unfinished step has to be finished"]
pub enum BegunStep<T> {
    /// The first call has done all of the step.
    Done(T),
    /// The rest is left to the second call.
    Unfinished(UnfinishedStep),
}

/// The part of a step that its first call has not done: see [`BegunStep`].
#[derive(Debug)]
#[must_use = "the step is not done"]
pub struct UnfinishedStep(SlowWork);

impl<T> BegunStep<T> {
    #[inline(always)]
    fn of<R>(step: CachedStep<R>, done: impl FnOnce(R) -> T) -> BegunStep<T> {
        match step {
            CachedStep::Done(result) => BegunStep::Done(done(result)),
            CachedStep::Unfinished(left) => BegunStep::Unfinished(UnfinishedStep(left)),
        }
    }
}

impl Owner {
    /// No group: bytes that are charged to it count as [unowned](unowned_bytes).
    pub const NONE: Owner = Owner(0);

    /// Returns the word that names a group which the caller charges in another way, for a container
    /// that finds the group of an object by the object's address. It charges nothing, and costs a
    /// load. It is [`NONE`](Self::NONE) if no word names the group: there are words for four
    /// million counters of the process.
    ///
    /// The word keeps nothing. It may be used for [`group`](Self::group) as long as bytes are
    /// charged to the group, and for none of the other calls.
    ///
    /// ```
    /// use memcg::Runtime;
    /// use memcg::allocator::Owner;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let charge = runtime.root().charge(64)?;
    /// let owner = Owner::of(&runtime.root());
    /// // SAFETY: the group is charged 64 bytes.
    /// assert_eq!(unsafe { owner.group() }, Some(runtime.root()));
    /// drop(charge);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn of(group: &Group) -> Owner {
        Owner(group.header.word())
    }

    /// Charges an object of so many bytes to the thread's [current group](Group::current), or to
    /// the nearest group above that is online. If the thread has no current group, or allocates
    /// inside a slow path of this crate, the bytes are [unowned](unowned_bytes). Like all calls of
    /// an owner it never fails and never blocks.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn charge(bytes: usize) -> Owner {
        match Owner::begin_charge(bytes) {
            BegunStep::Done(owner) => owner,
            // SAFETY: begun for these bytes.
            BegunStep::Unfinished(rest) => unsafe { Owner::finish_charge(bytes, rest) },
        }
    }

    /// Does the first part of [`charge`](Self::charge), which is all of it as long as the thread
    /// charges the same group again and again. It makes no call. So an allocator need not save
    /// registers if it does the rest, by [`finish_charge`](Self::finish_charge), in a function of
    /// its own and as its last step.
    #[inline(always)]
    pub fn begin_charge(bytes: usize) -> BegunStep<Owner> {
        BegunStep::of(cached_slot::charge(current::word(), bytes as u64), Owner)
    }

    /// Does the rest of [`begin_charge`](Self::begin_charge).
    ///
    /// # Safety
    ///
    /// This thread has begun the charge, for as many bytes, and has called nothing else of this
    /// crate since.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn finish_charge(bytes: usize, rest: UnfinishedStep) -> Owner {
        let n = bytes as u64;
        current::allocate_for(
            |header| {
                // SAFETY: the thread's scope keeps the group.
                let header = unsafe { HeaderRef::new(header) };
                match rest.0 {
                    SlowWork::Undo => Owner(cached_slot::undo_charge(header, n)),
                    _ => Owner(allocator::charge_current(header, n)),
                }
            },
            || {
                unowned::count(UnownedCount::Allocated, n);
                Owner::NONE
            },
        )
    }

    /// Charges an object of so many bytes to `group`, whatever the current group is; if it is
    /// offline, to the nearest group above that is online. The charge is forced like that of
    /// [`charge`](Self::charge): it never fails, never blocks and runs no foreign code.
    #[inline]
    pub fn charge_to(group: &Group, bytes: usize) -> Owner {
        match allocator::charge(group.header, bytes as u64) {
            Some(word) => Owner(word),
            None => {
                unowned::count(UnownedCount::Allocated, bytes as u64);
                Owner::NONE
            }
        }
    }

    /// Charges more bytes to the owner, because an object has grown.
    ///
    /// # Safety
    ///
    /// Some bytes that this owner was charged for have not been given back yet.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn grow(self, bytes: usize) {
        // SAFETY: says the caller; begun for these bytes.
        unsafe {
            if let BegunStep::Unfinished(rest) = self.begin_grow(bytes) {
                self.finish_grow(bytes, rest);
            }
        }
    }

    /// Does the first part of [`grow`](Self::grow), as [`begin_charge`](Self::begin_charge) does
    /// for a charge. [`finish_grow`](Self::finish_grow) does the rest.
    ///
    /// # Safety
    ///
    /// As for [`grow`](Self::grow).
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn begin_grow(self, bytes: usize) -> BegunStep<()> {
        BegunStep::of(cached_slot::grow(self.0, bytes as u64), |()| ())
    }

    /// Does the rest of [`begin_grow`](Self::begin_grow).
    ///
    /// # Safety
    ///
    /// As for [`grow`](Self::grow), and as for [`finish_charge`](Self::finish_charge).
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn finish_grow(self, bytes: usize, rest: UnfinishedStep) {
        let n = bytes as u64;
        // SAFETY: says the caller.
        unsafe {
            match rest.0 {
                SlowWork::Undo => cached_slot::undo_grow(self.0, n),
                _ => allocator::grow(self.0, n),
            }
        }
    }

    /// Gives bytes back. Once no bytes are left, the owner must not be used again.
    ///
    /// # Safety
    ///
    /// At least `bytes` of those that this owner was charged for have not been given back yet.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn uncharge(self, bytes: usize) {
        // SAFETY: says the caller; begun for these bytes.
        unsafe {
            if let BegunStep::Unfinished(rest) = self.begin_uncharge(bytes) {
                self.finish_uncharge(bytes, rest);
            }
        }
    }

    /// Does the first part of [`uncharge`](Self::uncharge), as [`begin_charge`](Self::begin_charge)
    /// does for a charge. [`finish_uncharge`](Self::finish_uncharge) does the rest.
    ///
    /// # Safety
    ///
    /// As for [`uncharge`](Self::uncharge).
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn begin_uncharge(self, bytes: usize) -> BegunStep<()> {
        BegunStep::of(cached_slot::uncharge(self.0, bytes as u64), |()| ())
    }

    /// Does the rest of [`begin_uncharge`](Self::begin_uncharge).
    ///
    /// # Safety
    ///
    /// As for [`uncharge`](Self::uncharge), and as for [`finish_charge`](Self::finish_charge).
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn finish_uncharge(self, bytes: usize, rest: UnfinishedStep) {
        let n = bytes as u64;
        // SAFETY: says the caller.
        unsafe {
            match rest.0 {
                SlowWork::GiveBack => cached_slot::end_uncharge(self.0, n, Put::Full),
                SlowWork::TakeBack => cached_slot::end_uncharge(self.0, n, Put::Closed),
                _ => allocator::uncharge(self.0, n),
            }
        }
    }

    /// Returns the owner as a word, whose four highest bits are never set: an allocator may use
    /// them.
    #[inline]
    pub fn to_word(self) -> u32 {
        self.0
    }

    /// Makes an owner again of a word of [`to_word`](Self::to_word).
    ///
    /// # Safety
    ///
    /// The word comes from [`to_word`](Self::to_word).
    #[inline]
    #[allow(unsafe_code)]
    pub const unsafe fn from_word(word: u32) -> Owner {
        Owner(word)
    }

    /// Returns a handle on the group, `None` for [`NONE`](Self::NONE). Do not call it inside an
    /// allocator.
    ///
    /// # Safety
    ///
    /// As for [`grow`](Self::grow); or the owner is [`of`](Self::of) a group to which bytes are charged
    /// until this returns.
    #[allow(unsafe_code)]
    pub unsafe fn group(self) -> Option<Group> {
        // SAFETY: says the caller.
        let header = unsafe { allocator::header_of(self.0) };
        header.map(|header| Group::pinned(header.counter()))
    }
}

/// Runs `work` in no group: what an allocator hands out meanwhile is [unowned](unowned_bytes), and
/// [`Group::current`] is `None`. A group that `work` enters is the current one there. Afterwards
/// the current group is what it was before, also where `work` panics.
///
/// It is for lazy state of the process, which outlives the task that happens to need it first: a
/// static that is made at its first use, a thread-local of a thread that many tasks share, a thread
/// that a pool starts. Without it that task's group would have the bytes for ever. An object that
/// was made here and later grows in place (`realloc`) stays unowned; what is allocated anew
/// elsewhere, as by a map that doubles, is charged there.
///
/// The call writes two words of the thread and does nothing else, so it may be made at any moment,
/// even in a panic hook.
///
/// ```
/// use std::sync::OnceLock;
///
/// use memcg::allocator::unowned;
/// use memcg::{Group, Limits, Runtime};
///
/// static TABLE: OnceLock<Vec<u64>> = OnceLock::new();
///
/// fn table() -> &'static [u64] {
///     TABLE.get_or_init(|| unowned(|| (0..1_000).collect())) // whoever comes first pays nothing
/// }
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// assert_eq!(query.run(|| unowned(Group::current)), None);
/// assert_eq!(query.run(|| table().len()), 1_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[inline]
pub fn unowned<R>(work: impl FnOnce() -> R) -> R {
    current::within(None, work)
}

/// Counts bytes that no group owns; [`uncharge_unowned`] gives them back. Usually it is an addition
/// to a word of the thread's own. It takes no lock and allocates nothing.
///
/// The call is meant for the inside of an allocator, as those of [`Owner`] are.
#[inline]
pub fn charge_unowned(bytes: usize) {
    unowned::count(UnownedCount::Allocated, bytes as u64);
}

/// Gives back bytes that no group owns, on any thread. It costs what [`charge_unowned`] costs.
#[inline]
pub fn uncharge_unowned(bytes: usize) {
    unowned::count(UnownedCount::Freed, bytes as u64);
}

/// Does the work of [`uncharge_unowned`] if that takes no call, as [`Owner::begin_uncharge`]. If it
/// returns false, nothing has been counted, and the caller has to call `uncharge_unowned`.
///
/// ```
/// use memcg::allocator::{charge_unowned, try_uncharge_unowned, uncharge_unowned, unowned_bytes};
///
/// let before = unowned_bytes();
/// charge_unowned(100);
/// if !try_uncharge_unowned(100) {
///     uncharge_unowned(100);
/// }
/// assert_eq!(unowned_bytes(), before);
/// ```
#[inline(always)]
#[must_use = "nothing may be counted"]
pub fn try_uncharge_unowned(bytes: usize) -> bool {
    unowned::try_count(UnownedCount::Freed, bytes as u64)
}

/// Returns the bytes of the process that an allocator has handed out and no group owns. It visits
/// the count of each thread, and is exact as long as no thread allocates meanwhile.
pub fn unowned_bytes() -> u64 {
    unowned_group::sum()
}

/// Charges [`unowned_bytes`] to a group from here on, or to none. That group keeps the charge until
/// the next such call, even if it goes offline.
///
/// The charge follows the bytes with a delay: it lags by less than 1.1 MiB for each thread, and by
/// what a thread allocates before it next calls the crate outside of an allocator. After [`catch_up`]
/// it is exact.
///
/// ```
/// use memcg::allocator::{charge_unowned, charge_unowned_to, catch_up, uncharge_unowned};
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let shared = runtime.root().create("shared", Limits::new())?;
/// charge_unowned_to(Some(&shared));
/// charge_unowned(100);
/// catch_up();
/// assert_eq!(shared.live(), 100);
/// uncharge_unowned(100);
/// charge_unowned_to(None);
/// assert_eq!(shared.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn charge_unowned_to(group: Option<&Group>) {
    unowned_group::charge_to(group.map(Group::first));
}

/// Does the work that allocators have left to a call outside of them, such as waking waiters, and
/// brings the charge of [`unowned_bytes`] up to date. It may call listeners and wakers, as any call
/// that uncharges, and takes locks for a moment. Call it before you read figures that have to be
/// exact; everything else works without.
pub fn catch_up() {
    // Work that an allocator left is announced by a hint: this call looks for it in any case.
    deferred().announce(LISTS);
    // At the end of an outermost slow path a thread does what is left, so an empty one will do.
    drop(SlowPath::enter());
    unowned_group::follow_exactly();
}

/// A call outside of an allocator begins, with `header` as the current group from here on.
#[inline]
pub(super) fn catch_up_at_call(header: Option<HeaderRef>) {
    // Relaxed: a hint. A new group has a closed stock, and an allocator opens none.
    let is_closed =
        |header: HeaderRef| deferred().charges() && header.capacity.load(Ordering::Relaxed) == 0;
    if deferred().is_due() || header.is_some_and(is_closed) {
        catch_up_at_call_slow(header);
    }
}

/// Does the work of [`catch_up`], without foreign code and without the last bytes; and opens the
/// stock of a group that no thread has charged yet.
#[cold]
#[inline(never)]
fn catch_up_at_call_slow(header: Option<HeaderRef>) {
    let new = header
        .as_ref()
        .map(HeaderRef::counter)
        .filter(|counter| allocator::is_new(counter));
    // The stock is closed because a limit is near, not because it is new: charges go on walking.
    if new.is_none() && !deferred().is_due() {
        return;
    }
    // A program that enters a group does not expect its own wakers to run there: these are left to
    // another thread.
    context::without_foreign(|| {
        let path = SlowPath::enter();
        if let (Some(new), Some(outermost)) = (new, path.outermost()) {
            let (margin, units) = (new.headroom(), 0);
            at_limit::adapt(new, StockFinding::Closed { margin, units }, outermost);
        }
    });
    unowned_group::may_have_changed();
}
