//! Specs against their naive twin, over random trees, and over limits that the program sets in
//! between.
//!
//! After each step every group has what the twin says, with who has set it; the same spec again
//! changes nothing; a spec that fails leaves all as it was.

use std::collections::BTreeMap;

use memcg::errors::SpecError;
use memcg::{ApplyOptions, Bytes, Group, GroupSpec, Limit, Limits, OomPolicy, Percent, Runtime};
use proptest::prelude::*;

/// What may be set here. No two values contradict each other, and no max is below what is held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Named {
    max: Option<Limit>,
    high: Option<Limit>,
    low: Option<u64>,
    /// A soft limit, or a share above 0.
    soft: Option<Soft>,
    elevated: Option<u8>,
    importance: Option<u8>,
    policy: Option<OomPolicy>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Soft {
    Bytes(u64),
    Share(u32),
    /// The share holds.
    Both(u64, u32),
}

impl Named {
    fn limits(&self) -> Limits {
        let mut limits = Limits::new();
        limits.max = self.max;
        limits.high = self.high;
        limits.low = self.low.map(Limit::Bytes);
        limits.elevated = self.elevated.and_then(Percent::new);
        limits.importance = self.importance;
        match self.soft {
            Some(Soft::Bytes(bytes)) => limits.soft(Limit::Bytes(bytes)),
            Some(Soft::Share(share)) => limits.share(share),
            Some(Soft::Both(bytes, share)) => limits.soft(Limit::Bytes(bytes)).share(share),
            None => limits,
        }
    }
}

#[derive(Clone, Debug)]
struct Tree {
    named: Named,
    groups: BTreeMap<String, Tree>,
}

impl Tree {
    fn spec(&self) -> GroupSpec {
        let mut spec = GroupSpec::new().limits(self.named.limits());
        spec.oom_policy = self.named.policy;
        self.groups
            .iter()
            .fold(spec, |spec, (name, tree)| spec.group(name, tree.spec()))
    }
}

// === The twin ===

/// One setting: its value, and whether a spec has set it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Setting<T>(T, bool);

impl<T: PartialEq + Copy> Setting<T> {
    fn by_spec(&mut self, named: Option<T>, default: T) {
        *self = match named {
            Some(value) => Setting(value, true),
            None if self.1 => Setting(default, false),
            None => *self,
        };
    }

    fn by_program(&mut self, named: Option<T>) {
        if let Some(value) = named {
            *self = Setting(value, false);
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Twin {
    max: Setting<Limit>,
    high: Setting<Limit>,
    low: Setting<u64>,
    soft: Setting<Soft>,
    elevated: Setting<u8>,
    importance: Setting<Option<u8>>,
    policy: Setting<OomPolicy>,
    by_spec: bool,
}

const NO_SOFT: Soft = Soft::Bytes(u64::MAX);

impl Twin {
    fn new(by_spec: bool) -> Twin {
        Twin {
            max: Setting(Limit::Unlimited, false),
            high: Setting(Limit::Unlimited, false),
            low: Setting(0, false),
            soft: Setting(NO_SOFT, false),
            elevated: Setting(0, false),
            importance: Setting(None, false),
            policy: Setting(OomPolicy::Inherit, false),
            by_spec,
        }
    }

    fn root() -> Twin {
        Twin {
            max: Setting(ROOT_MAX, false),
            ..Twin::new(false)
        }
    }

    fn by_spec(&mut self, named: &Named) {
        self.max.by_spec(named.max, Limit::Unlimited);
        self.high.by_spec(named.high, Limit::Unlimited);
        self.low.by_spec(named.low, 0);
        self.soft.by_spec(named.soft.map(without_both), NO_SOFT);
        self.elevated.by_spec(named.elevated, 0);
        self.importance.by_spec(named.importance.map(Some), None);
        self.policy.by_spec(named.policy, OomPolicy::Inherit);
    }

    fn by_program(&mut self, named: &Named) {
        self.max.by_program(named.max);
        self.high.by_program(named.high);
        self.low.by_program(named.low);
        self.soft.by_program(named.soft.map(without_both));
        self.elevated.by_program(named.elevated);
        self.importance.by_program(named.importance.map(Some));
        self.policy.by_program(named.policy);
    }

    fn assert_is(&self, group: &Group) {
        let limits = group.limits();
        let path = group.path();
        assert_eq!(limits.max, Some(self.max.0), "max of {path}");
        assert_eq!(limits.high, Some(self.high.0), "high of {path}");
        assert_eq!(limits.low, Some(Limit::Bytes(self.low.0)), "low of {path}");
        match self.soft.0 {
            Soft::Share(share) => assert_eq!(limits.share, Some(share), "share of {path}"),
            Soft::Bytes(bytes) => {
                assert_eq!(limits.share, None, "share of {path}");
                let soft = if bytes == u64::MAX {
                    Limit::Unlimited
                } else {
                    Limit::Bytes(bytes)
                };
                assert_eq!(limits.soft, Some(soft), "soft of {path}");
            }
            Soft::Both(..) => unreachable!("the share holds"),
        }
        let elevated = Percent::new(self.elevated.0).filter(|percent| percent.get() > 0);
        assert_eq!(limits.elevated, elevated, "elevated of {path}");
        assert_eq!(limits.importance, self.importance.0, "importance of {path}");
        assert_eq!(group.oom_policy(), self.policy.0, "policy of {path}");
    }
}

fn without_both(soft: Soft) -> Soft {
    match soft {
        Soft::Both(_, share) => Soft::Share(share),
        soft => soft,
    }
}

/// By path; that of the root is empty.
type Twins = BTreeMap<String, Twin>;

fn by_spec(twins: &mut Twins, path: &str, tree: &Tree) {
    let twin = twins
        .entry(path.to_owned())
        .or_insert_with(|| Twin::new(true));
    let mut named = tree.named;
    if path.is_empty() {
        // It has no siblings, and no share.
        named.soft = match named.soft {
            Some(Soft::Share(_)) => None,
            Some(Soft::Both(bytes, _)) => Some(Soft::Bytes(bytes)),
            soft => soft,
        };
    }
    twin.by_spec(&named);
    for (name, below) in &tree.groups {
        by_spec(twins, &format!("{path}/{name}"), below);
    }
}

fn prune(twins: &mut Twins, path: &str, tree: &Tree) {
    let gone: Vec<_> = twins
        .iter()
        .filter_map(|(below, twin)| {
            let name = below.strip_prefix(path)?.strip_prefix('/')?;
            (twin.by_spec && !name.contains('/') && !tree.groups.contains_key(name))
                .then(|| below.clone())
        })
        .collect();
    for gone in gone {
        twins.retain(|below, _| *below != gone && !below.starts_with(&format!("{gone}/")));
    }
    for (name, below) in &tree.groups {
        prune(twins, &format!("{path}/{name}"), below);
    }
}

fn find(runtime: &Runtime, path: &str) -> Option<Group> {
    runtime.group(if path.is_empty() { "/" } else { path })
}

fn assert_are(twins: &Twins, runtime: &Runtime) {
    for (path, twin) in twins {
        let group = find(runtime, path).unwrap_or_else(|| panic!("no group {path}"));
        twin.assert_is(&group);
    }
    assert_eq!(runtime.group_count(), twins.len(), "and no others");
}

// === Random steps ===

const ROOT_MAX: Limit = Limit::Bytes(1 << 20);
/// All of it is below each max.
const PINNED: u64 = 100;

#[derive(Clone, Debug)]
enum Step {
    Apply(Tree, bool),
    /// The spec, with a max that a group cannot come to: the nth of its groups.
    Fail(Tree, usize),
    /// The program sets limits of the nth group.
    Set(usize, Named),
    Create(usize, usize),
}

fn named() -> impl Strategy<Value = Named> {
    let max = prop_oneof![
        2 => (1_000..2_000_u64).prop_map(Limit::Bytes),
        1 => (90..100_u8).prop_map(Limit::percent),
    ];
    let high = prop_oneof![
        2 => (800..1_000_u64).prop_map(Limit::Bytes),
        1 => (80..90_u8).prop_map(Limit::percent),
    ];
    let soft = prop_oneof![
        (700..800_u64).prop_map(Soft::Bytes),
        (1..9_u32).prop_map(Soft::Share),
        (700..800_u64, 1..9_u32).prop_map(|(soft, share)| Soft::Both(soft, share)),
    ];
    let policy = prop_oneof![
        Just(OomPolicy::Inherit),
        Just(OomPolicy::Refuse),
        Just(OomPolicy::Choose)
    ];
    let option = proptest::option::of::<BoxedStrategy<Limit>>;
    (
        option(max.boxed()),
        option(high.boxed()),
        proptest::option::of(1..500_u64),
        proptest::option::of(soft),
        proptest::option::of(50..99_u8),
        proptest::option::of(any::<u8>()),
        proptest::option::of(policy),
    )
        .prop_map(
            |(max, high, low, soft, elevated, importance, policy)| Named {
                max,
                high,
                low,
                soft,
                elevated,
                importance,
                policy,
            },
        )
}

const NAMES: [&str; 4] = [
    "a",
    "b",
    "17",
    "long name with blanks and more than 22 bytes",
];

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = named().prop_map(|named| Tree {
        named,
        groups: BTreeMap::new(),
    });
    let nested = leaf.prop_recursive(3, 12, 3, |below| {
        let groups = prop::collection::btree_map(
            prop::sample::select(&NAMES[..]).prop_map(str::to_owned),
            below,
            0..4,
        );
        (named(), groups).prop_map(|(named, groups)| Tree { named, groups })
    });
    // The root's own max stays, so that each percentage is one of something.
    nested.prop_map(|tree| Tree {
        named: Named {
            max: None,
            high: tree
                .named
                .high
                .filter(|high| matches!(high, Limit::Bytes(_))),
            ..tree.named
        },
        ..tree
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (tree(), any::<bool>()).prop_map(|(tree, prune)| Step::Apply(tree, prune)),
        2 => (tree(), any::<usize>()).prop_map(|(tree, nth)| Step::Fail(tree, nth)),
        2 => (any::<usize>(), named()).prop_map(|(nth, named)| Step::Set(nth, named)),
        1 => (any::<usize>(), 0..NAMES.len()).prop_map(|(nth, name)| Step::Create(nth, name)),
    ]
}

fn nth(twins: &Twins, nth: usize) -> String {
    twins
        .keys()
        .nth(nth % twins.len())
        .cloned()
        .unwrap_or_default()
}

fn run(steps: &[Step]) {
    let runtime = Runtime::builder()
        .audit(true)
        .max(ROOT_MAX)
        .batch(Bytes(0))
        .build()
        .expect("a runtime");
    let mut twins = Twins::from([(String::new(), Twin::root())]);
    for step in steps {
        match step {
            Step::Apply(tree, is_pruned) => {
                let options = ApplyOptions::new().prune(*is_pruned);
                tree.spec()
                    .apply_with(&runtime.root(), options)
                    .expect("it holds");
                by_spec(&mut twins, "", tree);
                if *is_pruned {
                    prune(&mut twins, "", tree);
                }
                assert_are(&twins, &runtime);
                let again = tree
                    .spec()
                    .apply_with(&runtime.root(), options)
                    .expect("it holds");
                assert!(again.is_empty(), "{again}");
            }
            Step::Fail(tree, at) => {
                let path = nth(&twins, *at);
                let group = find(&runtime, &path).expect("a group of the twins");
                // An observed or an offline group is never full; the root's own max is not named.
                let _held = group.force_charge(Bytes(PINNED));
                let spec = path.split('/').skip(1).collect::<Vec<_>>();
                let spec = with_max(tree.spec(), &spec);
                let error = spec.apply(&runtime.root()).expect_err("it holds more");
                assert!(matches!(error, SpecError::AboveMax { .. }), "{error}");
            }
            Step::Set(at, named) => {
                let path = nth(&twins, *at);
                let group = find(&runtime, &path).expect("a group of the twins");
                let is_root = path.is_empty();
                let named = Named {
                    max: named.max.filter(|_| !is_root),
                    high: named.high.filter(|_| !is_root),
                    soft: named.soft.filter(|_| !is_root),
                    ..*named
                };
                // Both at once: the program's share holds, too.
                group
                    .set_limits(named.limits())
                    .expect("each has a max above");
                if let Some(policy) = named.policy {
                    group.set_oom_policy(policy);
                }
                twins.get_mut(&path).expect("its twin").by_program(&named);
            }
            Step::Create(at, name) => {
                let path = nth(&twins, *at);
                let group = find(&runtime, &path).expect("a group of the twins");
                let path = format!("{path}/{}", NAMES[*name]);
                if group.create(NAMES[*name], Limits::new()).is_ok() {
                    twins.insert(path, Twin::new(false));
                }
            }
        }
        assert_are(&twins, &runtime);
    }
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
}

/// The group at that path is to hold less than is held there.
fn with_max(mut spec: GroupSpec, path: &[&str]) -> GroupSpec {
    match path {
        [] => {
            // Nothing that contradicts it.
            let policy = spec.oom_policy;
            spec.limits = Limits::new()
                .max(Limit::Bytes(PINNED - 1))
                .high(Limit::Bytes(70));
            spec.oom_policy = policy;
            spec
        }
        [name, below @ ..] => {
            let child = spec.groups.remove(*name).unwrap_or_default();
            spec.group(*name, with_max(child, below))
        }
    }
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn specs_do_what_their_twin_does(steps in prop::collection::vec(step(), 1..12)) {
        run(&steps);
    }
}
