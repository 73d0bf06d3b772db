//! What comes and goes leaves no byte in the heap: tables of the crate that only grow are seen by
//! their size alone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use memcg::kmem::{NodeId, Placement};
use memcg::{
    Bytes, Event, Group, Limit, Limits, OomPolicy, Reclaim, ReclaimContext, ReclaimPriority,
    Runtime, StatKey,
};

use super::Life;
use crate::denied;

/// Of a kind, in a cycle: so many entries are more than a node of any table has room for.
const MANY: u64 = 48;

/// The times after which the heap is looked at. A table that grows by doubling grows between two of
/// them, and one that does not leak stays as it is between two of them at least.
const LOOKS: [u32; 5] = [2, 4, 8, 16, 32];

struct Nothing;

impl Reclaim for Nothing {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        0
    }
}

impl Life {
    /// Groups, waits, callbacks and memory come and go, until the heap is as large as it was when
    /// half as many had gone.
    pub(super) fn cycles_leave_nothing(&self) {
        let Some(runtime) = &self.runtime else {
            return;
        };
        // A thread of the runtime would choose victims for charges that have left meanwhile, and keep
        // them until then.
        runtime.root().set_oom_policy(OomPolicy::Refuse);
        let mut sizes = Vec::with_capacity(LOOKS.len());
        let mut done = 0;
        for times in LOOKS {
            for _ in done..times {
                // On a thread for which time goes on, where it is delayed.
                let runtime = runtime.clone();
                self.actors[0].run(move || cycle(&runtime));
            }
            done = times;
            sizes.push(denied::in_use());
            if let [.., before, now] = sizes[..]
                && now <= before
            {
                return;
            }
        }
        panic!("bytes of the heap, after more and more that came and went: {sizes:?}");
    }
}

fn cycle(runtime: &Runtime) {
    let root = runtime.root();
    let Ok(group) = root.create("a name that comes and goes", Limits::new().max(64)) else {
        return;
    };
    let below = group.create("below", Limits::new().soft(0));
    let in_line = below.as_ref().unwrap_or(&group);
    let held = group.force_charge(64);
    let mut waits: Vec<_> = (1..=MANY)
        .map(|bytes| Box::pin(in_line.charge_async(Bytes(bytes))))
        .collect();
    for wait in &mut waits {
        let wait: Pin<&mut _> = wait.as_mut();
        drop(wait.poll(&mut Context::from_waker(Waker::noop())));
    }
    drop(waits);
    drop(held);
    for number in 0..MANY {
        // One is taken, and the other has no max above to be a part of, or goes at once.
        drop(root.create("a name that comes and goes", Limits::new()));
        let name = format!("a name of a group that is not made, number {number}");
        let part = Limits::new().soft(Limit::percent(50));
        if let Ok(made) = root.create(&name, part) {
            made.offline_tree();
        }
    }
    let callbacks = [&root, &group].map(|group| {
        (
            group.register_reclaimer(Arc::new(Nothing), ReclaimPriority::NORMAL),
            group.on_event(Event::Max, |_| {}),
            group.on_cancel(|_| {}),
        )
    });
    // Not by a verb whose listeners another thread calls.
    drop(group.charge(65));
    drop(callbacks);
    if let Ok(precharge) = group.precharge(Bytes(8)) {
        drop(precharge.account(&Placement::on(NodeId::new(0), 8)));
    }
    group.stat_add(StatKey::ANON, 1);
    root.children().iter().for_each(Group::offline_tree);
    runtime.settle();
}
