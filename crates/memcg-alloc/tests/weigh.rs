//! The weights of values, beside the bytes that the allocator has handed out for them.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::path::PathBuf;

use memcg::{Limits, Runtime, Weigh};
use memcg_alloc::MemcgAlloc;

#[global_allocator]
static ALLOCATOR: MemcgAlloc = MemcgAlloc::new(std::alloc::System);

/// Asserts that what `make` makes weighs what it has allocated, but for a part of it in 100.
#[track_caller]
fn assert_weighs<T: Weigh>(off: u64, make: impl FnOnce() -> T) {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create("q", Limits::new()).unwrap();
    let value = group.run(make);
    let (weight, allocated) = (value.heap_bytes() as u64, group.live());
    assert!(
        weight.abs_diff(allocated) * 100 <= off * allocated,
        "it weighs {weight}, and has {allocated}"
    );
    assert!(!T::HOLDS_NOTHING || allocated == 0);
}

#[test]
fn vectors_and_texts_weigh_what_they_have() {
    assert_weighs(0, || vec![1_u64; 100]);
    assert_weighs(0, || {
        (0..100).map(|row| vec![0_u8; row]).collect::<Vec<_>>()
    });
    assert_weighs(0, || String::with_capacity(33));
    assert_weighs(0, || PathBuf::from("/a/b"));
    assert_weighs(0, || Box::new([Some(String::from("a")), None]));
    assert_weighs(0, || vec![String::from("abc")].into_boxed_slice());
    assert_weighs(0, || Box::<str>::from("abc"));
    assert_weighs(0, || (0..100_u32).collect::<VecDeque<_>>());
    assert_weighs(0, || (0..100_u32).collect::<BinaryHeap<_>>());
    assert_weighs(0, || {
        (vec![0_u8; 7], Ok::<_, ()>(String::from("abc")), 1_u8)
    });
    assert_weighs(0, || 7_u8);
}

#[test]
fn tables_weigh_what_they_have() {
    for entries in [0, 1, 3, 4, 7, 8, 14, 15, 28, 100, 1_000] {
        assert_weighs(0, || {
            (0..entries)
                .map(|key| (key, key as u8))
                .collect::<HashMap<u64, u8>>()
        });
        assert_weighs(0, || {
            (0..entries)
                .map(|key| (key, [key; 4]))
                .collect::<HashMap<u64, _>>()
        });
        assert_weighs(0, || {
            (0..entries).map(|key| key as u8).collect::<HashSet<u8>>()
        });
        assert_weighs(0, || {
            (0..entries)
                .map(|key| key.to_string())
                .collect::<HashSet<_>>()
        });
        assert_weighs(0, || {
            HashMap::<u32, String>::with_capacity(entries as usize)
        });
    }
}

#[test]
fn trees_weigh_about_what_they_have() {
    let numbers = || (0..10_000_u64).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    assert_weighs(25, || {
        numbers()
            .map(|key| (key, [key; 3]))
            .collect::<BTreeMap<_, _>>()
    });
    assert_weighs(35, || {
        let mut set = BTreeSet::new();
        set.extend(numbers());
        set
    });
}
