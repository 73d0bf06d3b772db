//! Limits that count and do nothing else: to be tried out before they act.

use super::Group;
use crate::counter::slow_path::slow_path;
use crate::pressure::observe;

impl Group {
    /// Count, and refuse and delay no charge. May block: in async code call it on a thread for blocking work.
    ///
    /// What the max and high of this group, and of all below it, would have refused
    /// is let through and counted as [`Event::Max`](crate::Event::Max) and
    /// [`Event::Observed`](crate::Event::Observed), at the group whose max it was. No group is
    /// asked to give anything back for them. Limits above this group hold.
    ///
    /// Further counters are observed, too. Charges that wait here when it begins are made at once. When the limits act
    /// again what is above a max is set apart, as if it had been [forced](Self::forced), and reclaimers are
    /// asked for it. Takes the tree's lock, and looks at all groups below.
    ///
    /// ```
    /// use memcg::{Event, Limit, Limits, Runtime};
    ///
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
        slow_path(|_, _| observe::set(self.node(), observe));
        if !observe && !self.is_observe_only() {
            self.shrink_all();
        }
    }

    /// This group, or one above it, is only observed. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// runtime.root().set_observe_only(true);
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert!(acme.is_observe_only(), "with the root");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_observe_only(&self) -> bool {
        self.node().is_observed()
    }
}
