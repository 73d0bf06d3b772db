//! Memory on nodes that lie in several tiers, in a tree of its own: what one of them refuses leaves
//! all of them as they were.

use std::collections::BTreeMap;

use memcg::kmem::{Kmem, NodeId, Placement, PrechargeBound};
use memcg::{Bytes, ChargeError, CounterKey, Group, Limits, Runtime};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use crate::configuration::limit;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What, pick};

const NODES: u16 = 3;

/// The nodes of each tier: they may have some in common.
const TIERS: [[&[u16]; 2]; 3] = [[&[0], &[1]], [&[0, 1], &[1, 2]], [&[0], &[0, 1]]];

/// Groups by number: the root, two below it, and one below the first of these.
const PARENTS: [usize; 4] = [0, 0, 0, 1];

const HELD_MAX: usize = 6;

/// Bytes by node; those of a node that the machine does not have are on none.
type Places = BTreeMap<Option<u16>, u64>;

impl Life {
    pub(super) fn fill_tiers(&mut self, op: &Op) {
        let What::Tiers(steps, seed) = op.1 else {
            unreachable!("tiers");
        };
        if let Err(fault) = self.actor(op).run(move || live(steps, seed)) {
            panic!("{fault}");
        }
    }
}

struct Held {
    group: usize,
    kmem: Kmem,
    places: Places,
}

struct Tiers {
    rng: Xoshiro256PlusPlus,
    runtime: Runtime,
    groups: Vec<Group>,
    keys: Vec<CounterKey>,
    nodes: [&'static [u16]; 2],
    /// Of memory and of each tier.
    max: [[u64; 3]; PARENTS.len()],
    held: Vec<Held>,
}

/// Live bytes of memory and of each tier, by group.
type Figures = Vec<Vec<u64>>;

fn live(steps: u8, seed: u64) -> Holds {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let nodes = pick(&mut rng, &TIERS);
    let mut builder = Runtime::builder().nodes(NODES.into()).batch(0);
    let mut keys = vec![CounterKey::MEMORY];
    for (number, nodes) in nodes.into_iter().enumerate() {
        let nodes = nodes.iter().map(|&node| NodeId::new(node));
        keys.push(builder.tier(["first", "second"][number], nodes));
    }
    let runtime = builder.build().expect("a configuration that holds");
    let mut groups = vec![runtime.root()];
    for number in 1..PARENTS.len() {
        let made = groups[PARENTS[number]].create(number as u64, Limits::new());
        groups.push(made.expect("nothing is in the way"));
    }
    let mut tiers = Tiers {
        rng,
        runtime,
        groups,
        keys,
        nodes,
        max: [[u64::MAX; 3]; PARENTS.len()],
        held: Vec::new(),
    };
    for _ in 0..steps {
        tiers.step()?;
        tiers.agree()?;
    }
    tiers.held.clear();
    tiers.agree()?;
    let verdict = tiers.runtime.verify();
    ensure!(verdict.is_ok(), "{verdict}");
    Ok(())
}

impl Tiers {
    fn levels(group: usize) -> Vec<usize> {
        let mut levels = vec![group];
        while let Some(&level) = levels.last().filter(|&&level| level > 0) {
            levels.push(PARENTS[level]);
        }
        levels
    }

    fn figures(&self) -> Figures {
        let of = |group: &Group| {
            let counters = self.keys.iter().map(|&key| group.counter(key));
            counters.map(|it| it.expect("declared").live()).collect()
        };
        self.groups.iter().map(of).collect()
    }

    /// So many more fit at each level of a group below `top`: of memory, or of a tier.
    fn fits(
        &self,
        before: &Figures,
        (group, top): (usize, Option<usize>),
        of: usize,
        more: u64,
    ) -> bool {
        let levels = Tiers::levels(group).into_iter();
        let mut levels = levels.take_while(|&level| Some(level) != top);
        more == 0 || levels.all(|level| before[level][of] + more <= self.max[level][of])
    }

    fn has(&self, tier: usize, node: Option<u16>) -> bool {
        node.is_some_and(|node| self.nodes[tier].contains(&node))
    }

    /// At a node, at one that the machine does not have, or at none.
    fn node(&mut self) -> Option<u16> {
        pick(
            &mut self.rng,
            &[Some(0), Some(1), Some(2), Some(2 * NODES), None],
        )
    }

    fn placed(node: Option<u16>) -> Option<u16> {
        node.filter(|&node| node < NODES)
    }

    fn parts(&mut self) -> Vec<(Option<u16>, u64)> {
        let many = self.rng.random_range(1..4);
        let part = |tiers: &mut Tiers| (tiers.node(), tiers.rng.random_range(1..100));
        (0..many).map(|_| part(self)).collect()
    }

    fn placement(parts: &[(Option<u16>, u64)]) -> Placement {
        let mut placement = Placement::new();
        for &(node, bytes) in parts {
            placement.add(node.map(NodeId::new), Bytes(bytes));
        }
        placement
    }

    fn places(parts: &[(Option<u16>, u64)]) -> Places {
        let mut places = Places::new();
        for &(node, bytes) in parts {
            *places.entry(Tiers::placed(node)).or_default() += bytes;
        }
        places
    }

    fn step(&mut self) -> Holds {
        let group = self.rng.random_range(0..PARENTS.len());
        let step = self.rng.random_range(0..12);
        if step < 3 && self.held.len() < HELD_MAX {
            return self.precharge(group);
        }
        if step == 3 {
            let of = self.rng.random_range(0..self.keys.len());
            let above = pick(&mut self.rng, &[0, 20, 100, u64::MAX]);
            let counter = self.groups[group].counter(self.keys[of]).expect("declared");
            let max = counter.live().saturating_add(above);
            ensure_eq!(
                counter.set_max(limit(max)),
                Ok(0),
                "above a max that has room"
            );
            self.max[group][of] = max;
            return Ok(());
        }
        if self.held.is_empty() {
            return Ok(());
        }
        let at = self.rng.random_range(0..self.held.len());
        match step {
            4..=5 => self.migrate(at),
            6 => self.transfer(at, group),
            7 => self.merge(at),
            8 if self.rng.random() => self.pack(at),
            8 => {
                self.follow(at);
                Ok(())
            }
            9 => {
                let parts = self.parts();
                let Held { kmem, places, .. } = &mut self.held[at];
                let freed = kmem.shrink(&Tiers::placement(&parts));
                let mut all = 0;
                for (node, bytes) in Tiers::places(&parts) {
                    let there = places.entry(node).or_default();
                    let gone = bytes.min(*there);
                    *there -= gone;
                    all += gone;
                }
                ensure_eq!(freed, all, "freed");
                Ok(())
            }
            10 => {
                let parts = self.parts();
                let Held { kmem, places, .. } = &mut self.held[at];
                let placement = Tiers::placement(&parts);
                kmem.relocate(&placement);
                let mut left = kmem.bytes();
                places.clear();
                for (node, bytes) in placement.nodes() {
                    let here = bytes.min(left);
                    let spot = (0..NODES).find(|&number| NodeId::new(number) == node);
                    *places.entry(spot).or_default() += here;
                    left -= here;
                }
                *places.entry(None).or_default() += left;
                Ok(())
            }
            _ => {
                drop(self.held.swap_remove(at));
                Ok(())
            }
        }
    }

    /// What is asked for is refused where it does not fit, and then nothing has changed.
    fn is_refused(
        &self,
        error: &ChargeError,
        before: &Figures,
        (least, most): (bool, bool),
    ) -> Holds {
        ensure!(
            error.is_over_limit() && !least,
            "{error}, and it fits: {most}"
        );
        ensure_eq!(self.figures(), *before, "live after what was refused");
        Ok(())
    }

    fn precharge(&mut self, group: usize) -> Holds {
        let parts = self.parts();
        let bytes: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        let within: Vec<u16> = parts.iter().filter_map(|&(node, _)| node).collect();
        // Where all of it has a node, that may be known before.
        let is_known = within.len() == parts.len() && self.rng.random();
        let more = pick(&mut self.rng, &[0, 0, 30]);
        let mut bound = PrechargeBound::from(Bytes(bytes + more));
        if is_known {
            let nodes: Vec<NodeId> = within.iter().map(|&node| NodeId::new(node)).collect();
            bound = bound.within(&nodes);
        }
        let before = self.figures();
        let may_lie = |tier: usize| !is_known || within.iter().any(|&it| self.has(tier, Some(it)));
        let mut fits = self.fits(&before, (group, None), 0, bytes + more);
        for tier in (0..self.nodes.len()).filter(|&tier| may_lie(tier)) {
            fits &= self.fits(&before, (group, None), tier + 1, bytes + more);
        }
        match self.groups[group].precharge(bound) {
            Ok(precharge) => {
                ensure!(
                    fits,
                    "{} bytes are precharged, and do not fit",
                    bytes + more
                );
                let kmem = precharge.account(&Tiers::placement(&parts));
                let places = Tiers::places(&parts);
                self.held.push(Held {
                    group,
                    kmem,
                    places,
                });
                Ok(())
            }
            Err(error) => self.is_refused(&error, &before, (fits, fits)),
        }
    }

    fn migrate(&mut self, at: usize) -> Holds {
        let (from, to) = (self.node(), self.node());
        let bytes = self.rng.random_range(1..120);
        let before = self.figures();
        let group = self.held[at].group;
        let (of, into) = (Tiers::placed(from), Tiers::placed(to));
        let there = self.held[at].places.get(&of).copied().unwrap_or(0);
        let moved = there.min(bytes);
        let mut fits = true;
        for tier in 0..self.nodes.len() {
            let enters = self.has(tier, into) && !self.has(tier, of);
            fits &= !enters || self.fits(&before, (group, None), tier + 1, moved);
        }
        // What is on none a tier may have been promised.
        let may_fit = fits || of.is_none();
        let kmem = &mut self.held[at].kmem;
        let (from, to) = (from.map(NodeId::new), to.map(NodeId::new));
        let found = if self.rng.random() {
            kmem.migrate(from, to, Bytes(bytes))
        } else {
            Ok(kmem.migrated(from, to, Bytes(bytes)))
        };
        match found {
            Ok(found) => {
                ensure_eq!(found, moved, "moved");
                let places = &mut self.held[at].places;
                *places.entry(of).or_default() -= moved;
                *places.entry(into).or_default() += moved;
                Ok(())
            }
            Err(error) => self.is_refused(&error, &before, (fits, may_fit)),
        }
    }

    fn transfer(&mut self, at: usize, to: usize) -> Holds {
        let Held {
            group,
            kmem,
            places,
        } = &self.held[at];
        let before = self.figures();
        let levels = Tiers::levels(*group);
        let common = Tiers::levels(to)
            .into_iter()
            .find(|level| levels.contains(level));
        let nowhere = places.get(&None).copied().unwrap_or(0);
        let mut fits = self.fits(&before, (to, common), 0, kmem.bytes());
        let mut may_fit = fits;
        for tier in 0..self.nodes.len() {
            let there = places.iter().filter(|&(&node, _)| self.has(tier, node));
            let there: u64 = there.map(|(_, bytes)| bytes).sum();
            fits &= self.fits(&before, (to, common), tier + 1, there + nowhere);
            may_fit &= self.fits(&before, (to, common), tier + 1, there);
        }
        let target = self.groups[to].clone();
        match self.held[at].kmem.transfer(&target) {
            Ok(()) => {
                ensure!(may_fit, "an account is moved to {to}, and does not fit");
                self.held[at].group = to;
                Ok(())
            }
            Err(error) => self.is_refused(&error, &before, (fits, may_fit)),
        }
    }

    fn merge(&mut self, at: usize) -> Holds {
        let Held {
            group,
            kmem,
            places,
        } = self.held.swap_remove(at);
        let Some(into) = self.held.iter_mut().find(|it| it.group == group) else {
            self.held.push(Held {
                group,
                kmem,
                places,
            });
            return Ok(());
        };
        ensure!(into.kmem.merge(kmem).is_ok(), "two accounts of one group");
        for (node, bytes) in places {
            *into.places.entry(node).or_default() += bytes;
        }
        Ok(())
    }

    /// All of it lies in one place, and moves to another by force.
    fn follow(&mut self, at: usize) {
        let to = self.node();
        let Held { kmem, places, .. } = &mut self.held[at];
        places.retain(|_, bytes| *bytes > 0);
        if let (Some((&from, &bytes)), 1) = (places.iter().next(), places.len()) {
            kmem.follow(from.map(NodeId::new), to.map(NodeId::new));
            *places = Places::from([(Tiers::placed(to), bytes)]);
        }
    }

    fn pack(&mut self, at: usize) -> Holds {
        let Held {
            group,
            kmem,
            mut places,
        } = self.held.swap_remove(at);
        places.retain(|_, bytes| *bytes > 0);
        let many = places.len();
        match kmem.pack::<2>() {
            Ok(packed) => {
                ensure!((1..=2).contains(&many), "{many} places in two words");
                // Or it ends there.
                if self.rng.random() {
                    let kmem = packed.unpack();
                    self.held.push(Held {
                        group,
                        kmem,
                        places,
                    });
                }
            }
            Err(kmem) => {
                ensure!(!(1..=2).contains(&many), "{many} places are not packed");
                self.held.push(Held {
                    group,
                    kmem: *kmem,
                    places,
                });
            }
        }
        Ok(())
    }

    fn agree(&self) -> Holds {
        for held in &self.held {
            let placement = held.kmem.placement();
            for (&node, &bytes) in &held.places {
                let found = match node {
                    Some(node) => placement.on_node(NodeId::new(node)),
                    None => placement.unplaced(),
                };
                ensure_eq!(found, bytes, "at {node:?}");
            }
            let all: u64 = held.places.values().sum();
            ensure_eq!(held.kmem.bytes(), all, "held");
        }
        for (level, figures) in self.figures().into_iter().enumerate() {
            let here = || {
                let held = self.held.iter();
                held.filter(|held| Tiers::levels(held.group).contains(&level))
            };
            let all: u64 = here().map(|held| held.kmem.bytes()).sum();
            ensure_eq!(figures[0], all, "live at level {level}");
            for tier in 0..self.nodes.len() {
                let places = || here().flat_map(|held| &held.places);
                let there = places().filter(|&(&node, _)| self.has(tier, node));
                let least: u64 = there.map(|(_, bytes)| bytes).sum();
                let nowhere = places().filter(|(node, _)| node.is_none());
                let most = least + nowhere.map(|(_, bytes)| bytes).sum::<u64>();
                let live = figures[tier + 1];
                ensure!(
                    (least..=most).contains(&live),
                    "{live} live in tier {tier} at level {level}, which has {least} to {most}"
                );
            }
        }
        Ok(())
    }
}
