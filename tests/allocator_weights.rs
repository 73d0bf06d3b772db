#![cfg(not(any(loom, shuttle)))]
#![allow(unsafe_code, reason = "a global allocator has no safe form")]
//! A global allocator that counts: what a value weighs, beside the bytes that the allocator has
//! handed out for it and not got back, for many types and after whatever operations.
//!
//! The layout of the standard library's collections is promised nowhere. This is where a change of
//! it shows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::type_name;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::ffi::{CString, OsString};
use std::hash::Hash;
use std::path::PathBuf;

use memcg::{Charged, Group, Runtime, Weigh};
use proptest::prelude::*;

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    static LIVE: Cell<usize> = const { Cell::new(0) };
}

fn count(more: usize, less: usize) {
    LIVE.set(LIVE.get().wrapping_add(more).wrapping_sub(less));
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's layout, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: came from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Makes a value, and returns it with the bytes that the allocator has handed out for it.
fn made<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    let value = make();
    (value, LIVE.get().wrapping_sub(before))
}

#[track_caller]
fn assert_exact<T: Weigh>(make: impl FnOnce() -> T) {
    let (value, heap) = made(make);
    assert_eq!(value.heap_bytes(), heap, "{}", type_name::<T>());
    assert!(!T::HOLDS_NOTHING || heap == 0);
}

/// Keys and values of many sizes and alignments, from a number.
trait From64: Weigh + Clone + Eq + Hash + Ord + 'static {
    fn from64(number: u64) -> Self;
}

macro_rules! from_64 {
    ($($type:ty: |$number:ident| $value:expr;)*) => {$(
        impl From64 for $type {
            fn from64($number: u64) -> $type {
                $value
            }
        }
    )*};
}

from_64! {
    u8: |number| number as u8;
    u16: |number| number as u16;
    u32: |number| number as u32;
    u64: |number| number;
    u128: |number| number.into();
    [u8; 3]: |number| [number as u8, (number >> 8) as u8, (number >> 16) as u8];
    [u64; 16]: |number| [number; 16];
    (): |_number| ();
    String: |number| "x".repeat(number as usize % 50) + &number.to_string();
    Option<Box<u64>>: |number| (!number.is_multiple_of(3)).then(|| Box::new(number));
    Vec<u32>: |number| vec![number as u32; number as usize % 7];
}

#[test]
fn blocks_weigh_what_they_have() {
    assert_exact(|| vec![1_u64; 100]);
    assert_exact(|| (0..100).map(|row| vec![0_u8; row]).collect::<Vec<_>>());
    assert_exact(|| String::with_capacity(33));
    assert_exact(|| PathBuf::from("/a/b"));
    assert_exact(|| OsString::from("abc"));
    assert_exact(|| CString::new("abc").unwrap());
    assert_exact(|| Box::new([Some(String::from("a")), None]));
    assert_exact(|| vec![String::from("abc")].into_boxed_slice());
    assert_exact(|| Box::<str>::from("abc"));
    assert_exact(|| CString::new("abc").unwrap().into_boxed_c_str());
    assert_exact(|| PathBuf::from("/a").into_boxed_path());
    assert_exact(|| Box::new(()));
    assert_exact(|| vec![(); 100]);
    assert_exact(|| LinkedList::from([1_u8, 2, 3]));
    assert_exact(|| LinkedList::from([String::from("abc")]));
    assert_exact(|| (vec![0_u8; 7], Ok::<_, ()>(String::from("abc")), 1_u8));
    assert_exact(|| 7_u8);
}

/// A table or a tree of so many entries, by insertion in ascending, descending and random order, and
/// collected at once.
fn assert_maps<K: From64, V: From64>(most: u64) {
    fn mixed(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
    }
    for entries in (0..100)
        .chain([128, 250, 1_000, 3_000])
        .take_while(|&n| n <= most)
    {
        let ascending = move || (0..entries).map(|key| (K::from64(key), V::from64(key)));
        let descending = move || {
            (0..entries)
                .rev()
                .map(|key| (K::from64(key), V::from64(key)))
        };
        let random = move || (0..entries).map(|key| (K::from64(mixed(key)), V::from64(key)));
        fn grown<K: Ord, V>(entries: impl Iterator<Item = (K, V)>) -> BTreeMap<K, V> {
            let mut tree = BTreeMap::new();
            entries.for_each(|(key, value)| drop(tree.insert(key, value)));
            tree
        }
        assert_exact(|| grown(ascending()));
        assert_exact(|| grown(descending()));
        assert_exact(|| grown(random()));
        assert_exact(|| random().collect::<BTreeMap<_, _>>());
        assert_exact(|| random().map(|(key, _)| key).collect::<BTreeSet<_>>());
        assert_exact(|| random().collect::<HashMap<_, _>>());
        assert_exact(|| random().map(|(key, _)| key).collect::<HashSet<_>>());
        assert_exact(|| HashMap::<K, V>::with_capacity(entries as usize));
    }
}

/// Of a tree no figure but the number of entries is public, which does not tell how full its nodes
/// are. It is to weigh at least what it has, and at most half more; it weighs just that.
#[test]
fn tables_and_trees_weigh_what_they_have() {
    assert_maps::<u8, ()>(250);
    assert_maps::<u8, u8>(250);
    assert_maps::<u16, u128>(1_000);
    assert_maps::<u32, ()>(3_000);
    assert_maps::<u64, u64>(3_000);
    assert_maps::<u64, [u64; 16]>(1_000);
    assert_maps::<u128, u8>(1_000);
    assert_maps::<[u8; 3], u16>(1_000);
    assert_maps::<[u64; 16], ()>(100);
    assert_maps::<String, String>(1_000);
    assert_maps::<u64, Option<Box<u64>>>(1_000);
    assert_maps::<(), u64>(2);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert {
        entries: u16,
        from: u16,
    },
    Remove {
        entries: u16,
        from: u16,
    },
    /// All but one in so many.
    Retain(u8),
    SplitOff(u8),
    Drain,
    Clear,
    /// The charge's own.
    Shrink,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let entries = prop_oneof![4 => 0..40_u16, 1 => 0..2_000_u16];
    let some = (entries, 0..3_000_u16);
    let op = prop_oneof![
        6 => some.clone().prop_map(|(entries, from)| Op::Insert { entries, from }),
        4 => some.prop_map(|(entries, from)| Op::Remove { entries, from }),
        1 => (1..30_u8).prop_map(Op::Retain),
        1 => any::<u8>().prop_map(Op::SplitOff),
        1 => Just(Op::Drain),
        1 => Just(Op::Clear),
        1 => Just(Op::Shrink),
    ];
    prop::collection::vec(op, 1..25)
}

/// A collection of the standard library that each operation is done to.
trait Collection: Weigh + Default {
    /// Hash tables weigh at least what they have, whatever was removed, and all else just that.
    const IS_TABLE: bool = false;

    fn insert(&mut self, number: u64);
    fn remove(&mut self, number: u64);
    fn retain(&mut self, keep: &mut dyn FnMut() -> bool);
    fn split_off(&mut self, number: u64);
    fn drain(&mut self);
    fn clear(&mut self);
    fn is_empty(&self) -> bool;
}

macro_rules! collections {
    ($([$($generics:tt)*] $type:ty, table: $is_table:literal,
        insert: |$in:ident, $new:ident| $insert:expr, remove: |$from:ident, $old:ident| $remove:expr,
        retain: |$kept:ident, $keep:ident| $retain:expr, split_off: |$whole:ident, $at:ident| $split:expr,
        drain: |$drained:ident| $drain:expr;)*) => {$(
        impl<$($generics)*> Collection for $type {
            const IS_TABLE: bool = $is_table;

            fn insert(&mut self, $new: u64) {
                let $in = self;
                let _ = $insert;
            }
            fn remove(&mut self, $old: u64) {
                let $from = self;
                let _ = $remove;
            }
            fn retain(&mut self, $keep: &mut dyn FnMut() -> bool) {
                let $kept = self;
                $retain;
            }
            fn split_off(&mut self, $at: u64) {
                let $whole = self;
                let _ = $split;
            }
            fn drain(&mut self) {
                let $drained = self;
                $drain;
            }
            fn clear(&mut self) {
                <$type>::clear(self);
            }
            fn is_empty(&self) -> bool {
                <$type>::is_empty(self)
            }
        }
    )*};
}

/// As much of a number as there are items.
fn within(number: u64, items: usize) -> usize {
    number as usize % (items + 1)
}

collections! {
    [T: From64] Vec<T>, table: false,
        insert: |it, new| it.push(T::from64(new)), remove: |it, _old| it.pop(),
        retain: |it, keep| it.retain(|_| keep()),
        split_off: |it, at| { let at = within(at, it.len()); it.split_off(at) },
        drain: |it| it.drain(..);
    [T: From64] VecDeque<T>, table: false,
        insert: |it, new| it.push_back(T::from64(new)), remove: |it, _old| it.pop_front(),
        retain: |it, keep| it.retain(|_| keep()),
        split_off: |it, at| { let at = within(at, it.len()); it.split_off(at) },
        drain: |it| it.drain(..);
    [T: From64] BinaryHeap<T>, table: false,
        insert: |it, new| it.push(T::from64(new)), remove: |it, _old| it.pop(),
        retain: |it, keep| it.retain(|_| keep()), split_off: |it, _at| it.pop(),
        drain: |it| it.drain();
    [T: From64] LinkedList<T>, table: false,
        insert: |it, new| it.push_back(T::from64(new)), remove: |it, _old| it.pop_front(),
        retain: |it, keep| *it = std::mem::take(it).into_iter().filter(|_| keep()).collect(),
        split_off: |it, at| { let at = within(at, it.len()); it.split_off(at) },
        drain: |it| it.clear();
    [] String, table: false,
        insert: |it, new| it.push(char::from(new as u8)), remove: |it, _old| it.pop(),
        retain: |it, keep| it.retain(|_| keep()), split_off: |it, _at| it.split_off(it.len()),
        drain: |it| it.drain(..);
    [K: From64, V: From64] BTreeMap<K, V>, table: false,
        insert: |it, new| it.insert(K::from64(new), V::from64(new)), remove: |it, old| it.remove(&K::from64(old)),
        retain: |it, keep| it.retain(|_, _| keep()), split_off: |it, at| it.split_off(&K::from64(at)),
        drain: |it| while it.pop_first().is_some() {};
    [T: From64] BTreeSet<T>, table: false,
        insert: |it, new| it.insert(T::from64(new)), remove: |it, old| it.remove(&T::from64(old)),
        retain: |it, keep| it.retain(|_| keep()), split_off: |it, at| it.split_off(&T::from64(at)),
        drain: |it| it.append(&mut BTreeSet::new());
    [K: From64, V: From64] HashMap<K, V>, table: true,
        insert: |it, new| it.insert(K::from64(new), V::from64(new)), remove: |it, old| it.remove(&K::from64(old)),
        retain: |it, keep| it.retain(|_, _| keep()), split_off: |it, at| it.remove(&K::from64(at)),
        drain: |it| it.drain();
    [T: From64] HashSet<T>, table: true,
        insert: |it, new| it.insert(T::from64(new)), remove: |it, old| it.remove(&T::from64(old)),
        retain: |it, keep| it.retain(|_| keep()), split_off: |it, at| it.remove(&T::from64(at)),
        drain: |it| it.drain();
}

/// Does the operations to a charged collection, weighs it after each, and compares what it is
/// charged with what it has.
fn follow<C: Collection>(group: &Group, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut charged = Charged::weighed(group, C::default()).expect("no limit");
    // What the operations allocate, without what the runtime does for charges.
    let mut heap = 0_usize;
    // Since the table was shrunk: the most that the collection had, and whether any entry was
    // removed.
    let (mut most, mut thinned) = (0, false);
    for &op in ops {
        let before = LIVE.get();
        let it: &mut C = &mut charged;
        match op {
            Op::Insert { entries, from } => {
                (0..entries).for_each(|entry| it.insert(u64::from(from + entry)));
            }
            Op::Remove { entries, from } => {
                (0..entries).for_each(|entry| it.remove(u64::from(from + entry)));
            }
            Op::Retain(one_in) => {
                let mut entry = 0_u32;
                it.retain(&mut || {
                    entry += 1;
                    entry.is_multiple_of(one_in.into())
                });
            }
            Op::SplitOff(at) => it.split_off(at.into()),
            Op::Drain => it.drain(),
            Op::Clear => it.clear(),
            Op::Shrink => Charged::shrink_to_fit(&mut charged),
        }
        heap = heap.wrapping_add(LIVE.get().wrapping_sub(before));
        thinned = match op {
            Op::Insert { .. } => thinned,
            Op::Shrink => false,
            _ => true,
        };
        Charged::reweigh(&mut charged);
        most = if matches!(op, Op::Shrink) {
            heap
        } else {
            heap.max(most)
        };
        let paid = Charged::charge(&charged).bytes() as usize - size_of::<C>();
        let holds = match C::IS_TABLE {
            true if thinned => (heap..=most).contains(&paid),
            // A tree without entries may keep a node, or may have none.
            false if charged.is_empty() => paid <= heap,
            _ => paid == heap,
        };
        prop_assert!(
            holds,
            "{}: {op:?} of {ops:?}: it pays for {paid}, and has {heap}, and had {most} at most",
            type_name::<C>()
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 100 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn charged_values_pay_for_what_they_have(ops in ops()) {
        let runtime = Runtime::builder().build().expect("a configuration");
        let group = &runtime.root();
        follow::<Vec<u64>>(group, &ops)?;
        follow::<Vec<String>>(group, &ops)?;
        follow::<VecDeque<[u8; 3]>>(group, &ops)?;
        follow::<BinaryHeap<Option<Box<u64>>>>(group, &ops)?;
        follow::<LinkedList<Vec<u32>>>(group, &ops)?;
        follow::<String>(group, &ops)?;
        follow::<BTreeMap<u64, u64>>(group, &ops)?;
        follow::<BTreeMap<String, Vec<u32>>>(group, &ops)?;
        follow::<BTreeSet<u8>>(group, &ops)?;
        follow::<BTreeSet<[u8; 3]>>(group, &ops)?;
        follow::<HashMap<u64, u64>>(group, &ops)?;
        follow::<HashMap<u16, String>>(group, &ops)?;
        follow::<HashSet<u8>>(group, &ops)?;
        follow::<HashSet<String>>(group, &ops)?;
    }
}
