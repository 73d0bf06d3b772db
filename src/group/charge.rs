//! `Charge`: bytes held, as a value.
//!
//! A charge is two words. Its bytes keep the group's object alive, so a charge and its drop count
//! nothing else. A charge of zero bytes holds a handle instead. It takes the handle before its last
//! bytes go, and gives it up after its first bytes came.

use std::fmt;
use std::mem::ManuallyDrop;

use super::error::ChargeError;
use super::handle::Group;
use crate::admission::at_once::{self, AtOnceEffort};
use crate::admission::plain::WaitFor;
use crate::admission::steps;
use crate::counter::handle::Handle;
use crate::counter::object::{Counter, HeaderRef};
use crate::counter::uncharge::uncharge_missed;
use crate::error::USAGE_MAX;
use crate::pressure::throttle;
use crate::sync::model_failed;
use crate::thread::context;
use crate::thread::slot::{Consume, Put};
use crate::units::{Bytes, IntoBytes};

/// Bytes charged to a group and all its ancestors. The drop gives them back, on whatever thread it
/// runs.
///
/// A caller that has only an amount charges without a guard: [`Group::raw`].
///
/// A charge is two words, owned, `Send + 'static`. It may outlive every handle of its group and the
/// runtime, and its group may go offline before it. To make one and to drop it costs 2.5 ns where
/// the thread has credit. [`group.force_charge(0)`](Group::force_charge) makes an empty one, which
/// is never refused, to grow as its memory does.
///
/// **`let _ = group.charge(n)?` charges nothing**: `_` is no variable, so the charge is dropped
/// at once. The compiler warns of the call without `let _ =` and proposes to write it; bind
/// `let _charge = …`, or keep the value and its charge as one: [`Charged`](crate::Charged).
///
/// ```
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let charge = query.charge(64 * 1024)?;       // before the memory is allocated
/// let buffer = vec![0u8; 64 * 1024];
/// assert_eq!((charge.bytes(), charge.group(), query.live()), (64 * 1024, query.clone(), 64 * 1024));
/// std::thread::spawn(move || drop((buffer, charge))).join().unwrap();
/// assert_eq!(query.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once it gives the bytes back at once, and `let _ =` drops it at once: bind it to a name, as in `let _charge =`"]
pub struct Charge {
    pub(super) header: HeaderRef,
    pub(super) bytes: u64,
}

impl Charge {
    /// Owns bytes that have been charged, or for 0 bytes a handle that has been taken.
    #[inline(always)]
    pub(crate) fn new(header: HeaderRef, bytes: u64) -> Self {
        Charge { header, bytes }
    }

    /// Charges as [`Group::charge`] does.
    #[inline(always)]
    pub(crate) fn attempt(header: HeaderRef, bytes: u64) -> Result<Charge, ChargeError> {
        match header.consume_open(bytes) {
            Consume::Hit => {}
            missed => charge_and_sleep_slow(header, bytes, missed)?,
        }
        Ok(Charge::new(header, bytes))
    }

    /// Charges whatever the limits say.
    #[inline]
    pub(crate) fn by_force(header: HeaderRef, bytes: u64) -> Self {
        let charged = charge_forced(header, bytes);
        if charged == 0 {
            pin_group(header.counter());
        }
        Charge::new(header, charged)
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> HeaderRef {
        self.header
    }

    pub(crate) fn counter(&self) -> &Counter {
        self.header.counter()
    }

    /// Returns the bytes that the charge holds; for a charge of a [further
    /// counter](crate::CounterKey), the units of that counter. It reads a word of the charge
    /// itself.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the group that is charged. The handle is one of its own, which keeps the group as
    /// any clone does.
    pub fn group(&self) -> Group {
        Group::pinned(self.header.counter().first())
    }

    /// Charges `bytes` more, whatever the limits say, as [`Group::force_charge`] does. Use it for
    /// memory that exists already. It never blocks, and costs what [`Group::force_charge`] costs.
    ///
    /// A charge holds at most 2^63 - 1 bytes, and what would go beyond that is given back at once.
    /// Only a bug can bring it there: a caller that has [uncharged by
    /// amount](crate::RawCharges::uncharge) what this charge holds.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let mut charge = runtime.root().charge(80)?;
    /// charge.force_grow(50);
    /// assert_eq!((charge.bytes(), runtime.root().forced()), (130, 30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn force_grow(&mut self, bytes: impl IntoBytes) {
        let Bytes(bytes) = bytes.into_bytes();
        // Mutation: e15-guard-lets-go-before-it-grows
        self.grown(charge_forced(self.header, bytes));
    }

    /// Charges `bytes` more, as [`Group::charge`] does, and for as long: it may block. In async
    /// code use [`grow_async`](Self::grow_async).
    ///
    /// # Errors
    ///
    /// [`ChargeError`]; the charge is as it was.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let mut charge = runtime.root().charge(80)?;
    /// charge.grow(20)?;
    /// assert!(charge.grow(1).is_err());
    /// assert_eq!(charge.bytes(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn grow(&mut self, bytes: impl IntoBytes) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed if bytes > 0 => charge_and_sleep_slow(self.header, bytes, missed)?,
            // To grow by 0 bytes needs no admission, and the charge has its handle or its bytes
            // already.
            _ => {}
        }
        self.grown(bytes);
        Ok(())
    }

    /// Charges `bytes` more, as [`Group::try_charge`] does, and never blocks.
    ///
    /// # Errors
    ///
    /// [`ChargeError`]; the charge is as it was.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let mut charge = runtime.root().try_charge(80)?;
    /// charge.try_grow(20)?;
    /// assert!(charge.try_grow(1).is_err());
    /// assert_eq!(charge.bytes(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_grow(&mut self, bytes: impl IntoBytes) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed if bytes > 0 => try_charge_slow(self.header, bytes, missed)?,
            // As in `grow`.
            _ => {}
        }
        self.grown(bytes);
        Ok(())
    }

    /// Records that `bytes` more have been charged. From here on they keep the group. Gives back
    /// what no charge can hold: some, where a caller has uncharged by amount what it holds.
    #[inline]
    pub(super) fn grown(&mut self, bytes: u64) {
        let held = self.bytes;
        let added = bytes.min(USAGE_MAX - held);
        self.bytes += added;
        // From here on the bytes keep the group, and not the handle that an empty charge has.
        if held == 0 && added > 0 {
            unpin_group(self.header.counter());
        }
        if added < bytes {
            uncharge(self.header, bytes - added);
        }
    }

    /// Gives `bytes` back, or all that the charge holds if that is less. Returns the bytes given
    /// back.
    ///
    /// It never blocks, and costs what the drop of a charge costs: usually the bytes go into this
    /// thread's stock, otherwise up the tree, after which listeners and wakers may run on this
    /// thread.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let mut charge = runtime.root().charge(10)?;
    /// assert_eq!((charge.shrink(4), charge.bytes()), (4, 6));
    /// assert_eq!((charge.shrink(100), charge.bytes()), (6, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn shrink(&mut self, bytes: impl IntoBytes) -> u64 {
        let Bytes(bytes) = bytes.into_bytes();
        let held = self.bytes();
        let bytes = bytes.min(held);
        if bytes == 0 {
            return 0;
        }
        // An empty charge keeps the group by a handle, which it takes before its last bytes go.
        // Mutation: e15-guard-shrinks-before-it-holds
        if bytes == held {
            pin_group(self.header.counter());
        }
        // Mutation: e15-guard-shrinks-before-it-holds
        self.bytes -= bytes;
        uncharge(self.header, bytes);
        bytes
    }

    /// Grows or shrinks to exactly `bytes`. To grow may block, as [`grow`](Self::grow): in
    /// async code use [`grow_async`](Self::grow_async).
    ///
    /// # Errors
    ///
    /// [`ChargeError`] where it has to grow and cannot; the charge is as it was.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let mut charge = runtime.root().charge(80)?;
    /// charge.resize(30)?;
    /// assert!(charge.resize(101).is_err());
    /// assert_eq!(runtime.root().live(), 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn resize(&mut self, bytes: impl IntoBytes) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        let held = self.bytes();
        match bytes.checked_sub(held) {
            Some(more) => self.grow(Bytes(more)),
            None => {
                self.shrink(Bytes(held - bytes));
                Ok(())
            }
        }
    }

    /// Grows or shrinks to exactly `bytes`, as [`try_grow`](Self::try_grow) grows, and never
    /// blocks.
    ///
    /// # Errors
    ///
    /// [`ChargeError`] where it has to grow and cannot; the charge is as it was.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let mut charge = runtime.root().try_charge(80)?;
    /// charge.try_resize(30)?;
    /// assert!(charge.try_resize(101).is_err());
    /// assert_eq!(runtime.root().live(), 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_resize(&mut self, bytes: impl IntoBytes) -> Result<(), ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        let held = self.bytes();
        match bytes.checked_sub(held) {
            Some(more) => self.try_grow(Bytes(more)),
            None => {
                self.shrink(Bytes(held - bytes));
                Ok(())
            }
        }
    }

    /// Grows or shrinks to exactly `bytes`, whatever the limits say, as
    /// [`force_grow`](Self::force_grow) grows. Use it for memory that has become larger already.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let mut charge = runtime.root().charge(80)?;
    /// charge.force_resize(130);
    /// assert_eq!((charge.bytes(), runtime.root().forced()), (130, 30));
    /// charge.force_resize(10);
    /// assert_eq!(runtime.root().live(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn force_resize(&mut self, bytes: impl IntoBytes) {
        let Bytes(bytes) = bytes.into_bytes();
        let held = self.bytes();
        match bytes.checked_sub(held) {
            Some(more) => self.force_grow(Bytes(more)),
            None => drop(self.shrink(Bytes(held - bytes))),
        }
    }

    /// Gives the guard up without giving the bytes back, and returns how many they are. They stay
    /// charged, and keep the group's object, until the process ends. To give them back later by
    /// amount, use [`into_raw`](Self::into_raw).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let leaked = runtime.root().charge(10)?.forget();
    /// assert_eq!((leaked, runtime.root().live()), (10, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forget(self) -> u64 {
        ManuallyDrop::new(self).bytes()
    }
}

// === impl Group: charges ===

/// # Charges
impl Group {
    /// Charges `bytes` here and at all ancestors, or nowhere, before you allocate them. It may
    /// block: in async code use [`charge_async`](Self::charge_async) or
    /// [`try_charge`](Self::try_charge).
    ///
    /// If the bytes do not fit, the charge first drains all credit below the level that is full. It
    /// then asks the reclaimers there to give memory back ([`Reclaim`](crate::Reclaim)): code of
    /// yours runs on this thread, for at most
    /// [`reclaim_time`](crate::RuntimeBuilder::reclaim_time), and once a reclaimer is at work the
    /// call waits for it to return. If the [policy](crate::OomPolicy) chooses victims, the charge
    /// waits for each of them, for at most [`oom_time`](crate::RuntimeBuilder::oom_time). A charge
    /// above a [`high`](crate::Limits::high) is made, and sleeps for at most
    /// [`delay_max`](crate::RuntimeBuilder::delay_max). A charge of 0 bytes always fits, and keeps
    /// the group's object.
    ///
    /// A charge and its return cost 2.5 ns if this thread has credit, and two or three
    /// read-modify-write instructions a level if it has none. The charge is exact: once it has
    /// succeeded, usage is within max at every level.
    ///
    /// Source: `try_charge_memcg` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`ChargeErrorKind::OverLimit`](crate::ChargeErrorKind::OverLimit):
    /// [`over_limit`](ChargeError::over_limit) says which group on the path is full. Inside a
    /// reclaimer no other reclaimer is asked first.
    /// [`ChargeErrorKind::Offline`](crate::ChargeErrorKind::Offline): the group takes no charges
    /// any more. [`ChargeErrorKind::Cancelled`](crate::ChargeErrorKind::Cancelled): the group was
    /// chosen to give its memory back.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let charge = acme.charge(80)?;
    /// let refused = acme.charge(21).unwrap_err();
    /// let line = "/ refused 21 B for /acme: short by 1 B, usage 80 B of max 100 B; most in /acme 80 B; \
    ///             waiting can help; to fit, release memory in /, register a reclaimer there or raise max of /";
    /// assert_eq!(refused.to_string(), line);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn charge(&self, bytes: impl IntoBytes) -> Result<Charge, ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        Charge::attempt(self.header, bytes)
    }

    /// Charges `bytes` here and at all ancestors, or nowhere, and never blocks: it does not sleep
    /// for a limit, does not wait for another charge or a callback, and runs no code of yours on
    /// this thread. So it may be called on an async worker, and while any lock is held.
    ///
    /// Before it is refused, the charge drains all credit below the level that is full, as
    /// [`charge`](Self::charge) does, so it is never refused while credit is stranded, [but for a
    /// few cases](crate::docs::limitations). The drain takes the tree's lock, under which no thread
    /// runs foreign code or sleeps, and runs one heavy barrier. The charge asks no reclaimer,
    /// cancels no group, and takes no place in line.
    ///
    /// A refusal also counts what other charges have in flight, even one that is itself about to be
    /// refused further up. That is rare: while a level keeps refusing, a charge looks at that level
    /// before it takes anything below. It takes bytes below first only once in 4,096 charges that
    /// fit there, and if another thread takes the room that it has just seen.
    ///
    /// Above a [`high`](crate::Limits::high) the charge is made without a delay, like a charge of
    /// the kernel that may not sleep, and the runtime's thread `memcg-reclaim` reclaims the excess.
    /// That thread starts when it is needed and ends a second after its last work. Wakers and
    /// listeners that the charge finds due are called by a thread of the runtime, and by this
    /// thread only if the system cannot start one.
    ///
    /// If the bytes fit, it costs what [`charge`](Self::charge) costs and is as exact.
    ///
    /// Source: `try_charge_memcg` in `mm/memcontrol.c` without `__GFP_DIRECT_RECLAIM`, and
    /// `page_counter_try_charge` in `mm/page_counter.c`.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](crate::ChargeErrorKind::WouldBlock) if a call that blocks could find room,
    /// because a reclaimer can be asked or a victim chosen; otherwise
    /// [`OverLimit`](crate::ChargeErrorKind::OverLimit). Both say which group on the path is full.
    /// [`Offline`](crate::ChargeErrorKind::Offline): the group takes no charges any more.
    /// [`refused_count`](Self::refused_count) counts a refusal, and no event does, as in the
    /// kernel.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().high(50))?;
    /// let charge = acme.try_charge(80)?; // at once, also above its high
    /// assert!(acme.try_charge(21).unwrap_err().is_over_limit());
    /// drop(charge);
    /// assert_eq!(acme.try_charge(100)?.bytes(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge(&self, bytes: impl IntoBytes) -> Result<Charge, ChargeError> {
        let Bytes(bytes) = bytes.into_bytes();
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => try_charge_slow(self.header, bytes, missed)?,
        }
        Ok(Charge::new(self.header, bytes))
    }

    /// Charges `bytes` here and at all ancestors, whatever the limits say. It never sleeps, cannot
    /// fail, and also charges a group that is offline. Use it for memory that exists already.
    ///
    /// The charge drains stranded credit first. What still does not fit goes above max, and
    /// [`forced`](Self::forced) counts it. Other charges are then refused, or wait, until enough
    /// has been given back. The charge is smaller than `bytes` only if usage would pass 2^63.
    ///
    /// It costs what [`charge`](Self::charge) costs; above max it may take the tree's lock and a
    /// barrier for the drain, and may call listeners and wakers.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let root = runtime.root();
    /// let charge = root.force_charge(130); // a library has allocated it already
    /// assert_eq!((root.usage(), root.forced()), (130, 30));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    #[inline]
    pub fn force_charge(&self, bytes: impl IntoBytes) -> Charge {
        let Bytes(bytes) = bytes.into_bytes();
        Charge::by_force(self.header, bytes)
    }
}

/// Makes a charge that did not hit, and sleeps where it is above a high. A charge of 0 bytes takes
/// a handle.
#[cold]
#[inline(never)]
pub(super) fn charge_and_sleep_slow(
    header: HeaderRef,
    bytes: u64,
    missed: Consume,
) -> Result<(), ChargeError> {
    let walked = charge_undelayed(header, bytes, missed, WaitFor::Others)?;
    // The charge keeps the group.
    throttle::sleep_after(header.counter(), walked, None);
    Ok(())
}

/// Makes a charge that did not hit. The caller delays the thread for the bytes that it returns.
pub(super) fn charge_undelayed(
    header: HeaderRef,
    bytes: u64,
    missed: Consume,
    wait_for: WaitFor,
) -> Result<u64, ChargeError> {
    let counter = header.counter();
    steps::charge(counter, bytes, missed, wait_for)
        .map_err(|failure| ChargeError::new(failure, counter, bytes))
}

/// Makes a charge that did not hit and never blocks, for [`Group::try_charge`] and its like.
#[cold]
#[inline(never)]
pub(super) fn try_charge_slow(
    header: HeaderRef,
    bytes: u64,
    missed: Consume,
) -> Result<(), ChargeError> {
    charge_at_once(header, bytes, missed, AtOnceEffort::Drain)
}

/// What the charge finds to wake or to notify, a thread of the tree does.
pub(super) fn charge_at_once(
    header: HeaderRef,
    bytes: u64,
    missed: Consume,
    effort: AtOnceEffort,
) -> Result<(), ChargeError> {
    let counter = header.counter();
    context::without_foreign(|| {
        at_once::charge(counter, bytes, missed, effort)
            .map(drop)
            .map_err(|failure| ChargeError::new(failure, counter, bytes))
    })
}

// === The handles of charges of zero bytes ===

/// Takes a handle on the group.
#[cold]
pub(super) fn pin_group(counter: &Counter) {
    Handle::pin(counter).into_raw();
}

/// Gives a handle on the group up. Afterwards the group may be gone.
#[inline]
pub(super) fn unpin_group(counter: &Counter) {
    drop(Handle::adopt(counter.object()));
}

/// Charges whatever the limits say. Returns the bytes charged.
#[inline(always)]
fn charge_forced(header: HeaderRef, bytes: u64) -> u64 {
    match header.consume(bytes) {
        Consume::Hit => bytes,
        missed => header.counter().force_slow(bytes, missed),
    }
}

#[inline(always)]
fn uncharge(header: HeaderRef, bytes: u64) {
    match header.put(bytes) {
        Put::Kept => {}
        missed => uncharge_missed(&header, bytes, missed),
    }
}

#[cold]
#[inline(never)]
fn drop_slow(header: HeaderRef, bytes: u64) {
    if bytes > 0 {
        uncharge_missed(&header, bytes, Put::Full);
    } else {
        unpin_group(header.counter());
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        match self.header.put(self.bytes) {
            Put::Kept => {}
            // A charge of no bytes is always here.
            Put::Full => drop_slow(self.header, self.bytes),
            Put::Closed => uncharge_missed(&self.header, self.bytes, Put::Closed),
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("group", &self.group().shown_path())
            .field("bytes", &self.bytes())
            .finish()
    }
}
