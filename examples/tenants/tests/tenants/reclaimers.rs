//! Shelves as reclaimers: for which tenants they make room, when they are gone, and that no thread waits for itself.

use std::sync::Arc;

use memcg::{Bytes, ChargeError, Event, Group, Limit, Limits, Priority, Registration, Runtime};

use super::entry::{Block, Entry, footprint};
use super::items::{Items, Own};
use super::lru::Key;
use super::shelf::{Shelf, Tally};

/// Bytes of a block.
const SIZE: u64 = 1_000;

/// Entries that there is room for.
const ROOM: u64 = 8;

/// A service with a budget and two tenants.
struct Service {
    runtime: Runtime,
    groups: [Group; 2],
    shelves: [Arc<Shelf>; 2],
    owners: Arc<[Own]>,
    registrations: [Option<Registration>; 2],
}

impl Service {
    fn new() -> Self {
        let mut builder = Runtime::builder().max(Limit::Bytes(ROOM * footprint(SIZE))).batch(Bytes(0));
        let items = Items::declare(&mut builder);
        let runtime = builder.audit(true).build().expect("a runtime");
        let groups = ["shop", "news"].map(|name| runtime.root().create(name, Limits::new()).expect("a tenant"));
        let owners: Arc<[Own]> = [Own::default(), Own::default()].into();
        let shelves = [(); 2].map(|()| Arc::new(Shelf::new(Arc::clone(&owners), items.evictions)));
        let register =
            |tenant: usize| Some(groups[tenant].register_reclaimer(shelves[tenant].clone(), Priority::NORMAL));
        let registrations = [register(0), register(1)];
        Self { runtime, groups, shelves, owners, registrations }
    }

    fn put(&self, tenant: usize, number: u64) -> Result<(), ChargeError> {
        let charge = self.groups[tenant].try_charge(Bytes(footprint(SIZE)))?;
        let block = Block::fill(number, 0, 0, SIZE).expect("memory");
        let entry = Entry { charge, block, version: 0 };
        entry.recount(0);
        self.shelves[tenant].put(key(tenant, number), entry);
        Ok(())
    }

    fn entries(&self, tenant: usize) -> u64 {
        self.shelves[tenant].tally()[tenant].entries
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.shelves.iter().for_each(|shelf| shelf.clear());
            assert_eq!(self.runtime.root().usage(), 0);
            assert!(self.runtime.verify().is_ok(), "{:?}", self.runtime.verify());
        }
    }
}

fn key(tenant: usize, number: u64) -> Key {
    Key { owner: tenant as u32, number }
}

#[test]
fn oldest_entry_goes_and_its_tenant_counts_it() {
    let service = Service::new();
    (0..ROOM).for_each(|number| service.put(0, number).expect("room"));
    service.put(1, 0).expect("room is made");
    assert!(service.shelves[0].look(key(0, 0), |_| ()).is_none(), "the oldest is gone");
    assert_eq!((service.entries(0), service.entries(1)), (ROOM - 1, 1));
    assert_eq!(service.owners[0].evictions(), (1, 1));

    let own = Limit::Bytes((ROOM - 1) * footprint(SIZE));
    assert_eq!(service.groups[0].set_max(own).expect("a limit"), 0, "nothing above it");
    service.put(0, ROOM).expect("room is made");
    assert_eq!(service.owners[0].evictions(), (2, 1), "for its own max");
    assert_eq!(service.owners[1].evictions(), (0, 0));
}

#[test]
fn reclaimer_is_gone_with_its_registration() {
    let mut service = Service::new();
    (0..ROOM).for_each(|number| service.put(0, number).expect("room"));
    drop(service.registrations[0].take());
    assert_eq!(Arc::strong_count(&service.shelves[0]), 1, "no other tenant holds it");
    assert!(service.put(1, 0).is_err(), "a tenant that has something is not asked");
    assert_eq!(service.entries(0), ROOM);
    assert_eq!(service.runtime.root().events().get(Event::Oom), 1);

    drop(service.registrations[1].take());
    let report = service.runtime.root().reclaim(Bytes(footprint(SIZE))).expect("not in a reclaimer");
    assert_eq!((report.visited, report.freed), (0, 0));
}

#[test]
fn tenant_that_leaves_gives_what_it_left_behind() {
    let service = Service::new();
    (0..ROOM).for_each(|number| service.put(0, number).expect("room"));
    service.groups[0].offline().expect("it has no groups below");
    service.put(1, 0).expect("room is made of what belongs to no tenant");
    assert_eq!((service.entries(0), service.entries(1)), (ROOM - 1, 1));
}

/// A tenant that charges with a shelf locked gets nothing from that shelf, but an answer.
#[test]
fn shelf_that_the_charging_thread_locks_is_not_waited_for() {
    let service = Service::new();
    (0..ROOM - 1).for_each(|number| service.put(0, number).expect("room"));
    service.put(1, 0).expect("room");
    let charge = |tenant: usize| {
        service.shelves[0].look(key(0, 0), |_| service.groups[tenant].try_charge(Bytes(footprint(SIZE))))
    };
    let charged = charge(0).expect("the entry is there").expect("the other tenant makes room");
    assert_eq!(service.shelves.each_ref().map(|shelf| shelf.tally()[1]), [Tally::default(); 2]);
    assert!(charge(1).expect("the entry is there").is_err(), "and has nothing any more");
    drop(charged);
    service.put(1, 0).expect("there is room");
    service.put(1, 1).expect("no thread holds the lock, so room is made");
}
