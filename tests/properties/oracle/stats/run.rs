//! Drives the statistics of groups and their twin through the same operations and compares them
//! after each.
//!
//! The threads are real, so each has its own cells, but they take turns: what is true after each
//! operation is known. After each no stale read of any group is off by more than it says; a parent
//! shows no less than its children did of what only grows; and whatever was asked for is exact, or
//! as exact as was asked.

use std::cell::RefCell;
use std::time::Duration;

use memcg::barrier::BarrierMode;
use memcg::figures::Stats;
use memcg::{Bytes, Charge, Freshness, Group, Limits, Runtime, StatKey, Unit};

use super::ops::{Action, Op, Setup, THREADS, decode};
use super::{ITEMS, Twin};
use crate::oracle::workers::Other;

/// More of them make an operation slow and show nothing new.
const GROUPS_MADE_MAX: usize = 40;
const CHARGES_MAX: usize = 20;

/// The item that only grows.
const GROWS: usize = ITEMS - 1;

/// Drives a new runtime through all of `ops`, then drops what is left.
///
/// # Panics
/// When the groups and their twin disagree.
pub(crate) fn run(setup: &Setup, ops: &[Op]) {
    let mut run = Run::new(setup);
    for (step, op) in ops.iter().enumerate() {
        run.at = format!("step {step}, {op:?}");
        run.step(op);
        run.look();
    }
    run.finish();
}

/// The body of the fuzz target: any bytes are operations.
pub(crate) fn run_bytes(bytes: &[u8]) {
    let (setup, ops) = decode(bytes);
    run(&setup, &ops);
}

struct Run {
    setup: Setup,
    twin: Twin,
    runtime: Option<Runtime>,
    stats: [StatKey; ITEMS],
    foreign: StatKey,
    /// Of each of the twin's groups.
    handles: Vec<Vec<Group>>,
    charges: Vec<(Charge, usize)>,
    workers: Vec<(Other, u64)>,
    /// Threads begun.
    begun: u64,
    /// The present step, for the message of a failure.
    at: String,
}

/// Adds when its thread ends.
struct AtExit {
    group: Group,
    stat: StatKey,
    delta: i64,
}

impl Drop for AtExit {
    fn drop(&mut self) {
        self.group.stat_add(self.stat, self.delta);
    }
}

thread_local! {
    static AT_EXIT: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

impl Run {
    fn new(setup: &Setup) -> Self {
        let mut builder = Runtime::builder()
            .stat_batch(setup.batch)
            .audit(setup.audit);
        if setup.fence {
            builder = builder.barrier(BarrierMode::Fence);
        }
        for number in 0..setup.more {
            builder.stat(&format!("more{number}"), Unit::Events);
        }
        let stats = [
            StatKey::ANON,
            StatKey::SOCK,
            StatKey::WORKINGSET_REFAULT,
            builder.stat("wait", Unit::Nanoseconds),
            builder.stat_per_node("spilt", Unit::Bytes),
            builder.stat("grows", Unit::Events),
        ];
        let foreign = Runtime::builder().stat("foreign", Unit::Events);
        let runtime = builder.build().expect("a configuration that holds");
        let begun = THREADS as u64;
        Self {
            setup: setup.clone(),
            twin: Twin::new(),
            handles: vec![vec![runtime.root()]],
            runtime: Some(runtime),
            stats,
            foreign,
            charges: Vec::new(),
            workers: (0..begun).map(|number| (Other::spawn(), number)).collect(),
            begun,
            at: String::from("start"),
        }
    }

    fn worker(&self, op: &Op) -> &(Other, u64) {
        &self.workers[usize::from(op.thread) % THREADS]
    }

    /// Runs `job` with a handle of the group on a thread.
    fn on<R: Send + 'static>(
        &self,
        op: &Op,
        group: usize,
        job: impl FnOnce(&Group) -> R + Send + 'static,
    ) -> R {
        let group = self.handles[group][0].clone();
        self.worker(op).0.run(move || job(&group))
    }

    fn step(&mut self, op: &Op) {
        match op.action {
            Action::Settle => {
                if let Some(runtime) = &self.runtime {
                    runtime.settle();
                }
            }
            Action::Idle => self.idle(),
            Action::DropRuntime => {
                if let Some(runtime) = self.runtime.take() {
                    let foreign = runtime.counts().foreign_stats;
                    assert_eq!(foreign, self.twin.foreign, "{}", self.at);
                    drop(runtime);
                    self.twin.offline_tree(0);
                }
            }
            Action::Exit => {
                self.workers[usize::from(op.thread) % THREADS] = (Other::spawn(), self.begun);
                self.begun += 1;
            }
            Action::AddByCharge { .. } | Action::DropCharge if self.charges.is_empty() => {}
            Action::AddByCharge { item, delta } => {
                let at = usize::from(op.subject) % self.charges.len();
                let delta = grown(item, delta);
                let (charge, group) = self.charges.swap_remove(at);
                let (worker, thread) = self.worker(op);
                let stat = self.stats[item];
                let charge = worker.run(move || {
                    charge.stat_add(stat, delta);
                    charge
                });
                self.twin.add(*thread, group, item, delta);
                self.charges.push((charge, group));
            }
            Action::DropCharge => {
                let (charge, group) = self
                    .charges
                    .swap_remove(usize::from(op.subject) % self.charges.len());
                let (worker, thread) = self.worker(op);
                worker.run(move || drop(charge));
                // The charge code may have counted something of its own.
                self.twin.pairs.insert((*thread, group));
            }
            _ => {
                let in_hand: Vec<usize> = (0..self.handles.len())
                    .filter(|&at| !self.handles[at].is_empty())
                    .collect();
                if !in_hand.is_empty() {
                    self.step_group(op, in_hand[usize::from(op.subject) % in_hand.len()]);
                }
            }
        }
    }

    fn step_group(&mut self, op: &Op, group: usize) {
        match op.action {
            Action::Create(name) => {
                if self.twin.groups.len() < GROUPS_MADE_MAX {
                    let made = self.on(op, group, move |group| {
                        group.create(&name.to_string(), Limits::new())
                    });
                    let expected = self.twin.create(group, name);
                    assert_eq!(made.is_ok(), expected.is_some(), "{}: {made:?}", self.at);
                    self.handles.extend(made.ok().map(|group| vec![group]));
                }
            }
            Action::CloneHandle => {
                let clone = self.on(op, group, Group::clone);
                self.handles[group].push(clone);
            }
            Action::DropHandle => {
                let handle = self.handles[group].pop();
                self.worker(op).0.run(move || drop(handle));
            }
            // The root goes with its runtime.
            Action::Offline | Action::OfflineTree if group == 0 => {}
            Action::Offline => {
                let found = self.on(op, group, |group| group.offline().is_ok());
                assert_eq!(found, self.twin.offline(group), "{}", self.at);
            }
            Action::OfflineTree => {
                self.on(op, group, Group::offline_tree);
                self.twin.offline_tree(group);
            }
            Action::Hold(bytes) => {
                if self.charges.len() < CHARGES_MAX {
                    let charge = self.on(op, group, move |group| group.force_charge(Bytes(bytes)));
                    let thread = self.worker(op).1;
                    self.twin.pairs.insert((thread, group));
                    self.charges.push((charge, group));
                }
            }
            Action::Add { item, delta, times } => {
                let stat = self.stats[item];
                let delta = grown(item, delta);
                self.on(op, group, move |group| {
                    (0..times).for_each(|_| group.stat_add(stat, delta))
                });
                let thread = self.worker(op).1;
                self.twin.add(thread, group, item, delta * i64::from(times));
            }
            Action::AddForeign => {
                let stat = self.foreign;
                let read = self.on(op, group, move |group| {
                    group.stat_add(stat, 1_000);
                    group.read(Freshness::Stale).get(stat)
                });
                assert_eq!(read, 0, "{}", self.at);
                self.twin.foreign += 1;
            }
            Action::AtExit { item, delta } => self.at_exit(group, item, grown(item, delta)),
            _ => self.read(op, group),
        }
    }

    /// By a thread that has cells, and by what runs when it has none any more. The thread has
    /// another number each time.
    fn at_exit(&mut self, group: usize, item: usize, delta: i64) {
        let handle = self.handles[group][0].clone();
        let stat = self.stats[item];
        let thread = std::thread::spawn(move || {
            AT_EXIT.set(Some(AtExit {
                group: handle.clone(),
                stat,
                delta,
            }));
            handle.stat_add(stat, delta);
        });
        thread.join().expect("destructors do not panic");
        self.twin.add(self.begun, group, item, 2 * delta);
        self.begun += 1;
    }

    fn read(&mut self, op: &Op, group: usize) {
        match op.action {
            Action::Flush => self.on(op, group, |group| group.inspect().flush()),
            Action::FlushAll(times) => self.on(op, group, move |group| {
                (0..times).for_each(|_| group.inspect().flush())
            }),
            Action::FlushRatelimited => {
                self.on(op, group, |group| group.inspect().flush_ratelimited());
            }
            Action::ReadStale => {
                let stats = self.on(op, group, |group| group.read(Freshness::Stale));
                self.check(group, &stats);
            }
            Action::Read => {
                let stats = self.on(op, group, |group| group.read(Freshness::Threshold));
                let most = self.twin.writers(group).saturating_mul(self.setup.batch);
                assert!(
                    stats.max_error() <= most,
                    "{}: an error of {} of {most}",
                    self.at,
                    stats.max_error()
                );
                self.check(group, &stats);
            }
            Action::ReadWithin(most) => {
                let stats = self.on(op, group, move |group| group.read(Freshness::Within(most)));
                assert!(
                    stats.max_error() <= most,
                    "{}: an error of {}",
                    self.at,
                    stats.max_error()
                );
                self.check(group, &stats);
            }
            Action::ReadExact => {
                let stats = self.on(op, group, |group| group.read(Freshness::Exact));
                self.check_exact(group, &stats);
            }
            _ => unreachable!("an operation on a charge or on all"),
        }
    }

    /// The periodic flush runs until it finds nothing to look at.
    fn idle(&mut self) {
        let Some(runtime) = &self.runtime else { return };
        runtime
            .start_flusher(Duration::from_micros(30))
            .expect("a period");
        loop {
            let before = runtime.counts().flush_visits;
            runtime.root().inspect().flush();
            if runtime.counts().flush_visits == before {
                break;
            }
        }
        runtime.stop_flusher();
        // No thread holds anything back, and no thread is said to.
        for (group, handles) in self.handles.iter().enumerate() {
            if let Some(handle) = handles.first() {
                let stats = handle.read(Freshness::Stale);
                assert_eq!(stats.max_error(), 0, "{}", self.at);
                self.check_exact(group, &stats);
            }
        }
    }

    fn check(&self, group: usize, stats: &Stats) {
        for (item, &stat) in self.stats.iter().enumerate() {
            let most = stats.max_error_of(stat);
            let subtree = (self.twin.subtree(group, item), stats.get(stat));
            for (truth, found) in [
                subtree,
                (self.twin.groups[group].own[item], stats.local(stat)),
            ] {
                let off = truth.abs_diff(found);
                assert!(
                    off <= most,
                    "{}: {stat:?} of {group} is {truth}, read {found}, at most {most} off",
                    self.at
                );
            }
        }
    }

    fn check_exact(&self, group: usize, stats: &Stats) {
        assert_eq!(stats.max_error(), 0, "{}", self.at);
        self.check(group, stats);
    }

    /// Checks all that can be seen without a flush.
    fn look(&self) {
        let mut grows = vec![None; self.handles.len()];
        for (group, handles) in self.handles.iter().enumerate() {
            if let Some(handle) = handles.first() {
                let stats = handle.read(Freshness::Stale);
                self.check(group, &stats);
                grows[group] = Some(stats.get(self.stats[GROWS]));
                let above = self
                    .twin
                    .levels(group)
                    .skip(1)
                    .find_map(|level| grows[level]);
                assert!(
                    above.is_none_or(|above| Some(above) >= grows[group]),
                    "{}: {group} above {above:?}",
                    self.at
                );
            }
        }
    }

    /// All is exact, by a thread that is asked first; then all that is left goes, the runtime
    /// first, last or in between.
    fn finish(mut self) {
        self.at = String::from("end");
        let order = (0..self.handles.len()).map(|group| group * 7 % self.handles.len());
        for group in order.chain(0..self.handles.len()) {
            if let Some(handle) = self.handles[group].first() {
                self.check_exact(group, &handle.read(Freshness::Exact));
            }
        }
        let root = self
            .runtime
            .as_ref()
            .map(Runtime::root)
            .or_else(|| self.handles[0].first().cloned());
        let charges = std::mem::take(&mut self.charges);
        let handles = std::mem::take(&mut self.handles);
        if self.setup.fence {
            drop(self.runtime.take());
        }
        self.workers[0].0.run(move || drop(charges));
        self.workers[1].0.run(move || drop(handles));
        if let Some(runtime) = &self.runtime {
            runtime
                .root()
                .children()
                .iter()
                .for_each(Group::offline_tree);
            runtime.settle();
            assert_eq!(
                (runtime.group_count(), runtime.dying_count()),
                (1, 0),
                "a thread is left"
            );
            let counts = runtime.counts();
            assert_eq!(
                (counts.foreign_stats, counts.underflows),
                (self.twin.foreign, 0)
            );
        }
        if let Some(root) = root {
            self.check_exact(0, &root.read(Freshness::Exact));
        }
    }
}

/// An item that only grows is never added to with a minus.
fn grown(item: usize, delta: i64) -> i64 {
    if item == GROWS { delta.abs() } else { delta }
}
