//! A naive twin of the counter tree: a vector of counters and a walk of ancestors, with no stock,
//! threads or atomics.
//!
//! Driven one operation at a time, the tree must agree with it exactly: a charge is admitted when
//! the twin admits it, refused at the level where the twin refuses it, and `live()` is the twin's
//! number at every counter.

pub(crate) mod ops;
pub(crate) mod run;

use memcg::PageCounter;

/// One counter of the twin.
pub(crate) struct Node {
    /// Index of the parent; `None` for the root.
    pub(crate) parent: Option<usize>,
    /// Units charged to this counter itself and not uncharged.
    pub(crate) own: u64,
    /// Units charged in the subtree and not uncharged.
    pub(crate) live: u64,
    pub(crate) max: u64,
    pub(crate) min: u64,
    pub(crate) low: u64,
    pub(crate) batch: u64,
    /// Charges refused at this level.
    pub(crate) failcnt: u64,
    /// A caller can still reach the counter directly.
    pub(crate) handle: bool,
    /// Counters below this one that have not gone.
    pub(crate) children: usize,
    /// Neither a handle nor a child keeps the counter.
    pub(crate) gone: bool,
    /// A forced charge has passed through this level.
    pub(crate) forced: bool,
    /// Highest `live` so far.
    pub(crate) peak: u64,
    /// Highest `max` so far.
    pub(crate) max_ever: u64,
}

/// The twin of a tree. Index 0 is the root; indices are never reused.
pub(crate) struct Oracle {
    nodes: Vec<Node>,
}

impl Oracle {
    pub(crate) fn new(max: u64, batch: u64) -> Self {
        let mut oracle = Self { nodes: Vec::new() };
        oracle.push(None, max, batch);
        oracle
    }

    fn push(&mut self, parent: Option<usize>, max: u64, batch: u64) -> usize {
        self.nodes.push(Node {
            parent,
            own: 0,
            live: 0,
            max,
            min: 0,
            low: 0,
            batch,
            failcnt: 0,
            handle: true,
            children: 0,
            gone: false,
            forced: false,
            peak: 0,
            max_ever: max,
        });
        self.nodes.len() - 1
    }

    pub(crate) fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Every counter that has not gone.
    pub(crate) fn present(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|&index| !self.nodes[index].gone)
    }

    /// The children of `index` that have not gone.
    pub(crate) fn children(&self, index: usize) -> impl Iterator<Item = usize> {
        self.present()
            .filter(move |&child| self.nodes[child].parent == Some(index))
    }

    /// From `index` to the root, both included.
    pub(crate) fn path(&self, index: usize) -> Vec<usize> {
        let mut path = vec![index];
        while let Some(parent) = self.nodes[path[path.len() - 1]].parent {
            path.push(parent);
        }
        path
    }

    /// `top` lies on the way from `index` to the root.
    pub(crate) fn is_within(&self, index: usize, top: usize) -> bool {
        self.path(index).contains(&top)
    }

    pub(crate) fn child(&mut self, parent: usize) -> usize {
        let batch = self.nodes[parent].batch;
        self.nodes[parent].children += 1;
        self.push(Some(parent), PageCounter::UNLIMITED, batch)
    }

    /// Drops the handle. A counter without handle and children goes, what is still charged to it
    /// leaves its ancestors, and its parent may be next.
    pub(crate) fn drop_handle(&mut self, index: usize) {
        self.nodes[index].handle = false;
        let mut next = Some(index);
        while let Some(index) = next {
            let node = &mut self.nodes[index];
            if node.handle || node.children > 0 {
                return;
            }
            node.gone = true;
            let own = node.own;
            let parent = node.parent;
            self.uncharge(index, own);
            if let Some(parent) = parent {
                self.nodes[parent].children -= 1;
            }
            next = parent;
        }
    }

    /// Admits `units`, or names the first level from the counter to the root that has no room for
    /// them.
    pub(crate) fn try_charge(&mut self, index: usize, units: u64) -> Result<(), usize> {
        if units > 0 {
            for level in self.path(index) {
                let node = &self.nodes[level];
                let limit = node.max.min(PageCounter::USAGE_MAX);
                if node.live.checked_add(units).is_none_or(|sum| sum > limit) {
                    // More than a level without a max can count: the nearest max above speaks for
                    // it.
                    let limited = |&above: &usize| self.nodes[above].max < PageCounter::USAGE_MAX;
                    let level = self.path(level).into_iter().find(limited).unwrap_or(level);
                    self.nodes[level].failcnt += 1;
                    return Err(level);
                }
            }
        }
        self.add(index, units);
        Ok(())
    }

    /// Adds `units` whatever the limits say.
    pub(crate) fn charge(&mut self, index: usize, units: u64) {
        for level in self.path(index) {
            self.nodes[level].forced |= units > 0;
        }
        self.add(index, units);
    }

    fn add(&mut self, index: usize, units: u64) {
        self.nodes[index].own += units;
        for level in self.path(index) {
            let node = &mut self.nodes[level];
            node.live += units;
            node.peak = node.peak.max(node.live);
        }
    }

    pub(crate) fn uncharge(&mut self, index: usize, units: u64) {
        self.nodes[index].own -= units;
        for level in self.path(index) {
            self.nodes[level].live -= units;
        }
    }

    /// Stores the limit; refuses (`false`) when more than that is live.
    pub(crate) fn set_max(&mut self, index: usize, max: u64) -> bool {
        let node = &mut self.nodes[index];
        let fits = node.live <= max;
        if fits {
            node.max = max;
            node.max_ever = node.max_ever.max(max);
        }
        fits
    }

    pub(crate) fn set_min(&mut self, index: usize, units: u64) {
        self.nodes[index].min = units;
    }

    pub(crate) fn set_low(&mut self, index: usize, units: u64) {
        self.nodes[index].low = units;
    }

    pub(crate) fn set_batch(&mut self, top: usize, units: u64) {
        for index in 0..self.nodes.len() {
            if !self.nodes[index].gone && self.is_within(index, top) {
                self.nodes[index].batch = units;
            }
        }
    }

    /// The units that can still be charged through `index` before some level refuses.
    pub(crate) fn margin(&self, index: usize) -> u64 {
        self.path(index)
            .into_iter()
            .map(|level| {
                let node = &self.nodes[level];
                node.max
                    .min(PageCounter::USAGE_MAX)
                    .saturating_sub(node.live)
            })
            .min()
            .unwrap_or(0)
    }
}
