//! Observe-only: the limits of a subtree that refuse and delay nobody, as if they were not there, and count.

use crate::counter::object::Counter;
use crate::counter::stocks::Stocks;
use crate::counter::tree::Tree;
use crate::counter::watch::OBSERVED;
use crate::pressure::victims::OBSERVES;
use crate::sync::Ordering;

impl Counter {
    /// Its limits refuse and delay nobody.
    pub(crate) fn is_observed(&self) -> bool {
        self.is_watched_for(OBSERVED)
    }

    /// Only observed, by itself or by one above. Any counter of a group.
    fn observes(&'static self) -> bool {
        self.first().path_to_root().any(|level| level.oom.load(Ordering::Relaxed) & OBSERVES != 0)
    }

    /// Mark it as observed, or not any more. Returns its max where that changes: to be stored anew.
    fn switch_observed(&'static self) -> Option<u64> {
        let observed = self.observes();
        if observed == self.is_observed() {
            return None;
        }
        let max = self.max();
        if observed {
            // The max is kept apart before the mark says where to look for it.
            self.usage.observed_max.store(max, Ordering::Relaxed);
            self.watch(OBSERVED);
        } else {
            self.unwatch(OBSERVED);
        }
        Some(max)
    }

    /// Of a group that is being made, before anybody can charge it. Under the lock of its shard.
    pub(crate) fn follow_observed_unlinked(&'static self) {
        for counter in self.group() {
            if let Some(max) = counter.switch_observed() {
                counter.impose_max(max);
            }
        }
    }
}

impl Tree {
    /// The limits of `top` and all below it count only, or act again.
    pub(crate) fn set_observed(&self, top: &'static Counter, observed: bool) {
        let mut stocks = self.stocks.lock();
        top.set_oom_bit(OBSERVES, observed);
        // Who is made meanwhile is in the shape already, or finds the mark: see `follow_observed_unlinked`.
        for group in self.hierarchy.pinned_below(top).iter() {
            for counter in group.group() {
                self.follow_observed(&mut stocks, counter);
            }
        }
    }

    fn follow_observed(&self, stocks: &mut Stocks, counter: &'static Counter) {
        if let Some(max) = counter.switch_observed() {
            // What is above a max that acts again is set apart as if it had been forced.
            self.impose_max(stocks, counter, max);
        }
    }
}
