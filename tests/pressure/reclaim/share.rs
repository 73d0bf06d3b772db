//! Each reclaimer gives in proportion to what each could give, and hardly more than was asked for.

use std::sync::Arc;

use memcg::{Bytes, Group, Limit, Reclaim, ReclaimPriority, Registration};

use super::{
    Cache, KIB, Log, MIB, assert_sound, assert_within, bare, build, charge, create_with, kinds,
    soft,
};

const SIZES: [u64; 4] = [16 * MIB, 32 * MIB, 64 * MIB, 128 * MIB];

fn caches(root: &Group, soft_limit: Option<u64>, log: &Log) -> Vec<(Arc<Cache>, Registration)> {
    let make = |(number, &size): (usize, &u64)| {
        let limits = soft_limit.map_or_else(memcg::Limits::new, soft);
        Cache::of(&create_with(root, &number.to_string(), limits), size, log)
    };
    SIZES.iter().enumerate().map(make).collect()
}

/// The freed bytes are in proportion to the held ones.
#[track_caller]
fn assert_proportional(caches: &[(Arc<Cache>, Registration)], gone: u64) {
    let all: u64 = SIZES.iter().sum();
    for ((cache, _), size) in caches.iter().zip(SIZES) {
        assert_within(size - cache.bytes(), gone * size / all, 10);
    }
}

/// Every group at soft limit 0: one large call, many small ones, charges at a full level.
#[test]
fn in_proportion_to_what_is_there() {
    for builder in kinds() {
        for soft_limit in [Some(0), None] {
            let runtime = build(builder.clone().max(Limit::Bytes(240 * MIB)));
            let root = runtime.root();
            let log = Log::default();
            let caches = caches(&root, soft_limit, &log);
            assert_eq!(
                root.inspect().descendants_in_excess(),
                if soft_limit.is_some() { 4 } else { 0 }
            );
            root.reclaim(Bytes(60 * MIB))
                .expect("not inside a reclaimer");
            assert_proportional(&caches, 60 * MIB);
            for _ in 0..60 {
                root.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
            }
            assert_proportional(&caches, 120 * MIB);
            let mut held = vec![charge(&root, 120 * MIB)];
            let before: Vec<u64> = caches.iter().map(|(cache, _)| cache.bytes()).collect();
            for _ in 0..30 * 16 {
                held.push(charge(&root, 64 * KIB));
            }
            for ((cache, _), before) in caches.iter().zip(before) {
                assert_within(before - cache.bytes(), before / 4, 10);
            }
            assert_sound(&runtime);
            drop(held);
        }
    }
}

/// If the shares are whole numbers, no group gives a byte more.
#[test]
fn in_proportion_to_the_byte() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let caches = caches(&root, None, &log);
    let report = root
        .reclaim(Bytes(60 * MIB))
        .expect("not inside a reclaimer");
    let given: Vec<u64> = caches
        .iter()
        .zip(SIZES)
        .map(|((cache, _), size)| size - cache.bytes())
        .collect();
    assert_eq!(
        (report.freed, given),
        (60 * MIB, SIZES.map(|size| size / 4).to_vec())
    );
    assert_sound(&runtime);
}

/// Bytes evicted for each byte asked for, over calls and charges of many sizes.
#[test]
fn hardly_more_than_was_asked_for() {
    for builder in kinds() {
        for soft_limit in [Some(0), Some(40 * MIB), None] {
            let runtime = build(builder.clone());
            let root = runtime.root();
            let log = Log::default();
            let caches = caches(&root, soft_limit, &log);
            for want in [1, 100, 4 * KIB, 100 * KIB, 3 * MIB, 70 * MIB] {
                let live = root.live();
                let report = root.reclaim(Bytes(want)).expect("not inside a reclaimer");
                let evicted = live - root.live();
                assert!(
                    report.freed >= want && evicted <= want + want / 10,
                    "{evicted} for {want}: {report:?}"
                );
                assert_eq!(report.freed, evicted);
            }
            assert_eq!(log.freed_in_all(), 240 * MIB - root.live());
            root.set_max(Limit::Bytes(root.live())).expect("a number");
            let mut held = Vec::new();
            let before = log.freed_in_all();
            let mut charged = 0;
            for step in 0..400_u64 {
                let bytes = 1 + step * 7_919 % (128 * KIB);
                held.push(charge(&root, bytes));
                charged += bytes;
            }
            let evicted = log.freed_in_all() - before;
            assert!(evicted <= charged + charged / 10, "{evicted} for {charged}");
            assert_sound(&runtime);
            drop((caches, held));
        }
    }
}

/// A group's own word on what it could give, not what it uses.
#[test]
fn by_what_is_reclaimable() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let groups =
        ["mostly_pinned", "all"].map(|name| create_with(&root, name, memcg::Limits::new()));
    let _held = charge(&groups[0], 112 * MIB);
    let caches = [(0, 16), (1, 128)]
        .map(|(at, size): (usize, u64)| Cache::of(&groups[at], size * MIB, &log));
    root.reclaim(Bytes(36 * MIB))
        .expect("not inside a reclaimer");
    assert_within(16 * MIB - caches[0].0.bytes(), 4 * MIB, 10);
    assert_within(128 * MIB - caches[1].0.bytes(), 32 * MIB, 10);
    assert_sound(&runtime);
}

/// Says nothing of what it could give: what its group uses is taken for it.
struct Silent(Arc<Cache>);

impl Reclaim for Silent {
    fn reclaim(&self, want: u64, context: &memcg::ReclaimContext<'_>) -> u64 {
        self.0.reclaim(want, context)
    }
}

#[test]
fn unknown_is_what_the_group_uses() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let groups = ["silent", "said"].map(|name| create_with(&root, name, soft(0)));
    let silent = Cache::alone(&groups[0], 32 * MIB, &log);
    let _registration = groups[0].register_reclaimer(
        Arc::new(Silent(Arc::clone(&silent))),
        ReclaimPriority::NORMAL,
    );
    let (said, _registered) = Cache::of(&groups[1], 64 * MIB, &log);
    root.reclaim(Bytes(24 * MIB))
        .expect("not inside a reclaimer");
    assert_within(32 * MIB - silent.bytes(), 8 * MIB, 10);
    assert_within(64 * MIB - said.bytes(), 16 * MIB, 10);
    assert_sound(&runtime);
}

/// Threads at the same full level: together they evict no more than for what they charged.
#[test]
fn many_at_once_evict_hardly_more() {
    for builder in kinds() {
        for soft_limit in [Some(0), None] {
            let runtime = build(builder.clone().max(Limit::Bytes(240 * MIB)));
            let root = runtime.root();
            let log = Log::default();
            let caches = caches(&root, soft_limit, &log);
            let held: u64 = std::thread::scope(|scope| {
                let workers = [64 * KIB, 64 * KIB, 100_000, 4_096].map(|bytes| {
                    let root = &root;
                    scope.spawn(move || (0..200).map(|_| charge(root, bytes)).collect::<Vec<_>>())
                });
                let held: Vec<_> = workers
                    .into_iter()
                    .flat_map(|worker| worker.join().expect("no panic"))
                    .collect();
                held.iter().map(memcg::Charge::bytes).sum()
            });
            let evicted = 240 * MIB - caches.iter().map(|(cache, _)| cache.bytes()).sum::<u64>();
            // A stock keeps some of it.
            let spare = root.memory().stocked_bound() + 4 * 16 * KIB;
            assert!(evicted <= held + held / 10 + spare, "{evicted} for {held}");
            assert!(
                evicted + root.memory().stocked_bound() >= held,
                "{evicted} for {held}"
            );
            assert_sound(&runtime);
        }
    }
}

/// A surplus is held against a group for no more than it has now.
#[test]
fn a_debt_ends() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let [generous, other] =
        ["generous", "other"].map(|name| create_with(&root, name, memcg::Limits::new()));
    // Once, all at once; afterwards what it is asked for.
    let (first, first_registration) = Cache::of(&generous, 64 * MIB, &log);
    drop(first_registration);
    let all = {
        let first = Arc::clone(&first);
        generous.register_reclaimer(
            super::call(move |_, _| first.evict(64 * MIB)),
            ReclaimPriority::NORMAL,
        )
    };
    assert!(
        root.reclaim(Bytes(KIB))
            .expect("not inside a reclaimer")
            .freed
            >= 64 * MIB
    );
    drop(all);
    first.add(MIB).expect("no max");
    let _first =
        generous.register_reclaimer(first.clone() as Arc<dyn Reclaim>, ReclaimPriority::NORMAL);
    let (second, _second) = Cache::of(&other, MIB, &log);
    let mut given = [0; 2];
    for _ in 0..64 {
        root.reclaim(Bytes(64 * KIB))
            .expect("not inside a reclaimer");
        for (cache, given) in [&first, &second].into_iter().zip(&mut given) {
            let gone = MIB - cache.bytes();
            *given += gone;
            if gone > 0 {
                cache.add(gone).expect("no max");
            }
        }
    }
    assert!(
        given[0] >= MIB,
        "{given:?}: of 4 MiB, after a debt of at most 1 MiB"
    );
}
