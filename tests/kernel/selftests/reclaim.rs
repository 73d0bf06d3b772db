//! `test_memcg_reclaim`: memory that is given back because a group asks.

use memcg::{Bytes, Group, Limits, StatKey};

use super::pages::PageCache;
use super::{Cell, PAGE, assert_current, assert_sound, build, create, stat, values_close};
use crate::support::reclaimers::MIB;
use crate::support::swapping::Anon;
use crate::support::workers::Other;

/// `reclaim_until` in `test_memcontrol.c`: five attempts. False: usage was there already, or
/// reclaim said that it had freed what it was asked for and had not.
pub(crate) fn reclaim_until(group: &Group, goal: u64) -> bool {
    let mut reclaimed = false;
    for _ in 0..5 {
        let current = group.usage();
        if current < goal || values_close(current, goal, 3) {
            break;
        }
        if reclaimed {
            return false;
        }
        let want = current - goal;
        // The kernel answers with EAGAIN; here the report says less than that.
        reclaimed = group
            .reclaim(Bytes(want))
            .expect("not inside a reclaimer")
            .freed
            >= want;
    }
    reclaimed
}

/// `test_memcg_reclaim` in `test_memcontrol.c`, with swap: 50M of page cache and 50M of memory that
/// can be moved to swap, reclaimed down to 30M.
fn test_memcg_reclaim(cell: Cell) {
    let mut builder = cell.builder();
    let swap = builder.counter("swap", memcg::Unit::Bytes);
    let runtime = build(builder);
    let group = create(&runtime.root(), "memcg_test", Limits::new());
    assert_eq!(group.usage(), 0);
    let processes = [Other::spawn(), Other::spawn()];
    let (cached, cache) = PageCache::of(&group);
    let (anon, anonymous) = Anon::of(&group, swap, PAGE);
    processes[0]
        .with(&cache, |cache| cache.alloc(50 * MIB))
        .expect("no limit");
    processes[1]
        .with(&anon, |anon| anon.allocate(50 * MIB))
        .expect("no limit");
    assert_current(&group, 100 * MIB, 10);
    assert!(reclaim_until(&group, 30 * MIB));
    assert_current(&group, 30 * MIB, 3);
    let swap_of = group.counter(swap).expect("declared");
    assert!(
        swap_of.live() > 0 && stat(&group, StatKey::FILE) < 50 * MIB,
        "each gives"
    );
    processes[1].with(&anon, |anon| anon.exit());
    drop((processes, cached, anonymous));
    assert_sound(&runtime);
}

/// The other half of `test_memcg_reclaim`: without swap there is page cache alone.
fn test_memcg_reclaim_without_swap(cell: Cell) {
    let runtime = cell.build();
    let group = create(&runtime.root(), "memcg_test", Limits::new());
    assert_eq!(group.usage(), 0);
    let process = Other::spawn();
    let (registration, cache) = PageCache::of(&group);
    process
        .with(&cache, |cache| cache.alloc(50 * MIB))
        .expect("no limit");
    assert_current(&group, 50 * MIB, 10);
    assert!(reclaim_until(&group, 30 * MIB));
    assert_current(&group, 30 * MIB, 3);
    drop((process, registration));
    assert_sound(&runtime);
}

matrix! { test_memcg_reclaim test_memcg_reclaim_without_swap }
