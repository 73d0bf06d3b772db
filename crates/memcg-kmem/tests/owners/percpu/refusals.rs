//! Refused calls leave nothing behind.

use std::alloc::Layout;

use memcg::kmem::Topology;
use memcg::{Group, Limits, Runtime};
use memcg_kmem::{KmemError, PerCpu, PerCpuAllocator, PerCpuShape};

use super::{PAGE, World, address, bytes_of, node};

#[test]
fn a_refusal_leaves_nothing() {
    let world = World::placed(&[0, 1], 2, 1, PerCpuShape::new());
    world.allocator.trim();
    let small = world.group.create("small", Limits::new().max(100)).unwrap();
    let refused = world.allocator.allocate(bytes_of(64), &small);
    assert!(matches!(refused, Err(KmemError::Charge(_))), "{refused:?}");
    assert_eq!((world.allocator.chunk_count(), small.live()), (0, 0));
    let kept = world.allocator.allocate(bytes_of(32), &small).unwrap();
    assert_eq!((kept.charged(), small.live()), (96, 96));
    assert!(world.allocator.allocate(bytes_of(8), &small).is_err());
    drop(kept);
    world.nothing_is_left();
}

/// The size of the system's page is known at run time, so an alignment beyond it is refused there.
#[test]
fn values_that_a_page_does_not_align_are_refused() {
    #[repr(align(8192))]
    #[derive(Debug, Default)]
    struct Two(#[expect(dead_code)] u8);
    #[repr(align(65536))]
    #[derive(Debug, Default)]
    struct Sixteen;
    #[repr(align(4096))]
    #[derive(Debug, Default)]
    struct One(#[expect(dead_code)] u8);
    fn check<T: Default + std::fmt::Debug>(allocator: &PerCpuAllocator, group: &Group) -> bool {
        match PerCpu::new_with_of(allocator, group, |_| T::default()) {
            Ok(values) => {
                assert!(values.iter().all(|value| {
                    std::ptr::from_ref(value)
                        .addr()
                        .is_multiple_of(align_of::<T>())
                }));
                true
            }
            Err(KmemError::Capacity { bytes, max }) => {
                assert_eq!(
                    (bytes, max),
                    (align_of::<T>() as u64, PAGE as u64),
                    "the alignment is what is refused"
                );
                false
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    let world = World::placed(&[0], 2, 1, PerCpuShape::new().with_unit(1 << 20));
    assert!(check::<One>(&world.allocator, &world.group));
    assert_eq!(
        check::<Two>(&world.allocator, &world.group),
        align_of::<Two>() <= PAGE
    );
    assert_eq!(
        check::<Sixteen>(&world.allocator, &world.group),
        align_of::<Sixteen>() <= PAGE
    );
    world.nothing_is_left();
}

#[test]
fn what_no_chunk_can_hold_is_refused() {
    let world = World::placed(&[0], 2, 1, PerCpuShape::new().with_unit(1));
    assert_eq!(world.allocator.shape().unit(), PAGE);
    for layout in [
        bytes_of(PAGE + 1),
        Layout::from_size_align(8, 2 * PAGE).unwrap(),
    ] {
        let refused = world.allocator.allocate(layout, &world.group);
        assert!(
            matches!(refused, Err(KmemError::Capacity { .. })),
            "{refused:?}"
        );
    }
    world.nothing_is_left();
    let whole = world
        .allocator
        .allocate(Layout::from_size_align(PAGE, PAGE).unwrap(), &world.group)
        .unwrap();
    assert_eq!(address(&whole, 0) % PAGE, 0);
    let nothing = world
        .allocator
        .allocate(Layout::from_size_align(0, 1).unwrap(), &world.group)
        .unwrap();
    assert_eq!((nothing.size(), world.allocator.chunk_count()), (8, 2));
}

#[test]
fn memory_that_the_system_does_not_have_is_a_typed_error() {
    if !std::fs::read_to_string("/proc/sys/vm/overcommit_memory")
        .is_ok_and(|mode| mode.trim() != "1")
    {
        return eprintln!("skipped: this system may promise any memory");
    }
    let topology = Topology::fixed([(node(0), 0..60_000)]).unwrap();
    let runtime = Runtime::builder().topology(topology).build().unwrap();
    // 60,000 gibibytes.
    let shape = PerCpuShape::new().with_unit(usize::MAX).with_granule(PAGE);
    let allocator = PerCpuAllocator::new(&runtime.root(), shape).unwrap();
    let failed = allocator.allocate(bytes_of(8), &runtime.root());
    assert!(
        matches!(failed, Err(KmemError::System { .. })),
        "{failed:?}"
    );
    assert_eq!((runtime.root().live(), allocator.chunk_count()), (0, 0));
}
