//! The slab: objects of several groups in a page.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use memcg::kmem::PageNode;
use memcg::{Group, Limit, Limits, Runtime, StatKey};
use memcg_kmem::{KmemBox, KmemError, KmemSlab};

use super::nodes::{Next, Nodes, assert_clean, local, node, on, page, runtime};

const STAT: StatKey = StatKey::SLAB;

fn groups(runtime: &Runtime, count: usize) -> Vec<Group> {
    (0..count)
        .map(|number| {
            runtime
                .root()
                .create(&format!("tenant{number}"), Limits::new())
                .unwrap()
        })
        .collect()
}

#[test]
fn each_group_pays_to_the_byte_for_its_objects() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(2))));
    let runtime = runtime(3, &nodes);
    let tenants = groups(&runtime, 3);
    let slab = KmemSlab::<[u64; 4]>::new_in(&runtime.root());
    let object = slab.object_bytes();
    let mut objects: Vec<Vec<KmemBox<[u64; 4]>>> = vec![Vec::new(), Vec::new(), Vec::new()];
    for number in 0..slab.objects_per_page() {
        objects[number % 3].push(
            slab.insert(&tenants[number % 3], [number as u64; 4])
                .unwrap(),
        );
    }
    assert_eq!(slab.page_count(), 1, "all in one page");
    for (tenant, objects) in tenants.iter().zip(&objects) {
        let bytes = object * objects.len() as u64;
        assert_eq!(
            (tenant.live(), local(tenant, STAT)),
            (bytes, vec![0, 0, bytes as i64])
        );
    }
    let full = object * slab.objects_per_page() as u64;
    assert_eq!(runtime.root().live(), full);
    assert!(full <= slab.page_bytes() as u64, "no more than there is");
    assert!(
        full + object + 64 > slab.page_bytes() as u64,
        "and all of it but for one object's place"
    );
    // They end in any order, on any thread.
    let last = objects.pop().unwrap();
    thread::spawn(move || drop(last)).join().unwrap();
    assert_eq!(
        (tenants[2].live(), local(&tenants[2], STAT)),
        (0, vec![0; 3])
    );
    for (number, object) in objects
        .iter()
        .enumerate()
        .flat_map(|(group, of)| of.iter().map(move |of| (group, of)))
    {
        assert_eq!((object[0] as usize % 3, object[0]), (number, object[3]));
    }
    drop(objects);
    assert_clean(&runtime.root(), STAT);
}

#[test]
fn figures_follow_from_the_type() {
    fn check<T>(root: &Group) -> (u64, usize) {
        let slab = KmemSlab::<T>::new_in(root);
        let object = slab.object_bytes();
        let slots = slab.objects_per_page();
        let bytes = slab.page_bytes();
        assert!(slots > 0 && bytes.is_multiple_of(page()));
        assert!(
            object * slots as u64 <= bytes as u64,
            "{object} B, {slots} in {bytes} B"
        );
        (object - size_of::<T>() as u64, slots)
    }
    let runtime = Runtime::builder().build().unwrap();
    let root = runtime.root();
    // The word is the same for all; the head's part is smaller where more share it.
    let (small, many) = check::<u64>(&root);
    let (large, few) = check::<[u64; 64]>(&root);
    assert!(small < large && many > few);
    assert!(check::<()>(&root).1 > many);
    check::<[u8; 5_000]>(&root);
    check::<[u8; 1 << 20]>(&root);
    #[repr(align(4096))]
    struct Aligned(#[expect(dead_code)] u8);
    check::<Aligned>(&root);
}

#[test]
fn objects_of_any_shape_stand_where_they_may() {
    #[repr(align(256))]
    struct Aligned(u32);
    let runtime = Runtime::builder().build().unwrap();
    let root = runtime.root();
    let aligned = KmemSlab::new_in(&root);
    let objects: Vec<_> = (0..100)
        .map(|number| aligned.insert(&root, Aligned(number)).unwrap())
        .collect();
    assert!(
        objects
            .iter()
            .all(|object| std::ptr::from_ref(&**object).addr() % 256 == 0)
    );
    assert!(
        objects
            .iter()
            .enumerate()
            .all(|(number, object)| object.0 as usize == number)
    );
    let nothing = KmemSlab::new_in(&root);
    let nothings: Vec<_> = (0..1_000)
        .map(|_| nothing.insert(&root, ()).unwrap())
        .collect();
    let large = KmemSlab::new_in(&root);
    let mut large: Vec<_> = (0..20)
        .map(|number| large.insert(&root, [number; 30_000]).unwrap())
        .collect();
    large[7][29_999] = 100;
    assert_eq!(
        large
            .iter()
            .map(|object: &KmemBox<[u8; 30_000]>| u32::from(object[29_999]))
            .sum::<u32>(),
        190 - 7 + 100
    );
    drop((objects, nothings, large));
    assert_clean(&root, STAT);
}

#[test]
fn pages_are_of_the_node_that_was_asked_for() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(0))));
    let runtime = runtime(2, &nodes);
    let root = runtime.root();
    let slab = KmemSlab::new_in(&root);
    let object = slab.object_bytes() as i64;
    let near = slab.insert_on(&root, node(0), 1).unwrap();
    nodes.next_on(1);
    let far = slab.insert_on(&root, node(1), 2).unwrap();
    assert_eq!(
        (slab.page_count(), on(&root, STAT)),
        (2, vec![object, object])
    );
    assert_eq!(nodes.call_count(), 2, "a page is looked up when it is made");
    // The place where it really lies counts.
    nodes.next_on(0);
    let more: Vec<_> = (0..slab.objects_per_page())
        .map(|_| slab.insert_on(&root, node(1), 3).unwrap())
        .collect();
    assert_eq!((slab.page_count(), nodes.call_count()), (3, 3));
    assert_eq!(on(&root, STAT), [2 * object, more.len() as i64 * object]);
    // A node that there is not is the first.
    let anywhere = slab.insert_on(&root, node(9), 4).unwrap();
    assert_eq!(slab.page_count(), 3);
    drop((near, far, more, anywhere));
    assert_clean(&root, STAT);
}

#[test]
fn empty_pages_are_few() {
    let runtime = Runtime::builder().build().unwrap();
    let root = runtime.root();
    let slab = KmemSlab::new_in(&root);
    for _ in 0..3 {
        let objects: Vec<_> = (0..10_000_u64)
            .map(|number| slab.insert(&root, number).unwrap())
            .collect();
        assert_eq!(
            slab.page_count(),
            10_000_usize.div_ceil(slab.objects_per_page())
        );
        drop(objects);
        assert_eq!((slab.page_count(), root.live()), (1, 0));
    }
}

#[test]
fn a_freed_slot_is_the_next_ones() {
    let runtime = Runtime::builder().build().unwrap();
    let root = runtime.root();
    let slab = KmemSlab::new_in(&root);
    let mut objects: Vec<_> = (0..slab.objects_per_page())
        .map(|number| slab.insert(&root, number).unwrap())
        .collect();
    for round in 0..1_000 {
        let at = round * 7 % objects.len();
        drop(objects.swap_remove(at));
        objects.push(slab.insert(&root, round).unwrap());
        assert_eq!(slab.page_count(), 1);
    }
}

#[test]
fn objects_outlive_slab_group_and_runtime() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(1))));
    let runtime = runtime(2, &nodes);
    let tenant = runtime.root().create("tenant", Limits::new()).unwrap();
    let slab = KmemSlab::new_in(&tenant);
    let objects: Vec<_> = (0..1_000)
        .map(|number| slab.insert(&tenant, vec![number]).unwrap())
        .collect();
    drop(slab);
    tenant.offline().unwrap();
    let path = tenant.path();
    drop((tenant, runtime));
    assert_eq!(path, "/tenant");
    assert!(
        objects
            .iter()
            .enumerate()
            .all(|(number, object)| **object == [number])
    );
    thread::spawn(move || drop(objects)).join().unwrap();
}

#[test]
fn an_empty_page_goes_with_its_slab() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(0))));
    let runtime = runtime(2, &nodes);
    let slab = KmemSlab::new_in(&runtime.root());
    drop(slab.insert(&runtime.root(), 7).unwrap());
    assert_eq!(slab.page_count(), 1);
    drop((slab, runtime));
    assert_eq!(
        Arc::strong_count(&nodes),
        1,
        "a page keeps what its slab shares"
    );
}

#[test]
fn refused_values_come_back() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(0))));
    let runtime = runtime(2, &nodes);
    let tenant = runtime.root().create("tenant", Limits::new()).unwrap();
    let slab = KmemSlab::new_in(&runtime.root());
    tenant
        .set_max(Limit::Bytes(slab.object_bytes() * 3))
        .unwrap();
    let objects: Vec<_> = (0..3)
        .map(|number| slab.insert(&tenant, number.to_string()).unwrap())
        .collect();
    let refused = slab.insert(&tenant, "fourth".to_owned()).unwrap_err();
    assert!(
        matches!(refused.error(), KmemError::Charge(error) if error.is_over_limit()),
        "{refused}"
    );
    assert_eq!(
        (refused.into_value().as_str(), tenant.live()),
        ("fourth", slab.object_bytes() * 3)
    );
    let elsewhere = Runtime::builder().build().unwrap();
    let (value, error) = slab
        .insert(&elsewhere.root(), "foreign".to_owned())
        .unwrap_err()
        .into_parts();
    assert!(
        matches!(&error, KmemError::Charge(error) if error.is_other_runtime()),
        "{error}"
    );
    assert_eq!((value.as_str(), elsewhere.root().live()), ("foreign", 0));
    drop(objects);
    tenant.offline().unwrap();
    assert!(matches!(
        slab.insert(&tenant, String::new()).unwrap_err().error(),
        KmemError::Charge(_)
    ));
    assert_clean(&runtime.root(), STAT);
}

#[test]
fn a_panic_at_its_end_takes_the_object_along() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("as it was to");
        }
    }
    let runtime = Runtime::builder().build().unwrap();
    let slab = KmemSlab::new_in(&runtime.root());
    let object = slab.insert(&runtime.root(), Panics).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(object))).is_err());
    assert_clean(&runtime.root(), STAT);
    let object = slab.insert(&runtime.root(), Panics).unwrap();
    std::mem::forget(object.into_inner());
    assert_clean(&runtime.root(), STAT);
}

#[test]
fn foreign_code_may_do_what_it_likes() {
    /// An object with another one of the same slab.
    struct Nested(#[expect(dead_code)] Option<KmemBox<Nested>>);
    /// Looks nodes up by using a slab.
    struct Uses(AtomicU64);
    impl memcg::kmem::NodeOf for Uses {
        fn page_size(&self) -> usize {
            4_096
        }
        fn look_up(&self, _: &[usize], found: &mut [PageNode]) {
            let runtime = Runtime::builder().build().unwrap();
            let slab = KmemSlab::new_in(&runtime.root());
            self.0
                .fetch_add(*slab.insert(&runtime.root(), 1).unwrap(), Ordering::Relaxed);
            found.fill(PageNode::On(node(1)));
        }
    }
    let uses = Arc::new(Uses(AtomicU64::new(0)));
    let runtime = Runtime::builder()
        .nodes(2)
        .node_of(Arc::clone(&uses))
        .build()
        .unwrap();
    let root = runtime.root();
    let slab = KmemSlab::new_in(&root);
    let mut object = None;
    for _ in 0..1_000 {
        object = Some(slab.insert(&root, Nested(object)).unwrap());
    }
    assert!(slab.page_count() > 1);
    slab.relocate();
    drop(object);
    assert!(uses.0.load(Ordering::Relaxed) > 1);
    assert_clean(&root, STAT);
}

#[test]
fn tiers_are_asked_where_the_page_was_asked_for() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(0))));
    let mut builder = Runtime::builder().nodes(2).node_of(Arc::clone(&nodes));
    let fast = builder.tier("fast", [node(0)]);
    let runtime = builder.build().unwrap();
    let root = runtime.root();
    let tier = || root.counter(fast).unwrap().live();
    let slab = KmemSlab::new_in(&root);
    let object = slab.object_bytes();
    root.counter(fast)
        .unwrap()
        .set_max(Limit::Bytes(object))
        .unwrap();
    let first = slab.insert_on(&root, node(0), 1).unwrap();
    assert!(slab.insert_on(&root, node(0), 2).is_err());
    nodes.next_on(1);
    let second = slab.insert_on(&root, node(1), 2).unwrap();
    assert_eq!((tier(), root.live()), (object, 2 * object));
    nodes.shift(0, 1);
    slab.relocate();
    assert_eq!(tier(), 0);
    nodes.shift(1, 0);
    slab.relocate();
    assert_eq!(tier(), 2 * object, "they are there: by force");
    drop((first, second));
    assert_eq!((tier(), root.live()), (0, 0));
    // No group knows where: what was promised of the tier goes back with them, at the latest.
    nodes.forget();
    nodes.set_next(PageNode::Untouched);
    let slab = KmemSlab::new_in(&root);
    drop(slab.insert_on(&root, node(0), 1).unwrap());
    assert_eq!((tier(), root.live()), (0, 0));
}
