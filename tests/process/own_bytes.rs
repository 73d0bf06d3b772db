//! Bytes that a runtime takes itself, against what the system says, and what is used again.
//!
//! Resident memory, and what other runtimes leave in the pools, are the whole process's: each test
//! starts this program again for itself alone.

use std::thread;

use memcg::CentralStock;
use memcg::footprint::OwnBytes;
use memcg::{Group, Limits, Runtime, StatKey};

use crate::support::alone::resident;

const GROUPS: usize = 100_000;
const THREADS: usize = if cfg!(debug_assertions) {
    1_000
} else {
    10_000
};
const IN_TURN: usize = if cfg!(debug_assertions) {
    50_000
} else {
    1_000_000
};

/// Runs `body` in a process that runs nothing else, and prints its figures.
fn alone(name: &str, body: impl FnOnce()) {
    crate::support::alone::alone(&format!("own_bytes::{name}"), &[" bytes "], body);
}

fn create(parent: &Group, name: &str) -> Group {
    parent
        .create(name, Limits::new())
        .expect("a name that is free")
}

fn runtime() -> Runtime {
    Runtime::builder().build().expect("defaults hold")
}

/// Both figures before.
struct Compared {
    own: OwnBytes,
    resident: u64,
}

impl Compared {
    fn start(runtime: &Runtime) -> Compared {
        Compared {
            own: runtime.own_bytes(),
            resident: resident(),
        }
    }

    /// They have grown alike, but for a part in so many.
    #[track_caller]
    fn end(&self, what: &str, runtime: &Runtime, part: u64) {
        let resident = resident() - self.resident;
        let own = runtime.own_bytes().total() - self.own.total();
        println!("{what}: {own} bytes by its own count, {resident} resident");
        assert!(
            own.abs_diff(resident) <= resident / part,
            "{what}: {own} bytes by its own count, {resident} resident"
        );
    }
}

#[test]
fn it_is_what_resident_memory_grows_by() {
    alone("it_is_what_resident_memory_grows_by", || {
        let runtime = runtime();
        let root = runtime.root();
        let parent = create(&root, "parent");
        drop(create(&parent, "first").charge(4_096));
        let before = Compared::start(&runtime);
        for number in 0..GROUPS {
            let limits = Limits::new().max(1 << 30);
            let group = parent
                .create(&format!("group-{number:010}"), limits)
                .expect("a name");
            drop(group.charge(4_096).expect("room"));
        }
        before.end("idle groups", &runtime, 50);
    });
}

#[test]
fn so_it_is_where_everything_is_used() {
    alone("so_it_is_where_everything_is_used", || {
        let runtime = runtime();
        let root = runtime.root();
        create(&root, "first").stat_add(StatKey::ANON, 1);
        let before = Compared::start(&runtime);
        for number in 0..GROUPS / 2 {
            // Too long for its object, as names of queries are.
            let name =
                format!("a-group-with-a-name-of-64-bytes-as-they-are-given-out-{number:010}");
            let group = root
                .create(&name, Limits::new().max(100).soft(0))
                .expect("a name");
            group.stat_add(StatKey::ANON, 4_096);
            assert!(group.charge(101).is_err());
        }
        // Memory that the process's allocator keeps about names and cells is not seen.
        before.end(
            "groups with statistics, events, excess and long names",
            &runtime,
            10,
        );
    });
}

/// The next threads take over the memory of ended ones.
#[test]
fn threads_in_turn_take_no_more() {
    alone("threads_in_turn_take_no_more", || {
        let runtime = runtime();
        let groups: Vec<_> = (0..100)
            .map(|number| create(&runtime.root(), &number.to_string()))
            .collect();
        let one = || {
            for group in &groups {
                drop(group.charge(4_096).expect("room"));
                group.stat_add(StatKey::ANON, 1);
            }
        };
        let one = || {
            thread::scope(|scope| {
                scope
                    .spawn(one)
                    .join()
                    .expect("it has nothing to panic about")
            })
        };
        (0..THREADS / 100).for_each(|_| one());
        let own = runtime.own_bytes();
        let before = resident();
        (THREADS / 100..THREADS).for_each(|_| one());
        assert_eq!(runtime.own_bytes(), own);
        let grown = resident().saturating_sub(before);
        println!("{grown} bytes more after {THREADS} threads in turn");
        assert!(
            grown <= 1 << 20,
            "{grown} bytes more after {THREADS} threads in turn"
        );
    });
}

/// The next groups take over the memory of groups that are gone.
#[test]
fn groups_in_turn_take_no_more() {
    alone("groups_in_turn_take_no_more", || {
        let runtime = runtime();
        let one = |number: usize| {
            let limits = Limits::new().max(1 << 20);
            let group = runtime
                .root()
                .create(&format!("group-{number:010}"), limits)
                .expect("a name");
            drop(group.charge(4_096).expect("room"));
            group.stat_add(StatKey::ANON, 1);
            if number.is_multiple_of(16) {
                assert!(group.charge(2 << 20).is_err());
            }
            group.offline().expect("no children");
        };
        (0..IN_TURN / 100).for_each(one);
        let own = runtime.own_bytes();
        (IN_TURN / 100..IN_TURN).for_each(one);
        assert_eq!(runtime.own_bytes(), own);
    });
}

/// An object that a group has left behind is a free one, and no longer the group's.
#[test]
fn what_groups_leave_counts_once() {
    alone("what_groups_leave_counts_once", || {
        let runtime = runtime();
        let groups: Vec<_> = (0..1_000)
            .map(|number| create(&runtime.root(), &number.to_string()))
            .collect();
        groups
            .iter()
            .for_each(|group| group.stat_add(StatKey::ANON, 1));
        let own = runtime.own_bytes();
        groups
            .into_iter()
            .for_each(|group| group.offline().expect("no children"));
        runtime.settle();
        let left = runtime.own_bytes();
        assert!(
            left.pools <= own.pools,
            "{} bytes of pools, and {} with the groups",
            left.pools,
            own.pools
        );
    });
}

/// A central stock is made once, and stays with its group's object.
#[test]
fn a_central_stock_takes_its_lines() {
    alone("a_central_stock_takes_its_lines", || {
        let runtime = runtime();
        let groups: Vec<_> = (0..1_000)
            .map(|number| create(&runtime.root(), &number.to_string()))
            .collect();
        let own = runtime.own_bytes();
        let stocks: Vec<_> = groups
            .iter()
            .map(|group| [CentralStock::of(group), CentralStock::of(group)])
            .collect();
        let bytes = runtime.own_bytes().pools - own.pools;
        let each = bytes / stocks.len() as u64;
        println!("{bytes} bytes for {} central stocks", stocks.len());
        assert!(
            (64..=256).contains(&each) && each * 1_000 == bytes,
            "{bytes} bytes for {} stocks",
            stocks.len()
        );
    });
}
