//! A runtime, its groups, their caches and jobs, and what must hold of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::errors::LimitError;
use memcg::figures::Events;
use memcg::{Bytes, Event, Group, Limit, Limits, OomPolicy, Runtime};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::cache::{Cache, Character, Due};
use super::job::{Calls, Held, Job, Stopped};
use super::lock;
use super::tally::{End, Tally};
use crate::support::waiters::until;

pub(crate) const TENANTS: usize = 8;
pub(crate) const TENANT_MAX: u64 = 1 << 20;
/// Somewhat less than all tenants may have.
pub(crate) const ROOT_MAX: u64 = TENANTS as u64 * TENANT_MAX * 7 / 8;
/// Places for jobs, in turn below one tenant and the next.
pub(crate) const JOBS: usize = 3 * TENANTS;

// === impl Stay ===

/// A group that stays, and what the sampler has to know about it.
pub(crate) struct Stay {
    pub(crate) group: Group,
    /// One setter at a time; the number is odd while one is at work.
    setter: Mutex<()>,
    setting: AtomicU64,
    /// Forced charges of the group and of those below, begun and ended.
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Stay {
    fn new(group: Group) -> Self {
        let count = || AtomicU64::new(0);
        Self {
            group,
            setter: Mutex::new(()),
            setting: count(),
            begun: count(),
            ended: count(),
        }
    }

    /// Sets a max in whatever way.
    pub(crate) fn set(&self, set: impl FnOnce(&Group) -> Result<u64, LimitError>) {
        let _one = lock(&self.setter);
        self.setting.fetch_add(1, Ordering::SeqCst);
        set(&self.group).expect("a number");
        self.setting.fetch_add(1, Ordering::SeqCst);
    }

    /// Looks once; `false` when a max or a forced charge came in between.
    pub(crate) fn sample(&self) -> bool {
        let setting = self.setting.load(Ordering::SeqCst);
        let ended = self.ended.load(Ordering::SeqCst);
        if setting % 2 == 1 || self.begun.load(Ordering::SeqCst) != ended {
            return false;
        }
        // Forced excess first: while none is added it only falls, so it was at least as large when
        // usage was read.
        let forced = self.group.forced();
        let max = self.group.max();
        let usage = self.group.usage();
        if self.begun.load(Ordering::SeqCst) != ended
            || self.setting.load(Ordering::SeqCst) != setting
        {
            return false;
        }
        let ordinary = usage.saturating_sub(forced);
        assert!(
            ordinary <= max,
            "{}: usage {usage}, forced {forced}, max {max}",
            self.group.path()
        );
        true
    }
}

fn set(group: &Group, limits: Limits) {
    group.set_limits(limits).expect("a number");
}

// === impl World ===

/// One runtime and all that is in it.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    /// The root, and the tenants.
    pub(crate) stays: Vec<Stay>,
    pub(crate) caches: Vec<Cache>,
    jobs: Vec<Mutex<Arc<Job>>>,
    names: AtomicU64,
    pub(crate) due: Due,
    pub(crate) stopped: Stopped,
    calls: Arc<Calls>,
}

/// The group of a charge, and the cache that may keep it.
pub(crate) struct Target {
    pub(crate) group: Group,
    /// Index of the group that stays which it is, or is below.
    pub(crate) stay: usize,
    pub(crate) held: Option<Arc<Held>>,
}

impl World {
    /// Reclaimers take a nap of a millisecond and of so many microseconds more.
    pub(crate) fn random(nap_max: u64, rng: &mut SmallRng) -> Self {
        let runtime = Runtime::builder()
            .audit(true)
            .batch(Bytes([0, 4_096, 65_536][rng.random_range(0..3)]))
            .adaptive(rng.random_bool(0.7))
            .recursive_protection(rng.random_bool(0.7))
            .reclaim_time(Duration::from_millis(rng.random_range(20..100)))
            .delay_max(Duration::from_millis(20))
            .oom_time(Duration::from_millis(rng.random_range(5..60)))
            .max(Limit::Bytes(ROOT_MAX))
            .build()
            .expect("a configuration that holds");
        let root = runtime.root();
        root.set_oom_policy([OomPolicy::Inherit, OomPolicy::Choose][rng.random_range(0..2)]);
        let mut stays = vec![Stay::new(root.clone())];
        let mut caches = Vec::new();
        let due = Due::default();
        for number in 0..TENANTS {
            let bytes = |part| Limit::Bytes(TENANT_MAX / 8 * part);
            let limits = [
                Limits::new(),
                Limits::new().high(bytes(7)),
                Limits::new().soft(0).high(bytes(6)),
                Limits::new().low(bytes(2)),
                Limits::new().min(bytes(1)).soft(bytes(4)),
            ];
            let group = root
                .create(&format!("tenant{number}"), limits[number % 5].max(bytes(8)))
                .expect("a name");
            if number % 2 == 0 {
                group.set_oom_policy(OomPolicy::Choose);
            }
            let character = [Character::Idles, Character::Later]
                .into_iter()
                .nth(number)
                .unwrap_or(Character::Sleeps);
            caches.push(Cache::new(&group, character, nap_max, &due));
            stays.push(Stay::new(group));
        }
        let stopped = Stopped::default();
        let calls = Arc::<Calls>::default();
        let job = |number: usize| {
            let group = stays[1 + number % TENANTS]
                .group
                .create(&format!("first{number}"), Limits::new());
            Mutex::new(Arc::new(Job::new(
                group.expect("a name"),
                !number.is_multiple_of(3),
                &stopped,
                &calls,
            )))
        };
        let jobs = (0..JOBS).map(job).collect();
        Self {
            runtime,
            stays,
            caches,
            jobs,
            names: AtomicU64::new(0),
            due,
            stopped,
            calls,
        }
    }

    pub(crate) fn jobs(&self) -> Vec<Arc<Job>> {
        self.jobs.iter().map(|job| Arc::clone(&lock(job))).collect()
    }

    pub(crate) fn any(&self, rng: &mut SmallRng) -> Target {
        match rng.random_range(0..100) {
            0..2 => Target {
                group: self.stays[0].group.clone(),
                stay: 0,
                held: None,
            },
            2..25 => {
                let stay = rng.random_range(1..=TENANTS);
                Target {
                    group: self.stays[stay].group.clone(),
                    stay,
                    held: None,
                }
            }
            _ => {
                let place = rng.random_range(0..JOBS);
                let job = Arc::clone(&lock(&self.jobs[place]));
                let held = rng.random_bool(0.7).then(|| Arc::clone(&job.held));
                Target {
                    group: job.group.clone(),
                    stay: 1 + place % TENANTS,
                    held,
                }
            }
        }
    }

    /// Makes a charge that may bring usage above a max. Meanwhile the sampler takes no sample of
    /// the groups that it charges.
    pub(crate) fn force<R>(&self, target: &Target, charge: impl FnOnce() -> R) -> R {
        let levels = [&self.stays[0], &self.stays[target.stay]];
        for stay in levels {
            stay.begun.fetch_add(1, Ordering::SeqCst);
        }
        let result = charge();
        for stay in levels {
            stay.ended.fetch_add(1, Ordering::SeqCst);
        }
        result
    }

    /// One job ends, whichever thread waits there; another takes its place.
    pub(crate) fn replace_job(&self, rng: &mut SmallRng) {
        let place = rng.random_range(0..JOBS);
        let tenant = &self.stays[1 + place % TENANTS].group;
        let name = format!("job{}", self.names.fetch_add(1, Ordering::SeqCst));
        let max = if rng.random_bool(0.3) {
            Limit::Bytes(TENANT_MAX / 4)
        } else {
            Limit::Unlimited
        };
        let group = tenant
            .create(&name, Limits::new().max(max))
            .expect("a name");
        group.set_oom_exempt(rng.random_bool(0.1));
        group.set_oom_group(rng.random_bool(0.2));
        let next = Job::new(group, rng.random_bool(0.7), &self.stopped, &self.calls);
        let old = std::mem::replace(&mut *lock(&self.jobs[place]), Arc::new(next));
        old.end(rng.random_bool(0.5));
    }

    pub(crate) fn move_limits(&self, rng: &mut SmallRng) {
        let stay = &self.stays[rng.random_range(1..=TENANTS)];
        let part = |rng: &mut SmallRng, from, to| {
            Limit::Bytes(TENANT_MAX / 32 * rng.random_range(from..=to))
        };
        let group = &stay.group;
        match rng.random_range(0..20) {
            0..4 => {
                let max = part(rng, 8, 40);
                stay.set(|group| group.set_max(max));
            }
            4..7 => {
                let max = part(rng, 8, 40);
                stay.set(|group| group.memory().set_max_now(max));
            }
            7 => {
                let max = Limit::Bytes(ROOT_MAX / 8 * rng.random_range(5..=9));
                self.stays[0].set(|root| root.memory().set_max_now(max));
            }
            8..11 => set(group, Limits::new().high(part(rng, 12, 36))),
            11 => set(group, Limits::new().high(Limit::Unlimited)),
            12..14 => set(group, Limits::new().soft(part(rng, 0, 32))),
            14..16 => set(group, Limits::new().low(part(rng, 0, 16))),
            16 => set(group, Limits::new().min(part(rng, 0, 2))),
            17 | 18 => group.set_oom_policy(
                [OomPolicy::Inherit, OomPolicy::Refuse, OomPolicy::Choose][rng.random_range(0..3)],
            ),
            _ => group.set_oom_group(rng.random_bool(0.2)),
        }
    }

    /// For the reader of a failure.
    pub(crate) fn describe(&self) -> String {
        self.runtime.root().snapshot(usize::MAX).to_string()
    }

    /// All threads have ended, and have given back what they held: nothing may be left.
    pub(crate) fn end(self, tally: &Tally) -> Events {
        let World {
            runtime,
            stays,
            caches,
            jobs,
            due,
            stopped,
            calls,
            ..
        } = self;
        let root = runtime.root();
        for group in root.inspect().descendants().chain([root.clone()]) {
            assert_eq!(
                group.waiting_count(),
                0,
                "{}: no thread is left to wait",
                group.path()
            );
        }
        let verdict = runtime.verify();
        assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
        jobs.iter().for_each(|job| lock(job).end(true));
        drop((jobs, caches));
        lock(&stopped).drain(..).for_each(|held| held.free());
        for (later, shelf) in std::mem::take(&mut *lock(&due)) {
            later.report(shelf.evict(u64::MAX));
        }
        let verdict = runtime.verify();
        assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
        root.memory().drain();
        for group in root.inspect().descendants().chain([root.clone()]) {
            assert_eq!((group.usage(), group.forced()), (0, 0), "{}", group.path());
        }
        let events = root.events();
        let [made, gone] = [&calls.made, &calls.gone].map(|calls| calls.load(Ordering::SeqCst));
        let victims = events.get(Event::OomKill);
        assert!(
            (made..=made + gone).contains(&victims),
            "{victims} victims, {made} hooks called and {gone} gone"
        );
        assert!(
            tally.sum(End::Cancelled) == 0 || events.get(Event::OomKill) > 0,
            "cancelled, and no group was chosen"
        );
        assert_eq!(events.get(Event::Panic), 0);
        drop(stays);
        root.children().iter().for_each(Group::offline_tree);
        runtime.settle();
        until("no group is dying", || runtime.dying_count() == 0);
        assert_eq!(runtime.group_count(), 1);
        root.memory().drain();
        assert_eq!(
            (
                root.usage(),
                root.forced(),
                root.inspect().descendants_in_excess(),
                root.waiting_count()
            ),
            (0, 0, 0, 0)
        );
        let verdict = runtime.verify();
        assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
        let counts = runtime.counts();
        assert_eq!(
            (counts.underflows, counts.overflows, counts.discarded),
            (0, 0, 0)
        );
        events
    }
}
