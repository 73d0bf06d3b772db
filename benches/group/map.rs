//! `group/create_destroy/map`: what people write in the place of groups: counts by name in a map
//! behind a mutex.

#![cfg(not(loom))]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::names::Names;
use super::{SIZE, TOUCHES};
use crate::common::team::Team;

pub(crate) const ID: &str = "group/create_destroy/map";

/// One iteration makes a count under a new name, adds to it once, subtracts, and takes it out
/// again.
pub(crate) fn team() -> Team {
    let map: Arc<Mutex<HashMap<String, Arc<AtomicU64>>>> = Arc::default();
    Team::new(1, move |station| {
        let mut names = Names::new(station.index);
        let mut lives = |times| {
            for _ in 0..times {
                let name = black_box(names.next());
                let count = Arc::new(AtomicU64::new(0));
                map.lock().insert(name.to_owned(), Arc::clone(&count));
                count.fetch_add(black_box(SIZE), Ordering::Relaxed);
                count.fetch_sub(black_box(SIZE), Ordering::Relaxed);
                drop(map.lock().remove(name));
            }
        };
        lives(TOUCHES);
        station.serve(lives);
    })
}
