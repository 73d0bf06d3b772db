//! The measures of a per-processor allocator, where in a chunk everything lies, and the word that
//! names an owner.

use std::alloc::Layout;
use std::ops::Range;

use memcg::Group;
use memcg::allocator::Owner;
use memcg::kmem::{NodeId, Topology};

use crate::error::KmemError;
use crate::mapping::{page_size, pages_for};

/// Measures of a [`PerCpuAllocator`](crate::PerCpuAllocator): the bytes of one processor in a
/// chunk, the bytes of a granule, and the metadata of each granule. Each method rounds up to what
/// is possible.
///
/// ```
/// let shape = memcg_kmem::PerCpuShape::new();
/// assert_eq!((shape.unit(), shape.granule(), shape.word()), (32 << 10, 8, size_of::<usize>()));
/// assert_eq!(memcg_kmem::PerCpuShape::new().with_granule(3).granule(), 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerCpuShape {
    unit: usize,
    granule: usize,
    word: usize,
}

impl Default for PerCpuShape {
    /// As [`new`](PerCpuShape::new).
    fn default() -> Self {
        PerCpuShape::new()
    }
}

impl PerCpuShape {
    /// Units of 32 KiB, as `PCPU_MIN_UNIT_SIZE` in `mm/percpu-internal.h`; granules of a pointer's
    /// size; a word of ownership for each.
    #[must_use]
    pub const fn new() -> Self {
        PerCpuShape {
            unit: 32 << 10,
            granule: size_of::<OwnerWord>(),
            word: size_of::<OwnerWord>(),
        }
    }

    /// Sets the bytes of one processor in a chunk, which are also those of the largest object:
    /// whole pages.
    #[must_use]
    pub fn with_unit(mut self, bytes: usize) -> Self {
        // At most a gibibyte: offsets have 32 bits.
        self.unit = bytes.clamp(1, 1 << 30).next_multiple_of(page_size());
        self
    }

    /// Sets the bytes of a granule: objects start and end at multiples of it. A power of two, at
    /// most a page.
    #[must_use]
    pub fn with_granule(mut self, bytes: usize) -> Self {
        self.granule = bytes.clamp(1, page_size()).next_power_of_two();
        self
    }

    /// Sets the bytes of metadata for each granule: at least the word that names its owner, and
    /// what a debugging allocator keeps beside it.
    #[must_use]
    pub fn with_word(mut self, bytes: usize) -> Self {
        self.word = bytes
            .clamp(size_of::<OwnerWord>(), 4_096)
            .next_multiple_of(align_of::<OwnerWord>());
        self
    }

    /// Bytes of one processor in a chunk.
    #[must_use]
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// Bytes of a granule.
    #[must_use]
    pub fn granule(&self) -> usize {
        self.granule
    }

    /// Bytes of metadata for a granule.
    #[must_use]
    pub fn word(&self) -> usize {
        self.word
    }
}

/// The word of a granule in the metadata: for the granule where a charged object starts, the word of
/// the group that is charged; 0 in fresh memory, for no group.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct OwnerWord(usize);

impl OwnerWord {
    pub(super) const NONE: OwnerWord = OwnerWord(0);

    #[inline]
    pub(super) fn of(group: &Group) -> OwnerWord {
        OwnerWord(Owner::of(group).to_word() as usize)
    }

    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The group, with a handle of its own.
    ///
    /// # Safety
    ///
    /// The group is charged for the object until this returns.
    #[allow(unsafe_code)]
    pub(super) unsafe fn group(self) -> Option<Group> {
        // SAFETY: `of` has made the word of an owner's, and 0 is that of `Owner::NONE`; the rest says
        // the caller.
        unsafe { Owner::from_word(self.0 as u32).group() }
    }
}

/// The measures, applied to the processors of a topology.
pub(super) struct Plan {
    pub(super) shape: PerCpuShape,
    pub(super) topology: Topology,
    pub(super) units: Box<[NodeId]>,
    /// The unit of each processor; `NONE` for a number without a processor.
    unit_of: Box<[u32]>,
    /// Bytes of a chunk: its units, and its words.
    pub(super) data_len: usize,
    pub(super) words_len: usize,
    /// Bytes for which one answer of a look-up holds.
    pub(super) page: usize,
    align_max: usize,
}

const NONE: u32 = u32::MAX;

impl Plan {
    pub(super) fn new(
        shape: PerCpuShape,
        topology: &Topology,
        looked_up: usize,
    ) -> Result<Plan, KmemError> {
        let mut units = Vec::new();
        let mut unit_of = Vec::new();
        for processor in 0..topology.processor_count() {
            let node = topology.node_of_processor(processor);
            let unit = if node.is_some() {
                units.len() as u32
            } else {
                NONE
            };
            unit_of.push(unit);
            units.extend(node);
        }
        if units.is_empty() {
            units.extend(topology.nodes().next());
            unit_of = vec![0];
        }
        let unit = pages_for(shape.unit)?;
        let shape = PerCpuShape { unit, ..shape };
        let too_large = || KmemError::Capacity {
            bytes: u64::MAX,
            max: isize::MAX as u64,
        };
        let data_len = unit.checked_mul(units.len()).ok_or_else(too_large)?;
        let words_len = (unit / shape.granule)
            .checked_mul(shape.word)
            .ok_or_else(too_large)?;
        // A power of two, so that the pages of the mapping start at multiples of it.
        let page = looked_up
            .max(1)
            .next_power_of_two()
            .clamp(shape.granule, page_size());
        Ok(Plan {
            shape,
            topology: topology.clone(),
            units: units.into(),
            unit_of: unit_of.into(),
            data_len,
            words_len,
            page,
            align_max: page_size(),
        })
    }

    #[inline]
    pub(super) fn granules(&self, layout: Layout) -> Result<(usize, usize), KmemError> {
        let PerCpuShape { unit, granule, .. } = self.shape;
        let bytes = layout.size().max(1);
        for (asked, max) in [(bytes, unit), (layout.align(), self.align_max)] {
            if asked > max {
                return Err(KmemError::Capacity {
                    bytes: asked as u64,
                    max: max as u64,
                });
            }
        }
        // All of these are powers of two, and a shift is cheaper than a division.
        let shift = granule.trailing_zeros();
        Ok((
            (bytes + granule - 1) >> shift,
            layout.align().max(granule) >> shift,
        ))
    }

    pub(super) fn processor_count(&self) -> usize {
        self.unit_of.len()
    }

    #[inline]
    pub(super) fn unit_of(&self, processor: usize) -> Option<usize> {
        self.unit_of
            .get(processor)
            .filter(|&&unit| unit != NONE)
            .map(|&unit| unit as usize)
    }

    /// The unit for a thread on a processor that the topology may not have.
    pub(super) fn unit_of_any(&self, processor: usize) -> usize {
        self.unit_of(processor)
            .unwrap_or(processor % self.units.len())
    }

    /// Bytes charged for an object of so many granules: its copies, and its own words.
    pub(super) fn full_size(&self, granules: usize) -> u64 {
        let data = (granules * self.shape.granule) as u64 * self.units.len() as u64;
        data + (granules * self.shape.word) as u64
    }

    /// Bytes of an object in each unit.
    pub(super) fn in_unit(&self, at: usize, granules: usize) -> Range<usize> {
        at * self.shape.granule..(at + granules) * self.shape.granule
    }

    /// Bytes of its words in the metadata.
    pub(super) fn in_words(&self, at: usize, granules: usize) -> Range<usize> {
        at * self.shape.word..(at + granules) * self.shape.word
    }

    #[inline(always)]
    pub(super) fn pages(&self, range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        // A page is a power of two, and a shift is cheaper than a division.
        let shift = self.page.trailing_zeros();
        (range.start >> shift..(range.end + self.page - 1) >> shift).map(move |page| {
            let bytes = range.end.min((page + 1) << shift) - range.start.max(page << shift);
            (page, bytes as u64)
        })
    }
}
