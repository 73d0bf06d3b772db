//! A thread that frees what others have asked for: answers of reclaimers that are due, and the
//! charges of jobs that were told to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::lock;
use super::world::World;

/// Until `over`. From `stop` on the pool frees all that can be had, because the threads that made
/// room have ceased.
pub(crate) fn work(world: &World, seed: u64, stop: &AtomicBool, over: &AtomicBool) {
    let mut rng = SmallRng::seed_from_u64(!seed);
    while !over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_micros(rng.random_range(200..5_000)));
        let due = std::mem::take(&mut *lock(&world.due));
        for (later, shelf) in due {
            // Some are forgotten.
            if rng.random_bool(0.8) {
                let freed = shelf.evict(later.want());
                later.report(freed);
            }
        }
        let stopped = std::mem::take(&mut *lock(&world.stopped));
        stopped.iter().for_each(|held| held.stop());
        if stop.load(Ordering::SeqCst) {
            for cache in &world.caches {
                cache.shelf.evict(u64::MAX);
            }
            world.jobs().iter().for_each(|job| job.held.free());
        }
    }
}
