//! Makes room for requests that wait.
//!
//! The groups' events wake one thread when a limit is met. It looks which requests wait, evicts where that helps, and
//! sleeps until the next event. The groups admit the requests in the order in which they came.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memcg::expert::Inspect as _;
use memcg::{Event, Group};

use crate::service::{Service, Tenant};
use crate::shelf::Shelf;

/// Of a max, what is evicted at once: few wake-ups, and few entries that need not have gone.
const PART: u64 = 256;

/// The event comes before the request that caused it is in line. The evictor looks for it for so long.
const ON_THE_WAY: Duration = Duration::from_micros(200);

/// The evictor overlooks a request for so long at most.
const PAUSE: Duration = Duration::from_millis(1);

/// The time that a shelf is waited for: no tenant holds one for anything like it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The thread; ends with this.
pub(crate) struct Evictor {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The tenants among which it chooses.
pub(crate) struct Places {
    root: Group,
    tenants: Vec<Place>,
}

/// A tenant.
struct Place {
    group: Group,
    shelf: Arc<Shelf>,
}

impl Evictor {
    pub(crate) fn new(places: Places) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = thread::spawn(move || {
            let mut told: Option<Instant> = None;
            while !ended.load(Ordering::Relaxed) {
                // Before the look: a tenant that comes after it is seen by the wait.
                let events = places.root.events();
                if places.make_room() {
                    told = None;
                } else if told.is_some_and(|told| told.elapsed() < ON_THE_WAY) {
                    thread::yield_now();
                } else {
                    told = events.wait(Event::Max, PAUSE).then(Instant::now);
                }
            }
        });
        Self { end, thread: Some(thread) }
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Places {
    pub(crate) fn of(service: &Service, root: Group) -> Self {
        let places = service.tenants.iter().zip(&service.shelves);
        let place = |(tenant, shelf): (&Tenant, _)| Place { group: tenant.group.clone(), shelf: Arc::clone(shelf) };
        Self { root, tenants: places.map(place).collect() }
    }

    /// Evicts once for each line; whether there was one, and anything to evict.
    fn make_room(&self) -> bool {
        let own = self.tenants.iter().filter(|place| place.group.waiting_count() > 0);
        let mut freed = own.map(|place| place.evict(place.group.max(), false)).sum::<u64>();
        if self.root.waiting_count() > 0 {
            let full = self.tenants.iter().filter(|place| place.shelf.bytes() > 0);
            freed += full.max_by_key(|place| place.overrun()).map_or(0, |place| place.evict(self.root.max(), true));
        }
        freed > 0
    }
}

impl Place {
    /// The bytes that it holds beyond those that it may keep; below nothing, those that it could keep yet.
    fn overrun(&self) -> i128 {
        // No soft limit is no share.
        let soft = Some(self.group.soft()).filter(|&soft| soft < u64::MAX).unwrap_or(0);
        i128::from(self.shelf.bytes()) - i128::from(self.group.low().max(soft))
    }

    fn evict(&self, max: u64, for_others: bool) -> u64 {
        self.shelf.evict((max / PART).max(1), Instant::now() + PATIENCE, for_others)
    }
}
