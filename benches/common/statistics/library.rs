//! The library.

#![cfg(not(loom))]

use memcg::{Freshness, Group, Limits, Runtime, RuntimeBuilder, StatKey};

use super::shape::Shape;
use super::{Events, Item, Statistics};

impl Item {
    #[inline(always)]
    pub(crate) fn stat(self) -> StatKey {
        match self {
            Item::Anon => StatKey::ANON,
            Item::File => StatKey::FILE,
            Item::Refault => StatKey::WORKINGSET_REFAULT,
        }
    }
}

/// A runtime with groups in the given shape.
pub(crate) struct Library {
    pub(crate) runtime: Runtime,
    pub(crate) groups: Vec<Group>,
    /// The freshness that [`Statistics::read`] asks the library for.
    pub(crate) ask: Freshness,
}

impl Library {
    pub(crate) fn new(shape: &Shape, ask: Freshness) -> Self {
        Library::build(Runtime::builder(), shape, ask)
    }

    pub(crate) fn build(builder: RuntimeBuilder, shape: &Shape, ask: Freshness) -> Self {
        let runtime = builder
            .build()
            .expect("nothing is asked for that cannot be had");
        let mut groups = vec![runtime.root()];
        for group in 1..shape.len() {
            let parent = shape
                .parent(group)
                .map_or_else(|| runtime.root(), |parent| groups[parent].clone());
            groups.push(
                parent
                    .create(&group.to_string(), Limits::new())
                    .expect("a free name in a group that is"),
            );
        }
        Library {
            runtime,
            groups,
            ask,
        }
    }
}

impl Statistics for Library {
    #[inline(always)]
    fn add(&self, group: usize, item: Item, delta: i64) {
        self.groups[group].stat_add(item.stat(), delta);
    }

    fn read(&self, group: usize, item: Item) -> i64 {
        self.groups[group].read(self.ask).get(item.stat())
    }

    fn flush(&self, group: usize) {
        self.groups[group].inspect().flush();
    }

    fn events(&self) -> Events {
        let counts = self.runtime.counts();
        Events {
            flushes: counts.flushes,
            visits: counts.flush_visits,
            ..Events::default()
        }
    }
}
