//! One test for each behaviour that the library takes over from the kernel or decides on purpose,
//! named after the number of its statement.
//!
//! `T: R{A{B}}` reads: root R, child A, its child B. Where the outcome differs from the kernel's on
//! purpose, the test's comment says how. A statement with exact stock numbers runs with a fixed
//! stock (`adaptive(false)`), where they are promised; its twin runs with the adaptive stock, which
//! promises the outcome only.
//!
//! Some statements are the kernel's own tests, which `selftests` has: 48 is
//! `test_memcg_oom_events`, 57 to 59 are `test_memcg_oom_group_leaf_events`, `..._parent_events`
//! and `..._score_events`, 65 is `test_memcg_swap_max_peak`, 75 is `test_kmem_memcg_deletion`, 82
//! are `test_percpu_basic`, `test_kmem_kernel_stacks` and `test_memcg_sock`. Of statement 88
//! `statistics/stats/visits.rs` has the figures, of 91 `stress/statistics` the threads.

/// Two tests of one statement: with a stock whose numbers are exact, or none, and with the adaptive
/// one. Each has a name and the arguments of the function that holds the statement, once for each
/// call.
macro_rules! twins {
    ($statement:ident: $($(#[$doc:meta])* $test:ident $(($($argument:expr),*))+,)+) => {
        $(
            $(#[$doc])*
            #[test]
            fn $test() {
                $($statement($($argument),*);)+
            }
        )+
    };
}

mod high;
mod kmem;
mod lifecycle;
mod oom;
mod page_counter;
mod peak;
mod pools;
mod protection;
mod reclaim;
mod soft_limit;
mod stats;
mod stock;
mod swap;

use std::time::Duration;

use memcg::{Bytes, CounterConfig, Group, Limits, PageCounter, Runtime, RuntimeBuilder};

pub(crate) use crate::support::workers::Other;

/// A batch of 64 that stays as it is: exact numbers.
pub(crate) fn fixed() -> CounterConfig {
    CounterConfig::new().batch(64).adaptive(false).audit(true)
}

/// A batch of 64 that closes near a limit.
pub(crate) fn adaptive() -> CounterConfig {
    CounterConfig::new().batch(64).adaptive(true).audit(true)
}

/// No stock: the bare counter.
pub(crate) fn bare() -> CounterConfig {
    CounterConfig::new().batch(0).audit(true)
}

/// Groups without stock: usage is what is live.
pub(crate) fn bare_groups() -> RuntimeBuilder {
    adaptive_groups().batch(Bytes(0))
}

/// Groups as they are by default, on a machine that stands still now and then: no charge is refused
/// for that.
pub(crate) fn adaptive_groups() -> RuntimeBuilder {
    Runtime::builder()
        .audit(true)
        .reclaim_time(Duration::from_secs(600))
}

#[track_caller]
pub(crate) fn create(parent: &Group, name: &str, limits: Limits) -> Group {
    parent.create(name, limits).expect("a name that is free")
}

/// Panics unless all groups add up, the excess included.
#[track_caller]
pub(crate) fn assert_groups_sound(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
}

/// Panics unless the whole tree adds up.
#[track_caller]
pub(crate) fn assert_sound(root: &PageCounter) {
    let verdict = root.verify();
    assert!(verdict.is_ok(), "{verdict}");
    assert!(verdict.audited());
}
