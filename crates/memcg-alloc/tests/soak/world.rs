//! A runtime, its groups and the limits that move.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{
    Bytes, CounterKey, Group, GroupName, Limit, Limits, OomPolicy, Percent, Registration, Runtime,
    StatKey, Unit,
};
use rand::RngExt;
use rand::rngs::SmallRng;

use crate::foreign::{self, Shared};
use crate::holdings::NODES;
use crate::known_group::KnownGroup;
use crate::lock;
use crate::tally::What;

/// Below each half.
const TENANTS: usize = 4;
pub(crate) const TENANT_MAX: u64 = 1 << 20;
const HALF_MAX: u64 = TENANTS as u64 * TENANT_MAX * 7 / 8;
/// Places for groups that come and go.
const JOBS: usize = 24;

pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) shared: Arc<Shared>,
    /// The root, the two halves, and their tenants.
    pub(crate) stay: Vec<Arc<KnownGroup>>,
    jobs: Vec<Mutex<Arc<KnownGroup>>>,
    /// Offline, and not empty when last looked at.
    pub(crate) gone: Mutex<Vec<Arc<KnownGroup>>>,
    names: AtomicU64,
    pub(crate) rows: StatKey,
    pub(crate) files: CounterKey,
    pub(crate) near: CounterKey,
    listeners: Vec<Registration>,
}

fn part(rng: &mut SmallRng, from: u64, to: u64) -> Limit {
    Limit::Bytes(TENANT_MAX / 32 * rng.random_range(from..=to))
}

impl World {
    pub(crate) fn random(rng: &mut SmallRng) -> World {
        let mut builder = Runtime::builder()
            .audit(rng.random_bool(0.7))
            .batch(Bytes([0, 4_096, 65_536, 256 << 10][rng.random_range(0..4)]))
            .adaptive(rng.random_bool(0.7))
            .recursive_protection(rng.random_bool(0.7))
            .reclaim_time(Duration::from_millis(rng.random_range(2..20)))
            .delay_max(Duration::from_millis(12))
            .oom_time(Duration::from_millis(rng.random_range(1..15)))
            .nodes(2)
            .max(Limit::Bytes(HALF_MAX / 8 * 15));
        let rows = builder.stat("rows", Unit::Events);
        let files = builder.counter("files", Unit::Events);
        let near = builder.tier("near", [NODES[0]]);
        let runtime = builder.build().expect("a configuration that holds");
        runtime.keep_incidents(64);
        if rng.random_bool(0.5) {
            runtime
                .start_flusher(Duration::from_millis(rng.random_range(2..20)))
                .expect("a thread");
        }
        let shared = Arc::new(Shared::new());
        let root = runtime.root();
        root.set_oom_policy([OomPolicy::Inherit, OomPolicy::Choose][rng.random_range(0..2)]);
        root.counter(files)
            .expect("declared")
            .set_max(200)
            .expect("a number");
        root.counter(near)
            .expect("declared")
            .set_max(Limit::Bytes(HALF_MAX / 2))
            .expect("a number");
        let top = KnownGroup::new(root.clone(), None, false);
        let mut stay = vec![Arc::clone(&top)];
        for (name, strict) in [("strict", true), ("loose", false)] {
            let half = root
                .create(name, Limits::new().max(Limit::Bytes(HALF_MAX)))
                .expect("a name");
            half.set_oom_policy(OomPolicy::Choose);
            stay.push(KnownGroup::new(half, Some(&top), strict));
        }
        for number in 0..2 * TENANTS {
            let above = Arc::clone(&stay[1 + number / TENANTS]);
            let half = above.group().expect("it stays");
            let limits = tenant(number % TENANTS, rng);
            let group = half
                .create(&format!("tenant{number}"), limits)
                .expect("a name");
            match rng.random_range(0..4) {
                0 => {}
                1 => group.set_oom_policy(foreign::order(&shared)),
                _ => group.set_oom_policy(OomPolicy::Choose),
            }
            let known = KnownGroup::new(group.clone(), Some(&above), above.strict);
            *lock(&known.reclaimer) = Some(foreign::reclaimer(&shared, &known, &group));
            stay.push(known);
        }
        let listeners = foreign::listeners(&shared, &root);
        let gone = Mutex::default();
        let mut world = World {
            runtime,
            shared,
            stay,
            jobs: Vec::new(),
            gone,
            names: AtomicU64::new(0),
            rows,
            files,
            near,
            listeners,
        };
        world.jobs = (0..JOBS)
            .map(|at| Mutex::new(world.job(at, rng).expect("its tenant stays")))
            .collect();
        world
    }

    /// The known of a tenant: an even number is that of a strict one.
    pub(crate) fn tenants(&self) -> &[Arc<KnownGroup>] {
        &self.stay[3..]
    }

    /// A new group below a tenant, or below another group that comes and goes.
    fn job(&self, place: usize, rng: &mut SmallRng) -> Option<Arc<KnownGroup>> {
        let tenant = &self.tenants()[place % self.tenants().len()];
        let above = match rng.random_range(0..4) {
            0 if !self.jobs.is_empty() => {
                let other = Arc::clone(&lock(&self.jobs[(place + 2 * TENANTS) % JOBS]));
                if other.depth < 5 {
                    other
                } else {
                    Arc::clone(tenant)
                }
            }
            _ => Arc::clone(tenant),
        };
        let mut limits = Limits::new();
        if rng.random_bool(0.3) {
            limits = limits.max(part(rng, 4, 16));
        }
        if rng.random_bool(0.2) {
            limits = limits.importance(rng.random_range(0..4));
        }
        if rng.random_bool(0.2) {
            limits = limits.cover_allocations();
            self.shared.tally.one(What::Covered);
        }
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        // The group above may go offline first.
        let group = if number.is_multiple_of(2) {
            above
                .group()?
                .create(&format!("job{number}"), limits)
                .ok()?
        } else {
            above.group()?.create(GroupName::Unnamed, limits).ok()?
        };
        group.set_oom_exempt(rng.random_bool(0.1));
        group.set_oom_group(rng.random_bool(0.2));
        let known = KnownGroup::new(group.clone(), Some(&above), above.strict);
        if rng.random_bool(0.6) {
            *lock(&known.hook) = Some(foreign::hook(&self.shared, &known, &group));
        }
        if rng.random_bool(0.3) {
            *lock(&known.reclaimer) = Some(foreign::reclaimer(&self.shared, &known, &group));
        }
        Some(known)
    }

    /// One goes offline, whichever threads charge or wait there; another takes its place.
    pub(crate) fn replace_job(&self, rng: &mut SmallRng) {
        let place = rng.random_range(0..JOBS);
        let Some(next) = self.job(place, rng) else {
            return;
        };
        let old = std::mem::replace(&mut *lock(&self.jobs[place]), next);
        self.end_job(&old);
        if rng.random_bool(0.3) {
            old.free(u64::MAX);
        }
    }

    fn end_job(&self, known: &Arc<KnownGroup>) {
        known.end();
        self.shared.tally.one(What::Ended);
        let mut gone = lock(&self.gone);
        // A thread that still has the group may add to it.
        gone.retain(|known| known.count() > 0 || Arc::strong_count(known) > 1);
        gone.push(Arc::clone(known));
    }

    /// A group that lives for one query.
    pub(crate) fn scope(&self, rng: &mut SmallRng) -> Option<Arc<KnownGroup>> {
        let place = rng.random_range(0..JOBS);
        self.job(place, rng)
    }

    pub(crate) fn end_scope(&self, known: &Arc<KnownGroup>) {
        self.end_job(known);
    }

    /// Any group that is there.
    pub(crate) fn any(&self, rng: &mut SmallRng) -> Arc<KnownGroup> {
        match rng.random_range(0..100) {
            0..3 => Arc::clone(&self.stay[rng.random_range(0..3)]),
            3..35 => Arc::clone(&self.tenants()[rng.random_range(0..self.tenants().len())]),
            _ => Arc::clone(&lock(&self.jobs[rng.random_range(0..JOBS)])),
        }
    }

    /// Some that is gone and holds something.
    pub(crate) fn any_gone(&self, rng: &mut SmallRng) -> Option<Arc<KnownGroup>> {
        let gone = lock(&self.gone);
        (!gone.is_empty()).then(|| Arc::clone(&gone[rng.random_range(0..gone.len())]))
    }

    /// All groups that anything may be charged to, parents first.
    pub(crate) fn groups(&self) -> Vec<Arc<KnownGroup>> {
        let mut groups: Vec<_> = self.stay.to_vec();
        groups.extend(self.jobs.iter().map(|job| Arc::clone(&lock(job))));
        groups.extend(lock(&self.gone).iter().cloned());
        // Of some that are gone nothing is left but groups below.
        let mut at = 0;
        while at < groups.len() {
            if let Some(above) = groups[at].above.clone()
                && !groups.iter().any(|known| Arc::ptr_eq(known, &above))
            {
                groups.push(above);
            }
            at += 1;
        }
        groups.sort_by_key(|known| known.depth);
        groups
    }

    // === Limits ===

    fn set_max(&self, rng: &mut SmallRng, known: &KnownGroup, group: &Group) {
        let max = rng.random_range(8..=40) * (TENANT_MAX / 32);
        // Another thread sets it.
        let Ok(mut ceiling) = known.ceiling.try_lock() else {
            return;
        };
        *ceiling = max.max(*ceiling);
        let set = match rng.random_range(0..2) {
            0 => group.set_max(Limit::Bytes(max)),
            _ => group.memory().set_max_now(Limit::Bytes(max)),
        };
        assert_eq!(group.max(), max);
        set.expect("a number");
    }

    /// Sets something of a tenant.
    pub(crate) fn move_limits(&self, rng: &mut SmallRng) {
        let known = &self.tenants()[rng.random_range(0..self.tenants().len())];
        let group = known.group().expect("it stays");
        self.shared.tally.one(What::Limits);
        let new = Limits::new();
        let limits = match rng.random_range(0..22) {
            0..6 => return self.set_max(rng, known, &group),
            6 => new.high(part(rng, 16, 36)),
            7 | 8 => new.high(Limit::Unlimited),
            9 => new.soft(part(rng, 0, 32)),
            10 => new.low(part(rng, 0, 32)),
            11 => new.min(part(rng, 0, 2)),
            12 => new.share(rng.random_range(0..5)),
            13 => new.reclaim_above(Limit::Percent(
                Percent::new(rng.random_range(50..100)).expect("of 100"),
            )),
            14 => new.reclaim_above(Limit::Unlimited),
            15 => new.pressure_levels(rng.random_range(0..90), rng.random_range(0..100)),
            16 => new.importance(rng.random_range(0..4)),
            17 if !known.strict => {
                group.set_observe_only(!group.is_observe_only() && rng.random_bool(0.3));
                return;
            }
            18 => {
                return group.set_oom_policy(
                    [OomPolicy::Inherit, OomPolicy::Refuse][rng.random_range(0..2)],
                );
            }
            19 => return group.set_oom_policy(foreign::order(&self.shared)),
            20 => return group.set_oom_group(rng.random_bool(0.2)),
            _ => return self.replace_reclaimer(known, &group),
        };
        group.set_limits(limits).expect("limits that hold");
    }

    fn replace_reclaimer(&self, known: &Arc<KnownGroup>, group: &Group) {
        let new = foreign::reclaimer(&self.shared, known, group);
        // The old one is dropped outside of the lock: that waits for its calls.
        let old = lock(&known.reclaimer).replace(new);
        drop(old);
    }

    /// Groups go offline and foreign code ends. What is held stays.
    pub(crate) fn end_groups(&self) {
        for job in &self.jobs {
            let known = Arc::clone(&lock(job));
            self.end_job(&known);
        }
        self.stay
            .iter()
            .for_each(|known| drop((lock(&known.reclaimer).take(), lock(&known.hook).take())));
        lock(&self.shared.due).clear();
        lock(&self.shared.stopped).clear();
    }

    pub(crate) fn end_listeners(&mut self) {
        self.listeners.clear();
    }

    /// For the reader of a failure.
    pub(crate) fn describe(&self) -> String {
        self.runtime.root().snapshot(usize::MAX).to_string()
    }
}

/// Limits of a tenant: each kind is there, in either half.
fn tenant(number: usize, rng: &mut SmallRng) -> Limits {
    let bytes = |part: u64| Limit::Bytes(TENANT_MAX / 8 * part);
    let limits = Limits::new()
        .max(bytes(8))
        .pressure_levels(60, 90)
        .importance(rng.random_range(0..3));
    match number {
        0 => limits
            .soft(0)
            .high(bytes(7))
            .reclaim_above(Limit::percent(80)),
        1 => limits.share(3).low(bytes(7)),
        2 if rng.random_bool(0.5) => limits.cover_allocations().share(1),
        2 => limits.share(1).min(bytes(1)),
        _ => limits,
    }
}
