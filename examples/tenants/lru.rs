//! A map that knows which entry was used longest ago, and what it costs to keep one.
//!
//! Entries lie in pages of a fixed size and stay where they are: to grow is another page, never a
//! copy. A chained hash table of indices leads to them, a doubly linked list of indices keeps their
//! order. Hash maps with open addressing are faster, but what an entry costs in one depends on how
//! often keys came and went: by up to a factor of four.

use super::entry::scramble;

/// Entries in a page.
const PAGE: usize = 256;

/// End of a chain, and of the list.
const NONE: u32 = u32::MAX;

/// The key of an entry: several owners may lie in one map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) owner: u32,
    pub(crate) number: u64,
}

/// Entries by key, in the order of their last use.
pub(crate) struct LruMap<V> {
    pages: Vec<Vec<Node<V>>>,
    /// The first entry of each bucket; as many as a power of two, and never fewer than entries.
    buckets: Vec<u32>,
    len: usize,
    /// First of the nodes without a value, linked by `chain`.
    vacant: u32,
    newest: u32,
    oldest: u32,
}

/// The key stands in its parts, which leaves no hole between the words.
struct Node<V> {
    number: u64,
    /// `None` while the node is vacant.
    value: Option<V>,
    owner: u32,
    /// The next of the same bucket.
    chain: u32,
    newer: u32,
    older: u32,
}

impl<V> Node<V> {
    fn key(&self) -> Key {
        Key { owner: self.owner, number: self.number }
    }
}

impl<V> LruMap<V> {
    /// Bytes for one entry, its value included: a node, and 1 to 2 buckets.
    pub(crate) const COST: usize = size_of::<Node<V>>() + size_of::<u32>() * 3 / 2;

    pub(crate) fn new() -> Self {
        Self { pages: Vec::new(), buckets: vec![NONE], len: 0, vacant: NONE, newest: NONE, oldest: NONE }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &V)> {
        self.pages.iter().flatten().filter_map(|node| Some((node.key(), node.value.as_ref()?)))
    }

    /// The value of a key, which is now the one used last.
    pub(crate) fn get(&mut self, key: Key) -> Option<&V> {
        let at = self.find(key)?;
        self.unlink(at);
        self.link(at);
        self.node(at).value.as_ref()
    }

    /// Puts a value under a key that has none.
    pub(crate) fn put(&mut self, key: Key, value: V) {
        debug_assert!(self.find(key).is_none(), "{key:?} has a value already");
        if self.len == self.buckets.len() {
            self.widen();
        }
        let at = self.vacancy();
        let bucket = self.bucket(key);
        let chain = std::mem::replace(&mut self.buckets[bucket], at);
        let Key { owner, number } = key;
        *self.node_mut(at) = Node { number, value: Some(value), owner, chain, newer: NONE, older: NONE };
        self.link(at);
        self.len += 1;
    }

    pub(crate) fn pop(&mut self, key: Key) -> Option<V> {
        let at = self.find(key)?;
        self.take(at)
    }

    /// Takes the value that was used longest ago.
    pub(crate) fn pop_oldest(&mut self) -> Option<(Key, V)> {
        if self.oldest == NONE {
            return None;
        }
        let key = self.node(self.oldest).key();
        self.take(self.oldest).map(|value| (key, value))
    }

    fn take(&mut self, at: u32) -> Option<V> {
        self.unlink(at);
        let bucket = self.bucket(self.node(at).key());
        let next = self.node(at).chain;
        if self.buckets[bucket] == at {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket];
            while self.node(before).chain != at {
                before = self.node(before).chain;
            }
            self.node_mut(before).chain = next;
        }
        self.len -= 1;
        self.node_mut(at).chain = self.vacant;
        self.vacant = at;
        self.node_mut(at).value.take()
    }

    fn find(&self, key: Key) -> Option<u32> {
        let mut at = self.buckets[self.bucket(key)];
        while at != NONE && self.node(at).key() != key {
            at = self.node(at).chain;
        }
        (at != NONE).then_some(at)
    }

    fn bucket(&self, key: Key) -> usize {
        scramble(key.number, key.owner.into()) as usize & (self.buckets.len() - 1)
    }

    /// Twice as many buckets.
    fn widen(&mut self) {
        self.buckets = vec![NONE; self.buckets.len() * 2];
        let mut at = self.oldest;
        while at != NONE {
            let bucket = self.bucket(self.node(at).key());
            let chain = std::mem::replace(&mut self.buckets[bucket], at);
            self.node_mut(at).chain = chain;
            at = self.node(at).newer;
        }
    }

    /// A node without a value, off the list of those.
    fn vacancy(&mut self) -> u32 {
        if self.vacant != NONE {
            let at = self.vacant;
            self.vacant = self.node(at).chain;
            return at;
        }
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let before = (self.pages.len() - 1) * PAGE;
        let page = self.pages.last_mut().expect("one was pushed");
        page.push(Node { number: 0, value: None, owner: 0, chain: NONE, newer: NONE, older: NONE });
        // Four billion entries at 60 bytes and more: memory ends first.
        (before + page.len() - 1) as u32
    }

    /// Makes it the newest.
    fn link(&mut self, at: u32) {
        let newest = std::mem::replace(&mut self.newest, at);
        let node = self.node_mut(at);
        (node.newer, node.older) = (NONE, newest);
        match newest {
            NONE => self.oldest = at,
            newest => self.node_mut(newest).newer = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let (newer, older) = (self.node(at).newer, self.node(at).older);
        match newer {
            NONE => self.newest = older,
            newer => self.node_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.node_mut(older).newer = newer,
        }
    }

    fn node(&self, at: u32) -> &Node<V> {
        &self.pages[at as usize / PAGE][at as usize % PAGE]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node<V> {
        &mut self.pages[at as usize / PAGE][at as usize % PAGE]
    }
}
