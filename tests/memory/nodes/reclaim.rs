//! A precharge that does not fit has memory reclaimed: by owners of guards, on its thread, from the
//! nodes where it lies.

use std::sync::{Arc, Mutex, PoisonError};

use memcg::kmem::{Kmem, Placement, PrechargeBound};
use memcg::{Bytes, Freshness, Reclaim, ReclaimContext, ReclaimPriority, StatKey};

use super::{Other, assert_sums, hold, left_empty, node, on, placed, scattered};
use crate::support::trees::{build, create};

/// Guards that are given up when they are asked for, and what else is to be done meanwhile.
struct Cache {
    held: Mutex<Vec<Kmem>>,
    meanwhile: fn(&mut Vec<Kmem>),
}

impl Cache {
    fn new(held: Vec<Kmem>, meanwhile: fn(&mut Vec<Kmem>)) -> Arc<Cache> {
        Arc::new(Cache {
            held: Mutex::new(held),
            meanwhile,
        })
    }

    fn bytes(&self) -> u64 {
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(Kmem::bytes)
            .sum()
    }
}

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        (self.meanwhile)(&mut held);
        let mut freed = 0;
        while freed < want
            && let Some(mut kmem) = held.pop()
        {
            // One after the other, in parts.
            freed += kmem.shrink(&placed(&[(0, 10), (1, 10)]));
            freed += kmem.bytes();
        }
        freed
    }

    fn reclaimable(&self) -> u64 {
        self.bytes()
    }
}

#[test]
fn a_precharge_asks_reclaimers() {
    for builder in super::kinds(3) {
        let runtime = left_empty(build(builder.max(10_000)));
        let root = runtime.root();
        let [cached, group] = ["cached", "q"].map(|name| create(&root, name));
        let other = Other::spawn();
        // This thread has no cells there.
        let held = (0..50_u64)
            .map(|number| other.hold(&cached, &placed(&[((number % 3) as u16, 100), (1, 50)])))
            .collect();
        let cache = Cache::new(held, |_| {});
        let registration = cached.register_reclaimer(
            Arc::clone(&cache) as Arc<dyn Reclaim>,
            ReclaimPriority::NORMAL,
        );
        assert_eq!(cached.live(), 7_500);
        let mut ours = Vec::new();
        for _ in 0..9 {
            ours.push(
                group
                    .precharge(1_000)
                    .expect("the cache gives")
                    .account(&placed(&[(2, 400), (0, 600)])),
            );
            assert_eq!((cached.live(), root.forced()), (cache.bytes(), 0));
            assert_eq!(
                cached
                    .numa_stat(StatKey::KERNEL, Freshness::Exact)
                    .sum()
                    .cast_unsigned(),
                cache.bytes()
            );
            assert_sums(&runtime);
        }
        assert!(cache.bytes() <= 1_000);
        assert!(matches!(group.precharge(2_000), Err(error) if error.is_over_limit()));
        assert_eq!(
            (on(&group), runtime.counts().nested_stats),
            ([9 * 600, 0, 9 * 400], 0)
        );
        drop((ours, registration));
        drop(cache);
    }
}

/// Memory may be demoted instead: moved, compressed and charged anew, while it is asked for.
#[test]
fn a_reclaimer_may_move_what_it_has() {
    for builder in super::kinds(3) {
        let mut builder = builder.max(10_000);
        let toptier = builder.tier("toptier", [node(0)]);
        let runtime = left_empty(build(builder));
        let root = runtime.root();
        let [cached, group] = ["cached", "q"].map(|name| create(&root, name));
        let other = Other::spawn();
        let held: Vec<Kmem> = (0..9)
            .map(|_| other.hold(&cached, &scattered(&[(0, 900)], 100)))
            .collect();
        let cache = Cache::new(held, |held| {
            for kmem in held.iter_mut() {
                kmem.migrated(Some(node(0)), Some(node(2)), 500);
                kmem.migrate(None, Some(node(1)), 40)
                    .expect("no limit there");
                kmem.relocate(&scattered(&[(0, 100), (2, 700)], 200));
            }
            // Half its size, once it has gone.
            let Some(full) = held.pop() else { return };
            let group = full.group();
            let half = full.bytes() / 2;
            drop(full);
            let small = group
                .precharge(PrechargeBound::from(Bytes(half)).within(&[node(1)]))
                .expect("room for half");
            held.push(small.account(&Placement::on(node(1), Bytes(half))));
        });
        let registration = cached.register_reclaimer(
            Arc::clone(&cache) as Arc<dyn Reclaim>,
            ReclaimPriority::NORMAL,
        );
        let kmem = group
            .precharge(3_000)
            .expect("the cache gives")
            .account(&placed(&[(1, 3_000)]));
        assert_eq!(
            (cached.live(), group.live(), root.forced()),
            (cache.bytes(), 3_000, 0)
        );
        let held = cache.held.lock().expect("no panic");
        let sum = |of: u16| {
            held.iter()
                .map(|kmem| kmem.placement().on_node(node(of)))
                .sum::<u64>()
                .cast_signed()
        };
        assert_eq!(on(&cached), [sum(0), sum(1), sum(2)]);
        let unplaced: u64 = held.iter().map(|kmem| kmem.placement().unplaced()).sum();
        let tier = root.counter(toptier).expect("declared").live();
        assert!(
            (sum(0).cast_unsigned()..=sum(0).cast_unsigned() + unplaced).contains(&tier),
            "{tier}"
        );
        assert_sums(&runtime);
        drop(held);
        drop((kmem, registration));
        drop(cache);
        drop((cached, group));
        assert_eq!(root.counter(toptier).expect("declared").live(), 0);
    }
}

/// A tier is no memory that could be reclaimed: it refuses at once.
#[test]
fn a_full_tier_asks_no_thread() {
    let mut builder = crate::support::trees::bare().nodes(2);
    let toptier = builder.tier("toptier", [node(0)]);
    let runtime = left_empty(build(builder));
    let root = runtime.root();
    root.counter(toptier)
        .expect("declared")
        .set_max(100)
        .expect("a limit");
    let group = create(&root, "q");
    let cache = Cache::new(vec![hold(&group, &placed(&[(0, 90)]))], |_| {});
    let registration = group.register_reclaimer(
        Arc::clone(&cache) as Arc<dyn Reclaim>,
        ReclaimPriority::NORMAL,
    );
    assert!(group.precharge(11).is_err());
    assert_eq!((cache.bytes(), group.live()), (90, 90));
    drop(registration);
}
