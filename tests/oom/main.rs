#![cfg(not(loom))]
//! The policy at a max that nothing can be reclaimed for: refuse, or choose a victim.
//!
//! * `policy`: which one holds where; `choice`: who is chosen; `subtrees`: who goes with whom, and who never;
//! * `hooks`: what a cancel hook may do, and what becomes of one that does nothing or panics;
//! * `charger`: the charge that asked, and those that wait; `several`: more than one at once;
//! * `lowered`: a max that is set below usage; `events`: who counts what; `reviewed`: what reviews found.

#[path = "../processes/mod.rs"]
mod processes;
#[path = "../reclaimers/mod.rs"]
mod reclaimers;
#[path = "../waiters/mod.rs"]
mod waiters;

mod charger;
mod choice;
mod events;
mod hooks;
mod lowered;
mod policy;
mod reviewed;
mod several;
mod subtrees;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{Bytes, CancelHook, Charge, Event, Group, Limit, Limits, OomPolicy, Runtime, RuntimeBuilder};

pub(crate) use processes::Process;
pub(crate) use reclaimers::{Cache, KIB, Log, MIB, call, lock};
pub(crate) use waiters::{WATCHDOG, admitted, block_on, blocked, in_line, join, turned_away, until};

/// For victims that give up what they have: a slow machine is no reason to take the next one.
pub(crate) const PATIENT: Duration = Duration::from_secs(40);
/// For victims that give up nothing.
pub(crate) const HASTY: Duration = Duration::from_millis(10);

/// No stock.
pub(crate) fn bare() -> RuntimeBuilder {
    Runtime::builder().audit(true).batch(Bytes(0)).oom_time(PATIENT)
}

/// Every kind of stock.
pub(crate) fn kinds() -> [RuntimeBuilder; 3] {
    let stock = Runtime::builder().audit(true).batch(Bytes(4 * KIB)).oom_time(PATIENT);
    [bare(), stock.clone(), stock.adaptive(false)]
}

/// A runtime whose groups choose.
#[track_caller]
pub(crate) fn build(builder: RuntimeBuilder) -> Runtime {
    let runtime = builder.build().expect("a configuration that holds");
    runtime.root().set_oom_policy(OomPolicy::Choose);
    runtime
}

#[track_caller]
pub(crate) fn create(parent: &Group, name: &str) -> Group {
    parent.create(name, Limits::new()).expect("a name that is free")
}

#[track_caller]
pub(crate) fn limited(parent: &Group, name: &str, max: u64) -> Group {
    parent.create(name, Limits::new().max(Limit::Bytes(max))).expect("a name that is free")
}

#[track_caller]
pub(crate) fn charge(group: &Group, bytes: u64) -> Charge {
    group.try_charge(bytes).expect("room")
}

pub(crate) fn local(group: &Group, event: Event) -> u64 {
    group.events_local().get(event)
}

pub(crate) fn all(group: &Group, event: Event) -> u64 {
    group.events().get(event)
}

/// A cancel that was told to somebody.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) group: String,
    pub(crate) domain: String,
    pub(crate) wanted: u64,
    pub(crate) overrun: u64,
}

/// Who was told to stop, in order.
#[derive(Clone, Default)]
pub(crate) struct Victims(Arc<Mutex<Vec<Told>>>);

impl Victims {
    pub(crate) fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *lock(&self.0))
    }

    /// Their paths; the list is empty afterwards.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.take().into_iter().map(|told| told.group).collect()
    }

    /// A group whose hook notes the call, and does nothing about it.
    pub(crate) fn stubborn(&self, group: &Group) -> CancelHook {
        self.hook(group, || ())
    }

    /// One that gives all of this up, at once and on the charger's thread.
    pub(crate) fn obedient(&self, group: &Group, bytes: u64) -> CancelHook {
        let held = Mutex::new(Some(group.charge(bytes)));
        self.hook(group, move || drop(lock(&held).take()))
    }

    pub(crate) fn hook(&self, group: &Group, then: impl Fn() + Send + Sync + 'static) -> CancelHook {
        let told = Arc::clone(&self.0);
        group.on_cancel(move |cancel| {
            lock(&told).push(Told {
                group: cancel.group().path(),
                domain: cancel.domain().path(),
                wanted: cancel.wanted(),
                overrun: cancel.overrun(),
            });
            then();
        })
    }
}

#[track_caller]
pub(crate) fn assert_sound(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
}

/// All has been given back, nobody waits: nothing is left.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    let root = runtime.root();
    for group in root.descendants().chain([root.clone()]) {
        assert_eq!(group.waiting(), 0, "{}", group.path());
    }
    root.children().iter().for_each(Group::offline_tree);
    runtime.settle();
    root.drain();
    assert_eq!((root.usage(), root.forced(), runtime.dying()), (0, 0, 0));
    assert_sound(runtime);
}
