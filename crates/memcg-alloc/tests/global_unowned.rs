//! The process's allocator with a threshold: small objects are one group's, and all groups together
//! have what was handed out.

mod support;

use memcg::{Limits, Runtime};
use memcg_alloc::{
    LARGE_OBJECTS, MemcgAlloc, catch_up, charge_unowned_to, is_installed, unowned_bytes,
};
use support::bytes;

#[global_allocator]
static ALLOCATOR: MemcgAlloc<std::alloc::System, LARGE_OBJECTS> =
    MemcgAlloc::with_threshold(std::alloc::System);

/// The one thread of a program: no other thread allocates between two figures.
fn main() {
    assert!(is_installed());
    let runtime = Runtime::builder().build().unwrap();
    let [shared, query] =
        ["shared", "query"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    charge_unowned_to(Some(&shared));
    // The first charge and the first reading make what the tree needs: bytes that no group owns.
    let _ = shared.live();
    catch_up();
    let before = shared.live();
    assert_eq!(before, unowned_bytes());
    let small: Vec<Vec<u8>> = query.run(|| (0..100_000).map(|_| bytes(1, 100)).collect());
    let large = query.run(|| bytes(0, LARGE_OBJECTS));
    let spine = (small.capacity() * size_of::<Vec<u8>>()) as u64;
    assert_eq!(query.live(), spine + LARGE_OBJECTS as u64);
    catch_up();
    assert_eq!(shared.live(), unowned_bytes());
    assert!(shared.live() - before >= 10_000_000);

    // The charge follows without a call: a thread that switches groups charges what has gathered.
    std::thread::scope(|scope| {
        scope.spawn(|| drop(small));
    });
    query.run(|| ());
    let lag = (1 << 20) + (64 << 10);
    assert!(
        shared.live() < before + lag,
        "{} and {before}",
        shared.live()
    );
    catch_up();
    assert_eq!(
        (shared.live(), query.live()),
        (unowned_bytes(), LARGE_OBJECTS as u64)
    );
    drop(large);
    assert_eq!(query.live(), 0);

    // Another group has the charge, and then none.
    let other = runtime.root().create("other", Limits::new()).unwrap();
    charge_unowned_to(Some(&other));
    catch_up();
    assert_eq!((shared.live(), other.live()), (0, unowned_bytes()));
    charge_unowned_to(None);
    assert_eq!((other.live(), runtime.root().live()), (0, 0));
    assert!(runtime.verify().is_ok());
    println!("small objects are one group's: ok");
}
