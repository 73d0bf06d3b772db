//! Trees to charge.

#![cfg(not(loom))]

use memcg::{CounterConfig, PageCounter};

/// A chain of `depth` counters; returns the lowest, which keeps the others.
pub(crate) fn chain(config: CounterConfig, depth: usize) -> PageCounter {
    (1..depth).fold(PageCounter::root(config), |above, _| above.child())
}

/// A root and `count` children: two levels, the fewest that groups can have. More levels would cost
/// those baselines more that walk the tree more often.
pub(crate) fn fan(config: CounterConfig, count: usize) -> (PageCounter, Vec<PageCounter>) {
    let root = PageCounter::root(config);
    let leaves = (0..count).map(|_| root.child()).collect();
    (root, leaves)
}

/// The configuration of a tree without stock: what the baselines stand on.
pub(crate) fn unstocked() -> CounterConfig {
    CounterConfig::new().batch(0)
}
