//! Observe-only: the limits of a subtree that refuse and delay nobody, as if they were not there, and count.

use super::oom::OBSERVES;
use super::page_counter::Node;
use super::places::Places;
use super::tree::Tree;
use super::watch::OBSERVED;
use crate::sync::Ordering;

impl Node {
    /// Its limits refuse and delay nobody.
    pub(crate) fn is_observed(&self) -> bool {
        self.is_watched_for(OBSERVED)
    }

    /// Only observed, by itself or by one above. Any counter of a group.
    fn observes(&'static self) -> bool {
        self.first().levels().any(|level| level.oom.load(Ordering::Relaxed) & OBSERVES != 0)
    }
}

impl Tree {
    /// The limits of `top` and all below it count only, or act again.
    pub(crate) fn set_observed(&self, top: &'static Node, observed: bool) {
        let mut places = self.places.lock();
        top.set_oom_bit(OBSERVES, observed);
        let groups: Vec<u32> = places.subtree(top.place()).collect();
        for place in groups {
            let group = places.node(place);
            for counter in group.group() {
                self.follow_observed(&mut places, counter);
            }
        }
    }

    /// A group that is made below one that is only observed, before anybody charges it.
    pub(crate) fn inherit_observed(&self, places: &mut Places, group: &'static Node) {
        for counter in group.group() {
            self.follow_observed(places, counter);
        }
    }

    fn follow_observed(&self, places: &mut Places, counter: &'static Node) {
        let observed = counter.observes();
        if observed == counter.is_observed() {
            return;
        }
        let max = counter.max();
        if observed {
            // The max is kept apart before the mark says where to look for it.
            counter.observed_max.store(max, Ordering::Relaxed);
            counter.watch(OBSERVED);
        } else {
            counter.unwatch(OBSERVED);
        }
        // What is above a max that acts again is set apart as if it had been forced.
        self.impose_max(places, counter, max);
    }
}
