//! Groups: the tree as those who embed it see it.
//!
//! A group is its counters (`charge`) with a name and a handle that keeps it. `README.md` says how it lives and dies.

mod charge;
mod counters;
mod error;
mod limits;
mod reading;
mod stats;
mod zero;

pub use charge::Charge;
pub use counters::{ChargeSet, Counter, GroupCounter};
pub use error::{ChargeError, CreateError, LimitError, MergeError, NameFault, OfflineError, Refusal, SplitError};
pub use limits::Limits;

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::charge::birth::{HasChildren, NotCreated};
use crate::charge::knob::{Knob, NoLimitedAncestor};
use crate::charge::life::Generation;
use crate::charge::page_counter::{Node, Refusal as NodeRefusal};
use crate::charge::pool::slow_path;
use crate::charge::stock::Consume;
use crate::stat::flush::Unlist;
use crate::sync::model_failed;
use crate::sync::slots::Gate;
use crate::units::Limit;

/// A group: who is charged. Cheap to clone, send and share; clones name the same group, comparison is by identity.
///
/// A group is in its parent from [`create`](Self::create) to [`offline`](Self::offline), whether or not anybody has a
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
    /// The gate of the group's first counter, on which this has a handle.
    gate: &'static Gate,
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
    pub(crate) fn pin(self) -> Option<&'static Node> {
        crate::charge::pool::pool().pin(self.number, self.generation)
    }
}

// === impl Group: the handle ===

impl Group {
    /// Takes over a handle on the first counter of a group.
    pub(crate) fn from_handle(node: &'static Node) -> Group {
        Group { gate: node.gate }
    }

    /// With a handle of its own; the caller keeps the group meanwhile.
    pub(crate) fn pinned(node: &'static Node) -> Group {
        node.state().pin();
        Group::from_handle(node)
    }

    #[inline(always)]
    pub(crate) fn node(&self) -> &'static Node {
        self.gate.node()
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
        std::ptr::eq(self.gate, other.gate)
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self.gate).hash(state);
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("path", &self.path()).field("usage", &self.usage()).finish_non_exhaustive()
    }
}

// === impl Group: charges ===

impl Group {
    /// Charge `bytes` here and at all ancestors, or nowhere. Before the memory is allocated.
    ///
    /// Exact as [`PageCounter::try_charge`](crate::PageCounter::try_charge): from a success on usage is within max at
    /// every level; before a refusal all credit below the refusing level has been drained. About 1 ns where this thread
    /// has credit; else two or three read-modify-write instructions a level. 0 bytes always fit and hold the group's
    /// object.
    ///
    /// Source: `try_charge_memcg` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`ChargeError::Limit`] says which ancestor is full, [`ChargeError::Offline`] that the group takes no charges any
    /// more.
    ///
    /// ```
    /// # use memcg::{Limit, Limits};
    /// # let runtime = memcg::Runtime::builder().max(Limit::Bytes(100)).build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let charge = acme.try_charge(80)?;
    /// let refused = acme.try_charge(21).unwrap_err();
    /// assert_eq!(refused.to_string(), "/ refused 21 B for /acme: 80 B live of max 100 B, at most 0 B stocked");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_charge(&self, bytes: u64) -> Result<Charge, ChargeError> {
        match self.gate.consume_open(bytes) {
            Consume::Hit => {}
            missed => try_charge_slow(self.gate, bytes, missed)?,
        }
        Ok(Charge::new(self.gate, bytes))
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
        let charged = match self.gate.consume(bytes) {
            Consume::Hit => bytes,
            missed => self.node().force_slow(bytes, missed),
        };
        if charged == 0 {
            zero::hold(self.node());
        }
        Charge::new(self.gate, charged)
    }
}

/// A charge that did not hit. For none, a handle.
#[cold]
#[inline(never)]
fn try_charge_slow(gate: &'static Gate, bytes: u64, missed: Consume) -> Result<(), ChargeError> {
    let node = gate.node();
    if node.state().is_offline() {
        node.undo_slow(bytes, missed);
        return Err(ChargeError::Offline { group: Group::pinned(node.first()), requested: bytes });
    }
    if bytes == 0 {
        zero::hold(node);
        return Ok(());
    }
    node.try_charge_slow(bytes, missed).map_err(|refusal| refused(node, bytes, &refusal).into())
}

/// A refusal with handles of its own. The levels are kept by the requester, which the caller keeps.
fn refused(requester: &'static Node, requested: u64, refusal: &NodeRefusal<'_>) -> Refusal {
    let level = refusal.level.gate.node();
    Refusal {
        group: Group::pinned(level.first()),
        requester: Group::pinned(requester.first()),
        counter: level.number_in_group(),
        requested,
        usage: refusal.usage,
        max: refusal.max,
        stocked_bound: refusal.stocked_bound(),
    }
}

/// Move `bytes` from a counter to the same counter of `to`, which is returned.
fn transfer(from: &'static Node, to: &Group, bytes: u64) -> Result<&'static Node, ChargeError> {
    let other = || ChargeError::OtherRuntime { from: Group::pinned(from.first()), to: to.clone() };
    let new = to.node().group().nth(from.number_in_group()).ok_or_else(other)?;
    if std::ptr::eq(new, from) {
        return Ok(new);
    }
    if new.state().is_offline() {
        return Err(ChargeError::Offline { group: to.clone(), requested: bytes });
    }
    let common = new.levels().find(|&level| from.levels().any(|other| std::ptr::eq(level, other))).ok_or_else(other)?;
    if bytes > 0 {
        new.charge_below_slow(bytes, common).map_err(|refusal| refused(new, bytes, &refusal))?;
        from.uncharge_below_slow(bytes, common);
    }
    Ok(new)
}

// === impl Group: the tree ===

impl Group {
    /// The longest name, in bytes.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let longest = "x".repeat(memcg::Group::NAME_MAX);
    /// assert!(runtime.root().create(&longest, memcg::Limits::new()).is_ok());
    /// assert!(runtime.root().create(&(longest + "x"), memcg::Limits::new()).is_err());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub const NAME_MAX: usize = 255;

    /// A group below this one. Its limits hold from its first charge on.
    ///
    /// The first child makes this group give its own credit back. Takes the tree's lock; about a microsecond.
    ///
    /// # Errors
    ///
    /// [`CreateError`]: the name is no name or taken, this group is offline, the configured most groups exist, a limit
    /// does not hold. Nothing is made then.
    ///
    /// ```
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max("512MiB".parse()?))?;
    /// let query = acme.create("q17", Limits::new().max("25%".parse()?))?;
    /// assert_eq!((query.path(), query.max()), ("/acme/q17".to_string(), 128 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create(&self, name: &str, limits: Limits) -> Result<Group, CreateError> {
        let parent = || self.clone();
        if let Some(fault) = fault_of(name) {
            return Err(CreateError::Name { parent: parent(), name: name.into(), fault });
        }
        let knobs = self.knobs(&limits)?;
        let node = self.node();
        let set = |new: &Node| {
            let mut set = knobs.iter().filter_map(|&(knob, limit)| Some((knob, limit?)));
            set.try_for_each(|(knob, limit)| new.set_unlinked(knob, limit).map_err(|none| (knob, none)))
        };
        let percents = knobs.iter().any(|(_, limit)| matches!(limit, Some(Limit::Percent(_))));
        let create = || slow_path(|_, _| node.life().tree.create(node, name, percents, set));
        let mut created = create();
        if let Err(NotCreated::Full(_)) = created {
            // What is in the way may have nothing but credit: it is buried at the end of this slow path.
            slow_path(|_, _| node.tree().settle());
            created = create();
        }
        created.map(Group::from_handle).map_err(|why| match why {
            NotCreated::Offline => CreateError::Offline { parent: parent(), name: name.into() },
            NotCreated::Taken => CreateError::Taken { parent: parent(), name: name.into() },
            NotCreated::Full(most) => CreateError::Full { parent: parent(), name: name.into(), most },
            NotCreated::Settings((knob, none)) => self.limit_error(knob, none).into(),
        })
    }

    /// The limits that act; the others are refused.
    fn knobs(&self, limits: &Limits) -> Result<[(Knob, Option<Limit>); 3], LimitError> {
        let Limits { min, low, high, max, soft } = *limits;
        for (limit, set) in [("high", high), ("soft", soft)] {
            if set.is_some() {
                return Err(LimitError::Unsupported { limit });
            }
        }
        Ok([(Knob::Max, max), (Knob::Min, min), (Knob::Low, low)])
    }

    fn limit_error(&self, knob: Knob, NoLimitedAncestor(percent): NoLimitedAncestor) -> LimitError {
        let limit = match knob {
            Knob::Max => "max",
            Knob::Min => "min",
            Knob::Low => "low",
        };
        LimitError::NoLimitedAncestor { group: self.clone(), limit, percent }
    }

    /// The name that it has in its parent; the root has none.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().create("acme", memcg::Limits::new())?.name(), "acme");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(&self) -> &str {
        &self.node().life().name
    }

    /// The names from the root to here, as in `/acme/q17`; the root is `/`. Also of a group that is offline.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert_eq!((runtime.root().path(), acme.path()), ("/".to_string(), "/acme".to_string()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn path(&self) -> String {
        self.node().path()
    }

    /// The group above, also of a group that is offline.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert_eq!((acme.parent(), runtime.root().parent()), (Some(runtime.root()), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parent(&self) -> Option<Group> {
        self.node().life().parent.map(Group::pinned)
    }

    /// The groups above, nearest first.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("acme", memcg::Limits::new())?.create("q17", memcg::Limits::new())?;
    /// let paths: Vec<_> = query.ancestors().map(|group| group.path()).collect();
    /// assert_eq!(paths, ["/acme", "/"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ancestors(&self) -> impl Iterator<Item = Group> + use<> {
        std::iter::successors(self.parent(), Group::parent)
    }

    /// The groups directly below that are online, in no order: those of one moment.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert_eq!(runtime.root().children(), [acme]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn children(&self) -> Vec<Group> {
        slow_path(|_, _| {
            let places = self.node().tree().places.lock();
            places.children(self.node().place()).map(|place| Group::pinned(places.node(place))).collect()
        })
    }

    /// The groups below that are online, parents first. They may come and go meanwhile: each is looked up as the walk
    /// reaches its parent.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("acme", memcg::Limits::new())?.create("q17", memcg::Limits::new())?;
    /// let paths: Vec<_> = runtime.root().descendants().map(|group| group.path()).collect();
    /// assert_eq!(paths, ["/acme", "/acme/q17"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn descendants(&self) -> impl Iterator<Item = Group> + use<> {
        let mut next = self.children();
        std::iter::from_fn(move || {
            let group = next.pop()?;
            next.extend(group.children());
            Some(group)
        })
    }

    /// Stop admission, and leave the parent: the name is free at once, min and low protect nothing any more. What is
    /// charged stays charged, here and at the ancestors, until its [`Charge`]s are dropped; then, and with the last
    /// handle, the group's object is used again.
    ///
    /// Its statistics stay in its ancestors' figures. Its credit goes back: where only this thread ever charged the
    /// group at once, else with one barrier for many such groups, in the next drain or in
    /// [`Runtime::settle`](crate::Runtime::settle). Does nothing to a group that is offline.
    ///
    /// Source: `mem_cgroup_css_offline` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`OfflineError`] where it has children that are online.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// let charge = query.try_charge(10)?;
    /// query.offline()?;
    /// assert!(query.try_charge(1).is_err());
    /// assert_eq!(runtime.root().live(), 10);
    /// drop(charge);
    /// assert_eq!(runtime.root().live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn offline(&self) -> Result<(), OfflineError> {
        let gone = slow_path(|_, _| self.node().tree().offline(self.node()));
        gone.map_err(|HasChildren(children)| OfflineError { group: self.clone(), children })?;
        // What is written from here on goes up with a later flush, or with the burial.
        self.node().flush_stats(Unlist::Never);
        Ok(())
    }

    /// [`offline`](Self::offline) this group and all below it, as one step, with one barrier.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let query = acme.create("q17", memcg::Limits::new())?;
    /// acme.offline_tree();
    /// assert!(query.is_offline());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn offline_tree(&self) {
        slow_path(|_, _| self.node().tree().offline_tree(self.node()));
        self.node().flush_stats(Unlist::Never);
    }

    /// Whether admission has stopped. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let root = runtime.root();
    /// drop(runtime);
    /// assert!(root.is_offline());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn is_offline(&self) -> bool {
        self.node().state().is_offline()
    }
}

fn fault_of(name: &str) -> Option<NameFault> {
    if name.is_empty() {
        Some(NameFault::Empty)
    } else if name.len() > Group::NAME_MAX {
        Some(NameFault::TooLong)
    } else if name.contains('/') {
        Some(NameFault::Slash)
    } else {
        name.contains(char::is_control).then_some(NameFault::Control)
    }
}
