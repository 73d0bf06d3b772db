//! The policy at a max that nothing can be reclaimed for: refuse, or choose a victim.
//!
//! * `policy`: which one holds where; `choice`: which group is chosen; `subtrees`: which groups go
//!   together, which never;
//! * `hooks`: what a cancel hook may do, and what becomes of one that does nothing or panics;
//! * `charger`: the charge that asked, and those that wait; `several`: more than one at once;
//! * `in_vain`: who is not chosen, because all candidates hold too little or the asker wants more;
//! * `lowered`: a max that is set below usage; `events`: which group counts what; `reviewed`: what
//!   reviews found.

mod async_code;
mod charger;
mod choice;
mod events;
mod hooks;
mod in_vain;
mod lowered;
mod policy;
mod reviewed;
mod several;
mod subtrees;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{Bytes, Event, Group, OomPolicy, Registration, Runtime, RuntimeBuilder};

use crate::support::trees;

pub(crate) use crate::support::processes::Process;
pub(crate) use crate::support::reclaimers::{Cache, KIB, Log, MIB, call, lock};
pub(crate) use crate::support::trees::{
    LeftEmpty, assert_sound, charge, create, left_empty, limited,
};
pub(crate) use crate::support::waiters::{
    WATCHDOG, admitted, block_on, blocked, in_line, join, turned_away, until,
};

/// For victims that give up what they have: a slow machine is no reason to take the next one.
pub(crate) const PATIENT: Duration = Duration::from_secs(40);
/// For victims that give up nothing.
pub(crate) const HASTY: Duration = Duration::from_millis(10);

/// No stock.
pub(crate) fn bare() -> RuntimeBuilder {
    trees::bare().oom_time(PATIENT)
}

/// Every kind of stock.
pub(crate) fn kinds() -> [RuntimeBuilder; 3] {
    trees::kinds().map(|builder| builder.oom_time(PATIENT))
}

/// A runtime whose groups choose.
#[track_caller]
pub(crate) fn build(builder: RuntimeBuilder) -> Runtime {
    let runtime = trees::build(builder);
    runtime.root().set_oom_policy(OomPolicy::Choose);
    runtime
}

/// A domain of 100 KiB, and a list of the victims that are told to stop there.
#[track_caller]
pub(crate) fn domain(runtime: &Runtime) -> (Group, Victims) {
    (
        limited(&runtime.root(), "domain", 100 * KIB),
        Victims::default(),
    )
}

pub(crate) fn local(group: &Group, event: Event) -> u64 {
    group.events().local().get(event)
}

pub(crate) fn all(group: &Group, event: Event) -> u64 {
    group.events().get(event)
}

/// A cancel that was told to a group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) group: String,
    pub(crate) domain: String,
    pub(crate) wanted: u64,
    pub(crate) overrun: u64,
}

/// A group that was told to stop, in order.
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
    pub(crate) fn stubborn(&self, group: &Group) -> Registration {
        self.hook(group, || ())
    }

    /// One that gives all of this up, at once and on the charger's thread.
    pub(crate) fn obedient(&self, group: &Group, bytes: u64) -> Registration {
        let held = Mutex::new(Some(group.force_charge(Bytes(bytes))));
        self.hook(group, move || drop(lock(&held).take()))
    }

    pub(crate) fn hook(
        &self,
        group: &Group,
        then: impl Fn() + Send + Sync + 'static,
    ) -> Registration {
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

/// One after the other, a runtime of each kind.
pub(crate) fn runtimes() -> impl Iterator<Item = LeftEmpty> {
    kinds()
        .into_iter()
        .map(|builder| left_empty(build(builder)))
}
