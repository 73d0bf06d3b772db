//! Groups as a tree: to create a group, to find its relatives, to take it offline.

use std::fmt::Write;

use super::error::{CreateError, LimitError, NameError, OfflineError};
use super::handle::Group;
use super::limits::Limits;
use crate::counter::child_count::HasChildren;
use crate::counter::object;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::limits::NoLimitedAncestor;
use crate::hierarchy::setting_names::SettingName;
use crate::hierarchy::{names, stats};
use crate::lifecycle::create::{self, NewGroup, NotCreated};
use crate::lifecycle::{offline, unowned};
use crate::pressure::pressure_levels;
use crate::stat::visits::UnlistPolicy;
use crate::state::limits::LimitKind;
use crate::state::name::{GroupName, IntoName, beginning};

/// # The tree
impl Group {
    /// The greatest length of a name, in bytes.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let longest = "x".repeat(memcg::Group::NAME_MAX);
    /// assert!(runtime.root().create(&longest, memcg::Limits::new()).is_ok());
    /// assert!(runtime.root().create(&(longest + "x"), memcg::Limits::new()).is_err());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub const NAME_MAX: usize = 255;

    /// Creates a group below this one. Its limits hold from its first charge on. Its name is a
    /// text, a number, which is not formatted before someone asks for it, or none at all: see
    /// [`GroupName`].
    ///
    /// The group stays until it is taken offline; [`scope`](Self::scope) makes one that goes with a
    /// value.
    ///
    /// It costs about half a microsecond, and takes locks only for a moment: threads that create
    /// groups at the same time rarely wait for each other. When its first child is created, a group
    /// also gives its own credit back, which may take a barrier.
    ///
    /// # Errors
    ///
    /// [`CreateError`]: the name is not allowed or taken, this group is offline, the configured most groups exist, the
    /// system gives no memory, or a limit does not hold. Then nothing is created.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(memcg::Limit::mib(512)))?;
    /// let query = acme.create("q17", Limits::new().max(memcg::Limit::percent(25)))?;
    /// assert_eq!((&*query.name(), query.path(), query.max()), ("q17", "/acme/q17".to_string(), 128 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create<'a>(
        &self,
        name: impl IntoName<'a>,
        limits: Limits,
    ) -> Result<Group, CreateError> {
        self.create_named(name.into_name().canonical(), limits, &|_| ())
    }

    /// Returns the child of that name, or creates it with these limits. A child that exists keeps
    /// its own limits. If several threads call it at once, one creates the group and all return it.
    /// An unnamed group is always a new one.
    ///
    /// # Errors
    ///
    /// [`CreateError`], as [`create`](Self::create), but never [`CreateError::Taken`].
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().get_or_create("acme", Limits::new().max(100))?;
    /// assert_eq!(runtime.root().get_or_create("acme", Limits::new().max(7))?, acme);
    /// assert_eq!(acme.max(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_create<'a>(
        &self,
        name: impl IntoName<'a>,
        limits: Limits,
    ) -> Result<Group, CreateError> {
        let name = name.into_name();
        // Mostly it exists, and to find it takes one lock and makes nothing.
        if let Some(child) = self.child(name) {
            return Ok(child);
        }
        match self.create(name, limits) {
            Err(CreateError::Taken { group }) => Ok(group),
            created => created,
        }
    }

    /// Returns the child of that name, `None` if no child that is online has it. It takes the lock
    /// of one shard, and looks into a hash table. [`Runtime::group`](crate::Runtime::group) finds a
    /// group by its whole path.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create(17, Limits::new())?;
    /// assert_eq!((runtime.root().child(17), runtime.root().child("acme")), (Some(query), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn child<'a>(&self, name: impl IntoName<'a>) -> Option<Group> {
        names::find(self.first().tree(), self.first(), name.into_name()).map(Group::from_handle)
    }

    /// `also` is called with the new group before another thread sees it. It may be called again,
    /// for another object, where the first one was not needed.
    pub(super) fn create_named(
        &self,
        name: GroupName<'_>,
        limits: Limits,
        also: &dyn Fn(&object::Counter),
    ) -> Result<Group, CreateError> {
        let group = self.first();
        let parent = || self.clone();
        if let GroupName::Text(text) = name
            && let Some(fault) = NameError::of_group(text)
        {
            // A stranger may have given the name: an error does not carry all of a long one.
            let name = if fault == NameError::TooLong {
                beginning(text).into_owned()
            } else {
                self.copied(name)?
            };
            return Err(CreateError::Name {
                parent: parent(),
                name,
                fault,
            });
        }
        let setting = self
            .setting_of(limits, Some(name))
            .map_err(CreateError::Limit)?;
        let thresholds = limits.thresholds();
        let set_rest = |group: &object::Counter| {
            limits.set_apart(group, setting);
            if let Some(thresholds) = thresholds {
                pressure_levels::set_unlinked(group, thresholds);
            }
            also(group);
        };
        let settings = NewGroup {
            wanted: &limits.kinds(),
            covers: limits.cover_allocations,
            share: limits.share.unwrap_or(0),
            has_pressure: thresholds.is_some(),
            set_rest: &set_rest,
        };
        let mut settled = false;
        loop {
            let created = create::create(group, name, &settings);
            unowned::may_have_changed();
            let error = match created {
                Ok(handle) => return Ok(Group::from_handle(handle)),
                Err(NotCreated::Offline) => CreateError::Offline {
                    parent: parent(),
                    name: self.copied(name)?,
                },
                Err(NotCreated::Taken) => match self.child(name) {
                    Some(group) => CreateError::Taken { group },
                    // It has gone offline meanwhile.
                    None => continue,
                },
                Err(NotCreated::Full(_)) if !settled => {
                    // The groups that are in the way may hold nothing but credit. This slow path
                    // releases them.
                    group.tree().close_offline_stocks();
                    settled = true;
                    continue;
                }
                Err(NotCreated::Full(most)) => CreateError::Full {
                    parent: parent(),
                    name: self.copied(name)?,
                    most,
                },
                Err(NotCreated::Memory(bytes)) => CreateError::Memory {
                    parent: parent(),
                    bytes,
                },
                Err(NotCreated::Limit(kind, none)) => {
                    CreateError::Limit(self.limit_error(kind, none, Some(self.copied(name)?)))
                }
            };
            return Err(error);
        }
    }

    /// A copy of the name for an error. Where the system gives no memory for it, that is the error:
    /// to go on with a copy as usual would end the process.
    fn copied(&self, name: GroupName<'_>) -> Result<String, CreateError> {
        let refused = |bytes| CreateError::Memory {
            parent: self.clone(),
            bytes,
        };
        let bytes = match name {
            GroupName::Text(text) => text.len(),
            GroupName::Number(_) => u64::MAX.ilog10() as usize + 1,
            GroupName::Unnamed => 0,
        };
        // A refusal for lack of memory must not end the program because its text needs some.
        let mut copy = String::new();
        copy.try_reserve_exact(bytes).map_err(|_| refused(bytes))?;
        // No text is longer than what is reserved.
        let _ = write!(copy, "{name}");
        Ok(copy)
    }

    /// `name`: of a child that was to be created.
    pub(crate) fn limit_error(
        &self,
        kind: LimitKind,
        NoLimitedAncestor(percent): NoLimitedAncestor,
        name: Option<String>,
    ) -> LimitError {
        LimitError::NoLimitedAncestor {
            group: self.clone(),
            name,
            limit: kind.name(),
            percent,
        }
    }

    /// The name of the setting; `name` is that of a child that is to be created.
    pub(super) fn setting_of(
        &self,
        limits: Limits,
        name: Option<GroupName<'_>>,
    ) -> Result<Option<SettingName>, LimitError> {
        let refused = |fault| {
            let name = name.map(|name| name.to_string());
            LimitError::Setting {
                group: self.clone(),
                name,
                fault,
            }
        };
        limits.setting.transpose().map_err(refused)
    }

    /// Returns the groups directly below that are online, all at one moment, in no particular
    /// order. Meanwhile no group can be created or go offline;
    /// [`top`](crate::inspect::GroupInspector::top), which returns the largest of them, holds up no
    /// thread.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert_eq!(runtime.root().children(), [acme]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn children(&self) -> Vec<Group> {
        // Mutation: a-walk-with-a-shard-that-moves
        let _path = SlowPath::enter();
        // Mutation: a-walk-with-a-shard-that-moves
        self.first()
            .tree()
            .hierarchy
            .snapshot()
            .children(self.first())
            .map(Group::pinned)
            .collect()
    }

    /// Takes the group offline: from here on it takes no charges, and it leaves its parent. Charges
    /// that wait in it are refused, its name is free at once, and its min and low protect nothing
    /// any more. What is charged stays charged, here and at the ancestors, until its
    /// [`Charge`](crate::Charge)s are dropped. The object is used again after the last charge and
    /// the last handle.
    ///
    /// The group's statistics stay in its ancestors' figures. Its credit goes back at once if only
    /// this thread ever charged the group; otherwise in the next drain or in
    /// [`Runtime::settle`](crate::Runtime::settle), with one barrier for many such groups. The call
    /// takes locks for a moment, and may call listeners and wakers of charges that wait in the
    /// group. For a group that is offline already it does nothing.
    ///
    /// Source: `mem_cgroup_css_offline` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`OfflineError`] if the group has children that are online, and for the root, which goes
    /// offline with the last handle of its [`Runtime`](crate::Runtime).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// let charge = query.charge(10)?;
    /// query.offline()?;
    /// assert!(query.is_offline() && query.charge(1).is_err());
    /// assert_eq!(runtime.root().live(), 10);
    /// drop(charge);
    /// assert_eq!(runtime.root().live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn offline(&self) -> Result<(), OfflineError> {
        if self.is_root() && !self.is_offline() {
            let children = self.first().child_count().get() as usize;
            return Err(OfflineError {
                group: self.clone(),
                children,
            });
        }
        let gone = offline::offline(self.first().tree(), self.first());
        gone.map_err(|HasChildren(children)| OfflineError {
            group: self.clone(),
            children,
        })?;
        // Additions that threads make from here on go up with a later flush, or with the release.
        stats::flush(self.first(), UnlistPolicy::Never);
        unowned::may_have_changed();
        Ok(())
    }

    /// Takes this group and all groups below it [`offline`](Self::offline), as one step, with one
    /// barrier. The root stays online, as long as its runtime has a handle.
    ///
    /// The call holds the tree's lock and those under which groups are created while it visits each
    /// of the groups, and then flushes their statistics. It may call listeners and wakers of
    /// charges that wait in them.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let query = acme.create("q17", memcg::Limits::new())?;
    /// acme.offline_tree();
    /// assert!(query.is_offline());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn offline_tree(&self) {
        self.end_tree(!self.is_root());
    }

    fn is_root(&self) -> bool {
        self.first().parent().is_none()
    }

    /// Takes all groups below offline, and this one if it is to go `with` them.
    pub(crate) fn end_tree(&self, with: bool) {
        offline::offline_tree(self.first().tree(), self.first(), with);
        stats::flush(self.first(), UnlistPolicy::Never);
    }

    /// Returns true if the group is offline. One load.
    pub fn is_offline(&self) -> bool {
        self.first().state().is_offline()
    }
}
