//! Remembers on which node each page of an arena lies, so that a page is asked for once.
//!
//! One word for each page:
//!
//! ```text
//! bit 0   CLAIMED  a look-up is on its way and will store what it finds
//! bit 1   VALID    nothing was invalidated since: by the look-up's beginning, or since the node was stored
//! above            the node, where VALID stands alone
//!
//!             claim             settle                     invalidate (clears all but CLAIMED)
//! EMPTY   00  -> FILLING                                   -> EMPTY
//! FILLING 11                    -> KNOWN, or EMPTY         -> STALE
//! STALE   01                    -> EMPTY: too late         -> STALE
//! KNOWN   10                                               -> EMPTY
//! ```
//!
//! The race to answer: a look-up reads the old node, the page moves and is invalidated, the look-up stores the old node.
//! It does not happen, for two reasons (E28):
//!
//! 1. While a word is claimed only the one who claimed it may end that, and what it stores lands on FILLING alone. An
//!    invalidation in between leaves STALE. Nobody else can have made FILLING of it again, so there is no count that
//!    could come round. Others who ask meanwhile look for themselves and store nothing.
//! 2. Who invalidates has moved the page before. If its exchange of the word comes before the claim's, the look-up sees
//!    the page where it is now; otherwise it finds the claim. Every write to a word is an exchange, even where it
//!    changes nothing: a plain load would leave room for both to miss each other, a plain store would cut the thread from
//!    one invalidation to the next claim.
//!
//! Only nodes are remembered: a page that is untouched may be touched at any time, and nobody would say so.

use std::fmt;
use std::ops::Range;

use super::node_of::{NodeOf, PageNode, page_shift, pages_of};
use super::topology::NodeId;
use crate::sync::{AtomicU32, Ordering};

const EMPTY: u32 = 0b00;
const CLAIMED: u32 = 0b01;
const VALID: u32 = 0b10;
const FILLING: u32 = CLAIMED | VALID;

/// The node stands above the two bits.
const NODE_SHIFT: u32 = 2;

/// Pages that are asked for at once. What is on the way stands on the stack.
const BATCH: usize = 64;

/// Words of one cache: 256 MiB of them, for 256 GiB in pages of 4 KiB.
const WORDS_MAX: usize = 1 << 26;

fn known(word: u32) -> Option<NodeId> {
    (word & FILLING == VALID).then(|| NodeId::new((word >> NODE_SHIFT) as u16))
}

/// A [`NodeOf`] that asks another one, and remembers what it says about the pages of one range of addresses: an arena's.
///
/// A page that is remembered costs a load. Whoever owns the range says when that no longer holds:
/// [`invalidate`](Self::invalidate). Pages outside the range are asked for each time, as are pages without a node.
/// Four bytes for each page of the range; beyond 2²⁶ pages the rest of it is as if outside.
///
/// # Examples
///
/// ```
/// use memcg::{NodeCache, NodeId, NodeOf, NodeTable, PageNode};
///
/// let table = NodeTable::new(4_096);
/// table.set(0x10_000..0x20_000, NodeId::new(0));
/// let cache = NodeCache::new(0x10_000..0x20_000, &table);
/// let ask = || {
///     let mut found = [PageNode::Untouched];
///     cache.look_up(&[0x12_000], &mut found);
///     found[0].node().map(NodeId::get)
/// };
/// assert_eq!((ask(), ask(), table.calls()), (Some(0), Some(0), 1));
///
/// table.set(0x12_000..0x13_000, NodeId::new(1));     // migrated, and then
/// cache.invalidate(0x12_000..0x13_000);
/// assert_eq!((ask(), ask(), table.calls()), (Some(1), Some(1), 2));
/// ```
pub struct NodeCache<N> {
    /// Number of the first page.
    first: usize,
    shift: u32,
    words: Box<[AtomicU32]>,
    inner: N,
}

impl<N: NodeOf> NodeCache<N> {
    /// Remembers what `inner` says about the pages that the range touches. Where the words for them cannot be had,
    /// nothing is remembered.
    ///
    /// ```
    /// use memcg::{NodeCache, NodeId, OneNode};
    ///
    /// let cache = NodeCache::new(0..1 << 20, OneNode::new(NodeId::new(0)));
    /// assert_eq!(cache.known(), 0);
    /// ```
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

    /// Forget where the pages lie that the range touches: what is asked from now on is asked anew, and what others are
    /// asking already is not remembered. One exchange for each page.
    ///
    /// To be called when the pages have moved or are gone, and before anybody relies on where they are now.
    ///
    /// ```
    /// use memcg::{NodeCache, NodeId, NodeOf, OneNode, PageNode};
    ///
    /// let cache = NodeCache::new(0..1 << 20, OneNode::new(NodeId::new(0)));
    /// cache.look_up(&[0], &mut [PageNode::Untouched]);
    /// assert_eq!(cache.known(), 1);
    /// cache.invalidate(0..1 << 20);
    /// assert_eq!(cache.known(), 0);
    /// ```
    pub fn invalidate(&self, range: Range<usize>) {
        let Some((first, last)) = pages_of(&range, self.shift) else { return };
        let Some(end) = last.checked_sub(self.first).map(|last| last.saturating_add(1).min(self.words.len())) else {
            return;
        };
        let begin = first.saturating_sub(self.first);
        for word in self.words.get(begin..end).unwrap_or_default() {
            // Release (E28): whoever claims the word after this finds the page where it is now; pairs with `claim`.
            // Whoever has claimed it before finds that it did so in vain; pairs with `settle`.
            word.fetch_and(CLAIMED, Ordering::Release);
        }
    }

    /// Pages whose nodes are remembered at the moment. Reads every word.
    ///
    /// ```
    /// use memcg::{NodeCache, NodeId, NodeOf, OneNode, PageNode};
    ///
    /// let cache = NodeCache::new(0..1 << 20, OneNode::new(NodeId::new(0)));
    /// cache.look_up(&[0, 1 << 19, 1 << 21], &mut [PageNode::Untouched; 3]);
    /// assert_eq!(cache.known(), 2, "the third is none of its pages");
    /// ```
    #[must_use]
    pub fn known(&self) -> usize {
        self.words.iter().filter(|word| known(word.load(Ordering::Relaxed)).is_some()).count()
    }

    /// Who is asked for what is not remembered.
    ///
    /// ```
    /// use memcg::{NodeCache, NodeId, OneNode};
    ///
    /// let cache = NodeCache::new(0..1 << 20, OneNode::new(NodeId::new(0)));
    /// assert_eq!(cache.inner().node(), NodeId::new(0));
    /// ```
    #[must_use]
    pub fn inner(&self) -> &N {
        &self.inner
    }

    fn word(&self, address: usize) -> Option<&AtomicU32> {
        // Below the first the difference wraps, and is beyond the last.
        self.words.get((address >> self.shift).wrapping_sub(self.first))
    }

    #[inline]
    fn recall(&self, address: usize) -> Option<NodeId> {
        // Relaxed: the number is all there is to read. After an invalidation that the caller knows of, the word is what
        // that left or a later one.
        known(self.word(address)?.load(Ordering::Relaxed))
    }

    /// Answers a batch, some of which has to be asked for.
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
        // No lock is held. If it panics, the claims are given back.
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

/// Pages on their way to be asked for. Dropped, it settles what it has claimed.
struct Fill<'a> {
    /// The word of each, where it was claimed.
    words: [Option<&'a AtomicU32>; BATCH],
    found: [PageNode; BATCH],
    /// How many were answered: all or, after a panic, none.
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

/// Before the look-up. True: what it finds may be stored.
fn claim(word: &AtomicU32) -> bool {
    // Acquire (E28): an invalidation that came before has its page moved before this look-up; pairs with `invalidate`.
    word.compare_exchange(EMPTY, FILLING, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// After it.
fn settle(word: &AtomicU32, node: Option<NodeId>) {
    let found = node.map_or(EMPTY, |node| u32::from(node.get()) << NODE_SHIFT | VALID);
    // Relaxed (E28): only the word itself says whether it was invalidated since `claim`; an exchange, so that what
    // `invalidate` has released stays in the word for the next claim.
    if word.compare_exchange(FILLING, found, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        word.swap(EMPTY, Ordering::Relaxed);
    }
}
