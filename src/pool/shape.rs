//! The size of an object, and the number of objects in a chunk: arithmetic, once for each cache.

use crate::numa::NodeId;
use crate::numa::system::page_size;
use crate::sync::POOL_OBJECTS;

/// Bytes that a chunk should have: few system calls, and little idle memory in a small process.
const CHUNK: usize = 256 << 10;

/// The fewest objects of a chunk, also where they are large.
const OBJECTS_LEAST: usize = 8;

/// The layout of objects in their pool: those of groups, and those of their statistics on memory
/// nodes.
///
/// ```
/// let small = memcg::Runtime::builder().pool_align(memcg::footprint::PoolAlign::Packed).build()?;
/// assert_eq!(small.group_count(), 1);
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PoolAlign {
    /// At whole pairs of cache lines, 128 bytes, so that two threads that charge neighbours in
    /// memory share no line: as the kernel's `SLAB_HWCACHE_ALIGN`. Pairs, because the prefetcher
    /// fetches them.
    #[default]
    CacheLine,
    /// At whole words, so that an object takes no more than it asks for.
    Packed,
}

impl PoolAlign {
    pub(crate) const LINE: usize = 128;
    pub(crate) const WORD: usize = 8;

    pub(crate) const fn bytes(self) -> usize {
        match self {
            PoolAlign::CacheLine => PoolAlign::LINE,
            PoolAlign::Packed => PoolAlign::WORD,
        }
    }
}

/// The type of the objects. Two layouts of one size are two kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    /// Counters that are no group's.
    Counter,
    /// Groups of so many counters, with places for the statistics on so many nodes.
    Group {
        counters: usize,
        nodes: usize,
    },
    Events,
    Stats {
        items: usize,
    },
}

impl PoolKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            PoolKind::Counter => "counter",
            PoolKind::Group { .. } => "group",
            PoolKind::Events => "events",
            PoolKind::Stats { .. } => "stats",
        }
    }
}

/// The properties that distinguish one cache from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: PoolKind,
    /// Bytes of an object.
    pub(crate) asked: usize,
    pub(crate) align: PoolAlign,
    /// The node where the memory should lie; `None`: any.
    pub(crate) node: Option<NodeId>,
}

impl Shape {
    /// Bytes from one object to the next.
    pub(crate) fn given(&self) -> usize {
        given(self.asked, self.align.bytes())
    }

    pub(crate) fn objects_per_chunk(&self) -> usize {
        (CHUNK / self.given()).clamp(OBJECTS_LEAST.min(POOL_OBJECTS), POOL_OBJECTS)
    }

    /// Bytes of a chunk: whole pages.
    pub(crate) fn chunk(&self) -> usize {
        (self.objects_per_chunk() * self.given()).next_multiple_of(page_size())
    }
}

fn given(asked: usize, align: usize) -> usize {
    asked.max(1).next_multiple_of(align)
}

/// Returns the size that the kernel's `kmalloc` gives for so many bytes: a power of two, or one of
/// two sizes in between.
pub(super) const fn size_class(bytes: usize) -> usize {
    match bytes {
        0..=8 => 8,
        65..=96 => 96,
        129..=192 => 192,
        _ => bytes.next_power_of_two(),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// The patch series: `mem_cgroup` of 2,312 bytes, `mem_cgroup_per_node` of 2,896, lines of 64,
    /// and as many of them as lie in 32 KiB.
    #[test]
    fn the_arithmetic_of_the_patch_series() {
        const LINE: usize = 64;
        let group = 2_312;
        let part = 2_896;
        assert_eq!([size_class(group), size_class(part)], [4_096; 2]);
        assert_eq!(
            [size_class(group) - group, size_class(part) - part],
            [1_784, 1_200]
        );
        assert_eq!([given(group, LINE), given(part, LINE)], [2_368, 2_944]);
        assert_eq!(
            [given(group, PoolAlign::WORD), given(part, PoolAlign::WORD)],
            [group, part]
        );
        let in_a_slab = |bytes: usize| (32 << 10) / bytes;
        assert_eq!([4_096, 2_368, 2_312].map(in_a_slab), [8, 13, 14]);
        assert_eq!([2_944, 2_896].map(in_a_slab), [11; 2]);
    }

    #[test]
    fn size_classes_are_the_kernels() {
        let classes = [
            8, 16, 32, 64, 96, 128, 192, 256, 512, 1_024, 2_048, 4_096, 8_192,
        ];
        for pair in classes.windows(2) {
            assert_eq!(
                (size_class(pair[0]), size_class(pair[0] + 1)),
                (pair[0], pair[1])
            );
        }
    }

    #[test]
    fn a_chunk_has_whole_pages_and_room_for_its_objects() {
        for asked in (0..3_000)
            .step_by(if cfg!(miri) { 149 } else { 1 })
            .chain([70_000, 1 << 20])
        {
            for align in [PoolAlign::CacheLine, PoolAlign::Packed] {
                let shape = Shape {
                    kind: PoolKind::Events,
                    asked,
                    align,
                    node: None,
                };
                let given = shape.given();
                let objects = shape.objects_per_chunk();
                let chunk = shape.chunk();
                assert!(
                    given >= asked
                        && given.is_multiple_of(align.bytes())
                        && given < asked.max(1) + align.bytes()
                );
                assert!(
                    (OBJECTS_LEAST..=POOL_OBJECTS).contains(&objects) && objects * given <= chunk
                );
                assert!(chunk.is_multiple_of(page_size()));
            }
        }
    }
}
