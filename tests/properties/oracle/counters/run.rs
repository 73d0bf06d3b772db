#![cfg(not(loom))]
//! Drives a tree and its twin through the same operations and compares them after each.
//!
//! The threads are real, so each has its own stock, but they take turns: the order is the order of
//! the operations, and what must come out of each is known.

use memcg::barrier::BarrierMode;
use memcg::{CounterConfig, PageCounter};

use super::Oracle;
use super::ops::{Action, Op, Setup, Size, THREADS, decode};
use crate::oracle::declaring;
use crate::oracle::workers::Other;

/// More counters than that make an operation slow and show nothing new.
const COUNTERS_MAX: usize = 12;

/// The margin of an unlimited tree is no useful size for a charge.
const MARGIN_MAX: u64 = 1 << 32;

/// Operations between two calls of `verify`.
const VERIFY_EVERY: usize = 8;

/// Operations between two looks at the peaks of live units: a look takes in what is live, and so
/// hides what no slow path has seen.
const PEAKS_EVERY: usize = 16;

/// Drives a new tree through all of `ops`, then empties it.
///
/// # Panics
/// When the tree and its twin disagree.
pub(crate) fn run(setup: &Setup, ops: &[Op]) {
    let mut run = Run::new(setup);
    run.alone = ops
        .iter()
        .all(|op| op.thread == 0 && !matches!(op.action, Action::Exit));
    for (step, op) in ops.iter().enumerate() {
        run.at = format!("step {step}, {op:?}");
        run.step(op);
        run.check();
        if step % VERIFY_EVERY == 0 {
            run.verify();
        }
        if (step + 1) % PEAKS_EVERY == 0 {
            run.check_peaks();
        }
    }
    run.check_peaks();
    run.finish();
}

/// The body of the fuzz target: any bytes are operations.
pub(crate) fn run_bytes(bytes: &[u8]) {
    let (setup, ops) = decode(bytes);
    run(&setup, &ops);
}

struct Run {
    setup: Setup,
    oracle: Oracle,
    /// The handle of each of the twin's counters, by index.
    handles: Vec<Option<PageCounter>>,
    workers: Vec<Other>,
    /// One thread does everything.
    alone: bool,
    /// The present step, for the message of a failure.
    at: String,
}

impl Run {
    fn new(setup: &Setup) -> Self {
        let mut config = CounterConfig::new()
            .batch(setup.batch)
            .adaptive(setup.adaptive)
            .audit(setup.audit)
            .max(setup.max);
        if setup.fence {
            config = config.barrier(BarrierMode::Fence);
        }
        if let Some(budget) = setup.budget {
            config = config.budget(budget);
        }
        if setup.declares {
            config = declaring(config);
        }
        Self {
            setup: setup.clone(),
            oracle: Oracle::new(setup.max, setup.batch),
            handles: vec![Some(PageCounter::root(config))],
            workers: (0..THREADS).map(|_| Other::spawn()).collect(),
            alone: false,
            at: String::from("start"),
        }
    }

    /// Reaches a counter through its own handle or, when that is dropped, through a child.
    fn counter(&self, index: usize) -> PageCounter {
        if let Some(handle) = &self.handles[index] {
            return handle.clone();
        }
        let child = self.oracle.children(index).next();
        let child = child.expect("a counter without handle is kept by a child");
        let parent = self.counter(child).parent();
        parent.unwrap_or_else(|| panic!("{}: counter {child} has no parent", self.at))
    }

    /// Runs `job` with a handle of the counter on a thread.
    fn on<R: Send + 'static>(
        &self,
        op: &Op,
        index: usize,
        job: impl FnOnce(&PageCounter) -> R + Send + 'static,
    ) -> R {
        self.workers[usize::from(op.thread) % THREADS].with(&self.counter(index), job)
    }

    fn step(&mut self, op: &Op) {
        let held: Vec<usize> = (0..self.handles.len())
            .filter(|&index| self.handles[index].is_some())
            .collect();
        let index = held[usize::from(op.subject) % held.len()];
        match op.action {
            Action::Child => self.child(op, index),
            Action::DropHandle => self.drop_handle(op, index),
            Action::TryCharge(size) => self.try_charge(op, index, size),
            Action::Charge(units) => self.charge(op, index, units),
            Action::Uncharge(units) => {
                let units = units.min(self.oracle.node(index).own);
                self.on(op, index, move |counter| counter.uncharge(units));
                self.oracle.uncharge(index, units);
            }
            Action::SetMax(max) => self.set_max(op, index, max),
            Action::SetMaxAbove(margin) => {
                let max = self.oracle.node(index).live.saturating_add(margin);
                self.set_max(op, index, max);
            }
            Action::SetMin(units) => {
                self.on(op, index, move |counter| counter.set_min(units));
                self.oracle.set_min(index, units);
            }
            Action::SetLow(units) => {
                self.on(op, index, move |counter| counter.set_low(units));
                self.oracle.set_low(index, units);
            }
            Action::SetBatch(units) => {
                self.on(op, index, move |counter| counter.set_batch(units));
                self.oracle.set_batch(index, units);
            }
            Action::Drain => self.drain(op, index),
            Action::Exit => self.workers[usize::from(op.thread) % THREADS] = Other::spawn(),
        }
    }

    fn child(&mut self, op: &Op, parent: usize) {
        if self.oracle.present().count() >= COUNTERS_MAX {
            return;
        }
        let child = self.on(op, parent, PageCounter::child);
        let index = self.oracle.child(parent);
        assert_eq!(index, self.handles.len());
        self.handles.push(Some(child));
    }

    /// The root's handle stays, so that there is always something to work on.
    fn drop_handle(&mut self, op: &Op, index: usize) {
        if index == 0 {
            return;
        }
        let handle = self.handles[index].take();
        self.workers[usize::from(op.thread) % THREADS].run(move || drop(handle));
        self.oracle.drop_handle(index);
    }

    fn try_charge(&mut self, op: &Op, index: usize, size: Size) {
        let margin = self.oracle.margin(index).min(MARGIN_MAX);
        let units = match size {
            Size::Units(units) => units,
            Size::Margin => margin,
            Size::Beyond => margin + 1,
        };
        // Without a hook both verbs make and refuse the same charges.
        let at_once = (op.subject ^ op.thread) % 2 == 1;
        let found = self.on(op, index, move |counter| match at_once {
            true => counter.try_charge(units),
            false => counter.charge(units),
        });
        let expected = self.oracle.try_charge(index, units);
        let at = &self.at;
        match (found, expected) {
            (Ok(()), Ok(())) => {}
            (Ok(()), Err(level)) => {
                panic!("{at}: charged {units}, but counter {level} has no room for it")
            }
            (Err(refused), Ok(())) => {
                panic!("{at}: refused {units} while there is room: {refused}")
            }
            (Err(refused), Err(level)) => {
                let node = self.oracle.node(level);
                let counter = self.counter(level);
                assert_eq!(
                    refused.level,
                    counter.id(),
                    "{at}: refused at another level: {refused}"
                );
                assert_eq!(
                    refused.requester,
                    self.counter(index).id(),
                    "{at}: {refused}"
                );
                assert_eq!(refused.requested, units, "{at}: {refused}");
                let usage = refused.usage;
                let stocked = refused.stocked_bound;
                assert!(
                    (node.live..=node.live + stocked).contains(&usage),
                    "{at}: {} live: {refused}",
                    node.live
                );
                // A charge that leaves credit where it is would not fit beside live charge alone.
                let beside_live = (usage - stocked.min(usage)).saturating_add(units);
                assert!(
                    usage == node.live || beside_live > refused.max,
                    "{at}: credit stood behind: {refused}"
                );
            }
        }
    }

    /// Another test looks at forced charges above the largest usage.
    fn charge(&mut self, op: &Op, index: usize, units: u64) {
        if units
            > PageCounter::USAGE_MAX / 2 - self.oracle.node(0).live.min(PageCounter::USAGE_MAX / 2)
        {
            return;
        }
        self.on(op, index, move |counter| counter.force_charge(units));
        self.oracle.charge(index, units);
    }

    fn set_max(&mut self, op: &Op, index: usize, max: u64) {
        let found = self.on(op, index, move |counter| counter.set_max(max));
        let fits = self.oracle.set_max(index, max);
        let at = &self.at;
        let live = self.oracle.node(index).live;
        match found {
            Ok(()) => assert!(fits, "{at}: max {max} was taken with {live} live"),
            Err(busy) => {
                assert!(!fits, "{at}: max {max} is busy with {live} live: {busy}");
                assert_eq!(busy.level, self.counter(index).id(), "{at}: {busy}");
                assert_eq!(busy.max, max, "{at}: {busy}");
                assert!(busy.usage >= live && busy.usage > max, "{at}: {busy}");
            }
        }
    }

    fn drain(&mut self, op: &Op, index: usize) {
        let stocked = self.counter(index).stocked();
        let drained = self.on(op, index, PageCounter::drain);
        assert_eq!(
            drained, stocked,
            "{}: the drain returned another sum",
            self.at
        );
        let counter = self.counter(index);
        assert_eq!(counter.stocked(), 0, "{}: credit left behind", self.at);
        assert_eq!(counter.usage(), counter.live(), "{}", self.at);
    }

    /// Compares every counter with its twin.
    fn check(&self) {
        for index in self.oracle.present() {
            self.check_charge(index);
            self.check_limits(index);
        }
        if let Some(budget) = self.setup.budget {
            let root = self.counter(0);
            let stocked = root.stocked();
            let bound = root.stocked_bound();
            assert!(
                stocked <= budget,
                "{}: {stocked} stocked, budget {budget}",
                self.at
            );
            assert!(
                bound <= budget,
                "{}: bound {bound}, budget {budget}",
                self.at
            );
        }
    }

    fn check_charge(&self, index: usize) {
        let at = &self.at;
        let node = self.oracle.node(index);
        let counter = self.counter(index);
        let usage = counter.usage();
        let stocked = counter.stocked();
        let bound = counter.stocked_bound();
        assert_eq!(counter.live(), node.live, "{at}: live of counter {index}");
        assert!(
            usage >= node.live,
            "{at}: counter {index}: usage {usage}, live {}",
            node.live
        );
        assert_eq!(
            usage,
            node.live + stocked,
            "{at}: counter {index}: usage is not live and stock"
        );
        assert!(
            stocked <= bound,
            "{at}: counter {index}: {stocked} stocked, bound {bound}"
        );
        let switched_off = self
            .oracle
            .present()
            .filter(|&other| self.oracle.is_within(other, index))
            .all(|other| self.oracle.node(other).batch == 0);
        if switched_off {
            assert_eq!(
                stocked, 0,
                "{at}: counter {index} has a stock although it is off"
            );
        }
        let peak = counter.peak();
        assert!(
            peak >= node.peak.max(usage),
            "{at}: counter {index}: peak {peak}"
        );
        let ceiling = node.max_ever.saturating_add(counter.forced_total());
        assert!(
            peak <= ceiling,
            "{at}: counter {index}: peak {peak} was never admitted"
        );
    }

    /// The peak of live units is between its two bounds, and exact where one thread moves the units
    /// of a counter that never had a child.
    fn check_peaks(&self) {
        let at = &self.at;
        for index in self.oracle.present() {
            let peak = self.oracle.node(index).peak;
            let found = self.counter(index).peak_live();
            assert!(
                found.min() <= peak && peak <= found.max(),
                "{at}: counter {index}: {found}, and had {peak}"
            );
            let is_leaf =
                (0..self.oracle.len()).all(|other| self.oracle.node(other).parent != Some(index));
            if self.alone && is_leaf {
                assert_eq!(found.exact(), Some(peak), "{at}: counter {index}: {found}");
            }
        }
    }

    fn check_limits(&self, index: usize) {
        let at = &self.at;
        let node = self.oracle.node(index);
        let counter = self.counter(index);
        let usage = counter.usage();
        let forced = counter.forced();
        assert_eq!(
            (counter.max(), counter.min(), counter.low(), counter.batch()),
            (node.max, node.min, node.low, node.batch),
            "{at}: counter {index}: limits"
        );
        assert!(
            forced <= usage && usage - forced <= node.max,
            "{at}: counter {index}: usage {usage}, forced {forced}, max {}",
            node.max
        );
        assert!(forced <= counter.forced_total(), "{at}: counter {index}");
        if !node.forced {
            assert_eq!(
                counter.forced_total(),
                0,
                "{at}: counter {index} never saw a forced charge"
            );
        }
        assert_eq!(
            counter.refused_count(),
            node.failcnt,
            "{at}: failcnt of counter {index}"
        );
        let sum = |limit: fn(&super::Node) -> u64| -> u64 {
            self.oracle
                .children(index)
                .map(|child| {
                    self.counter(child)
                        .usage()
                        .min(limit(self.oracle.node(child)))
                })
                .sum()
        };
        assert_eq!(
            counter.children_min_usage(),
            sum(|node| node.min),
            "{at}: min below {index}"
        );
        assert_eq!(
            counter.children_low_usage(),
            sum(|node| node.low),
            "{at}: low below {index}"
        );
    }

    fn verify(&self) {
        let verdict = self.counter(0).verify();
        assert!(verdict.is_ok(), "{}: {verdict}", self.at);
        assert_eq!(verdict.audited(), self.setup.audit, "{}", self.at);
        assert_eq!(
            verdict.counter_count(),
            self.oracle.present().count(),
            "{}",
            self.at
        );
    }

    /// Frees all that is live: nothing may be left. Then the handles go, the root's first.
    fn finish(mut self) {
        self.at = String::from("end");
        self.verify();
        let present: Vec<usize> = self.oracle.present().collect();
        for &index in &present {
            let own = self.oracle.node(index).own;
            self.counter(index).uncharge(own);
            self.oracle.uncharge(index, own);
        }
        self.check();
        let root = self.counter(0);
        root.drain();
        self.check();
        self.verify();
        assert_eq!(root.usage(), 0, "units left behind");
        let counts = root.counts();
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
        drop(root);
        self.handles.clear();
    }
}
