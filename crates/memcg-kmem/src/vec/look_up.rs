//! The nodes of the pages of a `KmemVec`.

use std::ops::Range;

use memcg::Bytes;
use memcg::kmem::{NodeId, Placement};

use super::KmemVec;
use crate::mapping::page_size;

/// Pages behind the last element in one look-up.
const BATCH: usize = 64;

impl<T> KmemVec<T> {
    pub(super) fn is_on_one_node(&self) -> bool {
        self.node_of.is_none()
    }

    /// Bytes from the start in touched pages, whole ones.
    fn touched_bytes(&self) -> usize {
        // Mutation: what-was-pushed-last-is-not-touched
        let bytes = self.touched.max(self.len).saturating_mul(size_of::<T>());
        bytes.next_multiple_of(page_size()).min(self.mapping.len())
    }

    pub(super) fn set_due(&mut self) {
        self.due = usize::MAX;
        if let Some(node_of) = self.node_of.as_ref().filter(|_| size_of::<T>() > 0) {
            let page = node_of.page_size().max(page_size());
            self.due =
                (self.looked.saturating_add(page.saturating_mul(BATCH)) / size_of::<T>()).max(1);
        }
    }

    #[cold]
    pub(super) fn look_behind(&mut self) {
        let Some(node_of) = &self.node_of else { return };
        let page = node_of.page_size().max(page_size());
        let start = self.mapping.start().addr().get();
        let behind = start + self.len * size_of::<T>();
        // If a page of the look-up begins before the mapping, there may be no whole one yet.
        let behind = (behind - behind % page).saturating_sub(start);
        if behind > self.looked {
            self.look_at(self.looked..behind);
        }
        self.set_due();
        // Where no whole page was behind, each push would come here again.
        self.due = self.due.max(self.len + 1);
    }

    /// Looks up touched pages that are on no node, and moves their account where they lie.
    fn look_at(&mut self, bytes: Range<usize>) {
        let (Some(node_of), Some(kmem)) = (&self.node_of, &mut self.kmem) else {
            return;
        };
        let start = self.mapping.start().addr().get();
        let mut found = Placement::new();
        found.add_range(start + bytes.start..start + bytes.end, &**node_of);
        for (node, bytes) in found.nodes() {
            kmem.migrated(None, Some(node), Bytes(bytes));
        }
        // Mutation: a-look-up-forgets-what-it-missed
        self.missed |= found.unplaced() > 0;
        self.looked = bytes.end;
    }

    /// Accounts every touched page to the node where it lies. These are pages that no batch has
    /// reached yet, and pages that had no node at their look-up. Does nothing in a runtime of one
    /// node.
    ///
    /// ```
    /// use memcg::kmem::{NodeId, OneNode};
    /// use memcg_kmem::KmemVec;
    ///
    /// let runtime = memcg::Runtime::builder().nodes(2).node_of(OneNode::new(NodeId::new(1))).build()?;
    /// let mut pages = KmemVec::with_capacity_in(1, &runtime.root())?;
    /// pages.push(1_u8)?;
    /// assert_eq!(pages.placement().on_node(NodeId::new(1)), 0);
    /// pages.settle();
    /// assert_eq!(pages.placement().on_node(NodeId::new(1)), pages.capacity() as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle(&mut self) {
        if self.is_on_one_node() {
            return;
        }
        // It is not kept which pages had no node, so all are looked up.
        if self.missed {
            self.relocate();
        } else if self.looked < self.touched_bytes() {
            self.look_at(self.looked..self.touched_bytes());
            self.set_due();
        }
    }

    /// Looks every touched page up anew, after pages have moved and it is not known which. Does
    /// nothing in a runtime of one node.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// let mut pages = memcg_kmem::KmemVec::with_capacity_in(1, &runtime.root())?;
    /// pages.push(1_u8)?;
    /// pages.relocate();
    /// assert_eq!(pages.placement().bytes(), runtime.root().live());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relocate(&mut self) {
        let touched = self.touched_bytes();
        let (Some(node_of), Some(kmem)) = (&self.node_of, &mut self.kmem) else {
            return;
        };
        let start = self.mapping.start().addr().get();
        let mut found = Placement::new();
        // Mutation: elements-alone-are-relocated
        found.add_range(start..start + touched, &**node_of);
        kmem.relocate(&found);
        self.missed = found.unplaced() > 0;
        // Mutation: a-vector-looked-up-anew-forgets-how-far
        self.looked = touched;
        self.set_due();
    }

    /// Reports that so many pages have moved from a node to another one. Their account moves with
    /// them, without a look-up. Returns how many of them were accounted there.
    ///
    /// ```
    /// use memcg::kmem::{NodeId, OneNode};
    /// use memcg_kmem::KmemVec;
    ///
    /// let runtime = memcg::Runtime::builder().nodes(2).node_of(OneNode::new(NodeId::new(0))).build()?;
    /// let mut pages = KmemVec::with_capacity_in(1, &runtime.root())?;
    /// pages.push(1_u8)?;
    /// pages.settle();
    /// assert_eq!(pages.migrated(NodeId::new(0), NodeId::new(1), 1), 1);
    /// assert_eq!(pages.placement().on_node(NodeId::new(1)), pages.capacity() as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn migrated(&mut self, from: NodeId, to: NodeId, pages: usize) -> usize {
        let bytes = pages.saturating_mul(page_size()) as u64;
        let moved = self
            .kmem
            .as_mut()
            .map_or(0, |kmem| kmem.migrated(Some(from), Some(to), Bytes(bytes)));
        usize::try_from(moved).unwrap_or(usize::MAX) / page_size()
    }

    /// The vector has new pages, which have no known node.
    pub(super) fn forget_nodes(&mut self) {
        if let Some(kmem) = &mut self.kmem {
            kmem.relocate(&Placement::new());
        }
        self.looked = 0;
        self.missed = false;
        self.set_due();
    }
}
