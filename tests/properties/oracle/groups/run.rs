//! Drives groups and their twin through the same operations and compares them after each.
//!
//! The threads are real, so each has its own stock, but they take turns: what must come out of each
//! operation is known.

use memcg::barrier::BarrierMode;
use memcg::errors::CreateError;
use memcg::footprint::PoolAlign;
use memcg::{Bytes, Charge, CounterKey, Group, GroupId, Limit, Limits, Runtime, RuntimeBuilder};

use super::ops::{Action, Op, Setup, THREADS, decode};
use super::{COUNTERS, NotMade, Twin};
use crate::oracle::workers::Other;

/// More of them make an operation slow and show nothing new.
const GROUPS_MADE_MAX: usize = 40;

/// Operations between two looks at everything. In between dying groups wait for their barrier.
const LOOK_EVERY: usize = 16;

/// Drives a new runtime through all of `ops`, then drops what is left.
///
/// # Panics
/// When the groups and their twin disagree.
pub(crate) fn run(setup: &Setup, ops: &[Op]) {
    drive(Run::new(setup), ops);
}

fn drive(mut run: Run, ops: &[Op]) {
    for (step, op) in ops.iter().enumerate() {
        run.at = format!("step {step}, {op:?}");
        run.step(op);
        run.glance();
        if step % LOOK_EVERY == LOOK_EVERY - 1 {
            run.look();
        }
    }
    run.finish();
}

/// The body of the fuzz target: any bytes are operations.
pub(crate) fn run_bytes(bytes: &[u8]) {
    let (setup, ops) = decode(bytes);
    run(&setup, &ops);
}

/// The same in a process that does nothing else at that time: the pools are this tree's alone, and
/// what is live in them is known.
pub(crate) fn run_bytes_alone(bytes: &[u8]) {
    let (setup, ops) = decode(bytes);
    let live = || {
        pools_of(
            &configure(&setup)
                .0
                .build()
                .expect("a configuration that holds"),
        )
    };
    // Of a root, and nothing else.
    let before = live();
    assert_eq!(live(), before, "a tree goes with its runtime");
    let mut run = Run::new(&setup);
    run.live = Some(before.clone());
    drive(run, &ops);
    assert_eq!(live(), before, "objects that did not come back");
}

/// Objects in use, of each pool; that of groups first.
pub(super) fn pools_of(runtime: &Runtime) -> Vec<u64> {
    runtime.pools().rows().iter().map(|row| row.live).collect()
}

fn configure(setup: &Setup) -> (RuntimeBuilder, CounterKey) {
    let align = if setup.packed {
        PoolAlign::Packed
    } else {
        PoolAlign::CacheLine
    };
    let mut builder = Runtime::builder()
        .batch(Bytes(setup.batch))
        .adaptive(setup.adaptive)
        .audit(setup.audit)
        .max(limit(setup.max))
        .groups_max(setup.groups_max)
        .pool_align(align);
    if setup.fence {
        builder = builder.barrier(BarrierMode::Fence);
    }
    if let Some(budget) = setup.budget {
        builder = builder.budget(Bytes(budget));
    }
    let further = builder.counter("further", memcg::Unit::Bytes);
    (builder, further)
}

pub(super) struct Run {
    pub(super) setup: Setup,
    pub(super) twin: Twin,
    pub(super) runtime: Option<Runtime>,
    pub(super) further: CounterKey,
    /// Of each of the twin's groups.
    pub(super) ids: Vec<GroupId>,
    pub(super) handles: Vec<Vec<Group>>,
    /// In the order of the twin's.
    pub(super) charges: Vec<Charge>,
    /// In the order of the twin's amounts without a guard: the word of one that was a charge.
    pub(super) words: Vec<Option<usize>>,
    pub(super) workers: Vec<Other>,
    /// Live objects of the pools when there is a root and nothing else, if no other thread takes
    /// from them.
    pub(super) live: Option<Vec<u64>>,
    /// The present step, for the message of a failure.
    pub(super) at: String,
}

impl Run {
    fn new(setup: &Setup) -> Self {
        let (builder, further) = configure(setup);
        let runtime = builder.build().expect("a configuration that holds");
        let root = runtime.root();
        Self {
            setup: setup.clone(),
            twin: Twin::new(setup.max, setup.groups_max),
            ids: vec![root.id()],
            handles: vec![vec![root]],
            runtime: Some(runtime),
            further,
            charges: Vec::new(),
            words: Vec::new(),
            workers: (0..THREADS).map(|_| Other::spawn()).collect(),
            live: None,
            at: String::from("start"),
        }
    }

    /// The counters by number.
    pub(super) fn counter(&self, number: usize) -> CounterKey {
        [CounterKey::MEMORY, self.further][number]
    }

    pub(super) fn worker(&self, op: &Op) -> &Other {
        &self.workers[usize::from(op.thread) % THREADS]
    }

    /// The groups that the run has a handle on.
    fn in_hand(&self) -> Vec<usize> {
        (0..self.handles.len())
            .filter(|&group| !self.handles[group].is_empty())
            .collect()
    }

    /// One of them.
    pub(super) fn group(&self, number: u8) -> Option<usize> {
        let in_hand = self.in_hand();
        (!in_hand.is_empty()).then(|| in_hand[usize::from(number) % in_hand.len()])
    }

    pub(super) fn handle(&self, group: usize) -> &Group {
        &self.handles[group][0]
    }

    /// Runs `job` with a handle of the group on a thread.
    pub(super) fn on<R: Send + 'static>(
        &self,
        op: &Op,
        group: usize,
        job: impl FnOnce(&Group) -> R + Send + 'static,
    ) -> R {
        self.worker(op).with(self.handle(group), job)
    }

    fn step(&mut self, op: &Op) {
        match op.action {
            Action::Settle => {
                if let Some(runtime) = &self.runtime {
                    runtime.settle();
                }
            }
            Action::ReleaseIdle(visits) => {
                if let Some(runtime) = &self.runtime {
                    (0..visits).for_each(|_| _ = runtime.release_idle_credit());
                }
            }
            Action::ReleaseOwn => {
                if let Some(runtime) = self.runtime.clone() {
                    let again = move || {
                        (
                            runtime.release_thread_credit(),
                            runtime.release_thread_credit(),
                        )
                            .1
                    };
                    assert_eq!(
                        self.worker(op).run(again),
                        Bytes(0),
                        "{}: credit left behind",
                        self.at
                    );
                }
            }
            Action::Look => self.look(),
            Action::Find(number) => self.find(number),
            Action::FindByPath(number) => self.find_by_path(number),
            Action::DropRuntime => self.drop_runtime(),
            Action::Exit => self.workers[usize::from(op.thread) % THREADS] = Other::spawn(),
            Action::Grow(_)
            | Action::TryGrow(_)
            | Action::Shrink(_)
            | Action::Resize(_)
            | Action::Split(_)
            | Action::Take
            | Action::Merge(_)
            | Action::Transfer(_)
            | Action::DropCharge => self.step_charge(op),
            Action::Uncharge(_) | Action::IntoRaw | Action::FromRaw => self.step_raw(op),
            _ => {
                if let Some(group) = self.group(op.subject) {
                    self.step_group(op, group);
                }
            }
        }
    }

    fn step_group(&mut self, op: &Op, group: usize) {
        match op.action {
            Action::Create { name, max } => self.create(op, group, name, max),
            Action::CloneHandle => {
                let clone = self.on(op, group, Group::clone);
                self.keep(group, clone);
            }
            Action::DropHandle if self.is_last_way_to_amounts(group) => {}
            Action::DropHandle => {
                let handle = self.handles[group].pop();
                self.worker(op).run(move || drop(handle));
                self.twin.groups[group].handles -= 1;
            }
            // The root goes with its runtime.
            Action::Offline | Action::OfflineTree if group == 0 => {}
            Action::Offline => {
                let found = self.on(op, group, |group| {
                    group.offline().map_err(|refused| refused.children)
                });
                assert_eq!(found, self.twin.offline(group), "{}", self.at);
            }
            Action::OfflineTree => {
                self.on(op, group, Group::offline_tree);
                self.twin.offline_tree(group);
            }
            Action::TryCharge(size) => self.try_charge(op, group, size),
            Action::Charge(bytes) => self.charge(op, group, bytes),
            Action::TryChargeRaw(size) => self.try_charge_raw(op, group, size),
            Action::ChargeRaw(bytes) => self.charge_raw(op, group, bytes),
            Action::ChargeBoth(memory, further) => self.charge_both(op, group, [memory, further]),
            Action::SetMax(max) => self.set_max(op, group, 0, max),
            Action::SetMaxAbove(margin) => {
                let max = self.twin.live(group, 0).saturating_add(margin);
                self.set_max(op, group, 0, max);
            }
            Action::SetFurtherMax(max) => self.set_max(op, group, 1, max),
            Action::SetMin(bytes) => {
                self.on(op, group, move |group| {
                    group
                        .set_limits(Limits::new().min(Limit::Bytes(bytes)))
                        .expect("a number")
                });
                if self.twin.groups[group].online {
                    self.twin.groups[group].min = bytes;
                }
            }
            Action::SetBatch(bytes) => {
                self.on(op, group, move |group| group.memory().set_batch(bytes))
            }
            Action::Drain => {
                self.on(op, group, |group| group.memory().drain());
                let usage = self.handle(group).usage();
                let live = self.twin.live(group, 0);
                assert_eq!(usage, live, "{}: credit left behind", self.at);
            }
            _ => unreachable!("an operation on a charge or on all"),
        }
    }

    fn create(&mut self, op: &Op, parent: usize, name: u8, max: u64) {
        if self.twin.groups.len() >= GROUPS_MADE_MAX {
            return;
        }
        if self.twin.there().count() as u32 >= self.setup.groups_max
            && let Some(runtime) = &self.runtime
        {
            // Credit that waits for its barrier keeps a group that the twin has lost.
            runtime.settle();
        }
        let name = format!("g{name}");
        let expected = self.twin.create(parent, &name, max);
        let limits = Limits::new().max(limit(max));
        let found = self.on(op, parent, move |parent| parent.create(&name, limits));
        match (found, expected) {
            (Ok(group), Ok(index)) => {
                assert_eq!(index, self.ids.len());
                assert!(
                    !self.ids.contains(&group.id()),
                    "{}: an id for the second time",
                    self.at
                );
                self.ids.push(group.id());
                self.handles.push(vec![group]);
            }
            (Err(CreateError::Offline { .. }), Err(NotMade::Offline))
            | (Err(CreateError::Taken { .. }), Err(NotMade::Taken))
            | (Err(CreateError::Full { .. }), Err(NotMade::Most)) => {}
            // With dying groups that are not settled there may be more groups than the twin has.
            (Err(CreateError::Full { .. }), Ok(index))
                if self.runtime.as_ref().is_some_and(|r| r.dying_count() > 0) =>
            {
                assert_eq!(index, self.ids.len());
                drop(self.twin.groups.pop());
            }
            (found, expected) => panic!("{}: {found:?}, the twin {expected:?}", self.at),
        }
    }

    /// An id finds its own group as long as that is there, and never another one.
    fn find(&mut self, number: u8) {
        let Some(runtime) = &self.runtime else { return };
        let group = usize::from(number) % self.ids.len();
        let id = self.ids[group];
        match runtime.find(id) {
            Some(found) => {
                assert_eq!(
                    (found.id(), found.path()),
                    (id, self.twin.path(group)),
                    "{}",
                    self.at
                );
                // Credit that waits for its barrier keeps a group that the twin has lost; from here
                // on its handle does.
                let is_kept = self.twin.is_there(group) || runtime.dying_count() > 0;
                assert!(is_kept, "{}: {id} is gone", self.at);
                self.keep(group, found);
            }
            None => assert!(!self.twin.is_there(group), "{}: {id} is there", self.at),
        }
    }

    /// A path finds the group that is online there, whichever group was there before.
    fn find_by_path(&mut self, number: u8) {
        let Some(runtime) = &self.runtime else { return };
        let path = self.twin.path(usize::from(number) % self.ids.len());
        let online = self
            .twin
            .online_below(0)
            .find(|&group| self.twin.path(group) == path);
        let found = runtime.group(&path);
        assert_eq!(
            found.as_ref().map(Group::id),
            online.map(|group| self.ids[group]),
            "{}: {path}",
            self.at
        );
        if let (Some(group), Some(found)) = (online, found) {
            self.keep(group, found);
        }
    }

    pub(super) fn keep(&mut self, group: usize, handle: Group) {
        self.handles[group].push(handle);
        self.twin.groups[group].handles += 1;
    }

    fn set_max(&mut self, op: &Op, group: usize, counter: usize, max: u64) {
        let of = self.counter(counter);
        let found = self.on(op, group, move |group| {
            let set = group.counter(of).expect("declared").set_max(limit(max));
            set.expect("a number")
        });
        self.twin.groups[group].max[counter] = max;
        assert_eq!(
            found,
            self.twin.live(group, counter).saturating_sub(max),
            "{}: the excess",
            self.at
        );
    }

    fn drop_runtime(&mut self) {
        self.keep_groups_of_amounts();
        if let Some(runtime) = self.runtime.take() {
            drop(runtime);
            self.twin.offline_tree(0);
            self.twin.groups[0].handles -= 1;
        }
    }

    /// All that is left goes: charges on one thread, handles on another, the runtime first, last or
    /// in between.
    fn finish(mut self) {
        self.at = String::from("end");
        self.look();
        self.uncharge_all();
        let charges = std::mem::take(&mut self.charges);
        let handles = std::mem::take(&mut self.handles);
        let root = handles[0].first().cloned();
        if self.setup.budget.is_some() {
            drop(self.runtime.take());
        }
        self.workers[0].run(move || drop(charges));
        self.workers[1].run(move || drop(handles));
        self.twin.held.clear();
        if let Some(runtime) = &self.runtime {
            let root = runtime.root();
            root.children().iter().for_each(Group::offline_tree);
            runtime.settle();
            assert_eq!(
                (runtime.group_count(), runtime.dying_count()),
                (1, 0),
                "a thread is left"
            );
            if let Some(live) = &self.live {
                assert_eq!(
                    pools_of(runtime)[0],
                    live[0],
                    "more objects than the root's"
                );
            }
            root.memory().drain();
            let verdict = runtime.verify();
            assert!(verdict.is_ok(), "{verdict}");
            let counts = runtime.counts();
            assert_eq!(
                (
                    counts.underflows,
                    counts.overflows,
                    counts.discarded,
                    counts.refused_in_transit
                ),
                (0, 0, 0, 0),
                "counted faults"
            );
        }
        if let Some(root) = root {
            for counter in (0..COUNTERS).map(|number| self.counter(number)) {
                root.memory().drain();
                let counter = root.counter(counter).expect("declared");
                counter.drain();
                assert_eq!(
                    (counter.usage(), counter.forced()),
                    (0, 0),
                    "bytes left behind"
                );
            }
        }
    }
}

pub(super) fn limit(bytes: u64) -> Limit {
    if bytes == u64::MAX {
        Limit::Unlimited
    } else {
        Limit::Bytes(bytes)
    }
}
