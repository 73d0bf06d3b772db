//! A charge under a lock that the reclaimer takes: a build with debug assertions says so.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use memcg::{Event, Limits, Reclaim, ReclaimContext, ReclaimPriority};

use super::{bare, build, create, create_with};

/// It waits for a lock, in `reclaimable` already or later.
struct Waits {
    lock: Mutex<()>,
    early: bool,
}

impl Reclaim for Waits {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        drop(self.lock.lock());
        0
    }

    fn reclaimable(&self) -> u64 {
        if self.early {
            drop(self.lock.lock());
        }
        u64::MAX
    }
}

/// The lock is that of another thread, which gives it back once it has read that the call is stuck:
/// so the test ends where a program would not.
#[test]
fn a_reclaimer_that_does_not_return_is_an_event() {
    for early in [false, true] {
        let runtime = build(bare());
        let full = create_with(&runtime.root(), "full", Limits::new().max(100));
        let cache = create(&full, "cache");
        let waits = Arc::new(Waits {
            lock: Mutex::new(()),
            early,
        });
        let _registration = cache.register_reclaimer(waits.clone(), ReclaimPriority::NORMAL);
        let _held = cache.charge(90).unwrap();
        let locked = waits.lock.lock().unwrap();
        thread::scope(|scope| {
            let charge = scope.spawn(|| full.charge(20).is_err());
            let seen = cache.events().local();
            let stuck = seen.wait(Event::ReclaimStuck, Duration::from_secs(60));
            assert!(stuck && !charge.is_finished(), "early: {early}");
            drop(locked);
            assert!(charge.join().unwrap(), "it frees nothing");
        });
        // Once for a call, at its group and so in those above.
        assert_eq!(cache.events().local().get(Event::ReclaimStuck), 1);
        assert_eq!(runtime.root().events().get(Event::ReclaimStuck), 1);
        assert_eq!(full.events().local().get(Event::ReclaimStuck), 0);
        // One that returns is none.
        assert!(full.charge(20).is_err());
        assert_eq!(cache.events().local().get(Event::ReclaimStuck), 1);
    }
}
