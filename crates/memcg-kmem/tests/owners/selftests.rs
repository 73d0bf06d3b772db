//! `test_kmem.c` of the kernel's self-tests, where it is about memory for each processor.

use memcg::{Freshness, Group, Limits, Runtime, StatKey};
use memcg_kmem::PerCpu;

/// `test_percpu_basic`: a tree of 1,000 groups, for each of which its parent has copies for each
/// processor. The parent's current is what *percpu* comes to.
#[test]
fn test_percpu_basic() {
    let runtime = Runtime::builder().build().expect("defaults hold");
    let parent = runtime
        .root()
        .create("percpu_basic_test", Limits::new())
        .expect("a name");
    let children: Vec<(Group, PerCpu<[u64; 8]>)> = (0..1_000)
        .map(|number| {
            let child = parent
                .create(&format!("child_{number}"), Limits::new())
                .expect("a name");
            (child, PerCpu::new_in(&parent).expect("memory"))
        })
        .collect();
    let percpu = || parent.read(Freshness::Exact).get(StatKey::PERCPU) as u64;
    let charged: u64 = children
        .iter()
        .map(|(_, copies)| copies.bytes().charged())
        .sum();
    assert!(percpu() >= 1_000 * 64);
    assert_eq!((percpu(), parent.live()), (charged, charged));
    drop(children);
    assert_eq!((percpu(), parent.live()), (0, 0));
    assert!(runtime.verify().is_ok());
}
