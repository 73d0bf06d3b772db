//! The library and its twin side by side: one operation after the other, by threads that take
//! turns, and what must hold after each.

use std::collections::{BTreeMap, BTreeSet};

use memcg::kmem::{Kmem, NodeId, Placement, Precharge, PrechargeBound};
use memcg::{Bytes, CounterKey, Freshness, Group, Limit, Runtime, StatKey};

use super::super::{Other, assert_empty, machine, node};
use super::twin::{Spot, Twin, TwinGroup, TwinKmem};
use super::{Action, Op, Setup, Spots, THREADS};
use crate::support::trees::{assert_sound, build, limited};

const GROUPS_MAX: usize = 24;
const HELD_MAX: usize = 16;

/// Drives a new runtime through all of `ops`, then drops what is left.
pub(super) fn run(setup: &Setup, ops: &[Op]) {
    let mut run = Run::new(setup);
    for (number, op) in ops.iter().enumerate() {
        run.at = format!("step {number}, {op:?}");
        run.step(op);
        run.look();
    }
    run.finish(ops.len().is_multiple_of(3));
}

struct Run {
    twin: Twin,
    runtime: Runtime,
    toptier: CounterKey,
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
        let builder = Runtime::builder()
            .audit(true)
            .max(Limit::Bytes(setup.max))
            .topology(machine(&twin.numbers));
        let mut builder = builder.batch(Bytes(setup.batch)).adaptive(setup.adaptive);
        if let Some(batch) = setup.stat_batch {
            builder = builder.stat_batch(batch);
        }
        let fast: Vec<NodeId> = twin.numbers[..twin.numbers.len().div_ceil(2)]
            .iter()
            .copied()
            .map(node)
            .collect();
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
            None if at.is_multiple_of(2) => None,
            None => Some(node(5_000)),
        }
    }

    fn placement(&self, spots: &Spots) -> Placement {
        let mut placement = Placement::new();
        spots
            .iter()
            .for_each(|&(at, bytes)| placement.add(self.node(at), Bytes(bytes)));
        placement
    }

    /// The same as the machine sees it, in the order in which nodes are looked at: those first,
    /// what is on none last.
    fn spots(&self, spots: &Spots) -> Vec<(Spot, u64)> {
        let placement = self.placement(spots);
        let is_one_node = self.twin.numbers.len() == 1;
        let numbers = &self.twin.numbers;
        let of = |node: NodeId| {
            if is_one_node {
                return Some(numbers[0]);
            }
            numbers.iter().copied().find(|&number| number == node.get())
        };
        let of_rest = is_one_node.then(|| self.twin.numbers[0]);
        let rest = (of_rest, placement.unplaced());
        placement
            .nodes()
            .map(|(node, bytes)| (of(node), bytes))
            .chain([rest])
            .collect()
    }

    fn step(&mut self, op: &Op) {
        let in_hand: Vec<usize> = (0..self.handles.len())
            .filter(|&at| self.handles[at].is_some())
            .collect();
        let group = in_hand[usize::from(op.subject) % in_hand.len()];
        match &op.action {
            Action::Create { .. } | Action::Offline | Action::OfflineTree | Action::DropHandle => {
                self.of_group(op, group)
            }
            Action::Precharge { bytes, is_within } => self.precharge(op, group, *bytes, *is_within),
            Action::Read => self.read_all(),
            Action::Drain => {
                self.handles[group]
                    .as_ref()
                    .expect("in hand")
                    .memory()
                    .drain();
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
            Action::Create { max }
                if self.twin.groups.len() < GROUPS_MAX && self.twin.groups[group].online =>
            {
                let made = limited(&handle, &self.twin.groups.len().to_string(), max);
                let parts = BTreeSet::new();
                self.twin.groups.push(TwinGroup {
                    parent: Some(group),
                    online: true,
                    max,
                    parts,
                });
                self.handles.push(Some(made));
            }
            Action::Offline if group > 0 => {
                let below = (group + 1..self.twin.groups.len())
                    .filter(|&at| self.twin.is_within(at, group));
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
        let slow: Vec<NodeId> = self
            .twin
            .numbers
            .iter()
            .map(|&number| node(number))
            .filter(|of| !self.fast.contains(of))
            .collect();
        let asked = !is_within || slow.is_empty();
        let bound = if is_within {
            PrechargeBound::from(Bytes(bytes)).within(&slow)
        } else {
            PrechargeBound::from(Bytes(bytes))
        };
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
        let precharge = self.precharges.swap_remove(at);
        let placement = self.placement(spots);
        self.held
            .push(self.on(op, move || precharge.account(&placement)));
        let (group, bytes, asked) = self.twin.precharges.swap_remove(at);
        let mut kmem = TwinKmem {
            group,
            ..TwinKmem::default()
        };
        for (spot, bytes) in self.spots(spots) {
            self.twin.put(&mut kmem, spot, bytes);
        }
        let on_tier = self.twin.on_tier(&kmem);
        kmem.promised = if asked {
            bytes.saturating_sub(on_tier).min(kmem.on(None))
        } else {
            0
        };
        self.twin.held.push(kmem);
    }

    fn of_kmem(&mut self, op: &Op, at: usize, action: &Action, in_hand: &[usize]) {
        let mut kmem = self.held.swap_remove(at);
        let mut theirs = self.twin.held.swap_remove(at);
        let before = theirs.clone();
        match action {
            Action::Free => {
                self.on(op, move || drop(kmem));
                return;
            }
            &Action::Migrate { from, to, bytes } => {
                let of = self.node(from);
                let into = self.node(to);
                let (moved, back) =
                    self.on(op, move || (kmem.migrated(of, into, Bytes(bytes)), kmem));
                kmem = back;
                assert_eq!(
                    moved,
                    self.migrate(&mut theirs, from, to, bytes),
                    "{}",
                    self.at
                );
            }
            &Action::TryMigrate { from, to, bytes } => {
                let of = self.node(from);
                let into = self.node(to);
                let (got, back) = self.on(op, move || (kmem.migrate(of, into, Bytes(bytes)), kmem));
                kmem = back;
                let fits = self.may_migrate(&theirs, from, to, bytes);
                assert_eq!(got.is_ok(), fits, "{}: {got:?}", self.at);
                if let Ok(moved) = got {
                    assert_eq!(
                        moved,
                        self.migrate(&mut theirs, from, to, bytes),
                        "{}",
                        self.at
                    );
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
                let expected: u64 = self
                    .spots(spots)
                    .into_iter()
                    .map(|(spot, bytes)| theirs.take(spot, bytes))
                    .sum();
                assert_eq!(gone, expected, "{}", self.at);
            }
            Action::Merge(with) if !self.held.is_empty() => {
                let with = usize::from(*with) % self.held.len();
                let other = self.held.swap_remove(with);
                let theirs_too = self.twin.held.swap_remove(with);
                let (back, merged) = self.on(op, move || (kmem.merge(other).err(), kmem));
                kmem = merged;
                assert_eq!(
                    back.is_none(),
                    theirs.group == theirs_too.group,
                    "{}",
                    self.at
                );
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
                self.put_back(kmem, theirs);
                return;
            }
            Action::Transfer(to) => {
                let to = in_hand[usize::from(*to) % in_hand.len()];
                let handle = self.handles[to].clone().expect("in hand");
                let (got, back) = self.on(op, move || (kmem.transfer(&handle), kmem));
                kmem = back;
                let common = self.twin.common(theirs.group, to);
                // The account's bytes are not in the twin's list now, and were below the common
                // ancestor only.
                let room = self.twin.groups[to].online
                    && self.twin.has_room(to, theirs.bytes(), Some(common));
                assert_eq!(
                    got.is_ok(),
                    to == theirs.group || room,
                    "{}: {got:?}",
                    self.at
                );
                if got.is_ok() && to != theirs.group {
                    let places = std::mem::take(&mut theirs.places);
                    theirs.group = to;
                    places
                        .into_iter()
                        .for_each(|((spot, _), bytes)| self.twin.put(&mut theirs, spot, bytes));
                }
            }
            _ => {}
        }
        self.twin.settle(&mut theirs, &before);
        theirs.places.retain(|_, bytes| *bytes > 0);
        self.put_back(kmem, theirs);
    }

    fn put_back(&mut self, kmem: Kmem, theirs: TwinKmem) {
        self.held.push(kmem);
        self.twin.held.push(theirs);
    }

    fn migrate(&mut self, kmem: &mut TwinKmem, from: u8, to: u8, bytes: u64) -> u64 {
        let from = self.spot_of(from);
        let to = self.spot_of(to);
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
        let from = self.spot_of(from);
        let to = self.spot_of(to);
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
        let rest = if self.twin.numbers.len() == 1 {
            Some(self.twin.numbers[0])
        } else {
            None
        };
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
            assert_eq!(
                (kmem.bytes(), placement.bytes()),
                (theirs.bytes(), theirs.bytes()),
                "{}",
                self.at
            );
            assert_eq!(placement.unplaced(), theirs.on(None), "{}", self.at);
            for &number in &self.twin.numbers {
                assert_eq!(
                    placement.on_node(node(number)),
                    theirs.on(Some(number)),
                    "{}: node {number}",
                    self.at
                );
            }
        }
        for (at, handle) in self.handles.iter().enumerate() {
            let Some(handle) = handle else { continue };
            let live = self.twin.live(at);
            let is_online = self.twin.groups[at].online;
            assert_eq!(
                (handle.live(), handle.is_offline()),
                (live, !is_online),
                "{}: {}",
                self.at,
                handle.path()
            );
            let stale = handle.numa_stat(StatKey::KERNEL, Freshness::Stale);
            let most = stale.max_error().saturating_mul(4_096);
            let figures = self.twin.figures(at, false);
            let truth = |spot: Spot| figures.get(&spot).copied().unwrap_or_default();
            let off = stale
                .iter()
                .map(|(of, bytes)| bytes.abs_diff(truth(Some(of.get()))))
                .sum::<u64>()
                + stale.unplaced().abs_diff(truth(None));
            assert!(
                off <= most,
                "{}: {} is {off} off, at most {most}",
                self.at,
                handle.path()
            );
        }
        let root = self.runtime.root();
        let tier = root.counter(self.toptier).expect("declared");
        assert_eq!(tier.live(), self.twin.tier(), "{}", self.at);
    }

    fn read_all(&self) {
        for (at, handle) in self.handles.iter().enumerate() {
            let Some(handle) = handle else { continue };
            let now = handle.numa_stat(StatKey::KERNEL, Freshness::Exact);
            assert_eq!(now.max_error(), 0);
            let all = self.twin.figures(at, false);
            let own = self.twin.figures(at, true);
            let of = |figures: &BTreeMap<Spot, i64>, spot: Spot| {
                figures.get(&spot).copied().unwrap_or_default()
            };
            for &number in &self.twin.numbers {
                let expected = (of(&all, Some(number)), of(&own, Some(number)));
                let found = (now.get(node(number)), now.local(node(number)));
                // Memory that released groups left is no group's own: it is in no local figure that
                // can be read, so these agree.
                assert_eq!(
                    found,
                    expected,
                    "{}: {} on node {number}",
                    self.at,
                    handle.path()
                );
            }
            assert_eq!(
                now.unplaced(),
                of(&all, None),
                "{}: {}",
                self.at,
                handle.path()
            );
            assert_eq!(
                now.sum(),
                handle.read(Freshness::Exact).get(StatKey::KERNEL),
                "{}: {}",
                self.at,
                handle.path()
            );
            assert!(
                now.sum().cast_unsigned() <= handle.live() || at > 0,
                "{}: more than is charged",
                self.at
            );
        }
        assert_sound(&self.runtime);
    }

    fn finish(mut self, is_runtime_first: bool) {
        self.at = "the end".into();
        self.read_all();
        let Run {
            runtime,
            handles,
            precharges,
            held,
            threads,
            ..
        } = self;
        let root = runtime.root();
        if is_runtime_first {
            drop(runtime);
            threads[0].run(move || drop((handles, held)));
            threads[1].run(move || drop(precharges));
            let now = root.numa_stat(StatKey::KERNEL, Freshness::Exact);
            assert!(
                now.iter().all(|(_, bytes)| bytes == 0) && now.unplaced() == 0 && root.live() == 0
            );
            return;
        }
        threads[0].run(move || drop(precharges));
        threads[1].run(move || drop(held));
        drop(handles);
        assert_empty(&runtime);
    }
}
