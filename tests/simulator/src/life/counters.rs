//! Counters without groups: a tree of their own, beside sums. Some trees have nodes and statistics,
//! some a hook that is asked where a charge does not fit, and gives just what is missing or some at
//! a time. Peaks are known to the unit, and accounted memory moves between nodes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use memcg::errors::CounterChargeError;
use memcg::figures::{PeakLiveWindow, PeakWindow, TreeCounts};
use memcg::kmem::{NodeAccount, NodeId, Placement, Topology};
use memcg::{Bytes, CounterConfig, CounterId, Freshness, PageCounter, StatKey, Unit};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use super::callbacks::lock;
use super::protection::Claims;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What, pick};

/// The parent of each: the first is the root.
const PARENTS: [Option<usize>; 5] = [None, Some(0), Some(0), Some(1), Some(1)];

const MANY: usize = PARENTS.len();

/// The counter of what a hook has to give.
const CACHE: usize = 2;

/// A charge has the hook called so often at most.
const CALLS_MAX: u64 = 16;

/// The most that one step charges.
const MOST: u64 = 300;

const WINDOWS_MAX: usize = 4;
const ACCOUNTS_MAX: usize = 6;

/// Nodes of a machine, which are not numbered from 0 on, and one that it does not have.
const NODES: [u16; 3] = [1, 4, 0];

/// The same where they are numbered.
const NUMBERED: [u16; 3] = [1, 2, 3];

/// Items that memory is accounted as.
const ITEMS: [StatKey; 2] = [StatKey::KERNEL, StatKey::SLAB];

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
            Counters::new(config, (batch, adaptive), recursive, seed)?.lives(steps)
        });
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}

/// From a counter up to the root.
fn levels(of: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(of), |&of| PARENTS[of])
}

fn is_within(of: usize, top: usize) -> bool {
    levels(of).any(|level| level == top)
}

/// A counter, and all below it.
fn within(top: usize) -> impl Iterator<Item = usize> {
    (0..PARENTS.len()).filter(move |&of| is_within(of, top))
}

/// A tree of all counters: each has its name and its parent, and finds its levels, and no others.
fn grow(config: CounterConfig) -> Result<Vec<PageCounter>, String> {
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

fn find_levels(counters: &[PageCounter]) -> Holds {
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
fn sets_max(counter: &PageCounter, max: u64, live: u64, reopens: bool) -> Result<bool, String> {
    let before = counter.stocked_bound();
    let set = counter.set_max(max);
    ensure_eq!(set.is_ok(), live <= max, "{set:?} to {max}");
    if let Err(busy) = &set {
        let found = (busy.level, busy.usage, busy.max);
        ensure_eq!(found, (counter.id(), live, max), "{busy}");
        // Stocks that always take whole batches do so afterwards.
        let now = counter.stocked_bound();
        ensure!(
            before == 0 || now > 0 || !reopens,
            "a bound of {now} after {busy}, and {before} before"
        );
    }
    Ok(set.is_ok())
}

/// What a drain says that it takes back is what usage falls by, and what is counted.
fn drain(root: &PageCounter) -> Holds {
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

/// What the hook of the tree shares with the run: the cache, what that has, and what was wrong.
#[derive(Default)]
struct Pressure {
    cache: Mutex<Option<PageCounter>>,
    holds: AtomicU64,
    /// It gives so much at a call, and no more.
    at_a_time: AtomicU64,
    calls: AtomicU64,
    /// What the hook was told in the present charge: the level, and what that used.
    told: Mutex<Option<(CounterId, u64)>>,
    fault: Mutex<Option<String>>,
}

impl Pressure {
    fn cache(&self) -> MutexGuard<'_, Option<PageCounter>> {
        lock(&self.cache)
    }

    /// A charge does not fit: the cache gives what is missing, as far as it has that.
    fn give(&self, refused: &CounterChargeError) -> u64 {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let missing = (refused.usage + refused.requested).saturating_sub(refused.max);
        if refused.want() != missing || missing == 0 {
            *lock(&self.fault) = Some(format!("{refused} wants {}", refused.want()));
        }
        let told = lock(&self.told).replace((refused.level, refused.usage));
        // What it has given may be credit by now, which the usage has in it still.
        if told.is_some_and(|(level, used)| level == refused.level && used <= refused.usage)
            && refused.stocked_bound == 0
            && self
                .cache()
                .as_ref()
                .is_some_and(|cache| cache.level(refused.level).is_some())
        {
            *lock(&self.fault) = Some(format!("{refused}, and was told {told:?} before it gave"));
        }
        let most = self.at_a_time.load(Ordering::SeqCst);
        let given = missing.min(most).min(self.holds.load(Ordering::SeqCst));
        if let Some(cache) = self.cache().as_ref() {
            self.holds.fetch_sub(given, Ordering::SeqCst);
            cache.uncharge(given);
        }
        given
    }
}

/// Units that are accounted, as the run has them.
struct Account {
    of: usize,
    account: NodeAccount,
    units: u64,
    item: usize,
    /// On each of the nodes; the last is none.
    places: [u64; 3],
}

struct Window {
    of: usize,
    window: PeakWindow,
    live: PeakLiveWindow,
    seen: u64,
}

/// A tree of counters, and what the run knows of it.
struct Counters {
    rng: Xoshiro256PlusPlus,
    /// Nothing is charged ahead, so usage is known to the unit.
    is_exact: bool,
    is_adaptive: bool,
    recursive: bool,
    budget: Option<u64>,
    /// How many nodes the tree knows of those that accounts name; 0: it has no statistics.
    nodes: usize,
    node_ids: [u16; 3],
    /// What the run counts: an item of the crate, and one of its own where it has declared that.
    counted: Vec<StatKey>,
    counters: Vec<PageCounter>,
    pressure: Option<Arc<Pressure>>,
    own: [u64; MANY],
    max: [u64; MANY],
    min: [u64; MANY],
    low: [u64; MANY],
    batch: [u64; MANY],
    refused: [u64; MANY],
    /// What was charged by force.
    forced: [u64; MANY],
    /// Of that, what was above a max then.
    forced_above: [u64; MANY],
    peak: [u64; MANY],
    windows: Vec<Window>,
    accounts: Vec<Account>,
    /// What was added to each of these items.
    added: [[i64; MANY]; 2],
}

impl Counters {
    fn new(
        mut config: CounterConfig,
        (batch, adaptive): (u64, bool),
        recursive: bool,
        seed: u64,
    ) -> Result<Counters, String> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let budget = pick(&mut rng, &[None, None, Some(0), Some(128), Some(2_048)]);
        if let Some(units) = budget {
            config = config.budget(units);
        }
        let item = rng.random_bool(0.3);
        let kind = pick(&mut rng, &[0, 0, 1, 2, 3]);
        config = match kind {
            0 => config,
            1 => config.statistics(),
            2 => {
                let machine = [(NODES[0], vec![0]), (NODES[1], vec![1, 2])];
                let machine = machine.map(|(node, all)| (NodeId::new(node), all));
                config.topology(Topology::fixed(machine).expect("each is there once"))
            }
            _ => config.nodes(NUMBERED[2]),
        };
        let mut counted = vec![StatKey::SOCK];
        // What a clone declares is its own, whoever declares first.
        let clone_first: bool = rng.random();
        let of_clone = |config: &CounterConfig| config.clone().stat("columns", Unit::Events);
        let first = Some(&config).filter(|_| item && clone_first).map(of_clone);
        counted.extend(item.then(|| config.stat("rows", Unit::Events)));
        let of_clone = first.or_else(|| item.then(|| of_clone(&config)));
        let pressure = rng.random_bool(0.3).then(Arc::<Pressure>::default);
        if let Some(pressure) = pressure.clone() {
            config = config.on_pressure(move |refused| pressure.give(refused));
        }
        let counters = grow(config)?;
        items_are_known(&counters[0], of_clone)?;
        let nodes = counters[0].topology().nodes().count();
        let known = [1, 1, 2, NUMBERED[2].into()][kind];
        ensure_eq!(nodes, known, "nodes");
        Ok(Counters {
            rng,
            is_exact: batch == 0,
            is_adaptive: adaptive,
            recursive,
            budget,
            nodes: if kind == 0 {
                usize::from(item)
            } else {
                kind.min(2)
            },
            node_ids: if kind == 3 { NUMBERED } else { NODES },
            counted,
            counters,
            pressure,
            own: [0; MANY],
            max: [u64::MAX; MANY],
            min: [0; MANY],
            low: [0; MANY],
            batch: [batch; MANY],
            refused: [0; MANY],
            forced: [0; MANY],
            forced_above: [0; MANY],
            peak: [0; MANY],
            windows: Vec::new(),
            accounts: Vec::new(),
            added: [[0; MANY]; 2],
        })
    }

    /// All units that are charged below `top`.
    fn live(&self, top: usize) -> u64 {
        let accounts = self.accounts.iter().filter(|it| is_within(it.of, top));
        within(top).map(|of| self.own[of]).sum::<u64>() + accounts.map(|it| it.units).sum::<u64>()
    }

    /// The lowest level that has no room for so many more.
    fn full(&self, of: usize, bytes: u64) -> Option<usize> {
        let is_full = |&level: &usize| self.live(level).saturating_add(bytes) > self.max[level];
        levels(of).find(|level| bytes > 0 && is_full(level))
    }

    fn lives(mut self, steps: u8) -> Holds {
        if let Some(pressure) = &self.pressure {
            *pressure.cache() = Some(self.counters[CACHE].clone());
        }
        let mut lived = Ok(());
        for _ in 0..steps {
            let before = self.counters[0].counts();
            lived = lived
                .and_then(|()| self.step())
                .and_then(|()| self.look())
                .and_then(|()| self.counts_hold(before));
        }
        let ended = lived.and_then(|()| self.end());
        // The hook is the tree's, and keeps a counter of it.
        if let Some(pressure) = &self.pressure {
            drop(pressure.cache().take());
        }
        ended
    }

    fn step(&mut self) -> Holds {
        let of = self.rng.random_range(0..MANY);
        let bytes = self.rng.random_range(0..=MOST);
        let counter = self.counters[of].clone();
        if let Some(pressure) = &self.pressure {
            pressure.holds.store(self.own[CACHE], Ordering::SeqCst);
            let at_a_time = pick(&mut self.rng, &[u64::MAX, u64::MAX, 1, 10, 100]);
            pressure.at_a_time.store(at_a_time, Ordering::SeqCst);
            pressure.calls.store(0, Ordering::SeqCst);
            *lock(&pressure.told) = None;
        }
        match self.rng.random_range(0..14) {
            0..=1 => {
                let blocks = self.rng.random();
                let charged = if blocks {
                    counter.charge(bytes)
                } else {
                    counter.try_charge(bytes)
                };
                if self.agree(of, bytes, blocks, charged)?.is_some() {
                    self.own[of] += bytes;
                }
            }
            2 => {
                counter.force_charge(bytes);
                self.own[of] += bytes;
                self.note_forced(of, bytes, 0);
            }
            3 | 4 => {
                let gone = bytes.min(self.own[of]);
                counter.uncharge(gone);
                self.own[of] -= gone;
            }
            5 => {
                let max = if bytes == 0 { u64::MAX } else { bytes * 4 };
                // Not below what is above its max.
                let is_above = |counter: &PageCounter| counter.forced() > 0;
                let reopens = !self.is_adaptive && !self.counters.iter().any(is_above);
                if sets_max(&counter, max, self.live(of), reopens)? {
                    self.max[of] = max;
                }
            }
            6 => drain(&self.counters[0])?,
            7 => {
                if self.rng.random() {
                    counter.set_min(bytes);
                    self.min[of] = bytes;
                } else {
                    counter.set_low(bytes);
                    self.low[of] = bytes;
                }
            }
            8 => self.step_window(of % 2)?,
            9..12 => self.step_account(of, bytes)?,
            12 => {
                let batch = pick(&mut self.rng, &[0, 16, 1_024]);
                let before = counter.stocked_bound();
                counter.set_batch(batch);
                let now = counter.stocked_bound();
                let is_above = |counter: &PageCounter| counter.forced() > 0;
                let reopens = !self.is_adaptive && !self.counters.iter().any(is_above);
                // Where the budget allows more.
                let is_less = within(of).all(|below| batch <= self.batch[below]);
                ensure!(
                    before == 0 || batch == 0 || now > 0 || !reopens || !is_less,
                    "a bound of {now} with a batch of {batch}, and {before} before"
                );
                self.is_exact = false;
                for below in within(of) {
                    self.batch[below] = batch;
                }
            }
            _ => {
                let delta = bytes.cast_signed() - 100;
                let at = self.rng.random_range(0..self.counted.len());
                let item = self.counted[at];
                counter.stat_add(item, delta);
                if self.nodes > 0 {
                    self.added[at][of] += delta;
                }
                if self.rng.random() {
                    counter.flush();
                    let stale = counter.read(Freshness::Stale).local(item);
                    ensure_eq!(stale, self.added[at][of], "added, after a flush");
                }
            }
        }
        Ok(())
    }

    /// So many units were charged by force. An account that is in hand has `beside`.
    fn note_forced(&mut self, of: usize, bytes: u64, beside: u64) {
        for level in levels(of) {
            let above = (self.live(level) + beside).saturating_sub(self.max[level]);
            self.forced[level] += bytes;
            self.forced_above[level] += above.min(bytes);
        }
    }

    /// Compares an answer with the one that the sums allow. Some: the charge was made.
    fn agree<T>(
        &mut self,
        of: usize,
        bytes: u64,
        blocks: bool,
        found: Result<T, CounterChargeError>,
    ) -> Result<Option<T>, String> {
        let was_full = self.full(of, bytes).is_some();
        let mut calls = 0;
        if let Some(pressure) = &self.pressure {
            self.own[CACHE] = pressure.holds.load(Ordering::SeqCst);
            calls = pressure.calls.load(Ordering::SeqCst);
            if let Some(fault) = lock(&pressure.fault).take() {
                return Err(fault);
            }
        }
        ensure!(
            calls <= CALLS_MAX && (calls == 0 || blocks && was_full),
            "a hook was called {calls} times for {bytes}, which may ask: {blocks}"
        );
        let full = self.full(of, bytes);
        ensure_eq!(
            found.is_ok(),
            full.is_none(),
            "{:?} of {bytes}, full: {full:?}",
            found.as_ref().err()
        );
        let Err(refused) = found else {
            return Ok(found.ok());
        };
        let level = full.expect("it is refused");
        self.refused[level] += 1;
        let counter = &self.counters[level];
        let named = (
            refused.level,
            refused.requester,
            refused.requested,
            refused.max,
        );
        let known = (counter.id(), self.counters[of].id(), bytes, self.max[level]);
        ensure_eq!(
            named,
            known,
            "(level, requester, requested, max) of {refused}"
        );
        let live = self.live(level);
        let beside = refused.usage.checked_sub(live);
        // No credit is drained for a charge that all of it would not make room for.
        let least = refused.usage.saturating_sub(refused.stocked_bound);
        let is_beyond = least + bytes > refused.max;
        ensure!(
            beside == Some(0) || is_beyond && beside <= Some(refused.stocked_bound),
            "{refused}, and {live} are live"
        );
        // It is asked as long as it gives something, until patience ends, wherever what it gives helps.
        let never_fits = levels(of).any(|level| bytes > self.max[level]);
        let asks = self.pressure.is_some() && blocks && !never_fits && calls < CALLS_MAX;
        ensure!(
            !asks || self.own[CACHE] == 0,
            "{refused} after {calls} calls, and the cache has {}",
            self.own[CACHE]
        );
        Ok(None)
    }

    // === Peaks ===

    fn step_window(&mut self, of: usize) -> Holds {
        let room = self.windows.len() < WINDOWS_MAX;
        match self.rng.random_range(0..4) {
            0 | 1 if room => {
                let seen = self.live(of);
                let counter = &self.counters[of];
                let (window, live) = (counter.peak_window(), counter.peak_live_window());
                self.windows.push(Window {
                    of,
                    window,
                    live,
                    seen,
                });
            }
            _ if self.windows.is_empty() => {}
            2 => {
                let at = self.rng.random_range(0..self.windows.len());
                let now = self.live(self.windows[at].of);
                let started = &mut self.windows[at];
                started.window.reset();
                started.live.reset();
                started.seen = now;
                let used = self.counters[started.of].usage();
                ensure_eq!(started.window.peak(), used, "a peak that starts over");
            }
            _ => {
                let at = self.rng.random_range(0..self.windows.len());
                drop(self.windows.swap_remove(at));
            }
        }
        Ok(())
    }

    /// Nothing is charged within a step and gone after it, so the highest is that after some step.
    fn peaks_hold(&mut self) -> Holds {
        for of in 0..MANY {
            self.peak[of] = self.peak[of].max(self.live(of));
            let (peak, seen) = (self.counters[of].peak(), self.peak[of]);
            ensure!(
                peak >= seen && (peak == seen || !self.is_exact),
                "the peak of counter {of} is {peak}, and {seen} were live"
            );
            let live = self.counters[of].peak_live();
            ensure!(
                live.max() >= seen
                    && live.min() <= seen
                    && (live.exact() == Some(seen) || !self.is_exact),
                "the peak of counter {of} by what is live is {live}, and {seen} were"
            );
        }
        for at in 0..self.windows.len() {
            let live = self.live(self.windows[at].of);
            let Window {
                of,
                window,
                live: of_live,
                seen,
            } = &mut self.windows[at];
            *seen = live.max(*seen);
            let counter = &self.counters[*of];
            let (used, peak, ever) = (counter.usage(), window.peak(), counter.peak());
            ensure!(
                peak >= used && peak >= *seen && peak <= ever && (peak == *seen || !self.is_exact),
                "a peak of counter {of} is {peak}, {ever} ever, and {seen} were live since it began"
            );
            let most = of_live.peak().max();
            ensure!(
                live <= most && most <= ever,
                "{live} are live in counter {of}, and {most} were at most, {ever} used"
            );
        }
        Ok(())
    }

    // === Memory on nodes ===

    /// The place of a node among those of the machine; the last is none.
    fn place(&self, node: usize) -> usize {
        match self.nodes {
            2 if node < 2 => node,
            2 => 2,
            _ => 0,
        }
    }

    fn step_account(&mut self, of: usize, bytes: u64) -> Holds {
        let most = self.accounts.len();
        if most == 0 || most < ACCOUNTS_MAX && self.rng.random_bool(0.3) {
            let found = self.counters[of].precharge(bytes);
            if let Some(account) = self.agree(of, bytes, true, found)? {
                self.accounts.push(Account {
                    of,
                    account,
                    units: bytes,
                    item: 0,
                    places: [0; 3],
                });
            }
            return Ok(());
        }
        let at = self.rng.random_range(0..most);
        let Account {
            of,
            mut account,
            units,
            mut item,
            mut places,
        } = self.accounts.swap_remove(at);
        let (from, to) = (self.rng.random_range(0..3), self.rng.random_range(0..3));
        let ids = self.node_ids;
        let node = |node: usize| ids.get(node).copied().map(NodeId::new);
        match self.rng.random_range(0..4) {
            0 => {
                drop(account);
                return Ok(());
            }
            1 => {
                let moved = account.migrated(node(from), node(to), bytes);
                let (from, to) = (self.place(from), self.place(to));
                ensure_eq!(moved, bytes.min(places[from]), "moved");
                places[from] -= moved;
                places[to] += moved;
            }
            _ => {
                let mut placement = Placement::new();
                placement.add(node(from), Bytes(bytes));
                placement.add(None, Bytes(bytes / 3));
                item = self.rng.random_range(0..ITEMS.len());
                account = account.account_as(ITEMS[item], &placement);
                let now = bytes + bytes / 3;
                self.note_forced(of, now.saturating_sub(units), now);
                places = [0; 3];
                if self.nodes > 0 {
                    places[self.place(from)] += bytes;
                    places[self.place(2)] += bytes / 3;
                }
            }
        }
        let units = account.units();
        let placed: u64 = places.iter().sum();
        ensure!(
            placed == 0 || units == placed,
            "{units} units, {placed} of them placed"
        );
        self.accounts.push(Account {
            of,
            account,
            units,
            item,
            places,
        });
        Ok(())
    }

    fn items_hold(&self, of: usize) -> Holds {
        let counter = &self.counters[of];
        let stats = counter.read(Freshness::Exact);
        for (&item, added) in self.counted.iter().zip(&self.added) {
            let below: i64 = within(of).map(|below| added[below]).sum();
            let found = (stats.get(item), stats.local(item));
            ensure_eq!(
                found,
                (below, added[of]),
                "an item of counter {of}, and of it alone"
            );
        }
        for (item, stat) in ITEMS.into_iter().enumerate() {
            let here = |it: &&Account| it.item == item && is_within(it.of, of);
            let sum = |place: usize| -> u64 {
                let all = self.accounts.iter().filter(here);
                all.map(|it| it.places[place]).sum()
            };
            let known = [0, 1, 2].map(sum);
            let by_node = counter.numa_stat(stat, Freshness::Exact);
            let on = |place: usize| match self.nodes {
                2 => by_node.get(NodeId::new(self.node_ids[place])),
                _ if place == 0 => by_node.sum(),
                _ => 0,
            };
            let found = [on(0), on(1)].map(i64::cast_unsigned);
            ensure_eq!(
                found,
                [known[0], known[1]],
                "{stat:?} on nodes, of counter {of}"
            );
            let all = stats.get(stat).cast_unsigned();
            ensure_eq!(all, known.iter().sum::<u64>(), "{stat:?} of counter {of}");
        }
        Ok(())
    }

    // === Figures ===

    fn look(&mut self) -> Holds {
        self.peaks_hold()?;
        for (of, counter) in self.counters.iter().enumerate() {
            let found = (counter.live(), counter.max(), counter.refused_count());
            let known = (self.live(of), self.max[of], self.refused[of]);
            ensure_eq!(found, known, "(live, max, refusals) of counter {of}");
            let found = (counter.min(), counter.low(), counter.batch());
            let known = (self.min[of], self.low[of], self.batch[of]);
            ensure_eq!(found, known, "(min, low, batch) of counter {of}");
            let (usage, bound) = (counter.usage(), counter.stocked_bound());
            let credit = usage.checked_sub(self.live(of));
            ensure!(
                credit.is_some_and(|credit| credit <= bound && credit == counter.stocked()),
                "{usage} are used of counter {of}, with a bound of {bound}"
            );
            let forced = (counter.forced(), counter.forced_total());
            ensure!(
                forced.0 == usage.saturating_sub(self.max[of])
                    && forced.0 <= forced.1
                    && (forced.1 == self.forced_above[of] || !self.is_exact),
                "(above max, ever) of counter {of}: {forced:?}, and {} were forced, {} above",
                self.forced[of],
                self.forced_above[of]
            );
            let room = |level: usize| {
                let most = self.max[level].min(PageCounter::USAGE_MAX);
                most.saturating_sub(self.counters[level].usage())
            };
            let room = levels(of).map(room).min().expect("a level");
            ensure_eq!(counter.headroom(), room, "the headroom of counter {of}");
            self.claims_hold(of)?;
            if self.nodes > 0 {
                self.items_hold(of)?;
            }
        }
        find_levels(&self.counters)?;
        let bound = self.counters[0].stocked_bound();
        let budget = self.budget.unwrap_or(self.max[0] / 16);
        ensure!(
            bound <= budget,
            "a bound of {bound}, and a budget of {budget}"
        );
        let verdict = self.counters[0].verify();
        ensure!(verdict.is_ok(), "{verdict}");
        ensure_eq!(verdict.counter_count(), MANY, "counters that are verified");
        Ok(())
    }

    fn claims_hold(&self, of: usize) -> Holds {
        let counter = &self.counters[of];
        let used = |of: usize| Some(self.counters[of].usage());
        let children = |parent: usize| -> Vec<usize> {
            (0..MANY)
                .filter(|&of| PARENTS[of] == Some(parent))
                .collect()
        };
        for (settings, claimed, effective) in [
            (
                &self.min,
                counter.children_min_usage(),
                counter.effective_min(&self.counters[0]),
            ),
            (
                &self.low,
                counter.children_low_usage(),
                counter.effective_low(&self.counters[0]),
            ),
        ] {
            let claims = children(of).into_iter();
            let claims = claims.map(|child| settings[child].min(self.counters[child].usage()));
            ensure_eq!(claimed, claims.sum::<u64>(), "protected below counter {of}");
            let claims = Claims {
                parent: &|of| PARENTS[of],
                children: &children,
                used: &used,
                setting: &|of| settings[of],
                recursive: self.recursive,
            };
            let known = if of == 0 {
                Some(0)
            } else {
                claims.effective(of)
            };
            ensure_eq!(Some(effective), known, "protected of counter {of}");
        }
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
        let writes = self.nodes > 0;
        let has_written = self.added.iter().flatten().any(|&added| added != 0);
        ensure!(
            now.stat_unlists <= now.stat_lists
                && (now.stat_lists > 0 && now.flushes > 0 || !has_written)
                && (writes || now.flushes == 0),
            "statistics: {now:?}"
        );
        Ok(())
    }

    // === The end ===

    /// Those that end with units give them back, also where something keeps one a while longer.
    fn end(&mut self) -> Holds {
        self.windows.clear();
        if let Some(pressure) = &self.pressure {
            pressure.holds.store(0, Ordering::SeqCst);
            drop(pressure.cache().take());
        }
        while let Some(last) = self.counters.pop() {
            let of = self.counters.len();
            let bytes = if self.rng.random() { self.own[of] } else { 0 };
            last.uncharge(bytes);
            let is_first: bool = self.rng.random();
            let mut last = Some(last).filter(|_| !is_first);
            self.accounts.retain(|account| account.of != of);
            drop(last.take());
            self.own[of] = 0;
            if let Some(root) = self.counters.first() {
                ensure_eq!(root.live(), self.live(0), "live after the end of {of}");
                let above = PARENTS[of].expect("not the root");
                let left = (0..of).filter(|&it| PARENTS[it] == Some(above));
                let claims = |settings: &[u64; MANY]| -> u64 {
                    let left = left.clone();
                    left.map(|it| settings[it].min(self.counters[it].usage()))
                        .sum()
                };
                let known = (claims(&self.min), claims(&self.low));
                let above = &self.counters[above];
                let found = (above.children_min_usage(), above.children_low_usage());
                ensure_eq!(found, known, "(min, low) protected after the end of {of}");
            }
        }
        Ok(())
    }
}

/// A tree has the items that its configuration declared, and counts nothing for one of another.
fn items_are_known(root: &PageCounter, of_clone: Option<StatKey>) -> Holds {
    let names: Vec<String> = root.items().map(|it| it.name.to_string()).collect();
    let has = |name: &str| names.iter().any(|it| it == name);
    ensure_eq!(has("rows"), of_clone.is_some(), "items: {names:?}");
    ensure!(!has("columns"), "items: {names:?}");
    if let Some(of_clone) = of_clone {
        let before = root.counts().foreign_stats;
        root.stat_add(of_clone, 1);
        let foreign = root.counts().foreign_stats - before;
        ensure_eq!(foreign, 1, "additions to an item of another tree");
        let rows = root.items().find(|it| it.name == "rows").map(|it| it.stat);
        rows.into_iter().for_each(|rows| root.stat_add(rows, 3));
        let by_node = root.numa_stat(of_clone, Freshness::Exact).sum();
        let found = (root.read(Freshness::Exact).get(of_clone), by_node);
        rows.into_iter().for_each(|rows| root.stat_add(rows, -3));
        ensure_eq!(found, (0, 0), "an item of another tree, and on nodes");
    }
    Ok(())
}
