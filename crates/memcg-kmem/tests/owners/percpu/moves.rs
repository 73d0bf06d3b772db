//! Pages that move, and groups that go, while objects of theirs are there.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use memcg::kmem::{NodeOf, PageNode};
use memcg::{Group, Limits, Runtime};
use memcg_kmem::{PerCpuAllocator, PerCpuBytes, PerCpuShape};

use super::{PAGE, World, accounted, address, bytes_of, node};

// === Pages that move ===

#[test]
fn accounts_move_with_the_pages() {
    let world = World::placed(&[0, 1], 3, 0, PerCpuShape::new());
    let other = world.runtime.root().create("other", Limits::new()).unwrap();
    let one = world.allocate(64);
    let two = world.allocator.allocate(bytes_of(32), &other).unwrap();
    assert_eq!(world.accounted(), (vec![128, 64, 0], 0));
    world.table.0.set(world.unit(1), node(2));
    assert_eq!(
        world.accounted(),
        (vec![128, 64, 0], 0),
        "no call has said so"
    );
    world.allocator.migrated(world.unit(1));
    assert_eq!(world.accounted(), (vec![128, 0, 64], 0));
    assert_eq!(accounted(&other), (vec![64, 0, 32], 0));
    assert_eq!(
        (one.placement().on_node(node(2)), world.group.live()),
        (64, 192)
    );
    world.table.0.set(world.all_words(), node(1));
    world.table.0.set(world.unit(0), PageNode::Untouched);
    world.allocator.migrated(0..usize::MAX);
    assert_eq!(world.accounted(), (vec![0, 64, 64], 64));
    drop(one);
    assert_eq!(accounted(&other), (vec![0, 32, 32], 32));
    drop(two);
    world.nothing_is_left();
}

#[test]
fn threads_allocate_and_free_while_pages_move() {
    let world = World::placed(&[0, 0, 1, 1], 4, 2, PerCpuShape::new().with_unit(2 * PAGE));
    let stop = AtomicBool::new(false);
    let parked: Mutex<Vec<PerCpuBytes>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let mover = scope.spawn(|| {
            for round in 0.. {
                world
                    .table
                    .0
                    .set(world.unit(round % 4), node(round as u16 * 7 % 4));
                world.table.0.set(world.all_words(), node(round as u16 % 4));
                world.allocator.migrated(0..usize::MAX);
                if stop.load(Ordering::Relaxed) && round > 50 {
                    break;
                }
            }
        });
        let workers: Vec<_> = (0..3)
            .map(|worker: usize| {
                let world = &world;
                let parked = &parked;
                scope.spawn(move || {
                    for round in 0..400 {
                        let object = world.allocate(1 + (worker * 131 + round * 17) % 700);
                        // Half of them are freed by another thread.
                        let mut parked = parked.lock().unwrap();
                        parked.push(object);
                        if parked.len() > 20 {
                            let other = parked.swap_remove(round % 20);
                            drop(parked);
                            drop(other);
                        }
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        mover.join().unwrap();
    });
    world.allocator.migrated(0..usize::MAX);
    let held = parked.into_inner().unwrap();
    let charged: u64 = held.iter().map(PerCpuBytes::charged).sum();
    assert_eq!(world.group.live(), charged);
    let (nodes, unplaced) = world.accounted();
    assert_eq!(nodes.iter().sum::<i64>() + unplaced, charged as i64);
    for (number, bytes) in nodes.into_iter().enumerate() {
        let on_node = held
            .iter()
            .map(|object| object.placement().on_node(node(number as u16)));
        assert_eq!(on_node.sum::<u64>() as i64, bytes, "node {number}");
    }
    drop(held);
    world.nothing_is_left();
}

/// The pages of a new chunk move between the look-up and the moment when the allocator has it.
#[test]
fn pages_move_while_a_new_chunk_is_looked_up() {
    struct Moving(OnceLock<PerCpuAllocator>, AtomicBool);
    #[derive(Clone)]
    struct Asked(Arc<Moving>);
    impl NodeOf for Asked {
        fn page_size(&self) -> usize {
            PAGE
        }

        fn look_up(&self, _: &[usize], found: &mut [PageNode]) {
            let Asked(moving) = self;
            let on = if moving.1.load(Ordering::Relaxed) {
                2
            } else {
                1
            };
            found.fill(PageNode::On(node(on)));
            if let Some(allocator) = moving
                .0
                .get()
                .filter(|_| !moving.1.swap(true, Ordering::Relaxed))
            {
                allocator.migrated(0..usize::MAX);
            }
        }
    }
    let asked = Asked(Arc::new(Moving(OnceLock::new(), AtomicBool::new(false))));
    let runtime = Runtime::builder()
        .nodes(3)
        .node_of(asked.clone())
        .build()
        .unwrap();
    let root = runtime.root();
    let allocator = PerCpuAllocator::new(&root, PerCpuShape::new()).unwrap();
    drop(asked.0.0.set(allocator.clone()));
    let object = allocator.allocate(bytes_of(64), &root).unwrap();
    assert!(asked.0.1.load(Ordering::Relaxed), "they have moved");
    assert_eq!(accounted(&root), (vec![0, 0, object.charged() as i64], 0));
}

/// A `NodeOf` is foreign code: no lock is held, and it may do what it likes.
#[test]
fn a_node_of_may_use_the_allocator() {
    struct Nosy(OnceLock<(PerCpuAllocator, Group)>, AtomicUsize);
    #[derive(Clone)]
    struct Asked(Arc<Nosy>);
    impl NodeOf for Asked {
        fn page_size(&self) -> usize {
            PAGE
        }

        fn look_up(&self, _: &[usize], found: &mut [PageNode]) {
            found.fill(PageNode::On(node(1)));
            if let Some((allocator, group)) = self.0.0.get()
                && self.0.1.fetch_add(1, Ordering::Relaxed) > 0
                && self.0.1.load(Ordering::Relaxed) < 20
            {
                drop(allocator.allocate(bytes_of(8), group));
                assert!(allocator.chunk_count() < 20);
            }
        }
    }
    let asked = Asked(Arc::new(Nosy(OnceLock::new(), AtomicUsize::new(0))));
    let runtime = Runtime::builder()
        .nodes(2)
        .node_of(asked.clone())
        .build()
        .unwrap();
    let root = runtime.root();
    let allocator = PerCpuAllocator::new(&root, PerCpuShape::new().with_unit(PAGE)).unwrap();
    drop(asked.0.0.set((allocator.clone(), root.clone())));
    let object = allocator.allocate(bytes_of(PAGE), &root).unwrap();
    allocator.migrated(0..usize::MAX);
    assert!(asked.0.1.load(Ordering::Relaxed) > 1);
    assert_eq!(accounted(&root), (vec![0, object.charged() as i64], 0));
    drop(object);
    assert_eq!((accounted(&root).0[1], root.live()), (0, 0));
}

// === Groups that go ===

/// Between the precharge and the account the allocator asks where a new chunk lies: then the group
/// goes offline.
#[test]
fn a_group_goes_offline_between_precharge_and_account() {
    #[derive(Clone)]
    struct Offlines(Arc<Mutex<Option<Group>>>);
    impl NodeOf for Offlines {
        fn page_size(&self) -> usize {
            PAGE
        }

        fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
            if let Some(group) = self.0.lock().unwrap().take() {
                group.offline().unwrap();
            }
            found[..pages.len()].fill(PageNode::On(node(1)));
        }
    }
    let node_of = Offlines(Arc::new(Mutex::new(None)));
    let runtime = Runtime::builder()
        .nodes(2)
        .node_of(node_of.clone())
        .build()
        .unwrap();
    let tenant = runtime.root().create("tenant", Limits::new()).unwrap();
    let group = tenant.create("query", Limits::new()).unwrap();
    *node_of.0.lock().unwrap() = Some(group.clone());
    let object = PerCpuAllocator::of(&group)
        .unwrap()
        .allocate(bytes_of(64), &group)
        .unwrap();
    assert!(group.is_offline());
    // It gets no part any more: its parent's has the bytes.
    let charged = object.charged() as i64;
    assert_eq!(
        (accounted(&tenant), group.live() as i64),
        ((vec![0, charged], 0), charged)
    );
    drop(object);
    assert_eq!((accounted(&tenant), tenant.live()), ((vec![0, 0], 0), 0));
}

#[test]
fn a_group_goes_offline_between_account_and_free() {
    let world = World::placed(&[0, 1], 3, 0, PerCpuShape::new());
    let group = world.group.create("query", Limits::new()).unwrap();
    let object = world.allocator.allocate(bytes_of(64), &group).unwrap();
    group.offline().unwrap();
    drop(group);
    assert_eq!(world.accounted(), (vec![128, 64, 0], 0));
    // It moves to a node where the group has no part.
    world.table.0.set(world.unit(0), node(2));
    world.allocator.migrated(world.unit(0));
    assert_eq!(world.accounted(), (vec![64, 64, 64], 0));
    world.table.0.set(world.unit(0), node(0));
    world.allocator.migrated(world.unit(0));
    assert_eq!(world.accounted(), (vec![128, 64, 0], 0));
    drop(object);
    world.nothing_is_left();
}

#[test]
fn objects_outlive_their_runtime() {
    let world = World::placed(&[0, 1], 2, 1, PerCpuShape::new());
    let object = world.allocate(64);
    let World {
        runtime,
        group,
        allocator,
        ..
    } = world;
    drop((runtime, group, allocator));
    assert_eq!(object.placement().bytes(), object.charged());
    drop(object);
}

// === Any order ===

/// Allocations, frees and migrations in any order, against a naive walk over each byte's page.
#[test]
fn as_a_naive_walk_says() {
    let world = World::placed(
        &[0, 1, 1, 0, 2],
        5,
        4,
        PerCpuShape::new().with_unit(4 * PAGE),
    );
    let mut random = 7_u64;
    let mut draw = move |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut held: Vec<PerCpuBytes> = Vec::new();
    for _ in 0..600 {
        match draw(10) {
            0 => {
                let start = world.unit(draw(5)).start + draw(4) * PAGE;
                world.table.0.set(start..start + PAGE, node(draw(5) as u16));
                world.allocator.migrated(start..start + PAGE);
            }
            1 => {
                let start = world.words + draw(4) * PAGE;
                world.table.0.set(start..start + PAGE, node(draw(5) as u16));
                world.allocator.migrated(start..start + 1);
            }
            2..6 if !held.is_empty() => drop(held.swap_remove(draw(held.len()))),
            _ if held.len() < 12 => held.push(world.allocate(1 + draw(1_000))),
            _ => {}
        }
        let mut expected = vec![0; 5];
        for object in &held {
            let copies = (0..5)
                .map(|processor| address(object, processor))
                .map(|start| start..start + object.size());
            for range in copies.chain([object.metadata()]) {
                for at in range.step_by(8) {
                    let mut found = [PageNode::Untouched];
                    world.table.look_up(&[at - at % PAGE], &mut found);
                    let PageNode::On(node) = found[0] else {
                        panic!("{at} lies nowhere")
                    };
                    expected[usize::from(node.get())] += 8;
                }
            }
        }
        assert_eq!(world.accounted(), (expected, 0));
    }
    drop(held);
    world.nothing_is_left();
}
