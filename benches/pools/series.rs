//! The figures of the patch series, to stand beside ours.

#![cfg(not(loom))]

pub(crate) const SOURCE: &str =
    "Huan Yang, \"[PATCH v3 0/3] Use kmem_cache for memcg alloc\", 24 April 2025";

/// One structure of the kernel, in bytes.
pub(crate) struct Structure {
    pub(crate) name: &'static str,
    pub(crate) asked: usize,
    /// By kmalloc, from a cache at whole lines, from one without.
    pub(crate) given: [usize; 3],
}

pub(crate) const GROUP: Structure = Structure {
    name: "mem_cgroup",
    asked: 2_312,
    given: [4_096, 2_368, 2_312],
};
pub(crate) const PART: Structure = Structure {
    name: "mem_cgroup_per_node",
    asked: 2_896,
    given: [4_096, 2_944, 2_896],
};

/// The bytes of a pointer to a part: the series counts it as waste of the part. It is within what a
/// group asks for.
pub(crate) const POINTER: usize = 8;

/// Bytes that one group wastes with so many nodes, all parts made, each way; as the series counts.
pub(crate) fn waste(nodes: usize) -> [usize; 3] {
    std::array::from_fn(|way| {
        let of = |structure: &Structure| structure.given[way] - structure.asked;
        // The series' figure for one node has no pointer in it; `(1200 + 8) * nr_node_ids` is the
        // addition of more of them.
        let further = if way == 0 {
            of(&PART) + POINTER
        } else {
            of(&PART)
        };
        of(&GROUP) + of(&PART) + further * (nodes - 1)
    })
}
