//! Limits that only count: an operator tries them out before they act.

use super::handle::Group;
use crate::admission::lowered;
use crate::pressure::observe;

impl Group {
    /// Sets whether the limits here and below only count. It may block: in async code use a thread for blocking work.
    ///
    /// A charge that the max or high there would have refused or delayed is let through. For a max, the group whose max
    /// it was counts [`Event::Max`](crate::Event::Max) and [`Event::Observed`](crate::Event::Observed). No group is
    /// asked to give anything back for such charges. Limits above this group hold.
    ///
    /// Further counters are observed, too. Charges that wait here when observing begins are made at once. When the
    /// limits act again, what is above a max counts as if it had been [forced](Self::forced), and reclaimers are asked
    /// for it. The call takes the tree's lock and looks at all groups below.
    ///
    /// ```
    /// # use memcg::{Event, Limit, Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(Limit::Bytes(100)))?;
    /// acme.set_observe_only(true);
    /// let _held = acme.try_charge(130)?;
    /// assert_eq!((acme.usage(), acme.events().get(Event::Observed)), (130, 1));
    /// acme.set_observe_only(false);
    /// assert!(acme.try_charge(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_observe_only(&self, observe: bool) {
        observe::set(self.first(), observe);
        if !observe && !self.is_observe_only() {
            lowered::shrink_all(self.first());
        }
    }

    /// Returns whether this group, or an ancestor, is only observed. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// runtime.root().set_observe_only(true);
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert!(acme.is_observe_only(), "with the root");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_observe_only(&self) -> bool {
        self.first().is_observed()
    }
}
