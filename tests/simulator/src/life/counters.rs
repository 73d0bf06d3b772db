//! Counters without groups: a tree of their own, beside sums. Some trees have nodes and statistics,
//! some a hook that is asked where a charge does not fit.
//!
//! Here hooks give some at a time, and the tree counts what it does. `counters_pressed` has a hook
//! that gives just what is missing, peaks to the unit, and memory that moves between nodes.

use std::sync::{Arc, Mutex};

use memcg::figures::{PeakLiveWindow, PeakWindow, TreeCounts};
use memcg::kmem::{NodeAccount, NodeId, Placement};
use memcg::{Bytes, CounterConfig, Freshness, PageCounter, StatKey, Unit};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::callbacks::lock;
use super::{Life, counters_pressed};
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What, pick};

/// The parent of each: the first is the root.
pub(super) const PARENTS: [Option<usize>; 5] = [None, Some(0), Some(0), Some(1), Some(1)];

/// The counter of what a hook has to give.
pub(super) const CACHE: usize = 2;

/// A charge has the hook called so often at most.
const CALLS_MAX: usize = 16;

/// The most that one step charges.
pub(super) const MOST: u64 = 300;

const NODES: u16 = 3;

impl Life {
    pub(super) fn count_without_groups(&mut self, op: &Op) {
        let What::Counters(steps, seed) = op.1 else {
            unreachable!("counters without groups");
        };
        let (batch, adaptive) = (self.setup.batch, self.setup.adaptive);
        let (audit, recursive) = (self.setup.audit, self.setup.recursive);
        let lived = self.actor(op).run(move || {
            let config = CounterConfig::new()
                .batch(batch)
                .adaptive(adaptive)
                .audit(audit)
                .recursive_protection(recursive);
            if seed % 2 == 0 {
                live(config, steps, seed)
            } else {
                counters_pressed::live(config, batch, recursive, steps, seed)
            }
        });
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}

/// From a counter up to the root.
pub(super) fn levels(of: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(of), |&of| PARENTS[of])
}

pub(super) fn is_within(of: usize, top: usize) -> bool {
    levels(of).any(|level| level == top)
}

/// A counter, and all below it.
pub(super) fn within(top: usize) -> impl Iterator<Item = usize> {
    (0..PARENTS.len()).filter(move |&of| is_within(of, top))
}

/// A tree of all counters: each has its name and its parent, and finds its levels, and no others.
pub(super) fn grow(config: CounterConfig) -> Result<Vec<PageCounter>, String> {
    let mut counters = vec![PageCounter::root(config)];
    for parent in PARENTS.into_iter().flatten() {
        let name = format!("{}", counters.len());
        let child = counters[parent].named_child(&name);
        ensure_eq!(child.name(), name, "the name of a counter");
        ensure!(
            child.parent().as_ref() == Some(&counters[parent]),
            "its parent"
        );
        counters.push(child);
    }
    find_levels(&counters)?;
    Ok(counters)
}

pub(super) fn find_levels(counters: &[PageCounter]) -> Holds {
    for (of, counter) in counters.iter().enumerate() {
        for (level, above) in counters.iter().enumerate() {
            let found = counter.level(above.id());
            let known = is_within(of, level).then_some(above);
            ensure!(
                found.as_ref() == known,
                "level {level} of counter {of} by its id"
            );
        }
    }
    Ok(())
}

/// Whether a counter takes this max: only what is live may refuse it.
pub(super) fn sets_max(counter: &PageCounter, max: u64, live: u64) -> Result<bool, String> {
    let set = counter.set_max(max);
    ensure_eq!(set.is_ok(), live <= max, "{set:?} to {max}");
    if let Err(busy) = &set {
        let found = (busy.level, busy.usage, busy.max);
        ensure_eq!(found, (counter.id(), live, max), "{busy}");
    }
    Ok(set.is_ok())
}

/// What a drain says that it takes back is what usage falls by, and what is counted.
pub(super) fn drain(root: &PageCounter) -> Holds {
    let (before, counts) = (root.usage(), root.counts());
    let drained = root.drain();
    ensure_eq!(drained, before - root.usage(), "drained");
    let now = root.counts();
    ensure!(
        now.drained - counts.drained == drained && (now.drains > counts.drains || drained == 0),
        "{drained} units are drained, {counts:?} before and {now:?} after"
    );
    Ok(())
}

struct Sums {
    own: [u64; PARENTS.len()],
    max: [u64; PARENTS.len()],
    refused: [u64; PARENTS.len()],
    min: [u64; PARENTS.len()],
    low: [u64; PARENTS.len()],
    /// What was added to the item of each.
    added: [i64; PARENTS.len()],
    /// Of `own`, what is accounted on each node.
    on_nodes: [[u64; NODES as usize]; PARENTS.len()],
    /// Of `own`, what the hook has to give.
    cached: u64,
}

impl Sums {
    fn live(&self, top: usize) -> u64 {
        within(top).map(|of| self.own[of]).sum()
    }

    fn added(&self, top: usize) -> i64 {
        within(top).map(|of| self.added[of]).sum()
    }

    fn on_node(&self, top: usize, node: usize) -> u64 {
        within(top).map(|of| self.on_nodes[of][node]).sum()
    }

    /// What a guard or a hook has of a counter, and no amount without a guard.
    fn guarded(&self, of: usize) -> u64 {
        let cached = if of == CACHE { self.cached } else { 0 };
        cached + self.on_nodes[of].iter().sum::<u64>()
    }

    /// The lowest level that has no room for so many more.
    fn full(&self, of: usize, bytes: u64) -> Option<usize> {
        levels(of)
            .find(|&level| bytes > 0 && self.live(level).saturating_add(bytes) > self.max[level])
    }
}

/// What a hook has to give, and so many at a time.
#[derive(Default)]
struct Gives {
    counter: Option<PageCounter>,
    left: u64,
    at_a_time: u64,
    calls: usize,
}

impl Gives {
    fn give(&mut self) -> u64 {
        self.calls += 1;
        let Some(counter) = &self.counter else {
            return 0;
        };
        let given = self.left.min(self.at_a_time);
        counter.uncharge(given);
        self.left -= given;
        given
    }
}

/// A tree, and what it is known to have.
struct Tree {
    counters: Vec<PageCounter>,
    sums: Sums,
    gives: Arc<Mutex<Gives>>,
    item: Option<StatKey>,
    has_nodes: bool,
    kmems: Vec<(usize, usize, NodeAccount)>,
    windows: Vec<(usize, PeakWindow, PeakLiveWindow)>,
}

fn live(config: CounterConfig, steps: u8, seed: u64) -> Holds {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut tree = Tree::new(config, &mut rng)?;
    for _ in 0..steps {
        let before = tree.counters[0].counts();
        tree.step(&mut rng)?;
        tree.holds()?;
        tree.counts_hold(before)?;
    }
    tree.end(&mut rng)
}

impl Tree {
    fn new(mut config: CounterConfig, rng: &mut Xoshiro256PlusPlus) -> Result<Tree, String> {
        let gives = Arc::new(Mutex::new(Gives::default()));
        let has_hook = rng.random();
        if has_hook {
            let asked = Arc::clone(&gives);
            config = config.on_pressure(move |_| lock(&asked).give());
        }
        let has_nodes = rng.random_bool(0.3);
        if has_nodes {
            config = config.nodes(NODES);
        }
        let item = rng
            .random_bool(0.4)
            .then(|| config.stat("rows", Unit::Events));
        // What a clone declares is its own.
        let mut clone = config.clone();
        let of_clone = item.map(|_| clone.stat("columns", Unit::Events));
        let counters = grow(config)?;
        if let Some(of_clone) = of_clone {
            let before = counters[0].counts().foreign_stats;
            counters[0].stat_add(of_clone, 1);
            let foreign = counters[0].counts().foreign_stats - before;
            ensure_eq!(foreign, 1, "additions to an item of another tree");
        }
        let names: Vec<String> = counters[0].items().map(|it| it.name.to_string()).collect();
        let has = |name: &str| names.iter().any(|it| it == name);
        ensure_eq!(has("rows"), item.is_some(), "items: {names:?}");
        ensure!(!has("columns"), "items: {names:?}");
        let nodes = counters[0].topology().nodes().count();
        let known = if has_nodes { NODES.into() } else { 1 };
        ensure_eq!(nodes, known, "nodes");
        let none = [0; PARENTS.len()];
        Ok(Tree {
            counters,
            sums: Sums {
                own: none,
                max: [u64::MAX; PARENTS.len()],
                refused: none,
                min: none,
                low: none,
                added: [0; PARENTS.len()],
                on_nodes: [[0; NODES as usize]; PARENTS.len()],
                cached: 0,
            },
            gives,
            item,
            has_nodes,
            kmems: Vec::new(),
            windows: Vec::new(),
        })
    }

    fn step(&mut self, rng: &mut Xoshiro256PlusPlus) -> Holds {
        let (of, bytes) = (
            rng.random_range(0..PARENTS.len()),
            rng.random_range(0..=MOST),
        );
        let counter = &self.counters[of];
        match rng.random_range(0..14) {
            0..=2 => return self.charge(of, bytes, rng.random()),
            3 => {
                counter.force_charge(bytes);
                self.sums.own[of] += bytes;
            }
            4 | 5 => {
                let gone = bytes.min(self.sums.own[of] - self.sums.guarded(of));
                counter.uncharge(gone);
                self.sums.own[of] -= gone;
            }
            6 => {
                let max = if bytes == 0 { u64::MAX } else { bytes * 4 };
                if sets_max(counter, max, self.sums.live(of))? {
                    self.sums.max[of] = max;
                }
            }
            7 => {
                counter.set_min(bytes);
                self.sums.min[of] = bytes;
            }
            8 => {
                counter.set_low(bytes);
                self.sums.low[of] = bytes;
            }
            // The hook has something to give.
            9 => {
                let mut gives = lock(&self.gives);
                let cache = self.counters[CACHE].clone();
                cache.force_charge(bytes);
                self.sums.own[CACHE] += bytes;
                self.sums.cached += bytes;
                gives.left += bytes;
                gives.at_a_time = pick(rng, &[1, 10, 100]);
                gives.counter = Some(cache);
            }
            10 => return self.account(rng, of, bytes),
            11 => {
                if self.windows.len() > 2 {
                    self.windows.remove(0);
                }
                let windows = (counter.peak_window(), counter.peak_live_window());
                self.windows.push((of, windows.0, windows.1));
            }
            12 => {
                for (of, window, live) in &self.windows {
                    window.reset();
                    live.reset();
                    let usage = self.counters[*of].usage();
                    ensure_eq!(window.peak(), usage, "a peak that starts over");
                }
            }
            _ => drain(&self.counters[0])?,
        }
        Ok(())
    }

    /// A charge that does not fit asks the hook, unless it is never to call any, until it fits, or
    /// nothing more comes.
    fn charge(&mut self, of: usize, bytes: u64, asks: bool) -> Holds {
        lock(&self.gives).calls = 0;
        let counter = &self.counters[of];
        let charged = if asks {
            counter.charge(bytes)
        } else {
            counter.try_charge(bytes)
        };
        let (calls, left) = {
            let gives = lock(&self.gives);
            (gives.calls, gives.left)
        };
        // It has given so much by then, some at each call.
        let given = self.sums.cached - left;
        self.sums.cached = left;
        let at_first = self.sums.full(of, bytes);
        self.sums.own[CACHE] -= given;
        let full = self.sums.full(of, bytes);
        ensure_eq!(
            charged.is_ok(),
            full.is_none(),
            "{charged:?} of {bytes}, full: {full:?}"
        );
        ensure!(
            calls <= CALLS_MAX && (calls == 0 || asks && at_first.is_some()),
            "a hook was called {calls} times for {bytes}, {asks}"
        );
        match full {
            None => self.sums.own[of] += bytes,
            Some(level) => {
                let is_left = asks && calls > 0 && calls < CALLS_MAX && left > 0;
                ensure!(
                    !is_left,
                    "{bytes} are refused, and a hook has {left} to give"
                );
                self.sums.refused[level] += 1;
                if let Err(error) = charged {
                    let told = (error.level, error.requested, error.max);
                    let known = (self.counters[level].id(), bytes, self.sums.max[level]);
                    ensure_eq!(told, known, "{error}");
                }
            }
        }
        Ok(())
    }

    /// Something of the statistics, or memory on a node.
    fn account(&mut self, rng: &mut Xoshiro256PlusPlus, of: usize, bytes: u64) -> Holds {
        let counter = &self.counters[of];
        if let Some(item) = self.item {
            let delta = bytes as i64 - 100;
            counter.stat_add(item, delta);
            self.sums.added[of] += delta;
        }
        if !self.has_nodes {
            return Ok(());
        }
        if self.kmems.len() > 3 {
            let (of, node, gone) = self.kmems.remove(0);
            self.sums.own[of] -= gone.units();
            self.sums.on_nodes[of][node] -= gone.units();
            return Ok(());
        }
        if self.sums.full(of, bytes).is_some() {
            return Ok(());
        }
        let node = rng.random_range(0..NODES);
        match counter.precharge(bytes) {
            Ok(precharge) => {
                let kmem = precharge.account(&Placement::on(NodeId::new(node), Bytes(bytes)));
                self.sums.own[of] += bytes;
                self.sums.on_nodes[of][usize::from(node)] += bytes;
                self.kmems.push((of, node.into(), kmem));
                Ok(())
            }
            Err(error) => Err(format!("{error}, and it fits")),
        }
    }

    fn holds(&self) -> Holds {
        let sums = &self.sums;
        for (of, counter) in self.counters.iter().enumerate() {
            let found = (counter.live(), counter.max(), counter.refused_count());
            let known = (sums.live(of), sums.max[of], sums.refused[of]);
            ensure_eq!(found, known, "(live, max, refusals) of counter {of}");
            let found = (counter.min(), counter.low(), counter.forced());
            let usage = counter.usage();
            let known = (
                sums.min[of],
                sums.low[of],
                usage.saturating_sub(sums.max[of]),
            );
            ensure_eq!(found, known, "(min, low, forced) of counter {of}");
            ensure!(
                counter.forced_total() >= counter.forced() && counter.peak() >= usage,
                "{counter:?}: {} were forced, and its peak is {}",
                counter.forced_total(),
                counter.peak()
            );
            let children = (0..PARENTS.len()).filter(|&it| PARENTS[it] == Some(of));
            let claims = children.map(|it| {
                let used = self.counters[it].usage();
                [used.min(sums.min[it]), used.min(sums.low[it])]
            });
            let known = claims.fold([0, 0], |all, it| [all[0] + it[0], all[1] + it[1]]);
            let found = [counter.children_min_usage(), counter.children_low_usage()];
            ensure_eq!(found, known, "what children of counter {of} protect");
            let stats = counter.read(Freshness::Exact);
            if let Some(item) = self.item {
                let found = (stats.get(item), stats.local(item));
                let known = (sums.added(of), sums.added[of]);
                ensure_eq!(found, known, "an item of counter {of}, and of it alone");
            }
            if self.has_nodes {
                let by_node = counter.numa_stat(StatKey::KERNEL, Freshness::Exact);
                for node in 0..NODES {
                    let found = by_node.get(NodeId::new(node));
                    let known = sums.on_node(of, node.into()) as i64;
                    ensure_eq!(found, known, "on node {node} of counter {of}");
                }
            }
        }
        for (of, window, live) in &self.windows {
            let (used, peak, ever) = (
                self.counters[*of].usage(),
                window.peak(),
                self.counters[*of].peak(),
            );
            ensure!(
                used <= peak && peak <= ever,
                "{used} used, peaks {peak} and {ever}"
            );
            let live = live.peak();
            ensure!(
                self.sums.live(*of) <= live.max() && live.max() <= ever.max(peak),
                "{live} live, a peak of {peak}"
            );
        }
        let verdict = self.counters[0].verify();
        ensure!(verdict.is_ok(), "{verdict}");
        Ok(())
    }

    /// Counts only rise, and none of what cannot be here.
    fn counts_hold(&self, before: TreeCounts) -> Holds {
        let now = self.counters[0].counts();
        let rising = |of: &TreeCounts| {
            [
                of.drains,
                of.drained,
                of.barriers,
                of.flushes,
                of.flush_visits,
                of.stat_lists,
                of.stat_unlists,
            ]
        };
        let has_fallen = rising(&before)
            .into_iter()
            .zip(rising(&now))
            .any(|(before, now)| now < before);
        ensure!(!has_fallen, "{before:?}, and then {now:?}");
        let faults = [now.underflows, now.overflows, now.discarded];
        ensure_eq!(faults, [0; 3], "counted faults");
        let writes = self.item.is_some() || self.has_nodes;
        let has_written = self.sums.added.iter().any(|&added| added != 0);
        ensure!(
            now.stat_unlists <= now.stat_lists
                && (now.stat_lists > 0 && now.flushes > 0 || !has_written)
                && (writes || now.flushes == 0),
            "statistics: {now:?}"
        );
        Ok(())
    }

    /// Those that end with bytes give them back.
    fn end(mut self, rng: &mut Xoshiro256PlusPlus) -> Holds {
        self.windows.clear();
        for (of, node, kmem) in std::mem::take(&mut self.kmems) {
            self.sums.own[of] -= kmem.units();
            self.sums.on_nodes[of][node] -= kmem.units();
        }
        // What is cached is an amount as any other from here on. The hook keeps its tree no longer.
        lock(&self.gives).counter = None;
        self.sums.cached = 0;
        while let Some(last) = self.counters.pop() {
            let of = self.counters.len();
            let bytes = if rng.random() { self.sums.own[of] } else { 0 };
            last.uncharge(bytes);
            drop(last);
            self.sums.own[of] = 0;
            if let Some(root) = self.counters.first() {
                ensure_eq!(root.live(), self.sums.live(0), "live after the end of {of}");
            }
        }
        Ok(())
    }
}
