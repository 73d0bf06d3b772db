//! What an object takes, and how many of them a chunk: arithmetic, done once for each cache.

use crate::numa::NodeId;
use crate::numa::mapping::page_size;
use crate::sync::POOL_OBJECTS;

/// Bytes that a chunk is meant to have: few calls to the system, and little idle memory in a small process.
const CHUNK: usize = 256 << 10;

/// Objects that a chunk has at least, however large they are.
const OBJECTS_LEAST: usize = 8;

/// How objects lie in their pool: for groups, and for their parts on memory nodes.
///
/// ```
/// use memcg::{PoolAlign, Runtime};
///
/// let small = Runtime::builder().pool_align(PoolAlign::Packed).build()?;
/// assert_eq!(small.groups(), 1);
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PoolAlign {
    /// At whole cache lines, 128 bytes: two threads that charge neighbours in memory do not meet. As the kernel's
    /// `SLAB_HWCACHE_ALIGN`; lines count in pairs, for the prefetcher takes them so.
    #[default]
    CacheLine,
    /// At whole words: as much as asked for and no more.
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

/// Whose objects: two layouts of one size are two kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Groups of so many counters, with places for parts on so many nodes.
    Group { counters: usize, nodes: usize },
    /// Counts of events.
    Events,
    /// Parts of the statistics, of so many items.
    Part { items: usize },
}

/// What makes one cache different from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    /// Bytes of an object.
    pub(crate) asked: usize,
    pub(crate) align: PoolAlign,
    /// Where its memory is to lie; `None`: anywhere.
    pub(crate) node: Option<NodeId>,
}

impl Shape {
    /// Bytes from one object to the next.
    pub(crate) const fn given(&self) -> usize {
        given(self.asked, self.align.bytes())
    }

    pub(crate) const fn objects_per_chunk(&self) -> usize {
        let objects = CHUNK / self.given();
        let least = if OBJECTS_LEAST < POOL_OBJECTS { OBJECTS_LEAST } else { POOL_OBJECTS };
        if objects > POOL_OBJECTS {
            POOL_OBJECTS
        } else if objects < least {
            least
        } else {
            objects
        }
    }

    /// Bytes of a chunk: whole pages.
    pub(crate) fn chunk(&self) -> usize {
        (self.objects_per_chunk() * self.given()).next_multiple_of(page_size())
    }
}

const fn given(asked: usize, align: usize) -> usize {
    let whole = asked.next_multiple_of(align);
    if whole == 0 { align } else { whole }
}
