//! `ArrowPool`: Arrow's memory pool over a group.

use arrow_buffer::{MemoryPool, MemoryReservation};
use memcg::Group;

/// An Arrow memory pool that charges a group, for services that hold Arrow buffers:
/// `buffer.claim(&pool)`.
///
/// Arrow's pools do not refuse: the buffer exists already. So bytes are charged by force, and
/// [`Group::forced`] shows what is above a max; the group's next charge that may be refused is. A
/// buffer that several arrays share is charged once, to the pool that claimed it last. Its bytes
/// are given back when the buffer is freed, on whatever thread.
///
/// ```
/// use datafusion::arrow::array::{Array, Int32Array};
/// use memcg::{Limits, Runtime};
/// use memcg_datafusion::ArrowPool;
///
/// let runtime = Runtime::builder().build()?;
/// let cache = runtime.root().create("cache", Limits::new())?;
/// let pool = ArrowPool::new(&cache);
/// let array = Int32Array::from_iter_values(0..1_000);
/// let slice = array.slice(10, 100); // of the same buffer
/// for array in [&array, &slice] {
///     array.to_data().buffers().iter().for_each(|buffer| buffer.claim(&pool));
/// }
/// let charged = cache.live();
/// assert!((4_000..8_000).contains(&charged), "once: {charged}");
/// drop(array);
/// assert_eq!(cache.live(), charged, "the slice keeps the buffer");
/// drop(slice);
/// assert_eq!(cache.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ArrowPool {
    group: Group,
}

impl ArrowPool {
    /// A pool that charges `group`.
    pub fn new(group: &Group) -> ArrowPool {
        ArrowPool {
            group: group.clone(),
        }
    }

    /// Returns the group.
    pub fn group(&self) -> &Group {
        &self.group
    }
}

impl MemoryPool for ArrowPool {
    fn reserve(&self, size: usize) -> Box<dyn MemoryReservation> {
        let group = self.group.clone();
        group.raw().force_charge(size);
        Box::new(ArrowReservation { group, size })
    }

    /// Bytes that the group and those above it have left; below zero, those by which this group is
    /// above its max.
    fn available(&self) -> isize {
        match self.group.headroom() {
            0 => isize::try_from(self.group.forced()).map_or(isize::MIN, |forced| -forced),
            headroom => isize::try_from(headroom).unwrap_or(isize::MAX),
        }
    }

    fn used(&self) -> usize {
        usize::try_from(self.group.live()).unwrap_or(usize::MAX)
    }

    fn capacity(&self) -> usize {
        usize::try_from(self.group.effective_max()).unwrap_or(usize::MAX)
    }
}

/// The bytes of one buffer.
#[derive(Debug)]
struct ArrowReservation {
    group: Group,
    size: usize,
}

impl MemoryReservation for ArrowReservation {
    fn size(&self) -> usize {
        self.size
    }

    fn resize(&mut self, new_size: usize) {
        if new_size > self.size {
            self.group.raw().force_charge(new_size - self.size);
        } else {
            self.group.raw().uncharge(self.size - new_size);
        }
        self.size = new_size;
    }
}

impl Drop for ArrowReservation {
    fn drop(&mut self) {
        self.group.raw().uncharge(self.size);
    }
}
