//! `group/unrelated/…`: lives of groups in as many runtimes as there are threads. What two threads
//! can do at most in one runtime is what they do here.

#![cfg(not(loom))]

use std::sync::Arc;

use super::{runtime, serve};
use crate::common::rows::Rows;
use crate::common::team::Team;

pub(crate) fn id(threads: usize) -> String {
    format!("group/unrelated/threads{threads}")
}

pub(crate) fn rows(rows: &mut Rows) {
    for threads in [1, 2] {
        rows.wall(&id(threads), || {
            let runtimes: Vec<_> = (0..threads).map(|_| Arc::new(runtime())).collect();
            Team::new(threads, move |station| {
                serve(&runtimes[station.index], &station)
            })
        });
    }
}
