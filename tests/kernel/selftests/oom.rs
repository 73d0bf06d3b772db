//! Which group is killed where reclaim brings nothing, which groups go with it, and which count it.

use memcg::{Event, Group, Limits};

use super::{Cell, PAGE, alloc_anon, assert_sound, count, create, max};
use crate::support::processes::Process;
use crate::support::reclaimers::MIB;

/// `alloc_anon_noexit` in `test_memcontrol.c`: a process that touches so much and stays.
#[track_caller]
fn alloc_anon_noexit(group: &Group, name: &str, bytes: u64) -> Process {
    let process = Process::below(group, name);
    process.allocate_by(PAGE, bytes).expect("room");
    process
}

#[track_caller]
fn assert_killed(processes: &[&Process]) {
    for process in processes {
        process.wait_until_dead();
        assert_eq!(process.kills(), 1, "{}", process.group().path());
    }
}

/// `test_memcg_oom_events` in `test_memcontrol.c`: one process above max is one OOM and one kill.
fn test_memcg_oom_events(cell: Cell) {
    let runtime = cell.build();
    let group = create(&runtime.root(), "memcg_test", max(30 * MIB));
    assert!(!alloc_anon(&group, 100 * MIB));
    assert!(group.children().is_empty(), "cgroup.procs");
    assert_eq!(
        [Event::Oom, Event::OomKill].map(|event| count(&group, event)),
        [1, 1]
    );
    assert_eq!(group.live(), 0);
    assert_sound(&runtime);
}

/// `test_memcg_oom_group_leaf_events` in `test_memcontrol.c`: all of the child are killed and no
/// group beside it. The parent counts it; with `memory_localevents`, which is `Events::local` here,
/// it does not.
fn test_memcg_oom_group_leaf_events(cell: Cell) {
    let runtime = cell.build();
    let parent = create(&runtime.root(), "memcg_test_0", Limits::new());
    let child = create(&parent, "memcg_test_1", max(50 * MIB));
    child.set_oom_group(true);
    let beside = alloc_anon_noexit(&parent, "beside", 60 * MIB);
    let sleepers = ["first", "second"].map(|name| alloc_anon_noexit(&child, name, MIB));
    assert!(!alloc_anon(&child, 100 * MIB));
    assert_killed(&sleepers.each_ref());
    assert!(count(&child, Event::OomKill) > 0);
    assert!(count(&parent, Event::OomKill) > 0);
    assert_eq!(parent.events().local().get(Event::OomKill), 0);
    assert_eq!(
        (beside.kills(), parent.live(), child.live()),
        (0, 60 * MIB, 0)
    );
    assert_sound(&runtime);
}

/// `test_memcg_oom_group_parent_events` in `test_memcontrol.c`: the parent's limit, and all in it
/// are killed, wherever they are below.
fn test_memcg_oom_group_parent_events(cell: Cell) {
    let runtime = cell.build();
    let parent = create(&runtime.root(), "memcg_test_0", max(80 * MIB));
    let child = create(&parent, "memcg_test_1", Limits::new());
    parent.set_oom_group(true);
    let above = alloc_anon_noexit(&parent, "above", 60 * MIB);
    let sleepers = ["first", "second"].map(|name| alloc_anon_noexit(&child, name, MIB));
    assert!(!alloc_anon(&child, 100 * MIB));
    assert_killed(&sleepers.each_ref());
    assert_killed(&[&above]);
    assert_eq!(parent.live(), 0);
    assert_sound(&runtime);
}

/// `test_memcg_oom_group_score_events` in `test_memcontrol.c`: all are killed but a process with an
/// `oom_score_adj` of -1000, which is exempt here. The kernel counts 3 kills of two processes:
/// `oom_kill_process` in `mm/oom_kill.c` kills the victim, then every group in its group, the
/// victim again. Here each is told once.
fn test_memcg_oom_group_score_events(cell: Cell) {
    let runtime = cell.build();
    let group = create(&runtime.root(), "memcg_test_0", max(50 * MIB));
    group.set_oom_group(true);
    let safe = alloc_anon_noexit(&group, "safe", MIB);
    safe.group().set_oom_exempt(true);
    let sleeper = alloc_anon_noexit(&group, "sleeper", MIB);
    assert!(!alloc_anon(&group, 100 * MIB));
    assert_killed(&[&sleeper]);
    assert_eq!(
        (count(&group, Event::OomKill), safe.kills(), safe.is_dead()),
        (2, 0, false)
    );
    safe.allocate_by(PAGE, MIB).expect("it lives");
    assert_eq!(group.live(), 2 * MIB);
    assert_sound(&runtime);
}

matrix! {
    test_memcg_oom_events
    test_memcg_oom_group_leaf_events
    test_memcg_oom_group_parent_events
    test_memcg_oom_group_score_events
}
