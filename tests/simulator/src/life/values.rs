//! Values that are charged, memory on nodes, and statistics.

use std::collections::BTreeMap;

use memcg::kmem::{Kmem, KmemMember, NodeId, NodeOf, PageNode, Placement, PrechargeBound};
use memcg::{Bytes, ChargeError, ChargedVec, Freshness, Gauge, Group, StatKey, Unit};

use super::Life;
use super::charges::on_full;
use crate::configuration::TIER;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Nature, Op, Size, Verb, What};
use crate::twin::{Held, Key};

/// The run's own thread, and those of the crate: they count what goes to stocks and comes back.
const OWN_THREADS: u64 = 4;

/// Grains of statistics that a thread keeps back where the script says nothing.
const BATCH: u64 = 1_024;

const VECTORS_MAX: usize = 6;
const GAUGES_MAX: usize = 2;
const KMEMS_MAX: usize = 8;

/// Vectors of more items make an operation slow and show nothing new.
const ITEMS_MAX: usize = 4_096;
const ITEM: u64 = size_of::<u64>() as u64;

/// What memory on nodes is accounted as.
pub(super) const ACCOUNTED: [StatKey; 2] = [StatKey::KERNEL, StatKey::SLAB];

/// Memory that is accounted to nodes.
pub(super) struct NodeMemory {
    pub(super) key: Key,
    /// Which item it is accounted as.
    pub(super) item: usize,
    pub(super) kmem: Kmem,
    pub(super) places: BTreeMap<Option<usize>, u64>,
}

/// Pages that lie on one node after the other, and on none.
struct Pages {
    size: usize,
    nodes: usize,
}

impl Pages {
    fn spot(&self, address: usize) -> Option<usize> {
        Some(address / self.size % (self.nodes + 1)).filter(|&node| node < self.nodes)
    }
}

impl NodeOf for Pages {
    fn page_size(&self) -> usize {
        self.size
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        for (&page, found) in pages.iter().zip(found) {
            assert_eq!(page % self.size, 0, "a page that is looked up");
            let node = Life::node(self.spot(page));
            *found = node.map_or(PageNode::Untouched, PageNode::On);
        }
    }
}

/// What tiers hold above their maxes, from a group up.
fn forced_tiers(group: &Group) -> u64 {
    let levels = std::iter::once(group.clone()).chain(group.ancestors());
    let tiers = levels.filter_map(|level| level.counter(level.counter_key(TIER)?).ok());
    tiers.map(|tier| tier.forced()).sum()
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
            | What::KmemMigrate(..)
            | What::KmemPack(..)
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
        // One that fills itself again is refused as well.
        let mut caches = self.caches.iter();
        let beside = caches.any(|cache| cache.nature == Nature::Refills);
        assert!(
            counted == told || beside && counted > told || !self.shared.is_quiet(),
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

    // === Memory that is reported ===

    /// Some more memory is reported, or one that is: whatever the limits are.
    pub(super) fn report(&mut self, op: &Op, group: u8, size: Size) {
        let Some(group) = self.group(group) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        if bytes > 1 << 40 {
            return;
        }
        if self.gauges.len() < GAUGES_MAX {
            let gauge = self.on(op, group, Gauge::new);
            let key = self.twin.hold(group, 0, 0);
            self.gauges.push((key, gauge));
        }
        let at = bytes as usize % self.gauges.len();
        let (key, gauge) = self.gauges.swap_remove(at);
        if bytes % 8 == 1 {
            self.twin.release(key);
            return self.actor(op).run(move || drop(gauge));
        }
        let gauge = self.actor(op).run(move || {
            gauge.report(Bytes(bytes));
            gauge
        });
        assert_eq!(gauge.bytes(), bytes, "reported");
        self.twin.set(key, bytes);
        self.gauges.push((key, gauge));
    }

    // === Statistics ===

    fn read_items(&mut self, op: &Op, group: usize, how: u8) {
        let freshness = match how {
            0 => Freshness::Exact,
            1 => Freshness::Threshold,
            2 => Freshness::Stale,
            within => Freshness::Within(within.into()),
        };
        let (stats, nodes) = self.on(op, group, move |group| {
            let nodes = ACCOUNTED.map(|stat| group.numa_stat(stat, freshness));
            (group.read(freshness), nodes)
        });
        self.is_as_fresh(group, freshness, stats.max_error());
        // What containers have on nodes is known to their adapter.
        let is_known = self.twin.groups[group].online && !self.setup.adapters;
        for (accounted, by_node) in nodes.into_iter().enumerate() {
            self.is_as_fresh(group, freshness, by_node.max_error());
            if !is_known {
                continue;
            }
            let stat = ACCOUNTED[accounted];
            let mut all = 0;
            for node in 0..self.setup.nodes.max(1) {
                let expected = self.placed(group, accounted, Some(node));
                let found = by_node.get(NodeId::new(node as u16));
                assert!(
                    found.abs_diff(expected) <= by_node.max_error() * Unit::Bytes.grain(),
                    "{found} on node {node}, the twin has {expected}: {by_node:?}"
                );
                all += expected;
            }
            all += self.placed(group, accounted, None);
            let found = stats.get(stat);
            assert!(
                found.abs_diff(all) <= stats.max_error_of(stat),
                "{found} in all, the twin has {all}, off by {} at most",
                stats.max_error_of(stat)
            );
        }
        for (item, (stat, _)) in self.items.into_iter().enumerate() {
            let (found, expected) = (stats.get(stat), self.twin.items(group, item));
            let error = stats.max_error_of(stat);
            assert!(
                found.abs_diff(expected) <= error,
                "{found} of item {item}, the twin has {expected}, off by {error} at most"
            );
            let (local, own) = (stats.local(stat), self.twin.groups[group].items[item]);
            assert!(
                local.abs_diff(own) <= error,
                "{local} of item {item} in the group itself, the twin has {own}, off by {error} at most"
            );
        }
    }

    /// A read is off by as much as its caller allows.
    fn is_as_fresh(&self, top: usize, freshness: Freshness, error: u64) {
        let most = match freshness {
            Freshness::Exact => 0,
            Freshness::Within(most) => most,
            // A batch for each that may write: a thread in a group, on a node or on none.
            Freshness::Threshold => {
                let groups = (top..self.ids.len()).filter(|&it| self.twin.is_within(it, top));
                let writers = groups.count() as u64
                    * (self.threads + OWN_THREADS)
                    * (1 + self.setup.nodes as u64);
                writers * (self.setup.stat_batch.unwrap_or(BATCH) / 2) * 2
            }
            _ => u64::MAX,
        };
        assert!(
            error <= most,
            "{freshness:?} is off by {error}, and may by {most}"
        );
    }

    fn placed(&self, top: usize, item: usize, spot: Option<usize>) -> i64 {
        let within = self.kmems.iter().filter(|memory| {
            let group = self.twin.of(memory.key).group;
            memory.item == item && self.twin.is_within(group, top)
        });
        let bytes: u64 = within.filter_map(|memory| memory.places.get(&spot)).sum();
        bytes as i64
    }

    /// The same of all items.
    fn placed_in_all(&self, top: usize, spot: Option<usize>) -> i64 {
        let items = 0..ACCOUNTED.len();
        items.map(|item| self.placed(top, item, spot)).sum()
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
                let own = self.twin.groups[group].items[item];
                ensure_eq!(stats.local(stat), own, "item {item} of {handle:?} itself");
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

    /// The node of that spot; or, for what is on none, one that the machine does not have.
    pub(super) fn some_node(&self, spot: Option<usize>, draw: usize) -> Option<NodeId> {
        let nodes = self.setup.nodes.max(1);
        match (spot, draw % 3) {
            // With one node that is the one that all is on.
            (Some(_), more @ 1..) if nodes == 1 => Some(NodeId::new((more - 1) as u16 * 7)),
            (None, more @ 1..) => Some(NodeId::new((nodes + more) as u16)),
            _ => Life::node(spot),
        }
    }

    fn nodes_hold(&self, handle: &Group, top: usize) -> Holds {
        for (item, stat) in ACCOUNTED.into_iter().enumerate() {
            let stats = handle.numa_stat(stat, Freshness::Exact);
            for node in 0..self.setup.nodes.max(1) {
                let found = stats.get(NodeId::new(node as u16));
                let expected = self.placed(top, item, Some(node));
                ensure_eq!(found, expected, "{stat:?} on node {node} of {handle:?}");
            }
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
        let (least, most) = self.tier_bounds(top);
        let tier = handle.counter_key(TIER).expect("declared");
        let tier = handle.counter(tier).expect("declared");
        let live = tier.live();
        ensure!(
            (least..=most).contains(&live) && tier.usage() - tier.stocked() == live,
            "{live} live in the tier of {handle:?}, which has {least} to {most}"
        );
        Ok(())
    }

    /// At least what lies on the first node, and at most what lies on none beside that.
    pub(super) fn tier_bounds(&self, top: usize) -> (u64, u64) {
        let there = self.placed_in_all(top, Some(0));
        let nowhere = self.placed_in_all(top, None);
        (there as u64, (there + nowhere) as u64)
    }

    /// A tier was asked for at least and at most so many bytes for a group, up to a level or to the
    /// root. True: it has refused them, and nothing else was asked.
    fn is_refused_by_tier<T>(
        &mut self,
        (group, top): (usize, Option<usize>),
        asked: (u64, u64),
        found: &Result<T, ChargeError>,
    ) -> bool {
        if self.setup.nodes < 2 || self.setup.adapters {
            return false;
        }
        let refusal = found.as_ref().err().and_then(ChargeError::over_limit);
        let refusal = refusal.filter(|it| it.counter() == Some(TIER));
        let levels = self.twin.levels(group).take_while(|&it| Some(it) != top);
        for level in levels.filter(|&level| !self.twin.is_observed(level)) {
            let (least, most) = self.tier_bounds(level);
            let max = self.twin.groups[level].tier_max;
            let is_it = refusal.is_some_and(|it| it.group().id() == self.ids[level]);
            assert!(
                !is_it || most.saturating_add(asked.1) > max,
                "{} is refused by a tier that has room: {most} of {max} at most",
                asked.1
            );
            assert!(
                found.is_err() || asked.0 == 0 || least.saturating_add(asked.0) <= max,
                "{} more than a tier has room for, which has {least} of {max}",
                asked.0
            );
        }
        refusal.is_some()
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
        | What::KmemMigrate(number, ..)
        | What::KmemPack(number, _)
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
            item,
            mut kmem,
            mut places,
        } = self.kmems.remove(at);
        match op.1 {
            What::KmemMove(_, from, to, bytes) => {
                let (from, to) = (self.spot(from), self.spot(to));
                let nodes = [from, to].map(|spot| self.some_node(spot, bytes as usize + at));
                let (kmem, moved) = self.actor(op).run(move || {
                    let moved = kmem.migrated(nodes[0], nodes[1], Bytes(bytes));
                    (kmem, moved)
                });
                let there = places.get(&from).copied().unwrap_or(0);
                assert_eq!(moved, there.min(bytes), "moved");
                *places.entry(from).or_default() -= moved;
                *places.entry(to).or_default() += moved;
                self.keep_kmem(at, key, kmem, places);
            }
            What::KmemPack(_, ends) => {
                let lines = places.values().filter(|&&bytes| bytes > 0).count();
                let held = kmem.bytes();
                let kmem = self.actor(op).run(move || match kmem.pack::<2>() {
                    Ok(packed) if ends => {
                        drop(packed);
                        Ok(None)
                    }
                    Ok(packed) => Ok(Some(packed.unpack())),
                    Err(kmem) => Err(*kmem),
                });
                match kmem {
                    Ok(None) => {
                        self.twin.release(key);
                    }
                    Ok(Some(kmem)) => self.keep_kmem(at, key, kmem, places),
                    Err(kmem) => {
                        // What was counted further up stands in a line of its own.
                        let group = self.twin.of(key).group;
                        let fits = (1..=2).contains(&lines) && self.twin.groups[group].online;
                        assert!(!fits, "{held} bytes in {lines} places are not packed");
                        self.keep_kmem(at, key, kmem, places);
                    }
                }
            }
            What::KmemMigrate(_, from, to, bytes) => {
                let (from, to) = (self.spot(from), self.spot(to));
                let there = places.get(&from).copied().unwrap_or(0);
                let most = there.min(bytes);
                let nodes = [from, to].map(|spot| self.some_node(spot, bytes as usize + at));
                let (kmem, found, forced) = self.actor(op).run(move || {
                    let before = forced_tiers(&kmem.group());
                    let found = kmem.migrate(nodes[0], nodes[1], Bytes(bytes));
                    let forced = forced_tiers(&kmem.group()).saturating_sub(before);
                    (kmem, found, forced)
                });
                let group = self.twin.of(key).group;
                assert!(
                    forced == 0 || self.twin.is_observed(group),
                    "{forced} bytes more lie in a tier by force"
                );
                // What lies nowhere the tier may have been promised.
                let enters = to == Some(0) && from != to;
                let least = if enters && from.is_some() { most } else { 0 };
                let asked = (least, if enters { most } else { 0 });
                self.kmems.push(NodeMemory {
                    key,
                    item,
                    kmem,
                    places,
                });
                let is_refused = self.is_refused_by_tier((group, None), asked, &found);
                let NodeMemory {
                    kmem, mut places, ..
                } = self.kmems.pop().expect("it was put there");
                match found {
                    Ok(moved) => {
                        assert_eq!(moved, most, "moved");
                        *places.entry(from).or_default() -= moved;
                        *places.entry(to).or_default() += moved;
                    }
                    Err(error) => {
                        let is_offline = error.is_offline() && !self.twin.groups[group].online;
                        assert!(is_refused || is_offline, "{error}");
                    }
                }
                self.keep_kmem(at, key, kmem, places);
            }
            What::KmemShrink(_, node, bytes) | What::KmemShrinkTwo(_, node, bytes) => {
                let mut spots = vec![self.spot(node)];
                if let What::KmemShrinkTwo(..) = op.1 {
                    spots.push(self.spot(node.wrapping_add(1)));
                    spots.dedup();
                }
                let mut part = Placement::new();
                for (number, &spot) in spots.iter().enumerate() {
                    part.add(self.some_node(spot, number + at), Bytes(bytes));
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
                let on_tier = places.get(&Some(0)).copied().unwrap_or(0);
                let nowhere = places.get(&None).copied().unwrap_or(0);
                let asked = (on_tier, on_tier + nowhere);
                if to != group && self.is_refused_by_tier((to, ask.top), asked, &found) {
                    return self.keep_kmem(at, key, kmem, places);
                }
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
        let item = ACCOUNTED.into_iter().position(|stat| stat == kmem.stat());
        let placement = kmem.placement();
        for (&spot, &bytes) in &places {
            let found = match Self::node(spot) {
                Some(node) => placement.on_node(node),
                None => placement.unplaced(),
            };
            assert_eq!(found, bytes, "at {spot:?}");
        }
        self.kmems.insert(
            at,
            NodeMemory {
                key,
                item: item.expect("one of those that memory is accounted as"),
                kmem,
                places,
            },
        );
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
        // Some of it is metadata, or it is known on which node all will lie.
        let (metadata, within) = match bytes % 4 {
            1 => (charged / 3, None),
            2 => (0, spot),
            _ => (0, None),
        };
        let item = bytes as usize / 4 % ACCOUNTED.len();
        // Pages that lie here and there, or all of it at one place.
        let pages = Pages {
            size: 48,
            nodes: self.setup.nodes.max(1),
        };
        let start = usize::from(node) * 17;
        let is_spread = within.is_none() && op.0 % 2 == 1 && bytes > 0;
        let mut places = BTreeMap::new();
        if is_spread {
            for address in start..start + bytes as usize {
                let spot = pages.spot(address);
                let spot = self.spot(spot.map_or(u8::MAX, |node| node as u8));
                *places.entry(spot).or_default() += 1;
            }
        } else {
            places.insert(spot, bytes);
        }
        let at = self.some_node(spot, bytes as usize);
        let ask = self.ask(group, 0, Verb::Plain, charged);
        let other = self.group(node).unwrap_or(group);
        let other = self.handle(other).clone();
        let found = self.on(op, group, move |group| {
            let bound =
                PrechargeBound::from(Bytes(charged - metadata)).with_metadata(Bytes(metadata));
            let bound = match within {
                Some(node) => bound.within(&[NodeId::new(node as u16)]),
                None => bound,
            };
            let precharge = as_member(&other, group).precharge(bound)?;
            // It is a charge, which a drain leaves alone.
            group.memory().drain();
            let (holds, live) = (precharge.bytes(), group.live());
            assert!(
                holds == charged && live >= charged,
                "{holds} bytes of {charged} are precharged, and {live} live"
            );
            let mut placement = Placement::new();
            if is_spread {
                placement.add_range(start..start + bytes as usize, &pages);
            } else {
                placement.add(at, Bytes(bytes));
            }
            let stat = ACCOUNTED[item];
            // At once into some words, where that is possible.
            let parts = [(at, Bytes(bytes))];
            let packed = if is_spread {
                Err(precharge)
            } else {
                precharge.try_account_as::<2>(stat, &parts)
            };
            Ok(match packed {
                Ok(packed) => packed.unpack(),
                Err(precharge) => precharge.account_as(stat, &placement),
            })
        });
        let may_be_near = within.is_none_or(|node| node == 0);
        let asked = if may_be_near { charged } else { 0 };
        if self.is_refused_by_tier((group, None), (asked, asked), &found) {
            return;
        }
        if let Some(kmem) = self.agree(ask, found) {
            let key = self.twin.hold(group, 0, bytes);
            let at = self.kmems.len();
            self.keep_kmem(at, key, kmem, places);
        }
    }
}

/// A thread that was a member of one group is one of the other, unless that is offline.
fn as_member(from: &Group, to: &Group) -> Group {
    let mut member = KmemMember::of(from);
    let moved = member.mover().move_to(to);
    assert_eq!(
        moved.is_err(),
        to.is_offline(),
        "a member that moves: {moved:?}"
    );
    let now = if moved.is_ok() { to } else { from };
    assert_eq!(member.group(), now, "a member that has moved");
    to.clone()
}
