//! Charges without a guard: for a caller that keeps an amount and has no place for a value.

use std::fmt;
use std::mem::ManuallyDrop;

use super::charge::{Charge, charge_and_sleep_slow, try_charge_slow, unpin_group};
use super::charge_with::{OnFull, charge_slow};
use super::counters::GroupCounter;
use super::error::ChargeError;
use super::handle::Group;
use crate::counter::object::HeaderRef;
use crate::counter::raw::{self, GuardlessMove};
use crate::counter::uncharge;
use crate::thread::directory::Header;
use crate::thread::slot::{Consume, Put};
use crate::units::{Bytes, IntoBytes};

/// # Charges without a guard
impl Group {
    /// Returns the calls that charge this group without a guard, for a caller whose interface has
    /// only an amount, such as the memory pool of a query engine or an allocator. Costs nothing.
    /// See [`RawCharges`] for an example.
    #[inline(always)]
    pub fn raw(&self) -> RawCharges<'_> {
        RawCharges {
            header: self.header,
            group: self,
        }
    }
}

impl GroupCounter {
    /// Returns the calls that charge this counter without a guard, as [`Group::raw`] does for
    /// memory. They cost the same.
    ///
    /// ```
    /// # let mut builder = memcg::Runtime::builder();
    /// let sort = builder.counter("sort", memcg::Unit::Bytes);
    /// let runtime = builder.build()?;
    /// let sort = runtime.root().counter(sort)?;
    /// sort.set_max(100)?;
    /// sort.raw().try_charge(80)?;
    /// assert!(sort.raw().try_charge(21).unwrap_err().is_over_limit());
    /// assert_eq!((sort.live(), sort.headroom()), (80, 20));
    /// sort.raw().uncharge(80);
    /// assert_eq!(sort.live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn raw(&self) -> RawCharges<'_> {
        RawCharges {
            header: self.header(),
            group: self.keep_of(),
        }
    }
}

/// Charges a group, or one counter of it, without a guard: [`Group::raw`] and [`GroupCounter::raw`]
/// return it. The caller gives the bytes back with [`uncharge`](Self::uncharge).
///
/// Live bytes keep the group's object as those of a [`Charge`] do. 0 bytes hold nothing, and are
/// refused where the group is offline. The calls do what those of [`Group`] of the same name do,
/// and are as exact. A charge with its `uncharge` costs 47 instructions, none of them locked, and
/// 71 through a trait object. A guard and its drop cost 49.
///
/// ```
/// use std::sync::Arc;
///
/// use memcg::{ChargeError, Group, Limits, Runtime};
///
/// /// What a query engine asks its pool: amounts, and no value that the engine keeps.
/// trait MemoryPool: Send + Sync {
///     fn grow(&self, bytes: usize);
///     fn try_grow(&self, bytes: usize) -> Result<(), ChargeError>;
///     fn shrink(&self, bytes: usize);
///     fn reserved(&self) -> usize;
/// }
///
/// struct GroupPool(Group);
///
/// impl MemoryPool for GroupPool {
///     fn grow(&self, bytes: usize) {
///         self.0.raw().force_charge(bytes);
///     }
///     fn try_grow(&self, bytes: usize) -> Result<(), ChargeError> {
///         self.0.raw().charge(bytes)
///     }
///     fn shrink(&self, bytes: usize) {
///         self.0.raw().uncharge(bytes);
///     }
///     fn reserved(&self) -> usize {
///         self.0.live() as usize
///     }
/// }
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new().max(1 << 20))?;
/// let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool(query.clone()));
/// let sorter = Arc::clone(&pool);
/// std::thread::spawn(move || {
///     sorter.try_grow(64 * 1024).unwrap();
///     sorter.grow(1024);
/// })
/// .join()
/// .unwrap();
/// assert!(pool.try_grow(1 << 20).is_err());
/// assert_eq!((pool.reserved(), query.live()), (65 * 1024, 65 * 1024));
/// pool.shrink(65 * 1024);
/// assert_eq!(query.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct RawCharges<'a> {
    header: HeaderRef,
    /// Keeps the counter.
    group: &'a Group,
}

impl fmt::Debug for RawCharges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawCharges")
            .field("group", self.group)
            .finish_non_exhaustive()
    }
}

impl RawCharges<'_> {
    /// Charges as [`Group::charge`] does, and may block for as long.
    ///
    /// # Errors
    ///
    /// [`ChargeError`], as [`Group::charge`]. Nothing of the charge remains.
    #[inline(always)]
    pub fn charge(self, bytes: impl IntoBytes) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        let header = self.header;
        match header.consume_raw(bytes) {
            Consume::Hit => Ok(()),
            Consume::Miss => charge_missed_slow::<false>(header, bytes),
            Consume::Undone => charge_missed_slow::<true>(header, bytes),
        }
    }

    /// Charges as [`Group::try_charge`] does, and never blocks.
    ///
    /// # Errors
    ///
    /// [`ChargeError`], as [`Group::try_charge`]. Nothing of the charge remains.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// root.raw().try_charge(80)?;
    /// assert!(root.raw().try_charge(21).is_err());
    /// # root.raw().uncharge(80);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn try_charge(self, bytes: impl IntoBytes) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        let header = self.header;
        match header.consume_raw(bytes) {
            Consume::Hit => Ok(()),
            Consume::Miss => try_charge_missed_slow::<false>(header, bytes),
            Consume::Undone => try_charge_missed_slow::<true>(header, bytes),
        }
    }

    /// Charges as [`Group::charge_with`] does: `full` says what happens if there is no room, and
    /// whether the call may block.
    ///
    /// # Errors
    ///
    /// As [`Group::charge_with`]. Nothing of the charge remains.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use memcg::{ChargeError, OnFull, ReclaimPriority, Reclaim, ReclaimContext, Runtime};
    ///
    /// /// An operator that can give its bytes back, but only by itself: it looks at `wanted` in its loop.
    /// #[derive(Default)]
    /// struct Sorter {
    ///     wanted: AtomicU64,
    /// }
    ///
    /// impl Reclaim for Sorter {
    ///     fn reclaim(&self, _want: u64, _context: &ReclaimContext<'_>) -> u64 {
    ///         0
    ///     }
    ///     fn start(&self, want: u64, _context: &ReclaimContext<'_>) {
    ///         self.wanted.fetch_max(want, Ordering::Relaxed);
    ///     }
    /// }
    ///
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let sorter = Arc::new(Sorter::default());
    /// let _registration = root.register_reclaimer(sorter.clone(), ReclaimPriority::NORMAL);
    /// root.raw().charge_with(80, OnFull::Start)?;
    /// assert!(matches!(root.raw().charge_with(30, OnFull::Start), Err(error) if error.is_would_block()));
    /// assert_eq!(sorter.wanted.load(Ordering::Relaxed), 10);
    /// root.raw().uncharge(80); // it spills
    /// root.raw().charge_with(30, OnFull::Start)?;
    /// # root.raw().uncharge(30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn charge_with(self, bytes: impl IntoBytes, full: OnFull) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        let header = self.header;
        match header.consume_raw(bytes) {
            Consume::Hit => Ok(()),
            missed => charge_with_missed_slow(header, bytes, missed, full),
        }
    }

    /// Charges as [`Group::force_charge`] does, whatever the limits say. Use it for memory that
    /// exists already.
    ///
    /// Returns the bytes charged: fewer than `bytes` only where usage would pass 2^63. The call
    /// also charges a group that is offline.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// root.raw().force_charge(130); // a library has allocated it already
    /// assert_eq!((root.usage(), root.forced()), (130, 30));
    /// root.raw().uncharge(130);
    /// assert_eq!((root.usage(), root.forced()), (0, 0));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    #[inline(always)]
    pub fn force_charge(self, bytes: impl IntoBytes) -> u64 {
        let Bytes(bytes) = bytes.into_bytes();
        let header = self.header;
        match header.consume_raw(bytes) {
            Consume::Hit => bytes,
            Consume::Miss => force_charge_slow::<false>(header, bytes),
            Consume::Undone => force_charge_slow::<true>(header, bytes),
        }
    }

    /// Gives bytes back that were charged without a guard, on whatever thread. It never fails, and
    /// works on a group that is offline.
    ///
    /// To give back more than was charged is a bug of the caller. It takes nothing from other
    /// groups: the group's own usage ends at 0, its ancestors give back the bytes that it held, and
    /// [`Event::Underflow`](crate::Event::Underflow) counts it at the group, with
    /// [`Counts::underflows`](crate::figures::TreeCounts::underflows) for all groups.
    /// [`Runtime::verify`](crate::Runtime::verify) names the group and the bytes. A listener of the
    /// event finds the caller: see the page *Recipes* of the book. If guards hold the bytes
    /// that were given back, the call counts nothing, and the drops of the guards are counted. Such
    /// a group's object is not used again, so a late drop finds its own group.
    ///
    /// The call writes one word of this thread more than the drop of a [`Charge`].
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// query.raw().charge(100)?;
    /// query.offline()?;
    /// assert_eq!(query.live(), 100);
    /// query.raw().uncharge(100); // through a handle that was kept
    /// assert_eq!((query.live(), runtime.counts().underflows), (0, 0));
    /// query.raw().uncharge(1); // a bug
    /// assert_eq!((query.live(), runtime.counts().underflows), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn uncharge(self, bytes: impl IntoBytes) {
        let Bytes(bytes) = bytes.into_bytes();
        let header = self.header;
        match header.put_raw(bytes) {
            Put::Kept => {}
            Put::Full => uncharge_slow::<false>(header, bytes),
            Put::Closed => uncharge_slow::<true>(header, bytes),
        }
    }
}

impl Charge {
    /// Gives the guard up and keeps its bytes charged. Returns a word and the bytes, for memory
    /// that has no place for a guard. [`from_raw`](Self::from_raw) makes a guard of them again, and
    /// [`RawCharges::uncharge`] gives them back without one.
    ///
    /// The bytes keep the group's object. A charge of zero bytes keeps it by a handle, which only
    /// `from_raw` gives up.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// let (word, bytes) = query.charge(4096)?.into_raw();
    /// assert_eq!((bytes, query.live()), (4096, 4096));
    /// // SAFETY: both are from `into_raw`, and are used once.
    /// let charge = unsafe { memcg::Charge::from_raw(word, bytes) };
    /// assert_eq!(charge.group(), query);
    /// drop(charge);
    /// assert_eq!(query.live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "the bytes stay charged"]
    pub fn into_raw(self) -> (*const (), u64) {
        let charge = ManuallyDrop::new(self);
        let header = charge.header();
        let bytes = charge.bytes();
        if bytes > 0 {
            raw::count(header.counter(), bytes, GuardlessMove::Charged);
        }
        (std::ptr::from_ref(header.header()).cast(), bytes)
    }

    /// Makes a guard of what [`into_raw`](Self::into_raw) has returned, on whatever thread.
    ///
    /// # Safety
    ///
    /// `word` comes from `into_raw`, and the bytes are charged still: none of them was given back,
    /// and no guard has been made of them yet. `bytes` may be a part of what `into_raw` returned,
    /// but not 0 unless it returned 0. The calls for all parts together give no more than it
    /// returned.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// let (word, bytes) = query.charge(4096)?.into_raw();
    /// // SAFETY: two parts of one charge, each used once.
    /// let halves = unsafe { [bytes / 2, bytes - bytes / 2].map(|part| memcg::Charge::from_raw(word, part)) };
    /// drop(halves);
    /// assert_eq!(query.live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn from_raw(word: *const (), bytes: u64) -> Charge {
        // SAFETY: the word is that of a header, says the caller, and its bytes or its handle keep
        // the counter.
        let header = unsafe { HeaderRef::new(&*word.cast::<Header>()) };
        if bytes > 0 {
            raw::count(header.counter(), bytes, GuardlessMove::Uncharged);
        }
        Charge::new(header, bytes)
    }
}

// === The slow paths. One function for each way to miss: a hit then loads no number of the way ===

const fn missed(undone: bool) -> Consume {
    if undone {
        Consume::Undone
    } else {
        Consume::Miss
    }
}

#[cold]
#[inline(never)]
fn charge_missed_slow<const UNDONE: bool>(
    header: HeaderRef,
    bytes: u64,
) -> Result<(), ChargeError> {
    charge_and_sleep_slow(header, bytes, missed(UNDONE))?;
    charged(header, bytes);
    Ok(())
}

#[cold]
#[inline(never)]
fn try_charge_missed_slow<const UNDONE: bool>(
    header: HeaderRef,
    bytes: u64,
) -> Result<(), ChargeError> {
    try_charge_slow(header, bytes, missed(UNDONE))?;
    charged(header, bytes);
    Ok(())
}

#[cold]
#[inline(never)]
fn charge_with_missed_slow(
    header: HeaderRef,
    bytes: u64,
    missed: Consume,
    full: OnFull,
) -> Result<(), ChargeError> {
    charge_slow(header, bytes, missed, full)?;
    charged(header, bytes);
    Ok(())
}

/// No guard has the bytes.
fn charged(header: HeaderRef, bytes: u64) {
    if bytes > 0 {
        raw::count(header.counter(), bytes, GuardlessMove::Charged);
    } else {
        // A charge of 0 bytes has taken a handle, which only a guard has a place for.
        unpin_group(header.counter());
    }
}

#[cold]
#[inline(never)]
fn force_charge_slow<const UNDONE: bool>(header: HeaderRef, bytes: u64) -> u64 {
    let charged = if bytes == 0 {
        0
    } else {
        header.counter().force_slow(bytes, missed(UNDONE))
    };
    if charged > 0 {
        raw::count(header.counter(), charged, GuardlessMove::Charged);
    }
    charged
}

/// The caller has a handle, so the counter is there afterwards.
#[cold]
#[inline(never)]
fn uncharge_slow<const CLOSED: bool>(header: HeaderRef, bytes: u64) {
    if bytes > 0 {
        raw::count(header.counter(), bytes, GuardlessMove::Uncharged);
        // Counted before: these bytes may be what keeps the counter, and whoever claims it reads
        // the counts.
        uncharge::uncharge_missed(&header, bytes, if CLOSED { Put::Closed } else { Put::Full });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::counter::level::ChargeMode;
    use crate::counter::object::Counter;
    use crate::counter::slow_path::SlowPath;
    use crate::counter::walk;
    use crate::error::USAGE_MAX;
    use crate::{Limits, Runtime};

    /// The group of `bad` has a guard of 10 bytes, and no usage shows them.
    #[track_caller]
    fn assert_kept(bad: impl FnOnce(&Counter)) {
        let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        let guard = group.charge(10).unwrap();
        bad(group.first());
        assert_eq!(group.usage(), 0);
        group.offline().unwrap();
        drop(group);
        assert_eq!(
            (runtime.dying_count(), guard.group().path()),
            (1, "/q".to_owned())
        );
    }

    /// Only threads that force at once bring this about, so the test forces what a level cannot
    /// count.
    #[test]
    fn a_level_that_could_not_count_all_keeps_its_object() {
        assert_kept(|counter| {
            assert!(walk::walk(counter, USAGE_MAX, ChargeMode::Force, None).is_ok());
            counter.uncharge_levels(USAGE_MAX);
        });
    }

    /// As a thread without a block counts.
    #[test]
    fn a_shared_sum_that_ends_keeps_the_object() {
        assert_kept(|counter| {
            let path = SlowPath::enter();
            // 2^64 in all, and the 10 bytes that guards hold are the first of them.
            for n in [1 << 62; 4] {
                raw::count(counter, n, GuardlessMove::Uncharged);
                counter.uncharge_levels(n);
            }
            drop(path);
        });
    }
}
