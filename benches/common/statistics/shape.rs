//! Trees of groups, by index.

#![cfg(not(loom))]

use super::ROOT;

/// The parent of each group. A parent comes before its children. The first group is the root, and
/// its own parent.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    parents: Vec<u32>,
}

impl Shape {
    /// One below the other.
    pub(crate) fn chain(depth: usize) -> Self {
        Shape {
            parents: (0..depth as u32)
                .map(|group| group.saturating_sub(1))
                .collect(),
        }
    }

    /// A root and so many children.
    pub(crate) fn fan(count: usize) -> Self {
        Shape {
            parents: vec![0; 1 + count],
        }
    }

    /// A root, so many tenants below it, and so many groups below those, evenly shared.
    pub(crate) fn tenants(tenants: usize, groups: usize) -> Self {
        let mut parents = vec![0; 1 + tenants];
        parents.extend((0..groups).map(|group| 1 + (group * tenants / groups) as u32));
        Shape { parents }
    }

    /// Groups, the root included.
    pub(crate) fn len(&self) -> usize {
        self.parents.len()
    }

    /// The last of the groups: at the end of a chain, or a leaf.
    pub(crate) fn last(&self) -> usize {
        self.len() - 1
    }

    #[inline(always)]
    pub(crate) fn parent(&self, group: usize) -> Option<usize> {
        if group == ROOT {
            None
        } else {
            Some(self.parents[group] as usize)
        }
    }

    /// The group and all above it, up to the root.
    #[inline(always)]
    pub(crate) fn path(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(group), |&group| self.parent(group))
    }

    /// The groups of the lowest level of [`tenants`](Self::tenants).
    pub(crate) fn leaves(&self, count: usize) -> std::ops::Range<usize> {
        self.len() - count..self.len()
    }
}
