//! One map behind one mutex: what people write themselves.

#![cfg(not(loom))]

use std::collections::HashMap;

use parking_lot::Mutex;

use super::shape::Shape;
use super::{Item, Statistics};

/// Every add goes up the tree under the lock, so that a read is one look-up, and exact.
pub(crate) struct SharedMap {
    shape: Shape,
    figures: Mutex<HashMap<usize, [i64; Item::COUNT]>>,
}

impl SharedMap {
    pub(crate) fn new(shape: Shape) -> Self {
        let figures = (0..shape.len())
            .map(|group| (group, [0; Item::COUNT]))
            .collect();
        SharedMap {
            shape,
            figures: Mutex::new(figures),
        }
    }
}

impl Statistics for SharedMap {
    fn add(&self, group: usize, item: Item, delta: i64) {
        let mut figures = self.figures.lock();
        for group in self.shape.path(group) {
            figures.entry(group).or_default()[item as usize] += delta;
        }
    }

    fn read(&self, group: usize, item: Item) -> i64 {
        self.figures
            .lock()
            .get(&group)
            .map_or(0, |figures| figures[item as usize])
    }

    fn flush(&self, _group: usize) {}
}
