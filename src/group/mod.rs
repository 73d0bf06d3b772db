//! Groups: the tree as its users see it.
//!
//! A group is its counters (`counter`) with a name and a handle that keeps it. These files are faces: what they do lies
//! in `admission`, `pressure`, `reclaim`, `lifecycle`.

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

/// A group: what is charged. Cheap to clone, send and share; clones name the same group, comparison is by identity.
///
/// A group is in its parent from [`create`](Self::create) to [`offline`](Self::offline), whether or not there is a
/// handle; [`Runtime::group`](crate::Runtime::group) finds it by its path. Afterwards it takes no charges, and is gone
/// with its last handle and its last [`Charge`].
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
    /// The header of the group's first counter, on which this has a handle.
    header: &'static Header,
}

/// Names a group for as long as the process runs: no other group ever has the same.
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
    /// The group's first counter, with a handle for the caller.
    pub(crate) fn pin(self) -> Option<&'static object::Counter> {
        crate::counter::make::pin(self.number, self.generation)
    }
}

// === impl Group: the handle ===

impl Group {
    /// Takes over a handle on the first counter of a group.
    pub(crate) fn from_handle(node: &'static object::Counter) -> Group {
        Group { header: node.header }
    }

    /// With a handle of its own; the caller keeps the group meanwhile.
    pub(crate) fn pinned(node: &'static object::Counter) -> Group {
        node.state().pin();
        Group::from_handle(node)
    }

    #[inline(always)]
    pub(crate) fn node(&self) -> &'static object::Counter {
        self.header.node()
    }

    /// The group's name for as long as the process runs.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let id = runtime.root().id();
    /// assert_eq!(runtime.find(id).map(|group| group.path()), Some("/".to_string()));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn id(&self) -> GroupId {
        GroupId { number: self.node().number, generation: self.node().state().generation() }
    }
}

impl Clone for Group {
    fn clone(&self) -> Self {
        Group::pinned(self.node())
    }
}

impl Drop for Group {
    #[inline]
    fn drop(&mut self) {
        if !model_failed() {
            zero::release(self.node());
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
    /// Charge `bytes` here and above, or nowhere. May block: in async code [`charge_async`](Self::charge_async) or
    /// [`try_charge_undelayed`](Self::try_charge_undelayed). Before the memory is allocated.
    ///
    /// Exact as [`PageCounter::try_charge`](crate::PageCounter::try_charge): from a success on usage is within max at
    /// every level; before a refusal all credit below the refusing level has been drained, and the reclaimers there
    /// have been asked to give some back ([`Reclaim`](crate::Reclaim): foreign code runs on this thread, for at most
    /// [`reclaim_time`](crate::RuntimeBuilder::reclaim_time)). Above a [`high`](Self::set_high) it sleeps, and where
    /// the [policy](crate::OomPolicy) chooses it waits for each victim, both for a bounded time. About 1 ns where this
    /// thread has credit; else two or three read-modify-write instructions a level. 0 bytes always fit and hold the
    /// group's object.
    ///
    /// Source: `try_charge_memcg` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`ChargeError::Limit`] says which ancestor is full, [`ChargeError::InReclaim`] the same to a reclaimer, for
    /// which no reclaimer is asked, [`ChargeError::Offline`] that the group takes no charges any more,
    /// [`ChargeError::Cancelled`] that it was chosen to give its memory back.
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

    /// Charge `bytes` here and at all ancestors, whatever the limits say, and also to a group that is offline: for
    /// memory that exists already.
    ///
    /// What does not fit after stranded credit was drained goes above max and is kept apart in
    /// [`forced`](Self::forced). The charge is smaller than `bytes` only where usage would pass 2^63.
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

/// A charge that did not hit, delayed where it is above a high. For none, a handle.
#[cold]
#[inline(never)]
fn try_charge_slow(header: &'static Header, bytes: u64, missed: Consume) -> Result<(), ChargeError> {
    let counter = header.node();
    let charged = plain::charge(counter, bytes, missed, Patience::Others);
    charged.map_err(|failure| ChargeError::new(failure, counter, bytes))?;
    // The charge keeps the group.
    throttle::sleep_after(counter);
    Ok(())
}
