//! Counters that are declared after the runtime is built.

use std::fmt;

use super::Runtime;
use crate::group::CounterKey;
use crate::hierarchy::declared_counters::NotDeclared;
use crate::hierarchy::group_tree;
use crate::stat::Unit;
use crate::state::name::beginning;

/// Why [`Runtime::declare_counter`] has not declared a counter.
///
/// ```
/// use memcg::errors::DeclareError;
/// use memcg::{Runtime, Unit};
///
/// let runtime = Runtime::builder().build()?;
/// let refused = runtime.declare_counter("spill", Unit::Bytes).unwrap_err();
/// assert_eq!(refused, DeclareError::NoPlace { counters: 1 });
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeclareError {
    /// The name is empty, is `memory`, or is that of a counter.
    Name(String),
    /// The runtime has no place left for a counter: see
    /// [`counter_places`](crate::RuntimeBuilder::counter_places).
    NoPlace {
        /// Counters that each group has, that of memory included.
        counters: usize,
    },
    /// A group was created below the root, and has the counters that were declared then.
    GroupsExist,
}

impl fmt::Display for DeclareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "{:?} is no name for a further counter: empty, taken, or that of memory",
                beginning(name)
            ),
            Self::NoPlace { counters } => write!(
                f,
                "no place for a further counter beside {counters}, memory included: build the runtime with \
                 counter_places"
            ),
            Self::GroupsExist => f.write_str(
                "a further counter is declared before the first group is created, which has the counters of then",
            ),
        }
    }
}

impl std::error::Error for DeclareError {}

impl Runtime {
    /// Declares a counter that every group has beside memory, as
    /// [`RuntimeBuilder::counter`](crate::RuntimeBuilder::counter) does, in one of the
    /// [places](crate::RuntimeBuilder::counter_places) that the root has for it. Another thread finds
    /// it by its name, with [`Group::counter_key`](crate::Group::counter_key). The call takes a lock
    /// for as long as it compares the names.
    ///
    /// The first call that creates a group below the root puts an end to this, even if it is
    /// refused. If the two run at once, either the group has the counter or this call fails.
    ///
    /// # Errors
    ///
    /// [`DeclareError`]: the name is taken, the root has no place left, or a group was created.
    ///
    /// ```
    /// use memcg::errors::DeclareError;
    /// use memcg::{Limits, Runtime, Unit};
    ///
    /// let runtime = Runtime::builder().counter_places(4).build()?;
    /// let files = runtime.declare_counter("files", Unit::Events)?;
    /// assert_eq!(runtime.root().counter_key("files"), Some(files));
    /// assert!(matches!(runtime.declare_counter("files", Unit::Events), Err(DeclareError::Name(_))));
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// acme.counter(files)?.set_max(3)?;
    /// assert_eq!(runtime.declare_counter("rows", Unit::Events), Err(DeclareError::GroupsExist));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn declare_counter(&self, name: &str, unit: Unit) -> Result<CounterKey, DeclareError> {
        let counters = &group_tree::shared(&self.owned.tree).further;
        match counters.declare(name, unit) {
            Ok((number, builder)) => Ok(CounterKey::new(number, builder)),
            Err(NotDeclared::Name) => Err(DeclareError::Name(name.to_string())),
            Err(NotDeclared::NoPlace(further)) => Err(DeclareError::NoPlace {
                counters: 1 + further,
            }),
            Err(NotDeclared::Over) => Err(DeclareError::GroupsExist),
        }
    }
}
