//! The handle on a group, which keeps it, and who the group is: its id, name, path and parent.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::counter::handle::{Handle, WeakCounter};
use crate::counter::incarnation::Generation;
use crate::counter::object::{HeaderRef, Object};
use crate::counter::{make, object};
use crate::hierarchy::names;
use crate::state::name::GroupName;

/// A handle on a group, which is what memory is charged to. A handle is cheap to clone, send and
/// share: a clone counts in one word. Clones name the same group, and are compared by identity.
///
/// A group exists in its parent from [`create`](Self::create) to [`offline`](Self::offline),
/// whether or not a handle does, and [`Runtime::group`](crate::Runtime::group) finds it by its
/// path. A group that is offline takes no charges; it is gone with its last handle and its last
/// [`Charge`](crate::Charge).
///
/// Most programs need six calls: [`create`](Self::create) or [`scope`](Self::scope),
/// [`charge`](Self::charge) (async: [`charge_async`](Self::charge_async)),
/// [`live`](Self::live), [`snapshot`](Self::snapshot),
/// [`register_reclaimer`](Self::register_reclaimer) and [`offline`](Self::offline).
///
/// [`charge_with`](Self::charge_with) has a table of all ways to charge: what each waits for, which
/// code of yours it runs, and what it does before it refuses. Those that drain credit take a lock
/// and a barrier for that, and wait at most a millisecond for a thread that was preempted at a bad
/// moment.
///
/// ```
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().max(memcg::Limit::gib(2)).build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(memcg::Limit::mib(512)))?;
/// let query = acme.create("q17", Limits::new())?;
/// let charge = query.charge(64 * 1024)?;
/// assert_eq!((query.live(), acme.live(), runtime.root().live()), (65_536, 65_536, 65_536));
/// drop(charge);
/// query.offline()?;
/// assert!(runtime.group("/acme/q17").is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Group {
    /// The header of the group's first counter. This value owns a handle on it.
    pub(super) header: HeaderRef,
}

/// The id of a group. No other group of the process ever has the same one, even after the group is
/// gone.
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
    /// A handle on the group, if it still exists.
    pub(crate) fn pin(self) -> Option<Handle> {
        WeakCounter {
            object: make::group(self.number)?,
            of: self.generation,
        }
        .try_pin()
    }
}

// === impl Group: the handle ===

/// # Identity
impl Group {
    /// The handle is on the first counter of the group.
    #[allow(unsafe_code)]
    pub(crate) fn from_handle(handle: Handle) -> Group {
        // SAFETY: the value has the handle.
        let header = unsafe { HeaderRef::new(handle.header) };
        handle.into_raw();
        Group { header }
    }

    /// Takes a handle of its own.
    #[inline]
    pub(crate) fn pinned(counter: &object::Counter) -> Group {
        Group::from_handle(Handle::pin(counter))
    }

    #[inline(always)]
    pub(crate) fn first(&self) -> &object::Counter {
        self.header.counter()
    }

    /// A counter of the group: the first counts memory.
    pub(super) fn nth(&self, number: usize) -> Option<&object::Counter> {
        self.first().group().nth(number)
    }

    /// Returns the group's id, by which [`Runtime::find`](crate::Runtime::find) finds it.
    pub fn id(&self) -> GroupId {
        GroupId {
            number: self.first().number,
            generation: self.first().state().generation(),
        }
    }

    /// Returns the group's name in its parent. The name of the root, and of an unnamed group, is
    /// empty. A number is formatted by this call, which then allocates.
    pub fn name(&self) -> Cow<'_, str> {
        match names::of(self.first()) {
            GroupName::Text(text) => Cow::Borrowed(text),
            name @ GroupName::Number(_) => Cow::Owned(name.to_string()),
            GroupName::Unnamed => Cow::Borrowed(""),
        }
    }

    /// Returns the path of the group: the names from the root to here, as in `/acme/q17`; the
    /// root's is `/`. It also works for a group that is offline. It takes no lock, and allocates
    /// the text.
    pub fn path(&self) -> String {
        names::path(self.first())
    }

    /// The path as an error prints it.
    pub(crate) fn shown_path(&self) -> String {
        names::shown(self.first())
    }

    /// Returns the group above, `None` for the root. It works on a group that is offline, too, and
    /// takes no lock: a group keeps those above it.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert_eq!((acme.parent(), runtime.root().parent()), (Some(runtime.root()), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parent(&self) -> Option<Group> {
        self.first().parent().map(Group::pinned)
    }

    /// Returns the groups above, nearest first, each as a handle. It takes no lock.
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
}

impl Clone for Group {
    #[inline]
    fn clone(&self) -> Self {
        Group::pinned(self.first())
    }
}

impl Drop for Group {
    #[inline]
    fn drop(&mut self) {
        drop(Handle::adopt(Object::of(self.header.header())));
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self.header.header()).hash(state);
    }
}

/// The [path](Group::path), as in `/acme/q17`.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.path())
    }
}

debug_figures!(Group, |group| path: group.shown_path(), usage: group.usage());
