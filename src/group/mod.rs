//! Groups: the tree of counters as users hold it.
//!
//! A group is its counters (`counter`) with a name and a handle that keeps it. These files hold the public methods and
//! their documentation. The layers below do the work: `admission`, `pressure`, `reclaim`, `lifecycle`.

mod at_once;
mod charge;
mod charge_set;
mod counters;
pub(crate) mod diagnosis;
mod error;
mod events;
mod future;
mod handle;
mod high;
mod limits;
mod numa;
mod oom;
mod raw;
mod reading;
mod reclaim;
mod refusal;
mod registration;
mod scope;
mod stats;
mod tree;
mod waiting;

pub use charge::{Charge, MergeError};
pub use charge_set::ChargeSet;
pub use counters::{Counter, GroupCounter};
pub use diagnosis::Diagnosis;
pub use error::{ChargeError, CreateError, LimitError, NameError, OfflineError, ReclaimError, SplitError};
pub use events::{EventFuture, Events};
pub use future::ChargeFuture;
pub use handle::{Group, GroupId};
pub use limits::{ContradictionError, Limits};
pub use numa::NumaTable;
pub use refusal::OverLimitError;
pub use registration::Registration;
pub use scope::GroupScope;
