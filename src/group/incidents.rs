//! The last refusals and victims of a group.

use super::handle::Group;
use crate::pressure::incidents;
use crate::state::incidents::Incident;

/// # Incidents
impl Group {
    /// Returns the last refusals and victims of this group and of the groups below it, the oldest first. A refusal is
    /// also one of the group whose max was met. There are none unless
    /// [`Runtime::keep_incidents`](crate::Runtime::keep_incidents) says so.
    ///
    /// Groups are found by their paths, so those of an earlier group of the same path are among them. The call takes one
    /// lock and copies what it returns.
    ///
    /// ```
    /// use memcg::{IncidentKind, Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// runtime.keep_incidents(100);
    /// let acme = runtime.root().create("acme", Limits::new().max(100))?;
    /// let query = acme.create("q17", Limits::new())?;
    /// assert!(query.try_charge(130).is_err());
    /// let incidents = acme.incidents();
    /// let last = incidents.last().unwrap();
    /// assert_eq!((last.kind, last.group.as_str(), last.limited.as_str()), (IncidentKind::Refused, "/acme/q17", "/acme"));
    /// assert_eq!((last.requested, last.usage, last.max), (130, 0, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn incidents(&self) -> Vec<Incident> {
        incidents::of(self.first())
    }
}
