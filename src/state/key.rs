//! The key of an entry in a list that may be long: tests count what finding it costs.

use std::cmp::Ordering;

use crate::sync::step;

/// Names one entry of a list. In unit tests each comparison of two keys is a step, so a test holds
/// how many steps a list takes for as many entries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Key(pub(crate) u64);

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        step();
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}
