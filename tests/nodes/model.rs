//! Any allocations, frees, migrations, transfers and offlines, on any machine, against a naive twin.
//!
//! The twin has for each guard the bytes in each place, and for each group a flag for each node on which it or a group
//! below ever had memory. After each operation: a charge is admitted exactly when there is room; what a guard says it
//! holds is what the twin has; stale figures are off by no more than they say. On reading, and in the end: for every group
//! each node is what the guards have there, the nodes sum to the account, the account is no more than the charge, and
//! the tier holds what lies on it and what is promised. When all is gone all is zero.

use std::collections::{BTreeMap, BTreeSet};

use memcg::{Bound, Bytes, Counter, Group, Kmem, Limit, NodeId, Placement, Precharge, Runtime, Stat};
use proptest::prelude::*;
use proptest::sample::select;

use super::{Other, assert_empty, machine, node};
use crate::trees::{assert_sound, build, limited};

const GROUPS_MAX: usize = 24;
const HELD_MAX: usize = 16;
const THREADS: usize = 2;

#[derive(Clone, Debug)]
struct Setup {
    nodes: BTreeSet<u16>,
    batch: u64,
    adaptive: bool,
    stat_batch: Option<u64>,
    max: u64,
    tier_max: u64,
}

/// Nodes by their place in the machine; beyond it none, or one that is not there.
type Spots = Vec<(u8, u64)>;

#[derive(Clone, Debug)]
enum Action {
    Create { max: u64 },
    Offline,
    OfflineTree,
    DropHandle,
    Precharge { bytes: u64, is_within: bool },
    DropPrecharge,
    Account(Spots),
    Migrate { from: u8, to: u8, bytes: u64 },
    TryMigrate { from: u8, to: u8, bytes: u64 },
    Relocate(Spots),
    Shrink(Spots),
    Merge(u8),
    Transfer(u8),
    Free,
    Read,
    Drain,
    Exit,
}

#[derive(Clone, Debug)]
struct Op {
    thread: u8,
    subject: u8,
    action: Action,
}

// === The twin ===

/// Where bytes may be: `None` for no node.
type Spot = Option<u16>;

struct TwinGroup {
    parent: Option<usize>,
    online: bool,
    max: u64,
    /// Has memory there, or has had, or one below.
    parts: BTreeSet<u16>,
}

#[derive(Clone, Default)]
struct TwinKmem {
    group: usize,
    /// By spot and by the group that is accounted for it.
    places: BTreeMap<(Spot, usize), u64>,
    promised: u64,
}

impl TwinKmem {
    fn on(&self, spot: Spot) -> u64 {
        self.places.iter().filter(|((of, _), _)| *of == spot).map(|(_, bytes)| bytes).sum()
    }

    fn bytes(&self) -> u64 {
        self.places.values().sum()
    }

    fn take(&mut self, spot: Spot, bytes: u64) -> u64 {
        let mut left = bytes;
        for (_, here) in self.places.iter_mut().filter(|((of, _), _)| *of == spot) {
            let gone = left.min(*here);
            *here -= gone;
            left -= gone;
        }
        bytes - left
    }
}

struct Twin {
    numbers: Vec<u16>,
    groups: Vec<TwinGroup>,
    precharges: Vec<(usize, u64, bool)>,
    held: Vec<TwinKmem>,
    tier_max: u64,
}

impl Twin {
    fn new(setup: &Setup) -> Self {
        let root = TwinGroup { parent: None, online: true, max: setup.max, parts: BTreeSet::new() };
        let numbers: Vec<u16> = setup.nodes.iter().copied().collect();
        Twin { numbers, groups: vec![root], precharges: Vec::new(), held: Vec::new(), tier_max: setup.tier_max }
    }

    fn levels(&self, group: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group), |&group| self.groups[group].parent)
    }

    fn is_within(&self, group: usize, top: usize) -> bool {
        self.levels(group).any(|level| level == top)
    }

    /// As the machine sees it: with one node all is there.
    fn spot(&self, at: u8) -> Spot {
        if self.numbers.len() == 1 { Some(self.numbers[0]) } else { self.numbers.get(usize::from(at)).copied() }
    }

    /// The first half.
    fn is_fast(&self, spot: Spot) -> bool {
        let fast = &self.numbers[..self.numbers.len().div_ceil(2)];
        spot.is_some_and(|of| fast.contains(&of))
    }

    fn live(&self, top: usize) -> u64 {
        let held: u64 = self.held.iter().filter(|kmem| self.is_within(kmem.group, top)).map(TwinKmem::bytes).sum();
        let ahead: u64 =
            self.precharges.iter().filter(|(group, ..)| self.is_within(*group, top)).map(|(_, bytes, _)| bytes).sum();
        held + ahead
    }

    fn on_tier(&self, kmem: &TwinKmem) -> u64 {
        kmem.places.iter().filter(|((spot, _), _)| self.is_fast(*spot)).map(|(_, bytes)| bytes).sum()
    }

    fn tier(&self) -> u64 {
        let ahead: u64 = self.precharges.iter().filter(|(.., asked)| *asked).map(|(_, bytes, _)| bytes).sum();
        ahead + self.held.iter().map(|kmem| self.on_tier(kmem) + kmem.promised).sum::<u64>()
    }

    fn has_room(&self, group: usize, bytes: u64, below: Option<usize>) -> bool {
        let levels: Vec<usize> = self.levels(group).take_while(|level| Some(*level) != below).collect();
        levels.into_iter().all(|level| bytes == 0 || self.live(level) + bytes <= self.groups[level].max)
    }

    fn common(&self, a: usize, b: usize) -> usize {
        self.levels(a).find(|&level| self.is_within(b, level)).unwrap_or(0)
    }

    /// Who is accounted: the nearest that has a part there, or may make one.
    fn put(&mut self, kmem: &mut TwinKmem, spot: Spot, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let is_one_node = self.numbers.len() == 1;
        let at = match spot {
            Some(of) if !is_one_node => {
                let takes = |&level: &usize| {
                    let level = &self.groups[level];
                    level.online || level.parent.is_none() || level.parts.contains(&of)
                };
                let at = self.levels(kmem.group).find(takes).unwrap_or(0);
                let levels: Vec<usize> = self.levels(at).collect();
                for level in levels {
                    self.groups[level].parts.insert(of);
                }
                at
            }
            _ => kmem.group,
        };
        *kmem.places.entry((spot, at)).or_default() += bytes;
    }

    /// What is promised of a tier after something has moved.
    fn settle(&self, kmem: &mut TwinKmem, before: &TwinKmem) {
        let (was, is) = (self.on_tier(before), self.on_tier(kmem));
        let (nowhere, still) = (before.on(None), kmem.on(None));
        let taken_up = is.saturating_sub(was).min(nowhere.saturating_sub(still));
        let given_up = was.saturating_sub(is).min(still.saturating_sub(nowhere));
        kmem.promised = (kmem.promised.saturating_sub(taken_up) + given_up).min(still);
    }

    /// Bytes by node of a group alone, or of all below it.
    fn figures(&self, top: usize, is_local: bool) -> BTreeMap<Spot, i64> {
        let mut figures = BTreeMap::new();
        for ((spot, at), bytes) in self.held.iter().flat_map(|kmem| &kmem.places) {
            if *at == top || !is_local && self.is_within(*at, top) {
                *figures.entry(*spot).or_default() += bytes.cast_signed();
            }
        }
        figures
    }
}

// === Side by side ===

struct Run {
    twin: Twin,
    runtime: Runtime,
    toptier: Counter,
    fast: Vec<NodeId>,
    handles: Vec<Option<Group>>,
    precharges: Vec<Precharge>,
    held: Vec<Kmem>,
    threads: Vec<Other>,
    at: String,
}

impl Run {
    fn new(setup: &Setup) -> Self {
        let twin = Twin::new(setup);
        let builder = Runtime::builder().audit(true).max(Limit::Bytes(setup.max)).topology(machine(&twin.numbers));
        let mut builder = builder.batch(Bytes(setup.batch)).adaptive(setup.adaptive);
        if let Some(batch) = setup.stat_batch {
            builder = builder.stat_batch(batch);
        }
        let fast: Vec<NodeId> = twin.numbers[..twin.numbers.len().div_ceil(2)].iter().copied().map(node).collect();
        let toptier = builder.tier("toptier", fast.clone());
        let runtime = build(builder);
        let root = runtime.root();
        let tier = root.counter(toptier).expect("declared");
        tier.set_max(Limit::Bytes(setup.tier_max)).expect("a limit");
        Run {
            twin,
            handles: vec![Some(root.clone())],
            runtime,
            toptier,
            fast,
            precharges: Vec::new(),
            held: Vec::new(),
            threads: (0..THREADS).map(|_| Other::spawn()).collect(),
            at: String::new(),
        }
    }

    fn on<R: Send + 'static>(&self, op: &Op, work: impl FnOnce() -> R + Send + 'static) -> R {
        self.threads[usize::from(op.thread) % THREADS].run(work)
    }

    /// A node as it is said to the library.
    fn node(&self, at: u8) -> Option<NodeId> {
        match self.twin.numbers.get(usize::from(at)) {
            Some(&number) => Some(node(number)),
            None if at % 2 == 0 => None,
            None => Some(node(5_000)),
        }
    }

    fn placement(&self, spots: &Spots) -> Placement {
        let mut placement = Placement::new();
        spots.iter().for_each(|&(at, bytes)| placement.add(self.node(at), bytes));
        placement
    }

    /// The same as the machine sees it, in the order in which nodes are looked at: those first, what is on none last.
    fn spots(&self, spots: &Spots) -> Vec<(Spot, u64)> {
        let placement = self.placement(spots);
        let is_one_node = self.twin.numbers.len() == 1;
        let of = |node: NodeId| match self.twin.numbers.iter().find(|&&number| number == node.get()) {
            _ if is_one_node => Some(self.twin.numbers[0]),
            found => found.copied(),
        };
        let rest = (if is_one_node { Some(self.twin.numbers[0]) } else { None }, placement.unplaced());
        placement.nodes().map(|(node, bytes)| (of(node), bytes)).chain([rest]).collect()
    }

    fn step(&mut self, op: &Op) {
        let in_hand: Vec<usize> = (0..self.handles.len()).filter(|&at| self.handles[at].is_some()).collect();
        let group = in_hand[usize::from(op.subject) % in_hand.len()];
        match &op.action {
            Action::Create { .. } | Action::Offline | Action::OfflineTree | Action::DropHandle => {
                self.of_group(op, group)
            }
            Action::Precharge { bytes, is_within } => self.precharge(op, group, *bytes, *is_within),
            Action::Read => self.read_all(),
            Action::Drain => {
                self.handles[group].as_ref().expect("in hand").drain();
            }
            Action::Exit => self.threads[usize::from(op.thread) % THREADS] = Other::spawn(),
            Action::DropPrecharge | Action::Account(_) if self.precharges.is_empty() => {}
            Action::DropPrecharge => {
                let at = usize::from(op.subject) % self.precharges.len();
                self.twin.precharges.swap_remove(at);
                let precharge = self.precharges.swap_remove(at);
                self.on(op, move || drop(precharge));
            }
            Action::Account(spots) => self.account(op, spots),
            _ if self.held.is_empty() => {}
            action => {
                let at = usize::from(op.subject) % self.held.len();
                self.of_kmem(op, at, action, &in_hand);
            }
        }
    }

    fn of_group(&mut self, op: &Op, group: usize) {
        let handle = self.handles[group].clone().expect("in hand");
        match op.action {
            Action::Create { max } if self.twin.groups.len() < GROUPS_MAX && self.twin.groups[group].online => {
                let made = limited(&handle, &self.twin.groups.len().to_string(), max);
                let parts = BTreeSet::new();
                self.twin.groups.push(TwinGroup { parent: Some(group), online: true, max, parts });
                self.handles.push(Some(made));
            }
            Action::Offline if group > 0 => {
                let below = (group + 1..self.twin.groups.len()).filter(|&at| self.twin.is_within(at, group));
                let is_alone = below.into_iter().all(|at| !self.twin.groups[at].online);
                let done = self.on(op, move || handle.offline().is_ok());
                assert_eq!(done, is_alone, "{}", self.at);
                self.twin.groups[group].online &= !is_alone;
            }
            Action::OfflineTree if group > 0 => {
                self.on(op, move || handle.offline_tree());
                for at in group..self.twin.groups.len() {
                    if self.twin.is_within(at, group) {
                        self.twin.groups[at].online = false;
                    }
                }
            }
            Action::DropHandle if group > 0 => {
                self.handles[group] = None;
                self.on(op, move || drop(handle));
            }
            _ => {}
        }
    }

    fn precharge(&mut self, op: &Op, group: usize, bytes: u64, is_within: bool) {
        if self.precharges.len() + self.held.len() >= HELD_MAX {
            return;
        }
        let slow: Vec<NodeId> =
            self.twin.numbers.iter().map(|&number| node(number)).filter(|of| !self.fast.contains(of)).collect();
        let asked = !is_within || slow.is_empty();
        let bound = if is_within { Bound::from(bytes).within(&slow) } else { Bound::from(bytes) };
        let is_online = self.twin.groups[group].online;
        let tier_fits = !asked || self.twin.tier() + bytes <= self.twin.tier_max;
        let fits = is_online && tier_fits && self.twin.has_room(group, bytes, None);
        let handle = self.handles[group].clone().expect("in hand");
        let got = self.on(op, move || handle.precharge(bound));
        assert_eq!(got.is_ok(), fits, "{}: {got:?}", self.at);
        if let Ok(precharge) = got {
            self.precharges.push(precharge);
            self.twin.precharges.push((group, bytes, asked));
        }
    }

    fn account(&mut self, op: &Op, spots: &Spots) {
        let at = usize::from(op.subject) % self.precharges.len();
        let (precharge, placement) = (self.precharges.swap_remove(at), self.placement(spots));
        self.held.push(self.on(op, move || precharge.account(&placement)));
        let (group, bytes, asked) = self.twin.precharges.swap_remove(at);
        let mut kmem = TwinKmem { group, ..TwinKmem::default() };
        for (spot, bytes) in self.spots(spots) {
            self.twin.put(&mut kmem, spot, bytes);
        }
        let on_tier = self.twin.on_tier(&kmem);
        kmem.promised = if asked { bytes.saturating_sub(on_tier).min(kmem.on(None)) } else { 0 };
        self.twin.held.push(kmem);
    }

    fn of_kmem(&mut self, op: &Op, at: usize, action: &Action, in_hand: &[usize]) {
        let (mut kmem, mut theirs) = (self.held.swap_remove(at), self.twin.held.swap_remove(at));
        let before = theirs.clone();
        match action {
            Action::Free => {
                self.on(op, move || drop(kmem));
                return;
            }
            &Action::Migrate { from, to, bytes } => {
                let (of, into) = (self.node(from), self.node(to));
                let (moved, back) = self.on(op, move || (kmem.migrate(of, into, bytes), kmem));
                kmem = back;
                assert_eq!(moved, self.migrate(&mut theirs, from, to, bytes), "{}", self.at);
            }
            &Action::TryMigrate { from, to, bytes } => {
                let (of, into) = (self.node(from), self.node(to));
                let (got, back) = self.on(op, move || (kmem.try_migrate(of, into, bytes), kmem));
                kmem = back;
                let fits = self.may_migrate(&theirs, from, to, bytes);
                assert_eq!(got.is_ok(), fits, "{}: {got:?}", self.at);
                if let Ok(moved) = got {
                    assert_eq!(moved, self.migrate(&mut theirs, from, to, bytes), "{}", self.at);
                }
            }
            Action::Relocate(spots) => {
                let placement = self.placement(spots);
                kmem = self.on(op, move || {
                    kmem.relocate(&placement);
                    kmem
                });
                self.relocate(&mut theirs, spots);
            }
            Action::Shrink(spots) => {
                let placement = self.placement(spots);
                let (gone, back) = self.on(op, move || (kmem.shrink(&placement), kmem));
                kmem = back;
                let expected: u64 = self.spots(spots).into_iter().map(|(spot, bytes)| theirs.take(spot, bytes)).sum();
                assert_eq!(gone, expected, "{}", self.at);
            }
            Action::Merge(with) if !self.held.is_empty() => {
                let with = usize::from(*with) % self.held.len();
                let (other, theirs_too) = (self.held.swap_remove(with), self.twin.held.swap_remove(with));
                let (back, merged) = self.on(op, move || (kmem.merge(other).err(), kmem));
                kmem = merged;
                assert_eq!(back.is_none(), theirs.group == theirs_too.group, "{}", self.at);
                if let Some(back) = back {
                    self.held.push(*back);
                    self.twin.held.push(theirs_too);
                } else {
                    theirs_too
                        .places
                        .into_iter()
                        .for_each(|(at, bytes)| *theirs.places.entry(at).or_default() += bytes);
                    theirs.promised += theirs_too.promised;
                }
                (self.held.push(kmem), self.twin.held.push(theirs));
                return;
            }
            Action::Transfer(to) => {
                let to = in_hand[usize::from(*to) % in_hand.len()];
                let handle = self.handles[to].clone().expect("in hand");
                let (got, back) = self.on(op, move || (kmem.transfer(&handle), kmem));
                kmem = back;
                let common = self.twin.common(theirs.group, to);
                // What it holds is not in the twin's list now, and was below the common ancestor only.
                let room = self.twin.groups[to].online && self.twin.has_room(to, theirs.bytes(), Some(common));
                assert_eq!(got.is_ok(), to == theirs.group || room, "{}: {got:?}", self.at);
                if got.is_ok() && to != theirs.group {
                    let places = std::mem::take(&mut theirs.places);
                    theirs.group = to;
                    places.into_iter().for_each(|((spot, _), bytes)| self.twin.put(&mut theirs, spot, bytes));
                }
            }
            _ => {}
        }
        self.twin.settle(&mut theirs, &before);
        theirs.places.retain(|_, bytes| *bytes > 0);
        (self.held.push(kmem), self.twin.held.push(theirs));
    }

    fn migrate(&mut self, kmem: &mut TwinKmem, from: u8, to: u8, bytes: u64) -> u64 {
        let (from, to) = (self.spot_of(from), self.spot_of(to));
        if from == to {
            return kmem.on(from).min(bytes);
        }
        let moved = kmem.take(from, bytes);
        self.twin.put(kmem, to, moved);
        moved
    }

    fn spot_of(&self, at: u8) -> Spot {
        self.twin.spot(at)
    }

    /// The tier is asked for what it has not promised.
    fn may_migrate(&self, kmem: &TwinKmem, from: u8, to: u8, bytes: u64) -> bool {
        let (from, to) = (self.spot_of(from), self.spot_of(to));
        if from == to || !self.twin.is_fast(to) || self.twin.is_fast(from) {
            return true;
        }
        let bytes = bytes.min(kmem.on(from));
        let promised = if from.is_none() { kmem.promised } else { 0 };
        let more = bytes.saturating_sub(promised);
        let tier = self.twin.tier() + self.twin.on_tier(kmem) + kmem.promised;
        // A group that is offline is admitted nothing.
        more == 0 || self.twin.groups[kmem.group].online && tier + more <= self.twin.tier_max
    }

    fn relocate(&mut self, kmem: &mut TwinKmem, spots: &Spots) {
        let mut left = kmem.bytes();
        let mut wanted: BTreeMap<Spot, u64> = BTreeMap::new();
        let rest = if self.twin.numbers.len() == 1 { Some(self.twin.numbers[0]) } else { None };
        let mut spots = self.spots(spots);
        spots.pop();
        for (spot, bytes) in spots {
            let bytes = bytes.min(left);
            left -= bytes;
            *wanted.entry(spot).or_default() += bytes;
        }
        *wanted.entry(rest).or_default() += left;
        let now: BTreeSet<Spot> = kmem.places.keys().map(|(spot, _)| *spot).collect();
        for spot in now {
            let keeps = wanted.get(&spot).copied().unwrap_or_default();
            kmem.take(spot, kmem.on(spot).saturating_sub(keeps));
        }
        for (spot, bytes) in wanted {
            let more = bytes.saturating_sub(kmem.on(spot));
            self.twin.put(kmem, spot, more);
        }
    }

    // === What must hold ===

    fn look(&self) {
        for (kmem, theirs) in self.held.iter().zip(&self.twin.held) {
            let placement = kmem.placement();
            assert_eq!((kmem.bytes(), placement.bytes()), (theirs.bytes(), theirs.bytes()), "{}", self.at);
            assert_eq!(placement.unplaced(), theirs.on(None), "{}", self.at);
            for &number in &self.twin.numbers {
                assert_eq!(placement.on_node(node(number)), theirs.on(Some(number)), "{}: node {number}", self.at);
            }
        }
        for (at, handle) in self.handles.iter().enumerate() {
            let Some(handle) = handle else { continue };
            let (live, is_online) = (self.twin.live(at), self.twin.groups[at].online);
            assert_eq!((handle.live(), handle.is_offline()), (live, !is_online), "{}: {}", self.at, handle.path());
            let stale = handle.numa_stat_stale(Stat::KERNEL);
            let most = stale.max_error().saturating_mul(4_096);
            let figures = self.twin.figures(at, false);
            let truth = |spot: Spot| figures.get(&spot).copied().unwrap_or_default();
            let off = stale.iter().map(|(of, bytes)| bytes.abs_diff(truth(Some(of.get())))).sum::<u64>()
                + stale.unplaced().abs_diff(truth(None));
            assert!(off <= most, "{}: {} is {off} off, at most {most}", self.at, handle.path());
        }
        let root = self.runtime.root();
        let tier = root.counter(self.toptier).expect("declared");
        assert_eq!(tier.live(), self.twin.tier(), "{}", self.at);
    }

    fn read_all(&self) {
        for (at, handle) in self.handles.iter().enumerate() {
            let Some(handle) = handle else { continue };
            let now = handle.numa_stat(Stat::KERNEL);
            assert_eq!(now.max_error(), 0);
            let (all, own) = (self.twin.figures(at, false), self.twin.figures(at, true));
            let of = |figures: &BTreeMap<Spot, i64>, spot: Spot| figures.get(&spot).copied().unwrap_or_default();
            for &number in &self.twin.numbers {
                let expected = (of(&all, Some(number)), of(&own, Some(number)));
                let found = (now.get(node(number)), now.local(node(number)));
                // What the dead left is nobody's own: it is in no local figure that can be read, so these agree.
                assert_eq!(found, expected, "{}: {} on node {number}", self.at, handle.path());
            }
            assert_eq!(now.unplaced(), of(&all, None), "{}: {}", self.at, handle.path());
            assert_eq!(now.sum(), handle.read_exact().get(Stat::KERNEL), "{}: {}", self.at, handle.path());
            assert!(now.sum().cast_unsigned() <= handle.live() || at > 0, "{}: more than is charged", self.at);
        }
        assert_sound(&self.runtime);
    }

    fn finish(mut self, is_runtime_first: bool) {
        self.at = "the end".into();
        self.read_all();
        let Run { runtime, handles, precharges, held, threads, .. } = self;
        let root = runtime.root();
        if is_runtime_first {
            drop(runtime);
            threads[0].run(move || drop((handles, held)));
            threads[1].run(move || drop(precharges));
            let now = root.numa_stat(Stat::KERNEL);
            assert!(now.iter().all(|(_, bytes)| bytes == 0) && now.unplaced() == 0 && root.live() == 0);
            return;
        }
        threads[0].run(move || drop(precharges));
        threads[1].run(move || drop(held));
        drop(handles);
        assert_empty(&runtime);
    }
}

fn run(setup: &Setup, ops: &[Op]) {
    let mut run = Run::new(setup);
    for (number, op) in ops.iter().enumerate() {
        run.at = format!("step {number}, {op:?}");
        run.step(op);
        run.look();
    }
    run.finish(ops.len() % 3 == 0);
}

// === Any operations ===

fn spots() -> impl Strategy<Value = Spots> {
    let bytes = prop_oneof![8 => 0..3_000_u64, 1 => Just(4_096), 1 => 0..100_000_u64];
    prop::collection::vec((0..11_u8, bytes), 0..5)
}

fn actions() -> impl Strategy<Value = Action> {
    let max = prop_oneof![3 => 0..20_000_u64, 4 => Just(u64::MAX)];
    let groups = prop_oneof![
        4 => max.prop_map(|max| Action::Create { max }),
        2 => Just(Action::Offline),
        1 => Just(Action::OfflineTree),
        2 => Just(Action::DropHandle),
        2 => Just(Action::Read),
        1 => Just(Action::Drain),
        1 => Just(Action::Exit),
    ];
    let bytes = || prop_oneof![6 => 0..4_000_u64, 1 => Just(u64::MAX)];
    let moves = || (0..11_u8, 0..11_u8, bytes());
    let kmem = prop_oneof![
        8 => (1..8_000_u64, any::<bool>()).prop_map(|(bytes, is_within)| Action::Precharge { bytes, is_within }),
        1 => Just(Action::DropPrecharge),
        8 => spots().prop_map(Action::Account),
        3 => moves().prop_map(|(from, to, bytes)| Action::Migrate { from, to, bytes }),
        3 => moves().prop_map(|(from, to, bytes)| Action::TryMigrate { from, to, bytes }),
        2 => spots().prop_map(Action::Relocate),
        2 => spots().prop_map(Action::Shrink),
        2 => any::<u8>().prop_map(Action::Merge),
        3 => any::<u8>().prop_map(Action::Transfer),
        3 => Just(Action::Free),
    ];
    prop_oneof![1 => groups, 3 => kmem]
}

fn ops(length: usize) -> impl Strategy<Value = Vec<Op>> {
    let op =
        (0..THREADS as u8, any::<u8>(), actions()).prop_map(|(thread, subject, action)| Op { thread, subject, action });
    prop::collection::vec(op, 0..length)
}

fn setups() -> impl Strategy<Value = Setup> {
    let nodes = prop_oneof![
        1 => Just(BTreeSet::from([0])),
        4 => prop::collection::btree_set(0..200_u16, 1..9),
        1 => (1..9_u16).prop_map(|nodes| (0..nodes).collect()),
    ];
    let max = || prop_oneof![3 => Just(u64::MAX >> 1), 2 => 1_000..60_000_u64];
    let batches = select(&[None, Some(0), Some(2), Some(64)][..]);
    (nodes, select(&[0_u64, 512, 4_096, 65_536][..]), any::<bool>(), batches, max(), max()).prop_map(
        |(nodes, batch, adaptive, stat_batch, max, tier_max)| Setup {
            nodes,
            batch,
            adaptive,
            stat_batch,
            max,
            tier_max,
        },
    )
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, max_shrink_iters: 8_192, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(160))]

    #[test]
    fn any_operations_agree_with_the_twin(setup in setups(), ops in ops(80)) {
        run(&setup, &ops);
    }
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn a_long_life_agrees_with_the_twin(setup in setups(), ops in ops(800)) {
        run(&setup, &ops);
    }
}
