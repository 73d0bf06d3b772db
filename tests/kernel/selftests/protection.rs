//! `test_memcg_min` and `test_memcg_low`: what protects page cache from a neighbour, and what does
//! not.

use memcg::{Event, Group, Limit, Limits};

use super::pages::PageCache;
use super::reclaim::reclaim_until;
use super::{Cell, alloc_anon, assert_current, assert_sound, count, create, max};
use crate::support::reclaimers::MIB;
use crate::support::workers::Other;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Min,
    Low,
}

impl Kind {
    fn limits(self, mib: u64) -> Limits {
        match self {
            Kind::Min => Limits::new().min(Limit::Bytes(mib * MIB)),
            Kind::Low => Limits::new().low(Limit::Bytes(mib * MIB)),
        }
    }

    fn effective(self, group: &Group, root: &Group) -> u64 {
        match self {
            Kind::Min => group.memory().effective_min(&root.memory()),
            Kind::Low => group.memory().effective_low(&root.memory()),
        }
    }
}

/// A(max 200M){B(50M){C 75M, D 25M, E 0, F 500M}, G}: C, D and E read 50M each and stay; G touches
/// 148M, then 170M.
fn protection(cell: Cell, kind: Kind) {
    let runtime = cell.build();
    let a = create(&runtime.root(), "a", max(200 * MIB));
    let b = create(&a, "b", kind.limits(50));
    let g = create(&a, "g", Limits::new());
    let settings = [("c", 75), ("d", 25), ("e", 0), ("f", 500)];
    let leaves = settings.map(|(name, mib)| create(&b, name, kind.limits(mib)));
    // Each reads on a thread that lives on, as the kernel's processes do, with whatever its stock
    // keeps.
    let readers: Vec<_> = leaves[..3]
        .iter()
        .map(|leaf| {
            let reader = Other::spawn();
            let (registration, cache) = PageCache::of(leaf);
            reader
                .with(&cache, |cache| cache.alloc(50 * MIB))
                .expect("room for 150 of 200 MiB");
            (reader, registration, cache)
        })
        .collect();
    assert_current(&b, 150 * MIB, 3);

    assert!(alloc_anon(&g, 148 * MIB), "nothing protected is in the way");
    assert_current(&b, 50 * MIB, 3);
    assert_current(&leaves[0], 29 * MIB, 15);
    assert_current(&leaves[1], 21 * MIB, 20);
    assert_eq!(leaves[3].usage(), 0);
    // The memory that is left was protected.
    assert_eq!(
        (kind.effective(&b, &a), kind.effective(&g, &a)),
        (50 * MIB, 0)
    );

    assert_eq!(
        alloc_anon(&g, 170 * MIB),
        kind == Kind::Low,
        "min is a limit to others, low is none"
    );
    let kept = if kind == Kind::Min {
        50 * MIB
    } else {
        30 * MIB
    };
    assert_current(&b, kept, 3);
    // The target's own protection does not hold, and what it was in another reclaim is not
    // remembered.
    assert!(reclaim_until(&leaves[0], 10 * MIB));
    assert_current(&leaves[0], 10 * MIB, 3);
    if kind == Kind::Low {
        for (number, leaf) in leaves.iter().enumerate() {
            let [oom, low] = [Event::Oom, Event::Low].map(|event| count(leaf, event));
            assert_eq!(oom, 0, "{}", leaf.path());
            match number {
                0 | 1 => assert!(low > 0, "{}", leaf.path()),
                // With recursive protection its parent's low may protect it, too.
                2 if cell.recursive => {}
                _ => assert_eq!(low, 0, "{}", leaf.path()),
            }
        }
    }
    assert_sound(&runtime);
    drop(readers);
}

/// `test_memcg_min` in `test_memcontrol.c`, with `test_memcg_protection`: 170M do not fit beside
/// 50M in 200M, so the process that asks for them is killed.
fn test_memcg_min(cell: Cell) {
    protection(cell, Kind::Min);
}

/// `test_memcg_low` in `test_memcontrol.c`, with `test_memcg_protection`: low gives way, with an
/// event, and in proportion.
fn test_memcg_low(cell: Cell) {
    protection(cell, Kind::Low);
}

matrix! { test_memcg_min test_memcg_low }
