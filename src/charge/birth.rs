//! Who comes and who goes: objects taken from the pool, linked, taken offline, buried.
//!
//! A counter goes in one of two ways. What a [`PageCounter`](crate::PageCounter) handle kept is *retired* with its last
//! handle: what it holds leaves its ancestors. A group is taken *offline*: out of its parent's children at once, closed
//! at once, and *buried* when neither handles nor usage are left (`life`). Closing for good needs a barrier where more
//! than one thread has charged here; such deaths queue, and one barrier serves all of them: after 64, with the next
//! closing, or in `settle`.
//!
//! Edges: E12 (vacated slots/the next counter with the object), E14 (a second charger/offline).

use std::mem;

use super::config::CounterConfig;
use super::drain::Stuck;
use super::knob::Knob;
use super::name::Name;
use super::page_counter::{Life, Node};
use super::places::Places;
use super::protection::Protection;
use super::stock::Slot;
use super::tree::Tree;
use super::watch::WAITS;
use crate::error::CounterId;
use crate::pool::NoMemory;
use crate::sync::stat_atomic::AtomicU64 as StatU64;
use crate::sync::{Arc, DEATHS, Ordering, fence_after_exchange, per_thread};

impl<E> From<NoMemory> for NotCreated<E> {
    fn from(refused: NoMemory) -> Self {
        NotCreated::Memory(refused.bytes)
    }
}

/// What a counter is made from.
pub(super) struct Birth {
    pub(super) parent: Option<&'static Node>,
    pub(super) members: Box<[&'static Node]>,
    /// Of the first counter of a group, which names them all.
    pub(super) name: Name,
    pub(super) batch: u64,
    pub(super) max: u64,
    pub(super) budget: Option<u64>,
    pub(super) stock: bool,
}

impl Birth {
    fn root(config: &CounterConfig, stock: bool) -> Self {
        Birth {
            parent: None,
            members: Box::default(),
            name: Name::NONE,
            batch: config.batch,
            max: config.max,
            budget: config.budget,
            stock,
        }
    }

    fn below(parent: &'static Node) -> Self {
        let config = CounterConfig { batch: parent.batch(), max: u64::MAX, budget: None, ..CounterConfig::new() };
        Birth { parent: Some(parent), ..Birth::root(&config, true) }
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
    pub(crate) fn root(self: &Arc<Self>, config: &CounterConfig, stock: bool) -> &'static Node {
        self.attach(Birth::root(config, stock))
    }

    /// A counter below `parent`, with its batch.
    pub(crate) fn child(self: &Arc<Self>, parent: &'static Node, stock: bool) -> &'static Node {
        self.attach(Birth { stock, ..Birth::below(parent) })
    }

    /// The one stock of several counters that are charged together.
    pub(crate) fn front(self: &Arc<Self>, members: Box<[&'static Node]>, batch: u64) -> &'static Node {
        let config = CounterConfig { batch, max: u64::MAX, budget: None, ..CounterConfig::new() };
        self.attach(Birth { members, ..Birth::root(&config, true) })
    }

    fn attach(self: &Arc<Self>, birth: Birth) -> &'static Node {
        let node = self.take_object().unwrap_or_else(|refused| refused.abort());
        self.bear(node, birth);
        self.link(&mut self.places.lock(), node);
        node
    }

    /// Start a life, which nobody sees yet.
    fn bear(self: &Arc<Self>, node: &'static Node, birth: Birth) {
        static NEXT: StatU64 = StatU64::new(1);
        let fenced = self.barrier.fenced();
        let life = Life {
            id: CounterId(NEXT.fetch_add(1, Ordering::Relaxed)),
            tree: Arc::clone(self),
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

    /// Into the tree. From here on its ancestors are pinned.
    fn link(&self, places: &mut Places, node: &'static Node) {
        let Life { parent, members, .. } = node.life();
        if let Some(parent) = parent {
            // For all counters of a group.
            if node.is_memory() {
                parent.state().pin();
            }
            if parent.children.fetch_add(1, Ordering::Relaxed) == 0 {
                self.before_first_child(places, parent);
            }
        }
        let place = places.link(node);
        for member in members {
            places.all[member.place() as usize].front = place;
        }
        self.open_at_birth(places, place);
    }

    /// Nobody can charge `node` any more. Its credit and what is still charged to it leave its ancestors, its object
    /// goes back to the pool.
    pub(crate) fn retire(node: &'static Node) {
        // It may be the last of its tree.
        let tree = Arc::clone(&node.life().tree);
        let mut places = tree.places.lock();
        let open = places.is_open(node.place());
        places.unlink(node.place());
        // What a set's stock was charged stays charged to the counters of the set.
        let live = tree.audited_live(node);
        let credit = tree.vacate(node);
        node.set_protection(Protection::Min, 0);
        node.set_protection(Protection::Low, 0);
        let Life { parent, members, .. } = node.life();
        for member in members {
            member.uncharge_levels(credit.min(member.usage()));
            member.audit_shared.charged_shared(live.cast_unsigned());
            places.all[member.place() as usize].front = super::places::NOWHERE;
        }
        if let Some(parent) = parent {
            // The credit is part of the usage.
            parent.uncharge_levels(node.usage());
            parent.children.fetch_sub(1, Ordering::Relaxed);
            parent.unpin();
        }
        if open {
            // E10: uncounted after its credit is back, as in `close`.
            node.gate.capacity.store(0, Ordering::Release);
            tree.uncount(node);
        }
        drop(places);
        tree.give_back(node);
    }

    /// Make the slots of a counter that nobody uses any more vacant. Returns the credit that was in them.
    fn vacate(&self, node: &Node) -> u64 {
        let mut credit = 0;
        for block in self.registry.blocks() {
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
    pub(crate) fn root_group(self: &Arc<Self>, configs: &[CounterConfig]) -> Result<&'static Node, NoMemory> {
        let group = self.bear_group(configs.iter().map(|config| Birth::root(config, true)))?;
        // Counts what others have no memory for.
        for (counter, cache) in group.group().zip(self.events.iter().cycle()) {
            counter.make_counts(cache);
        }
        self.link_group(&mut self.places.lock(), group);
        Ok(group)
    }

    /// A group below `parent`, as the caller `sets` its counters up. With a handle for the caller.
    pub(crate) fn create<E>(
        self: &Arc<Self>,
        parent: &'static Node,
        name: &str,
        percents: bool,
        set: impl FnOnce(&Node) -> Result<(), E>,
    ) -> Result<&'static Node, NotCreated<E>> {
        let mut named = Name::new(name)?;
        let births =
            parent.group().map(|counter| Birth { name: mem::replace(&mut named, Name::NONE), ..Birth::below(counter) });
        let group = self.bear_group(births)?;
        let mut places = self.places.lock();
        let refused = if parent.state().is_offline() {
            Some(NotCreated::Offline)
        } else if places.child(parent.place(), name).is_some() {
            Some(NotCreated::Taken)
        } else if places.groups >= self.groups_max {
            Some(NotCreated::Full(self.groups_max))
        } else {
            set(group).err().map(NotCreated::Settings)
        };
        if let Some(refused) = refused {
            drop(places);
            self.give_back(group);
            return Err(refused);
        }
        places.percents |= percents;
        self.link_group(&mut places, group);
        self.inherit_observed(&mut places, group);
        self.before_soft(group, group.knob(Knob::Soft));
        Ok(group)
    }

    /// One life for each counter of a group.
    fn bear_group(self: &Arc<Self>, births: impl Iterator<Item = Birth>) -> Result<&'static Node, NoMemory> {
        let group = self.take_object()?;
        group.group().zip(births).for_each(|(counter, birth)| self.bear(counter, birth));
        Ok(group)
    }

    fn link_group(&self, places: &mut Places, group: &'static Node) {
        places.groups += 1;
        self.counts.name_bytes.fetch_add(group.life().name.bytes_outside(), Ordering::Relaxed);
        group.group().for_each(|counter| self.link(places, counter));
    }

    /// Admission to `group` stops; it is nobody's child any more, its name is free.
    pub(crate) fn offline(&self, group: &'static Node) -> Result<(), HasChildren> {
        let mut places = self.places.lock();
        self.offline_locked(&mut places, group)?;
        if places.unsettled >= DEATHS {
            let _ = self.close_deaths(&mut places);
        }
        Ok(())
    }

    fn offline_locked(&self, places: &mut Places, group: &'static Node) -> Result<(), HasChildren> {
        if group.state().is_offline() {
            return Ok(());
        }
        let children = places.children(group.place()).count();
        if children > 0 {
            return Err(HasChildren(children));
        }
        places.dying_groups += 1;
        // Going offline may be the last step, where nobody has a handle: so it is taken with one.
        group.state().pin();
        let queued = places.deaths.len();
        group.group().for_each(|counter| self.die(places, counter));
        self.inherit(group);
        places.unsettled += usize::from(places.deaths.len() > queued);
        if let Some(of) = group.unpin() {
            group.part(of);
        }
        Ok(())
    }

    /// The group and everything below it, children before parents.
    pub(crate) fn offline_tree(&self, top: &'static Node) {
        let mut places = self.places.lock();
        let below: Vec<_> = places.subtree(top.place()).map(|place| places.node(place)).collect();
        for group in below.into_iter().rev() {
            // Nobody comes between: the lock is held.
            let gone = self.offline_locked(&mut places, group);
            debug_assert!(gone.is_ok());
        }
        let _ = self.close_deaths(&mut places);
    }

    /// One counter of a group that goes offline.
    fn die(&self, places: &mut Places, node: &'static Node) {
        places.leave(node.place());
        if let Some(parent) = node.life().parent {
            parent.children.fetch_sub(1, Ordering::Relaxed);
        }
        node.set_protection(Protection::Min, 0);
        node.set_protection(Protection::Low, 0);
        node.set_soft(u64::MAX);
        if places.is_open(node.place()) {
            self.close_dying(places, node);
        }
        // After all this: whoever sees it finds the stock closed.
        node.state().set_offline();
        // E27: offline, then a look whether somebody waits; both under the tree's lock.
        if node.is_watched_for(WAITS) {
            node.list();
        }
    }

    /// Nobody opens its stock again. No barrier where all that was ever charged here was charged by this thread.
    fn close_dying(&self, places: &mut Places, node: &'static Node) {
        // SeqCst (E14): pairs with `Node::enter`. Either a second charger reads capacity 0, or we see that there is
        // one.
        node.gate.capacity.swap(0, Ordering::SeqCst);
        fence_after_exchange();
        let charger = node.charger.load(Ordering::SeqCst);
        let mine = per_thread::with_block(|block| match block {
            Some(block) if charger == block.charger() => {
                Some(block.slot(node.index).map_or(0, |slot| slot.take_back(u64::MAX, node.life().fenced)))
            }
            _ => (charger == 0).then_some(0),
        });
        if let Some(units) = mine {
            node.uncharge_levels(units);
            places.set_open(node.place(), false);
            self.uncount(node);
            return;
        }
        // Credit waits for the barrier and buys nothing: whoever knows that the group is offline reads capacity 0.
        places.deaths.push(node.place());
    }

    /// Close the stocks of the dying for good, all with one barrier.
    pub(crate) fn close_deaths(&self, places: &mut Places) -> Result<(), Stuck> {
        if places.deaths.is_empty() { Ok(()) } else { self.close_all(places, Vec::new()) }
    }

    /// Nothing of the dying stays in a stock.
    pub(crate) fn settle(&self) {
        let _ = self.close_deaths(&mut self.places.lock());
    }

    /// The last step of a group's end, by whoever won it (E15). Returns what may be dropped without a lock.
    pub(super) fn bury(&self, group: &'static Node) -> Option<Life> {
        let mut places = self.places.lock();
        let queued = places.deaths.len();
        for counter in group.group() {
            let place = counter.place();
            let open = places.is_open(place);
            places.unlink(place);
            if open {
                // Usage is zero: neither a slot nor a thread in transit has anything of it.
                places.deaths.retain(|&death| death != place);
                self.uncount(counter);
            }
            self.vacate(counter);
        }
        places.unsettled -= usize::from(places.deaths.len() < queued);
        places.groups -= 1;
        places.dying_groups -= 1;
        self.counts.name_bytes.fetch_sub(group.life().name.bytes_outside(), Ordering::Relaxed);
        self.drop_ring(group);
        let parent = group.life().parent;
        drop(places);
        group.bury_stats();
        let life = self.recycle(group);
        if let Some(parent) = parent
            && let Some(of) = parent.unpin()
        {
            parent.part(of);
        }
        life
    }
}
