//! Who comes and who goes: objects taken from the pool, linked, taken offline, buried.
//!
//! A counter goes in one of two ways. What a [`PageCounter`](crate::PageCounter) handle kept is *retired* with its last
//! handle: what it holds leaves its ancestors. A group is taken *offline*: out of its parent's children at once, closed
//! at once, and *buried* when neither handles nor usage are left (`life`). Closing for good needs a barrier where more
//! than one thread has charged here; such pending_close queue, and one barrier serves all of them: after 64, with the next
//! closing, or in `settle`.
//!
//! Edges: E12 (vacated slots/the next counter with the object), E14 (a second charger/offline).

use std::mem;

use crate::counter::config::CounterConfig;
use crate::counter::drain::Stuck;
use crate::counter::links::{Hash, NoRoom, Shard};
use crate::counter::object::{Counter, Incarnation, SHARED};
use crate::counter::protection::Protection;
use crate::counter::stocks::{List, Stocks};
use crate::counter::tree::{OfTree, Tree};
use crate::counter::watch::WAITS;
use crate::error::CounterId;
use crate::hierarchy::events;
use crate::hierarchy::limits::LimitKind;
use crate::hierarchy::name::Name;
use crate::hierarchy::stats;
use crate::pool::NoMemory;
use crate::reclaim::{excess, registrations, rings};
use crate::sync::{Arc, Ordering, PENDING_CLOSE_MAX, fence_after_exchange};
use crate::thread::block::Block;
use crate::thread::ids::next_id;
use crate::thread::local;
use crate::thread::slot::Slot;

impl<E> From<NoMemory> for NotCreated<E> {
    fn from(refused: NoMemory) -> Self {
        NotCreated::Memory(refused.bytes)
    }
}

/// What a counter is made from.
pub(crate) struct Init {
    pub(crate) tree: OfTree,
    pub(crate) parent: Option<&'static Counter>,
    pub(crate) members: Box<[&'static Counter]>,
    /// Of the first counter of a group, which names them all.
    pub(crate) name: Name,
    pub(crate) batch: u64,
    pub(crate) max: u64,
    pub(crate) budget: Option<u64>,
    pub(crate) stock: bool,
}

impl Init {
    fn root(tree: &Arc<Tree>, config: &CounterConfig, stock: bool) -> Self {
        Init { stock, ..Init::of(OfTree::root(tree), config) }
    }

    fn of(tree: OfTree, config: &CounterConfig) -> Self {
        Init {
            tree,
            parent: None,
            members: Box::default(),
            name: Name::NONE,
            batch: config.batch,
            max: config.max,
            budget: config.budget,
            stock: true,
        }
    }

    fn below(parent: &'static Counter) -> Self {
        let config = CounterConfig { batch: parent.batch(), max: u64::MAX, budget: None, ..CounterConfig::new() };
        Init { parent: Some(parent), ..Init::of(parent.incarnation().tree.below(), &config) }
    }
}

/// Why a group was not taken offline.
#[derive(Debug)]
pub(crate) struct HasChildren(pub(crate) usize);

/// Why a group was not made.
#[derive(Debug)]
pub(crate) enum NotCreated<E> {
    /// The parent is offline.
    Offline,
    /// The parent has a child of that name.
    Taken,
    /// The configured most groups exist.
    Full(u32),
    /// Its settings do not hold.
    Settings(E),
    /// The system gives no memory: so many bytes were asked for.
    Memory(usize),
}

// === impl Tree: counters ===

impl Tree {
    /// A root of this tree; a counter set has one for each member.
    pub(crate) fn root(self: &Arc<Self>, config: &CounterConfig, stock: bool) -> &'static Counter {
        self.attach(Init::root(self, config, stock))
    }

    /// A counter below `parent`, with its batch.
    pub(crate) fn child(&self, parent: &'static Counter, stock: bool) -> &'static Counter {
        self.attach(Init { stock, ..Init::below(parent) })
    }

    /// The one stock of several counters that are charged together.
    pub(crate) fn front(self: &Arc<Self>, members: Box<[&'static Counter]>, batch: u64) -> &'static Counter {
        let config = CounterConfig { batch, max: u64::MAX, budget: None, ..CounterConfig::new() };
        self.attach(Init { members, ..Init::root(self, &config, true) })
    }

    fn attach(&self, birth: Init) -> &'static Counter {
        let node = self.take_object().unwrap_or_else(|refused| refused.abort());
        self.init(node, birth);
        let first = self.hierarchy.lock_for(node).link(node);
        self.attached(node, first == Some(true));
        node
    }

    /// Start a life, which nobody sees yet.
    fn init(&self, node: &'static Counter, birth: Init) {
        let fenced = self.barrier.fenced();
        let life = Incarnation {
            id: CounterId(next_id()),
            tree: birth.tree,
            parent: birth.parent,
            members: birth.members,
            name: birth.name,
            stock: birth.stock,
            careful: fenced || self.audited,
            fenced,
            budget: birth.budget,
        };
        node.begin(life, birth.batch, birth.max);
    }

    /// After it was linked, as its parent's `first` child or not. From here on its ancestors are pinned: before, its
    /// creator's handles keep it and its parent, however soon somebody takes it offline.
    fn attached(&self, group: &'static Counter, first: bool) {
        let Incarnation { parent, members, .. } = group.incarnation();
        if let Some(parent) = parent {
            parent.state().pin();
        }
        if !first && self.adaptive && members.is_empty() {
            return;
        }
        let mut stocks = self.stocks.lock();
        if let Some(parent) = parent.filter(|_| first) {
            parent.group().for_each(|counter| self.after_first_child(&mut stocks, counter));
        }
        for member in members {
            member.set_front(Some(group));
        }
        group.group().for_each(|counter| self.open_at_start(&mut stocks, counter));
    }

    /// Nobody can charge `node` any more. Its credit and what is still charged to it leave its ancestors, its object
    /// goes back to the pool.
    pub(crate) fn retire(node: &'static Counter) {
        // It may be the last of its tree.
        let tree = node.incarnation().tree.counted();
        let mut stocks = tree.stocks.lock();
        // Nobody opens it any more, and it has no children: they would keep it.
        let barred = node.bar();
        debug_assert!(barred.is_ok(), "a counter outlives its children");
        tree.hierarchy.lock_of(node).retire(node);
        // What a set's stock was charged stays charged to the counters of the set.
        let live = tree.audited_live(node);
        let credit = tree.vacate(node);
        node.set_protection(Protection::Min, 0);
        node.set_protection(Protection::Low, 0);
        let Incarnation { parent, members, .. } = node.incarnation();
        for member in members {
            member.uncharge_levels(credit.min(member.usage()));
            member.usage.audit_shared.charged_shared(live.cast_unsigned());
            member.set_front(None);
        }
        if let Some(parent) = parent {
            // The credit is part of the usage.
            parent.uncharge_levels(node.usage());
            parent.unpin();
        }
        if node.is_open() {
            // E10: uncounted after its credit is back, as in `close`.
            node.header.capacity.store(0, Ordering::Release);
            tree.uncount(node);
            stocks.set_open(node, false);
        }
        drop(stocks);
        tree.give_back(node);
    }

    /// Make the slots of a counter that nobody uses any more vacant. Returns the credit that was in them.
    fn vacate(&self, node: &Counter) -> u64 {
        // Relaxed: E12, see below. Who makes a slot of it active is its charger before (`Counter::enter`), and no other
        // block need be looked at, whose lines are another thread's. The audit counts without.
        let charger = node.charger.load(Ordering::Relaxed);
        let used = |block: &&Block| charger == SHARED || charger == block.charger() || self.audited;
        let mut credit = 0;
        for block in self.registry.blocks().filter(used) {
            // E12: no barrier. The last handle's drop, or the last uncharge, orders every use of the counter before
            // this, and the pool's locks order this before the next counter with the object.
            credit += block.slot(node.index).map_or(0, Slot::vacate);
            if let Some(cell) = block.audit(node.index) {
                cell.reset();
            }
        }
        credit
    }
}

// === impl Tree: groups ===

impl Tree {
    /// The root group: one counter for each configuration, the first of which has the caller's handle.
    pub(crate) fn root_group(self: &Arc<Self>, configs: &[CounterConfig]) -> Result<&'static Counter, NoMemory> {
        let group = self.init_group(configs.iter().map(|config| Init::root(self, config, true)))?;
        // Counts what others have no memory for.
        group.group().for_each(events::prepare_root);
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.hierarchy.lock_for(group).link(group);
        self.attached(group, false);
        Ok(group)
    }

    /// A group below `parent`, as the caller `sets` its counters up, of a name that was [expected](crate::counter::links::Hierarchy::expect).
    /// With a handle for the caller.
    pub(crate) fn create<E>(
        &self,
        parent: &'static Counter,
        name: &str,
        hash: Hash,
        percents: bool,
        set: impl FnOnce(&Counter) -> Result<(), E>,
    ) -> Result<&'static Counter, NotCreated<E>> {
        let mut named = Name::new(name)?;
        let births =
            parent.group().map(|counter| Init { name: mem::replace(&mut named, Name::NONE), ..Init::below(counter) });
        let group = self.init_group(births)?;
        // A max that moves finds it linked, or it finds the max moved.
        let stocks = percents.then(|| self.stocks.lock());
        let linked = self.link(&mut self.hierarchy.lock_expected(group, hash), group, set);
        if let Some(mut stocks) = stocks {
            stocks.percents |= linked.is_ok();
        }
        match linked {
            Ok(first) => {
                self.count_name(group, u64::wrapping_add);
                self.attached(group, first);
                Ok(group)
            }
            Err(refused) => {
                rings::release(group);
                self.give_back(group);
                if let NotCreated::Offline = refused {
                    // Whoever has barred it may be on his way: who is told that it is offline finds it so.
                    let _ = self.offline(parent);
                }
                Err(refused)
            }
        }
    }

    /// Into the tree, as the caller `sets` its counters up. Whether it is its parent's first child.
    fn link<E>(
        &self,
        shard: &mut Shard,
        group: &'static Counter,
        set: impl FnOnce(&Counter) -> Result<(), E>,
    ) -> Result<bool, NotCreated<E>> {
        if group.incarnation().parent.is_some_and(|parent| parent.is_barred()) {
            return Err(NotCreated::Offline);
        }
        if shard.is_taken(group) {
            return Err(NotCreated::Taken);
        }
        self.hierarchy.reserve(shard, group).map_err(|NoRoom(bytes)| NotCreated::Memory(bytes))?;
        // Under the lock: whoever observes a subtree or changes its batch finds it linked, or it finds the parent's.
        for counter in group.group() {
            counter.batch.store(counter.incarnation().parent.map_or(0, Counter::batch), Ordering::Relaxed);
        }
        set(group).map_err(NotCreated::Settings)?;
        group.follow_observed_unlinked();
        excess::prepare(group, group.kind(LimitKind::Soft))?;
        if !self.admit_group() {
            return Err(NotCreated::Full(self.groups_max));
        }
        shard.link(group).ok_or_else(|| {
            self.dismiss_group();
            NotCreated::Offline
        })
    }

    /// One group more, where there may be one.
    fn admit_group(&self) -> bool {
        let more = |groups: u32| (groups < self.groups_max).then_some(groups + 1);
        self.groups_max == u32::MAX || self.groups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn dismiss_group(&self) {
        if self.groups_max < u32::MAX {
            self.groups.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A name that takes memory of its own has come or gone.
    fn count_name(&self, group: &Counter, change: fn(u64, u64) -> u64) {
        let bytes = group.incarnation().name.bytes_outside();
        if bytes > 0 {
            let _ = self
                .counts
                .name_bytes
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| Some(change(all, bytes)));
        }
    }

    /// One life for each counter of a group.
    fn init_group(&self, births: impl Iterator<Item = Init>) -> Result<&'static Counter, NoMemory> {
        let group = self.take_object()?;
        group.group().zip(births).for_each(|(counter, birth)| self.init(counter, birth));
        Ok(group)
    }

    /// Admission to `group` stops; it is nobody's child any more, its name is free. The caller has a handle. Only where
    /// it has an open stock is the tree's lock taken.
    pub(crate) fn offline(&self, group: &'static Counter) -> Result<(), HasChildren> {
        self.hierarchy.expect_leave(group);
        group.bar()?;
        // E35: barred, then a look whether a stock is open; who opens one now sees the bar.
        fence_after_exchange();
        if group.group().any(|counter| counter.is_open() && !counter.is_queued()) {
            let mut stocks = self.stocks.lock();
            self.close_barred(&mut stocks, group);
            if stocks.unsettled >= PENDING_CLOSE_MAX {
                let _ = self.close_all_pending(&mut stocks);
            }
        }
        self.leave(&mut self.hierarchy.lock_of(group), group);
        Ok(())
    }

    /// The group and everything below it, children before parents.
    pub(crate) fn offline_tree(&self, top: &'static Counter) {
        let mut stocks = self.stocks.lock();
        let mut shape = self.hierarchy.snapshot();
        let below: Vec<_> = shape.subtree(top).collect();
        for group in below.into_iter().rev() {
            // Nobody comes between: the shape is frozen.
            let barred = group.bar();
            debug_assert!(barred.is_ok());
            // Going offline may be the last step, where nobody has a handle: so it is taken with one.
            group.state().pin();
            self.close_barred(&mut stocks, group);
            self.leave(shape.shard_of(group), group);
            if let Some(of) = group.unpin() {
                group.part(of);
            }
        }
        drop(shape);
        let _ = self.close_all_pending(&mut stocks);
    }

    /// The stocks of a group that is going offline: nobody opens them again.
    fn close_barred(&self, stocks: &mut Stocks, group: &'static Counter) {
        let queued = stocks.pending_close.len();
        for counter in group.group().filter(|counter| counter.is_open() && !counter.is_queued()) {
            self.close_dying(stocks, counter);
        }
        stocks.unsettled += usize::from(stocks.pending_close.len() > queued);
    }

    /// Barred and closed: out of its parent's children, unless somebody else was first.
    fn leave(&self, shard: &mut Shard, group: &'static Counter) {
        if group.state().is_offline() {
            return;
        }
        shard.leave(group);
        for counter in group.group() {
            counter.set_protection(Protection::Min, 0);
            counter.set_protection(Protection::Low, 0);
            excess::set_soft(counter, u64::MAX);
            // After all this: whoever sees it finds the stock closed.
            counter.state().set_offline();
            // E27: offline, then a look whether somebody waits.
            fence_after_exchange();
            if counter.is_watched_for(WAITS) {
                counter.schedule_service();
            }
        }
        registrations::hand_to_parent(group);
        group.leave_parent();
    }

    /// Nobody opens its stock again. No barrier where all that was ever charged here was charged by this thread.
    fn close_dying(&self, stocks: &mut Stocks, node: &'static Counter) {
        // SeqCst (E14): pairs with `Counter::enter`. Either a second charger reads capacity 0, or we see that there is
        // one.
        node.header.capacity.swap(0, Ordering::SeqCst);
        fence_after_exchange();
        let charger = node.charger.load(Ordering::SeqCst);
        let mine = local::with_block(|block| match block {
            Some(block) if charger == block.charger() => {
                Some(block.slot(node.index).map_or(0, |slot| slot.take_back(u64::MAX, node.incarnation().fenced)))
            }
            _ => (charger == 0).then_some(0),
        });
        if let Some(units) = mine {
            node.uncharge_levels(units);
            self.uncount(node);
            stocks.set_open(node, false);
            return;
        }
        // Credit waits for the barrier and buys nothing: whoever knows that the group is offline reads capacity 0.
        node.queued.store(true, Ordering::Relaxed);
        stocks.pending_close.push(node);
    }

    /// Close the stocks of the dying for good, all with one barrier.
    pub(crate) fn close_all_pending(&self, stocks: &mut Stocks) -> Result<(), Stuck> {
        if stocks.pending_close.is_empty() { Ok(()) } else { self.close_all(stocks, List::new()) }
    }

    /// Nothing of the dying stays in a stock.
    pub(crate) fn settle(&self) {
        let _ = self.close_all_pending(&mut self.stocks.lock());
    }

    /// Usage is zero: neither a slot nor a thread in transit has anything of these stocks.
    fn forget_open(&self, stocks: &mut Stocks, group: &'static Counter) {
        let queued = stocks.pending_close.len();
        for counter in group.group().filter(|counter| counter.is_open()) {
            stocks.forget_pending_close(counter);
            self.uncount(counter);
            stocks.set_open(counter, false);
        }
        stocks.unsettled -= usize::from(stocks.pending_close.len() < queued);
    }

    /// The last step of a group's end, by whoever won it (E15). Returns what may be dropped without a lock,
    /// and the parent, to give its handle back: it may be what keeps the tree.
    pub(crate) fn bury(&self, group: &'static Counter) -> (Option<Incarnation>, Option<&'static Counter>) {
        // Acquire (E36): where no stock is counted as open, nobody looks at one any more.
        if group.group().any(Counter::is_open) {
            self.forget_open(&mut self.stocks.lock(), group);
        }
        self.hierarchy.lock_of(group).bury(group);
        self.dismiss_group();
        for counter in group.group() {
            self.vacate(counter);
        }
        self.count_name(group, u64::wrapping_sub);
        rings::release(group);
        let parent = group.incarnation().parent;
        stats::release(group);
        group.group().for_each(events::forget);
        (self.recycle(group), parent)
    }
}
