//! The comparison while the tree rests: no thread of the test is in a call of the crate, and each
//! charge and object is in the list of its group.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memcg::{Bytes, Event, Freshness, Group, Limit, StatKey};
use rand::RngExt;
use rand::rngs::SmallRng;

use crate::holdings::{Held, NODES};
use crate::known_group::KnownGroup;
use crate::tally::What;
use crate::world::World;

/// Threads of the crate may still be at work.
const PATIENCE: Duration = Duration::from_secs(5);

/// A group with all below it.
#[derive(Clone, Copy, Default)]
struct Total {
    held: Held,
    live: u64,
    /// The group, or one below, covers.
    covers: bool,
}

/// Waits until something holds; returns what it was at the last.
#[track_caller]
pub(crate) fn eventually<T: PartialEq + std::fmt::Debug>(
    what: &str,
    mut read: impl FnMut() -> (T, T),
) {
    let began = Instant::now();
    loop {
        let (found, expected) = read();
        if found == expected {
            return;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{what}: {found:?}, and the test knows of {expected:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The totals of all groups that hold anything.
fn totals(groups: &[Arc<KnownGroup>]) -> Vec<Total> {
    let at: HashMap<*const KnownGroup, usize> = groups
        .iter()
        .enumerate()
        .map(|(at, known)| (Arc::as_ptr(known), at))
        .collect();
    let mut totals = vec![Total::default(); groups.len()];
    for (number, known) in groups.iter().enumerate().rev() {
        let own = known.held();
        let total = &mut totals[number];
        total.held += own;
        total.live += own.reserved + own.allocated;
        if known.covers {
            total.live = total.held.reserved.max(total.held.allocated);
            total.covers = true;
        }
        let total = *total;
        if let Some(above) = &known.above {
            let above = &mut totals[at[&Arc::as_ptr(above)]];
            above.held += total.held;
            above.live += total.live;
            above.covers |= total.covers;
        }
    }
    totals
}

/// Compares all that is counted with what the test knows.
pub(crate) fn at_rest(world: &World, rng: &mut SmallRng) {
    // Foreign code that threads of the crate call does nothing from here on.
    let gate = world.shared.gate.write().expect("no panic holds it");
    memcg_alloc::catch_up();
    world.runtime.settle();
    let groups = world.groups();
    let totals = totals(&groups);
    for (known, total) in groups.iter().zip(&totals) {
        if let Some(group) = known.online() {
            compare(world, known, &group, total);
        }
    }
    let verdict = world.runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    let counts = world.runtime.counts();
    let tally = &world.shared.tally;
    assert_eq!(
        (counts.underflows, counts.overflows, counts.discarded),
        (0, 0, 0)
    );
    panics(world);
    for _ in 0..2 {
        let at = rng.random_range(0..groups.len());
        if let Some(group) = groups[at].online() {
            charge_all_room(world, &groups, &totals, at, &group);
        }
    }
    tally.one(What::Rests);
    drop(gate);
}

fn compare(world: &World, known: &KnownGroup, group: &Group, total: &Total) {
    let held = total.held;
    let path = group.path();
    let ledger = group.ledger();
    let found = (
        group.live(),
        ledger.reserved(),
        ledger.allocated(),
        ledger.max_error(),
    );
    assert_eq!(
        found,
        (total.live, held.reserved, held.allocated, 0),
        "live, reserved, allocated, error of {path}"
    );
    // Credit of others may go meanwhile, for which no thread of the test has to run.
    if !total.covers {
        let read = || (group.usage(), total.live + group.memory().stocked());
        eventually(&format!("usage of {path}, live and credit"), read);
    }
    assert_eq!(group.waiting_count(), 0, "{path}: no thread waits");
    let counters =
        [world.files, world.near].map(|counter| group.counter(counter).expect("declared").live());
    assert_eq!(counters[0], held.files, "files of {path}");
    // Bytes on no node may be promised to the tier.
    let near = held.nodes[0]..=held.nodes[0] + held.nodes[2];
    assert!(
        near.contains(&counters[1]),
        "near memory of {path}: {} and {near:?}",
        counters[1]
    );
    if known.depth <= 2 {
        let stats = group.read(Freshness::Exact);
        assert_eq!(
            (stats.get(world.rows), stats.max_error()),
            (known.rows.load(Ordering::Relaxed), 0),
            "rows of {path}"
        );
        let nodes = group.numa_stat(StatKey::KERNEL, Freshness::Exact);
        let found = [nodes.get(NODES[0]), nodes.get(NODES[1]), nodes.unplaced()];
        assert_eq!(found, held.nodes.map(u64::cast_signed), "nodes of {path}");
        world.shared.tally.add(What::Unpaid, ledger.unpaid());
    }
}

/// No charge is refused beside credit: one of all that no charge holds fits.
fn charge_all_room(
    world: &World,
    groups: &[Arc<KnownGroup>],
    totals: &[Total],
    at: usize,
    group: &Group,
) {
    let live = |of: &KnownGroup| {
        groups
            .iter()
            .position(|known| std::ptr::eq(&**known, of))
            .map_or(0, |at| totals[at].live)
    };
    let room = |known: &KnownGroup| {
        let max = known.group().map_or(u64::MAX, |group| group.max());
        max.saturating_sub(live(known))
    };
    let room = groups[at].path().map(room).min().unwrap_or(0);
    if room == 0 || room > 1 << 40 {
        return;
    }
    let began = Instant::now();
    loop {
        match group.charge(Bytes(room)) {
            Ok(charge) => {
                world.shared.tally.one(What::Probes);
                return drop(charge);
            }
            Err(error) if error.is_cancelled() => return,
            Err(error) => assert!(
                began.elapsed() < PATIENCE,
                "{} are free: {error}",
                Limit::Bytes(room)
            ),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two threads free all holdings. Before that or after it the groups go offline, then the runtime
/// ends.
pub(crate) fn end(mut world: World, rng: &mut SmallRng) {
    let root = world.runtime.root();
    let holdings_first = rng.random();
    let groups = world.groups();
    let free = |groups: &[Arc<KnownGroup>]| {
        let halves = groups.split_at(groups.len() / 2);
        std::thread::scope(|scope| {
            for half in [halves.0, halves.1] {
                scope.spawn(move || half.iter().map(|known| known.free(u64::MAX)).sum::<u64>());
            }
        });
    };
    if holdings_first {
        free(&groups);
    }
    world.end_groups();
    if !holdings_first {
        free(&groups);
    }
    assert!(groups.iter().all(|known| known.count() == 0));
    add_events(&world);
    world.end_listeners();
    panics(&world);
    for group in root.inspect().descendants().chain([root.clone()]) {
        assert_eq!(
            (group.waiting_count(), group.live()),
            (0, 0),
            "{}",
            group.path()
        );
    }
    drop(groups);
    world
        .stay
        .iter()
        .skip(1)
        .rev()
        .for_each(|known| known.end());
    let World {
        runtime,
        stay,
        gone,
        shared,
        ..
    } = world;
    drop((stay, gone));
    memcg_alloc::catch_up();
    runtime.stop_flusher();
    eventually("groups that are left", || {
        runtime.settle();
        ((runtime.group_count(), runtime.dying_count()), (1, 0))
    });
    root.memory().drain();
    assert_eq!(
        (
            root.usage(),
            root.live(),
            root.forced(),
            root.inspect().descendants_in_excess()
        ),
        (0, 0, 0, 0)
    );
    let verdict = runtime.verify();
    assert!(verdict.is_ok() && verdict.counter_count() == 3, "{verdict}");
    let counts = runtime.counts();
    assert_eq!(
        (
            counts.underflows,
            counts.overflows,
            counts.discarded,
            counts.foreign_stats
        ),
        (0, 0, 0, 0)
    );
    drop((runtime, root, shared));
}

/// Each panic is counted, once the thread that it was on has got on.
fn panics(world: &World) {
    let root = world.runtime.root();
    eventually("panics", || {
        let counted = root.events().get(Event::Panic);
        ((counted, world.shared.are_panics(counted)), (counted, true))
    });
}

fn add_events(world: &World) {
    let events = world.runtime.root().events();
    let tally = &world.shared.tally;
    tally.add(What::Victims, events.get(Event::OomKill));
    tally.add(What::High, events.get(Event::High));
    tally.add(What::Low, events.get(Event::Low));
    tally.add(What::Observed, events.get(Event::Observed));
}
