//! Hits without a guard whose bytes add up to 2^64.

use memcg::{Bytes, Charge, Group, Limits, Runtime};

/// Guards take credit, and calls by amount put it back: no call misses, and usage stays small.
#[test]
fn hits_of_amounts_that_add_up_to_2_64_hide_no_guard() {
    const BATCH: u64 = 1 << 40;
    let runtime = Runtime::builder()
        .batch(Bytes(BATCH))
        .adaptive(false)
        .build()
        .expect("valid");
    let root = runtime.root();
    let group = root.create("q", Limits::new()).expect("a name");
    let mut rounds = u128::from(u64::MAX) + 1;
    let mut guard = None;
    while rounds > 0 {
        let n = BATCH.min(u64::try_from(rounds).unwrap_or(BATCH));
        let held = group.force_charge(Bytes(n));
        group.raw().uncharge(Bytes(n));
        rounds -= u128::from(n);
        guard.replace(held).map(Charge::forget);
    }
    assert!(group.usage() <= 4 * BATCH, "credit and no more");
    let id = group.id();
    group.offline().expect("no children");
    drop(group);
    runtime.settle();
    let next: Vec<Group> = (0..80)
        .map(|number| {
            root.create(&format!("next{number}"), Limits::new())
                .expect("a name")
        })
        .collect();
    assert_eq!(
        runtime.find(id).map(|group| group.path()).as_deref(),
        Some("/q"),
        "guards live"
    );
    drop(guard);
    assert!(next.iter().all(|next| next.usage() == 0));
}
