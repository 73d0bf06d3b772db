//! `Weigh`: how many bytes a value holds.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::path::{Path, PathBuf};
use std::rc::{self, Rc};
use std::sync::{self, Arc};
use std::time::{Duration, Instant, SystemTime};

/// The bytes that a value holds outside of itself: [`Charged::weighed`](crate::Charged::weighed)
/// and the channel of `memcg-tokio` charge them.
///
/// A vector weighs its capacity, not its length, and what its items hold. A hash table weighs its
/// buckets, as the standard library allocates them; a tree of the standard library weighs its
/// entries and a third of that for half full nodes. Bytes that an allocator adds to a block are no
/// part of any weight. To weigh items that hold something takes a look at each.
///
/// A reference, an [`Arc`] or an [`Rc`] weighs nothing, because others may have the same value. Its
/// one owner counts it: `size_of::<T>() + shared.as_ref().weigh()`, which `#[weigh(owned)]` adds.
///
/// With the feature `derive`, `#[derive(Weigh)]` adds the weights of all fields. A field with
/// `#[weigh(skip)]` counts as nothing, and its type need not be `Weigh`.
///
/// ```
/// use memcg::Weigh;
///
/// struct Row { key: String, cells: Vec<Vec<u8>> }
///
/// impl Weigh for Row {
///     fn weigh(&self) -> usize {
///         self.key.weigh() + self.cells.weigh()
///     }
/// }
///
/// let row = Row { key: String::with_capacity(100), cells: Vec::new() };
/// assert_eq!(row.weigh(), 100);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what it weighs",
    note = "add `#[derive(memcg::Weigh)]`, of the feature `derive`, or implement `memcg::Weigh` for it",
    note = "in a type that derives `Weigh`, `#[weigh(skip)]` on the field counts it as nothing"
)]
pub trait Weigh {
    /// No value of the type holds anything, so that [`weigh`](Self::weigh) is 0 and need not be
    /// called for each item.
    const HOLDS_NOTHING: bool = false;

    /// Returns the bytes that the value holds, without its own size.
    fn weigh(&self) -> usize;
}

/// The weights of all items together.
fn sum<'a, T: Weigh + 'a>(items: impl IntoIterator<Item = &'a T>) -> usize {
    if T::HOLDS_NOTHING {
        return 0;
    }
    items
        .into_iter()
        .fold(0, |sum, item| sum.saturating_add(item.weigh()))
}

macro_rules! hold_nothing {
    ($($type:ty),* $(,)?) => {$(
        impl Weigh for $type {
            const HOLDS_NOTHING: bool = true;

            fn weigh(&self) -> usize {
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

macro_rules! shared_holds_nothing {
    ($($type:ty),*) => {$(
        impl<T: ?Sized> Weigh for $type {
            const HOLDS_NOTHING: bool = true;

            fn weigh(&self) -> usize {
                0
            }
        }
    )*};
}

// The owner counts a shared or borrowed value, and a value that lives as long as the program
// belongs to none.
shared_holds_nothing!(
    Arc<T>,
    Rc<T>,
    sync::Weak<T>,
    rc::Weak<T>,
    &T,
    &mut T,
    PhantomData<T>
);

impl<T: Weigh, const N: usize> Weigh for [T; N] {
    const HOLDS_NOTHING: bool = T::HOLDS_NOTHING;

    fn weigh(&self) -> usize {
        sum(self)
    }
}

impl<T: Weigh> Weigh for [T] {
    const HOLDS_NOTHING: bool = T::HOLDS_NOTHING;

    fn weigh(&self) -> usize {
        sum(self)
    }
}

macro_rules! text {
    ($($type:ty),*) => {$(
        impl Weigh for $type {
            fn weigh(&self) -> usize {
                self.capacity()
            }
        }
    )*};
}

hold_nothing!(str, OsStr, Path);
text!(String, OsString, PathBuf);

impl<T: Weigh + ?Sized> Weigh for Box<T> {
    fn weigh(&self) -> usize {
        size_of_val::<T>(self).saturating_add(T::weigh(self))
    }
}

macro_rules! one_block {
    ($($type:ident),*) => {$(
        impl<T: Weigh> Weigh for $type<T> {
            fn weigh(&self) -> usize {
                slots::<T>(self.capacity()).saturating_add(sum(self))
            }
        }
    )*};
}

one_block!(Vec, VecDeque, BinaryHeap);

fn slots<T>(capacity: usize) -> usize {
    if size_of::<T>() == 0 {
        0
    } else {
        capacity.saturating_mul(size_of::<T>())
    }
}

/// Bytes behind the last bucket of a table of the standard library: one group of control bytes,
/// which a look reads at once. It has 16 bytes with SSE2, else 8.
const TABLE_GROUP: usize = if cfg!(target_feature = "sse2") { 16 } else { 8 };

/// The block of a table for so many entries of that size: a power of two of buckets, of which an
/// eighth stays free, with a control byte for each.
fn table(capacity: usize, size: usize, align: usize) -> usize {
    let buckets = match capacity {
        0 => return 0,
        1..8 => capacity + 1,
        _ => capacity / 7 * 8,
    };
    let entries = buckets.saturating_mul(size);
    let control = entries
        .checked_next_multiple_of(align.max(TABLE_GROUP))
        .unwrap_or(usize::MAX);
    control.saturating_add(buckets + TABLE_GROUP)
}

impl<K: Weigh, V: Weigh, S> Weigh for HashMap<K, V, S> {
    fn weigh(&self) -> usize {
        let table = table(self.capacity(), size_of::<(K, V)>(), align_of::<(K, V)>());
        table
            .saturating_add(sum(self.keys()))
            .saturating_add(sum(self.values()))
    }
}

impl<T: Weigh, S> Weigh for HashSet<T, S> {
    fn weigh(&self) -> usize {
        table(self.capacity(), size_of::<T>(), align_of::<T>()).saturating_add(sum(self))
    }
}

/// The nodes of a tree: 11 entries each, of which splits leave 6 to 11. An estimate.
fn nodes(entries: usize, size: usize) -> usize {
    let entries = entries.saturating_mul(size);
    entries.saturating_add(entries / 3)
}

impl<K: Weigh, V: Weigh> Weigh for BTreeMap<K, V> {
    fn weigh(&self) -> usize {
        nodes(self.len(), size_of::<(K, V)>())
            .saturating_add(sum(self.keys()))
            .saturating_add(sum(self.values()))
    }
}

impl<T: Weigh> Weigh for BTreeSet<T> {
    fn weigh(&self) -> usize {
        nodes(self.len(), size_of::<T>()).saturating_add(sum(self))
    }
}

impl<T: Weigh> Weigh for Option<T> {
    const HOLDS_NOTHING: bool = T::HOLDS_NOTHING;

    fn weigh(&self) -> usize {
        sum(self)
    }
}

impl<T: Weigh, E: Weigh> Weigh for Result<T, E> {
    const HOLDS_NOTHING: bool = T::HOLDS_NOTHING && E::HOLDS_NOTHING;

    fn weigh(&self) -> usize {
        match self {
            Ok(value) => value.weigh(),
            Err(error) => error.weigh(),
        }
    }
}

impl<T: ToOwned<Owned: Weigh> + ?Sized> Weigh for Cow<'_, T> {
    fn weigh(&self) -> usize {
        match self {
            Cow::Borrowed(_) => 0,
            Cow::Owned(owned) => owned.weigh(),
        }
    }
}

impl<T: Weigh + Copy> Weigh for Cell<T> {
    const HOLDS_NOTHING: bool = T::HOLDS_NOTHING;

    fn weigh(&self) -> usize {
        self.get().weigh()
    }
}

impl<T: Weigh> Weigh for RefCell<T> {
    const HOLDS_NOTHING: bool = T::HOLDS_NOTHING;

    fn weigh(&self) -> usize {
        self.borrow().weigh()
    }
}

macro_rules! tuples {
    ($(($($name:ident)+))*) => {$(
        impl<$($name: Weigh),+> Weigh for ($($name,)+) {
            const HOLDS_NOTHING: bool = $($name::HOLDS_NOTHING)&&+;

            fn weigh(&self) -> usize {
                #[allow(non_snake_case, reason = "each value is named as its type")]
                let ($($name,)+) = self;
                let sum = 0_usize;
                $(let sum = sum.saturating_add($name.weigh());)+
                sum
            }
        }
    )*};
}

tuples!((A)(A B)(A B C)(A B C D)(A B C D E)(A B C D E F));

/// The bytes that the value shows. A short slice of a long buffer keeps all of the buffer: copy it
/// before it is charged.
#[cfg(feature = "bytes")]
impl Weigh for bytes::Bytes {
    fn weigh(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "bytes")]
impl Weigh for bytes::BytesMut {
    fn weigh(&self) -> usize {
        self.capacity()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Sums by hand; `memcg-alloc` compares weights with what an allocator has handed out.
    #[test]
    fn each_form_weighs_its_items() {
        let text = || String::from("abc");
        let tree = |entries: u64| {
            (0..entries)
                .map(|key| (key, text()))
                .collect::<BTreeMap<_, _>>()
        };
        assert_eq!(
            [0, 3].map(|entries| tree(entries).weigh()),
            [0, 4 * size_of::<(u64, String)>() + 3 * 3]
        );
        assert_eq!(
            [Cow::Borrowed("abc"), Cow::Owned(text())].map(|text| text.weigh()),
            [0, 3]
        );
        assert_eq!([text(), text()][..].weigh(), 6);
        assert_eq!((Cell::new(1).weigh(), RefCell::new(text()).weigh()), (0, 3));
        assert_eq!([Ok(text()), Err(())].map(|either| either.weigh()), [3, 0]);
    }
}
