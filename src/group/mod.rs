//! Groups: the tree of counters as users hold it.
//!
//! A group is its counters (`crate::counter`) with a name and a handle that keeps it. These files
//! hold the public methods and their documentation. The layers below do the work: `admission`,
//! `pressure`, `reclaim`, `lifecycle`.

// The page of `Group` lists its methods in the order of these modules: charges first.
mod charge;
mod parts;

mod below_high;
mod central_stock;
mod charge_set;
mod charge_with;
mod checkpoint;
mod future;
mod raw;

mod current;
mod handle;
mod in_group;
mod scope;
mod tree;

mod counter;
mod counters;
mod limits;
mod reading;
mod spec;

mod events;
pub(crate) mod inspect;
mod ledger;
mod snapshot;
mod stats;

mod oom;
mod pressure;
mod reclaim;
mod registration;

pub(crate) mod allocator;

mod error;
mod refusal;

pub use below_high::BelowHighFuture;
pub use central_stock::CentralStock;
pub use charge::Charge;
pub use charge_set::{Amounts, Charges, ChargesIter};
pub(crate) use charge_with::GrowBy;
pub use charge_with::OnFull;
pub use checkpoint::CheckpointFuture;
pub use counter::CounterKey;
pub use counters::GroupCounter;
pub use current::EnterGuard;
pub(crate) use error::Repr;
pub use error::{
    ChargeError, ChargeErrorKind, CreateError, LimitError, NameError, OfflineError, ReclaimError,
    SplitError,
};
pub use events::{EventFuture, Events};
pub use future::ChargeFuture;
pub use handle::{Group, GroupId};
pub use in_group::{Grouped, InGroup};
pub use ledger::Ledger;
pub use limits::{ContradictionError, Limits};
pub use parts::MergeError;
pub use pressure::{GroupPressure, PressureShare};
pub use raw::RawCharges;
pub use refusal::{OverLimitError, Remedy};
pub use registration::Registration;
pub use scope::GroupScope;
pub use snapshot::{CounterRow, Snapshot, SnapshotRow};
pub use spec::{ApplyOptions, GroupChange, GroupSpec, SpecChanges, SpecError};
pub use stats::NumaTable;
