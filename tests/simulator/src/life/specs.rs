//! What a program sets, and what trees say that are applied time and again, to groups of a tree of
//! its own: each setting is known, and whose it is, and each tree tells all that it has changed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memcg::errors::{CreateError, NameError, SpecError};
use memcg::{
    ApplyOptions, Bytes, Charge, Group, GroupSpec, Limit, Limits, OomPolicy, Percent, Reclaim,
    ReclaimContext, ReclaimPriority, Registration, Runtime,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use crate::configuration::SETTING;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What, pick};

/// Groups have few names, so that a tree finds those that are there.
const NAMES: [&str; 3] = ["a", "7", "c"];

/// Most groups at a time: some trees have more.
const MOST: u32 = 8;

/// Levels of groups that a tree names.
const DEPTH: usize = 2;

/// Settings by their names, in the order in which a tree tells of them.
const SETTINGS: [&str; 12] = [
    "min",
    "low",
    "high",
    "max",
    "soft",
    "share",
    "reclaim_above",
    "elevated",
    "critical",
    "importance",
    "setting",
    "oom_policy",
];
const MIN: usize = 0;
const LOW: usize = 1;
const HIGH: usize = 2;
const MAX: usize = 3;
const SOFT: usize = 4;
const SHARE: usize = 5;
const MARK: usize = 6;
const ELEVATED: usize = 7;
const CRITICAL: usize = 8;
const IMPORTANCE: usize = 9;
const NAME: usize = 10;
const POLICY: usize = 11;

/// Those that may be a part of a max.
const KINDS: [usize; 6] = [MIN, LOW, HIGH, MAX, SOFT, MARK];

/// The value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Limit(Limit),
    Number(u32),
    Percent(Percent),
    Name(&'static str),
    Policy(OomPolicy),
}

/// The settings of a group, or those that somebody names.
type Settings = [Option<Said>; SETTINGS.len()];

const NOTHING: Settings = [None; SETTINGS.len()];

impl Life {
    pub(super) fn specs(&mut self, op: &Op) {
        let What::Specs(steps, seed) = op.1 else {
            unreachable!("trees that are applied");
        };
        let lived = self.actor(op).run(move || Tree::live(steps, seed));
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}

/// What nobody has set.
fn default_of(setting: usize) -> Option<Said> {
    match setting {
        MIN | LOW => Some(Said::Limit(Limit::Bytes(0))),
        HIGH | MAX | SOFT | MARK => Some(Said::Limit(Limit::Unlimited)),
        SHARE => Some(Said::Number(0)),
        ELEVATED | CRITICAL => Percent::new(0).map(Said::Percent),
        POLICY => Some(Said::Policy(OomPolicy::Inherit)),
        _ => None,
    }
}

fn defaults() -> Settings {
    std::array::from_fn(default_of)
}

fn has_share(settings: &Settings) -> bool {
    matches!(settings[SHARE], Some(Said::Number(1..)))
}

/// As a group has them. The soft limit that comes of a share is no setting.
fn settings_of(group: &Group) -> Settings {
    let limits = group.limits();
    let limit = |limit: Option<Limit>| Some(Said::Limit(limit.unwrap_or(Limit::Unlimited)));
    let percent = |of: Option<Percent>| of.or(Percent::new(0)).map(Said::Percent);
    let soft = limits.soft.filter(|_| limits.share.unwrap_or(0) == 0);
    [
        limit(limits.min),
        limit(limits.low),
        limit(limits.high),
        limit(limits.max),
        limit(soft),
        Some(Said::Number(limits.share.unwrap_or(0))),
        limit(limits.reclaim_above),
        percent(limits.elevated),
        percent(limits.critical),
        limits.importance.map(|of| Said::Number(of.into())),
        limits.setting_name().map(Said::Name),
        Some(Said::Policy(group.oom_policy())),
    ]
}

fn limits_of(settings: &Settings) -> Limits {
    let mut limits = Limits::new();
    for (setting, said) in settings.iter().enumerate() {
        match (setting, *said) {
            (MIN, Some(Said::Limit(to))) => limits.min = Some(to),
            (LOW, Some(Said::Limit(to))) => limits.low = Some(to),
            (HIGH, Some(Said::Limit(to))) => limits.high = Some(to),
            (MAX, Some(Said::Limit(to))) => limits.max = Some(to),
            (SOFT, Some(Said::Limit(to))) => limits.soft = Some(to),
            (MARK, Some(Said::Limit(to))) => limits.reclaim_above = Some(to),
            (SHARE, Some(Said::Number(share))) => limits.share = Some(share),
            (ELEVATED, Some(Said::Percent(of))) => limits.elevated = Some(of),
            (CRITICAL, Some(Said::Percent(of))) => limits.critical = Some(of),
            (IMPORTANCE, Some(Said::Number(of))) => limits.importance = Some(of as u8),
            (NAME, Some(Said::Name(name))) => limits = limits.setting(name),
            _ => {}
        }
    }
    limits
}

/// A setting as a tree tells it; `None`: none.
fn told(settings: &Settings, setting: usize) -> Option<String> {
    match settings[setting]? {
        Said::Limit(Limit::Unlimited) | Said::Number(0) if setting != IMPORTANCE => None,
        Said::Limit(_) if setting == SOFT && has_share(settings) => None,
        Said::Limit(to) => Some(to.to_string()),
        Said::Number(of) => Some(of.to_string()),
        Said::Percent(of) => Some(of.to_string()).filter(|_| of.get() > 0),
        Said::Name(name) => Some(name.to_string()),
        Said::Policy(OomPolicy::Choose) => Some("choose".to_string()),
        Said::Policy(OomPolicy::Refuse) => Some("refuse".to_string()),
        Said::Policy(_) => Some("inherit".to_string()),
    }
}

/// What one of those says about the others cannot be.
fn contradict(settings: &Settings) -> bool {
    let pairs = [
        (HIGH, MAX),
        (SOFT, MAX),
        (MIN, MAX),
        (LOW, MAX),
        (MARK, MAX),
        (MIN, HIGH),
        (LOW, HIGH),
        (MIN, SOFT),
        (LOW, SOFT),
    ];
    let is_above = |(lower, upper): (usize, usize)| match (settings[lower], settings[upper]) {
        // Of its own max.
        (Some(Said::Limit(Limit::Percent(_))), _) if lower == MARK => false,
        (Some(Said::Limit(lower)), Some(Said::Limit(upper))) => match (lower, upper) {
            (Limit::Bytes(lower), Limit::Bytes(upper)) => lower > upper,
            (Limit::Percent(lower), Limit::Percent(upper)) => lower > upper,
            _ => false,
        },
        _ => false,
    };
    let of = |setting: usize| match settings[setting] {
        Some(Said::Percent(of)) => of.get(),
        _ => 0,
    };
    let critical = of(CRITICAL);
    pairs.into_iter().any(is_above) || critical > 0 && of(ELEVATED) > critical
}

/// It gives what it is asked for, and applies trees of its own meanwhile.
struct Gives {
    held: Mutex<Charge>,
    group: Group,
    /// A tree is being applied.
    applies: AtomicBool,
    fault: Mutex<Option<String>>,
}

impl Gives {
    fn held(&self) -> MutexGuard<'_, Charge> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes(&self) -> u64 {
        self.held().bytes()
    }

    /// One tree at a time, however often another one is refused meanwhile.
    fn apply(&self) {
        for _ in 0..2 {
            let applied = GroupSpec::new().apply(&self.group);
            if !matches!(applied, Err(SpecError::Busy)) {
                let fault = format!("a tree beside one that is being applied: {applied:?}");
                *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
            }
        }
    }
}

impl Reclaim for Gives {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        if self.applies.load(Ordering::SeqCst) {
            self.apply();
        }
        self.held().shrink(Bytes(want))
    }
}

/// A group of the tree.
struct Node {
    group: Group,
    parent: Option<usize>,
    name: &'static str,
    online: bool,
    set: Settings,
    /// Settings that a tree has set, and nobody since.
    marks: BTreeSet<usize>,
    /// A tree has made it.
    is_made: bool,
    observes: bool,
    /// `min`, `low`, `high`, `max` and `soft` in bytes.
    bytes: [u64; 5],
    held: Vec<Charge>,
}

/// What is said of a group, and of those below it.
struct Wanted {
    set: Settings,
    below: Vec<(&'static str, Wanted)>,
}

impl Wanted {
    fn spec(&self) -> GroupSpec {
        let spec = GroupSpec::new().limits(limits_of(&self.set));
        let spec = match self.set[POLICY] {
            Some(Said::Policy(policy)) => spec.oom_policy(policy),
            _ => spec,
        };
        let with = |spec: GroupSpec, (name, below): &(&'static str, Wanted)| {
            spec.group(*name, below.spec())
        };
        self.below.iter().fold(spec, with)
    }

    /// The paths of those that contradict.
    fn contradicting(&self, path: &str, paths: &mut Vec<String>) {
        if contradict(&self.set) {
            paths.push(path.to_string());
        }
        let above = path.trim_end_matches('/');
        for (name, below) in &self.below {
            below.contradicting(&format!("{above}/{name}"), paths);
        }
    }

    fn contradicts(&self) -> bool {
        contradict(&self.set) || self.below.iter().any(|(_, below)| below.contradicts())
    }
}

struct Tree {
    runtime: Runtime,
    nodes: Vec<Node>,
    /// It has something to give: then no group is protected, and none is reclaimed in the
    /// background.
    cache: Option<(Arc<Gives>, usize, Registration)>,
    /// What is set by now is not known.
    is_over: bool,
}

impl Tree {
    fn live(steps: u8, seed: u64) -> Holds {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let runtime = Runtime::builder().batch(0).groups_max(MOST);
        let runtime = runtime.build().expect("a configuration that holds");
        let mut tree = Tree {
            runtime,
            nodes: Vec::new(),
            cache: None,
            is_over: false,
        };
        let root = tree.runtime.root();
        tree.add(root, None, "");
        if rng.random() {
            let group = tree.create(rng, 0).unwrap_or(0);
            let held = tree.nodes[group].group.force_charge(0);
            let cache = Arc::new(Gives {
                held: Mutex::new(held),
                group: tree.nodes[group].group.clone(),
                applies: AtomicBool::new(false),
                fault: Mutex::default(),
            });
            let asked = Arc::clone(&cache) as Arc<dyn Reclaim>;
            let registration = tree.nodes[group]
                .group
                .register_reclaimer(asked, ReclaimPriority::NORMAL);
            tree.cache = Some((cache, group, registration));
        }
        for _ in 0..steps {
            tree.step(rng)?;
            if tree.is_over {
                break;
            }
            tree.holds()?;
        }
        tree.cache = None;
        tree.nodes.iter_mut().for_each(|node| node.held.clear());
        ensure_eq!(tree.runtime.root().live(), 0, "live at the end");
        Ok(())
    }

    fn add(&mut self, group: Group, parent: Option<usize>, name: &'static str) -> usize {
        self.nodes.push(Node {
            group,
            parent,
            name,
            online: true,
            set: defaults(),
            marks: BTreeSet::new(),
            is_made: false,
            observes: false,
            bytes: [0, 0, u64::MAX, u64::MAX, u64::MAX],
            held: Vec::new(),
        });
        self.nodes.len() - 1
    }

    fn create(&mut self, rng: &mut Xoshiro256PlusPlus, parent: usize) -> Option<usize> {
        let name = pick(rng, &NAMES);
        let made = self.nodes[parent].group.create(name, Limits::new()).ok()?;
        Some(self.add(made, Some(parent), name))
    }

    // === The naive copy ===

    fn levels(&self, of: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(of), |&of| self.nodes[of].parent)
    }

    fn online(&self) -> Vec<usize> {
        let numbers = 0..self.nodes.len();
        numbers.filter(|&of| self.nodes[of].online).collect()
    }

    fn child(&self, parent: usize, name: &str) -> Option<usize> {
        self.online().into_iter().find(|&of| {
            let node = &self.nodes[of];
            node.parent == Some(parent) && node.name == name
        })
    }

    fn is_observed(&self, of: usize) -> bool {
        self.levels(of).any(|level| self.nodes[level].observes)
    }

    /// Without what a cache has to give.
    fn live_of(&self, top: usize) -> u64 {
        let within = (0..self.nodes.len()).filter(|&of| self.levels(of).any(|level| level == top));
        let held = |of: usize| self.nodes[of].held.iter().map(Charge::bytes).sum::<u64>();
        within.map(held).sum()
    }

    /// The nearest max above.
    fn max_above(&self, of: usize) -> Option<u64> {
        let above = self.levels(of).skip(1);
        above
            .map(|level| self.nodes[level].bytes[MAX])
            .find(|&max| max < u64::MAX)
    }

    /// Parts are those of the maxes above as they are now. A part of nothing has some bytes or
    /// other.
    fn follow(&mut self) {
        // Parents come before their children.
        for of in self.online() {
            for kind in MIN..=SOFT {
                let Some(Said::Limit(limit)) = self.nodes[of].set[kind] else {
                    continue;
                };
                self.nodes[of].bytes[kind] = match limit {
                    Limit::Bytes(bytes) => bytes,
                    Limit::Percent(part) => match self.max_above(of) {
                        Some(max) => part.of(max),
                        None => self.bytes_of(of)[kind],
                    },
                    _ => u64::MAX,
                };
            }
        }
    }

    fn bytes_of(&self, of: usize) -> [u64; 5] {
        let group = &self.nodes[of].group;
        let inspect = group.inspect();
        let (min, low, high) = (inspect.min(), inspect.low(), inspect.high());
        [min, low, high, group.max(), inspect.soft()]
    }

    /// It is said of a group by the program, or by a tree. The soft limit and the share take each
    /// other's place.
    fn say(&mut self, of: usize, wanted: &Settings) {
        let set = &mut self.nodes[of].set;
        for (setting, said) in wanted.iter().enumerate() {
            if said.is_some() && setting != SOFT && setting != SHARE {
                set[setting] = *said;
            }
        }
        let had_share = has_share(set);
        if has_share(wanted) {
            (set[SHARE], set[SOFT]) = (wanted[SHARE], default_of(SOFT));
        } else if wanted[SHARE].is_some() || wanted[SOFT].is_some() {
            set[SHARE] = default_of(SHARE);
            let soft = wanted[SOFT].or_else(|| default_of(SOFT).filter(|_| had_share));
            set[SOFT] = soft.or(set[SOFT]);
        }
    }

    /// All that the groups have.
    fn holds(&mut self) -> Holds {
        self.follow();
        for of in self.online() {
            let node = &self.nodes[of];
            let (found, path) = (settings_of(&node.group), node.group.path());
            for (setting, name) in SETTINGS.into_iter().enumerate() {
                let known = node.set[setting];
                ensure!(
                    found[setting] == known,
                    "{name} of {path} is {:?}, and {known:?} was set",
                    found[setting]
                );
            }
            let kinds = if has_share(&node.set) {
                MIN..=MAX
            } else {
                MIN..=SOFT
            };
            let bytes = self.bytes_of(of);
            for kind in kinds {
                let name = SETTINGS[kind];
                ensure_eq!(bytes[kind], node.bytes[kind], "bytes of {name} of {path}");
            }
        }
        Ok(())
    }

    // === The steps ===

    fn step(&mut self, rng: &mut Xoshiro256PlusPlus) -> Holds {
        let online = self.online();
        let of = pick(rng, &online);
        match rng.random_range(0..12) {
            0..=2 => self.set(rng, of),
            3 => {
                let of = self.marked(rng, MAX).unwrap_or(of);
                self.set_max_now(rng, of)
            }
            4 => {
                let of = self.marked(rng, POLICY).unwrap_or(of);
                let policy = policy(rng);
                self.nodes[of].group.set_oom_policy(policy);
                self.nodes[of].set[POLICY] = Some(Said::Policy(policy));
                self.nodes[of].marks.remove(&POLICY);
                Ok(())
            }
            5 if rng.random_bool(0.3) => self.is_refused(rng, of),
            5 => {
                if let Some(made) = self.create(rng, of) {
                    let found = self.nodes[of].group.child(self.nodes[made].name);
                    ensure!(found.is_some(), "a child that was made is not found");
                }
                Ok(())
            }
            6 if of > 0 && self.cache.as_ref().is_none_or(|(_, it, _)| *it != of) => {
                if self.nodes[of].group.offline().is_ok() {
                    self.nodes[of].online = false;
                }
                Ok(())
            }
            6 => {
                let observes = rng.random();
                self.nodes[of].observes = observes;
                self.nodes[of].group.set_observe_only(observes);
                if observes || self.is_observed(of) {
                    return Ok(());
                }
                // They act from now on.
                self.have_shrunk(|below| self.levels(below).any(|level| level == of), MAX)
            }
            7 => {
                let bytes = pick(rng, &[1, 100, 400, 2_000]);
                match rng.random_range(0..3) {
                    0 => self.nodes[of].held.clear(),
                    _ => {
                        let charge = self.nodes[of].group.force_charge(bytes);
                        self.nodes[of].held.push(charge);
                    }
                }
                Ok(())
            }
            _ => self.apply(rng, of),
        }
    }

    /// A name that cannot be, of a group or of a setting: the error says which, and where.
    fn is_refused(&self, rng: &mut Xoshiro256PlusPlus, of: usize) -> Holds {
        let group = &self.nodes[of].group;
        let (before, path) = (group.children(), group.path());
        let long = "x".repeat(Group::NAME_MAX + 1);
        let (name, fault, is_of_setting) = pick(
            rng,
            &[
                ("", NameError::Empty, true),
                (long.as_str(), NameError::TooLong, true),
                ("a\nb", NameError::Control, true),
                ("a\u{200b}", NameError::Format, true),
                ("a/b", NameError::Slash, false),
                ("#a", NameError::Sharp, false),
                (".", NameError::Dots, false),
                ("..", NameError::Dots, false),
            ],
        );
        let refused = group.create(name, Limits::new()).map(drop);
        let found = match &refused {
            Err(CreateError::Name { parent, fault, .. }) => Some((parent.id(), *fault)),
            _ => None,
        };
        ensure_eq!(found, Some((group.id(), fault)), "{name:?}: {refused:?}");
        if is_of_setting {
            let limits = Limits::new().max(100).setting(name);
            let refused = [
                group
                    .create("new", limits)
                    .map(drop)
                    .map_err(|it| it.to_string()),
                group
                    .set_limits(limits)
                    .map(drop)
                    .map_err(|it| it.to_string()),
            ];
            let told = [format!("\"new\" in {path}"), path]
                .map(|at| Err(format!("cannot name a setting for {at}: {fault}")));
            ensure_eq!(refused, told, "a setting of a name that cannot be");
        }
        let now = group.children();
        ensure_eq!(now.len(), before.len(), "a group of a name that cannot be");
        Ok(())
    }

    /// Often a group that has the setting from a tree.
    fn marked(&self, rng: &mut Xoshiro256PlusPlus, setting: usize) -> Option<usize> {
        let mut online = self.online();
        online.retain(|&of| self.nodes[of].marks.contains(&setting));
        (!online.is_empty() && rng.random_bool(0.7)).then(|| pick(rng, &online))
    }

    fn draw(&self, rng: &mut Xoshiro256PlusPlus, of_root: bool, many: f64) -> Settings {
        let mut wanted = NOTHING;
        for (setting, said) in wanted.iter_mut().enumerate() {
            let is_protected = matches!(setting, MIN | LOW | MARK);
            if !rng.random_bool(many)
                || of_root && setting == SHARE
                || is_protected && self.cache.is_some()
            {
                continue;
            }
            *said = Some(match setting {
                SHARE => Said::Number(pick(rng, &[0, 1, 3])),
                ELEVATED => Said::Percent(percent(pick(rng, &[0, 50, 80]))),
                CRITICAL => Said::Percent(percent(pick(rng, &[0, 60, 90]))),
                IMPORTANCE => Said::Number(rng.random_range(0..3)),
                NAME => Said::Name(pick(rng, &[SETTING, "another"])),
                POLICY => Said::Policy(policy(rng)),
                kind => Said::Limit(limit(rng, kind)),
            });
        }
        wanted
    }

    /// The program sets some.
    fn set(&mut self, rng: &mut Xoshiro256PlusPlus, of: usize) -> Holds {
        let mut wanted = self.draw(rng, of == 0, 0.2);
        wanted[POLICY] = None;
        let parts = KINDS.into_iter().filter(|&kind| {
            let is_part = matches!(wanted[kind], Some(Said::Limit(Limit::Percent(_))));
            let max = match wanted[MAX] {
                Some(Said::Limit(Limit::Bytes(max))) => Some(max),
                Some(Said::Limit(Limit::Percent(_))) => self.max_above(of),
                Some(_) => None,
                None => Some(self.nodes[of].bytes[MAX]).filter(|&max| max < u64::MAX),
            };
            let of_own = kind == MARK && max.is_some();
            is_part && !of_own && self.max_above(of).is_none()
        });
        let is_of_nothing = parts.count() > 0;
        let before: Vec<[u64; 5]> = self.nodes.iter().map(|node| node.bytes).collect();
        let set = self.nodes[of].group.set_limits(limits_of(&wanted));
        ensure_eq!(set.is_err(), is_of_nothing, "{set:?} of {wanted:?}");
        let Ok(above) = set else { return Ok(()) };
        self.say(of, &wanted);
        self.marks_go(of, &wanted);
        self.follow();
        self.fallen_have_shrunk(&before)?;
        if !self.is_observed(of) {
            let live = self.live_of(of);
            let beyond = |kind: usize| {
                let named = wanted[kind].is_some();
                named.then(|| live.saturating_sub(self.nodes[of].bytes[kind]))
            };
            let known = beyond(MAX).into_iter().chain(beyond(HIGH)).max();
            ensure_eq!(above, known.unwrap_or(0), "above the limits {wanted:?}");
        }
        Ok(())
    }

    /// The cache has nothing left for those groups that are above such a limit.
    fn have_shrunk(&self, is_meant: impl Fn(usize) -> bool, kind: usize) -> Holds {
        let Some((cache, within, _)) = &self.cache else {
            return Ok(());
        };
        let has_cache = |of: &usize| self.levels(*within).any(|level| level == *of);
        for of in self.online().into_iter().filter(has_cache) {
            let (most, live, left) = (self.nodes[of].bytes[kind], self.live_of(of), cache.bytes());
            ensure!(
                !is_meant(of) || self.is_observed(of) || left == 0 || live + left <= most,
                "{live} bytes in {}, of {} {most}, and {left} in a cache",
                self.nodes[of].group,
                SETTINGS[kind]
            );
        }
        Ok(())
    }

    /// What has fallen since then the cache has given back, as far as it can.
    fn fallen_have_shrunk(&self, before: &[[u64; 5]]) -> Holds {
        for kind in [MAX, HIGH] {
            let has_fallen = |of: usize| {
                let before = before.get(of).map_or(0, |before| before[kind]);
                self.nodes[of].bytes[kind] < before
            };
            self.have_shrunk(has_fallen, kind)?;
        }
        Ok(())
    }

    fn set_max_now(&mut self, rng: &mut Xoshiro256PlusPlus, of: usize) -> Holds {
        let mut wanted = NOTHING;
        let to = limit(rng, MAX);
        let is_of_nothing = matches!(to, Limit::Percent(_)) && self.max_above(of).is_none();
        let set = self.nodes[of].group.memory().set_max_now(to);
        ensure_eq!(set.is_err(), is_of_nothing, "{set:?} to {to}");
        if set.is_ok() {
            wanted[MAX] = Some(Said::Limit(to));
            self.say(of, &wanted);
            self.marks_go(of, &wanted);
        }
        Ok(())
    }

    /// What the program sets is no tree's any more.
    fn marks_go(&mut self, of: usize, wanted: &Settings) {
        let is_pair = wanted[SOFT].is_some() || wanted[SHARE].is_some();
        self.nodes[of].marks.retain(|&setting| {
            let is_one = setting == SOFT || setting == SHARE;
            wanted[setting].is_none() && !(is_one && is_pair)
        });
    }

    // === A tree ===

    fn draw_tree(&self, rng: &mut Xoshiro256PlusPlus, top: usize, depth: usize) -> Wanted {
        let many = pick(rng, &[0.0, 0.15, 0.3]);
        let set = self.draw(rng, depth == 0 && top == 0, many);
        let mut below = Vec::new();
        for name in NAMES {
            if depth < DEPTH && rng.random_bool(0.4) {
                below.push((name, self.draw_tree(rng, top, depth + 1)));
            }
        }
        // As the tree has them.
        below.sort_by_key(|&(name, _)| name);
        Wanted { set, below }
    }

    /// A part that it names would be one of nothing once all is set.
    fn is_of_nothing(&self, wanted: &Wanted, of: Option<usize>, limited: Option<u64>) -> bool {
        let said = |kind: usize| match wanted.set[kind] {
            Some(Said::Limit(limit)) => Some(limit),
            _ => None,
        };
        let max = match (said(MAX), of) {
            (Some(max), _) => max,
            (None, Some(of)) if !self.nodes[of].marks.contains(&MAX) => {
                match self.nodes[of].set[MAX] {
                    Some(Said::Limit(max)) => max,
                    _ => Limit::Unlimited,
                }
            }
            _ => Limit::Unlimited,
        };
        let max = match max {
            Limit::Bytes(bytes) => Some(bytes),
            Limit::Percent(part) => match (limited, of) {
                (Some(limited), _) => Some(part.of(limited)),
                (None, of) => of.map(|of| self.nodes[of].bytes[MAX]),
            },
            _ => None,
        };
        let is_vain = |kind: usize| {
            let of_own = kind == MARK && max.is_some();
            matches!(said(kind), Some(Limit::Percent(_))) && !of_own && limited.is_none()
        };
        KINDS.into_iter().any(is_vain)
            || wanted.below.iter().any(|(name, below)| {
                let child = of.and_then(|of| self.child(of, name));
                self.is_of_nothing(below, child, max.or(limited))
            })
    }

    fn apply(&mut self, rng: &mut Xoshiro256PlusPlus, top: usize) -> Holds {
        let wanted = self.draw_tree(rng, top, 0);
        let (prunes, keeps) = (rng.random_bool(0.3), rng.random());
        let options = ApplyOptions::new().prune(prunes).keep_excess(keeps);
        if let Some((cache, _, _)) = &self.cache {
            cache
                .held()
                .force_resize(Bytes(pick(rng, &[0, 300, 3_000])));
            cache.applies.store(true, Ordering::SeqCst);
        }
        #[cfg(feature = "adapters")]
        is_written(&wanted.spec())?;
        let applied = wanted.spec().apply_with(&self.nodes[top].group, options);
        if let Some((cache, _, _)) = &self.cache {
            cache.applies.store(false, Ordering::SeqCst);
            let mut fault = cache.fault.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(fault) = fault.take() {
                return Err(fault);
            }
        }
        let limited = self.max_above(top);
        let refuses = wanted.contradicts() || self.is_of_nothing(&wanted, Some(top), limited);
        let told = applied
            .as_ref()
            .err()
            .map(ToString::to_string)
            .unwrap_or_default();
        let changes = match applied {
            Ok(changes) => changes,
            // All is as it was.
            Err(SpecError::Contradiction { path, .. }) if wanted.contradicts() => {
                let mut paths = Vec::new();
                wanted.contradicting(&self.nodes[top].group.path(), &mut paths);
                ensure!(
                    paths.contains(&path) && told.starts_with(&path),
                    "{told}, and not of {paths:?}"
                );
                return Ok(());
            }
            Err(SpecError::PercentOfNothing { path, .. }) if refuses => {
                let of = self.nodes[top].group.path();
                ensure!(path.starts_with(&of), "{told}, and it is applied to {of}");
                return Ok(());
            }
            Err(SpecError::Create(CreateError::Full { most, .. })) if !refuses => {
                ensure_eq!(most, MOST, "groups that there may be");
                self.is_over = self.has_part_of_nothing();
                return Ok(());
            }
            Err(SpecError::AboveMax { group, max, excess }) if !refuses && !keeps => {
                let number = self.nodes.iter().position(|node| node.group == group);
                let live = number.map_or(0, |of| self.live_of(of));
                ensure_eq!(live.saturating_sub(max), excess, "above the max of {group}");
                ensure!(excess > 0, "nothing is above the max of {group}");
                let holds = format!("holds {} above max {}", Bytes(excess), Bytes(max));
                ensure!(told.contains(&holds), "{told}, and not: {holds}");
                self.is_over = self.has_part_of_nothing();
                return Ok(());
            }
            Err(error) => return Err(format!("{error}, of {wanted:?}", wanted = wanted.spec())),
        };
        ensure!(!refuses, "a tree that cannot be: {:?}", wanted.spec());
        let mut lines = Vec::new();
        let before: Vec<[u64; 5]> = self.nodes.iter().map(|node| node.bytes).collect();
        let mut named = Vec::new();
        self.follow_tree(&wanted, top, &mut named, &mut lines)?;
        self.follow();
        self.fallen_have_shrunk(&before)?;
        self.follow_excess(&named, &before, keeps, &mut lines)?;
        if prunes {
            self.follow_prune(&named, before.len(), &mut lines);
        }
        let told = changes.to_string();
        let mut found: Vec<&str> = told.lines().collect();
        found.sort_unstable();
        lines.sort_unstable();
        ensure_eq!(found, lines, "what a tree has changed");
        ensure_eq!(
            changes.is_empty(),
            lines.is_empty(),
            "it has changed nothing"
        );
        Ok(())
    }

    /// A part of a max that is gone cannot be set again, so a tree that fails may leave what it has
    /// set.
    fn has_part_of_nothing(&self) -> bool {
        let is_one = |of: usize| {
            let node = &self.nodes[of];
            let of_own = node.bytes[MAX] < u64::MAX;
            KINDS.into_iter().any(|kind| {
                let is_part = matches!(node.set[kind], Some(Said::Limit(Limit::Percent(_))));
                is_part && !(kind == MARK && of_own) && self.max_above(of).is_none()
            })
        };
        self.online().into_iter().any(is_one)
    }

    fn follow_tree(
        &mut self,
        wanted: &Wanted,
        of: usize,
        named: &mut Vec<(usize, Vec<&'static str>)>,
        lines: &mut Vec<String>,
    ) -> Holds {
        let before = self.nodes[of].set;
        let marks = std::mem::take(&mut self.nodes[of].marks);
        let is_named = |setting: usize| wanted.set[setting].is_some();
        let mut says = wanted.set;
        let names_pair = is_named(SOFT) || is_named(SHARE);
        for setting in marks.into_iter().filter(|&it| !is_named(it)) {
            // A share that takes the place of a soft limit, or the other way round, has done it.
            if !(names_pair && (setting == SOFT || setting == SHARE)) {
                says[setting] = default_of(setting);
                if setting == IMPORTANCE || setting == NAME {
                    self.nodes[of].set[setting] = None;
                }
            }
        }
        self.say(of, &says);
        let numbers = 0..SETTINGS.len();
        self.nodes[of].marks = numbers.clone().filter(|&it| is_named(it)).collect();
        let path = self.nodes[of].group.path();
        let after = self.nodes[of].set;
        let differences = numbers.filter_map(|setting| {
            let (before, after) = (told(&before, setting), told(&after, setting));
            let none = || "none".to_string();
            (before != after).then(|| {
                let pair = [before, after].map(|it| it.unwrap_or_else(none));
                (SETTINGS[setting], pair)
            })
        });
        let differences: Vec<_> = differences.collect();
        let is_new = named.last().is_some_and(|(last, _)| *last == usize::MAX);
        if is_new {
            named.pop();
            let told = differences
                .iter()
                .map(|(name, [_, after])| format!(", {name} {after}"));
            lines.push(format!("{path}: created{}", told.collect::<String>()));
        } else if !differences.is_empty() {
            let told = differences
                .iter()
                .map(|(name, [before, after])| format!(" {name} {before} -> {after}"));
            let told: Vec<String> = told.collect();
            lines.push(format!("{path}:{}", told.join(",")));
        }
        let names = wanted.below.iter().map(|(name, _)| *name).collect();
        named.push((of, names));
        for (name, below) in &wanted.below {
            let child = match self.child(of, name) {
                Some(child) => child,
                None => {
                    let made = self.nodes[of].group.child(*name);
                    let Some(made) = made else {
                        return Err(format!("{name} of {path} was not made"));
                    };
                    let child = self.add(made, Some(of), name);
                    self.nodes[child].is_made = true;
                    named.push((usize::MAX, Vec::new()));
                    child
                }
            };
            self.follow_tree(below, child, named, lines)?;
        }
        Ok(())
    }

    /// What is above a max that has fallen no cache below it has to give.
    fn follow_excess(
        &self,
        named: &[(usize, Vec<&'static str>)],
        before: &[[u64; 5]],
        keeps: bool,
        lines: &mut Vec<String>,
    ) -> Holds {
        for &(of, _) in named.iter().filter(|(of, _)| *of < before.len()) {
            let max = self.nodes[of].bytes[MAX];
            if max >= before[of][MAX] || self.is_observed(of) {
                continue;
            }
            let (path, live) = (self.nodes[of].group.path(), self.live_of(of));
            let excess = live.saturating_sub(max);
            ensure!(excess == 0 || keeps, "{excess} above the max of {path}");
            if excess > 0 {
                lines.push(format!(
                    "{path} holds {} above its max: its charges are refused until it gives them back",
                    Bytes(excess)
                ));
            }
        }
        Ok(())
    }

    fn follow_prune(
        &mut self,
        named: &[(usize, Vec<&'static str>)],
        were: usize,
        lines: &mut Vec<String>,
    ) {
        for (of, names) in named.iter().filter(|(of, _)| *of < were) {
            for child in self.online() {
                let node = &self.nodes[child];
                let is_gone =
                    node.parent == Some(*of) && node.is_made && !names.contains(&node.name);
                if is_gone {
                    lines.push(format!("{}: offline", node.group.path()));
                    for below in self.online() {
                        if self.levels(below).any(|level| level == child) {
                            self.nodes[below].online = false;
                        }
                    }
                }
            }
        }
    }
}

/// What is written of a tree says the same again. What it says twice, or of nothing, is a mistake.
#[cfg(feature = "adapters")]
fn is_written(spec: &GroupSpec) -> Holds {
    let text = serde_json::to_string(spec).map_err(|error| error.to_string())?;
    let read = |text: &str| serde_json::from_str::<GroupSpec>(text);
    match read(&text) {
        // Not what names a setting: that is of the program.
        Ok(again) => ensure_eq!(
            serde_json::to_string(&again).ok().as_deref(),
            Some(text.as_str()),
            "a tree that is written and read"
        ),
        Err(error) => ensure!(spec.check().is_err(), "{error}, of {text}"),
    }
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| error.to_string())?;
    for (key, value) in value.as_object().into_iter().flatten() {
        let twice = read(&format!("{{\"{key}\":{value},{}", &text[1..]));
        ensure!(twice.is_err(), "{key} is there twice in {text}: {twice:?}");
    }
    let other = read(&format!("{{\"other\":1,{}", &text[1..]).replace(",}", "}"));
    ensure!(other.is_err(), "another field beside {text}: {other:?}");
    Ok(())
}

fn percent(of: u8) -> Percent {
    Percent::new(of).expect("a percentage")
}

fn policy(rng: &mut Xoshiro256PlusPlus) -> OomPolicy {
    let all = [OomPolicy::Inherit, OomPolicy::Choose, OomPolicy::Refuse];
    pick(rng, &all)
}

/// Mostly such that it contradicts no other one.
fn limit(rng: &mut Xoshiro256PlusPlus, kind: usize) -> Limit {
    let rare = rng.random_range(0..10);
    match kind {
        _ if rare == 0 => Limit::Unlimited,
        _ if rare < 5 => Limit::Percent(percent(pick(rng, &[10, 50, 80]))),
        MIN | LOW => Limit::Bytes(pick(rng, &[0, 16, 64])),
        HIGH | SOFT | MARK => Limit::Bytes(pick(rng, &[64, 100, 300])),
        _ => Limit::Bytes(pick(rng, &[100, 300, 1_000, 5_000])),
    }
}
