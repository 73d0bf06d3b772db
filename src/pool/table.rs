//! Pools as a table, as in `/proc/slabinfo`.

use std::fmt;

use super::cache::Cache;
use super::shape::size_class;
use crate::numa::NodeId;

/// The pools of a runtime: those of its groups, and of what a group gets on first need. Prints as a
/// table, one line for each pool, sizes in bytes. A pool belongs to the process: live and free
/// objects are those of all runtimes of the same shape.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let table = runtime.pools();
/// let head = table.to_string().lines().next().map(str::to_string);
/// assert_eq!(
///     head.unwrap().split_whitespace().collect::<Vec<_>>(),
///     ["pool", "node", "live", "free", "asked", "given", "align", "waste", "class", "per_chunk", "chunk", "chunks"],
/// );
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct PoolTable {
    rows: Vec<PoolRow>,
}

/// One pool in a [`PoolTable`]. Sizes are in bytes and never change. Counts are exact while no
/// thread creates or releases a group.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let table = runtime.pools();
/// let groups = &table.rows()[0];
/// assert_eq!((groups.name, groups.node), ("group", None));
/// assert!(groups.live >= 1, "the root");
/// assert_eq!(groups.given, groups.asked.next_multiple_of(groups.align));
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolRow {
    /// The type of its objects. `group`: all counters of a group. `events`: a group's counts of
    /// events. `stats`: a group's statistics, its own or those of its memory on a node.
    pub name: &'static str,
    /// The node where the memory should lie; `None`: any.
    pub node: Option<NodeId>,
    /// Bytes that the owner of an object asks for.
    pub asked: usize,
    /// Bytes from one object to the next.
    pub given: usize,
    /// Objects start at multiples of it.
    pub align: usize,
    /// Objects of one chunk.
    pub objects_per_chunk: usize,
    /// Bytes of a chunk: one request to the system.
    pub chunk: usize,
    /// Chunks that the system has given.
    pub chunks: usize,
    /// Objects in use.
    pub live: u64,
    /// Objects that are not in use, those included that have never had a user.
    pub free: u64,
    /// Bytes of each object beyond those that its owner asks for.
    pub waste: usize,
}

impl PoolRow {
    fn of(cache: &Cache) -> PoolRow {
        let shape = cache.shape;
        let objects_per_chunk = shape.objects_per_chunk();
        let chunks = cache.chunk_count();
        let live = cache.live();
        PoolRow {
            name: shape.kind.name(),
            node: shape.node,
            asked: shape.asked,
            given: shape.given(),
            align: shape.align.bytes(),
            objects_per_chunk,
            chunk: shape.chunk(),
            chunks,
            live,
            free: ((chunks * objects_per_chunk) as u64).saturating_sub(live),
            waste: shape.given() - shape.asked,
        }
    }

    /// Returns the bytes that an allocator of size classes gives for as much. The classes are those
    /// of the kernel's `kmalloc`: 8, 16, 32, 64, 96, 128, 192, 256, and powers of two from there
    /// on.
    pub fn size_class(&self) -> usize {
        size_class(self.asked)
    }

    fn cells(&self) -> [String; COLUMNS.len()] {
        let node = self
            .node
            .map_or_else(|| "-".to_string(), |node| node.to_string());
        let [live, free] = [self.live, self.free].map(|objects| objects.to_string());
        let [asked, given, align, waste] =
            [self.asked, self.given, self.align, self.waste].map(|bytes| bytes.to_string());
        let [class, objects, chunk, chunks] = [
            self.size_class(),
            self.objects_per_chunk,
            self.chunk,
            self.chunks,
        ]
        .map(|number| number.to_string());
        [
            self.name.to_string(),
            node,
            live,
            free,
            asked,
            given,
            align,
            waste,
            class,
            objects,
            chunk,
            chunks,
        ]
    }
}

const COLUMNS: [&str; 12] = [
    "pool",
    "node",
    "live",
    "free",
    "asked",
    "given",
    "align",
    "waste",
    "class",
    "per_chunk",
    "chunk",
    "chunks",
];

impl PoolTable {
    pub(crate) fn of<'a>(caches: impl Iterator<Item = &'a Cache>) -> PoolTable {
        PoolTable {
            rows: caches.map(PoolRow::of).collect(),
        }
    }

    /// Returns the rows, that of groups first.
    pub fn rows(&self) -> &[PoolRow] {
        &self.rows
    }
}

impl fmt::Display for PoolTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![COLUMNS.map(str::to_string)];
        lines.extend(self.rows.iter().map(PoolRow::cells));
        let widths: [usize; COLUMNS.len()] = std::array::from_fn(|column| {
            lines
                .iter()
                .map(|line| line[column].len())
                .max()
                .unwrap_or(0)
        });
        for [first, rest @ ..] in &lines {
            write!(f, "{first:width$}", width = widths[0])?;
            for (figure, width) in rest.iter().zip(&widths[1..]) {
                write!(f, "  {figure:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
