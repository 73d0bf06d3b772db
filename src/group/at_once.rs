//! Charges that never block.

use std::mem::ManuallyDrop;

use super::charge::Charge;
use super::error::ChargeError;
use super::handle::Group;
use super::raw::count_charged;
use crate::admission::at_once::{self, Starts};
use crate::thread::context;
use crate::thread::directory::Header;
use crate::thread::slot::Consume;
use crate::units::Bytes;

/// # Charges of threads that may not block
impl Group {
    /// Charges `bytes` here and at all ancestors, or nowhere, and never blocks: for an allocator, an event loop, a
    /// thread that holds locks.
    ///
    /// The call sleeps at no time, waits for no other thread's work, and calls no foreign code: no reclaimer, hook,
    /// listener or waker. It takes no lock that another thread holds over a drain, a barrier, or foreign code. It
    /// allocates where the thread charges for the first time. Credit of other threads is not drained, so the call may
    /// refuse what [`try_charge`](Self::try_charge) admits; that of [central stocks](crate::CentralStock) is, where no
    /// other thread has the tree's lock. What the call finds to wake or to notify on its way, a thread of the crate
    /// does; only where the system gives no thread, this one does.
    ///
    /// Above a [high](Self::set_high) the charge is made without a delay: [`high_delay`](Self::high_delay) says it. A
    /// refusal is counted by [`refused_count`](Self::refused_count) and by no event, as in the kernel.
    ///
    /// It costs what `try_charge` costs where the charge fits, and one walk where it does not. It is exact: from a
    /// success on usage is within max at every level.
    ///
    /// Source: `try_charge_memcg` in `mm/memcontrol.c` without `__GFP_DIRECT_RECLAIM`.
    ///
    /// # Errors
    ///
    /// [`ChargeError::WouldBlock`] where a stock is open that may have credit, a reclaimer can be asked or a victim
    /// chosen: a call that may block may find room, or one that [starts](Self::try_charge_or_start) reclaim. Else as
    /// `try_charge`. With [`adaptive(false)`](crate::expert::FixedBatch) stocks are open at all times.
    ///
    /// ```
    /// # use memcg::{ChargeError, Limit, Runtime};
    /// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge_now(80)?;
    /// assert!(matches!(root.try_charge_now(30), Err(ChargeError::Limit(_))), "there is no reclaimer to ask");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge_now(&self, bytes: impl Into<Bytes>) -> Result<Charge, ChargeError> {
        let Bytes(bytes) = bytes.into();
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => charge_slow(self.header, bytes, missed, Starts::Nothing)?,
        }
        Ok(Charge::new(self.header, bytes))
    }

    /// Charges `bytes` where they fit at once below each max and each high, else does nothing: the first step of a charge
    /// that goes on otherwise, as [`charge_async`](Self::charge_async). It makes no error and takes no handle.
    ///
    /// It takes credit of this thread and of [central stocks](crate::CentralStock) alone. `None` says nothing more: a
    /// call that drains, reclaims, or is delayed may find room. No event and no [`refused_count`](Self::refused_count)
    /// counts it. What the call gives back serves charges in line, as after any charge: their wakers may run on this
    /// thread. From a success on usage is within max at every level.
    ///
    /// It costs what [`try_charge`](Self::try_charge) costs where the charge fits, and one walk where it does not.
    ///
    /// ```
    /// # use memcg::{Limit, Runtime};
    /// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
    /// let root = runtime.root();
    /// let held = root.charge_if_room(80).ok_or("80 fit")?;
    /// assert!(root.charge_if_room(30).is_none());
    /// assert_eq!((held.bytes(), root.live(), root.refused_count()), (80, 80, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn charge_if_room(&self, bytes: impl Into<Bytes>) -> Option<Charge> {
        let Bytes(bytes) = bytes.into();
        match self.header.consume_open(bytes) {
            Consume::Hit => Some(Charge::new(self.header, bytes)),
            missed => charge_if_room_slow(self.header, bytes, missed),
        }
    }

    /// [`try_charge_now`](Self::try_charge_now), which never blocks. Where the charge does not fit and more could be
    /// done for it, a thread of the crate begins to: try again a little later.
    ///
    /// Before the charge is refused it calls [`Reclaim::start`](crate::Reclaim::start) of reclaimers below the level that
    /// has refused: foreign code on this thread, which must not block. A reclaimer that promises there frees on a thread
    /// of its own. Where promises cover what is missing, the crate's thread drains and counts, and does no more.
    ///
    /// Else the thread does once what [`try_charge`](Self::try_charge) does before it refuses, at that level:
    /// it drains credit, asks reclaimers, and where the [policy](crate::OomPolicy) chooses it cancels one group. It
    /// counts the events, too. Charges that are refused at that level meanwhile are for the same work, which is for the
    /// largest of them. What is freed belongs to no charge: the next that comes may take it. Above a
    /// [high](Self::set_high) the charge is made, and the thread reclaims what is above.
    ///
    /// The thread, `memcg-reclaim`, is one for a runtime. It starts when it is needed, which costs a system call, and
    /// ends a second after the last work or with the runtime. Groups take turns there. A reclaimer that blocks there holds
    /// up no charge, and the next work of the same runtime. Listeners of what it counts are called by another thread,
    /// `memcg-listeners`, so that they hold up no work. Where the system gives no thread, nothing is started.
    ///
    /// # Errors
    ///
    /// [`ChargeError::WouldBlock`] where work was started. Else as `try_charge_now`: nothing could be done.
    ///
    /// ```
    /// # use memcg::{Bytes, Charge, ChargeError, Limit, Priority, Reclaim, ReclaimContext, Runtime};
    /// # use std::sync::{Arc, Mutex};
    /// # use std::time::Duration;
    /// struct Cache(Mutex<Option<Charge>>);
    /// impl Reclaim for Cache {
    ///     fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
    ///         self.0.lock().unwrap().as_mut().map_or(0, |held| held.shrink(Bytes(want)))
    ///     }
    /// }
    ///
    /// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
    /// let root = runtime.root();
    /// let cache = Arc::new(Cache(Mutex::new(Some(root.try_charge_now(80)?))));
    /// let _registration = root.register_reclaimer(cache, Priority::NORMAL);
    /// let charge = loop {
    ///     match root.try_charge_or_start(30) {
    ///         Err(ChargeError::WouldBlock(_)) => std::thread::sleep(Duration::from_millis(1)), // or do something else
    ///         ended => break ended?,
    ///     }
    /// };
    /// assert_eq!((charge.bytes(), root.live()), (30, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge_or_start(&self, bytes: impl Into<Bytes>) -> Result<Charge, ChargeError> {
        let Bytes(bytes) = bytes.into();
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => charge_slow(self.header, bytes, missed, Starts::Reclaim)?,
        }
        Ok(Charge::new(self.header, bytes))
    }

    /// Charges as [`try_charge_now`](Self::try_charge_now) does, which never blocks, without a guard. The caller gives the
    /// bytes back with [`uncharge`](Self::uncharge).
    ///
    /// It keeps the group as [`try_charge_raw`](Self::try_charge_raw) does, and costs what that costs where the charge
    /// fits. It is as exact.
    ///
    /// # Errors
    ///
    /// As [`try_charge_now`](Self::try_charge_now). Nothing of the charge remains.
    ///
    /// ```
    /// # use memcg::{ChargeError, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// root.try_charge_raw_now(80)?;
    /// assert!(matches!(root.try_charge_raw_now(30), Err(ChargeError::Limit(_))), "there is no reclaimer to ask");
    /// root.uncharge(80);
    /// assert_eq!(root.live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge_raw_now(&self, bytes: impl Into<Bytes>) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into();
        match self.header.consume_raw(bytes) {
            Consume::Hit => Ok(()),
            missed => charge_raw_slow(self.header, bytes, missed, Starts::Nothing),
        }
    }

    /// Charges as [`charge_if_room`](Self::charge_if_room) does, without a guard. False: nothing was charged. The caller
    /// gives the bytes back with [`uncharge`](Self::uncharge).
    ///
    /// It keeps the group as [`try_charge_raw`](Self::try_charge_raw) does, and costs what that costs where the charge
    /// fits; where it does not, one walk. It is as exact.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// assert!(root.charge_raw_if_room(80) && !root.charge_raw_if_room(30));
    /// assert_eq!((root.live(), root.refused_count()), (80, 0));
    /// root.uncharge(80);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    #[inline]
    pub fn charge_raw_if_room(&self, bytes: impl Into<Bytes>) -> bool {
        let Bytes(bytes) = bytes.into();
        match self.header.consume_raw(bytes) {
            Consume::Hit => true,
            missed => charge_raw_if_room_slow(self.header, bytes, missed),
        }
    }

    /// Charges as [`try_charge_or_start`](Self::try_charge_or_start) does, which never blocks, without a guard: for the
    /// memory pool of an engine whose code runs on async workers. The caller gives the bytes back with
    /// [`uncharge`](Self::uncharge).
    ///
    /// It keeps the group as [`try_charge_raw`](Self::try_charge_raw) does, and costs what that costs where the charge
    /// fits. It is as exact.
    ///
    /// # Errors
    ///
    /// As [`try_charge_or_start`](Self::try_charge_or_start). Nothing of the charge remains.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use memcg::{ChargeError, Priority, Reclaim, ReclaimContext, Runtime};
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
    /// let _registration = root.register_reclaimer(sorter.clone(), Priority::NORMAL);
    /// root.try_charge_raw_or_start(80)?;
    /// assert!(matches!(root.try_charge_raw_or_start(30), Err(ChargeError::WouldBlock(_))));
    /// assert_eq!(sorter.wanted.load(Ordering::Relaxed), 10);
    /// root.uncharge(80); // it spills
    /// root.try_charge_raw_or_start(30)?;
    /// # root.uncharge(30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge_raw_or_start(&self, bytes: impl Into<Bytes>) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into();
        match self.header.consume_raw(bytes) {
            Consume::Hit => Ok(()),
            missed => charge_raw_slow(self.header, bytes, missed, Starts::Reclaim),
        }
    }
}

#[cold]
#[inline(never)]
fn charge_slow(header: &'static Header, bytes: u64, missed: Consume, starts: Starts) -> Result<(), ChargeError> {
    let counter = header.counter();
    context::without_foreign(|| match at_once::charge(counter, bytes, missed, starts) {
        // The caller asks for the delay.
        Ok(_) => Ok(()),
        Err(failure) => Err(ChargeError::new(failure, counter, bytes)),
    })
}

/// It has no edge of its own: the walk is that of `try_charge_now`, and what is above a high is given back as any charge
/// is, which serves a waiter that came meanwhile (E25).
#[cold]
#[inline(never)]
pub(super) fn charge_if_room_slow(header: &'static Header, bytes: u64, missed: Consume) -> Option<Charge> {
    let charged = at_once::charge_uncounted(header.counter(), bytes, missed)?;
    let charge = Charge::new(header, bytes);
    // Above a high it is given back: the caller's next step makes it, with its delay.
    (charged.over_high == 0).then_some(charge)
}

/// [`charge_if_room_slow`], without a guard.
#[cold]
#[inline(never)]
fn charge_raw_if_room_slow(header: &'static Header, bytes: u64, missed: Consume) -> bool {
    let charge = charge_if_room_slow(header, bytes, missed).map(ManuallyDrop::new);
    if charge.is_some() {
        count_charged(header, bytes);
    }
    charge.is_some()
}

/// Makes a charge without a guard that did not hit.
#[cold]
#[inline(never)]
fn charge_raw_slow(header: &'static Header, bytes: u64, missed: Consume, starts: Starts) -> Result<(), ChargeError> {
    charge_slow(header, bytes, missed, starts)?;
    count_charged(header, bytes);
    Ok(())
}
