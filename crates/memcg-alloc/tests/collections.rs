//! Collections whose memory is one group's.

use allocator_api2::alloc::{AllocError, Allocator, Global, Layout};
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use memcg::{Limits, Runtime};
use memcg_alloc::GroupAlloc;
use std::ptr::NonNull;

#[test]
fn a_vector_is_refused_and_goes_on() {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime
        .root()
        .create("g", Limits::new().max(1_000))
        .unwrap();
    let mut bytes: Vec<u8, _> = Vec::new_in(GroupAlloc::new(&group));
    for at in 0..=1_000_u32 {
        let grown = bytes.try_reserve_exact(at as usize - bytes.len());
        // The old block and the new one count as one: it grows.
        assert_eq!(grown.is_ok(), at <= 1_000);
        bytes.resize(at as usize, at as u8);
        assert_eq!(group.live(), u64::from(at));
    }
    assert!(bytes.try_reserve_exact(1).is_err());
    assert_eq!(
        (group.live(), bytes.len(), bytes[999]),
        (1_000, 1_000, 999_u32.to_le_bytes()[0] + 1)
    );
    bytes.truncate(10);
    bytes.shrink_to_fit();
    assert_eq!(group.live(), 10);
    let boxed = Box::try_new_in([0_u64; 8], GroupAlloc::new(&group)).unwrap();
    assert_eq!(group.live(), 74);
    drop((boxed, bytes));
    assert_eq!(group.live(), 0);
    assert!(runtime.verify().is_ok());
}

/// Gives more than it is asked for, and fails when told.
#[derive(Clone)]
struct Generous(std::rc::Rc<std::cell::Cell<bool>>);

// SAFETY: the blocks are those of the global allocator with the layout that this one makes of the
// caller's.
#[allow(unsafe_code)]
unsafe impl Allocator for Generous {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if self.0.get() {
            return Err(AllocError);
        }
        Global.allocate(layout)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: from `allocate`.
        unsafe { Global.deallocate(block, layout) }
    }
}

#[test]
fn a_failed_allocation_is_given_back() {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create("g", Limits::new()).unwrap();
    let fails = Generous(std::rc::Rc::default());
    let mut bytes: Vec<u8, _> = Vec::new_in(GroupAlloc::over(&group, fails.clone()));
    bytes.try_reserve_exact(100).unwrap();
    bytes.resize(100, 7);
    fails.0.set(true);
    assert!(bytes.try_reserve_exact(10_000).is_err());
    assert_eq!(
        (group.live(), bytes.iter().all(|&byte| byte == 7)),
        (100, true)
    );
    fails.0.set(false);
    bytes.try_reserve_exact(10_000).unwrap();
    assert_eq!(
        (group.live(), bytes.iter().all(|&byte| byte == 7)),
        (10_100, true)
    );
    bytes.truncate(3);
    fails.0.set(true);
    let shrunk = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bytes.len()));
    assert_eq!((shrunk.unwrap(), group.live()), (3, 10_100));
    fails.0.set(false);
    drop(bytes);
    assert_eq!(group.live(), 0);
}

#[test]
fn zero_bytes_are_charged_to_no_group() {
    let runtime = Runtime::builder().max(0).build().unwrap();
    let of_root = GroupAlloc::new(&runtime.root());
    let block = of_root.allocate(Layout::new::<()>()).unwrap();
    assert_eq!((block.len(), runtime.root().live()), (0, 0));
    // SAFETY: allocated above, with this layout.
    #[allow(unsafe_code)]
    unsafe {
        of_root.deallocate(block.cast(), Layout::new::<()>());
    }
    assert!(of_root.allocate_zeroed(Layout::new::<u8>()).is_err());
}

#[test]
fn a_map_is_its_groups_and_is_refused() {
    type Map =
        hashbrown::HashMap<u64, Vec<u8, GroupAlloc>, hashbrown::DefaultHashBuilder, GroupAlloc>;
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime
        .root()
        .create("g", Limits::new().max(100_000))
        .unwrap();
    let mut map = Map::with_hasher_in(
        hashbrown::DefaultHashBuilder::default(),
        GroupAlloc::new(&group),
    );
    let mut refused = false;
    for key in 0..10_000 {
        let mut value = Vec::new_in(GroupAlloc::new(&group));
        refused = map.try_reserve(1).is_err() || value.try_reserve_exact(100).is_err();
        if refused {
            break;
        }
        value.resize(100, key as u8);
        map.insert(key, value);
        assert_eq!(
            group.live(),
            (map.allocation_size() + map.len() * 100) as u64
        );
    }
    assert!(refused && map.len() > 100, "{} values", map.len());
    assert!(
        map.iter()
            .all(|(&key, value)| value.iter().all(|&byte| byte == key as u8))
    );
    map.retain(|key, _| key % 2 == 0);
    assert_eq!(
        group.live(),
        (map.allocation_size() + map.len() * 100) as u64
    );
    drop(map);
    assert_eq!((group.live(), runtime.counts().underflows), (0, 0));
}
