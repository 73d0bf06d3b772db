//! Trees that are applied: groups are made, get limits, and go, all or none.

use memcg::errors::{CreateError, SpecError};
use memcg::{ApplyOptions, Bytes, Group, GroupSpec, Limits, OomPolicy};

use super::callbacks::lock;
use super::tasks::End;
use super::{GROUPS_MADE_MAX, Life};
use crate::configuration::limit;
use crate::script::{Kind, Op, What};

/// What a tree says of a group: its parent in the tree, and its name.
const FORMS: [&[(Option<usize>, u8)]; 4] = [
    &[(None, 0)],
    &[(None, 1), (None, 2)],
    &[(None, 0), (Some(0), 3)],
    &[(None, 3), (Some(0), 0), (Some(0), 1)],
];

type Set = (Limits, OomPolicy);

/// What a tree that is being applied says of groups that are there: for as long as that takes, also where
/// it fails.
pub(super) struct Applying {
    groups: Vec<usize>,
    #[cfg_attr(
        not(feature = "adapters"),
        allow(dead_code, reason = "any wait of the core may be over then")
    )]
    max: u64,
    policy: Option<OomPolicy>,
}

fn is_to_choose(policy: OomPolicy) -> Option<bool> {
    match policy {
        OomPolicy::Choose => Some(true),
        OomPolicy::Refuse => Some(false),
        _ => None,
    }
}

impl Life {
    pub(super) fn apply_tree(&mut self, op: &Op) {
        let What::Apply(group, form, size, prunes) = op.1 else {
            unreachable!("a tree that is applied");
        };
        let form = usize::from(form);
        let named = FORMS[form % FORMS.len()];
        let Some(top) = self.group(group) else {
            return;
        };
        // A tree that says nothing of its own group takes away what an earlier one has set there, unless
        // the program has set it since.
        let is_named = self.twin.groups[top].is_named;
        // Nor has the twin a limit that would be a part of no max when it is taken back.
        let is_part = |group: usize| self.twin.groups[group].has_part();
        let mut existing = self.existing(top, named).into_iter().flatten();
        if is_named || existing.any(is_part) || self.ids.len() + named.len() > GROUPS_MADE_MAX {
            return;
        }
        if let Some(runtime) = &self.runtime {
            runtime.settle();
        }
        self.keeps = true;
        let max = if form / FORMS.len() == 0 {
            u64::MAX
        } else {
            self.bytes(top, 0, size).max(1)
        };
        let soft = max / 2;
        // Some say who may be cancelled, too.
        let policy =
            [None, Some(OomPolicy::Choose), Some(OomPolicy::Refuse)][form / FORMS.len() % 3];
        let limits = Limits::new().max(limit(max)).soft(Bytes(soft));
        let said = |spec: GroupSpec| {
            let spec = spec.limits(limits);
            match policy {
                Some(policy) => spec.oom_policy(policy),
                None => spec,
            }
        };
        let spec = |of: Option<usize>| {
            // A child of a child has no groups.
            let below = |parent: Option<usize>, spec: GroupSpec| {
                let names = named.iter().filter(|(above, _)| *above == parent);
                names.fold(spec, |spec, (_, name)| {
                    spec.group(format!("g{name}"), said(GroupSpec::new()))
                })
            };
            below(of, GroupSpec::new())
        };
        let mut whole = GroupSpec::new();
        for (at, _) in named
            .iter()
            .enumerate()
            .filter(|(_, (above, _))| above.is_none())
        {
            let name = format!("g{}", named[at].1);
            whole = whole.group(name, said(spec(Some(at))));
        }
        let before = self.settings(top, named);
        let options = ApplyOptions::new().prune(prunes);
        let applied = self.on(op, top, move |group| whole.apply_with(group, options));
        self.follow_policies(top, named);
        if applied.is_ok() && prunes {
            // First: what waits there is woken since its group is offline, and not for bytes that it got.
            self.follow_ends(top, named);
        }
        self.waits_may_be_over(top, named);
        *lock(&self.shared.applying) = Some(Applying {
            groups: self.existing(top, named).into_iter().flatten().collect(),
            max,
            policy,
        });
        self.settle_accounts();
        self.poll_unknown();
        *lock(&self.shared.applying) = None;
        if let Err(error) = &applied {
            let after = self.settings(top, named);
            assert_eq!(after, before, "what a tree leaves that fails: {error}");
        }
        match applied {
            Ok(_) => {
                assert!(
                    self.twin.groups[top].online,
                    "below a group that is offline"
                );
                self.follow_tree(top, named, limits, (max, soft));
                self.follow_policies(top, named);
                let settings = self.settings(top, named);
                let is_said = |found: &Option<Set>| {
                    let found = found.as_ref().map(|set| set.1);
                    policy.is_none() || found.is_none() || found == policy
                };
                assert!(
                    settings.iter().all(is_said),
                    "{settings:?}, and not {policy:?}"
                );
            }
            Err(SpecError::Offline { .. }) => {
                assert!(!self.twin.groups[top].online, "it is online");
            }
            Err(SpecError::Create(CreateError::Full { .. })) => {
                self.take_tree_back(top, named, max)
            }
            // A group that goes on charging meanwhile is not there for the twin.
            Err(SpecError::AboveMax { group, max: of, .. }) => {
                let number = self.ids.iter().position(|id| *id == group.id());
                let live = number.map_or(0, |number| self.twin.live(number, 0));
                assert!(
                    of == max && (live > max || !self.shared.is_quiet()),
                    "{live} live of {max}"
                );
                self.take_tree_back(top, named, max);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A group may be cancelled for what lacks memory there, or might be while a tree was applied.
    pub(super) fn may_choose(&self, domain: usize) -> bool {
        let applying = lock(&self.shared.applying);
        for level in self.twin.levels(domain) {
            let applying = applying.as_ref();
            let applying = applying.filter(|it| it.groups.contains(&level));
            let said = applying.and_then(|it| it.policy);
            let set = match said {
                Some(policy) => is_to_choose(policy),
                None => self.twin.groups[level].chooses,
            };
            // What an earlier tree has said, and this one does not, goes.
            let may_go = applying.is_some() && said.is_none();
            match set {
                Some(true) => return true,
                Some(false) if !may_go => return false,
                _ => {}
            }
        }
        false
    }

    /// A level on the way of a group has no room for so many bytes, or had none while a tree was applied.
    #[cfg(feature = "adapters")]
    pub(super) fn never_fitted(&self, group: usize, bytes: u64) -> bool {
        let is_too_small = |it: &Applying| {
            let mut groups = it.groups.iter();
            bytes > it.max && groups.any(|&level| self.twin.is_within(group, level))
        };
        let applying = lock(&self.shared.applying);
        self.twin.never_fits(group, bytes) || applying.as_ref().is_some_and(is_too_small)
    }

    /// A tree lowers maxes for as long as it takes to find out that it fails, or for good: whoever
    /// waits below them may wait in vain then.
    fn waits_may_be_over(&mut self, top: usize, named: &[(Option<usize>, u8)]) {
        let existing: Vec<usize> = self.existing(top, named).into_iter().flatten().collect();
        for task in self.tasks.iter_mut().filter(|task| task.end.is_none()) {
            let mut levels = existing.iter();
            if levels.any(|&level| self.twin.is_within(task.group, level)) {
                task.end = Some(End::Unknown);
            }
        }
    }

    /// What is set in each group of the tree that the run has a handle on.
    fn settings(&self, top: usize, named: &[(Option<usize>, u8)]) -> Vec<Option<Set>> {
        let existing = self.existing(top, named).into_iter();
        let set = |group: Option<usize>| {
            let group = self.handles[group?].first()?;
            Some((group.limits(), group.oom_policy()))
        };
        existing.map(set).collect()
    }

    /// Who may be cancelled a tree says too, or what it no longer says goes. An order of victims stays
    /// where groups are still chosen.
    fn follow_policies(&mut self, top: usize, named: &[(Option<usize>, u8)]) {
        let existing = self.existing(top, named).into_iter().flatten();
        for group in existing.chain([top]).collect::<Vec<_>>() {
            let found = self.found(group);
            let found = found.unwrap_or_else(|| panic!("{} is gone", self.twin.path(group)));
            let chooses = is_to_choose(found.oom_policy());
            self.twin.groups[group].chooses = chooses;
            if chooses != Some(true) {
                let over = self.twin.groups[group].order.take();
                self.orders_over.extend(over);
            }
        }
    }

    /// A handle on the group, also where the run has none.
    fn found(&self, group: usize) -> Option<Group> {
        match self.handles[group].first() {
            Some(handle) => Some(handle.clone()),
            None => {
                let of = &self.twin.groups[group];
                self.found(of.parent?)?.child(&of.name)
            }
        }
    }

    /// The groups of the tree that are there.
    fn existing(&self, top: usize, named: &[(Option<usize>, u8)]) -> Vec<Option<usize>> {
        let mut found: Vec<Option<usize>> = Vec::new();
        for &(above, name) in named {
            let parent = match above {
                Some(above) => found[above],
                None => Some(top),
            };
            let name = format!("g{name}");
            let is_it = |&child: &usize| {
                let child = &self.twin.groups[child];
                child.online && child.name == name
            };
            found.push(parent.and_then(|parent| self.twin.children(parent).find(is_it)));
        }
        found
    }

    /// Each max was set, and is as before. A percentage that has no max again stays as it was last.
    fn take_tree_back(&mut self, top: usize, named: &[(Option<usize>, u8)], max: u64) {
        let existing = self.existing(top, named).into_iter().flatten();
        let before: Vec<(usize, u64)> = existing
            .map(|group| (group, self.twin.groups[group].max[0]))
            .collect();
        for &(group, _) in &before {
            self.tree_sets_max(group, max);
        }
        for (group, before) in before {
            self.tree_sets_max(group, before);
        }
    }

    /// A tree sets nothing that is so already.
    fn tree_sets_max(&mut self, group: usize, max: u64) {
        if self.twin.groups[group].max[0] != max {
            self.set_by_program(group, |twin| twin.set_max(group, 0, max));
        }
    }

    /// The twin does the same.
    fn follow_tree(
        &mut self,
        top: usize,
        named: &[(Option<usize>, u8)],
        limits: Limits,
        (max, soft): (u64, u64),
    ) {
        let existing = self.existing(top, named);
        let mut numbers = Vec::new();
        for &(above, name) in named {
            let parent = above.map_or(top, |above: usize| numbers[above]);
            let found = existing[numbers.len()];
            let name = format!("g{name}");
            let number = match found {
                Some(number) => {
                    self.tree_sets_max(number, max);
                    self.twin.set_limit(number, Kind::Soft, soft, None);
                    number
                }
                None => {
                    let number = self.twin.create(parent, &name, limits);
                    let number = number.expect("no percentage, and no such group");
                    let made = self.found(parent).and_then(|parent| parent.child(&name));
                    let path = || self.twin.path(number);
                    let made = made.unwrap_or_else(|| panic!("{} was not made", path()));
                    self.ids.push(made.id());
                    self.handles.push(vec![made]);
                    self.twin.groups[number].is_applied = true;
                    number
                }
            };
            self.twin.groups[number].is_named = true;
            numbers.push(number);
        }
    }

    /// Groups that an earlier tree has made, and this one does not name, have ended.
    fn follow_ends(&mut self, top: usize, named: &[(Option<usize>, u8)]) {
        let named: Vec<usize> = self.existing(top, named).into_iter().flatten().collect();
        for parent in named.iter().copied().chain([top]) {
            let goes = |&child: &usize| {
                let group = &self.twin.groups[child];
                group.online && group.is_applied && !named.contains(&child)
            };
            let gone: Vec<usize> = self.twin.children(parent).filter(goes).collect();
            gone.into_iter()
                .for_each(|child| self.twin.offline_tree(child));
        }
    }
}
