//! A group that goes offline with a value.

use std::fmt;
use std::ops::Deref;

use super::error::CreateError;
use super::handle::Group;
use super::limits::Limits;
use crate::state::name::IntoName;
use crate::sync::model_failed;

/// # Scopes
impl Group {
    /// Creates a group below this one, as [`create`](Self::create) does, that goes offline when the
    /// value is dropped: for one query, one request or one connection.
    ///
    /// A number, or [`GroupName::Unnamed`](crate::GroupName::Unnamed), which is never taken, needs
    /// no string. If the pool has a free object, such a scope allocates nothing. It costs what
    /// `create` and [`offline`](Self::offline) cost.
    ///
    /// # Errors
    ///
    /// [`CreateError`], as [`create`](Self::create). Then nothing is created.
    ///
    /// ```
    /// use memcg::{GroupName, Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let query = acme.scope(17, Limits::new())?;
    /// let request = acme.scope(GroupName::Unnamed, Limits::new())?;
    /// let _held = query.charge(4096)?; // all that a group does
    /// assert_eq!((query.path().as_str(), request.is_offline()), ("/acme/17", false));
    /// drop((query, request));
    /// assert_eq!((runtime.group("/acme/17"), acme.children().len()), (None, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope<'a>(
        &self,
        name: impl IntoName<'a>,
        limits: Limits,
    ) -> Result<GroupScope, CreateError> {
        self.create(name, limits).map(|group| GroupScope {
            group,
            goes_offline: true,
        })
    }
}

/// A group that goes offline when this value is dropped. [`Group::scope`] makes it, and it derefs
/// to its [`Group`].
///
/// The drop does what [`Group::offline`] does, and costs as much. Where the group still has
/// children, they and all groups below go offline with it, as in [`Group::offline_tree`]. What is
/// still charged stays charged, here and at the ancestors, until its charges are dropped or
/// uncharged. Handles on the group, which `clone` of the [`Group`] makes, may outlive the value.
/// The drop never panics. It runs the listeners and wakers of charges that wait in the group: those
/// charges are refused.
///
/// ```
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let request = runtime.root().scope("r1", Limits::new())?;
/// let part = request.create("part", Limits::new())?;
/// let group = request.clone();
/// let charge = part.charge(10)?;
/// drop(request);
/// assert!(group.is_offline() && part.is_offline());
/// assert_eq!(runtime.root().live(), 10);
/// drop(charge);
/// assert_eq!(runtime.root().live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once, the group goes offline at once, and `let _ =` drops it at once: bind it to a name, as in `let _scope =`"]
pub struct GroupScope {
    group: Group,
    goes_offline: bool,
}

impl GroupScope {
    /// Returns the group and keeps it online.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let session = runtime.root().scope("s1", memcg::Limits::new())?.keep();
    /// assert_eq!(runtime.group("/s1"), Some(session));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep(mut self) -> Group {
        self.goes_offline = false;
        self.group.clone()
    }
}

impl Deref for GroupScope {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}

impl Drop for GroupScope {
    fn drop(&mut self) {
        // A model that has failed unwinds, and no code of this crate may run any more.
        if self.goes_offline && !model_failed() && self.group.offline().is_err() {
            self.group.offline_tree();
        }
    }
}

impl fmt::Debug for GroupScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GroupScope").field(&self.group).finish()
    }
}
