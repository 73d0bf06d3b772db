//! A cover that charges without a guard pay for.

use std::fmt;

use super::allocator;
use super::error::ChargeError;
use super::handle::Group;
use super::on_full::OnFull;
use crate::counter::cover;
use crate::counter::raw_cover::{self, RawHeld};
use crate::thread::current::within_cover;
use crate::units::Bytes;

/// # Charges that pay for allocations
impl Group {
    /// Begins a cover that charges without a guard pay for: see [`RawCover`]. It allocates, the first time in a group.
    pub fn raw_cover(&self) -> RawCover {
        RawCover::begin(self.clone(), self.clone())
    }
}

/// A cover that charges without a guard pay for, as [`Charge::cover`](crate::Charge::cover) is one that a
/// [`Charge`](crate::Charge) pays for: for the memory pool of a query engine, whose interface has only amounts.
///
/// The engine's threads allocate in [`run`](Self::run), and its pool charges and uncharges here. Then usage is the larger of
/// what the pool has charged and what the threads have allocated. What is allocated beyond the charges is
/// [unpaid](crate::Ledger::unpaid), and charged by force. A charge takes over what is unpaid first, so memory that is
/// allocated before it is charged needs no room twice.
///
/// While one of these lives, the comparison of the group's covers is *coarse*. What is unpaid is behind by less than 1 MiB
/// for each thread that allocates, and for each that frees, and by less than 64 KiB that was uncharged. A flush, a
/// checkpoint and [`settle`](crate::allocator::settle) make it exact. The drop makes it exact, too.
///
/// A charge and its return cost some hundred nanoseconds, without a lock. Where many threads allocate and free, what is
/// covered costs as under any cover.
///
/// ```
/// use memcg::allocator::Owner; // what an allocator does
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new().max(4 << 20))?;
/// let sorts = query.create("sorts", Limits::new())?;
/// let cover = query.raw_cover();
/// let sorter = cover.of_below(&sorts).unwrap();
///
/// let batch = cover.run(|| Owner::charge(3 << 20));
/// assert_eq!((query.live(), query.ledger().unpaid()), (3 << 20, 3 << 20));
/// sorter.try_charge_now(3 << 20)?; // the pool is told afterwards
/// assert_eq!((query.live(), query.ledger().unpaid(), sorts.live()), (3 << 20, 0, 3 << 20), "paid once");
/// assert!(sorter.try_charge_now(2 << 20).is_err());
///
/// sorter.uncharge(3 << 20);
/// assert_eq!((query.live(), query.ledger().unpaid()), (3 << 20, 3 << 20), "the batch is there still");
/// unsafe { batch.uncharge(3 << 20) };
/// assert_eq!(query.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once it covers nothing"]
pub struct RawCover {
    /// What allocates is in this group, and its record has the cover.
    group: Group,
    /// The group that is charged: that one, or one below it.
    charged: Group,
    held: RawHeld,
    covers: bool,
}

impl RawCover {
    fn begin(group: Group, charged: Group) -> RawCover {
        let covers = cover::prepare(group.first());
        if covers {
            raw_cover::begin(group.header);
        }
        RawCover { group, charged, held: RawHeld::default(), covers }
    }

    /// A cover of the same group that charges `group`, which is that group or one below it: for a pool whose operators have
    /// groups of their own. `None`: it is neither.
    pub fn of_below(&self, group: &Group) -> Option<RawCover> {
        let is_below = group.first().path_to_root().any(|level| std::ptr::eq(level, self.group.first()));
        is_below.then(|| RawCover::begin(self.group.clone(), group.clone()))
    }

    /// Returns the group whose allocations are covered.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns the group that is charged.
    pub fn charged_group(&self) -> &Group {
        &self.charged
    }

    /// Returns the bytes that are charged here.
    pub fn bytes(&self) -> u64 {
        self.held.get()
    }

    /// Runs `work` in the group, under the cover, as [`Charge::cover`](crate::Charge::cover) does.
    #[inline]
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        if !self.covers {
            return self.group.run(work);
        }
        allocator::catch_up(Some(self.group.header));
        within_cover(self.group.header, work)
    }

    /// Charges as [`OnFull::Now`] does, less what is unpaid and becomes paid by this.
    ///
    /// # Errors
    ///
    /// [`ChargeError`], as there. Nothing of the charge remains.
    pub fn try_charge_now(&self, bytes: impl Into<Bytes>) -> Result<(), ChargeError> {
        self.try_charge(bytes.into(), OnFull::Now)
    }

    /// Charges as [`OnFull::Start`] does, less what is unpaid and becomes paid by this.
    ///
    /// # Errors
    ///
    /// [`ChargeError`], as there. Nothing of the charge remains.
    pub fn try_charge_or_start(&self, bytes: impl Into<Bytes>) -> Result<(), ChargeError> {
        self.try_charge(bytes.into(), OnFull::Start)
    }

    /// Charges as [`RawCharges::force_charge`](crate::RawCharges::force_charge) does, less what is unpaid and becomes paid by this. Returns the bytes charged: fewer
    /// than `bytes` only where usage would pass 2^63.
    pub fn charge(&self, bytes: impl Into<Bytes>) -> u64 {
        let Bytes(bytes) = bytes.into();
        let taken = self.take_unpaid(bytes);
        let charged = if bytes > taken { self.charged.raw().force_charge(Bytes(bytes - taken)) } else { 0 };
        self.hold(taken, charged);
        taken + charged
    }

    fn try_charge(&self, Bytes(bytes): Bytes, full: OnFull) -> Result<(), ChargeError> {
        let taken = self.take_unpaid(bytes);
        let rest = bytes - taken;
        // 0 bytes are refused where the group is offline.
        if (rest > 0 || bytes == 0)
            && let Err(error) = self.charged.raw().try_charge_with(Bytes(rest), full)
        {
            self.give_up(taken);
            return Err(error);
        }
        self.hold(taken, rest);
        Ok(())
    }

    /// Bytes of a charge that the group is charged for already. They are charged without a guard from here on.
    fn take_unpaid(&self, bytes: u64) -> u64 {
        if self.covers { raw_cover::take_unpaid(self.group.header, self.charged.first(), bytes) } else { 0 }
    }

    /// `taken` bytes cover already; `charged` bytes begin to.
    fn hold(&self, taken: u64, charged: u64) {
        if self.covers {
            cover::hold(self.group.header, charged);
        }
        self.held.add(taken + charged);
    }

    fn give_up(&self, bytes: u64) {
        if !self.covers {
            self.charged.raw().uncharge(Bytes(bytes));
        } else if bytes > 0 {
            raw_cover::give_up(self.group.header, self.charged.first(), bytes);
        }
    }

    /// Gives bytes back that were charged here, on whatever thread. What is covered and would be paid by nothing stays
    /// charged to the cover's group.
    ///
    /// To give back more than [was charged here](Self::bytes) is a bug of the caller, which [`RawCharges::uncharge`](crate::RawCharges::uncharge) counts.
    pub fn uncharge(&self, bytes: impl Into<Bytes>) {
        let Bytes(bytes) = bytes.into();
        let held = self.held.take(bytes);
        self.give_up(held);
        if bytes > held {
            self.charged.raw().uncharge(Bytes(bytes - held));
        }
    }
}

impl Drop for RawCover {
    /// What is charged here stays charged, without a guard, and covers no longer.
    fn drop(&mut self) {
        if self.covers {
            raw_cover::end(self.group.header, self.held.get());
        }
    }
}

impl fmt::Debug for RawCover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, charged) = (self.group.shown_path(), self.charged.shown_path());
        f.debug_struct("RawCover")
            .field("group", &group)
            .field("charged", &charged)
            .field("bytes", &self.bytes())
            .finish()
    }
}
