//! Charges without a guard: for a caller that keeps an amount and has no place for a value.

use std::mem::ManuallyDrop;

use super::charge::{Charge, charge_and_sleep_slow, release};
use super::error::ChargeError;
use super::handle::Group;
use crate::counter::raw::{self, Way};
use crate::thread::directory::Header;
use crate::thread::slot::{Consume, Put};
use crate::units::Bytes;

/// # Charges without a guard
impl Group {
    /// Charges as [`try_charge`](Self::try_charge) does, without a guard: the caller gives the bytes back with
    /// [`uncharge`](Self::uncharge). Use it where the caller's interface has only an amount, such as the memory pool of
    /// a query engine or an allocator. It may block, as `try_charge` does.
    ///
    /// Live bytes keep the group's object as those of a [`Charge`] do. 0 bytes hold nothing, and are refused where the
    /// group is offline. The call is as exact as `try_charge`. With its [`uncharge`](Self::uncharge) it costs 45
    /// instructions, none of them locked, and 69 through a trait object. A guard and its drop cost 47.
    ///
    /// # Errors
    ///
    /// [`ChargeError`], as [`try_charge`](Self::try_charge). Nothing of the charge remains.
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
    ///         self.0.charge_raw(bytes);
    ///     }
    ///     fn try_grow(&self, bytes: usize) -> Result<(), ChargeError> {
    ///         self.0.try_charge_raw(bytes)
    ///     }
    ///     fn shrink(&self, bytes: usize) {
    ///         self.0.uncharge(bytes);
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
    #[inline]
    pub fn try_charge_raw(&self, bytes: impl Into<Bytes>) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into();
        match self.header.consume_raw(bytes) {
            Consume::Hit => Ok(()),
            Consume::Miss => try_charge_slow(self.header, bytes),
            Consume::Undone => try_charge_undone_slow(self.header, bytes),
        }
    }

    /// Charges as [`charge`](Self::charge) does, whatever the limits say, without a guard. The caller gives the bytes
    /// back with [`uncharge`](Self::uncharge). Use it for memory that exists already.
    ///
    /// Returns the bytes charged: fewer than `bytes` only where usage would pass 2^63. The call also charges a group
    /// that is offline. It costs what [`try_charge_raw`](Self::try_charge_raw) costs, and is as exact as `charge`.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// root.charge_raw(130); // a library has allocated it already
    /// assert_eq!((root.usage(), root.forced()), (130, 30));
    /// root.uncharge(130);
    /// assert_eq!((root.usage(), root.forced()), (0, 0));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    #[inline]
    pub fn charge_raw(&self, bytes: impl Into<Bytes>) -> u64 {
        let Bytes(bytes) = bytes.into();
        match self.header.consume_raw(bytes) {
            Consume::Hit => bytes,
            Consume::Miss => charge_slow(self.header, bytes),
            Consume::Undone => charge_undone_slow(self.header, bytes),
        }
    }

    /// Gives bytes back that were charged without a guard, on whatever thread. It never fails, and works on a group
    /// that is offline.
    ///
    /// To give back more than was charged is a bug of the caller. It takes nothing from other groups: the group's own
    /// usage ends at 0, its ancestors give back what it held, and [`Counts::underflows`](crate::Counts::underflows)
    /// counts it. [`Runtime::verify`](crate::Runtime::verify) then names the group. Where guards hold the bytes that
    /// were given back, their drop is what is counted. Such a group's object is not used again, so a late drop finds
    /// its own group.
    ///
    /// The call writes one word of this thread more than the drop of a [`Charge`].
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// query.try_charge_raw(100)?;
    /// query.offline()?;
    /// assert_eq!(query.live(), 100);
    /// query.uncharge(100); // through a handle that was kept
    /// assert_eq!((query.live(), runtime.counts().underflows), (0, 0));
    /// query.uncharge(1); // a bug
    /// assert_eq!((query.live(), runtime.counts().underflows), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn uncharge(&self, bytes: impl Into<Bytes>) {
        let Bytes(bytes) = bytes.into();
        match self.header.put_raw(bytes) {
            Put::Kept => {}
            Put::Full => uncharge_slow(self.header, bytes),
            Put::Closed => uncharge_closed_slow(self.header, bytes),
        }
    }
}

impl Charge {
    /// Gives the guard up and keeps its bytes charged. Returns a word and the bytes, for memory that has no place for a
    /// guard. [`from_raw`](Self::from_raw) makes a guard of them again, and
    /// [`Group::uncharge`](crate::Group::uncharge) gives them back without one.
    ///
    /// The bytes keep the group's object. A charge of zero bytes keeps it by a handle, which only `from_raw` gives up.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// let (word, bytes) = query.try_charge(4096)?.into_raw();
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
        let (header, bytes) = (charge.header(), charge.bytes());
        if bytes > 0 {
            raw::count(header.counter(), bytes, Way::Charged);
        }
        (std::ptr::from_ref(header).cast(), bytes)
    }

    /// Makes a guard of what [`into_raw`](Self::into_raw) has returned, on whatever thread.
    ///
    /// # Safety
    ///
    /// `word` comes from `into_raw`, and the bytes are charged still: none of them was given back, and no guard has
    /// been made of them yet. `bytes` may be a part of what `into_raw` returned, but not 0 unless it returned 0. The
    /// calls for all parts together give no more than it returned.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// let (word, bytes) = query.try_charge(4096)?.into_raw();
    /// // SAFETY: two parts of one charge, each used once.
    /// let halves = unsafe { [bytes / 2, bytes - bytes / 2].map(|part| memcg::Charge::from_raw(word, part)) };
    /// drop(halves);
    /// assert_eq!(query.live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn from_raw(word: *const (), bytes: u64) -> Charge {
        // SAFETY: the word is that of a header, says the caller; headers are never freed.
        let header = unsafe { &*word.cast::<Header>() };
        if bytes > 0 {
            raw::count(header.counter(), bytes, Way::Uncharged);
        }
        Charge::new(header, bytes)
    }
}

// === The slow paths. One function for each way to miss: a hit then loads no number of the way ===

#[cold]
#[inline(never)]
fn try_charge_slow(header: &'static Header, bytes: u64) -> Result<(), ChargeError> {
    try_charge_missed(header, bytes, Consume::Miss)
}

#[cold]
#[inline(never)]
fn try_charge_undone_slow(header: &'static Header, bytes: u64) -> Result<(), ChargeError> {
    try_charge_missed(header, bytes, Consume::Undone)
}

fn try_charge_missed(header: &'static Header, bytes: u64, missed: Consume) -> Result<(), ChargeError> {
    charge_and_sleep_slow(header, bytes, missed)?;
    count_charged(header, bytes);
    Ok(())
}

/// Counts a charge that was made without a guard and did not hit.
pub(super) fn count_charged(header: &'static Header, bytes: u64) {
    if bytes > 0 {
        raw::count(header.counter(), bytes, Way::Charged);
    } else {
        // A charge of 0 bytes has taken a handle, which only a guard has a place for.
        release(header.counter());
    }
}

#[cold]
#[inline(never)]
fn charge_slow(header: &'static Header, bytes: u64) -> u64 {
    charge_missed(header, bytes, Consume::Miss)
}

#[cold]
#[inline(never)]
fn charge_undone_slow(header: &'static Header, bytes: u64) -> u64 {
    charge_missed(header, bytes, Consume::Undone)
}

fn charge_missed(header: &'static Header, bytes: u64, missed: Consume) -> u64 {
    let charged = if bytes == 0 { 0 } else { header.counter().force_slow(bytes, missed) };
    if charged > 0 {
        raw::count(header.counter(), charged, Way::Charged);
    }
    charged
}

#[cold]
#[inline(never)]
fn uncharge_slow(header: &'static Header, bytes: u64) {
    uncharge_missed(header, bytes, Put::Full);
}

#[cold]
#[inline(never)]
fn uncharge_closed_slow(header: &'static Header, bytes: u64) {
    uncharge_missed(header, bytes, Put::Closed);
}

/// The caller has a handle, so the counter is there afterwards.
fn uncharge_missed(header: &'static Header, bytes: u64, missed: Put) {
    if bytes > 0 {
        raw::count(header.counter(), bytes, Way::Uncharged);
        header.uncharge_slow(bytes, missed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::counter::object::Counter;
    use crate::counter::slow_path::SlowPath;
    use crate::error::USAGE_MAX;
    use crate::{Limits, Runtime};

    /// The group of `bad` has a guard of 10 bytes, and no usage shows them.
    #[track_caller]
    fn assert_kept(bad: impl FnOnce(&Counter)) {
        let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        let guard = group.try_charge(10).unwrap();
        bad(group.first());
        assert_eq!(group.usage(), 0);
        group.offline().unwrap();
        drop(group);
        assert_eq!((runtime.dying_count(), guard.group().path()), (1, "/q".to_owned()));
    }

    /// Only threads that force at once bring this about, so the test forces what a level cannot count.
    #[test]
    fn a_level_that_could_not_count_all_keeps_its_object() {
        assert_kept(|counter| {
            counter.force(USAGE_MAX);
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
                raw::count(counter, n, Way::Uncharged);
                counter.uncharge_levels(n);
            }
            drop(path);
        });
    }
}
