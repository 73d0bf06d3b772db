//! A large tree whose groups come and go on several threads: a thread that looks meanwhile finds
//! all that stays, once, and nothing that never was.
//!
//! * here: the tree, and the threads that change it; `look_up`: by path and by id; `walks`:
//!   children, descendants, the table, `verify`.
//!
//! One test at a time: each has the machine's memory to itself. `MEMCG_SCALE_GROUPS` sets how many
//! groups stay.

mod look_up;
mod walks;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memcg::{Charge, Group, GroupId, Limits, Runtime, RuntimeBuilder};

use crate::support::turns::{Turn, turn};

/// As many as a busy service has; a build without optimisation has a tenth of them.
pub(crate) const GROUPS: usize = if cfg!(debug_assertions) {
    100_000
} else {
    1_000_000
};

/// Groups directly below the root; the others are spread over them.
pub(crate) const TENANTS: usize = 100;

/// Ids that are kept of groups that come and go.
const LATEST: usize = 64;

/// Every so many of those that stay hold something.
const CHARGED: usize = 100;

/// One test at a time.
pub(crate) fn alone() -> (Turn, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    (
        turn(module_path!()),
        ALONE.lock().unwrap_or_else(PoisonError::into_inner),
    )
}

pub(crate) fn groups() -> usize {
    std::env::var("MEMCG_SCALE_GROUPS").map_or(GROUPS, |groups| {
        groups
            .replace('_', "")
            .parse()
            .unwrap_or_else(|e| panic!("MEMCG_SCALE_GROUPS={groups}: {e}"))
    })
}

#[track_caller]
pub(crate) fn create(parent: &Group, name: &str) -> Group {
    parent
        .create(name, Limits::new())
        .expect("a name that is free")
}

/// Groups that stay, and what some of them hold.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) root: Group,
    pub(crate) tenants: Vec<Group>,
    /// Below each tenant as many as below the next, by number.
    pub(crate) stays: Vec<Vec<Group>>,
    held: Vec<Charge>,
}

impl World {
    /// About `groups` of them.
    pub(crate) fn of(builder: RuntimeBuilder, groups: usize) -> Self {
        let runtime = builder.build().expect("a configuration that holds");
        let root = runtime.root();
        let tenants: Vec<Group> = (0..TENANTS)
            .map(|tenant| create(&root, &format!("tenant{tenant}")))
            .collect();
        let below = |tenant: &Group| {
            (0..groups / TENANTS)
                .map(|query| create(tenant, &format!("q{query}")))
                .collect()
        };
        let stays: Vec<Vec<Group>> = tenants.iter().map(below).collect();
        let charged = stays.iter().flatten().step_by(CHARGED);
        let held = charged
            .map(|group| group.charge(10).expect("no limit"))
            .collect();
        Self {
            runtime,
            root,
            tenants,
            stays,
            held,
        }
    }

    /// The root included.
    pub(crate) fn len(&self) -> usize {
        1 + TENANTS + self.stays.iter().map(Vec::len).sum::<usize>()
    }

    /// One thread's groups: each with a child and a charge, in one tenant after the other, until
    /// all `looks` are done. Returns how many there were; the latest of their ids come first.
    pub(crate) fn come_and_go(
        &self,
        thread: usize,
        looks: &Looks,
        latest: &Mutex<Vec<GroupId>>,
    ) -> usize {
        let mut come = 0;
        while !looks.are_done() {
            let tenant = &self.tenants[(come * 7 + thread) % TENANTS];
            let name = format!("passing{thread}");
            let group = create(tenant, &name);
            let below = create(&group, "below");
            let held = below.charge(3).expect("no limit");
            if come % 16 == 0 {
                let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
                latest.truncate(LATEST - 2);
                latest.extend([group.id(), below.id()]);
                latest.rotate_right(2);
            }
            if come % 2 == 0 {
                group.offline_tree();
            } else {
                below.offline().expect("no children");
                group.offline().expect("its child is offline");
            }
            drop((below, held, group));
            come += 1;
        }
        come
    }

    /// No thread is at work any more: those are there that stay, and all adds up. Then they go as
    /// well.
    pub(crate) fn end(self) {
        self.runtime.settle();
        assert_eq!(
            (self.runtime.group_count(), self.runtime.dying_count()),
            (self.len(), 0)
        );
        assert_eq!(self.root.live(), 10 * self.held.len() as u64);
        let verdict = self.runtime.verify();
        assert!(
            verdict.is_ok() && verdict.counter_count() == self.len(),
            "{verdict}"
        );
        let Self {
            runtime,
            root,
            tenants,
            stays,
            held,
        } = self;
        let id = stays[0][0].id();
        tenants.iter().for_each(Group::offline_tree);
        assert_eq!(runtime.group_count(), 1);
        drop((stays, held, tenants));
        runtime.settle();
        root.memory().drain();
        assert_eq!(
            (
                runtime.dying_count(),
                root.usage(),
                root.children(),
                runtime.find(id)
            ),
            (0, 0, Vec::new(), None)
        );
        let verdict = runtime.verify();
        assert!(verdict.is_ok() && verdict.counter_count() == 1, "{verdict}");
    }
}

/// The number of threads that are still looking.
pub(crate) struct Looks {
    left: AtomicUsize,
    failed: AtomicBool,
}

/// One of them; gone by panic or not, it is waited for no more.
pub(crate) struct Look<'a>(&'a Looks);

impl Looks {
    pub(crate) fn of(threads: usize) -> Self {
        Self {
            left: AtomicUsize::new(threads),
            failed: AtomicBool::new(false),
        }
    }

    pub(crate) fn one(&self) -> Look<'_> {
        Look(self)
    }

    fn are_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0 || self.failed.load(Ordering::Relaxed)
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.0
            .failed
            .fetch_or(std::thread::panicking(), Ordering::Relaxed);
        self.0.left.fetch_sub(1, Ordering::Release);
    }
}
