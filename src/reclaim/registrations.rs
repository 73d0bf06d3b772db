//! Who can be asked, group by group: lists of registrations by ring, under a lock of their own.

use crate::counter::object::Counter;
use crate::counter::tree::Tree;
use crate::reclaim::entry::Entry;
use crate::reclaim::rings::Kind;
use crate::sync::{Arc, Ordering};

impl Tree {
    /// From here on it may be asked, for `node`; where that is offline, for the nearest above that is not.
    pub(crate) fn register(&self, node: &'static Counter, entry: &Arc<Entry>) {
        self.make_rings(node).unwrap_or_else(|refused| refused.abort());
        let mut lists = self.reclaimers.lock();
        // Under the lock: whoever goes offline hands on what it finds here afterwards.
        let online = std::iter::successors(Some(node), |level| level.incarnation().parent)
            .find(|level| !level.state().is_offline() || level.incarnation().parent.is_none());
        if let Some(home) = online {
            self.settle_in(&mut lists, home, Arc::clone(entry));
        }
    }

    fn settle_in(&self, lists: &mut Vec<Vec<Arc<Entry>>>, home: &'static Counter, entry: Arc<Entry>) {
        let ring = home.ring.load(Ordering::Relaxed);
        if lists.len() <= ring as usize {
            lists.resize_with(ring as usize + 1, Vec::new);
        }
        entry.home.store(ring, Ordering::Relaxed);
        let list = &mut lists[ring as usize];
        let at = list.partition_point(|other| other.priority <= entry.priority);
        list.insert(at, entry);
        self.rings.lock().set_own(ring, Kind::Reclaimers, true);
    }

    /// Nobody finds it any more. What is returned is to be dropped without a lock.
    pub(crate) fn unregister(&self, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        let mut lists = self.reclaimers.lock();
        let ring = entry.home.load(Ordering::Relaxed);
        let list = lists.get_mut(ring as usize)?;
        let at = list.iter().position(|other| Arc::ptr_eq(other, entry))?;
        let gone = list.remove(at);
        if list.is_empty() {
            self.rings.lock().set_own(ring, Kind::Reclaimers, false);
        }
        Some(gone)
    }

    /// `group` has gone offline: what it could give its parent can, which keeps its charges. The root keeps its own.
    pub(crate) fn inherit(&self, group: &'static Counter) {
        let Some(parent) = group.incarnation().parent else { return };
        // Before the look for a ring: whoever registers here now has made one, or finds the group offline.
        let mut lists = self.reclaimers.lock();
        let ring = group.ring.load(Ordering::Relaxed);
        let entries = lists.get_mut(ring as usize).map(std::mem::take).unwrap_or_default();
        if entries.is_empty() {
            return;
        }
        for entry in entries {
            self.settle_in(&mut lists, parent, entry);
        }
        self.rings.lock().set_own(ring, Kind::Reclaimers, false);
    }
}
