//! Effective protection: against the kernel's formula written down naively, and what follows from
//! it.

use memcg::{CounterConfig, PageCounter};
use proptest::prelude::*;

/// Index of a level of the tree.
type At = usize;

/// A tree as plain numbers: 0 is the root, parents stand before their children.
#[derive(Clone, Debug)]
struct Tree {
    nodes: Vec<Node>,
    recursive: bool,
}

#[derive(Clone, Debug)]
struct Node {
    parent: At,
    own: u64,
    setting: u64,
}

impl Tree {
    fn is_within(&self, at: At, top: At) -> bool {
        at == top || at != 0 && self.is_within(self.nodes[at].parent, top)
    }

    fn usage(&self, top: At) -> u128 {
        let below = (0..self.nodes.len()).filter(|&at| self.is_within(at, top));
        below.map(|at| u128::from(self.nodes[at].own)).sum()
    }

    fn protected(&self, at: At) -> u128 {
        self.usage(at).min(u128::from(self.nodes[at].setting))
    }

    fn children(&self, parent: At) -> impl Iterator<Item = At> {
        (1..self.nodes.len()).filter(move |&at| self.nodes[at].parent == parent)
    }

    /// `effective_protection` of the kernel with numbers that do not wrap.
    fn effective(&self, at: At, target: At) -> u128 {
        if at == target {
            return 0;
        }
        let parent = self.nodes[at].parent;
        if parent == target {
            return u128::from(self.nodes[at].setting);
        }
        let above = self.effective(parent, target);
        let siblings: u128 = self
            .children(parent)
            .map(|child| self.protected(child))
            .sum();
        let usage = self.usage(at);
        let protected = self.protected(at);
        let parent_usage = self.usage(parent);
        if siblings > above {
            return protected * above / siblings;
        }
        if self.recursive && above > siblings && parent_usage > siblings && usage > protected {
            return protected
                + (above - siblings) * (usage - protected) / (parent_usage - siblings);
        }
        protected
    }

    /// Nothing is protected beyond what is used.
    fn kept(&self, at: At, target: At) -> u128 {
        self.effective(at, target).min(self.usage(at))
    }

    fn scaled(&self, by: u64) -> Tree {
        let mut scaled = self.clone();
        for node in &mut scaled.nodes {
            node.own *= by;
            node.setting = node.setting.saturating_mul(by);
        }
        scaled
    }

    /// The same as counters.
    fn grow(&self) -> Vec<PageCounter> {
        let config = CounterConfig::new()
            .batch(0)
            .audit(true)
            .recursive_protection(self.recursive);
        let mut counters = vec![PageCounter::root(config)];
        for node in &self.nodes[1..] {
            counters.push(counters[node.parent].child());
        }
        for (counter, node) in counters.iter().zip(&self.nodes) {
            counter.set_min(node.setting);
            counter.set_low(node.setting);
            counter.force_charge(node.own);
        }
        counters
    }
}

/// The units that a counter keeps against pressure on another, by either protection.
fn kept(counter: &PageCounter, target: &PageCounter) -> u128 {
    let min = counter.effective_min(target);
    let low = counter.effective_low(target);
    assert_eq!(min, low, "the same settings");
    u128::from(min.min(counter.usage()))
}

fn sizes(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0), 6 => 0..100_u64, 3 => 0..most, 1 => Just(most)]
}

fn trees(most: u64) -> impl Strategy<Value = Tree> {
    let settings = prop_oneof![6 => sizes(most), 1 => Just(u64::MAX)];
    let node = (any::<usize>(), sizes(most), settings);
    (prop::collection::vec(node, 2..12), any::<bool>()).prop_map(|(raw, recursive)| {
        let nodes = raw
            .into_iter()
            .enumerate()
            .map(|(at, (parent, own, setting))| {
                // Rather deep than broad.
                let parent = if at < 2 {
                    0
                } else {
                    at - 1 - parent % at.min(3)
                };
                Node {
                    parent,
                    own,
                    setting,
                }
            });
        Tree {
            nodes: nodes.collect(),
            recursive,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..crate::config() })]

    /// Each level against each target above it, up to numbers whose products need all of 128 bits.
    #[test]
    fn as_the_kernels_formula(tree in trees(1 << 58)) {
        let counters = tree.grow();
        for at in 0..counters.len() {
            for target in (0..=at).filter(|&target| tree.is_within(at, target)) {
                prop_assert_eq!(kept(&counters[at], &counters[target]), tree.kept(at, target), "{} of {}", at, target);
            }
        }
        prop_assert!(counters[0].verify().is_ok());
    }

    /// If the children claim more than their parent has, they get no more than that, each no more
    /// than it claims.
    #[test]
    fn never_more_than_the_parent_has(tree in trees(1 << 40)) {
        let counters = tree.grow();
        for parent in 0..counters.len() {
            for target in (0..parent).filter(|&target| tree.is_within(parent, target)) {
                let above = u128::from(counters[parent].effective_min(&counters[target]));
                let claimed: u128 = tree.children(parent).map(|at| tree.protected(at)).sum();
                let got: u128 = tree.children(parent).map(|at| kept(&counters[at], &counters[target])).sum();
                prop_assert!(got <= above.max(claimed.min(above)), "{got} of {above}, {claimed} claimed");
                if claimed > above {
                    for at in tree.children(parent) {
                        prop_assert!(kept(&counters[at], &counters[target]) <= tree.protected(at));
                    }
                }
            }
        }
    }

    /// A group that sets more is protected by no less.
    #[test]
    fn monotone_in_its_own_setting(tree in trees(1 << 40), at in any::<usize>(), more in sizes(1 << 40)) {
        let counters = tree.grow();
        let at = 1 + at % (counters.len() - 1);
        let targets: Vec<At> = (0..at).filter(|&target| tree.is_within(at, target)).collect();
        let before: Vec<u128> = targets.iter().map(|&target| kept(&counters[at], &counters[target])).collect();
        let setting = tree.nodes[at].setting.saturating_add(more);
        counters[at].set_min(setting);
        counters[at].set_low(setting);
        for (before, target) in before.into_iter().zip(targets) {
            let after = kept(&counters[at], &counters[target]);
            prop_assert!(after >= before, "{after} after {before} against {target}");
        }
    }

    /// Everything times k: the protection times k, but for what each level rounds down.
    #[test]
    fn the_same_at_every_scale(tree in trees(1 << 20), by in 2..1_000_u64) {
        let scaled = tree.scaled(by);
        let counters = tree.grow();
        let larger = scaled.grow();
        for at in 0..counters.len() {
            for target in (0..=at).filter(|&target| tree.is_within(at, target)) {
                let small = kept(&counters[at], &counters[target]);
                let large = kept(&larger[at], &larger[target]);
                let by = u128::from(by);
                let rounded = counters.len() as u128;
                prop_assert!(large >= small * by && large <= (small + rounded) * by, "{small} times {by} is {large}");
            }
        }
    }
}
