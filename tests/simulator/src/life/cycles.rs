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
use crate::threads::rest;

/// Of a kind, in a cycle: so many entries are more than a node of any table has room for.
const MANY: u64 = 48;

/// The times after which the heap is looked at. A table that grows by doubling grows between two of
/// them, and one that does not leak stays as it is between two of them at least.
const LOOKS: [u32; 5] = [2, 4, 8, 16, 32];

/// What a look at the heap may be off by.
const LEFT_MAX: usize = 512;

/// What may be left of delays between two looks: less than an entry for each.
const DELAYS_LEFT_MAX: usize = 1 << 10;

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
            sizes.push(in_use_at_rest());
            if let [.., before, now] = sizes[..]
                && now <= before
            {
                self.callbacks_leave_nothing(runtime);
                return self.delays_leave_nothing(runtime);
            }
        }
        panic!("bytes of the heap, after more and more that came and went: {sizes:?}");
    }

    /// A table that keeps an entry for each object that a group ever had grows no further once all
    /// have one: groups with callbacks leave no more behind than groups without.
    fn callbacks_leave_nothing(&self, runtime: &Runtime) {
        let after = |has_callbacks: bool| {
            for _ in 0..2 {
                let runtime = runtime.clone();
                self.actors[0].run(move || groups_with(&runtime, has_callbacks));
            }
        };
        after(false);
        let without = in_use_at_rest();
        after(true);
        let with = in_use_at_rest();
        assert!(
            with <= without + LEFT_MAX,
            "bytes of the heap, after groups without callbacks and after groups with some: {without}, {with}"
        );
    }

    /// Many charges are delayed, and dropped, time and again. The crate's threads come and go
    /// meanwhile, so this is no look to the byte.
    fn delays_leave_nothing(&self, runtime: &Runtime) {
        if self.setup.delay == 0 {
            return;
        }
        let mut sizes: Vec<usize> = Vec::with_capacity(LOOKS.len());
        let mut done = 0;
        for times in LOOKS {
            let runtime = runtime.clone();
            self.actors[0].run(move || (done..times).for_each(|_| delays(&runtime)));
            done = times;
            let most = sizes.last().map(|before| before + DELAYS_LEFT_MAX);
            sizes.push(in_use_at_rest());
            if most.is_some_and(|most| sizes.last().is_some_and(|&now| now <= most)) {
                return;
            }
        }
        panic!("bytes of the heap, after more and more delays: {sizes:?}");
    }
}

/// Bytes of the heap, once threads of the crate have done what they have to do with what has gone.
fn in_use_at_rest() -> usize {
    rest();
    denied::in_use()
}

fn delays(runtime: &Runtime) {
    let Ok(group) = runtime
        .root()
        .create("a name of delays", Limits::new().high(16))
    else {
        return;
    };
    let held = group.force_charge(1 << 20);
    let mut delays: Vec<_> = (0..MANY)
        .map(|_| Box::pin(group.charge_async(1 << 12)))
        .collect();
    for delay in &mut delays {
        let delay: Pin<&mut _> = delay.as_mut();
        drop(delay.poll(&mut Context::from_waker(Waker::noop())));
    }
    drop(delays);
    drop(held);
    group.offline_tree();
    runtime.settle();
}

fn callbacks_of(group: &Group) -> [memcg::Registration; 3] {
    [
        group.register_reclaimer(Arc::new(Nothing), ReclaimPriority::NORMAL),
        group.on_event(Event::Max, |_| {}),
        group.on_cancel(|_| {}),
    ]
}

/// As many groups as that, each with callbacks or without, come and go.
fn groups_with(runtime: &Runtime, has_callbacks: bool) {
    let root = runtime.root();
    let made = (0..MANY).map_while(|number| root.create(number, Limits::new()).ok());
    let made: Vec<Group> = made.collect();
    if has_callbacks {
        // No reclaimers: a ring of them keeps the place of its list for the next one.
        let callbacks =
            |group: &Group| (group.on_event(Event::Max, |_| {}), group.on_cancel(|_| {}));
        drop(made.iter().map(callbacks).collect::<Vec<_>>());
    }
    made.iter().for_each(Group::offline_tree);
    drop(made);
    runtime.settle();
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
    let callbacks = [&root, &group].map(callbacks_of);
    // Not by a verb whose listeners another thread calls.
    drop(group.charge(65));
    drop(callbacks);
    if let Ok(precharge) = group.precharge(Bytes(8)) {
        drop(precharge.account(&Placement::on(NodeId::new(0), 8)));
    }
    group.stat_add(StatKey::ANON, 1);
    // Windows of peaks, of a counter that stays.
    let memory = root.memory();
    for _ in 0..8 {
        drop((memory.peak_window(), memory.peak_live_window()));
    }
    // More than a thread has places for.
    let entered: Vec<_> = (0..MANY).map(|_| group.enter()).collect();
    drop(entered);
    root.children().iter().for_each(Group::offline_tree);
    runtime.settle();
}
