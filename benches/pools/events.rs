//! The events of the pools: one for each allocation.

#![cfg(not(loom))]

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Under which the pools speak.
const TARGET: &str = "memcg::pool";

static TOLD: Mutex<Vec<Allocation>> = Mutex::new(Vec::new());

/// One allocation, as it was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) pool: String,
    pub(crate) asked: usize,
    pub(crate) given: usize,
    /// As text: where it may lie anywhere there is none.
    pub(crate) node: String,
    pub(crate) recycled: bool,
}

/// From here on all is kept that is told.
pub(crate) fn listen() {
    tracing::subscriber::set_global_default(Listener)
        .expect("no other thread listens in this program");
}

/// The events since the last time.
pub(crate) fn told() -> Vec<Allocation> {
    std::mem::take(&mut *all())
}

fn all() -> MutexGuard<'static, Vec<Allocation>> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn event(&self, event: &Event<'_>) {
        let mut allocation = Allocation::default();
        event.record(&mut allocation);
        // One slow path takes more than is told only where a whole branch of the tree is made.
        assert!(!allocation.pool.is_empty(), "an event without a pool");
        all().push(allocation);
    }

    // The pools have no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Allocation {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "asked" => self.asked = value as usize,
            "given" => self.given = value as usize,
            _ => self.record_debug(field, &value),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "recycled" {
            self.recycled = value;
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "pool" => self.pool = format!("{value:?}"),
            "node" => self.node = format!("{value:?}"),
            _ => {}
        }
    }
}

impl fmt::Display for Allocation {
    /// In the series' words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Allocation {
            pool,
            asked,
            given,
            node,
            recycled,
        } = self;
        let node = if node.is_empty() { "-1" } else { node };
        write!(
            f,
            "{TARGET}: pool={pool} bytes_req={asked} bytes_alloc={given} node={node} recycled={recycled}"
        )
    }
}
