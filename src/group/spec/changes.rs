//! What an applied spec has changed.

use std::fmt;

use super::super::handle::Group;
use super::super::limits::Limits;
use crate::state::oom::OomPolicy;
use crate::units::Bytes;

/// For a limit that the group does not have.
const NONE: &str = "none";

/// What [`GroupSpec::apply`](crate::GroupSpec::apply) has changed. It prints one line for each
/// group that is not as it was, and nothing if all are.
///
/// ```
/// use memcg::{GroupSpec, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let spec = GroupSpec::new().group("acme", GroupSpec::new().limits(Limits::new().max(64 << 20)));
/// assert_eq!(spec.apply(&runtime.root())?.to_string(), "/acme: created, max 64 MiB\n");
/// assert!(spec.apply(&runtime.root())?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SpecChanges {
    /// Groups that were missing, parents first, each with the limits that it has been given.
    pub created: Vec<GroupChange>,
    /// Groups whose limits or policy are not as they were, parents first.
    pub changed: Vec<GroupChange>,
    /// Groups that were taken [offline](crate::ApplyOptions::prune), without those below them.
    pub removed: Vec<Group>,
    /// Groups that hold more than their lowered max, with the bytes above it: see
    /// [`ApplyOptions::keep_excess`](crate::ApplyOptions::keep_excess).
    pub above_max: Vec<(Group, u64)>,
}

/// A group whose limits or policy a spec has set, with the values before; those of a group that was
/// created are the defaults.
///
/// ```
/// use memcg::{GroupSpec, Limit, Limits, Runtime};
///
/// let runtime = Runtime::builder().max(Limit::mib(8)).build()?;
/// let spec = GroupSpec::new().limits(Limits::new().max(Limit::mib(9)));
/// let changes = spec.apply(&runtime.root())?;
/// let change = &changes.changed[0];
/// assert_eq!((change.before.max, change.after.max), (Some(Limit::mib(8)), Some(Limit::mib(9))));
/// assert_eq!((change.before.low, change.to_string().as_str()), (None, "/: max 8 MiB -> 9 MiB"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupChange {
    /// The group.
    pub group: Group,
    /// The limits that were set, as they were. All others are `None`.
    pub before: Limits,
    /// The same limits, as they are.
    pub after: Limits,
    /// The policy before and after, if it was changed.
    pub oom_policy: Option<(OomPolicy, OomPolicy)>,
}

impl SpecChanges {
    /// Returns true if all groups were already as the spec says.
    pub fn is_empty(&self) -> bool {
        // A group that is above its max has had it lowered, so it is among the changed ones.
        self.created.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

impl fmt::Display for SpecChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for change in &self.created {
            write!(f, "{}: created", change.group.shown_path())?;
            for (name, _, after) in change.differences() {
                write!(f, ", {name} {}", after.as_deref().unwrap_or(NONE))?;
            }
            writeln!(f)?;
        }
        for change in &self.changed {
            writeln!(f, "{change}")?;
        }
        for group in &self.removed {
            writeln!(f, "{}: offline", group.shown_path())?;
        }
        for (group, excess) in &self.above_max {
            let (path, excess) = (group.shown_path(), Bytes(*excess));
            writeln!(
                f,
                "{path} holds {excess} above its max: its charges are refused until it gives them back"
            )?;
        }
        Ok(())
    }
}

impl GroupChange {
    pub(super) fn is_any(&self) -> bool {
        self.differences().next().is_some()
    }

    /// What is not as it was: its name, and both values as text.
    fn differences(&self) -> impl Iterator<Item = (&'static str, Option<String>, Option<String>)> {
        let policy = self.oom_policy.map(|(before, after)| {
            let [before, after] = [before, after].map(|policy| Some(policy.name().to_owned()));
            ("oom_policy", before, after)
        });
        let limits = self.before.texts().into_iter().zip(self.after.texts());
        let limits = limits.map(|((name, before), (_, after))| (name, before, after));
        limits
            .chain(policy)
            .filter(|(_, before, after)| before != after)
    }
}

impl fmt::Display for GroupChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.group.shown_path())?;
        for (number, (name, before, after)) in self.differences().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            let [before, after] = [&before, &after].map(|text| text.as_deref().unwrap_or(NONE));
            write!(f, "{comma} {name} {before} -> {after}")?;
        }
        Ok(())
    }
}
