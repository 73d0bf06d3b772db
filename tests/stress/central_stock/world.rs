//! A runtime and its groups, and what must hold of them.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use memcg::CentralStock;
use memcg::barrier::BarrierMode;
use memcg::{Bytes, Charge, Group, GroupId, Limit, Limits, Runtime};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::lock;
use crate::support::waiters::until;

/// The max of the parent of all, as long as no thread moves it.
pub(crate) const MAX: u64 = 10_000;

/// Below so little the stocks of threads stay closed mostly.
pub(crate) const BATCHES: [u64; 5] = [0, 16, 200, 1_000, 256 << 10];

/// A group that producers charge and consumers give back to. It goes offline, and another one takes
/// its place.
pub(crate) struct Queue {
    pub(crate) stock: Mutex<CentralStock>,
    pub(crate) messages: Mutex<VecDeque<Charge>>,
}

impl Queue {
    pub(crate) fn stock(&self) -> CentralStock {
        lock(&self.stock).clone()
    }
}

pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) parent: Group,
    pub(crate) beside: Group,
    pub(crate) queues: [Queue; 2],
    /// Charges are forced, and the parent's max moves.
    pub(crate) forces: bool,
    budget: u64,
}

impl World {
    pub(crate) fn random(forces: bool, rng: &mut SmallRng) -> World {
        let mut builder = Runtime::builder()
            .audit(true)
            .batch(Bytes(BATCHES[rng.random_range(1..5)]));
        if rng.random_bool(0.2) {
            builder = builder.barrier(BarrierMode::Fence);
        }
        let budget = if rng.random_bool(0.4) {
            rng.random_range(0..8_000)
        } else {
            u64::MAX
        };
        if budget < u64::MAX {
            builder = builder.budget(Bytes(budget));
        }
        let runtime = builder.build().expect("a configuration that holds");
        let parent = runtime
            .root()
            .create("parent", Limits::new().max(Limit::Bytes(MAX)))
            .expect("a name");
        let beside = parent.create("beside", Limits::new()).expect("a name");
        let queues = [0, 1].map(|number| {
            let stock = CentralStock::of(&create(&parent, number));
            Queue {
                stock: Mutex::new(stock),
                messages: Mutex::default(),
            }
        });
        World {
            runtime,
            parent,
            beside,
            queues,
            forces,
            budget,
        }
    }

    /// The group goes offline, whatever is charged to it and waits there, and the next one is there
    /// at once.
    pub(crate) fn replace(&self, number: usize) {
        let mut stock = lock(&self.queues[number].stock);
        let old = stock.group().clone();
        old.offline().expect("it has no children");
        *stock = CentralStock::of(&create(&self.parent, number));
        assert_eq!((stock.credit(), old.is_offline()), (0, true));
        assert!(old.charge(1).is_err());
    }

    /// Looks once: how many looks were conclusive.
    pub(crate) fn sample(&self) -> u64 {
        let usage = self.parent.usage();
        let bound = self.runtime.root().memory().stocked_bound();
        assert!(
            bound <= self.budget,
            "bound {bound}, budget {}",
            self.budget
        );
        assert!(self.forces || usage <= MAX, "usage {usage}");
        u64::from(!self.forces)
    }

    /// No thread charges: everything must add up. `held` and the messages are all there is.
    pub(crate) fn check(&self, seed: u64, rng: &mut SmallRng, held: Vec<&Charge>) {
        let verdict = self.runtime.verify();
        assert!(
            verdict.is_ok() && verdict.audited(),
            "seed {seed}: {verdict}"
        );
        let messages = self.queues.each_ref().map(|queue| lock(&queue.messages));
        let mut live: HashMap<GroupId, u64> = HashMap::new();
        for charge in held
            .into_iter()
            .chain(messages.iter().flat_map(|messages| messages.iter()))
        {
            let group = charge.group();
            for level in group.ancestors().chain([group]) {
                *live.entry(level.id()).or_default() += charge.bytes();
            }
        }
        let root = self.runtime.root();
        for group in root.inspect().descendants().chain([root.clone()]) {
            let expected = live.get(&group.id()).copied().unwrap_or(0);
            let stocked = group.memory().stocked();
            let path = group.path();
            assert_eq!(
                (group.live(), group.usage()),
                (expected, expected + stocked),
                "seed {seed}: {path}"
            );
            assert!(
                stocked <= group.memory().stocked_bound(),
                "seed {seed}: {path}: {stocked} stocked"
            );
            assert_eq!(group.waiting_count(), 0, "seed {seed}: {path}");
        }
        let counts = self.runtime.counts();
        assert_eq!(
            (counts.underflows, counts.overflows, counts.discarded),
            (0, 0, 0),
            "seed {seed}"
        );
        assert!(
            self.forces || self.parent.peak() <= MAX,
            "seed {seed}: peak {}",
            self.parent.peak()
        );
        drop(messages);
        self.check_never_refused(seed, rng);
    }

    /// All that is left below every limit is admitted to the byte, wherever the credit is; one more
    /// is not.
    fn check_never_refused(&self, seed: u64, rng: &mut SmallRng) {
        let [one, other] = self
            .queues
            .each_ref()
            .map(|queue| queue.stock().group().clone());
        let group = [&self.parent, &self.beside, &one, &other][rng.random_range(0..4)];
        let levels = || group.ancestors().chain([group.clone()]);
        let margin = levels()
            .map(|level| level.max().saturating_sub(level.live()))
            .min()
            .expect("a level");
        let rest = group.charge(Bytes(margin));
        let rest =
            rest.unwrap_or_else(|refused| panic!("seed {seed}: {margin} are left: {refused}"));
        assert!(
            group.charge(1).is_err(),
            "seed {seed}: one more than is left"
        );
        drop(rest);
    }

    /// All that lanes have held is gone: nothing may be left.
    pub(crate) fn end(self) {
        let World {
            runtime,
            parent,
            beside,
            queues,
            ..
        } = self;
        drop((beside, queues));
        assert_eq!(parent.live(), 0);
        parent.offline_tree();
        drop(parent);
        runtime.settle();
        let root = runtime.root();
        root.memory().drain();
        // A thread of the library that reclaimed keeps the group that it did so for, a moment longer.
        until("no group is dying", || runtime.dying_count() == 0);
        assert_eq!(runtime.group_count(), 1);
        assert_eq!(
            (root.usage(), root.forced(), root.memory().stocked_bound()),
            (0, 0, 0)
        );
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "{verdict}");
    }
}

fn create(parent: &Group, number: usize) -> Group {
    parent
        .create(number as u64, Limits::new())
        .expect("a free number")
}
