//! `GroupSpec`: a tree of groups with its limits as plain data, as a configuration file has it.

mod apply;
mod changes;
#[cfg(feature = "serde")]
mod serde;

use std::collections::BTreeMap;
use std::fmt;

pub use self::changes::{GroupChange, SpecChanges};
use super::error::{CreateError, LimitError, NameError};
use super::handle::Group;
use super::limits::{ContradictionError, Limits};
use crate::hierarchy::names;
use crate::state::applied::Settings;
use crate::state::name::beginning;
use crate::state::oom::OomPolicy;
use crate::units::{Bytes, Percent};

/// A group with its limits, its [`OomPolicy`] and the groups below it, as a configuration file has
/// them. [`apply`](Self::apply) brings a tree to what the file says, at the start of a program and
/// each time that the file changes.
///
/// With the feature `serde` any format can hold it. The keys of a group are the fields of
/// [`Limits`], `oom_policy` and `groups`. Any other key is refused with the path of its group, and
/// so are limits that [contradict](Limits::check) each other, and names that no group can have.
///
/// ```
/// # #[cfg(feature = "serde")] {
/// use memcg::{GroupSpec, Runtime};
///
/// let file = r#"{
///     "max": "1 GiB",
///     "groups": {
///         "acme": { "max": "50%", "oom_policy": "choose", "groups": { "batch": { "share": 1 } } },
///         "globex": { "max": "256 MiB", "low": "64 MiB" }
///     }
/// }"#;
/// let runtime = Runtime::builder().build()?;
/// let spec: GroupSpec = serde_json::from_str(file)?;
/// assert_eq!(spec.apply(&runtime.root())?.created.len(), 3);
/// assert_eq!(runtime.group("/acme").unwrap().max(), 512 << 20);
///
/// // The file is read again: one limit is another one, one is gone.
/// let spec: GroupSpec = serde_json::from_str(&file.replace(", \"low\": \"64 MiB\"", "").replace("50%", "25%"))?;
/// let changes = spec.apply(&runtime.root())?;
/// assert_eq!(changes.to_string(), "/acme: max 50% -> 25%\n/globex: low 64 MiB -> 0 B\n");
///
/// let wrong = serde_json::from_str::<GroupSpec>(&file.replace("share", "shares")).unwrap_err();
/// assert!(wrong.to_string().starts_with("/acme/batch: unknown field `shares`, expected one of `min`, `low`"));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A program can also write one itself:
///
/// ```
/// use memcg::{GroupSpec, Limits, Runtime};
///
/// let tenant = GroupSpec::new().limits(Limits::new().max(64 << 20));
/// let spec = GroupSpec::new().group("acme", tenant.clone()).group("globex", tenant);
/// let runtime = Runtime::builder().build()?;
/// spec.apply(&runtime.root())?;
/// assert_eq!(runtime.group("/globex").unwrap().max(), 64 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "no group is as it says before `apply`"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(::serde::Serialize))]
#[non_exhaustive]
pub struct GroupSpec {
    /// The limits of the group. A limit that is not named here is left as it is, or unset if an
    /// earlier spec had set it: see [`apply`](Self::apply).
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub limits: Limits,
    /// What happens to charges that the max of the group refuses: see [`Group::set_oom_policy`].
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub oom_policy: Option<OomPolicy>,
    /// The groups directly below, by their names.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "BTreeMap::is_empty"))]
    pub groups: BTreeMap<String, GroupSpec>,
}

/// Options of [`GroupSpec::apply_with`]. With the default it does what [`GroupSpec::apply`] does.
///
/// ```
/// use memcg::{ApplyOptions, GroupSpec, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// GroupSpec::new().group("acme", GroupSpec::new()).apply(&runtime.root())?;
/// let changes = GroupSpec::new().apply_with(&runtime.root(), ApplyOptions::new().prune(true))?;
/// assert_eq!(changes.to_string(), "/acme: offline\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an argument of `GroupSpec::apply_with`"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    prune: bool,
    keep_excess: bool,
}

impl ApplyOptions {
    /// Makes the options of [`GroupSpec::apply`].
    pub fn new() -> ApplyOptions {
        ApplyOptions::default()
    }

    /// Sets whether groups that an earlier spec created, and this one does not have, are taken
    /// offline with all groups below them. Off by default. Groups that the program has created stay
    /// in any case, such as those of queries below a tenant that stays.
    pub fn prune(mut self, prune: bool) -> ApplyOptions {
        self.prune = prune;
        self
    }

    /// Sets whether a lowered max stands even if the group holds more and reclaim freed too little:
    /// its charges are then refused until enough is given back, as after [`Group::set_max`].
    /// [`SpecChanges::above_max`] then has the group. Off by default: it is an error, and the
    /// earlier limits are back.
    pub fn keep_excess(mut self, keep: bool) -> ApplyOptions {
        self.keep_excess = keep;
        self
    }
}

/// Why a [`GroupSpec`] was not applied. All limits are as they were before the call.
///
/// ```
/// use memcg::errors::SpecError;
/// use memcg::{GroupSpec, Limit, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let spec = GroupSpec::new().group("acme", GroupSpec::new().limits(Limits::new().max(Limit::percent(50))));
/// let error = spec.apply(&runtime.root()).unwrap_err();
/// assert!(matches!(error, SpecError::PercentOfNothing { .. }));
/// assert_eq!(error.to_string(), "/acme: no group above has a max for max 50%: set one, or bytes here");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SpecError {
    /// A group has a name that is not allowed.
    Name {
        /// The path of the group that was to be its parent.
        parent: String,
        /// The name; of one that is too long the beginning.
        name: String,
        /// The fault of the name.
        fault: NameError,
    },
    /// Groups are nested deeper than [`GroupSpec::DEPTH_MAX`].
    TooDeep {
        /// The path of the first group that is too deep.
        path: String,
    },
    /// Two limits of a group contradict each other.
    Contradiction {
        /// The path of the group.
        path: String,
        /// The two.
        fault: ContradictionError,
    },
    /// The name of a [setting](Limits::setting) is not allowed.
    Setting {
        /// The path of the group.
        path: String,
        /// The fault of the name.
        fault: NameError,
    },
    /// A limit is a percentage, and no group above would have a max that it could be a part of.
    PercentOfNothing {
        /// The path of the group.
        path: String,
        /// Which limit.
        limit: &'static str,
        /// The percentage.
        percent: Percent,
    },
    /// A limit cannot be set: the group exists without
    /// [`cover_allocations`](Limits::cover_allocations), or the max of a percentage was unset
    /// meanwhile.
    Limit(LimitError),
    /// A group was not created.
    Create(CreateError),
    /// A group is offline, or went offline meanwhile.
    Offline {
        /// The group.
        group: Group,
    },
    /// A group holds more than its new max, and reclaim freed too little. What reclaim has freed
    /// stays freed.
    AboveMax {
        /// The group.
        group: Group,
        /// The max that it was to have, in bytes.
        max: u64,
        /// Bytes that it held above that.
        excess: u64,
    },
    /// Another spec is being applied to a group of this runtime.
    Busy,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name {
                parent,
                name,
                fault,
            } => write!(
                f,
                "cannot create {:?} in {parent}: {fault}",
                beginning(name)
            ),
            Self::TooDeep { path } => write!(
                f,
                "{path}: a spec has at most {} levels of groups",
                GroupSpec::DEPTH_MAX
            ),
            Self::Contradiction { path, fault } => {
                write!(f, "{path}: {fault}; change one of the two")
            }
            Self::Setting { path, fault } => write!(f, "cannot name a setting for {path}: {fault}"),
            Self::PercentOfNothing {
                path,
                limit,
                percent,
            } => write!(
                f,
                "{path}: no group above has a max for {limit} {percent}: set one, or bytes here"
            ),
            Self::Limit(inner) => fmt::Display::fmt(inner, f),
            Self::Create(inner) => fmt::Display::fmt(inner, f),
            Self::Offline { group } => write!(
                f,
                "{} is offline: apply the spec again, to a group that is online",
                group.shown_path()
            ),
            Self::AboveMax { group, max, excess } => write!(
                f,
                "{} holds {} above max {}, and reclaim frees no more: release memory in it, or \
                 let its max stand with keep_excess",
                group.shown_path(),
                Bytes(*excess),
                Bytes(*max)
            ),
            Self::Busy => f.write_str(
                "another spec is being applied in this runtime: apply this one after it",
            ),
        }
    }
}

impl std::error::Error for SpecError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Name { fault, .. } | Self::Setting { fault, .. } => Some(fault),
            Self::Contradiction { fault, .. } => Some(fault),
            Self::Limit(inner) => Some(inner),
            Self::Create(inner) => Some(inner),
            _ => None,
        }
    }
}

impl GroupSpec {
    /// The most levels of groups below that of the spec.
    pub const DEPTH_MAX: usize = 32;

    /// Makes a spec that says nothing of its group, and has no groups below.
    pub fn new() -> GroupSpec {
        GroupSpec::default()
    }

    /// Sets the limits of the group.
    pub fn limits(mut self, limits: Limits) -> GroupSpec {
        self.limits = limits;
        self
    }

    /// Sets what happens to charges that the max of the group refuses.
    pub fn oom_policy(mut self, policy: OomPolicy) -> GroupSpec {
        self.oom_policy = Some(policy);
        self
    }

    /// Adds a group directly below. It takes the place of one that has the name already.
    pub fn group(mut self, name: impl Into<String>, spec: GroupSpec) -> GroupSpec {
        self.groups.insert(name.into(), spec);
        self
    }

    /// Looks for what is wrong with the spec itself, whatever tree it is for.
    /// [`apply`](Self::apply) begins with it, and so does the feature `serde` when it reads one.
    ///
    /// # Errors
    ///
    /// [`SpecError::Name`], [`TooDeep`](SpecError::TooDeep),
    /// [`Contradiction`](SpecError::Contradiction) and [`Setting`](SpecError::Setting), with paths
    /// from the spec's own group on.
    ///
    /// ```
    /// use memcg::{GroupSpec, Limits};
    ///
    /// let contradicts = GroupSpec::new().limits(Limits::new().low(2 << 20).max(1 << 20));
    /// let error = GroupSpec::new().group("acme", contradicts).check().unwrap_err();
    /// assert_eq!(error.to_string(), "/acme: low 2 MiB is above max 1 MiB: no usage is above max; change one of the two");
    /// ```
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_at(&SpecPath::TOP)
    }

    fn check_at(&self, path: &SpecPath<'_>) -> Result<(), SpecError> {
        self.check_limits(path)?;
        for (name, below) in &self.groups {
            below.check_at(&path.below(name)?)?;
        }
        Ok(())
    }

    fn check_limits(&self, path: &SpecPath<'_>) -> Result<(), SpecError> {
        self.limits
            .check()
            .map_err(|fault| SpecError::Contradiction {
                path: path.to_string(),
                fault,
            })?;
        self.limits.setting_fault().map_or(Ok(()), |fault| {
            Err(SpecError::Setting {
                path: path.to_string(),
                fault,
            })
        })
    }

    /// The settings that are named here.
    fn settings(&self) -> Settings {
        self.limits
            .settings()
            .and(Settings::OOM_POLICY.only_if(self.oom_policy.is_some()))
    }
}

/// The place of a group in a spec. It prints as the path of the group does. All names in it are
/// those of groups.
struct SpecPath<'a> {
    /// The path of the group that the spec is applied to; empty for the root, and where that is not
    /// known.
    top: &'a str,
    below: Option<(&'a SpecPath<'a>, &'a str)>,
    depth: usize,
}

impl<'a> SpecPath<'a> {
    const TOP: SpecPath<'static> = SpecPath::of("");

    const fn of(top: &str) -> SpecPath<'_> {
        SpecPath {
            top,
            below: None,
            depth: 0,
        }
    }

    fn below(&'a self, name: &'a str) -> Result<SpecPath<'a>, SpecError> {
        if let Some(fault) = NameError::of_group(name) {
            return Err(SpecError::Name {
                parent: self.to_string(),
                name: beginning(name).into_owned(),
                fault,
            });
        }
        let path = SpecPath {
            top: self.top,
            below: Some((self, name)),
            depth: self.depth + 1,
        };
        // Before anything goes further down: each level is a frame of a recursion here, and of
        // others later.
        if path.depth > GroupSpec::DEPTH_MAX {
            return Err(SpecError::TooDeep {
                path: path.to_string(),
            });
        }
        Ok(path)
    }

    fn write(&self, path: &mut String) {
        if let Some((above, name)) = self.below {
            above.write(path);
            path.push('/');
            path.push_str(name);
        } else {
            path.push_str(self.top);
        }
    }
}

impl fmt::Display for SpecPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut path = String::new();
        self.write(&mut path);
        if path.is_empty() {
            path.push('/');
        }
        f.write_str(&names::shortened(path))
    }
}
