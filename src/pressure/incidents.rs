//! Notes refusals and victims, for those who ask what happened last, and refusals for subscribers
//! of `tracing`. A tree that keeps none costs a load, and so does a process without a subscriber.

use std::time::SystemTime;

use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{group_tree, names};
use crate::state::incidents::{Incident, IncidentKind};
use crate::thread::reports::{self, RefusalReport};
use crate::thread::slow_path;

/// Keeps an incident of `group` at the level that met its max, if the tree does. The caller holds
/// no lock. Inside another slow path the thread notes nothing: it may be an allocator, or hold
/// locks.
#[inline]
pub(crate) fn note(
    kind: IncidentKind,
    group: &Counter,
    requested: u64,
    refusal: &LevelRefusal<'_>,
) {
    if group_tree::of(refusal.level).incidents.keeps() {
        note_slow(kind, group, requested, refusal);
    }
    // Victims are events of their own.
    if kind != IncidentKind::Victim && reports::wants_refusals() && !slow_path::is_running() {
        trace_slow(kind, group, requested, refusal);
    }
}

/// Notes a refusal for subscribers, which get it at the end of the path.
#[cold]
fn trace_slow(kind: IncidentKind, group: &Counter, requested: u64, refusal: &LevelRefusal<'_>) {
    // An allocator may charge what this thread allocates here, as below.
    let _path = SlowPath::enter();
    let &LevelRefusal {
        level: limited,
        usage,
        max,
        ..
    } = refusal;
    let first = limited.first();
    reports::note_refusal(first.key(), || RefusalReport {
        kind: kind.name(),
        group: names::path(group),
        limited: names::path(limited),
        counter: group_tree::further_name(limited),
        requested,
        usage,
        max,
    });
}

#[cold]
fn note_slow(kind: IncidentKind, group: &Counter, requested: u64, refusal: &LevelRefusal<'_>) {
    if slow_path::is_running() {
        return;
    }
    // An allocator may charge what this thread allocates here: inside of the path, so that it notes
    // nothing in turn.
    let _path = SlowPath::enter();
    let &LevelRefusal {
        level: limited,
        usage,
        max,
        ..
    } = refusal;
    let incident = Incident {
        number: 0,
        at: SystemTime::now(),
        kind,
        group: names::path(group),
        limited: names::path(limited),
        counter: group_tree::further_name(limited).map(str::to_string),
        requested,
        usage,
        max,
    };
    group_tree::of(limited).incidents.add(incident);
}

/// Those of a group and of the groups below it, oldest first.
pub(crate) fn of(group: &Counter) -> Vec<Incident> {
    let _path = SlowPath::enter();
    let top = names::path(group);
    let is_below = |path: &str| {
        // Below by whole names: `/acme` has `/acme/q17` below it, and not `/acmeister`.
        top == "/"
            || path
                .strip_prefix(top.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    group_tree::of(group)
        .incidents
        .all(|incident| is_below(&incident.group) || is_below(&incident.limited))
}

/// Keeps the last `most` from now on.
pub(crate) fn keep(root: &Counter, most: usize) {
    let _path = SlowPath::enter();
    group_tree::of(root).incidents.set_most(most);
}
