//! Figures that were read at one moment.

use smallvec::SmallVec;

use super::coordinator::Coordinator;
use super::item::{Items, Stat};
use super::part::Part;

/// Items of most runtimes: their figures need no allocation.
const COMMON: usize = 24;

/// The statistics of a group as they were read: for its subtree and for the group alone, each item with the same error
/// bound. Items are read one after the other; each is a value that it had.
///
/// ```
/// use memcg::{Limits, Stat};
///
/// let runtime = memcg::Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// query.stat_add(Stat::ANON, 4_096);
/// let now = runtime.root().read_exact();
/// assert_eq!((now.get(Stat::ANON), now.local(Stat::ANON), now.max_error()), (4_096, 0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    of: u32,
    max_error: u64,
    subtree: SmallVec<[i64; COMMON]>,
    local: SmallVec<[i64; COMMON]>,
}

impl Stats {
    /// What has been published, of which so much may be missing.
    pub(crate) fn read(items: &Items, part: Option<&Part>, max_error: u64) -> Stats {
        let zeros = SmallVec::from_elem(0, items.len());
        let (mut subtree, mut local) = (zeros.clone(), zeros);
        if let Some(part) = part {
            part.read(&mut subtree, &mut local);
        }
        Stats { of: items.of(), max_error, subtree, local }
    }

    fn figure(&self, figures: &[i64], stat: Stat) -> i64 {
        let known = stat.of() == 0 || stat.of() == self.of;
        figures.get(stat.number()).copied().filter(|_| known).unwrap_or(0)
    }

    /// An item over the group and everything below it, what went offline included. 0 for an item of another runtime.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// root.stat_add(memcg::Stat::SOCK, 100);
    /// root.stat_add(memcg::Stat::SOCK, -40);
    /// assert_eq!(root.read_exact().get(memcg::Stat::SOCK), 60);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn get(&self, stat: Stat) -> i64 {
        self.figure(&self.subtree, stat)
    }

    /// An item of the group alone: what was added to it, and not to a group below.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// root.stat_add(memcg::Stat::FILE, 1);
    /// root.create("q17", memcg::Limits::new())?.stat_add(memcg::Stat::FILE, 2);
    /// let now = root.read_exact();
    /// assert_eq!((now.get(memcg::Stat::FILE), now.local(memcg::Stat::FILE)), (3, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn local(&self, stat: Stat) -> i64 {
        self.figure(&self.local, stat)
    }

    /// How far any item may be from what had been written when it was read, in grains of its unit: the changes that may
    /// be missing, rising and falling ones added up.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// root.stat_add(memcg::Stat::WORKINGSET_REFAULT, 10);
    /// assert_eq!(root.read_stale().max_error(), 32, "one thread has written and may have written half a batch");
    /// assert_eq!(root.read_exact().max_error(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn max_error(&self) -> u64 {
        self.max_error
    }

    /// [`max_error`](Self::max_error) in the unit of an item.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// root.stat_add(memcg::Stat::ANON, 1);
    /// assert_eq!(root.read_stale().max_error_of(memcg::Stat::ANON), 32 * 4_096);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn max_error_of(&self, stat: Stat) -> u64 {
        self.max_error.saturating_mul(stat.grain())
    }
}

impl Coordinator {
    /// The published figures of a group, with what may be missing.
    pub(crate) fn read_stale(&self, part: Option<&Part>) -> Stats {
        // The bound first: what is flushed in between is taken off it too late, never too early.
        let max_error = part.map_or(0, |part| self.bound(part));
        Stats::read(&self.items, part, max_error)
    }
}
