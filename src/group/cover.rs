//! Charges that pay for allocations: a closure, a guard, and a future under a cover.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::allocator;
use super::charge::Charge;
use super::handle::Group;
use crate::counter::cover;
use crate::counter::handle::Handle;
use crate::thread::current::{EnteredScope, within, within_cover};
use crate::thread::directory::Header;

/// # Charges that pay for allocations
impl Charge {
    /// Runs `work` under a *cover*: what it allocates is paid from this charge, and not charged again. It runs in the
    /// charge's group, as with [`Group::run`].
    ///
    /// An allocator (`memcg-alloc`, or any that uses [`Owner`](crate::allocator::Owner)) marks the objects as covered. They
    /// change no usage: not when they are allocated, and not when they are freed, on whatever thread and however late.
    /// From its first cover on the charge *covers*. The group compares what its covering charges hold together with what
    /// is covered. What they do not hold is *unpaid*, and is charged to the group by force: more was allocated than was
    /// charged, or the charge has gone before the memory. A charge that covers does not give such bytes back when it is
    /// dropped or shrinks. [`Group::ledger`] has the figures.
    ///
    /// Under a cover within another one the inner charge pays. Where the charge is of a counter beside memory, it covers
    /// nothing: what `work` allocates is charged to the group's memory. Objects that the allocator does not own, below its
    /// threshold, are not covered.
    ///
    /// It costs what [`Group::run`] costs. A covered object costs a little less than one that a group owns: it touches no
    /// stock.
    ///
    /// ```
    /// use memcg::allocator::Owner; // what an allocator does
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new())?;
    /// let charge = query.try_charge(100)?; // before the work
    /// let object = charge.cover(|| Owner::charge(80));
    /// assert_eq!((query.live(), query.ledger().covered()), (100, 80), "paid once");
    /// drop(charge);
    /// assert_eq!((query.live(), query.ledger().unpaid()), (80, 80), "the memory is there still");
    /// unsafe { object.uncharge(80) };
    /// assert_eq!(query.live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn cover<R>(&self, work: impl FnOnce() -> R) -> R {
        match self.scope() {
            (header, true) => within_cover(header, work),
            (header, false) => within(Some(header), work),
        }
    }

    /// Enters a cover as [`cover`](Self::cover) does, until the guard is dropped. For the guard's rules see
    /// [`Group::enter`]. A guard that is forgotten covers until the closure or the poll around it ends. The charge may go
    /// meanwhile: what is allocated from then on is unpaid.
    ///
    /// ```
    /// # use memcg::allocator::Owner;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// let charge = query.try_charge(100)?;
    /// let cover = charge.enter_cover();
    /// let object = Owner::charge(80);
    /// drop(cover);
    /// assert_eq!(query.ledger().covered(), 80);
    /// # unsafe { object.uncharge(80) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enter_cover(&self) -> CoverGuard<'_> {
        let entered = match self.scope() {
            (header, true) => EnteredScope::enter_cover(header),
            (header, false) => EnteredScope::enter(header),
        };
        CoverGuard { _entered: entered, _kept: self.group(), charge: self }
    }

    /// The group to run in, and whether the charge covers.
    #[inline]
    fn scope(&self) -> (&'static Header, bool) {
        let covers = self.bytes.is_covering() || self.begin_to_cover();
        let header = if covers { self.header() } else { self.header().counter().first().header };
        allocator::catch_up(Some(header));
        (header, covers)
    }

    /// Makes the charge one that covers. False: it is of a counter beside memory.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_to_cover(&self) -> bool {
        if !cover::prepare(self.header().counter()) {
            return false;
        }
        if let Some(bytes) = self.bytes.begin_to_cover() {
            cover::hold(self.header(), bytes);
        }
        true
    }

    /// The charge keeps its bytes, and does not cover from here on.
    pub(super) fn cover_no_longer(&mut self) {
        if self.bytes.end_to_cover() {
            cover::release(self.header(), self.bytes());
        }
    }

    /// The charge was moved from that group to another one, and covers there from here on.
    pub(super) fn covers_elsewhere(&mut self, from: &Handle) {
        let bytes = self.bytes();
        cover::release(from.header, bytes);
        if cover::prepare(self.header().counter()) {
            cover::hold(self.header(), bytes);
        } else {
            self.bytes.end_to_cover();
        }
    }
}

/// What the thread allocates is paid from a charge until this is dropped: see [`Charge::enter_cover`].
#[must_use = "dropped at once it leaves the cover at once"]
pub struct CoverGuard<'a> {
    // In this order: the thread leaves the cover before the handle goes. Where the guard is forgotten, the handle keeps the
    // group for ever. Else the charge does while what is allocated may be unpaid.
    _entered: EnteredScope,
    _kept: Group,
    charge: &'a Charge,
}

impl fmt::Debug for CoverGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CoverGuard").field(&self.charge).finish()
    }
}

/// Puts a future, or anything else that is polled, under a cover.
pub trait CoveredBy: Sized {
    /// Runs each poll, and the drop, under a cover of `charge`, as [`Charge::cover`] does. `charge` is a [`Charge`], a
    /// reference to one, or an `Arc` of one.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use memcg::allocator::Owner;
    /// use memcg::{CoveredBy, Limits, Runtime};
    ///
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     let std::task::Poll::Ready(output) = std::pin::pin!(future).poll(&mut context) else { unreachable!() };
    /// #     output
    /// # }
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new())?;
    /// let charge = Arc::new(query.try_charge(100)?);
    /// let object = block_on(async { Owner::charge(80) }.covered_by(Arc::clone(&charge)));
    /// assert_eq!((query.live(), query.ledger().covered()), (100, 80));
    /// # unsafe { object.uncharge(80) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn covered_by<C: Borrow<Charge>>(self, charge: C) -> Covered<Self, C> {
        Covered { value: ManuallyDrop::new(self), charge }
    }
}

impl<T> CoveredBy for T {}

/// A future whose allocations a charge pays for: see [`CoveredBy::covered_by`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Covered<T, C: Borrow<Charge> = Charge> {
    // Dropped in this order, the value under the cover of the charge.
    value: ManuallyDrop<T>,
    charge: C,
}

impl<T, C: Borrow<Charge>> Covered<T, C> {
    /// Returns the charge.
    pub fn charge(&self) -> &Charge {
        self.charge.borrow()
    }

    /// Polls the value under the cover: for what is not a future, as a stream.
    #[inline]
    #[allow(unsafe_code)]
    pub fn poll_covered<R>(self: Pin<&mut Self>, poll: impl FnOnce(Pin<&mut T>) -> R) -> R {
        // SAFETY: the value stays where the wrapper is: nothing moves it out, and the drop drops it in place. Of the
        // charge only a shared reference is made.
        let Covered { value, charge } = unsafe { self.get_unchecked_mut() };
        // SAFETY: as above; `self` was pinned.
        let value = unsafe { Pin::new_unchecked(&mut **value) };
        (*charge).borrow().cover(|| poll(value))
    }
}

impl<T: Future, C: Borrow<Charge>> Future for Covered<T, C> {
    type Output = T::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T::Output> {
        self.poll_covered(|value| value.poll(context))
    }
}

impl<T, C: Borrow<Charge>> Drop for Covered<T, C> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let Covered { value, charge } = self;
        // SAFETY: nothing uses the value any more.
        (*charge).borrow().cover(|| unsafe { ManuallyDrop::drop(value) });
    }
}
