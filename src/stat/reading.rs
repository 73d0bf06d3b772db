//! Figures that were read at one moment.

use smallvec::SmallVec;

use super::item::{StatItems, StatKey};
use super::published::PublishedStats;

/// The most that a read of statistics may miss of all that was written before the call, and the
/// cost of the read.
///
/// What threads add while a read runs comes on top. Only an exact read says how much that is.
///
/// ```
/// use memcg::{Freshness, Runtime, StatKey};
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", memcg::Limits::new())?;
/// query.stat_add(StatKey::WORKINGSET_REFAULT, 10);
/// let [stale, exact] = [Freshness::Stale, Freshness::Exact].map(|how| runtime.root().read(how));
/// assert_eq!((stale.max_error(), exact.max_error()), (512, 0));
/// assert_eq!(exact.get(StatKey::WORKINGSET_REFAULT), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Freshness {
    /// What was published last: a few loads, about 10 ns. [`Stats::max_error`] says what may be
    /// missing: what was announced since then, and half a batch for each writer.
    Stale,
    /// At most one batch for each writer is missing. The read flushes where more may be. This is
    /// what reading `memory.stat` does, with writers in the place of processors.
    ///
    /// A thread that has stopped writing counts as a writer until flushes have found it idle. So
    /// now and then a read flushes though its bound would allow it not to: one of up to 64 while
    /// most writers write on, and each while most have stopped. Even without a flusher the error
    /// comes down to 0 once all writers have stopped. That takes a dozen reads where the group is
    /// read for the first time, and 140 where it was read often before. With less than eight
    /// writers it takes 30 more.
    Threshold,
    /// At most so many grains of each item's unit are missing
    /// ([`Unit::grain`](crate::Unit::grain)). The read flushes where more may be. Each writer of
    /// the subtree may hold back half a batch, so a read that allows less than all of them together
    /// always flushes.
    Within(u64),
    /// Nothing is missing.
    ///
    /// If no thread writes while the read runs, each figure is the sum of what was written, and
    /// [`Stats::max_error`] is
    /// 0. The read visits threads that write meanwhile at different instants. So an item that rises
    ///    on one thread and falls on another may have a value that it never had, such as a gauge
    ///    below 0. Then `max_error` is what all threads wrote between two looks at them, the first
    ///    before the figures and the second after them. There is one instant during the call at
    ///    which, for all items at once, every figure was within `max_error` of all that had been
    ///    written.
    ///
    /// The read flushes the subtree twice: two visits to each pair of a thread and a group in it
    /// that has written lately. It runs no barrier, unless visits to idle pairs have come to cost
    /// as much: then one barrier takes them out of later flushes until they write again.
    Exact,
}

/// Most groups have written no more items than these: their figures need no allocation.
const COMMON: usize = 6;

/// The statistics of a group at one reading: of its subtree and of the group alone. All items that
/// threads add to have the same error bound, and those of the [ledger](StatKey::RESERVED) one of
/// their own.
///
/// A read visits items one after the other, and the threads of each item too. So an item that
/// several threads move up and down meanwhile may have a value here that it never had. An
/// [exact](Freshness::Exact) read says by how much such a value may be off.
///
/// ```
/// use memcg::{Limits, StatKey};
///
/// let runtime = memcg::Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// query.stat_add(StatKey::ANON, 4_096);
/// let now = runtime.root().read(memcg::Freshness::Exact);
/// assert_eq!((now.get(StatKey::ANON), now.local(StatKey::ANON), now.max_error()), (4_096, 0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    pub(crate) max_error: u64,
    /// Bytes that items of the ledger may be off by; `u64::MAX` where they were not read.
    ledger_error: u64,
    /// The figures of the items that have been written, of the subtree and of the group alone. All
    /// others are 0.
    figures: SmallVec<[(StatKey, [i64; 2]); COMMON]>,
}

impl Stats {
    /// Nothing is read yet.
    #[inline]
    pub(crate) fn new() -> Stats {
        Stats {
            max_error: 0,
            ledger_error: u64::MAX,
            figures: SmallVec::new(),
        }
    }

    /// Adds what has been published there. The caller says how many grains may be missing. The
    /// figures are written where the reader wants them: to move them right after would load words of
    /// the vector unit from what narrower stores have just written, and wait for those.
    #[inline]
    pub(crate) fn add_published<'a>(
        &mut self,
        items: &StatItems,
        published: impl Iterator<Item = &'a PublishedStats>,
    ) {
        // The first are the group's own, which have each item once: only those of nodes, after them,
        // may meet an item that is there already.
        for (number, published) in published.enumerate() {
            for item in published.touched() {
                let stat = items.stat(item);
                let more = published.figures(item);
                match self
                    .figures
                    .iter_mut()
                    .find(|(of, _)| number > 0 && *of == stat)
                {
                    Some((_, sums)) => *sums = [0, 1].map(|of| sums[of].wrapping_add(more[of])),
                    None => self.figures.push((stat, more)),
                }
            }
        }
    }

    /// Adds items of the ledger: of the subtree and of the group alone, each off by so many bytes at
    /// most.
    pub(crate) fn add_ledger(
        &mut self,
        items: impl Iterator<Item = (StatKey, [u64; 2])>,
        error: u64,
    ) {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let written = items.filter(|(_, figures)| *figures != [0; 2]);
        self.figures
            .extend(written.map(|(stat, figures)| (stat, figures.map(signed))));
        self.ledger_error = error;
    }

    /// No item has been written.
    pub(crate) fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }

    fn figures(&self, stat: StatKey) -> [i64; 2] {
        self.figures
            .iter()
            .find(|(of, _)| *of == stat)
            .map_or([0; 2], |(_, figures)| *figures)
    }

    /// Returns an item of the group and all groups below it, with what groups added that are
    /// offline by now. 0 for an item of another runtime. A gauge that several threads move may read
    /// below 0, where the figure has one thread's fall and not another's rise.
    pub fn get(&self, stat: StatKey) -> i64 {
        self.figures(stat)[0]
    }

    /// Returns an item of the group alone: what threads added to it, and not to a group below.
    pub fn local(&self, stat: StatKey) -> i64 {
        self.figures(stat)[1]
    }

    /// Returns how far any item that threads add to may be from what had been written, in grains of
    /// its unit: the sum of the changes that may be missing, rising and falling ones. An
    /// [exact](Freshness::Exact) read misses only changes that threads make while it runs, and this
    /// bounds them. For the other reads it bounds the changes made before the call.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// # let root = runtime.root();
    /// root.stat_add(memcg::StatKey::WORKINGSET_REFAULT, 10);
    /// assert_eq!(root.read(memcg::Freshness::Stale).max_error(), 512, "one thread has written, and may have written half a batch");
    /// assert_eq!(root.read(memcg::Freshness::Exact).max_error(), 0);
    /// ```
    pub fn max_error(&self) -> u64 {
        self.max_error
    }

    /// Returns [`max_error`](Self::max_error) in the unit of an item. For an item of the
    /// [ledger](StatKey::RESERVED) it is [`Ledger::max_error`](crate::figures::Ledger::max_error),
    /// or `u64::MAX` where the read has no such items.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build().unwrap();
    /// # let root = runtime.root();
    /// root.stat_add(memcg::StatKey::ANON, 1);
    /// assert_eq!(root.read(memcg::Freshness::Stale).max_error_of(memcg::StatKey::ANON), 512 * 4_096);
    /// ```
    pub fn max_error_of(&self, stat: StatKey) -> u64 {
        if stat.is_of_ledger() {
            self.ledger_error
        } else {
            self.max_error.saturating_mul(stat.grain())
        }
    }
}
