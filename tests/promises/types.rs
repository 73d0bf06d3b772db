//! What the types promise: which may cross threads, which owns what, how large a charge is. Most of it holds as soon as
//! it compiles.

use std::error::Error;
use std::hash::Hash;
use std::panic::{RefUnwindSafe, UnwindSafe};

use memcg::expert::Verdict;
use memcg::{
    BuildError, Bytes, Charge, ChargeError, ChargeFuture, ChargeSet, Checkpoint, Counter, Counts, CreateError,
    Diagnosis, Event, EventFuture, Events, FlusherError, Group, GroupCounter, GroupId, Grouped, Item, Limit,
    LimitError, Limits, MergeError, NameError, OfflineError, OnExhausted, OomPolicy, OverLimitError, PageCounter,
    ParseOnExhaustedError, PeakWindow, Registration, Runtime, RuntimeBuilder, Snapshot, SnapshotRow, SplitError, Stat,
    Stats, Unit,
};

const fn send<T: Send + 'static>() {}
const fn shared<T: Send + Sync + 'static>() {}
const fn handle<T: Clone + Send + Sync + Eq + Hash + 'static>() {}
const fn plain<T: Copy + Send + Sync + Eq + 'static>() {}
const fn future<T: Future + Send + Unpin + 'static>() {}
const fn error<T: Error + Send + Sync + 'static>() {}
const fn unwinds<T: UnwindSafe + RefUnwindSafe>() {}

const _: () = {
    // A charge goes where its memory goes.
    send::<Charge>();
    send::<ChargeSet>();
    send::<Vec<(Vec<u8>, Charge)>>();
    shared::<Charge>();
    // Handles are for every thread.
    handle::<Group>();
    shared::<PageCounter>();
    shared::<Runtime>();
    shared::<RuntimeBuilder>();
    shared::<GroupCounter>();
    shared::<PeakWindow>();
    // Names and figures are plain data.
    plain::<GroupId>();
    plain::<Counter>();
    plain::<Limits>();
    plain::<Limit>();
    plain::<Bytes>();
    plain::<NameError>();
    plain::<SplitError>();
    plain::<Counts>();
    plain::<Stat>();
    plain::<Unit>();
    plain::<Item<'static>>();
    shared::<Stats>();
    shared::<Snapshot>();
    shared::<SnapshotRow>();
    shared::<Verdict>();
    // A future goes where its task goes. A registration stays with the thread that owns it.
    future::<ChargeFuture>();
    future::<EventFuture>();
    future::<Checkpoint>();
    future::<Grouped<ChargeFuture>>();
    shared::<Grouped<Vec<Charge>>>();
    shared::<Events>();
    send::<Registration>();
    send::<Registration>();
    shared::<Diagnosis>();
    plain::<Event>();
    plain::<OnExhausted>();
    plain::<OomPolicy>();
    error::<ParseOnExhaustedError>();
    // Whatever is refused can be reported from any thread.
    error::<ChargeError>();
    error::<OverLimitError>();
    error::<CreateError>();
    error::<NameError>();
    error::<LimitError>();
    error::<OfflineError>();
    error::<SplitError>();
    error::<MergeError>();
    error::<BuildError>();
    error::<FlusherError>();
    // A panic beside them leaves them as they are.
    unwinds::<Group>();
    unwinds::<Charge>();
};

/// Two words, and one for the handle; both have room for `None`.
#[test]
fn sizes() {
    assert_eq!((size_of::<Charge>(), size_of::<Option<Charge>>()), (16, 16));
    assert_eq!((size_of::<Group>(), size_of::<Option<Group>>()), (8, 8));
    // A refusal is plain data, for an allocator may be refused, and names the groups that hold most. A hit writes three
    // words of it.
    assert!(size_of::<Result<Charge, ChargeError>>() <= 120);
}

/// `?` takes each of them into the error type that a service has.
#[test]
fn errors_box() {
    fn service(refuse: u8) -> Result<(), Box<dyn Error + Send + Sync>> {
        let runtime = Runtime::builder().max(Limit::Bytes(if refuse == 0 { 10 } else { 20 })).build()?;
        let group = runtime.root().create(if refuse == 1 { "" } else { "q" }, Limits::new())?;
        let mut charge = group.try_charge(15)?;
        let part = charge.split(if refuse == 2 { 16 } else { 5 })?;
        group.set_max(if refuse == 3 { "200%".parse::<Limit>()? } else { Limit::Unlimited })?;
        charge.merge(if refuse == 4 { runtime.root().try_charge(1)? } else { part })?;
        if refuse == 5 {
            runtime.root().offline()?
        } else {
            group.offline()?
        }
        Ok(())
    }
    let said: Vec<String> =
        (0..7).map(|refuse| service(refuse).err().map_or_else(String::new, |e| e.to_string())).collect();
    assert!(said[..6].iter().all(|line| !line.is_empty() && !line.contains('\n')), "{said:?}");
    assert_eq!(said[6], "");
}

/// The compiler whose words stand in `tests/ui/*.stderr`.
const WORDS_OF: &str = "rustc 1.95.";

/// There is no group without a runtime, none before its pools, and no charge without a group.
#[test]
fn what_does_not_compile() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("--version").output().expect("the compiler of this test");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if !version.starts_with(WORDS_OF) {
        println!("skipped: {version} says it in other words than {WORDS_OF}");
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("ui/group_without_runtime.rs");
    cases.compile_fail("ui/group_before_its_pools.rs");
    cases.compile_fail("ui/charge_is_used_once.rs");
    cases.pass("ui/group_of_a_runtime.rs");
}
