//! A runtime and its groups, and what must hold of them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use memcg::barrier::BarrierMode;
use memcg::{
    Bytes, Charge, ChargeError, ChargeFuture, CounterKey, Group, GroupId, Limit, Limits, Runtime,
};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::lock;
use crate::forced::Forced;
use crate::support::poll::poll_for;
use crate::support::waiters::until;

/// Groups that stay for the life of their tree, and places for those that do not.
pub(crate) const PERMANENT: usize = 6;
pub(crate) const PASSING: usize = 24;

/// With no time to wait in line.
fn at_once(charge: ChargeFuture) -> Result<Charge, ChargeError> {
    match poll_for(&mut charge.timeout(Duration::ZERO), Duration::MAX) {
        Poll::Ready(ended) => ended,
        Poll::Pending => unreachable!("its time is over"),
    }
}

// === impl Stay ===

/// A group that stays, and what the sampler has to know about it.
pub(crate) struct Stay {
    pub(crate) group: Group,
    /// One setter at a time; the number is odd while one is at work.
    pub(crate) setter: Mutex<()>,
    pub(crate) setting: AtomicU64,
}

impl Stay {
    pub(crate) fn new(group: Group) -> Self {
        Self {
            group,
            setter: Mutex::new(()),
            setting: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_max(&self, limit: Limit) {
        let _one = lock(&self.setter);
        self.setting.fetch_add(1, Ordering::SeqCst);
        self.group.set_max(limit).expect("a number");
        self.setting.fetch_add(1, Ordering::SeqCst);
    }
}

// === impl World ===

/// One runtime and its groups.
pub(crate) struct World {
    /// Dropped early now and then.
    pub(crate) runtime: Option<Runtime>,
    pub(crate) spill: CounterKey,
    pub(crate) stays: Vec<Stay>,
    pub(crate) passing: Vec<Mutex<Option<Group>>>,
    /// Ids of groups that were there once.
    pub(crate) ids: Mutex<Vec<GroupId>>,
    pub(crate) forced: Forced,
}

impl World {
    pub(crate) fn random(rng: &mut SmallRng) -> Self {
        let mut builder = Runtime::builder()
            .audit(rng.random_bool(0.6))
            .batch(Bytes([64, 64, 2, 16, 200][rng.random_range(0..5)]))
            .adaptive(rng.random_bool(0.7));
        if rng.random_bool(0.2) {
            builder = builder.barrier(BarrierMode::Fence);
        }
        if rng.random_bool(0.3) {
            builder = builder.budget(Bytes(rng.random_range(0..5_000)));
        }
        let spill = builder.counter("spill", memcg::Unit::Bytes);
        let runtime = builder.build().expect("a configuration that holds");
        let mut stays = vec![Stay::new(runtime.root())];
        while stays.len() < PERMANENT {
            let parent = rng.random_range(0..stays.len());
            let name = format!("stay{}", stays.len());
            stays.push(Stay::new(
                stays[parent]
                    .group
                    .create(&name, Limits::new())
                    .expect("a name"),
            ));
        }
        let passing = (0..PASSING).map(|_| Mutex::default()).collect();
        Self {
            runtime: Some(runtime),
            spill,
            stays,
            passing,
            ids: Mutex::default(),
            forced: Forced::default(),
        }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("while the workers run")
    }

    pub(crate) fn any_group(&self, rng: &mut SmallRng) -> Group {
        match rng.random_range(0..PERMANENT + 2 * PASSING) {
            stay if stay < PERMANENT => self.stays[stay].group.clone(),
            place => {
                let passing = lock(&self.passing[(place - PERMANENT) % PASSING]).clone();
                passing.unwrap_or_else(|| self.stays[place % PERMANENT].group.clone())
            }
        }
    }

    /// Looks once; `false` when a limit or a forced charge came in between.
    pub(crate) fn sample(&self, stay: &Stay) -> bool {
        let setting = stay.setting.load(Ordering::SeqCst);
        let still = self.forced.still();
        // Forced excess first: while none is added it only falls, so it was at least as large when
        // usage was read.
        let forced = stay.group.forced();
        let max = stay.group.max();
        let usage = stay.group.usage();
        let quiet = still.is_some() && self.forced.still() == still;
        if !quiet || setting % 2 == 1 || stay.setting.load(Ordering::SeqCst) != setting {
            return false;
        }
        assert!(
            usage.saturating_sub(forced) <= max,
            "{}: usage {usage}, forced {forced}, max {max}",
            stay.group.path()
        );
        true
    }

    /// No thread charges: everything must add up. `held` and `raw` are all there is.
    pub(crate) fn check(&self, rng: &mut SmallRng, held: &[&Charge], raw: &[&(Group, u64)]) {
        let runtime = self.runtime();
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "{verdict}");
        let spilt = runtime.root().counter(self.spill).expect("declared").live();
        let mut live: HashMap<GroupId, (Group, u64)> = HashMap::new();
        let mut all = 0;
        let guarded = held
            .iter()
            .filter(|charge| charge.bytes() > 0)
            .map(|charge| (charge.group(), charge.bytes()));
        for (group, bytes) in
            guarded.chain(raw.iter().map(|(group, bytes)| (group.clone(), *bytes)))
        {
            all += bytes;
            for level in group.ancestors().chain([group]) {
                live.entry(level.id()).or_insert((level, 0)).1 += bytes;
            }
        }
        assert_eq!(runtime.root().live() + spilt, all);
        for (group, bytes) in live.into_values() {
            let spilt = group.counter(self.spill).expect("declared").live();
            assert_eq!(group.live() + spilt, bytes, "{}", group.path());
        }
        for stay in &self.stays {
            let usage = stay.group.usage();
            let forced = stay.group.forced();
            let max = stay.group.max();
            let ordinary = usage
                .checked_sub(forced)
                .expect("what was forced in is part of usage");
            assert!(
                ordinary <= max,
                "{}: usage {usage}, forced {forced}, max {max}",
                stay.group.path()
            );
        }
        let counts = runtime.counts();
        assert_eq!(
            (counts.underflows, counts.overflows, counts.discarded),
            (0, 0, 0)
        );
        self.check_never_refused(&self.any_group(rng));
    }

    /// All that is left below every limit is admitted to the byte, wherever the credit is; one more
    /// is not.
    pub(crate) fn check_never_refused(&self, group: &Group) {
        self.check_never_refused_by(group, |bytes| group.charge(Bytes(bytes)));
        self.check_never_refused_by(group, |bytes| group.try_charge(Bytes(bytes)));
        self.check_never_refused_by(group, |bytes| at_once(group.charge_async(Bytes(bytes))));
    }

    fn check_never_refused_by(
        &self,
        group: &Group,
        charge: impl Fn(u64) -> Result<Charge, ChargeError>,
    ) {
        let levels = || group.ancestors().chain([group.clone()]);
        let margin = levels()
            .map(|level| level.max().saturating_sub(level.live()))
            .min()
            .expect("a level");
        if margin > 1 << 40 || group.is_offline() {
            return;
        }
        let rest = charge(margin).unwrap_or_else(|refused| panic!("{margin} are left: {refused}"));
        let refused = charge(1).expect_err("one more than is left");
        assert!(refused.is_over_limit() || refused.is_timeout(), "{refused}");
        drop(rest);
    }

    /// All that is held is gone: nothing may be left.
    pub(crate) fn end(mut self) {
        drop(std::mem::take(&mut self.passing));
        let root = self.stays[0].group.clone();
        drop(std::mem::take(&mut self.stays));
        if let Some(runtime) = self.runtime.take() {
            root.children().iter().for_each(Group::offline_tree);
            runtime.settle();
            until("no group is dying", || runtime.dying_count() == 0);
            assert_eq!(runtime.group_count(), 1);
            root.memory().drain();
            let verdict = runtime.verify();
            assert!(verdict.is_ok(), "{verdict}");
            for &id in lock(&self.ids).iter() {
                assert_eq!(runtime.find(id), None, "{id}");
            }
        }
        let spill = root.counter(self.spill).expect("declared");
        assert_eq!((root.usage(), root.forced()), (0, 0));
        assert_eq!((spill.live(), spill.forced()), (0, 0));
    }
}
