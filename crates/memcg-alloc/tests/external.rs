//! Memory that no allocator hands out: charged, resized and given back like an object.

mod support;

use memcg::{Limits, Runtime};
use memcg_alloc::{charge_external, unowned_bytes};
use support::{alone, assert_all_gone};

#[test]
fn it_stays_its_groups_on_any_thread() {
    let _alone = alone();
    let runtime = Runtime::builder().build().unwrap();
    let [one, two] = ["one", "two"].map(|name| {
        runtime
            .root()
            .create(name, Limits::new().max(1_000))
            .unwrap()
    });
    let mut mapped = one.run(|| charge_external(5_000));
    assert_eq!(
        (one.live(), one.forced(), mapped.bytes()),
        (5_000, 4_000, 5_000)
    );
    for bytes in [1, 70_000, 300, 1 << 30, 2] {
        two.run(|| mapped.resize(bytes));
        assert_eq!(
            (one.live(), two.live(), mapped.bytes()),
            (bytes as u64, 0, bytes)
        );
    }
    std::thread::spawn(move || drop(mapped)).join().unwrap();
    assert_eq!((one.live(), two.live()), (0, 0));
}

#[test]
fn without_bytes_it_has_no_group() {
    let _alone = alone();
    let runtime = Runtime::builder().build().unwrap();
    let [one, two] = ["one", "two"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    let before = unowned_bytes();
    let mut mapped = one.run(|| charge_external(0));
    two.run(|| mapped.resize(10));
    assert_eq!((one.live(), two.live()), (0, 10));
    one.run(|| mapped.resize(0));
    assert_eq!((one.live(), two.live()), (0, 0));
    mapped.resize(30);
    assert_eq!(
        (one.live(), two.live(), unowned_bytes() - before),
        (0, 0, 30)
    );
    one.run(|| mapped.resize(50));
    assert_eq!((one.live(), unowned_bytes() - before), (0, 50));
    drop(mapped);
    assert_eq!(unowned_bytes(), before);
}

#[test]
fn it_outlives_its_group_and_its_runtime() {
    let _alone = alone();
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create("g", Limits::new()).unwrap();
    let (mut first, second) = group.run(|| (charge_external(100), charge_external(200)));
    group.offline().unwrap();
    first.resize(1_000);
    // The next bytes are charged to the nearest group that is online.
    let third = group.run(|| charge_external(7));
    assert_eq!((group.live(), runtime.root().live()), (1_200, 1_207));
    drop(group);
    assert_eq!(runtime.dying_count(), 1);
    drop((first, third));
    assert_eq!((runtime.dying_count(), runtime.root().live()), (1, 200));
    drop(second);
    assert_all_gone(&runtime);
    let mapped = runtime.root().run(|| charge_external(300));
    drop(runtime);
    drop(mapped);
}
