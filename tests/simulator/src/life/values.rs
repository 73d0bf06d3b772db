//! Values that are charged, memory on nodes, and statistics.

use std::collections::BTreeMap;

use memcg::kmem::{Kmem, NodeId, Placement};
use memcg::{Bytes, ChargeError, ChargedVec, Freshness, Group, StatKey};

use super::Life;
use super::charges::on_full;
use crate::configuration::TIER;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, Verb, What};
use crate::twin::{Held, Key};

const VECTORS_MAX: usize = 6;
const KMEMS_MAX: usize = 8;

/// Vectors of more items make an operation slow and show nothing new.
const ITEMS_MAX: usize = 4_096;
const ITEM: u64 = size_of::<u64>() as u64;

/// Memory that is accounted to nodes.
pub(super) struct NodeMemory {
    pub(super) key: Key,
    pub(super) kmem: Kmem,
    pub(super) places: BTreeMap<Option<usize>, u64>,
}

type Pushed = (Vec<Result<(), ChargeError>>, usize);

/// Pushes items until one is refused, after the room was asked for with that verb.
fn push(vector: &mut ChargedVec<u64>, verb: Verb, items: u16) -> Pushed {
    let items = usize::from(items);
    let before = vector.len();
    let reserved = match verb {
        Verb::Plain => vector.reserve(items),
        Verb::Try | Verb::Force => vector.try_reserve(items),
        _ => vector.reserve_with(items, on_full(verb)),
    };
    let done = reserved.is_ok();
    let mut answers = vec![reserved];
    if done {
        for item in 0..items {
            let pushed = vector.push(item as u64);
            answers.push(pushed.map_err(|refused| refused.into_parts().1));
        }
    }
    (answers, vector.len() - before)
}

/// Refusals that are counted, on the way up from the group of a vector.
fn refusals(vector: &ChargedVec<u64>) -> u64 {
    let group = vector.charge().group();
    let above: u64 = group.ancestors().map(|group| group.refused_count()).sum();
    above + group.refused_count()
}

impl Life {
    pub(super) fn step_value(&mut self, op: &Op) {
        match op.1 {
            What::VecNew(group) => {
                let room = self.vectors.len() < VECTORS_MAX;
                if let Some(group) = self.group(group).filter(|_| room) {
                    let vector = self.on(op, group, ChargedVec::new);
                    let key = self.twin.hold(group, 0, 0);
                    self.vectors.push((key, vector));
                }
            }
            What::VecPush(number, verb, items) => self.push(op, number, verb, items),
            What::VecPop(number, items) => self.with_vector(op, number, move |vector| {
                (0..items).for_each(|_| _ = vector.pop());
            }),
            What::VecShrink(number) => self.with_vector(op, number, ChargedVec::shrink_to_fit),
            What::VecDrop(number) => {
                if !self.vectors.is_empty() {
                    let at = usize::from(number) % self.vectors.len();
                    let (key, vector) = self.vectors.swap_remove(at);
                    self.twin.release(key);
                    self.actor(op).run(move || drop(vector));
                }
            }
            What::StatAdd(group, item, delta) => {
                let item = usize::from(item) % self.items.len();
                let stat = self.items[item].0;
                if let Some(group) = self.group(group) {
                    self.on(op, group, move |group| group.stat_add(stat, delta));
                    self.twin.groups[group].items[item] += delta;
                }
            }
            What::StatRead(group, how) => {
                if let Some(group) = self.group(group) {
                    self.read_items(op, group, how);
                }
            }
            What::Kmem(..)
            | What::KmemMove(..)
            | What::KmemMerge(..)
            | What::KmemRelocate(..)
            | What::KmemShrink(..)
            | What::KmemShrinkTwo(..)
            | What::KmemTransfer(..)
            | What::KmemDrop(..) => self.step_kmem(op),
            _ => unreachable!("an operation on values"),
        }
    }

    // === Vectors ===

    fn with_vector(
        &mut self,
        op: &Op,
        number: u8,
        job: impl FnOnce(&mut ChargedVec<u64>) + Send + 'static,
    ) {
        if self.vectors.is_empty() {
            return;
        }
        let at = usize::from(number) % self.vectors.len();
        let (key, mut vector) = self.vectors.remove(at);
        let vector = self.actor(op).run(move || {
            job(&mut vector);
            vector
        });
        self.take_back(at, key, vector);
    }

    /// Its charge is what it has room for.
    fn take_back(&mut self, at: usize, key: Key, vector: ChargedVec<u64>) {
        let bytes = vector.charge().bytes();
        assert_eq!(bytes, vector.capacity() as u64 * ITEM, "of a vector");
        self.twin.set(key, bytes);
        self.vectors.insert(at, (key, vector));
    }

    fn push(&mut self, op: &Op, number: u8, verb: Verb, items: u16) {
        if self.vectors.is_empty() {
            return;
        }
        let at = usize::from(number) % self.vectors.len();
        let (key, mut vector) = self.vectors.remove(at);
        let Held { group, bytes, .. } = self.twin.of(key);
        let verb = if verb == Verb::Force { Verb::Try } else { verb };
        // The amount is the vector's to choose; credit of others counts by the verb alone.
        let mut ask = self.ask(group, 0, verb, u64::MAX >> 2);
        let items = match items {
            // One more than there is room for, of a vector that has not doubled too often.
            0 if vector.capacity() < ITEMS_MAX => (vector.capacity() - vector.len()) as u16 + 1,
            0 => 1,
            items => items,
        };
        let (vector, (answers, more), counted) = self.actor(op).run(move || {
            let before = refusals(&vector);
            let pushed = push(&mut vector, verb, items);
            let counted = refusals(&vector) - before;
            (vector, pushed, counted)
        });
        let refused = answers.into_iter().find_map(Result::err);
        let is_told = |error: &ChargeError| verb != Verb::IfRoom && error.over_limit().is_some();
        let told = u64::from(refused.as_ref().is_some_and(is_told));
        assert!(
            counted == told || !self.shared.is_quiet(),
            "{counted} refusals of a vector are counted, beside {refused:?}"
        );
        assert_eq!(
            more,
            if refused.is_some() { 0 } else { items.into() },
            "items pushed, beside {refused:?}"
        );
        let grown = vector.charge().bytes().saturating_sub(bytes);
        ask.bytes = match &refused {
            Some(error) => error.requested(),
            // Beside the block that it has.
            None => vector.charge().bytes(),
        };
        let found = refused.map_or(Ok(()), Err);
        if grown > 0 || found.is_err() {
            self.agree(ask, found);
        }
        self.take_back(at, key, vector);
    }

    // === Statistics ===

    fn read_items(&mut self, op: &Op, group: usize, how: u8) {
        let freshness = match how {
            0 => Freshness::Exact,
            1 => Freshness::Threshold,
            2 => Freshness::Stale,
            within => Freshness::Within(within.into()),
        };
        let stats = self.on(op, group, move |group| group.read(freshness));
        for (item, (stat, unit)) in self.items.into_iter().enumerate() {
            let (found, expected) = (stats.get(stat), self.twin.items(group, item));
            let error = stats.max_error().saturating_mul(unit.grain());
            assert!(
                found.abs_diff(expected) <= error,
                "{found} of item {item}, the twin has {expected}, off by {error} at most"
            );
        }
        if how == 0 {
            assert_eq!(stats.max_error(), 0, "of an exact read");
        }
    }

    pub(super) fn items_hold(&self) -> Holds {
        for (group, handles) in self.handles.iter().enumerate() {
            let Some(handle) = handles.first() else {
                continue;
            };
            let stats = handle.read(Freshness::Exact);
            for (item, (stat, _)) in self.items.into_iter().enumerate() {
                let known = self.twin.items(group, item);
                ensure_eq!(stats.get(stat), known, "item {item} of {handle:?}");
            }
            // With containers the sum over all nodes is known.
            if self.twin.groups[group].online && !self.kmems.is_empty() && !self.setup.adapters {
                self.nodes_hold(handle, group)?;
            }
        }
        Ok(())
    }

    // === Memory on nodes ===

    /// As the machine sees it: with one node all is there.
    pub(super) fn spot(&self, number: u8) -> Option<usize> {
        match self.setup.nodes {
            0 | 1 => Some(0),
            nodes => Some(usize::from(number)).filter(|&node| node < nodes),
        }
    }

    pub(super) fn node(spot: Option<usize>) -> Option<NodeId> {
        spot.map(|node| NodeId::new(node as u16))
    }

    fn nodes_hold(&self, handle: &Group, top: usize) -> Holds {
        let stats = handle.numa_stat(StatKey::KERNEL, Freshness::Exact);
        for node in 0..self.setup.nodes.max(1) {
            let expected: u64 = self
                .kmems
                .iter()
                .filter(|memory| self.twin.is_within(self.twin.of(memory.key).group, top))
                .filter_map(|memory| memory.places.get(&Some(node)))
                .sum();
            let found = stats.get(NodeId::new(node as u16));
            ensure_eq!(found, expected as i64, "on node {node} of {handle:?}");
        }
        self.tier_holds(handle, top)
    }

    /// The tier of the first node has what lies there, and of what lies nowhere yet as much as was
    /// charged before: it may come to lie there.
    fn tier_holds(&self, handle: &Group, top: usize) -> Holds {
        // Those of containers are known to their adapter alone.
        if self.setup.nodes < 2 || self.setup.adapters {
            return Ok(());
        }
        let is_within = |memory: &&NodeMemory| {
            let group = self.twin.of(memory.key).group;
            self.twin.is_within(group, top)
        };
        let at = |spot: Option<usize>| -> u64 {
            let within = self.kmems.iter().filter(is_within);
            within.filter_map(|memory| memory.places.get(&spot)).sum()
        };
        let (least, most) = (at(Some(0)), at(Some(0)) + at(None));
        let tier = handle.counter_key(TIER).expect("declared");
        let tier = handle.counter(tier).expect("declared");
        let live = tier.live();
        ensure!(
            (least..=most).contains(&live) && tier.usage() - tier.stocked() == live,
            "{live} live in the tier of {handle:?}, which has {least} to {most}"
        );
        Ok(())
    }

    fn step_kmem(&mut self, op: &Op) {
        if let What::Kmem(group, bytes, node) = op.1 {
            return self.new_kmem(op, group, bytes, node);
        }
        if let What::KmemMerge(into, from) = op.1 {
            return self.merge_kmem(op, into, from);
        }
        if let What::KmemRelocate(number, node, bytes) = op.1 {
            return self.relocate_kmem(op, number, node, bytes);
        }
        let (What::KmemMove(number, ..)
        | What::KmemShrink(number, ..)
        | What::KmemShrinkTwo(number, ..)
        | What::KmemTransfer(number, _)
        | What::KmemDrop(number)) = op.1
        else {
            unreachable!("an operation on memory on nodes");
        };
        if self.kmems.is_empty() {
            return;
        }
        let at = usize::from(number) % self.kmems.len();
        let NodeMemory {
            key,
            mut kmem,
            mut places,
        } = self.kmems.remove(at);
        match op.1 {
            What::KmemMove(_, from, to, bytes) => {
                let (from, to) = (self.spot(from), self.spot(to));
                let (kmem, moved) = self.actor(op).run(move || {
                    let moved = kmem.migrated(Self::node(from), Self::node(to), Bytes(bytes));
                    (kmem, moved)
                });
                let there = places.get(&from).copied().unwrap_or(0);
                assert_eq!(moved, there.min(bytes), "moved");
                *places.entry(from).or_default() -= moved;
                *places.entry(to).or_default() += moved;
                self.keep_kmem(at, key, kmem, places);
            }
            What::KmemShrink(_, node, bytes) | What::KmemShrinkTwo(_, node, bytes) => {
                let mut spots = vec![self.spot(node)];
                if let What::KmemShrinkTwo(..) = op.1 {
                    spots.push(self.spot(node.wrapping_add(1)));
                    spots.dedup();
                }
                let mut part = Placement::new();
                for &spot in &spots {
                    part.add(Self::node(spot), Bytes(bytes));
                }
                let (kmem, freed) = self.actor(op).run(move || {
                    let freed = kmem.shrink(&part);
                    (kmem, freed)
                });
                let mut all = 0;
                for spot in spots {
                    let there = places.entry(spot).or_default();
                    let gone = bytes.min(*there);
                    *there -= gone;
                    all += gone;
                }
                assert_eq!(freed, all, "freed");
                let held = self.twin.of(key).bytes;
                self.twin.set(key, held - freed);
                self.keep_kmem(at, key, kmem, places);
            }
            What::KmemTransfer(_, to) => {
                let Some(to) = self.group(to) else {
                    return self.keep_kmem(at, key, kmem, places);
                };
                let target = self.handle(to).clone();
                let Held { group, bytes, .. } = self.twin.of(key);
                let mut ask = self.ask(to, 0, Verb::Plain, bytes);
                ask.top = Some(self.twin.common(group, to));
                let (kmem, found) = self.actor(op).run(move || {
                    let found = kmem.transfer(&target);
                    (kmem, found)
                });
                let is_offline = matches!(&found, Err(refused) if refused.is_offline());
                if to == group {
                    assert!(found.is_ok(), "{found:?}");
                } else if is_offline {
                    // A tier is asked first, and says what it has of these bytes.
                    assert!(!self.twin.groups[to].online, "{found:?}");
                } else if self.agree(ask, found).is_some() {
                    let held = self.twin.release(key);
                    self.twin.held.insert(key, Held { group: to, ..held });
                }
                self.keep_kmem(at, key, kmem, places);
            }
            _ => {
                self.twin.release(key);
                self.actor(op).run(move || drop(kmem));
            }
        }
    }

    pub(super) fn keep_kmem(
        &mut self,
        at: usize,
        key: Key,
        kmem: Kmem,
        places: BTreeMap<Option<usize>, u64>,
    ) {
        assert_eq!(kmem.bytes(), self.twin.of(key).bytes, "held");
        let placement = kmem.placement();
        for (&spot, &bytes) in &places {
            let found = match Self::node(spot) {
                Some(node) => placement.on_node(node),
                None => placement.unplaced(),
            };
            assert_eq!(found, bytes, "at {spot:?}");
        }
        self.kmems.insert(at, NodeMemory { key, kmem, places });
    }

    fn new_kmem(&mut self, op: &Op, group: u8, bytes: u64, node: u8) {
        let room = self.kmems.len() < KMEMS_MAX;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        self.keeps = true;
        let spot = self.spot(node);
        // Now and then more is charged than is placed, or less.
        let charged = match node {
            4 => bytes + bytes / 2,
            5 => bytes / 2,
            _ => bytes,
        };
        let ask = self.ask(group, 0, Verb::Plain, charged);
        let found = self.on(op, group, move |group| {
            let precharge = group.precharge(Bytes(charged))?;
            // It is a charge, which a drain leaves alone.
            group.memory().drain();
            let (holds, live) = (precharge.bytes(), group.live());
            assert!(
                holds == charged && live >= charged,
                "{holds} bytes of {charged} are precharged, and {live} live"
            );
            let mut placement = Placement::new();
            placement.add(Self::node(spot), Bytes(bytes));
            Ok(precharge.account(&placement))
        });
        if let Some(kmem) = self.agree(ask, found) {
            let key = self.twin.hold(group, 0, bytes);
            let at = self.kmems.len();
            self.keep_kmem(at, key, kmem, BTreeMap::from([(spot, bytes)]));
        }
    }
}
