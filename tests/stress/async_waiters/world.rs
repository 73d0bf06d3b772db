//! Tenants, their queries, and what must hold of them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use memcg::{Bytes, Charge, Group, Limit, Limits, Runtime};

pub(crate) const TASKS: usize = 10_000;
const TENANTS: usize = 10;
const QUERIES: usize = 10;

/// The largest charge of a task.
const CHARGE: u64 = 8 << 10;
const QUERY_MAX: u64 = 4 * CHARGE;
/// Less than its queries hold together.
const TENANT_MAX: u64 = 24 * CHARGE;

pub(crate) struct World {
    pub(crate) runtime: Runtime,
    tenants: Vec<Group>,
    queries: Vec<Group>,
    admissions: AtomicUsize,
    bytes: AtomicU64,
}

impl World {
    pub(crate) fn new() -> Self {
        let runtime = Runtime::builder()
            .audit(true)
            .batch(Bytes(4_096))
            .build()
            .expect("a configuration that holds");
        let max = |bytes| Limits::new().max(Limit::Bytes(bytes));
        let create = |parent: &Group, name: &str, number, bytes| {
            parent
                .create(&format!("{name}{number}"), max(bytes))
                .expect("a free name")
        };
        let tenants: Vec<Group> = (0..TENANTS)
            .map(|number| create(&runtime.root(), "tenant", number, TENANT_MAX))
            .collect();
        let queries = (0..TENANTS * QUERIES)
            .map(|number| create(&tenants[number % TENANTS], "query", number, QUERY_MAX))
            .collect();
        Self {
            runtime,
            tenants,
            queries,
            admissions: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn group_of(&self, task: usize) -> &Group {
        &self.queries[task % self.queries.len()]
    }

    /// From a byte to the largest.
    pub(crate) fn bytes_of(&self, number: usize) -> u64 {
        1 + number as u64 * 2_654_435_761 % CHARGE
    }

    pub(crate) fn admitted(&self, charge: &Charge) {
        self.admissions.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(charge.bytes(), Ordering::Relaxed);
    }

    /// No room anywhere: every other tenant is full by itself, the others by queries of theirs that
    /// are full too.
    pub(crate) fn plug(&self) -> Vec<Charge> {
        let full = |group: &Group| {
            group
                .charge(Bytes(group.max() - group.usage()))
                .expect("room for so much")
        };
        let mut plugs: Vec<Charge> = self.tenants.iter().step_by(2).map(full).collect();
        for tenant in self.tenants.iter().skip(1).step_by(2) {
            plugs.extend(
                tenant
                    .children()
                    .iter()
                    .take((TENANT_MAX / QUERY_MAX) as usize)
                    .map(full),
            );
        }
        plugs
    }

    /// Tasks that wait at tenants, and at queries.
    pub(crate) fn waiting_by_level(&self) -> (usize, usize) {
        let sum = |groups: &[Group]| groups.iter().map(Group::waiting_count).sum();
        (sum(&self.tenants), sum(&self.queries))
    }

    pub(crate) fn waiting_count(&self) -> usize {
        let (tenants, queries) = self.waiting_by_level();
        tenants + queries
    }

    /// Every task has got what it wanted and has given it back.
    pub(crate) fn check_end(&self, admissions: usize) {
        assert_eq!(self.admissions.load(Ordering::SeqCst), admissions);
        let root = self.runtime.root();
        assert_eq!((self.waiting_count(), root.waiting_count()), (0, 0));
        let verdict = self.runtime.verify();
        assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
        root.memory().drain();
        for group in root.inspect().descendants().chain([root.clone()]) {
            assert_eq!((group.usage(), group.forced()), (0, 0), "{}", group.path());
            assert!(
                group.peak() <= group.max(),
                "{}: peak {}",
                group.path(),
                group.peak()
            );
        }
        let counts = self.runtime.counts();
        assert_eq!(
            (counts.underflows, counts.overflows, counts.discarded),
            (0, 0, 0)
        );
    }
}
