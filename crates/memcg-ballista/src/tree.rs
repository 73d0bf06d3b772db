//! The groups between a tenant and its tasks: each is there for as long as a task below it runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memcg::errors::CreateError;
use memcg::{Group, GroupId, GroupName, Limits};

/// The groups of sessions, jobs and stages that have tasks.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    in_use: Mutex<HashMap<Key, InUse>>,
}

/// A parent, and the name below it.
type Key = (GroupId, String);

#[derive(Debug)]
struct InUse {
    group: Group,
    tasks: usize,
}

impl Tree {
    /// Returns the group of that name below `parent`. The first that asks for it has it made with
    /// `limits`, and `made` is called with it.
    pub(crate) fn enter(
        self: &Arc<Self>,
        parent: &Group,
        name: &str,
        limits: Limits,
        made: impl FnOnce(&Group),
    ) -> Result<Entered, CreateError> {
        let key = (parent.id(), name.to_string());
        let mut in_use = self.lock();
        let group = match in_use.get_mut(&key) {
            Some(there) => {
                there.tasks += 1;
                there.group.clone()
            }
            None => {
                let group = create(parent, GroupName::Text(name), limits)?;
                made(&group);
                in_use.insert(
                    key.clone(),
                    InUse {
                        group: group.clone(),
                        tasks: 1,
                    },
                );
                group
            }
        };
        drop(in_use);
        Ok(Entered {
            tree: Arc::clone(self),
            key,
            group,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, InUse>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a group of that name, or an unnamed one where the name is not allowed or taken: the last
/// task of a group that goes offline no longer counts for it, and the name is taken for a moment
/// still.
fn create(parent: &Group, name: GroupName<'_>, limits: Limits) -> Result<Group, CreateError> {
    match parent.create(name, limits) {
        Err(CreateError::Name { .. } | CreateError::Taken { .. }) => {
            parent.create(GroupName::Unnamed, limits)
        }
        created => created,
    }
}

/// A task's part in a group. The group goes offline with the last of them.
#[derive(Debug)]
pub(crate) struct Entered {
    tree: Arc<Tree>,
    key: Key,
    group: Group,
}

impl Entered {
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut in_use = self.tree.lock();
        let Some(there) = in_use.get_mut(&self.key) else {
            return;
        };
        there.tasks -= 1;
        if there.tasks > 0 {
            return;
        }
        in_use.remove(&self.key);
        // Without the lock: listeners of the group are foreign code.
        drop(in_use);
        self.group.offline_tree();
    }
}

#[cfg(test)]
mod tests {
    use memcg::Runtime;

    use super::*;

    #[test]
    fn a_group_is_there_while_it_is_in_use() {
        let tree = Arc::new(Tree::default());
        let runtime = Runtime::builder().build().unwrap();
        let enter = || {
            tree.enter(&runtime.root(), "job", Limits::new().max(64_usize), |_| ())
                .unwrap()
        };
        let first = enter();
        let second = enter();
        assert_eq!((first.group(), first.group().max()), (second.group(), 64));
        drop(first);
        assert!(!second.group().is_offline());
        let old = second.group().clone();
        drop(second);
        assert!(old.is_offline() && tree.lock().is_empty());
        assert_ne!(enter().group(), &old, "a later task has a new group");
        assert_eq!(runtime.root().children(), []);
    }

    /// A name that is not free, or is none, costs the name and not the task.
    #[test]
    fn a_group_without_its_name() {
        let tree = Arc::new(Tree::default());
        let runtime = Runtime::builder().build().unwrap();
        let root = runtime.root();
        let _taken = root.create("job", Limits::new()).unwrap();
        for name in ["job", "a/b", ""] {
            let [first, second] =
                [(); 2].map(|()| tree.enter(&root, name, Limits::new(), |_| ()).unwrap());
            assert_eq!(first.group(), second.group());
            assert!(
                first.group().path().starts_with("/#"),
                "{}",
                first.group().path()
            );
        }
        root.create("gone", Limits::new()).unwrap().offline_tree();
        assert_eq!(root.children().len(), 1);
    }

    /// Threads that enter and leave at the same time never have a group that is offline.
    #[test]
    fn many_threads() {
        let tree = Arc::new(Tree::default());
        let runtime = Runtime::builder().audit(true).build().unwrap();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for round in 0..500 {
                        let name = format!("job{}", round % 2);
                        let job = tree
                            .enter(&runtime.root(), &name, Limits::new(), |_| ())
                            .unwrap();
                        let stage = tree.enter(job.group(), "1", Limits::new(), |_| ()).unwrap();
                        drop(stage.group().charge(100_usize).expect("it is online"));
                    }
                });
            }
        });
        assert!(tree.lock().is_empty());
        assert_eq!(
            (runtime.root().children(), runtime.root().live()),
            (vec![], 0)
        );
        assert!(runtime.verify().is_ok());
    }
}
