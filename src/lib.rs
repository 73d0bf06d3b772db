//! Cgroup-style resource accounting for the inside of one process.
//!
//! A program makes a tree of groups (service > tenant > query), each with its own limits, and
//! charges them before it uses memory. The calling thread's stock of credit pays a charge, which
//! then touches no shared memory. Any other thread can take that credit back. So limits are never
//! exceeded, and never refuse while credit is stranded, [but for a few cases](docs::limitations).
//!
//! ```
//! use memcg::{Limit, Limits, Runtime};
//!
//! let runtime = Runtime::builder().max(Limit::gib(2)).build()?;
//! let tenant = runtime.root().create("acme", Limits::new().max(Limit::mib(512)))?;
//! let query = tenant.create("q17", Limits::new())?;
//! let charge = query.charge(64 * 1024)?;
//! assert!(query.charge(1 << 30).is_err(), "refused by /acme");
//! drop(charge);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The first path
//!
//! Most programs need six calls:
//!
//! | call | what it does |
//! |---|---|
//! | [`Runtime::builder`] | makes the tree; [`Runtime::root`] is its first group. Keep the `Runtime` as long as groups charge |
//! | [`Group::create`] | makes a group with its [`Limits`]; [`Group::scope`] one that goes with a value |
//! | [`Group::charge`] | pays for bytes before they are allocated; the [`Charge`] gives them back. In async code [`Group::charge_async`] |
//! | [`Charged::make`] | does both for a value: charges, then makes it, and gives the bytes back after it is freed |
//! | [`Group::register_reclaimer`] | has a cache give back when memory is short |
//! | [`Runtime::snapshot`] | shows all groups as a table |
//!
//! ```
//! use memcg::{Charged, Limit, Limits, ReclaimPriority, Reclaim, ReclaimContext, Runtime};
//! use std::sync::{Arc, Mutex};
//!
//! #[derive(Default)]
//! struct Cache(Mutex<Vec<Charged<Vec<u8>>>>);
//!
//! impl Reclaim for Cache {
//!     fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
//!         let (mut entries, mut freed) = (self.0.lock().unwrap(), 0);
//!         while freed < want && let Some(entry) = entries.pop() {
//!             freed += Charged::charge(&entry).bytes();
//!         }
//!         freed
//!     }
//! }
//!
//! let runtime = Runtime::builder().max(Limit::mib(2)).build()?;
//! let acme = runtime.root().create("acme", Limits::new().max(Limit::mib(1)))?;
//! let cache = Arc::new(Cache::default());
//! let _registration = acme.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
//! for _ in 0..4 {
//!     let entry = Charged::make(&acme, 256 << 10, || vec![0; 256 << 10])?;
//!     cache.0.lock().unwrap().push(entry); // not while the charge is made: it may call `reclaim`
//! }
//! let query = acme.charge(512 << 10)?; // the cache gives two of its entries
//! assert_eq!((query.bytes(), cache.0.lock().unwrap().len()), (512 << 10, 2));
//! println!("{}", runtime.snapshot());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Types by task
//!
//! | task | types |
//! |---|---|
//! | build a tree | [`Runtime`], [`RuntimeBuilder`]; [`Group`], [`GroupScope`] for one query or request; [`GroupName`], [`GroupId`] |
//! | say what a group may hold | [`Limits`] for [`Group::create`] and [`Group::set_limits`]; [`Limit`], [`Percent`], [`Bytes`] |
//! | have a tree in a file | [`GroupSpec`], [`ApplyOptions`] |
//! | say whose work runs | [`Group::run`], [`Group::enter`] ([`EnterGuard`]); [`InGroup`] for futures ([`Grouped`]); [`Group::checkpoint`] stops it ([`CheckpointFuture`]) |
//! | keep a value with its charge | [`Charged`], [`ChargedVec`]; [`Weigh`] says what a value holds; [`Gauge`] for memory that is reported |
//! | charge | [`Charge`]; [`ChargeFuture`] waits in async code; [`CounterKey`] for counters beside memory; [`OnFull`]; [`RawCharges`] keep no guard |
//! | learn why not | [`ChargeError`] ([`ChargeErrorKind`]), [`OverLimitError`] |
//! | give memory back under pressure | [`Reclaim`], [`ReclaimContext`], [`ReclaimPriority`], [`ReclaimPromise`]; [`OomPolicy`] ([`OomOrder`], [`OomCandidate`]), [`CancelInfo`] |
//! | be told | [`Event`], [`EventFuture`], [`EventInfo`]; a [`Registration`] keeps what is registered |
//! | work below high alone | [`Group::below_high`] ([`BelowHighFuture`]) |
//! | learn how long chargers stood still | [`Group::pressure`] |
//! | shed work before memory is short | [`Group::pressure_level`] ([`PressureLevel`]) |
//! | pay for allocations from charges | [`Limits::cover_allocations`]; [`Group::ledger`] shows both beside each other |
//! | look at all groups | [`Runtime::snapshot`] |
//! | count and read | [`StatKey`], [`Unit`], [`Freshness`] |
//! | name what a reader returns | module [`figures`] |
//! | tell apart why a call was refused | module [`errors`] |
//! | count without groups | [`PageCounter`], [`CounterConfig`]; [`GroupCounter`] is that of a group |
//! | place memory on nodes | module [`kmem`] |
//! | share credit among the threads of a channel | [`CentralStock`]; a [`ChargeFuture`] is a place in line for its queue |
//! | look inside | [`Group::inspect`]; modules [`inspect`] and [`footprint`] |
//! | choose the barrier | module [`barrier`] |
//!
//! An amount ([`IntoBytes`], [`IntoLimit`]) is a `usize` or a literal, `Bytes::mib(6)`, or
//! `Bytes(n)` for a `u64`; a limit may be a [`Limit`] as well, which is no amount to charge;
//! figures are `u64`. A [`PageCounter`] takes `u64`, and so does the name of a group
//! ([`IntoName`]), which mostly is a text.
//!
//! A charge that does not fit has memory reclaimed, is refused, waits ([`Group::charge_async`]), or
//! has another group cancelled: [`Group::charge_with`] says which. A charge above a high is
//! delayed ([`Limits::high`]). [`docs`] says how the crate works, what is exact and what it does
//! not do.
//!
//! # Features
//!
//! * `bytes`: [`Weigh`] for buffers of the crate `bytes`, and `BufMut` for [`ChargedVec`].
//! * `derive`: `#[derive(Weigh)]`.
//! * `serde`: [`GroupSpec`], [`Limits`], [`Limit`], [`Percent`], [`Bytes`] and [`OomPolicy`] in a
//!   configuration file; tables and figures for any format.
//! * `tracing`: an event for each object that a pool hands out (`memcg::pool`), for each drain of
//!   threads' credit (`memcg::drain`), and for refused charges (`memcg::refused`: one a second for a
//!   group, and 64 for a process at most, with a count of those left out). A build with debug
//!   assertions has one for a reclaimer that does not return (`memcg::reclaim`).
//!
//! # Traits
//!
//! What users pass between threads, print, parse and store; each line is compiled:
//!
//! ```
//! use memcg::{errors, figures};
//! use memcg::{Bytes, Charge, ChargeError, ChargeFuture, ChargedVec, Event, Group, GroupName};
//! use memcg::{IntoBytes, IntoLimit, IntoName, Limit, Limits, OnFull, OomPolicy, PageCounter};
//! use memcg::{Percent, Runtime, Weigh};
//! use std::fmt::{Debug, Display};
//! use std::panic::{RefUnwindSafe, UnwindSafe};
//!
//! // Handles: any thread may have a clone.
//! fn handle<T: Clone + Send + Sync + Debug + UnwindSafe + RefUnwindSafe>() {}
//! handle::<Runtime>();
//! handle::<Group>();
//! handle::<PageCounter>();
//!
//! // A charge is owned by one; it moves to another thread.
//! fn owned<T: Send + Sync + Debug>() {}
//! owned::<Charge>();
//! owned::<ChargedVec<u8>>();
//! owned::<ChargeFuture>();
//!
//! // Values: copied and compared.
//! fn value<T: Copy + Eq + std::hash::Hash + Debug>() {}
//! value::<Bytes>();
//! value::<Limit>();
//! value::<Percent>();
//! value::<OnFull>();
//! value::<OomPolicy>();
//! value::<Event>();
//!
//! // Text, and back.
//! fn parsed<T: Display + std::str::FromStr<Err = errors::ParseLimitError>>() {}
//! parsed::<Bytes>();
//! parsed::<Limit>();
//! fn printed<T: Display>() {}
//! printed::<Percent>();
//! printed::<Group>();
//! printed::<GroupName>();
//! printed::<figures::Snapshot>();
//!
//! // `?` takes each error.
//! fn error<T: std::error::Error + Send + Sync + 'static>() {}
//! error::<ChargeError>();
//! error::<errors::CreateError>();
//! error::<errors::LimitError>();
//! error::<errors::ParseLimitError>();
//!
//! // What an amount, a limit and a name may be.
//! fn amount(_: impl IntoBytes) {}
//! fn limit(_: impl IntoLimit) {}
//! fn name<'a>(_: impl IntoName<'a>) {}
//! (amount(5_usize), amount(4096), amount(Bytes(5_u64)));
//! (limit(5_usize), limit(4096), limit(Bytes(5_u64)), limit(Limit::gib(1)));
//! (name("acme"), name(&String::from("acme")), name(17_u64));
//!
//! // What a message or a value may be.
//! fn weighed<T: Weigh>() {}
//! weighed::<Vec<String>>();
//! weighed::<std::collections::HashMap<u64, Box<str>>>();
//! fn written<T: std::io::Write>() {}
//! written::<ChargedVec<u8>>();
//!
//! # #[cfg(feature = "bytes")] {
//! // Feature `bytes`.
//! weighed::<bytes::Bytes>();
//! fn filled<T: bytes::BufMut>() {}
//! filled::<ChargedVec<u8>>();
//! # }
//! # #[cfg(feature = "derive")] {
//! // Feature `derive`.
//! #[derive(Weigh)]
//! struct Row(String, u64);
//! weighed::<Row>();
//! # }
//! # #[cfg(feature = "serde")] {
//! // Feature `serde`. A choice of the caller's code (`OnFull`) has no form in a file.
//! fn stored<T: serde::Serialize + serde::de::DeserializeOwned>() {}
//! stored::<memcg::GroupSpec>();
//! stored::<Limits>();
//! stored::<Limit>();
//! stored::<Percent>();
//! stored::<Bytes>();
//! stored::<OomPolicy>();
//! fn shown<T: serde::Serialize>() {}
//! shown::<figures::Snapshot>();
//! shown::<figures::Ledger>();
//! shown::<figures::GroupPressure>();
//! # trait NotStored<Which> { fn holds() {} }
//! # impl<T> NotStored<()> for T {}
//! # impl<T: serde::de::DeserializeOwned> NotStored<u8> for T {}
//! # <OnFull as NotStored<_>>::holds();
//! # }
//! # // `OnFull` is no text: if it were, both impls would fit, and this would not compile.
//! # trait NotParsed<Which> { fn holds() {} }
//! # impl<T> NotParsed<()> for T {}
//! # impl<T: std::str::FromStr> NotParsed<u8> for T {}
//! # <OnFull as NotParsed<_>>::holds();
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]

// Its macro is for all below.
#[macro_use]
pub(crate) mod error;

// The page of `PageCounter` lists its methods in the order of modules: its own first, then those of
// a group's counter.
pub(crate) mod page_counter;

pub(crate) mod admission;
pub(crate) mod counter;
pub mod docs;
pub(crate) mod group;
pub(crate) mod hierarchy;
pub mod kmem;
pub(crate) mod lifecycle;
mod numa;
mod pool;
pub(crate) mod pressure;
mod reclaim;
pub(crate) mod runtime;
pub(crate) mod stat;
mod state;
pub(crate) mod sync;
pub(crate) mod thread;
pub(crate) mod units;
pub(crate) mod values;

#[cfg(all(test, any(loom, miri)))]
mod tests;

#[cfg(all(test, shuttle))]
#[path = "tests/shuttle.rs"]
mod tests;

#[cfg(all(test, not(any(loom, shuttle, miri))))]
#[path = "tests/forced.rs"]
mod tests;

pub use counter::config::CounterConfig;
pub use error::CounterId;
pub use group::{
    Amounts, ApplyOptions, BelowHighFuture, CentralStock, Charge, ChargeError, ChargeErrorKind,
    ChargeFuture, Charges, ChargesIter, CheckpointFuture, CounterKey, EnterGuard, EventFuture,
    Group, GroupCounter, GroupId, GroupScope, GroupSpec, Grouped, InGroup, Limits, OnFull,
    OverLimitError, RawCharges, Registration,
};
pub use page_counter::PageCounter;
pub use runtime::{BuildError, Runtime, RuntimeBuilder};
pub use stat::reading::Freshness;
pub use stat::{StatKey, Unit};
pub use state::events::Event;
pub use state::listeners::EventInfo;
pub use state::name::{GroupName, IntoName};
pub use state::oom::{CancelInfo, OomCandidate, OomOrder, OomPolicy};
pub use state::pressure_level::PressureLevel;
pub use state::reclaimer::{
    Reclaim, ReclaimCause, ReclaimContext, ReclaimPass, ReclaimPriority, ReclaimPromise,
};
pub use units::{Bytes, IntoBytes, IntoLimit, Limit, Percent};
pub use values::{Charged, ChargedVec, Gauge, Weigh};

#[cfg(feature = "derive")]
pub use memcg_derive::Weigh;

/// The crate's clock in the hand of its own tests: see `sync::clock`.
#[cfg(all(feature = "_simulated-time", debug_assertions))]
#[doc(hidden)]
pub mod simulated_time {
    pub use crate::sync::clock::in_hand::*;
}

/// Why a call was refused. The errors of the first hour stand in the root: [`BuildError`],
/// [`ChargeError`] with [`OverLimitError`].
pub mod errors {
    pub use crate::error::{CounterChargeError, CounterLimitError};
    pub use crate::group::{
        ContradictionError, CreateError, LimitError, MergeError, NameError, OfflineError,
        ReclaimError, Remedy, SpecError, SplitError,
    };
    pub use crate::runtime::DeclareError;
    pub use crate::units::{ParseLimitError, ParseLimitErrorKind};
    pub use crate::values::PushError;
}

/// Types that readers return: [`Runtime::snapshot`], [`Group::read`], [`Group::events`],
/// [`Group::ledger`] and their like.
pub mod figures {
    pub use crate::group::{
        CounterRow, Events, GroupChange, GroupPressure, Ledger, PressureShare, Snapshot,
        SnapshotRow, SpecChanges,
    };
    pub use crate::page_counter::{PeakLive, PeakLiveWindow, PeakWindow, TreeCounts};
    pub use crate::reclaim::round::ReclaimReport;
    pub use crate::stat::{StatItem, Stats};
    pub use crate::state::incidents::{Incident, IncidentKind};
}

/// For allocators that charge groups: the crate `memcg-alloc` is one. [`Owner`](allocator::Owner)
/// has the rules.
pub mod allocator {
    pub use crate::group::allocator::{
        BegunStep, Owner, UnfinishedStep, catch_up, charge_unowned, charge_unowned_to,
        try_uncharge_unowned, uncharge_unowned, unowned, unowned_bytes,
    };
}

/// How threads are told that credit is taken back: [`BarrierMode`](barrier::BarrierMode) is the
/// answer for processors that must not be interrupted, [`BarrierState`](barrier::BarrierState) says
/// what is in use. [`litmus`](barrier::litmus) has the two sides of the barrier alone, to test a
/// machine with.
pub mod barrier {
    pub use crate::sync::barrier::{BarrierMode, BarrierState, litmus};
}

/// The memory of the crate itself: [`PoolAlign`](footprint::PoolAlign) says how the objects of
/// groups lie, [`PoolTable`](footprint::PoolTable) and [`OwnBytes`](footprint::OwnBytes) what they
/// take.
pub mod footprint {
    pub use crate::lifecycle::own_bytes::OwnBytes;
    pub use crate::pool::{PoolAlign, PoolRow, PoolTable};
}

/// What a debugger asks: figures of a group that few programs need
/// ([`GroupInspector`](inspect::GroupInspector)), and what a check of the whole count has found
/// ([`VerifyReport`](inspect::VerifyReport)).
pub mod inspect {
    pub use crate::counter::verify::{VerifyFault, VerifyFaultKind, VerifyReport};
    pub use crate::group::inspect::GroupInspector;
}

macro_rules! unwind_safe {
    ($($handle:ty),*) => {$(
        impl std::panic::UnwindSafe for $handle {}
        impl std::panic::RefUnwindSafe for $handle {}
    )*};
}

// A panic of the caller finds none of them half changed. The others have the two traits by their
// fields.
unwind_safe!(
    Runtime,
    RuntimeBuilder,
    GroupCounter,
    PageCounter,
    CounterConfig,
    figures::PeakWindow,
    figures::PeakLiveWindow
);
unwind_safe!(
    ChargeFuture,
    EventFuture,
    CheckpointFuture,
    EnterGuard,
    Registration,
    ReclaimPromise,
    ReclaimContext<'_>
);
unwind_safe!(kmem::KmemMember, kmem::KmemMover);

/// The code of README, so that its examples are tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
