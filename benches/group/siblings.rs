//! `group/create_destroy/siblings…`: so many other groups below the same root, idle, without a
//! handle.

#![cfg(not(loom))]

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::env;
use std::sync::Arc;

use memcg::{Limits, Runtime};

use super::names::LEN;
use super::team;
use crate::common::resident;
use crate::common::rows::Rows;

/// The variable with the most siblings of a row.
const MOST: &str = "MEMCG_BENCH_SIBLINGS";

/// The numbers of siblings, in turn.
pub(crate) fn counts() -> BTreeSet<u32> {
    let most = env::var(MOST).map_or(u32::MAX, |most| {
        most.parse().expect("MEMCG_BENCH_SIBLINGS is a number")
    });
    BTreeSet::from([1, 1_000, 1_000_000].map(|count: u32| count.min(most)))
}

pub(crate) fn id(count: u32, threads: usize) -> String {
    format!("group/create_destroy/siblings{count}/threads{threads}")
}

pub(crate) fn rows(rows: &mut Rows) {
    for count in counts() {
        // Made when the first row asks for it, and kept for the second.
        let crowd = LazyCell::new(|| Crowd::new(count));
        for threads in [1, 2] {
            let id = id(count, threads);
            rows.wall(&id, || team(&crowd.runtime, threads));
            if rows.ran(&id) && threads == 1 && count >= 1_000 {
                crowd.print(&id);
            }
        }
    }
}

/// Siblings, and the runtime that has them.
pub(crate) struct Crowd {
    runtime: Arc<Runtime>,
    count: u32,
    /// The growth of resident memory when all were there; `None` where the system does not say.
    growth: Option<u64>,
}

impl Crowd {
    pub(crate) fn new(count: u32) -> Self {
        let before = resident::bytes();
        let runtime = Runtime::builder().build().expect("memory for so many");
        let root = runtime.root();
        for number in 0..count {
            let name = format!("sibling-{number:08}");
            assert_eq!(name.len(), LEN, "names are all of one length");
            root.create(&name, Limits::new())
                .expect("a new name in a group that is online");
        }
        let growth = before
            .zip(resident::bytes())
            .map(|(before, after)| after.saturating_sub(before));
        Crowd {
            runtime: Arc::new(runtime),
            count,
            growth,
        }
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    fn print(&self, id: &str) {
        if let Some(growth) = self.growth {
            println!(
                "{id}: {} bytes resident for each sibling\n",
                growth / u64::from(self.count)
            );
        }
    }
}
