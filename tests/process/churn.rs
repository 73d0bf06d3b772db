//! The memory of groups: an idle one costs little, a released one nothing.
//!
//! Resident memory is the whole process's, so each test starts this program again for itself alone.
//!
//! `MEMCG_CHURN_GROUPS` sets how many come and go.

use std::sync::mpsc::sync_channel;

use memcg::{Freshness, Group, Limit, Limits, Runtime, StatKey};

use crate::support::alone::{self, resident};

/// The bound that is stated for an idle group.
const IDLE_BYTES_MAX: u64 = 1_024;
const IDLE: u64 = 100_000;

const CHURN: u64 = if cfg!(debug_assertions) {
    50_000
} else {
    1_000_000
};
/// Releases that one barrier serves.
const RELEASES: u64 = 64;

/// The number of groups that come and go.
fn churn() -> u64 {
    std::env::var("MEMCG_CHURN_GROUPS").map_or(CHURN, |groups| {
        groups
            .replace('_', "")
            .parse()
            .unwrap_or_else(|e| panic!("MEMCG_CHURN_GROUPS={groups}: {e}"))
    })
}

/// Runs `body` in a process that runs nothing else, and prints its figures.
fn alone(name: &str, body: impl FnOnce()) {
    alone::alone(&format!("churn::{name}"), &[" bytes ", " barriers "], body);
}

fn root_of(limit: Limit) -> (Runtime, Group) {
    let runtime = Runtime::builder()
        .max(limit)
        .build()
        .expect("a configuration");
    let root = runtime.root();
    (runtime, root)
}

/// A name of 16 bytes, a max, a parent, one thread's charge and uncharge.
#[test]
fn an_idle_group_is_small() {
    alone("an_idle_group_is_small", || {
        let (runtime, root) = root_of(Limit::Bytes(1 << 40));
        let parent = root.create("parent", Limits::new()).expect("a name");
        // The memory that the first of all costs is not a group's.
        drop(
            parent
                .create("first", Limits::new())
                .expect("a name")
                .charge(1),
        );
        let before = resident();
        for number in 0..IDLE {
            let limits = Limits::new().max(1 << 30);
            let group = parent
                .create(&format!("group-{number:010}"), limits)
                .expect("a name");
            assert_eq!(group.name().len(), 16);
            drop(group.charge(4_096).expect("room"));
            drop(group.charge(4_096).expect("room"));
        }
        let bytes = (resident() - before).div_ceil(IDLE);
        println!("{bytes} bytes for each of {IDLE} idle groups, at most {IDLE_BYTES_MAX}");
        assert!(
            bytes <= IDLE_BYTES_MAX,
            "{bytes} bytes for each of {IDLE} idle groups"
        );
        assert!(bytes >= 100, "{bytes} bytes: the groups are not there");
        assert_eq!(runtime.group_count() as u64, IDLE + 3);
        drop((parent, runtime));
        // The next ones take the objects of these.
        let full = resident();
        let (runtime, root) = root_of(Limit::Bytes(1 << 40));
        for number in 0..IDLE {
            let group = root
                .create(&format!("group-{number:010}"), Limits::new())
                .expect("a name");
            drop(group.charge(4_096).expect("room"));
        }
        let more = resident().saturating_sub(full) / IDLE;
        println!("{more} bytes more for each of {IDLE} in their place");
        assert!(
            more <= IDLE_BYTES_MAX / 4,
            "{more} bytes more: the objects of the first did not come back"
        );
        drop(runtime);
    });
}

/// Resident memory at a hundredth of the way and at its end; what comes between must not show.
struct Flat {
    groups: u64,
    at_one_percent: u64,
}

impl Flat {
    const SLACK: u64 = 256 << 10;

    fn new() -> Self {
        Flat {
            groups: churn(),
            at_one_percent: 0,
        }
    }

    /// Counts the groups, and looks when the time has come.
    fn rounds(&mut self) -> impl Iterator<Item = u64> {
        (0..self.groups).inspect(|&round| {
            if round == self.groups / 100 {
                self.at_one_percent = resident();
            }
        })
    }

    #[track_caller]
    fn end(&self, what: &str, runtime: &Runtime) {
        let grown = resident().saturating_sub(self.at_one_percent);
        let groups = self.groups;
        println!(
            "{what}: {grown} bytes grown over {groups} groups, {} barriers",
            runtime.counts().barriers
        );
        assert!(self.at_one_percent > 0, "{what}: no thread looked");
        assert!(
            grown <= Self::SLACK,
            "{what}: {grown} bytes grown over {groups} groups"
        );
    }
}

/// Create, charge, drop, offline.
#[test]
fn a_dead_group_leaves_nothing() {
    alone("a_dead_group_leaves_nothing", || {
        let (runtime, root) = root_of(Limit::Bytes(1 << 30));
        let mut flat = Flat::new();
        for round in flat.rounds() {
            let limits = Limits::new().max(64 << 20).low(Limit::percent(1));
            let group = root
                .create(&format!("group-{round:010}"), limits)
                .expect("a name");
            drop(group.charge(4_096).expect("room"));
            drop(group.charge(4_096).expect("room"));
            // Every other one has a charge that outlives it.
            let held = (round % 2 == 0).then(|| group.charge(10).expect("room"));
            group.offline().expect("no children");
            drop(group);
            drop(held);
        }
        flat.end("by one thread", &runtime);
        assert_eq!(
            (
                runtime.counts().barriers,
                runtime.dying_count(),
                root.usage()
            ),
            (0, 0, 0)
        );
    });
}

/// Create, count, offline; two threads count in every other one.
#[test]
fn the_statistics_of_a_dead_group_leave_nothing() {
    alone("the_statistics_of_a_dead_group_leave_nothing", || {
        let (runtime, root) = root_of(Limit::Unlimited);
        let mut flat = Flat::new();
        let (groups, inbox) = sync_channel::<Group>(64);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                inbox
                    .into_iter()
                    .for_each(|group| group.stat_add(StatKey::FILE, 1))
            });
            for round in flat.rounds() {
                let group = root
                    .create(&format!("group-{round:010}"), Limits::new())
                    .expect("a name");
                group.stat_add(StatKey::ANON, 4_096);
                group.offline().expect("no children");
                if round % 2 == 0 {
                    groups.send(group).expect("the thread takes them");
                }
            }
            drop(groups);
        });
        runtime.settle();
        flat.end("statistics of two threads", &runtime);
        let now = root.read(Freshness::Exact);
        let groups = flat.groups as i64;
        assert_eq!(
            (now.get(StatKey::ANON), now.get(StatKey::FILE)),
            (4_096 * groups, (groups + 1) / 2)
        );
        assert_eq!(runtime.dying_count(), 0);
    });
}

/// Two threads charge every second group, one of them takes it offline: credit of both waits for a
/// barrier that serves many. A group that one thread alone has charged goes at once.
fn charged_by_two() {
    let (runtime, root) = root_of(Limit::Unlimited);
    let mut flat = Flat::new();
    let (groups, inbox) = sync_channel::<Group>(64);
    let (back, charged) = sync_channel::<Group>(64);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for group in inbox {
                drop(group.charge(4_096).expect("room"));
                drop(group.charge(4_096).expect("room"));
                back.send(group).expect("a thread takes them back");
            }
        });
        let take_offline = |group: Group| group.offline().expect("no children");
        let mut underway = 0;
        // A new peak of live bytes may take a barrier of its own: from here on the root has none.
        drop(root.charge(1 << 40).expect("no max"));
        for round in flat.rounds() {
            let group = root
                .create(&format!("group-{round:010}"), Limits::new())
                .expect("a name");
            drop(group.charge(4_096).expect("room"));
            drop(group.charge(4_096).expect("room"));
            if round % 2 > 0 {
                take_offline(group);
                continue;
            }
            groups.send(group).expect("the other thread takes them");
            underway += 1;
            if underway > 32 {
                take_offline(charged.recv().expect("the other thread gives them back"));
                underway -= 1;
            }
        }
        drop(groups);
        charged.into_iter().for_each(take_offline);
    });
    runtime.settle();
    flat.end("half of them by two threads", &runtime);
    let barriers = runtime.counts().barriers;
    let releases = flat.groups.div_ceil(2);
    println!(
        "{:.2} barriers for {RELEASES} releases",
        (barriers * RELEASES) as f64 / releases as f64
    );
    assert!(
        barriers > 0 && barriers <= releases / RELEASES + 1,
        "{barriers} barriers for {releases} releases"
    );
    assert_eq!(
        (
            runtime.dying_count(),
            root.usage(),
            root.memory().stocked_bound()
        ),
        (0, 0, 0)
    );
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
}

/// A service's mixture: create, charge, drop, offline, half of them charged by two threads.
#[test]
fn groups_charged_by_two_threads_among_others_leave_nothing() {
    alone(
        "groups_charged_by_two_threads_among_others_leave_nothing",
        charged_by_two,
    );
}
