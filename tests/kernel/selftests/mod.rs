//! The kernel's self-tests of its memory controller,
//! `tools/testing/selftests/cgroup/test_memcontrol.c` and `test_kmem.c`: their scenarios, their
//! sizes and their tolerances, on what users of groups read.
//!
//! Each scenario bears the name of the kernel's function, and runs in four cells, which are tests
//! of their own:
//!
//! | cell | stock | what children do not claim of their parent's protection |
//! |---|---|---|
//! | `bare` | none (`batch(0)`) | protects no group |
//! | `bare_recursive` | none | protects groups that use more (`memory_recursiveprot`) |
//! | `stock` | as it is by default | protects no group |
//! | `stock_recursive` | as it is by default | protects groups that use more |
//!
//! A page of the kernel's is one charge of 4 KiB here; nothing of it is allocated. `memory.current`
//! is [`Group::usage`], and [`Group::live`] is held to the same tolerance. Where the default stock
//! makes usage larger than a scenario allows, it says so and compares `live` alone.

/// The four cells of each scenario, which is a function of its cell.
macro_rules! matrix {
    ($($scenario:ident)+) => {
        $(
            mod $scenario {
                use super::super::Cell;

                #[test]
                fn bare() {
                    super::$scenario(Cell { stock: false, recursive: false });
                }

                #[test]
                fn bare_recursive() {
                    super::$scenario(Cell { stock: false, recursive: true });
                }

                #[test]
                fn stock() {
                    super::$scenario(Cell { stock: true, recursive: false });
                }

                #[test]
                fn stock_recursive() {
                    super::$scenario(Cell { stock: true, recursive: true });
                }
            }
        )+
    };
}

mod kmem;
mod memcontrol;
mod oom;
mod pages;
mod protection;
mod reclaim;
mod sock;
mod swap;

use std::time::Duration;

use memcg::{
    Bytes, Event, Freshness, Group, Limit, Limits, OomPolicy, Runtime, RuntimeBuilder, StatKey,
};

use crate::support::processes::Process;

pub(crate) const PAGE: u64 = 4_096;

/// No group is given up on because the machine is slow.
const PATIENCE: Duration = Duration::from_secs(600);

/// The configuration of the groups of a test.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    stock: bool,
    recursive: bool,
}

impl Cell {
    pub(crate) fn builder(self) -> RuntimeBuilder {
        let builder = Runtime::builder()
            .audit(true)
            .recursive_protection(self.recursive)
            .reclaim_time(PATIENCE)
            .oom_time(PATIENCE);
        if self.stock {
            builder
        } else {
            builder.batch(Bytes(0))
        }
    }

    /// As the kernel has it: where reclaim brings nothing, a group is killed.
    pub(crate) fn build(self) -> Runtime {
        build(self.builder())
    }
}

pub(crate) fn build(builder: RuntimeBuilder) -> Runtime {
    let runtime = builder.build().expect("a configuration");
    runtime.root().set_oom_policy(OomPolicy::Choose);
    runtime
}

#[track_caller]
pub(crate) fn create(parent: &Group, name: &str, limits: Limits) -> Group {
    parent.create(name, limits).expect("a name that is free")
}

pub(crate) fn max(bytes: u64) -> Limits {
    Limits::new().max(Limit::Bytes(bytes))
}

/// `values_close` of the kernel's `cgroup_util.h`: they differ by no more than so many percent of
/// their sum.
pub(crate) fn values_close(a: u64, b: u64, percent: u64) -> bool {
    a.abs_diff(b) <= (a + b) / 100 * percent
}

/// `memory.current` is as close to `expected` as the kernel's test wants it, and so is what is
/// live.
#[track_caller]
pub(crate) fn assert_current(group: &Group, expected: u64, percent: u64) {
    for (what, bytes) in [("usage", group.usage()), ("live", group.live())] {
        let path = group.path();
        assert!(
            values_close(bytes, expected, percent),
            "{what} of {path}: {bytes}, expected {expected} by {percent} %"
        );
    }
}

/// One item as `memory.stat` shows it; no thread may change it meanwhile. A read that did not have
/// to be exact is no further off than it says.
#[track_caller]
pub(crate) fn stat(group: &Group, stat: StatKey) -> u64 {
    let shown = group.read(Freshness::Threshold);
    let exact = group.read(Freshness::Exact).get(stat);
    assert!(
        shown.get(stat).abs_diff(exact) <= shown.max_error_of(stat),
        "{shown:?}, exactly {exact}"
    );
    u64::try_from(exact).expect("what is held is not negative")
}

/// So often in `memory.events`, which counts what happened below, too.
pub(crate) fn count(group: &Group, event: Event) -> u64 {
    group.events().get(event)
}

/// `alloc_anon` of the kernel's `cgroup_util.c`, run as `cg_run` does: a process in `group` touches
/// so many bytes, page after page, and exits. False: it was killed.
#[track_caller]
pub(crate) fn alloc_anon(group: &Group, bytes: u64) -> bool {
    let process = Process::below(group, "alloc_anon");
    let lived = match process.allocate_by(PAGE, bytes) {
        Ok(()) => true,
        Err(error) if error.is_cancelled() => {
            process.wait_until_dead();
            false
        }
        Err(other) => panic!("neither room nor a kill: {other}"),
    };
    process.exit().offline().expect("no children");
    lived
}

/// Panics unless all groups add up.
#[track_caller]
pub(crate) fn assert_sound(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
}
