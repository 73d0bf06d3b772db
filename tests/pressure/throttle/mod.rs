//! `high`, as a program that embeds the library meets it: charges above it succeed, reclaim first,
//! and take their time.
//!
//! * `writing`: setting it; `delay`: how long charges take, and which do not; `figures`: what is
//!   told of that;
//! * `reclaim`: which group is asked first; `futures`: charges that yield instead of sleeping;
//!   `events`: what is counted;
//! * `ended`: delays of groups that are cancelled or go offline.

mod delay;
mod ended;
mod events;
mod figures;
mod futures;
mod reclaim;
mod writing;

use std::time::Duration;

use memcg::{Group, Limit, Limits, RuntimeBuilder};

use crate::support::trees;

pub(crate) use crate::support::reclaimers::{Cache, Crowded, KIB, Log, MIB, call, call_of};
pub(crate) use crate::support::trees::{
    LeftEmpty, assert_empty, assert_sound, build, charge, create, left_empty,
};
pub(crate) use crate::support::waiters::{Polled, WATCHDOG, until};

/// The 64 pages for which a delay is told.
pub(crate) const BATCH: u64 = 256 * KIB;

/// Long enough for a machine that stands still now and then.
const UNTIMED: Duration = Duration::from_secs(600);

/// A delay that no test waits for.
pub(crate) const LONG: Duration = Duration::from_secs(3_600);

/// No stock.
pub(crate) fn bare() -> RuntimeBuilder {
    trees::bare().reclaim_time(UNTIMED)
}

/// Every kind of stock.
pub(crate) fn kinds() -> [RuntimeBuilder; 3] {
    trees::kinds().map(|builder| builder.reclaim_time(UNTIMED))
}

/// No charge sleeps.
pub(crate) fn undelayed() -> impl Iterator<Item = RuntimeBuilder> {
    kinds()
        .into_iter()
        .map(|builder| builder.delay_max(Duration::ZERO))
}

#[track_caller]
pub(crate) fn with_high(parent: &Group, name: &str, high: u64) -> Group {
    parent
        .create(name, Limits::new().high(Limit::Bytes(high)))
        .expect("a name that is free")
}

/// One after the other, a runtime of each kind.
pub(crate) fn runtimes() -> impl Iterator<Item = LeftEmpty> {
    kinds()
        .into_iter()
        .map(|builder| left_empty(build(builder)))
}
