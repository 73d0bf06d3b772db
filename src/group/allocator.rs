//! What an allocator charges: the group that owns an object, and the bytes that no group owns.

use super::handle::Group;
use crate::counter::slow_path::SlowPath;
use crate::counter::{allocator, at_limit, cover, gross, near};
use crate::lifecycle::unowned as home;
use crate::sync::Ordering;
use crate::thread::current;
use crate::thread::directory::Header;
use crate::thread::left::{LISTS, left};
use crate::thread::{context, owner, slow_path, unowned};

/// The group that is charged for an object of an allocator, as a word of 4 bytes that the allocator keeps beside the
/// object.
///
/// The word names the group's object in the process, whichever [`Runtime`](crate::Runtime) made the group. The bytes of
/// the object keep the group. So the word counts no handle, and is good from [`charge`](Self::charge) to
/// [`uncharge`](Self::uncharge), on any thread, after the group went offline and after its runtime is gone.
///
/// The calls are for the inside of an allocator. A charge is forced: it is never refused and never delayed. It takes no
/// lock, allocates nothing, runs no foreign code and does not unwind. That holds before `main`, in destructors of
/// thread-locals, on threads that others made, in a child after `fork`, and inside the crate's own slow paths and
/// callbacks. What a charge would do beyond its count waits for the next call of the crate outside of an allocator: to
/// drain stocks below a level above its max, to wake waiters, to release a group.
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

impl Owner {
    /// No group: the bytes count as [unowned](unowned_bytes).
    pub const NONE: Owner = Owner(0);

    /// Charges an object of so many bytes to the thread's [current group](Group::current), or to the nearest group above
    /// that is online. Where the thread has no current group, or allocates inside a slow path of this crate, the bytes
    /// are [unowned](unowned_bytes).
    #[inline(always)]
    pub fn charge(bytes: usize) -> Owner {
        let n = bytes as u64;
        current::allocate_for(
            |group| near::charge(group, n).map(Owner),
            |header| Owner(allocator::charge_current(header, n)),
            |header| charge_covered(header, n),
            || {
                unowned::count_other(n);
                Owner::NONE
            },
        )
    }

    /// Charges an object of so many bytes to `group`, whatever the current group is.
    #[inline]
    pub fn charge_to(group: &Group, bytes: usize) -> Owner {
        match allocator::charge(group.header, bytes as u64) {
            Some(word) => Owner(word),
            None => {
                unowned::count_other(bytes as u64);
                Owner::NONE
            }
        }
    }

    /// Charges more bytes to the owner: an object grows.
    ///
    /// # Safety
    ///
    /// Bytes that this owner was charged for are not given back yet.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn grow(self, bytes: usize) {
        if near::grow(self.0, bytes as u64) {
            return;
        }
        // SAFETY: says the caller.
        unsafe {
            if self.is_covered() {
                grow_covered(self.0, bytes as u64);
            } else {
                allocator::grow(self.0, bytes as u64);
            }
        }
    }

    /// Gives bytes back. It is the last use of the owner where no bytes are left.
    ///
    /// # Safety
    ///
    /// So many bytes that this owner was charged for are not given back yet.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn uncharge(self, bytes: usize) {
        if near::uncharge(self.0, bytes as u64) {
            return;
        }
        // SAFETY: says the caller.
        unsafe {
            if self.is_covered() {
                uncharge_covered(self.0, bytes as u64);
            } else {
                allocator::uncharge(self.0, bytes as u64);
            }
        }
    }

    /// Whether a [covering charge](crate::Charge::cover) pays for the object.
    #[inline]
    pub fn is_covered(self) -> bool {
        owner::is_covered(self.0)
    }

    /// Returns the owner as a word. The three bits below the highest are never set.
    #[inline]
    pub fn to_word(self) -> u32 {
        self.0
    }

    /// Makes an owner of a word.
    ///
    /// # Safety
    ///
    /// The word comes from [`to_word`](Self::to_word).
    #[inline]
    #[allow(unsafe_code)]
    pub const unsafe fn from_word(word: u32) -> Owner {
        Owner(word)
    }

    /// Returns the group; `None` for [`NONE`](Self::NONE). It is not for the inside of an allocator.
    ///
    /// # Safety
    ///
    /// As for [`grow`](Self::grow).
    #[allow(unsafe_code)]
    pub unsafe fn group(self) -> Option<Group> {
        if self == Owner::NONE {
            return None;
        }
        // SAFETY: says the caller.
        let header = unsafe { allocator::header_of(owner::uncovered(self.0)) };
        header.map(|header| Group::pinned(header.counter()))
    }
}

#[inline]
fn charge_covered(header: &'static Header, bytes: u64) -> Owner {
    if slow_path::is_running() {
        unowned::count_other(bytes);
        return Owner::NONE;
    }
    Owner(cover::allocate(header, bytes))
}

/// # Safety
///
/// As for [`Owner::grow`], of a covered object.
#[inline(never)]
#[allow(unsafe_code)]
unsafe fn grow_covered(word: u32, bytes: u64) {
    // SAFETY: says the caller.
    if let Some(header) = unsafe { allocator::header_of(owner::uncovered(word)) } {
        cover::grow(header, bytes);
    }
}

/// # Safety
///
/// As for [`Owner::uncharge`], of a covered object.
#[inline]
#[allow(unsafe_code)]
unsafe fn uncharge_covered(word: u32, bytes: u64) {
    // SAFETY: says the caller.
    if let Some(header) = unsafe { allocator::header_of(owner::uncovered(word)) } {
        cover::free(header, bytes);
    }
}

/// Counts an object of so many bytes that no group owns: it is too small for a word. Where the thread has a current
/// group, the object is among the group's [small ones](Group::small_allocated). Give the bytes back with
/// [`uncharge_unowned`].
///
/// The call is for the inside of an allocator, as those of [`Owner`] are.
#[inline]
pub fn charge_small(bytes: usize) {
    unowned::count_small(bytes as u64);
}

/// Counts bytes that no group owns, and for no group's figures.
#[inline]
pub fn charge_unowned(bytes: usize) {
    unowned::count_other(bytes as u64);
}

/// Gives back bytes that no group owns.
#[inline]
pub fn uncharge_unowned(bytes: usize) {
    unowned::count_freed(bytes as u64);
}

/// Returns the bytes of the process that an allocator has handed out and no group owns. Exact where no thread allocates
/// meanwhile. It visits each thread's count.
pub fn unowned_bytes() -> u64 {
    home::sum()
}

/// Charges [`unowned_bytes`] to a group from here on, or to none. The group keeps that charge until the next call, also
/// where the group goes offline.
///
/// The charge follows the bytes: it lags by less than 1.1 MiB for each thread, and by what is allocated until a thread calls
/// the crate again outside of an allocator. After [`settle`] it is exact.
///
/// ```
/// use memcg::allocator::{charge_unowned, charge_unowned_to, settle, uncharge_unowned};
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let shared = runtime.root().create("shared", Limits::new())?;
/// charge_unowned_to(Some(&shared));
/// charge_unowned(100);
/// settle();
/// assert_eq!(shared.live(), 100);
/// uncharge_unowned(100);
/// charge_unowned_to(None);
/// assert_eq!(shared.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn charge_unowned_to(group: Option<&Group>) {
    home::charge_to(group.map(Group::first));
}

/// Does what allocators have left to a call outside of them, and charges what [`unowned_bytes`] has moved by. It may run
/// listeners and wakers, as any call that uncharges.
pub fn settle() {
    cover::look_below(None);
    // What is left is announced by a hint: here it is looked for in any case.
    left().announce(LISTS);
    drop(SlowPath::enter());
    home::settle();
}

/// A call outside of an allocator begins, with `header` as the current group from here on.
#[inline]
pub(super) fn catch_up(header: Option<&'static Header>) {
    // Relaxed: a hint. A new group has a closed stock, and an allocator opens none.
    let is_closed = |header: &Header| left().charges() && header.capacity.load(Ordering::Relaxed) == 0;
    if left().is_due() || header.is_some_and(is_closed) {
        catch_up_slow(header);
    }
}

/// What [`settle`] does, without foreign code and without the last bytes; and the stock of a group that no thread has
/// charged yet opens.
#[cold]
#[inline(never)]
fn catch_up_slow(header: Option<&'static Header>) {
    let new = header.map(Header::counter).filter(|counter| allocator::is_new(counter));
    if new.is_none() && !left().is_due() {
        return;
    }
    context::without_foreign(|| {
        let path = SlowPath::enter();
        if let (Some(new), Some(outermost)) = (new, path.outermost()) {
            at_limit::adapt(new, false, new.headroom(), outermost);
        }
    });
    home::may_have_changed();
}

/// # What an allocator has counted
impl Group {
    /// Returns the bytes that were allocated in this group, and not below it, in objects that are too small to be owned.
    /// A gross count: what was freed again is in it. Where it grows much faster than [`live`](Self::live), the group's
    /// memory is in small objects, and a lower threshold of the allocator shows them.
    ///
    /// It visits each thread's count. It lacks what a thread allocates after its last destructor.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// query.run(|| memcg::allocator::charge_small(24)); // an allocator does this
    /// assert_eq!(query.small_allocated(), 24);
    /// # memcg::allocator::uncharge_unowned(24);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn small_allocated(&self) -> u64 {
        gross::bytes(self.first())
    }
}
