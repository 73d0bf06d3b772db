//! The cost of a scrape: `cargo bench -p memcg-observe --bench scrape [-- GROUPS]`, with a million
//! groups unless said otherwise. It takes some seconds.
//!
//! The trees: all groups below the root as siblings, and a thousandth of them with a thousand below
//! each. The scrape shows one level, the 50 largest. The unit of the last column is a snapshot of
//! the same tree, which has a row for each group.

use std::hint::black_box;
use std::time::Instant;

use memcg::{Bytes, Charge, Limits, Runtime};
use memcg_observe::Exposition;

/// Bytes that a scrape may have, however many groups there are.
const BYTES_MAX: usize = 1 << 20;

/// Of so many runs the fastest counts: other work on the machine only adds.
const RUNS: usize = 5;

fn main() {
    // Cargo passes `--bench`.
    let numbers = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let groups = numbers
        .map(|argument| argument.parse().expect("a number of groups"))
        .next()
        .unwrap_or(1_000_000);
    println!(
        "{:<28} {:>10} {:>10} {:>12} {:>10}",
        "tree", "groups", "scrape", "bytes", "of a snapshot"
    );
    row("siblings", groups, 1, groups);
    row(
        "a thousand below each",
        groups,
        groups.div_ceil(1_000),
        groups,
    );
}

fn row(name: &str, groups: u64, tenants: u64, most: u64) {
    let runtime = Runtime::builder().build().expect("no odd setting");
    let mut held: Vec<Charge> = Vec::with_capacity(most as usize);
    let root = runtime.root();
    let charge = |parent: &memcg::Group, number: u64| {
        let group = parent.create(number, Limits::new()).expect("a free name");
        (
            group.charge(Bytes(64 + number % 4_096)).expect("no limit"),
            group,
        )
    };
    if tenants == 1 {
        held.extend((0..groups).map(|number| charge(&root, number).0));
    } else {
        for tenant in 0..tenants {
            let (own, group) = charge(&root, tenant);
            held.push(own);
            held.extend((0..groups / tenants).map(|number| charge(&group, number).0));
        }
    }
    let exposition = Exposition::new(&runtime).depth(1).top(50);
    let text = exposition.openmetrics();
    assert!(text.len() <= BYTES_MAX, "{} bytes", text.len());
    let fastest = |work: &dyn Fn()| {
        let times = (0..RUNS).map(|_| {
            let begun = Instant::now();
            work();
            begun.elapsed().as_secs_f64() * 1e3
        });
        times.fold(f64::INFINITY, f64::min)
    };
    let scrape = fastest(&|| drop(black_box(exposition.openmetrics())));
    let snapshot = fastest(&|| drop(black_box(runtime.snapshot())));
    let of_snapshot = scrape / snapshot;
    println!(
        "{name:<28} {:>10} {scrape:>7.1} ms {:>12} {of_snapshot:>13.4} ({snapshot:.0} ms)",
        held.len(),
        text.len()
    );
}
