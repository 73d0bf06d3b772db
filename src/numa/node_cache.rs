//! Remembers on which node each page of an arena lies, so that a thread looks a page up once.
//!
//! One word for each page:
//!
//! ```text
//! bit 0   CLAIMED  a look-up is under way and stores what it finds
//! bit 1   VALID    no invalidation since the look-up began, or since the node was stored
//! above            the node, where VALID stands alone
//!
//!             claim             settle                     invalidate (clears all but CLAIMED)
//! EMPTY   00  -> FILLING                                   -> EMPTY
//! FILLING 11                    -> KNOWN, or EMPTY         -> STALE
//! STALE   01                    -> EMPTY: too late         -> STALE
//! KNOWN   10                                               -> EMPTY
//! ```
//!
//! The race: a look-up reads the old node, the page moves, its owner invalidates it, and the look-up stores the old
//! node. It does not happen, for two reasons (E28):
//!
//! 1. Only the thread that claims a word ends the claim, and it stores a node on FILLING alone. An invalidation in
//!    between leaves STALE. No other thread can make FILLING of it again, so there is no count that could wrap. Other
//!    threads that need the page meanwhile look it up themselves and store nothing.
//! 2. The owner invalidates after the page has moved. If its exchange of the word comes before the claim, the look-up
//!    sees where the page is now; otherwise the exchange finds the claim. Every write to a word is an exchange, even
//!    one that changes nothing. A plain load would let both miss each other. A plain store would break the release
//!    sequence from an invalidation to the next claim.
//!
//! The cache remembers nodes only. A thread may touch an untouched page at any time, and does not tell the cache.

use std::fmt;
use std::ops::Range;

use super::node_of::{BATCH, NodeOf, PageNode, page_shift, pages_of};
use super::topology::NodeId;
use crate::sync::{AtomicU32, Ordering};

const EMPTY: u32 = 0b00;
const CLAIMED: u32 = 0b01;
const VALID: u32 = 0b10;
const FILLING: u32 = CLAIMED | VALID;

/// The node stands above the two bits.
const NODE_SHIFT: u32 = 2;

/// The most words of one cache: 256 MiB of them, for 256 GiB in pages of 4 KiB.
const WORDS_MAX: usize = 1 << 26;

fn known(word: u32) -> Option<NodeId> {
    (word & FILLING == VALID).then(|| NodeId::new((word >> NODE_SHIFT) as u16))
}

/// A [`NodeOf`] that asks another one, and remembers its answers for the pages of one range of addresses: an arena.
///
/// A remembered page costs a load. The owner of the range tells when an answer no longer holds:
/// [`invalidate`](Self::invalidate). The cache asks each time for pages outside the range and for pages without a node.
/// It takes four bytes for each page of the range, for at most 2²⁶ pages; the rest counts as outside.
///
/// ```
/// use memcg::kmem::{NodeCache, NodeId, NodeOf, NodeTable, PageNode};
///
/// let table = NodeTable::new(4_096);
/// table.set(0x10_000..0x20_000, NodeId::new(0));
/// let cache = NodeCache::new(0x10_000..0x20_000, &table);
/// let ask = || {
///     let mut found = [PageNode::Untouched];
///     cache.look_up(&[0x12_000], &mut found);
///     found[0].node().map(NodeId::get)
/// };
/// assert_eq!((ask(), ask(), cache.inner().call_count()), (Some(0), Some(0), 1));
///
/// table.set(0x12_000..0x13_000, NodeId::new(1));     // migrated, and then
/// cache.invalidate(0x12_000..0x13_000);
/// assert_eq!((ask(), ask(), table.call_count()), (Some(1), Some(1), 2));
/// ```
pub struct NodeCache<N> {
    /// Number of the first page.
    first: usize,
    shift: u32,
    words: Box<[AtomicU32]>,
    inner: N,
}

impl<N: NodeOf> NodeCache<N> {
    /// Remembers what `inner` says about the pages that the range touches. If the system has no memory for the words,
    /// the cache remembers nothing.
    #[must_use]
    pub fn new(range: Range<usize>, inner: N) -> Self {
        let shift = page_shift(inner.page_size());
        let (first, count) =
            pages_of(&range, shift).map_or((0, 0), |(first, last)| (first, (last - first).saturating_add(1)));
        let count = count.min(WORDS_MAX);
        let mut words = Vec::new();
        if words.try_reserve_exact(count).is_ok() {
            words.resize_with(count, || AtomicU32::new(EMPTY));
        }
        Self { first, shift, words: words.into_boxed_slice(), inner }
    }

    /// Forgets where the pages lie that the range touches. Later look-ups ask anew, and a look-up that is under way is
    /// not remembered. Costs one exchange for each page.
    ///
    /// Call it after the pages have moved or are gone, and before any thread relies on where they are now.
    pub fn invalidate(&self, range: Range<usize>) {
        let Some((first, last)) = pages_of(&range, self.shift) else { return };
        let Some(end) = last.checked_sub(self.first).map(|last| last.saturating_add(1).min(self.words.len())) else {
            return;
        };
        let begin = first.saturating_sub(self.first);
        for word in self.words.get(begin..end).unwrap_or_default() {
            // Release (E28): a thread that claims the word after this looks where the page is now; pairs with `claim`.
            // A thread that has claimed it before finds the claim void; pairs with `settle`.
            // Mutation: e28-invalidate-only-what-is-known
            // Mutation: e28-two-claims-of-one-word
            // Mutation: e28-invalidate-without-release
            word.fetch_and(CLAIMED, Ordering::Release);
        }
    }

    /// Pages whose nodes the cache remembers now. Reads every word.
    ///
    /// ```
    /// use memcg::kmem::{NodeCache, NodeId, NodeOf, OneNode, PageNode};
    ///
    /// let cache = NodeCache::new(0..1 << 20, OneNode::new(NodeId::new(0)));
    /// cache.look_up(&[0, 1 << 19, 1 << 21], &mut [PageNode::Untouched; 3]);
    /// assert_eq!(cache.known_count(), 2, "the third is none of its pages");
    /// cache.invalidate(0..4_096);
    /// assert_eq!(cache.known_count(), 1);
    /// ```
    #[must_use]
    pub fn known_count(&self) -> usize {
        self.words.iter().filter(|word| known(word.load(Ordering::Relaxed)).is_some()).count()
    }

    /// The `NodeOf` behind the cache.
    #[must_use]
    pub fn inner(&self) -> &N {
        &self.inner
    }

    fn word(&self, address: usize) -> Option<&AtomicU32> {
        // For an address below the first page the difference wraps, and is beyond the last.
        self.words.get((address >> self.shift).wrapping_sub(self.first))
    }

    #[inline]
    fn recall(&self, address: usize) -> Option<NodeId> {
        // Relaxed: the number is all there is to read. After an invalidation that the caller knows of, the word is what
        // that left, or a later one.
        known(self.word(address)?.load(Ordering::Relaxed))
    }

    /// Answers a batch of which `inner` has to tell some.
    #[cold]
    fn ask(&self, pages: &[usize], found: &mut [PageNode]) {
        let mut asked = [0; BATCH];
        let mut places = [0; BATCH];
        let mut fill = Fill { words: [None; BATCH], found: [PageNode::Untouched; BATCH], answered: 0 };
        let mut count = 0;
        for (place, (&page, found)) in pages.iter().zip(&mut *found).enumerate() {
            if let Some(node) = self.recall(page) {
                *found = PageNode::On(node);
                continue;
            }
            fill.words[count] = self.word(page).filter(|word| claim(word));
            (asked[count], places[count]) = (page, place);
            count += 1;
        }
        // The thread holds no lock here. If `inner` panics, `Fill` gives the claims back.
        self.inner.look_up(&asked[..count], &mut fill.found[..count]);
        fill.answered = count;
        for (&place, &answer) in places[..count].iter().zip(&fill.found) {
            found[place] = answer;
        }
    }
}

impl<N: NodeOf> NodeOf for NodeCache<N> {
    fn page_size(&self) -> usize {
        1 << self.shift
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        let count = pages.len().min(found.len());
        for at in 0..count {
            let Some(node) = self.recall(pages[at]) else {
                for (pages, found) in pages[at..count].chunks(BATCH).zip(found[at..count].chunks_mut(BATCH)) {
                    self.ask(pages, found);
                }
                return;
            };
            found[at] = PageNode::On(node);
        }
    }

    fn only_node(&self) -> Option<NodeId> {
        self.inner.only_node()
    }
}

impl<N: fmt::Debug> fmt::Debug for NodeCache<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCache")
            .field("first", &format_args!("{:#x}", self.first << self.shift))
            .field("pages", &self.words.len())
            .field("inner", &self.inner)
            .finish()
    }
}

/// Pages that a thread is looking up. Its drop settles the claims.
struct Fill<'a> {
    /// The word of each page, where this thread has claimed it.
    words: [Option<&'a AtomicU32>; BATCH],
    found: [PageNode; BATCH],
    /// How many answers there are: all or, after a panic, none.
    answered: usize,
}

impl Drop for Fill<'_> {
    fn drop(&mut self) {
        for (at, (word, found)) in self.words.iter().zip(&self.found).enumerate() {
            if let Some(word) = word {
                settle(word, found.node().filter(|_| at < self.answered));
            }
        }
    }
}

/// Claims a word before the look-up. True: the thread may store what it finds.
fn claim(word: &AtomicU32) -> bool {
    // Acquire (E28): after an earlier invalidation this look-up sees that the page has moved; pairs with `invalidate`.
    // Mutation: e28-claim-without-acquire
    word.compare_exchange(EMPTY, FILLING, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Ends the claim after the look-up.
fn settle(word: &AtomicU32, node: Option<NodeId>) {
    let found = node.map_or(EMPTY, |node| u32::from(node.get()) << NODE_SHIFT | VALID);
    // Relaxed (E28): only the word itself says whether it was invalidated since `claim`. The thread writes it by an
    // exchange, so that what `invalidate` has released stays in the word for the next claim.
    // Mutation: e28-fill-lands-after-an-invalidation
    if word.compare_exchange(FILLING, found, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        // Mutation: e28-what-came-too-late-cuts-the-thread
        word.swap(EMPTY, Ordering::Relaxed);
    }
}
