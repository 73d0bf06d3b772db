//! The machine of a run with containers: on which node each page lies.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memcg::ChargeError;
use memcg::kmem::{NodeId, NodeOf, PageNode};
use memcg_kmem::KmemError;

pub(crate) const PAGE: usize = 4_096;

/// A machine: where each page lies. A page has a place once it was asked for.
#[derive(Debug, Default)]
pub(crate) struct Machine(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    nodes: usize,
    of_page: BTreeMap<usize, Place>,
    asked: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    node: usize,
    /// The first answer is that nobody has touched it.
    is_late: bool,
}

impl Machine {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_nodes(&self, nodes: usize) {
        self.places().nodes = nodes;
    }

    /// The node of a page that was asked for.
    #[cfg(all(feature = "adapters", not(shuttle)))]
    pub(crate) fn node(&self, address: usize) -> Option<usize> {
        let places = self.places();
        places
            .of_page
            .get(&(address / PAGE))
            .map(|place| place.node)
    }

    pub(crate) fn move_pages(&self, by: usize) {
        let places = &mut *self.places();
        let nodes = places.nodes.max(1);
        for place in places.of_page.values_mut() {
            place.node = (place.node + by) % nodes;
        }
    }
}

impl NodeOf for Machine {
    fn page_size(&self) -> usize {
        PAGE
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        let mut guard = self.places();
        let places = &mut *guard;
        for (&address, found) in pages.iter().zip(found) {
            let (asked, nodes) = (&mut places.asked, places.nodes.max(1));
            let place = places.of_page.entry(address / PAGE).or_insert_with(|| {
                *asked += 1;
                Place {
                    // In no order that pages, processors and nodes have, too.
                    node: (asked.wrapping_mul(0x9E37_79B9) >> 7) % nodes,
                    is_late: asked.is_multiple_of(5),
                }
            });
            let is_late = std::mem::take(&mut place.is_late);
            *found = if is_late {
                PageNode::Untouched
            } else {
                PageNode::On(NodeId::new(place.node as u16))
            };
        }
    }
}

/// The charge that was refused. The system has memory for all of this.
pub(crate) fn refusal(error: KmemError) -> ChargeError {
    match error {
        KmemError::Charge(error) => error,
        error => panic!("no refusal of a group: {error}"),
    }
}
