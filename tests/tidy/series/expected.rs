//! What the five patch series have: their patches, and the tables of their cover pages with each figure. A chapter that
//! leaves one out is found. Titles of patches are the series' own; figures are written as the series writes them.

/// A series, by the name of its chapter.
pub(crate) struct Expected {
    pub(crate) name: &'static str,
    /// Author, title and date, as they have to stand below the chapter's title.
    pub(crate) source: &'static [&'static str],
    pub(crate) patches: &'static [&'static str],
    pub(crate) tables: &'static [Wanted],
}

/// A table of the series: a heading `### …` below `## Tables` starts with this.
pub(crate) struct Wanted {
    pub(crate) heading: &'static str,
    /// Figures of the series that stand in cells below the heading; a per cent sign or a plus may be left out.
    pub(crate) figures: &'static [&'static str],
    /// Ours are of several runs: columns `runs`, `min`, `max` and `std` stand in one of the tables.
    pub(crate) spread: bool,
}

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
        Wanted {
            heading: "v3 against mm-new",
            figures: &["357", "358", "+0.283", "1245", "1214", "-2.430", "9281", "8970", "-3.470"],
            spread: true,
        },
        Wanted {
            heading: "v2 against mm-stable",
            figures: &["352", "353", "+0.283", "1198", "1217", "+1.585", "8980", "9027", "+0.526"],
            spread: true,
        },
    ],
};

pub(crate) const KMEM: Expected = Expected {
    name: "kmem",
    source: &["Alexandre Ghiti", "\"[PATCH v2 0/9] per-memcg-per-node kmem accounting\"", "26 Jun 2026"],
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
        Wanted { heading: "End to end", figures: &["-5.5", "-5.1", "-1.8", "-5.1", "-4.1"], spread: true },
        Wanted {
            heading: "176 processors, one node",
            figures: &[
                "+5.3", "+5.4", "+0.1", "-1.8", "-0.5", "+417.3", "+182.5", "+68.5", "+21.4", "+16.1", "+337.8",
                "+141.8", "+36.1", "+11.9", "+6.8", "+131.3", "+53.7", "+10.5", "+0.9", "+2.0", "+12.6", "+12.1",
                "+3.5", "+6.6", "+0.7",
            ],
            spread: true,
        },
        Wanted {
            heading: "80 processors, two nodes",
            figures: &[
                "+1.2", "-3.8", "+12.4", "+1.2", "+0.5", "+206.1", "+134.0", "+44.5", "+11.6", "+11.5", "+153.2",
                "+64.7", "+19.4", "+4.2", "+5.9", "+86.5", "+45.5", "+14.7", "+1.8", "+1.6",
            ],
            spread: true,
        },
    ],
};

pub(crate) const SOFTLIMIT: Expected = Expected {
    name: "softlimit",
    source: &["Michal Hocko", "\"[patch v4] Soft limit rework\"", "3 June 2013"],
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
        Wanted {
            heading: "No limit: system",
            figures: &[
                "242.55", "245.36", "243.92", "1.17", "240.74", "244.90", "242.82", "1.45", "242.07", "244.73",
                "243.78", "0.91",
            ],
            spread: true,
        },
        Wanted {
            heading: "No limit: elapsed",
            figures: &[
                "596.81", "620.04", "605.52", "7.56", "590.06", "602.11", "596.09", "4.39", "591.54", "613.47",
                "599.60", "7.20",
            ],
            spread: true,
        },
        Wanted {
            heading: "Limit 0: system",
            figures: &[
                "248.40", "252.00", "250.19", "1.38", "240.31", "243.61", "242.01", "1.18", "242.67", "245.73",
                "244.52", "1.00",
            ],
            spread: true,
        },
        Wanted {
            heading: "Limit 0: elapsed",
            figures: &[
                "759.28", "805.30", "784.87", "15.45", "588.75", "606.30", "597.07", "5.12", "591.31", "612.52",
                "601.08", "6.93",
            ],
            spread: true,
        },
        Wanted {
            heading: "Limit 0: minor faults",
            figures: &[
                "35941845.00",
                "36029788.00",
                "35986860.17",
                "28288.66",
                "35595937.00",
                "35690024.00",
                "35654958.17",
                "31270.07",
                "35596909.00",
                "35684640.00",
                "35660804.67",
                "29918.93",
            ],
            spread: false,
        },
        Wanted {
            heading: "Limit 0: major faults",
            figures: &[
                "25390.00", "33132.00", "29961.83", "2476.58", "451.00", "1600.00", "814.17", "380.01", "318.00",
                "2023.00", "911.50", "632.83",
            ],
            spread: true,
        },
        Wanted {
            heading: "Stream: system",
            figures: &[
                "124.88", "136.97", "130.77", "4.94", "161.67", "196.80", "174.18", "16.02", "267.48", "319.64",
                "300.43", "23.40",
            ],
            spread: true,
        },
        Wanted {
            heading: "Stream: elapsed",
            figures: &[
                "398.86", "412.81", "407.62", "6.23", "423.41", "450.30", "440.92", "12.39", "379.91", "416.46",
                "399.26", "15.00",
            ],
            spread: true,
        },
    ],
};

pub(crate) const STATS: Expected = Expected {
    name: "stats",
    source: &["Yosry Ahmed", "\"[PATCH v3 5/5] mm: memcg: restore subtree stats flushing\"", "16 Nov 2023"],
    patches: &[
        "mm: memcg: change flush_next_time to flush_last_time",
        "mm: memcg: move vmstats structs definition above flushing code",
        "mm: memcg: make stats flushing threshold per-memcg",
        "mm: workingset: move the stats flush into workingset_test_recent()",
        "mm: memcg: restore subtree stats flushing",
    ],
    tables: &[
        Wanted { heading: "Workers and readers", figures: &["5000", "500", "1000"], spread: true },
        Wanted {
            heading: "Latency of reads",
            figures: &["250k", "50k", "100ms", "99.9", "50us", "0.01", "1ms"],
            spread: true,
        },
    ],
};

pub(crate) const POOLS: Expected = Expected {
    name: "pools",
    source: &["Huan Yang", "\"[PATCH v3 0/3] Use kmem_cache for memcg alloc\"", "24 Apr 2025"],
    patches: &[
        "mm/memcg: move mem_cgroup_init() ahead of cgroup_init()",
        "mm/memcg: use kmem_cache when alloc memcg",
        "mm/memcg: use kmem_cache when alloc memcg pernode info",
    ],
    tables: &[
        Wanted { heading: "Before: size classes", figures: &["2312", "4096", "2896", "4096"], spread: false },
        Wanted { heading: "After: aligned to cache lines", figures: &["2312", "2368", "2896", "2944"], spread: false },
        Wanted { heading: "After: not aligned", figures: &["2312", "2896"], spread: false },
        Wanted { heading: "Waste", figures: &["1784", "1200", "2984", "8"], spread: false },
    ],
};
