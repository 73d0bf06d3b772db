//! `Weigh`: how many bytes of the heap a value holds.
//!
//! What counts is the block that an allocator has handed out, never the items in it: a capacity, not
//! a length; the buckets of a table, not its entries; the nodes of a tree, full or not. The sizes of
//! those blocks follow the layout of the standard library's collections, which is not promised, so
//! `tests/allocator_weights.rs` holds each of them against an allocator that counts.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::{NonZero, Wrapping};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::rc::{self, Rc};
use std::sync::{self, Arc};
use std::time::{Duration, Instant, SystemTime};

/// Says how much heap is behind a value. [`Charged::weighed`](crate::Charged::weighed) charges that
/// in addition to the value's own size, and so does the channel of `memcg-tokio`.
///
/// A program that charges by hand adds both: `size_of_val(&value) + value.heap_bytes()`. The size
/// of the value itself is not part of its weight, because the value lies in something else that
/// counts it: a vector, a table, another value.
///
/// A block counts as it was allocated. A vector weighs its capacity, not its length, and what its
/// items hold; a hash table weighs its buckets; a tree weighs its nodes, which are found by a look
/// at each key. Bytes that an allocator adds to a block are not counted. Weighing a collection
/// takes a look at each item, unless its items hold nothing.
///
/// A reference, an [`Arc`] or an [`Rc`] weighs nothing, because others may share its value. The
/// type that owns the value counts it: two counts, the value, and what the value holds, `2 *
/// size_of::<usize>() + size_of_val(&*shared) + shared.as_ref().heap_bytes()`. `#[weigh(owned)]`
/// adds that.
///
/// # Hash tables that were thinned out
///
/// A table of the standard library shows its size by [`capacity`](HashMap::capacity) alone, and
/// removals lower that although the table stays as large as it was, in the worst case down to the
/// number of entries that are left. So the weight of a table is right while it grows, after `clear`
/// and after `shrink_to_fit`, and too low once entries have been removed.
/// [`Charged`](crate::Charged) makes up for that by keeping the largest table that it has seen. A
/// table that was thinned out before it is first weighed goes unnoticed: shrink it first, with
/// [`shrink_heap`](Self::shrink_heap). For an implementation of your own,
/// `HashMap::allocation_size` of the crate `hashbrown` is always right.
///
/// # Implementations
///
/// With the feature `derive`, `#[derive(Weigh)]` adds up the weights of all fields. A field with
/// `#[weigh(skip)]` counts as nothing, and its type need not implement `Weigh`. An implementation
/// by hand goes through the same fields in all three methods:
///
/// ```
/// use memcg::Weigh;
/// use std::collections::HashMap;
///
/// struct Rows { name: String, cells: HashMap<u32, Vec<u8>> }
///
/// impl Weigh for Rows {
///     fn heap_bytes(&self) -> usize {
///         self.name.heap_bytes() + self.cells.heap_bytes()
///     }
///     fn table_bytes(&self) -> usize {
///         self.cells.table_bytes() // `name` has no table
///     }
///     fn shrink_heap(&mut self) {
///         self.name.shrink_heap();
///         self.cells.shrink_heap();
///     }
/// }
///
/// let mut rows = Rows { name: String::with_capacity(100), cells: HashMap::new() };
/// assert_eq!(rows.heap_bytes(), 100);
/// rows.shrink_heap();
/// assert_eq!(rows.heap_bytes(), 0);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what it weighs",
    note = "add `#[derive(memcg::Weigh)]`, of the feature `derive`, or implement `memcg::Weigh` for it",
    note = "in a type that derives `Weigh`, `#[weigh(skip)]` on the field counts it as nothing"
)]
pub trait Weigh {
    /// True if no value of the type holds any heap: [`heap_bytes`](Self::heap_bytes) is always 0,
    /// and collections do not call it for each item.
    const HOLDS_NOTHING: bool = false;

    /// Returns the bytes of the heap that the value holds, without its own size.
    fn heap_bytes(&self) -> usize;

    /// Returns how many of [`heap_bytes`](Self::heap_bytes) are hash tables of the standard
    /// library, which seem smaller than they are once they have been thinned out. The default is 0.
    fn table_bytes(&self) -> usize {
        0
    }

    /// Frees what the value and its items have allocated and do not need, by the `shrink_to_fit` of
    /// each collection that has one. Afterwards the weight of each table is right. Keys of maps,
    /// items of sets and what is shared stay as they are. The default does nothing.
    fn shrink_heap(&mut self) {}
}

/// The weights of all items together.
fn sum<'a, T: Weigh + 'a>(items: impl IntoIterator<Item = &'a T>) -> usize {
    sum_of(items, T::heap_bytes)
}

/// The tables of all items together.
fn tables<'a, T: Weigh + 'a>(items: impl IntoIterator<Item = &'a T>) -> usize {
    sum_of(items, T::table_bytes)
}

fn sum_of<'a, T: Weigh + 'a>(
    items: impl IntoIterator<Item = &'a T>,
    bytes: fn(&T) -> usize,
) -> usize {
    if T::HOLDS_NOTHING {
        return 0;
    }
    items
        .into_iter()
        .fold(0, |sum, item| sum.saturating_add(bytes(item)))
}

fn shrink_each<'a, T: Weigh + 'a>(items: impl IntoIterator<Item = &'a mut T>) {
    if !T::HOLDS_NOTHING {
        items.into_iter().for_each(T::shrink_heap);
    }
}

macro_rules! hold_nothing {
    ($($type:ty),* $(,)?) => {$(
        impl Weigh for $type {
            const HOLDS_NOTHING: bool = true;

            fn heap_bytes(&self) -> usize {
                0
            }
        }
    )*};
}

hold_nothing!(
    (),
    bool,
    char,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    i128,
    isize,
    u8,
    u16,
    u32,
    u64,
    u128,
    usize
);
hold_nothing!(
    Duration,
    Instant,
    SystemTime,
    IpAddr,
    Ipv4Addr,
    Ipv6Addr,
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6
);
hold_nothing!(
    NonZero<i8>,
    NonZero<i16>,
    NonZero<i32>,
    NonZero<i64>,
    NonZero<i128>,
    NonZero<isize>,
    NonZero<u8>,
    NonZero<u16>,
    NonZero<u32>,
    NonZero<u64>,
    NonZero<u128>,
    NonZero<usize>,
    Ordering
);
// Behind a `Box` they are the block, which the box counts.
hold_nothing!(str, OsStr, CStr, Path);

macro_rules! hold_nothing_of {
    ($($type:ty),*) => {$(
        impl<T: ?Sized> Weigh for $type {
            const HOLDS_NOTHING: bool = true;

            fn heap_bytes(&self) -> usize {
                0
            }
        }
    )*};
}

// The owner counts a shared or borrowed value, and a value that lives as long as the program
// belongs to none.
hold_nothing_of!(
    Arc<T>,
    Rc<T>,
    sync::Weak<T>,
    rc::Weak<T>,
    &T,
    &mut T,
    PhantomData<T>
);

/// A value that holds others in place: the weight of each.
macro_rules! in_place {
    ($([$($generics:tt)*] $type:ty, |$this:ident| $items:expr, $items_mut:expr;)*) => {$(
        impl<$($generics)*> Weigh for $type {
            const HOLDS_NOTHING: bool = T::HOLDS_NOTHING;

            fn heap_bytes(&self) -> usize {
                let $this = self;
                sum($items)
            }

            fn table_bytes(&self) -> usize {
                let $this = self;
                tables($items)
            }

            fn shrink_heap(&mut self) {
                let $this = self;
                shrink_each($items_mut);
            }
        }
    )*};
}

in_place! {
    [T: Weigh, const N: usize] [T; N], |this| this, this;
    [T: Weigh] [T], |this| this, this;
    [T: Weigh] Option<T>, |this| this, this;
    [T: Weigh] Reverse<T>, |this| [&this.0], [&mut this.0];
    [T: Weigh] Wrapping<T>, |this| [&this.0], [&mut this.0];
    [T: Weigh + Copy] Cell<T>, |this| [&this.get()], [this.get_mut()];
    // Panics where the value is borrowed mutably, as `borrow` does.
    [T: Weigh] RefCell<T>, |this| [&*this.borrow()], [this.get_mut()];
}

impl<T: Weigh, E: Weigh> Weigh for Result<T, E> {
    const HOLDS_NOTHING: bool = T::HOLDS_NOTHING && E::HOLDS_NOTHING;

    fn heap_bytes(&self) -> usize {
        self.as_ref().map_or_else(E::heap_bytes, T::heap_bytes)
    }

    fn table_bytes(&self) -> usize {
        self.as_ref().map_or_else(E::table_bytes, T::table_bytes)
    }

    fn shrink_heap(&mut self) {
        self.as_mut().map_or_else(E::shrink_heap, T::shrink_heap);
    }
}

impl<T: ToOwned<Owned: Weigh> + ?Sized> Weigh for Cow<'_, T> {
    fn heap_bytes(&self) -> usize {
        match self {
            Cow::Borrowed(_) => 0,
            Cow::Owned(owned) => owned.heap_bytes(),
        }
    }

    fn table_bytes(&self) -> usize {
        match self {
            Cow::Borrowed(_) => 0,
            Cow::Owned(owned) => owned.table_bytes(),
        }
    }

    fn shrink_heap(&mut self) {
        if let Cow::Owned(owned) = self {
            owned.shrink_heap();
        }
    }
}

macro_rules! tuples {
    ($(($($name:ident $at:tt)+))*) => {$(
        impl<$($name: Weigh),+> Weigh for ($($name,)+) {
            const HOLDS_NOTHING: bool = $($name::HOLDS_NOTHING)&&+;

            fn heap_bytes(&self) -> usize {
                0_usize$(.saturating_add(self.$at.heap_bytes()))+
            }

            fn table_bytes(&self) -> usize {
                0_usize$(.saturating_add(self.$at.table_bytes()))+
            }

            fn shrink_heap(&mut self) {
                $(self.$at.shrink_heap();)+
            }
        }
    )*};
}

tuples!(
    (A 0)
    (A 0 B 1)
    (A 0 B 1 C 2)
    (A 0 B 1 C 2 D 3)
    (A 0 B 1 C 2 D 3 E 4)
    (A 0 B 1 C 2 D 3 E 4 F 5)
);

impl<T: Weigh + ?Sized> Weigh for Box<T> {
    fn heap_bytes(&self) -> usize {
        size_of_val::<T>(self).saturating_add(T::heap_bytes(self))
    }

    fn table_bytes(&self) -> usize {
        T::table_bytes(self)
    }

    fn shrink_heap(&mut self) {
        T::shrink_heap(self);
    }
}

macro_rules! text {
    ($($type:ty),*) => {$(
        impl Weigh for $type {
            fn heap_bytes(&self) -> usize {
                self.capacity()
            }

            fn shrink_heap(&mut self) {
                self.shrink_to_fit();
            }
        }
    )*};
}

text!(String, OsString, PathBuf);

/// Its block is as long as the text and the zero behind it.
impl Weigh for CString {
    fn heap_bytes(&self) -> usize {
        self.as_bytes_with_nul().len()
    }
}

macro_rules! one_block {
    ($($type:ident, $shrink_items:expr;)*) => {$(
        impl<T: Weigh> Weigh for $type<T> {
            fn heap_bytes(&self) -> usize {
                slots::<T>(self.capacity()).saturating_add(sum(self))
            }

            fn table_bytes(&self) -> usize {
                tables(self)
            }

            fn shrink_heap(&mut self) {
                let shrink_items: fn(&mut Self) = $shrink_items;
                shrink_items(self);
                self.shrink_to_fit();
            }
        }
    )*};
}

one_block! {
    Vec, |items| shrink_each(items);
    VecDeque, |items| shrink_each(items);
    // Their order may depend on what they hold.
    BinaryHeap, |_| ();
}

fn slots<T>(capacity: usize) -> usize {
    if size_of::<T>() == 0 {
        0
    } else {
        capacity.saturating_mul(size_of::<T>())
    }
}

/// A node for each item.
impl<T: Weigh> Weigh for LinkedList<T> {
    fn heap_bytes(&self) -> usize {
        slots::<([*const (); 2], T)>(self.len()).saturating_add(sum(self))
    }

    fn table_bytes(&self) -> usize {
        tables(self)
    }

    fn shrink_heap(&mut self) {
        shrink_each(self);
    }
}

/// Bytes behind the last bucket of a table of the standard library: one group of control bytes,
/// which a look reads at once. It has 16 bytes with SSE2, else 8.
const TABLE_GROUP: usize = if cfg!(all(target_feature = "sse2", not(miri))) {
    16
} else {
    8
};

/// The buckets that the standard library makes for so many entries, each of so many bytes: a power
/// of two, of which an eighth stays free. A thinned table has a capacity in between, and more
/// buckets than these unless it has just been shrunk.
fn buckets(capacity: usize, size: usize) -> usize {
    let least = match (TABLE_GROUP, size) {
        (16, 0..=1) => 14,
        (16, 2..=3) | (8, 0..=1) => 7,
        _ => 3,
    };
    match capacity {
        0 => 0,
        1..15 => (capacity.max(least) + 1).next_power_of_two().clamp(4, 16),
        _ => (capacity.saturating_mul(8) / 7)
            .checked_next_power_of_two()
            .unwrap_or(usize::MAX),
    }
}

/// The block of a table for so many entries: they come first, and then a control byte for each
/// bucket.
fn table<T>(capacity: usize) -> usize {
    let buckets = buckets(capacity, size_of::<T>());
    if buckets == 0 {
        return 0;
    }
    let entries = buckets
        .saturating_mul(size_of::<T>())
        .checked_next_multiple_of(align_of::<T>().max(TABLE_GROUP))
        .unwrap_or(usize::MAX);
    entries.saturating_add(buckets).saturating_add(TABLE_GROUP)
}

impl<K: Weigh + Eq + Hash, V: Weigh, S: BuildHasher> Weigh for HashMap<K, V, S> {
    fn heap_bytes(&self) -> usize {
        table::<(K, V)>(self.capacity())
            .saturating_add(sum(self.keys()))
            .saturating_add(sum(self.values()))
    }

    fn table_bytes(&self) -> usize {
        table::<(K, V)>(self.capacity())
            .saturating_add(tables(self.keys()))
            .saturating_add(tables(self.values()))
    }

    fn shrink_heap(&mut self) {
        shrink_each(self.values_mut());
        self.shrink_to_fit();
    }
}

impl<T: Weigh + Eq + Hash, S: BuildHasher> Weigh for HashSet<T, S> {
    fn heap_bytes(&self) -> usize {
        table::<T>(self.capacity()).saturating_add(sum(self))
    }

    fn table_bytes(&self) -> usize {
        table::<T>(self.capacity()).saturating_add(tables(self))
    }

    fn shrink_heap(&mut self) {
        self.shrink_to_fit();
    }
}

/// The most entries of a tree's node.
const NODE: usize = 11;

/// A node without children, as the standard library declares it. Its size is what counts.
#[allow(dead_code, reason = "no value is made of it")]
struct LeafNode<K, V> {
    parent: Option<NonNull<()>>,
    parent_idx: u16,
    len: u16,
    keys: [MaybeUninit<K>; NODE],
    vals: [MaybeUninit<V>; NODE],
}

/// A node with children.
#[repr(C)]
#[allow(dead_code, reason = "no value is made of it")]
struct InternalNode<K, V> {
    data: LeafNode<K, V>,
    edges: [Option<NonNull<()>>; NODE + 1],
}

/// The most levels of a tree: each node but the root has six children or more.
const LEVELS: usize = 26;

/// Counts the nodes of a tree, those without children and those with.
///
/// From the number of entries alone no such figure follows: nodes are between a half full and full,
/// by the order in which keys came. But the keys of one node lie side by side. A walk in order sees
/// the keys of a leaf, then one key of a node above it, then those of the next leaf. A key of a node
/// above either follows the last one seen of that node, or is the first of its node.
fn count_nodes<'a, K: 'a>(keys: impl ExactSizeIterator<Item = &'a K>) -> (usize, usize) {
    let entries = keys.len();
    // Two half full leaves and a root above them have 11 entries or more.
    if entries < NODE {
        return (usize::from(entries > 0), 0);
    }
    if size_of::<K>() == 0 {
        // Keys without an address of their own, as many as `Ord` lets in: all nodes as empty as
        // they may be.
        return (entries.div_ceil(6), entries.div_ceil(36));
    }
    let (mut leaves, mut internals) = (0, 0);
    // Keys seen of the present leaf, and where its next one would be. No leaf: the last key was of
    // a node above.
    let mut leaf: Option<(usize, usize)> = None;
    // Where the next key of the present node of each level would be, lowest level first.
    let mut next: [Option<usize>; LEVELS] = [None; LEVELS];
    // Levels below that of the last key of a node above: those nodes begin anew.
    let mut begins = true;
    for at in keys.map(|key| ptr::from_ref(key).addr()) {
        let behind = Some(at.wrapping_add(size_of::<K>()));
        match leaf {
            None => {
                leaves += 1;
                leaf = behind.map(|behind| (1, behind));
            }
            Some((seen, expected)) if expected == at && seen < NODE => {
                leaf = behind.map(|behind| (seen + 1, behind));
            }
            Some(_) => {
                leaf = None;
                let follows = next.iter().position(|&expected| expected == Some(at));
                let level = match follows {
                    _ if begins => 0,
                    Some(level) => level,
                    // The nodes below are over, so this is the first key of one above them.
                    None => next.iter().position(Option::is_none).unwrap_or(LEVELS - 1),
                };
                internals += usize::from(begins || follows.is_none());
                next[..level].fill(None);
                next[level] = behind;
                begins = level > 0;
            }
        }
    }
    (leaves, internals)
}

fn nodes<'a, K: 'a, V>(keys: impl ExactSizeIterator<Item = &'a K>) -> usize {
    let (leaves, internals) = count_nodes(keys);
    let leaves = leaves.saturating_mul(size_of::<LeafNode<K, V>>());
    leaves.saturating_add(internals.saturating_mul(size_of::<InternalNode<K, V>>()))
}

/// The nodes, counted by a look at each key, and what keys and values hold. An empty tree weighs
/// nothing, although one whose last entry was removed may keep a node.
impl<K: Weigh, V: Weigh> Weigh for BTreeMap<K, V> {
    fn heap_bytes(&self) -> usize {
        nodes::<K, V>(self.keys())
            .saturating_add(sum(self.keys()))
            .saturating_add(sum(self.values()))
    }

    fn table_bytes(&self) -> usize {
        tables(self.keys()).saturating_add(tables(self.values()))
    }

    fn shrink_heap(&mut self) {
        shrink_each(self.values_mut());
    }
}

/// As a [`BTreeMap`] without values.
impl<T: Weigh> Weigh for BTreeSet<T> {
    fn heap_bytes(&self) -> usize {
        nodes::<T, ()>(self.iter()).saturating_add(sum(self))
    }

    fn table_bytes(&self) -> usize {
        tables(self)
    }
}

/// The bytes that the value shows, for it tells of no others. A short slice of a long buffer keeps
/// all of the buffer, and so does what [`Buf::advance`](bytes::Buf::advance) and
/// [`split_off`](bytes::Bytes::split_off) leave: copy such a rest before it is charged, with
/// [`copy_from_slice`](bytes::Bytes::copy_from_slice). Clones weigh the same each, and share one
/// buffer; where they are charged apart, a [`Charged`](crate::Charged) buffer as the owner
/// (`Bytes::from_owner`) is charged once. Of the block's bookkeeping, 24 bytes or so, nothing
/// counts.
#[cfg(feature = "bytes")]
impl Weigh for bytes::Bytes {
    fn heap_bytes(&self) -> usize {
        self.len()
    }
}

/// The capacity, for the value tells of no more. After [`Buf::advance`](bytes::Buf::advance),
/// [`split_to`](bytes::BytesMut::split_to) and [`split_off`](bytes::BytesMut::split_off) that is a
/// part of a block of which each part keeps all. So charge the buffer before it is split, and keep
/// the charge as long as any part lives; or copy a short rest: `BytesMut::from(&rest[..])`.
#[cfg(feature = "bytes")]
impl Weigh for bytes::BytesMut {
    fn heap_bytes(&self) -> usize {
        self.capacity()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Sums by hand; `tests/allocator_weights.rs` compares weights with what an allocator has handed
    /// out.
    #[test]
    fn each_form_weighs_its_items() {
        let text = || String::from("abc");
        assert_eq!(
            [Cow::Borrowed("abc"), Cow::Owned(text())].map(|text| text.heap_bytes()),
            [0, 3]
        );
        assert_eq!([text(), text()][..].heap_bytes(), 6);
        assert_eq!(
            (Cell::new(1).heap_bytes(), RefCell::new(text()).heap_bytes()),
            (0, 3)
        );
        assert_eq!(
            [Ok(text()), Err(())].map(|either| either.heap_bytes()),
            [3, 0]
        );
        assert_eq!((Reverse(text()), Some(text()), 1).heap_bytes(), 6);
    }

    /// Whatever holds tables counts them, and shrinks them.
    #[test]
    fn tables_are_found_wherever_they_are() {
        fn thin() -> HashMap<u64, String> {
            let mut thin = (0..100)
                .map(|key| (key, String::new()))
                .collect::<HashMap<_, _>>();
            thin.retain(|&key, _| key == 7);
            thin
        }
        fn assert_found<T: Weigh>(mut value: T) {
            let all = table::<(u64, String)>(112);
            let shrunk = table::<(u64, String)>(1);
            let rest = value.heap_bytes() - value.table_bytes();
            assert!(
                shrunk < value.table_bytes() && value.table_bytes() <= all,
                "{}",
                std::any::type_name::<T>()
            );
            value.shrink_heap();
            assert_eq!(value.table_bytes(), shrunk);
            assert!(value.heap_bytes() - value.table_bytes() <= rest);
        }
        assert_found(thin());
        assert_found(Box::new(thin()));
        assert_found(vec![thin()]);
        assert_found(VecDeque::from([thin()]));
        assert_found(LinkedList::from([thin()]));
        assert_found([thin()]);
        assert_found(vec![thin()].into_boxed_slice());
        assert_found((1, thin()));
        assert_found(Some(thin()));
        assert_found(RefCell::new(thin()));
        assert_found(BTreeMap::from([(1, thin())]));
        assert_found(Ok::<_, ()>(thin()));
        assert_found(Err::<(), _>(thin()));
        assert_found(Reverse(thin()));
    }
}
