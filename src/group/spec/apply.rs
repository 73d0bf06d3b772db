//! A spec is applied: checked, stored, and only then is anything reclaimed.
//!
//! 1. Check the whole spec, beside the groups that exist. Nothing is changed yet.
//! 2. Store percentages that rise, from the bottom up; what else grants more, from the top down; then
//!    what grants less, from the top down; then create what is missing. All this is quick and runs no foreign code.
//! 3. Reclaim below what was lowered, from the bottom up, so that a tenant's own caches give before
//!    a group above asks all of them.
//!
//! A journal takes it all back if a step fails. In between, a charge is refused only where the old
//! limits or the new ones refuse it: each limit goes from its old value to the new one in one step,
//! those that rise first.
//!
//! Others may set limits meanwhile. A limit is stored, and taken back, under the tree's lock, only
//! where it is still this spec's to set: see [`AppliedSettings`].

use super::super::error::{CreateError, LimitError};
use super::super::handle::Group;
use super::super::limits::Limits;
use super::changes::{GroupChange, SpecChanges};
use super::{ApplyOptions, GroupSpec, SpecError, SpecPath};
use crate::admission::lowered;
use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{group_object, group_tree, importance, limits, setting_names};
use crate::pressure::{throttle, victims};
use crate::state::applied::{AppliedSettings, Settings};
use crate::state::limits::LimitKind;
use crate::state::name::GroupName;
use crate::state::oom::{OomOrder, OomPolicy};
use crate::units::{Limit, Percent};

fn applied(group: &Group) -> &AppliedSettings {
    &group_object::of(group.first()).applied
}

impl GroupSpec {
    /// Brings `group` and the groups below it to what this spec says: all of it, or nothing if a
    /// part is refused. It creates groups that are missing, and returns what has changed. It may
    /// block: in async code call it on a thread for blocking work.
    ///
    /// * A limit that the spec names is set, whoever has set it before.
    /// * A limit that it does not name is unset if an earlier spec has set it, and nobody else has
    ///   set it since. One that the program has set stays, and so does a max that follows the host,
    ///   or a soft limit that is a share. The same holds for a policy.
    /// * A group that the spec does not name stays as it is, with all its limits.
    ///   [`ApplyOptions::prune`] takes those offline that an earlier spec created.
    /// * Where the spec says [`OomPolicy::Choose`], an [order](OomPolicy::by) of the service's own
    ///   stays.
    ///
    /// The spec is checked before anything changes. Then limits that rise are stored, from the top
    /// down, and those that are lowered; missing groups are created; then the bytes above lowered
    /// limits are reclaimed as [`Group::set_limits`] does, from the bottom up. If a group still
    /// holds more than its lowered max, that is an error (unless the options [say
    /// otherwise](ApplyOptions::keep_excess)), and all earlier limits are set again, except one
    /// that somebody else has set meanwhile. Groups that the call created go offline again. What
    /// reclaim has freed, and a group that was cancelled as a victim, do not come back.
    ///
    /// It costs a look at each group of the spec, and for each limit that changes what
    /// [`Group::set_limits`] costs; a spec that changes nothing sets nothing. It blocks if a max or
    /// a high is lowered below usage, for at most
    /// [`reclaim_time`](crate::RuntimeBuilder::reclaim_time) each, and for the victims of a policy
    /// that chooses. Charges go on meanwhile.
    ///
    /// # Errors
    ///
    /// [`SpecError`]. One spec at a time is applied in a runtime; another call meanwhile returns
    /// [`SpecError::Busy`].
    ///
    /// ```
    /// use memcg::{GroupSpec, Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let spec = |limits| GroupSpec::new().group("acme", GroupSpec::new().limits(limits));
    /// spec(Limits::new().max(100).high(80)).apply(&runtime.root())?;
    /// let acme = runtime.group("/acme").unwrap();
    /// acme.set_limits(Limits::new().low(20))?; // by the program
    ///
    /// let changes = spec(Limits::new().max(200)).apply(&runtime.root())?;
    /// assert_eq!(changes.to_string(), "/acme: high 80 B -> none, max 100 B -> 200 B\n", "low stays");
    ///
    /// let _held = acme.charge(150)?;
    /// let refused = spec(Limits::new().max(100)).apply(&runtime.root()).unwrap_err();
    /// assert!(refused.to_string().starts_with("/acme holds 50 B above max 100 B"));
    /// assert_eq!(acme.max(), 200, "as it was");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn apply(&self, group: &Group) -> Result<SpecChanges, SpecError> {
        self.apply_with(group, ApplyOptions::new())
    }

    /// Does what [`apply`](Self::apply) does, with options. It may block, as that does.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply).
    pub fn apply_with(
        &self,
        group: &Group,
        options: ApplyOptions,
    ) -> Result<SpecChanges, SpecError> {
        // The root's own path is `/`: with it, the paths of errors below would begin with two
        // slashes.
        let top = if group.parent().is_none() {
            String::new()
        } else {
            group.path()
        };
        let path = SpecPath::of(&top);
        self.check_at(&path)?;
        // The last step would find this as well, but only once everything had been stored, and would
        // have to be taken back.
        if group.is_offline() {
            return Err(SpecError::Offline {
                group: group.clone(),
            });
        }
        let _turn = ApplyTurn::begin(group).ok_or(SpecError::Busy)?;
        let above = PlanParent {
            parent: 0,
            limited: limited_above(group),
        };
        let mut plan = SpecPlan::default();
        plan.add(self, "", Some(group.clone()), above, &path)?;
        let mut changes = SpecChanges::default();
        if let Err(error) = plan.carry_out(options, &mut changes) {
            plan.take_back();
            return Err(error);
        }
        // Pruning is the last step: it cannot be taken back, and cannot fail.
        plan.report(&mut changes);
        if options.prune {
            plan.prune(&mut changes);
        }
        Ok(changes)
    }
}

/// While it lives no other spec is applied in the runtime. It sets a flag and holds no lock:
/// reclaim runs the program's callbacks, and one that applies a spec gets [`SpecError::Busy`]
/// instead of waiting for itself.
struct ApplyTurn<'a>(&'a Group);

impl ApplyTurn<'_> {
    fn begin(group: &Group) -> Option<ApplyTurn<'_>> {
        let _path = SlowPath::enter();
        let was_busy = std::mem::replace(&mut *group_tree::of(group.first()).applying.lock(), true);
        // One that is made is dropped in any case, and would end the turn of the other spec.
        (!was_busy).then(|| ApplyTurn(group))
    }
}

impl Drop for ApplyTurn<'_> {
    fn drop(&mut self) {
        let _path = SlowPath::enter();
        *group_tree::of(self.0.first()).applying.lock() = false;
    }
}

/// The groups of a spec, parents first, and what was done to them.
#[derive(Default)]
struct SpecPlan<'a> {
    groups: Vec<PlannedGroup<'a>>,
    journal: Vec<DoneStep>,
}

struct PlannedGroup<'a> {
    spec: &'a GroupSpec,
    name: &'a str,
    /// The place of its parent in the plan; that of the first is its own.
    parent: usize,
    /// `None`: it is missing.
    group: Option<Group>,
    /// What it was before, if it existed.
    target: Option<GroupTarget>,
}

/// A group that existed: what it was, and what it is to be.
struct GroupTarget {
    before: Limits,
    /// With the order that the service gave it.
    policy_before: OomOrder,
    applied_before: Settings,
    /// Max and high in bytes.
    bytes_before: [u64; 2],
    /// The values to be stored, defaults for those that are unset among them.
    limits: Limits,
    /// What the spec names.
    named: Settings,
    /// What an earlier spec named, and this one does not.
    dropped: Settings,
    /// Of both: what is not yet as it is to be.
    differs: Settings,
    /// What the first pass has stored, where it had to be.
    passed: Settings,
}

/// What a group of the plan has above it.
#[derive(Clone, Copy)]
struct PlanParent {
    /// The place of its parent.
    parent: usize,
    /// The max that its percentages will be taken of, in bytes.
    limited: Option<u64>,
}

/// A step that can be taken back.
enum DoneStep {
    /// The group at that place of the plan was created.
    Created(usize),
    /// These settings of the group at that place were stored.
    Stored(usize, Settings),
}

const MAX: Settings = Settings::limit(LimitKind::Max);

impl GroupTarget {
    fn new(group: &Group, spec: &GroupSpec) -> Result<GroupTarget, SpecError> {
        if spec.limits.cover_allocations && group.first().cover().is_none() {
            return Err(SpecError::Limit(LimitError::CoversNot {
                group: group.clone(),
            }));
        }
        let (before, applied) = (group.limits(), applied(group).get());
        // The root has no siblings, and so no share.
        let here = |settings: Settings| {
            settings.without(Settings::SHARE.only_if(group.parent().is_none()))
        };
        let named = here(spec.settings());
        let dropped = applied.without(named).without(Settings::CREATED);
        let mut limits = spec.limits.only(here(Settings::ALL));
        // A spec may name both. Then the share holds, and the soft limit is what comes out of it.
        if limits.share.is_some_and(|share| share > 0) {
            limits.soft = None;
        }
        // A soft limit that takes the place of a share unsets it, and a share a soft limit.
        let replaced = Settings::SOFT_OR_SHARE.only_if(named.has(Settings::SOFT_OR_SHARE));
        let limits = limits.filled(dropped.without(replaced));
        let mut target = GroupTarget {
            before,
            policy_before: victims::policy_of(group.first()),
            applied_before: applied,
            bytes_before: bytes_of(group),
            limits,
            named,
            dropped,
            differs: Settings::NONE,
            passed: Settings::NONE,
        };
        target.differs = target.differences(spec);
        Ok(target)
    }

    fn policy_before(&self) -> OomPolicy {
        self.policy_before.policy
    }

    fn differences(&self, spec: &GroupSpec) -> Settings {
        let (before, limits, dropped) = (&self.before, &self.limits, self.dropped);
        let has_share = before.share.is_some_and(|share| share > 0);
        let kinds = before.kinds().into_iter().zip(limits.kinds());
        // Compared as they were set and not in bytes: a percentage that comes to the same bytes
        // today is another setting when the max above moves.
        let kinds = kinds.map(|((kind, before), (_, wanted))| {
            let gives_share_up = kind == LimitKind::Soft && has_share;
            let differs = wanted.is_some() && (before != wanted || gives_share_up);
            Settings::limit(kind).only_if(differs)
        });
        let percent = |percent: Option<Percent>| percent.map_or(0, Percent::get);
        let policy = spec.oom_policy.unwrap_or_default();
        // No value tells whether one of the last three that the spec does not name is to stay or to
        // be unset. So it counts only where this spec names it, or an earlier one did.
        let is_named_or_dropped = |setting| self.named.and(dropped).has(setting);
        let others = [
            (
                Settings::SHARE,
                limits
                    .share
                    .is_some_and(|share| share != before.share.unwrap_or(0)),
            ),
            (
                Settings::ELEVATED,
                limits.elevated.is_some() && percent(limits.elevated) != percent(before.elevated),
            ),
            (
                Settings::CRITICAL,
                limits.critical.is_some() && percent(limits.critical) != percent(before.critical),
            ),
            (
                Settings::IMPORTANCE,
                is_named_or_dropped(Settings::IMPORTANCE) && limits.importance != before.importance,
            ),
            (
                Settings::SETTING_NAME,
                is_named_or_dropped(Settings::SETTING_NAME) && limits.setting != before.setting,
            ),
            (
                Settings::OOM_POLICY,
                is_named_or_dropped(Settings::OOM_POLICY) && policy != self.policy_before(),
            ),
        ];
        let others = others.map(|(setting, differs)| setting.only_if(differs));
        kinds.chain(others).fold(Settings::NONE, Settings::and)
    }

    /// What is stored in the second pass: a max or a high that is lowered, other percentages, and
    /// percentages of a max that is set in the second pass itself. A percentage is one of the max
    /// that is above now. Where that falls later on, the percentage has risen before it.
    fn later(&self, group: &Group) -> Settings {
        // Resolved by the max above as it is at this moment, and not as the spec will leave it: the
        // passes ask again for each group when its turn comes.
        let limited = limited_above(group);
        let is_later = |kind: LimitKind, limit| {
            let before = match kind {
                LimitKind::Max => self.bytes_before[0],
                LimitKind::High => self.bytes_before[1],
                _ => return matches!(limit, Limit::Percent(_)),
            };
            match limit {
                Limit::Bytes(bytes) => bytes < before,
                Limit::Percent(percent) => limited.is_none_or(|max| percent.of(max) < before),
                Limit::Unlimited => false,
            }
        };
        self.limits
            .kinds()
            .into_iter()
            .map(|(kind, limit)| {
                Settings::limit(kind).only_if(limit.is_some_and(|limit| is_later(kind, limit)))
            })
            .fold(Settings::NONE, Settings::and)
    }

    /// A max and a high that are percentages.
    fn percentages(&self) -> Settings {
        let kinds = self.limits.kinds().into_iter();
        kinds
            .filter(|(kind, _)| matches!(kind, LimitKind::Max | LimitKind::High))
            .map(|(kind, limit)| {
                Settings::limit(kind).only_if(matches!(limit, Some(Limit::Percent(_))))
            })
            .fold(Settings::NONE, Settings::and)
    }

    /// Takes back what was stored of these settings. What somebody else has set since stays. Returns those
    /// that were refused: percentages of a max that is not there.
    fn take_back(&self, group: &Group, which: Settings) -> Settings {
        let (first, applied) = (group.first(), applied(group));
        let (touched, differs) = (
            self.named.and(self.dropped).among(which),
            with_pair(self.differs.among(which)),
        );
        let before = self.before;
        let has_share = before.share.is_some_and(|share| share > 0);
        let before = Limits {
            // Beside a share, `limits` has shown the soft limit that came out of it. To store that
            // would end the share, which is put back instead.
            soft: before.soft.filter(|_| !has_share),
            ..before.filled(touched.and(differs)).only(differs)
        };
        // Whoever sets what the spec has unset leaves its mark as it is, clear. For limits the
        // value tells.
        let is_as_stored = |kind, limit: Option<Limit>| {
            !differs.has(Settings::limit(kind))
                || limit.is_none_or(|limit| limits::set_to(first, kind) == limit)
        };
        let due = || {
            // Since `store` the marks of what it touched are those that the spec names. A mark that
            // differs was cleared by somebody who has set the setting since.
            let others = applied.get().differing(self.named).among(touched);
            let changed = self
                .limits
                .kinds()
                .into_iter()
                .map(|(kind, limit)| Settings::limit(kind).only_if(!is_as_stored(kind, limit)));
            with_pair(touched.without(changed.fold(others, Settings::and)))
        };
        let store = |only: Settings| {
            let mut stored = Settings::NONE;
            let also = |due: Settings| {
                let due = due.among(only);
                applied.add(due.among(self.applied_before));
                applied.remove(due.without(self.applied_before));
                stored = due;
            };
            let name = before.setting_if_valid();
            let done = group.store_limits(&before.only(only), name, || due().among(only), also);
            done.map(|()| stored)
        };
        // Together; one by one where the max that a percentage was taken of is not there.
        let mut refused = Settings::NONE;
        let stored = store(Settings::ALL).unwrap_or_else(|_| {
            // A share goes with the soft limit that it takes the place of.
            let each = Settings::each().filter(|&setting| setting != Settings::SHARE);
            let each = each.map(with_pair).map(|setting| {
                store(setting).unwrap_or_else(|_| {
                    refused = refused.and(setting);
                    Settings::NONE
                })
            });
            each.fold(Settings::NONE, Settings::and)
        });
        let stored = stored.among(differs);
        set_importance_and_name(group, &before, stored);
        // Mutation: a-tree-that-fails-leaves-its-policy
        if stored.has(Settings::OOM_POLICY) {
            victims::set_policy(first, self.policy_before.clone());
        }
        refused
    }
}

/// The nearest max above.
fn limited_above(group: &Group) -> Option<u64> {
    let above = group.first().path_to_root().skip(1);
    above.map(|level| level.max()).find(|&max| max < u64::MAX)
}

fn bytes_of(group: &Group) -> [u64; 2] {
    [LimitKind::Max, LimitKind::High].map(|kind| limits::value(group.first(), kind))
}

impl<'a> SpecPlan<'a> {
    /// Adds a group and those below.
    fn add(
        &mut self,
        spec: &'a GroupSpec,
        name: &'a str,
        group: Option<Group>,
        PlanParent { parent, limited }: PlanParent,
        path: &SpecPath<'_>,
    ) -> Result<(), SpecError> {
        let is_dropped = |group: &Group| applied(group).get().has(MAX);
        // The max that the group will have once all is stored: percentages below it are checked
        // against that, before anything has changed.
        let max = match (spec.limits.max, &group) {
            (Some(max), _) => max,
            (None, Some(group)) if !is_dropped(group) => {
                limits::set_to(group.first(), LimitKind::Max)
            }
            (None, _) => Limit::Unlimited,
        };
        let max = match max {
            Limit::Bytes(bytes) => Some(bytes),
            Limit::Unlimited => None,
            // If nothing above has a max any more, it keeps the bytes that it has.
            Limit::Percent(percent) => limited
                .map(|of| percent.of(of))
                .or_else(|| group.as_ref().map(Group::max)),
        };
        for (kind, limit) in spec.limits.kinds() {
            // Reclaim in the background begins at a part of the group's own max, if it has one; all
            // other percentages are parts of a max above.
            let own = max.filter(|_| kind == LimitKind::ReclaimAbove);
            if let Some(Limit::Percent(percent)) = limit
                && own.or(limited).is_none()
            {
                return Err(SpecError::PercentOfNothing {
                    path: path.to_string(),
                    limit: kind.name(),
                    percent,
                });
            }
        }
        let target = group.as_ref().map(|group| GroupTarget::new(group, spec));
        let place = self.groups.len();
        self.groups.push(PlannedGroup {
            spec,
            name,
            parent,
            target: target.transpose()?,
            group: group.clone(),
        });
        let above = PlanParent {
            parent: place,
            limited: max.or(limited),
        };
        for (name, below) in &spec.groups {
            let child = group.as_ref().and_then(|group| group.child(name));
            self.add(below, name, child, above, &path.below(name)?)?;
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        options: ApplyOptions,
        changes: &mut SpecChanges,
    ) -> Result<(), SpecError> {
        let places = 0..self.groups.len();
        // A percentage that rises comes before all that changes above it, from the bottom up: once
        // nothing above has a max, it could rise only after a new max has come, and would lower the
        // group for that moment.
        for place in places.clone().rev() {
            self.store(place, |target, group| {
                target.percentages().without(target.later(group))
            })?;
        }
        for place in places.clone() {
            self.store(place, |target, group| {
                let later = target.later(group);
                Settings::ALL.without(later).without(target.passed)
            })?;
        }
        for place in places.clone() {
            // What is left grants less than before, or is a percentage that would have been
            // refused, or too small, before the maxima above it were stored.
            self.store(place, |target, _| Settings::ALL.without(target.passed))?;
        }
        for place in places.clone() {
            // The maxima that percentages of new groups are parts of are there by now.
            self.create(place)?;
        }
        for place in places.rev() {
            let planned = &self.groups[place];
            if let (Some(target), Some(group)) = (&planned.target, &planned.group) {
                let excess = shrink(group, target);
                if excess > 0 && !options.keep_excess {
                    return Err(SpecError::AboveMax {
                        group: group.clone(),
                        max: group.max(),
                        excess,
                    });
                }
                if excess > 0 {
                    changes.above_max.push((group.clone(), excess));
                }
            }
        }
        // A group that went offline meanwhile has not got its limits: the call would report what
        // does not hold.
        let mut groups = self
            .groups
            .iter()
            .filter_map(|planned| planned.group.as_ref());
        match groups.find(|group| group.is_offline()) {
            Some(group) => Err(SpecError::Offline {
                group: group.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Stores those settings that `which` names, if the group existed.
    fn store(
        &mut self,
        place: usize,
        which: impl Fn(&GroupTarget, &Group) -> Settings,
    ) -> Result<(), SpecError> {
        let planned = &mut self.groups[place];
        let (Some(target), Some(group)) = (&mut planned.target, &planned.group) else {
            return Ok(());
        };
        let (which, applied) = (which(target, group), applied(group));
        target.passed = target.passed.and(which);
        let (named, dropped) = (target.named.among(which), target.dropped.among(which));
        let (differs, marked) = (target.differs.among(which), applied.get());
        // No value changes, and no mark either: a spec that is applied again takes no lock of the
        // tree, and leaves nothing in the journal.
        if differs.is_empty() && named.without(marked).is_empty() && !marked.has(dropped) {
            return Ok(());
        }
        let mut stored = Settings::NONE;
        group
            .store_limits(
                &target.limits.only(differs),
                target.limits.setting_if_valid(),
                // What somebody else has set since the plan is no more the spec's to unset.
                || named.and(dropped.among(applied.get())),
                |due| {
                    applied.add(due.among(named));
                    applied.remove(due.among(dropped));
                    stored = due;
                },
            )
            .map_err(SpecError::Limit)?;
        let unset = stored.among(dropped).among(differs);
        set_importance_and_name(group, &Limits::new(), unset);
        if stored.among(differs).has(Settings::OOM_POLICY) {
            let policy = planned.spec.oom_policy.unwrap_or_default();
            victims::set_policy(group.first(), policy.into());
        }
        self.journal.push(DoneStep::Stored(place, which));
        Ok(())
    }

    /// Creates the group, if it is missing. Its parent comes before it.
    fn create(&mut self, place: usize) -> Result<(), SpecError> {
        let planned = &self.groups[place];
        let (None, Some(parent)) = (&planned.group, &self.groups[planned.parent].group) else {
            return Ok(());
        };
        let spec = planned.spec;
        // Called before another thread sees the group, so nobody's setting can come in between.
        let mark = |group: &Counter| {
            let object = group_object::of(group);
            object.applied.add(spec.settings().and(Settings::CREATED));
            object.oom.set_policy(spec.oom_policy.unwrap_or_default());
        };
        let name = GroupName::Text(planned.name).canonical();
        match parent.create_named(name, spec.limits, &mark) {
            Ok(group) => {
                self.groups[place].group = Some(group);
                self.journal.push(DoneStep::Created(place));
                Ok(())
            }
            // The program was faster: its group is one that exists.
            Err(CreateError::Taken { group }) => {
                let target = GroupTarget::new(&group, spec)?;
                let planned = &mut self.groups[place];
                (planned.target, planned.group) = (Some(target), Some(group));
                // In one step: the maxima above are final by now. If it has groups that the spec
                // names, creating those finds them in the same way.
                self.store(place, |_, _| Settings::ALL)
            }
            Err(error) => Err(SpecError::Create(error)),
        }
    }

    /// Takes all back that was done, the last step first: so limits rise before others fall again.
    fn take_back(&mut self) {
        let mut refused = Vec::new();
        for done in std::mem::take(&mut self.journal).into_iter().rev() {
            match done {
                DoneStep::Created(place) => {
                    // Mutation: a-tree-that-fails-leaves-its-groups
                    if let Some(group) = &self.groups[place].group {
                        group.offline_tree();
                    }
                }
                DoneStep::Stored(place, which) => {
                    let planned = &self.groups[place];
                    if let (Some(target), Some(group)) = (&planned.target, &planned.group) {
                        let left = target.take_back(group, which);
                        refused.push((target, group, left));
                    }
                }
            }
        }
        // Percentages of a max above, which has come back only after them. One whose max the program
        // has unset stays as it is.
        for (target, group, left) in refused {
            if !left.is_empty() {
                target.take_back(group, left);
            }
        }
    }

    fn report(&self, changes: &mut SpecChanges) {
        for planned in &self.groups {
            let Some(group) = &planned.group else {
                continue;
            };
            let Some(target) = &planned.target else {
                changes.created.push(GroupChange {
                    group: group.clone(),
                    before: Limits::new().filled(Settings::ALL),
                    after: group.limits(),
                    oom_policy: Some((OomPolicy::Inherit, group.oom_policy())),
                });
                continue;
            };
            let differs = with_pair(target.differs);
            let only = |limits: Limits| Limits {
                cover_allocations: false,
                ..limits.only(differs)
            };
            let change = GroupChange {
                group: group.clone(),
                before: only(target.before),
                after: only(group.limits()),
                oom_policy: differs
                    .has(Settings::OOM_POLICY)
                    .then(|| (target.policy_before(), group.oom_policy())),
            };
            if change.is_any() {
                changes.changed.push(change);
            }
        }
    }

    fn prune(&self, changes: &mut SpecChanges) {
        for planned in self
            .groups
            .iter()
            // A group that this call has created holds nothing of an earlier spec.
            .filter(|planned| planned.target.is_some())
        {
            for child in planned.group.iter().flat_map(Group::children) {
                let is_named = planned.spec.groups.contains_key(&*child.name());
                // With all that is below it: groups that the program has created there go, too.
                // Mutation: a-tree-ends-groups-of-the-program
                if !is_named && applied(&child).get().has(Settings::CREATED) {
                    child.offline_tree();
                    changes.removed.push(child);
                }
            }
        }
    }
}

/// Either takes the other's place, so both are taken back and shown together.
fn with_pair(settings: Settings) -> Settings {
    settings.and(Settings::SOFT_OR_SHARE.only_if(settings.has(Settings::SOFT_OR_SHARE)))
}

/// Of these settings, those that are missing from `limits` are unset. Neither has a value for that.
fn set_importance_and_name(group: &Group, limits: &Limits, settings: Settings) {
    if settings.has(Settings::IMPORTANCE) && limits.importance.is_none() {
        importance::clear(group.first());
    }
    if settings.has(Settings::SETTING_NAME) && limits.setting_name().is_none() {
        setting_names::clear(group.first());
    }
}

/// Reclaims what is above a max or a high that was lowered. Returns the bytes that stay above the
/// max.
fn shrink(group: &Group, target: &GroupTarget) -> u64 {
    let ([max, high], [max_before, high_before]) = (bytes_of(group), target.bytes_before);
    let mut excess = 0;
    if max < max_before {
        excess = lowered::shrink_to_max(group.first());
        // A max that is only observed asks no group for anything.
        // Mutation: an-excess-that-is-only-observed-fails-a-spec
        if group.first().is_observed() {
            excess = 0;
        }
    }
    if high < high_before {
        // As for a max that is lowered, reclaim may break the `low` of any group, however important.
        throttle::shrink_to_high(group.first(), u8::MAX);
    }
    excess
}
