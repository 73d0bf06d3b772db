//! Groups: the tree of counters as users hold it.
//!
//! A group is its counters (`counter`) with a name and a handle that keeps it. These files hold the public methods and
//! their documentation. The layers below do the work: `admission`, `pressure`, `reclaim`, `lifecycle`.

mod charge;
mod counters;
pub(crate) mod diagnosis;
pub(crate) mod error;
mod events;
mod future;
mod high;
mod limits;
mod numa;
mod observe;
mod oom;
mod reading;
pub(crate) mod reclaim;
pub(crate) mod refusal;
mod stats;
mod tree;
mod waiting;
pub(crate) mod zero;

pub use charge::Charge;
pub use counters::{ChargeSet, Counter, GroupCounter};
pub use diagnosis::Diagnosis;
pub use error::{ChargeError, CreateError, LimitError, MergeError, NameFault, OfflineError, ReclaimError, SplitError};
pub use events::{EventFuture, Events, Subscription};
pub use future::ChargeFuture;
pub use limits::Limits;
pub use numa::{NodeStats, NumaTable};
pub use oom::CancelHook;
pub use reclaim::Registration;
pub use refusal::Refusal;

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::admission::plain::{self, Patience};
use crate::counter::incarnation::Generation;
use crate::counter::object;
use crate::pressure::throttle;
use crate::sync::model_failed;
use crate::thread::directory::Header;
use crate::thread::slot::Consume;

/// A handle on a group, the unit that is charged. A handle is cheap to clone, send and share. Clones name the same
/// group, and comparison is by identity.
///
/// A group is in its parent from [`create`](Self::create) to [`offline`](Self::offline), whether or not a handle
/// exists. [`Runtime::group`](crate::Runtime::group) finds it by its path. An offline group takes no charges, and it is
/// gone with its last handle and its last [`Charge`].
///
/// ```
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().max("2GiB".parse::<memcg::Limit>()?).build()?;
/// let acme = runtime.root().create("acme", Limits::new().max("512MiB".parse()?))?;
/// let query = acme.create("q17", Limits::new())?;
/// let charge = query.try_charge(64 * 1024)?;
/// assert_eq!((query.live(), acme.live(), runtime.root().live()), (65_536, 65_536, 65_536));
/// drop(charge);
/// query.offline()?;
/// assert!(runtime.group("/acme/q17").is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Group {
    /// The header of the group's first counter. This value owns a handle on it.
    header: &'static Header,
}

/// Names a group for as long as the process runs. No other group ever has the same id.
///
/// ```
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let first = runtime.root().create("q", Limits::new())?;
/// let id = first.id();
/// assert_eq!(runtime.find(id), Some(first.clone()));
/// first.offline()?;
/// drop(first);
/// let second = runtime.root().create("q", Limits::new())?;
/// assert_ne!(second.id(), id);
/// assert_eq!(runtime.find(id), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    number: u32,
    generation: Generation,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}.{}", self.number, self.generation.0)
    }
}

impl GroupId {
    /// Takes a handle on the group's first counter for the caller, if the group still exists.
    pub(crate) fn pin(self) -> Option<&'static object::Counter> {
        crate::counter::make::pin(self.number, self.generation)
    }
}

// === impl Group: the handle ===

impl Group {
    /// Takes over the caller's handle on the first counter of a group.
    pub(crate) fn from_handle(counter: &'static object::Counter) -> Group {
        Group { header: counter.header }
    }

    /// Takes a handle of its own. The caller keeps the group meanwhile.
    pub(crate) fn pinned(counter: &'static object::Counter) -> Group {
        counter.state().pin();
        Group::from_handle(counter)
    }

    #[inline(always)]
    pub(crate) fn first(&self) -> &'static object::Counter {
        self.header.counter()
    }

    /// Returns the group's id, which names it for as long as the process runs.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let id = runtime.root().id();
    /// assert_eq!(runtime.find(id).map(|group| group.path()), Some("/".to_string()));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn id(&self) -> GroupId {
        GroupId { number: self.first().number, generation: self.first().state().generation() }
    }
}

impl Clone for Group {
    fn clone(&self) -> Self {
        Group::pinned(self.first())
    }
}

impl Drop for Group {
    #[inline]
    fn drop(&mut self) {
        if !model_failed() {
            zero::release(self.first());
        }
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.header, other.header)
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self.header).hash(state);
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("path", &self.path()).field("usage", &self.usage()).finish_non_exhaustive()
    }
}

// === impl Group: charges ===

impl Group {
    /// Charges `bytes` here and at all ancestors, or nowhere. Call it before you allocate the memory. It may block: in
    /// async code use [`charge_async`](Self::charge_async) or [`try_charge_undelayed`](Self::try_charge_undelayed).
    ///
    /// Before a refusal the charge drains all credit below the refusing level. It also asks the reclaimers there to
    /// give memory back ([`Reclaim`](crate::Reclaim)): foreign code runs on this thread, for at most
    /// [`reclaim_time`](crate::RuntimeBuilder::reclaim_time). Above a [`high`](Self::set_high) the charge sleeps, and
    /// where the [policy](crate::OomPolicy) chooses victims it waits for each of them. Both times are bounded. 0 bytes
    /// always fit and hold the group's object.
    ///
    /// A charge costs about 1 ns where this thread has credit, else two or three read-modify-write instructions a
    /// level. It is exact as [`PageCounter::try_charge`](crate::PageCounter::try_charge): from a success on usage is
    /// within max at every level.
    ///
    /// Source: `try_charge_memcg` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`ChargeError::Limit`] says which ancestor is full. [`ChargeError::InReclaim`] says the same to a reclaimer, for
    /// which no reclaimer is asked. [`ChargeError::Offline`]: the group takes no charges any more.
    /// [`ChargeError::Cancelled`]: the group was chosen to give its memory back.
    ///
    /// ```
    /// # use memcg::{Limit, Limits};
    /// # let runtime = memcg::Runtime::builder().max(Limit::Bytes(100)).build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let charge = acme.try_charge(80)?;
    /// let refused = acme.try_charge(21).unwrap_err();
    /// assert_eq!(refused.to_string(), "/ refused 21 B for /acme: 80 B live of max 100 B, at most 0 B stocked; most in /acme 80 B");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge(&self, bytes: u64) -> Result<Charge, ChargeError> {
        match self.header.consume_open(bytes) {
            Consume::Hit => {}
            missed => try_charge_slow(self.header, bytes, missed)?,
        }
        Ok(Charge::new(self.header, bytes))
    }

    /// Charges `bytes` here and at all ancestors, whatever the limits say. It also charges a group that is offline. Use
    /// it for memory that exists already.
    ///
    /// The charge drains stranded credit first. What still does not fit goes above max, and [`forced`](Self::forced)
    /// counts it. The charge is smaller than `bytes` only where usage would pass 2^63.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(memcg::Limit::Bytes(100)).build()?;
    /// let root = runtime.root();
    /// let charge = root.charge(130); // a library has allocated it already
    /// assert_eq!((root.usage(), root.forced()), (130, 30));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    #[inline]
    pub fn charge(&self, bytes: u64) -> Charge {
        Charge::by_force(self.header, bytes)
    }
}

/// Makes a charge that did not hit, and sleeps where it is above a high. A charge of 0 bytes takes a handle.
#[cold]
#[inline(never)]
fn try_charge_slow(header: &'static Header, bytes: u64, missed: Consume) -> Result<(), ChargeError> {
    let counter = header.counter();
    let charged = plain::charge(counter, bytes, missed, Patience::Others);
    charged.map_err(|failure| ChargeError::new(failure, counter, bytes))?;
    // The charge keeps the group.
    throttle::sleep_after(counter);
    Ok(())
}
