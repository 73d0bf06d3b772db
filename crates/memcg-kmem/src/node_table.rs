//! Nodes as a program writes them down: for tests, and for machines that are not at hand.

use std::fmt;
use std::mem;
use std::ops::{DerefMut, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::kmem::{NodeOf, PageNode};
use smallvec::SmallVec;

use crate::sync::Mutex;

/// A span that is replaced in its middle leaves a piece on either side.
const GROWTH_MAX: usize = 2;

/// Ranges of addresses with the node of each. A page in no range is
/// [`Unmapped`](PageNode::Unmapped).
///
/// The table keeps whole pages: a range stands for every page that it touches. A look-up takes a
/// lock and searches the ranges; neighbours on one node count as one range. Neither a look-up nor a
/// change allocates under the lock.
///
/// ```
/// use memcg::kmem::{NodeId, NodeOf, PageNode};
/// use memcg_kmem::NodeTable;
///
/// let table = NodeTable::new(4_096);
/// table.set(0x10_000..0x14_000, NodeId::new(0));
/// table.set(0x12_000..0x13_000, NodeId::new(5));     // one page has moved
///
/// let mut found = [PageNode::Untouched; 4];
/// table.look_up(&[0x11_000, 0x12_000, 0x13_000, 0x14_000], &mut found);
/// let on = |node| PageNode::On(NodeId::new(node));
/// assert_eq!(found, [on(0), on(5), on(0), PageNode::Unmapped]);
/// assert_eq!((table.call_count(), table.page_count()), (1, 4));
/// ```
pub struct NodeTable {
    shift: u32,
    spans: Mutex<Vec<Span>>,
    calls: AtomicU64,
    pages: AtomicU64,
}

/// Pages in a row with one answer.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: usize,
    /// Inclusive, so that the last page of all addresses has a number.
    last: usize,
    found: PageNode,
}

impl NodeTable {
    /// A table in which nothing is mapped. `new` rounds a page size up to a power of two.
    #[must_use]
    pub fn new(page_size: usize) -> Self {
        Self {
            shift: page_shift(page_size),
            spans: Mutex::new(Vec::new()),
            calls: AtomicU64::new(0),
            pages: AtomicU64::new(0),
        }
    }

    /// Writes down where the pages lie that the range touches: a [`NodeId`](memcg::kmem::NodeId) or
    /// any [`PageNode`]. An empty range changes nothing.
    ///
    /// ```
    /// use memcg::kmem::{NodeId, NodeOf, PageNode};
    /// use memcg_kmem::NodeTable;
    ///
    /// let table = NodeTable::new(4_096);
    /// table.set(0..8_192, PageNode::Untouched);
    /// table.set(4_096..4_097, NodeId::new(1));
    /// let mut found = [PageNode::Unmapped; 2];
    /// table.look_up(&[0, 4_096], &mut found);
    /// assert_eq!(found, [PageNode::Untouched, PageNode::On(NodeId::new(1))]);
    /// ```
    pub fn set(&self, range: Range<usize>, found: impl Into<PageNode>) {
        let found = found.into();
        if !range.is_empty() {
            let first = range.start >> self.shift;
            let last = (range.end - 1) >> self.shift;
            let (mut spans, old) = self.with_room();
            replace(&mut spans, Span { first, last, found });
            drop(spans);
            drop(old);
        }
    }

    /// Unmaps the pages that the range touches.
    ///
    /// ```
    /// use memcg::kmem::{NodeId, NodeOf, PageNode};
    /// use memcg_kmem::NodeTable;
    ///
    /// let table = NodeTable::new(4_096);
    /// table.set(0..8_192, NodeId::new(0));
    /// table.remove(0..4_096);
    /// let mut found = [PageNode::Zero; 2];
    /// table.look_up(&[0, 4_096], &mut found);
    /// assert_eq!(found, [PageNode::Unmapped, PageNode::On(NodeId::new(0))]);
    /// ```
    pub fn remove(&self, range: Range<usize>) {
        self.set(range, PageNode::Unmapped);
    }

    /// Look-ups since the table was made. Exact once they are over.
    #[must_use]
    pub fn call_count(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Pages asked for in all of them. Exact once they are over.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// The spans, with room for a replacement. This asks for new memory and drops the old without
    /// the lock, because an allocator may charge.
    fn with_room(&self) -> (impl DerefMut<Target = Vec<Span>>, Vec<Span>) {
        let mut room: Vec<Span> = Vec::new();
        loop {
            let mut spans = self.spans.lock();
            let wanted = spans.len() + GROWTH_MAX;
            if spans.capacity() >= wanted {
                return (spans, room);
            }
            if room.capacity() >= wanted {
                room.extend_from_slice(&spans);
                let old = mem::replace(&mut *spans, room);
                return (spans, old);
            }
            drop(spans);
            room = Vec::with_capacity(2 * wanted);
        }
    }
}

impl NodeOf for NodeTable {
    fn page_size(&self) -> usize {
        1 << self.shift
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.pages
            .fetch_add(pages.len().min(found.len()) as u64, Ordering::Relaxed);
        let spans = self.spans.lock();
        // Most neighbouring pages lie in one span.
        let mut last: Option<&Span> = None;
        for (&address, found) in pages.iter().zip(found) {
            let page = address >> self.shift;
            if !last.is_some_and(|span| span.holds(page)) {
                let at = spans.partition_point(|span| span.last < page);
                last = spans.get(at).filter(|span| span.holds(page));
            }
            *found = last.map_or(PageNode::Unmapped, |span| span.found);
        }
    }
}

impl fmt::Debug for NodeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = self.call_count();
        let pages = self.page_count();
        f.debug_struct("NodeTable")
            .field("calls", &calls)
            .field("pages", &pages)
            .finish_non_exhaustive()
    }
}

/// The bits of an address below the number of its page. A page size is rounded up to a power of
/// two.
fn page_shift(page_size: usize) -> u32 {
    page_size
        .max(1)
        .checked_next_power_of_two()
        .map_or(usize::BITS - 1, usize::trailing_zeros)
}

impl Span {
    fn holds(&self, page: usize) -> bool {
        (self.first..=self.last).contains(&page)
    }
}

/// Puts `new` in the place of what it covers. The spans stay sorted, apart, and as few as possible.
fn replace(spans: &mut Vec<Span>, mut new: Span) {
    let mut begin = spans.partition_point(|span| span.last < new.first);
    let mut end = spans.partition_point(|span| span.first <= new.last);
    // The new span takes in neighbours with the same answer.
    let joins = |left: &Span, right: &Span| {
        left.found == right.found && left.last.checked_add(1) == Some(right.first)
    };
    if let Some(before) = begin
        .checked_sub(1)
        .map(|at| spans[at])
        .filter(|before| joins(before, &new))
    {
        new.first = before.first;
        begin -= 1;
    }
    if let Some(after) = spans.get(end).copied().filter(|after| joins(&new, after)) {
        new.last = after.last;
        end += 1;
    }
    let mut pieces: SmallVec<[Span; 3]> = SmallVec::new();
    let covered = &spans[begin..end];
    let before = covered.first().filter(|span| span.first < new.first);
    let after = covered.last().filter(|span| span.last > new.last);
    match before {
        Some(before) if before.found == new.found => new.first = before.first,
        Some(before) => pieces.push(Span {
            last: new.first - 1,
            ..*before
        }),
        None => {}
    }
    let after = after.and_then(|after| {
        let same = after.found == new.found;
        let rest = Span {
            first: new.last + 1,
            ..*after
        };
        new.last = if same { after.last } else { new.last };
        (!same).then_some(rest)
    });
    if new.found != PageNode::Unmapped {
        pieces.push(new);
    }
    pieces.extend(after);
    spans.splice(begin..end, pieces);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use memcg::kmem::NodeId;

    use super::*;

    /// A span takes in neighbours with the same answer, on both sides, and leaves what is
    /// another's.
    #[test]
    fn spans_join() {
        let span = |first, last, node| Span {
            first,
            last,
            found: PageNode::On(NodeId::new(node)),
        };
        let after = |mut spans: Vec<Span>, new| {
            replace(&mut spans, new);
            spans
                .iter()
                .map(|span| (span.first, span.last))
                .collect::<Vec<_>>()
        };
        let apart = vec![span(0, 9, 0), span(20, 29, 1), span(40, 49, 0)];
        assert_eq!(
            after(apart.clone(), span(10, 19, 1)),
            [(0, 9), (10, 29), (40, 49)]
        );
        assert_eq!(
            after(apart.clone(), span(10, 19, 0)),
            [(0, 19), (20, 29), (40, 49)]
        );
        assert_eq!(
            after(apart.clone(), span(30, 39, 0)),
            [(0, 9), (20, 29), (30, 49)]
        );
        assert_eq!(after(apart.clone(), span(10, 39, 0)), [(0, 49)]);
        assert_eq!(
            after(apart, span(22, 23, 0)),
            [(0, 9), (20, 21), (22, 23), (24, 29), (40, 49)]
        );
    }
}
