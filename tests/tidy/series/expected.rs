//! The patches of the five patch series, and the tables of their cover pages. A chapter that leaves
//! one out is found. Titles of patches are the series' own.

/// A series, by the name of its chapter.
pub(crate) struct Expected {
    pub(crate) name: &'static str,
    /// Author, title and date, as they have to stand below the chapter's title.
    pub(crate) source: &'static [&'static str],
    pub(crate) patches: &'static [&'static str],
    pub(crate) tables: &'static [Wanted],
}

/// A heading `### …` below `## Tables` starts with this; two rows of its tables, theirs and ours,
/// start with each of these words; whether ours are of several runs, so that columns `runs`, `min`,
/// `max` and `std` stand in one of the tables.
pub(crate) type Wanted = (&'static str, &'static [&'static str], bool);

/// In the order of the book.
pub(crate) const SERIES: &[&Expected] = &[&STOCK, &KMEM, &SOFTLIMIT, &STATS, &POOLS];

pub(crate) const STOCK: Expected = Expected {
    name: "stock",
    source: &[
        "Joshua Hahn",
        "\"[PATCH 0/7 v3] mm/memcontrol, page_counter: move stock from mem_cgroup to page_counter\"",
        "25 May 2026",
    ],
    patches: &[
        "mm/page_counter: introduce per-page_counter stock",
        "mm/page_counter: use page_counter_stock in page_counter_try_charge",
        "mm/page_counter: introduce stock drain APIs",
        "mm/memcontrol: convert memcg to use page_counter_stock",
        "mm/memcontrol: optimize memsw stock for cgroup v1",
        "mm/memcontrol: optimize stock usage for cgroup v2",
        "mm/memcontrol: remove unused memcg_stock code",
    ],
    tables: &[
        ("v3 against mm-new", &[], true),
        ("v2 against mm-stable", &[], true),
    ],
};

pub(crate) const KMEM: Expected = Expected {
    name: "kmem",
    source: &[
        "Alexandre Ghiti",
        "\"[PATCH v2 0/9] per-memcg-per-node kmem accounting\"",
        "26 Jun 2026",
    ],
    patches: &[
        "memcg: convert task->objcg to a per-node objcgs array",
        "memcg: charge kmem pages and slab objects against per-node objcg",
        "mm: percpu: fix obj_exts metadata charge size",
        "mm: percpu: Split memcg charging and kmem accounting",
        "mm: memcontrol: track MEMCG_KMEM per NUMA node",
        "mm: percpu: per-node kmem accounting",
        "mm: percpu: per-node kmem accounting for obj_exts metadata",
        "mm: percpu: skip the per-cpu node walk on single-node systems",
        "mm: zswap: per-node kmem accounting for zswap/zsmalloc",
    ],
    tables: &[
        ("End to end", &[], true),
        ("176 processors, one node", &[], true),
        ("80 processors, two nodes", &[], true),
    ],
};

pub(crate) const SOFTLIMIT: Expected = Expected {
    name: "softlimit",
    source: &[
        "Michal Hocko",
        "\"[patch v4] Soft limit rework\"",
        "3 June 2013",
    ],
    patches: &[
        "memcg: integrate soft reclaim tighter with zone shrinking code",
        "memcg: Get rid of soft-limit tree infrastructure",
        "vmscan, memcg: Do softlimit reclaim also for targeted reclaim",
        "memcg: enhance memcg iterator to support predicates",
        "memcg: track children in soft limit excess to improve soft limit",
        "memcg, vmscan: Do not attempt soft limit reclaim if it would not scan",
        "memcg: Track all children over limit in the root",
        "memcg, vmscan: do not fall into reclaim-all pass too quickly",
    ],
    tables: &[
        ("No limit", &["system", "elapsed"], true),
        (
            "Limit 0",
            &["system", "elapsed", "minor faults", "major faults"],
            true,
        ),
        ("Stream", &["system", "elapsed"], true),
    ],
};

pub(crate) const STATS: Expected = Expected {
    name: "stats",
    source: &[
        "Yosry Ahmed",
        "\"[PATCH v3 5/5] mm: memcg: restore subtree stats flushing\"",
        "16 Nov 2023",
    ],
    patches: &[
        "mm: memcg: change flush_next_time to flush_last_time",
        "mm: memcg: move vmstats structs definition above flushing code",
        "mm: memcg: make stats flushing threshold per-memcg",
        "mm: workingset: move the stats flush into workingset_test_recent()",
        "mm: memcg: restore subtree stats flushing",
    ],
    tables: &[
        ("Workers and readers", &[], true),
        ("Latency of reads", &[], true),
    ],
};

pub(crate) const POOLS: Expected = Expected {
    name: "pools",
    source: &[
        "Huan Yang",
        "\"[PATCH v3 0/3] Use kmem_cache for memcg alloc\"",
        "24 Apr 2025",
    ],
    patches: &[
        "mm/memcg: move mem_cgroup_init() ahead of cgroup_init()",
        "mm/memcg: use kmem_cache when alloc memcg",
        "mm/memcg: use kmem_cache when alloc memcg pernode info",
    ],
    tables: &[
        ("Before: size classes", &[], false),
        ("After: aligned to cache lines", &[], false),
        ("After: not aligned", &[], false),
        ("Waste", &[], false),
    ],
};
