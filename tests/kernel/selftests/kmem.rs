//! `test_kmem.c`: kernel memory, which here is what a service keeps about its own work, object by
//! object.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;

use memcg::kmem::{Kmem, NodeId, Placement};
use memcg::{
    Bytes, Group, Limit, Limits, Reclaim, ReclaimContext, ReclaimPriority, Registration, StatKey,
    Unit,
};

use super::{Cell, PAGE, assert_sound, build, create, stat};
use crate::support::reclaimers::{MIB, lock};
use crate::support::workers::Other;

/// A negative dentry, and its name, which is too long to be in it.
const DENTRY: u64 = 192 + 128;

fn processors() -> u64 {
    available_parallelism().map_or(2, |processors| processors.get().min(16)) as u64
}

/// `MAX_VMSTAT_ERROR`: what the kernel's batches let usage be off its statistics.
fn max_vmstat_error() -> u64 {
    PAGE * 64 * processors()
}

fn hold(group: &Group, stat: StatKey, bytes: u64) -> Kmem {
    group
        .precharge(Bytes(bytes))
        .expect("no max")
        .account_as(stat, &Placement::on(NodeId::new(0), Bytes(bytes)))
}

/// Dentries that no group uses: they stay when the process that looked for them has ended, until
/// reclaim takes them, the oldest first.
struct Dcache {
    group: Group,
    dentries: Mutex<VecDeque<Kmem>>,
}

impl Dcache {
    fn of(group: &Group) -> (Registration, Arc<Dcache>) {
        let dcache = Arc::new(Dcache {
            group: group.clone(),
            dentries: Mutex::default(),
        });
        (
            group.register_reclaimer(
                Arc::clone(&dcache) as Arc<dyn Reclaim>,
                ReclaimPriority::NORMAL,
            ),
            dcache,
        )
    }

    /// `alloc_dcache` in `test_kmem.c`: looks for so many files that do not exist.
    fn alloc(&self, dentries: u64) {
        for _ in 0..dentries {
            let dentry = hold(&self.group, StatKey::SLAB, DENTRY);
            lock(&self.dentries).push_back(dentry);
        }
    }

    /// All go to another group.
    fn reparent(&self, to: &Group) {
        for dentry in &mut *lock(&self.dentries) {
            dentry.transfer(to).expect("no max");
        }
    }
}

impl Reclaim for Dcache {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut freed = 0;
        while freed < want {
            // The dentry goes when the lock is free again.
            let Some(dentry) = lock(&self.dentries).pop_front() else {
                break;
            };
            freed += dentry.bytes();
        }
        freed
    }

    fn reclaimable(&self) -> u64 {
        lock(&self.dentries).len() as u64 * DENTRY
    }
}

/// `test_kmem_basic` in `test_kmem.c`: 100,000 dentries show in *slab*; high is set to 1M, and at
/// least half of them go.
fn test_kmem_basic(cell: Cell) {
    let runtime = cell.build();
    let group = create(&runtime.root(), "kmem_basic_test", Limits::new());
    let (registration, dcache) = Dcache::of(&group);
    Other::spawn().with(&dcache, |dcache| dcache.alloc(100_000));
    let before = stat(&group, StatKey::SLAB);
    assert!(before >= MIB, "{before}");
    // No group has to wait for RCU.
    group
        .set_limits(Limits::new().high(Limit::Bytes(MIB)))
        .expect("a number");
    for after in [stat(&group, StatKey::SLAB), group.usage(), group.live()] {
        assert!(after < before / 2, "{after} of {before}");
    }
    drop((registration, dcache));
    assert_eq!((stat(&group, StatKey::SLAB), group.live()), (0, 0));
    assert_sound(&runtime);
}

/// `test_kmem_memcg_deletion` in `test_kmem.c`: 100 groups come and go, in each of which 2 threads
/// for each processor leave 100 dentries. What the parent holds is what its items come to.
///
/// Each of those threads has ended with credit in its stock, in a group that is gone: with the
/// default stock the parent's usage is larger than the sum by up to its `stocked_bound`, until that
/// credit is settled or drained. So the sum is compared with what is live, and with usage once that
/// is drained; without stock the bound is 0.
fn test_kmem_memcg_deletion(cell: Cell) {
    let runtime = cell.build();
    let parent = create(&runtime.root(), "kmem_memcg_deletion_test", Limits::new());
    let mut left = Vec::new();
    for number in 0..100 {
        let child = create(&parent, &format!("child_{number}"), Limits::new());
        let (registration, dcache) = Dcache::of(&child);
        std::thread::scope(|scope| {
            for _ in 0..2 * processors() {
                scope.spawn(|| dcache.alloc(100));
            }
        });
        child.offline().expect("no children");
        left.push((registration, dcache));
    }
    // *kernel* contains *slab* and *percpu* in the kernel; here each is an item of its own.
    let items = [
        StatKey::ANON,
        StatKey::FILE,
        StatKey::KERNEL,
        StatKey::SLAB,
        StatKey::PERCPU,
        StatKey::SOCK,
    ];
    let sum: u64 = items.into_iter().map(|item| stat(&parent, item)).sum();
    assert_eq!(sum, 100 * 2 * processors() * 100 * DENTRY);
    let assert_near = |current: u64| {
        assert!(
            current.abs_diff(sum) < max_vmstat_error(),
            "{current}, not {sum}"
        )
    };
    assert_near(parent.live());
    let credit = parent.usage() - sum;
    assert!(credit <= parent.memory().stocked_bound(), "{credit}");
    parent.memory().drain();
    assert_near(parent.usage());
    assert_sound(&runtime);
    drop(left);
    runtime.settle();
    assert_eq!((parent.live(), runtime.dying_count()), (0, 0));
}

/// `test_kmem_kernel_stacks` in `test_kmem.c`: a process starts 1,000 threads, and *kernel_stack*
/// is no less than a page for each. As in the kernel, the group that starts a thread is charged for
/// its stack; what the thread does is no group's concern.
fn test_kmem_kernel_stacks(cell: Cell) {
    let mut builder = cell.builder();
    let kernel_stack = builder.stat_per_node("kernel_stack", Unit::Bytes);
    let runtime = build(builder);
    let group = create(&runtime.root(), "kmem_kernel_stacks_test", Limits::new());
    let process = Other::spawn();
    let threads: Vec<Kmem> = process.with(&group, move |group: &Group| {
        (0..1_000)
            .map(|_| hold(group, kernel_stack, PAGE))
            .collect()
    });
    assert!(stat(&group, kernel_stack) >= 1_000 * PAGE);
    assert!(group.usage() >= 1_000 * PAGE && group.live() >= 1_000 * PAGE);
    drop((threads, process));
    assert_eq!((stat(&group, kernel_stack), group.live()), (0, 0));
    assert_sound(&runtime);
}

/// `test_kmem_dead_cgroups` in `test_kmem.c`: 30 groups come and go, each leaves 100 dentries, and
/// none of them is dying afterwards. The kernel moves what they leave to their parent; here a group
/// is dying until its owner does, or reclaim has taken it. Both are shown: no group has to wait for
/// either.
fn test_kmem_dead_cgroups(cell: Cell) {
    for reparented in [true, false] {
        let runtime = cell.build();
        let parent = create(&runtime.root(), "kmem_dead_cgroups_test", Limits::new());
        let mut left = Vec::new();
        for number in 0..30 {
            let child = create(&parent, &format!("child_{number}"), Limits::new());
            let (registration, dcache) = Dcache::of(&child);
            Other::spawn().with(&dcache, |dcache| dcache.alloc(100));
            child.offline().expect("no children");
            left.push((registration, dcache));
        }
        assert_eq!(runtime.dying_count(), 30);
        let bytes = 30 * 100 * DENTRY;
        assert_eq!(parent.live(), bytes);
        if reparented {
            left.iter().for_each(|(_, dcache)| dcache.reparent(&parent));
        } else {
            // Their reclaimers are the parent's by now.
            assert_eq!(
                parent
                    .reclaim(Bytes(bytes))
                    .expect("not inside a reclaimer")
                    .freed,
                bytes
            );
        }
        // The dentries alone: the rest of it has a handle on the group.
        let left: Vec<_> = left
            .into_iter()
            .map(|(_, dcache)| std::mem::take(&mut *lock(&dcache.dentries)))
            .collect();
        runtime.settle();
        assert_eq!(
            (runtime.dying_count(), parent.live()),
            (0, if reparented { bytes } else { 0 })
        );
        assert_sound(&runtime);
        drop(left);
    }
}

/// `test_percpu_basic` in `test_kmem.c`: a tree of 1,000 groups, each of which has copies for each
/// processor and an object in its parent. The parent's current is what *percpu* and *slab* come to.
fn test_percpu_basic(cell: Cell) {
    let runtime = cell.build();
    let parent = create(&runtime.root(), "percpu_basic_test", Limits::new());
    let children: Vec<_> = (0..1_000)
        .map(|number| {
            let child = create(&parent, &format!("child_{number}"), Limits::new());
            let percpu = hold(&parent, StatKey::PERCPU, 64 * processors());
            (child, percpu, hold(&parent, StatKey::SLAB, 1_024))
        })
        .collect();
    let percpu = stat(&parent, StatKey::PERCPU);
    let slab = stat(&parent, StatKey::SLAB);
    assert!(
        percpu >= 1_000 * 64 && slab == 1_000 * 1_024,
        "{percpu} and {slab}"
    );
    for current in [parent.usage(), parent.live()] {
        assert!(
            current > 0 && current.abs_diff(percpu + slab) < max_vmstat_error(),
            "{current}: {percpu} + {slab}"
        );
    }
    drop(children);
    assert_eq!(
        (
            stat(&parent, StatKey::PERCPU),
            stat(&parent, StatKey::SLAB),
            parent.live()
        ),
        (0, 0, 0)
    );
    assert_sound(&runtime);
}

matrix! {
    test_kmem_basic
    test_kmem_memcg_deletion
    test_kmem_kernel_stacks
    test_kmem_dead_cgroups
    test_percpu_basic
}
