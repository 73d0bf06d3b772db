//! Promises of the types: which may cross threads, which owns what, how large a charge is. Most of
//! it holds as soon as it compiles.

use std::error::Error;
use std::fs;
use std::hash::Hash;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};
use std::process::Command;

use memcg::CentralStock;
use memcg::allocator::Owner;
use memcg::errors::{
    CreateError, LimitError, MergeError, NameError, OfflineError, PushError, SpecError, SplitError,
};
use memcg::figures::{
    Events, PeakWindow, Snapshot, SnapshotRow, SpecChanges, StatItem, Stats, TreeCounts,
};
use memcg::inspect::VerifyReport;
use memcg::kmem::{
    Kmem, KmemMember, KmemMover, NodeAccount, PackedKmem, Placement, Precharge, PrechargeBound,
    Topology,
};
use memcg::{
    ApplyOptions, BelowHighFuture, BuildError, Bytes, Charge, ChargeError, ChargeFuture, Charged,
    ChargedVec, Charges, ChargesIter, CheckpointFuture, CounterConfig, CounterKey, EnterGuard,
    Event, EventFuture, EventInfo, Group, GroupCounter, GroupId, GroupScope, GroupSpec, Grouped,
    Limit, Limits, OnFull, OomPolicy, OverLimitError, PageCounter, RawCharges, ReclaimContext,
    ReclaimPromise, Registration, Runtime, RuntimeBuilder, StatKey, Unit,
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
    send::<Vec<(Vec<u8>, Charge)>>();
    shared::<Charge>();
    shared::<Charges>();
    shared::<ChargesIter>();
    // Handles are for every thread.
    handle::<Group>();
    shared::<PageCounter>();
    shared::<Runtime>();
    shared::<RuntimeBuilder>();
    shared::<GroupCounter>();
    shared::<PeakWindow>();
    // Names and figures are plain data.
    plain::<GroupId>();
    plain::<CounterKey>();
    plain::<Limits>();
    plain::<ApplyOptions>();
    plain::<Limit>();
    plain::<Bytes>();
    plain::<NameError>();
    plain::<SplitError>();
    plain::<TreeCounts>();
    plain::<StatKey>();
    plain::<Unit>();
    plain::<StatItem<'static>>();
    shared::<Stats>();
    shared::<Snapshot>();
    shared::<SnapshotRow>();
    shared::<GroupSpec>();
    shared::<SpecChanges>();
    shared::<VerifyReport>();
    // A future goes where its task goes. A registration stays with the thread that owns it.
    future::<ChargeFuture>();
    future::<EventFuture>();
    future::<CheckpointFuture>();
    future::<Grouped<ChargeFuture>>();
    shared::<Grouped<Vec<Charge>>>();
    shared::<Events>();
    send::<Registration>();
    plain::<Event>();
    plain::<OnFull>();
    plain::<OomPolicy>();
    // Whatever is refused can be reported from any thread.
    error::<ChargeError>();
    error::<OverLimitError>();
    error::<CreateError>();
    error::<NameError>();
    error::<LimitError>();
    error::<SpecError>();
    error::<OfflineError>();
    error::<SplitError>();
    error::<MergeError>();
    error::<BuildError>();
    // A panic beside them leaves them as they are.
    unwinds::<(Runtime, RuntimeBuilder, CounterConfig, PageCounter)>();
    unwinds::<(
        Group,
        GroupScope,
        GroupCounter,
        EnterGuard,
        RawCharges,
        Registration,
    )>();
    unwinds::<(
        Charge,
        Charges,
        ChargesIter,
        Charged<Vec<u8>>,
        ChargedVec<u8>,
        CentralStock,
        Owner,
    )>();
    unwinds::<(
        ChargeFuture,
        EventFuture,
        BelowHighFuture,
        CheckpointFuture,
        Grouped<ChargeFuture>,
    )>();
    unwinds::<(ReclaimContext<'static>, ReclaimPromise, EventInfo)>();
    unwinds::<(
        Kmem,
        PackedKmem,
        KmemMember,
        KmemMover,
        NodeAccount,
        Placement,
        PrechargeBound,
        Precharge,
        Topology,
    )>();
    unwinds::<(Snapshot, Stats, PeakWindow, VerifyReport)>();
    unwinds::<(
        BuildError,
        ChargeError,
        OverLimitError,
        MergeError,
        PushError<u8>,
    )>();
};

/// Two words, and one for the handle; both have room for `None`.
#[test]
fn sizes() {
    assert_eq!((size_of::<Charge>(), size_of::<Option<Charge>>()), (16, 16));
    assert_eq!((size_of::<Group>(), size_of::<Option<Group>>()), (8, 8));
    // A refusal is plain data, for an allocator may be refused, and names the groups that hold
    // most. A hit writes three words of it.
    assert!(size_of::<Result<Charge, ChargeError>>() <= 120);
}

#[test]
fn handles_print_what_they_are() {
    let runtime = Runtime::builder().build().expect("defaults hold");
    let scope = runtime
        .root()
        .scope("s1", memcg::Limits::new())
        .expect("a name");
    let charge = scope.charge(5).expect("no limit");
    assert_eq!(
        format!("{charge:?}"),
        r#"Charge { group: "/s1", bytes: 5 }"#
    );
    let printed = format!("{scope:?}");
    assert!(
        printed.starts_with("GroupScope(") && printed.contains("/s1"),
        "{printed}"
    );
}

/// `?` takes each of them into the error type that a service has.
#[test]
fn errors_box() {
    fn service(refuse: u8) -> Result<(), Box<dyn Error + Send + Sync>> {
        let runtime = Runtime::builder()
            .max(Limit::Bytes(if refuse == 0 { 10 } else { 20 }))
            .build()?;
        let group = runtime
            .root()
            .create(if refuse == 1 { "" } else { "q" }, Limits::new())?;
        let mut charge = group.charge(15)?;
        let part = charge.split(if refuse == 2 { 16 } else { 5 })?;
        let max = if refuse == 3 {
            "200%".parse::<Limit>()?
        } else {
            Limit::Unlimited
        };
        group.set_max(max)?;
        let merged = if refuse == 4 {
            runtime.root().charge(1)?
        } else {
            part
        };
        charge.merge(merged)?;
        if refuse == 5 {
            runtime.root().offline()?
        } else {
            group.offline()?
        }
        Ok(())
    }
    let said: Vec<String> = (0..7)
        .map(|refuse| {
            service(refuse)
                .err()
                .map_or_else(String::new, |e| e.to_string())
        })
        .collect();
    assert!(
        said[..6]
            .iter()
            .all(|line| !line.is_empty() && !line.contains('\n')),
        "{said:?}"
    );
    assert_eq!(said[6], "");
}

/// There is no group without a runtime, none before its pools, and no charge without a group. A
/// line of `tests/ui` that the compiler refuses ends with `//~ CODE`, or with that and parts of the
/// error and its notes between `…`; a file without such a line compiles.
#[test]
fn what_does_not_compile() {
    let program = std::env::current_exe().expect("the path of this program");
    let dependencies = program.parent().expect("a folder of what cargo has built");
    let library = newest_library(dependencies);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
    for name in [
        "group_without_runtime",
        "group_before_its_pools",
        "charge_is_used_once",
        "group_of_a_runtime",
        "amounts_limits_and_names",
    ] {
        let file = folder.join(name).with_extension("rs");
        let text =
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let marked = |(at, line): (usize, &str)| {
            Some((at as u64 + 1, line.split_once("//~ ")?.1.to_owned()))
        };
        let expected: Vec<(u64, String)> = text.lines().enumerate().filter_map(marked).collect();
        let mut said = refusals(&file, &library, dependencies);
        said.sort();
        let says = |said: &str, wanted: &str| {
            let mut parts = wanted.split(" … ");
            parts.next().is_some_and(|first| said.starts_with(first))
                && parts.all(|part| said.contains(part))
        };
        let fits = said
            .iter()
            .zip(&expected)
            .all(|(said, wanted)| said.0 == wanted.0 && says(&said.1, &wanted.1));
        assert!(
            fits && said.len() == expected.len(),
            "{name}: {said:?}, and not {expected:?}"
        );
    }
}

/// The library that this program was built with. Older ones have other features, or are of an older
/// source.
fn newest_library(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder)
        .expect("the folder of this program")
        .filter_map(Result::ok);
    let library = files.map(|file| file.path()).filter(|path| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        name.starts_with("libmemcg-") && name.ends_with(".rlib")
    });
    let written = |path: &PathBuf| fs::metadata(path).and_then(|file| file.modified()).ok();
    library
        .max_by_key(written)
        .expect("cargo has built the library that this test needs")
}

/// Line, code and text of each error, with its notes, that the compiler finds in a file.
fn refusals(file: &Path, library: &Path, dependencies: &Path) -> Vec<(u64, String)> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .args([
            "--edition=2024",
            "--emit=metadata",
            "--error-format=json",
            "-o",
        ])
        .arg(library.with_extension("ui"));
    rustc
        .arg("-L")
        .arg(format!("dependency={}", dependencies.display()));
    rustc
        .arg("--extern")
        .arg(format!("memcg={}", library.display()))
        .arg(file);
    let output = rustc.output().expect("the compiler of this test");
    let said = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<(u64, String)> = said.lines().filter_map(refusal).collect();
    assert_eq!(
        errors.is_empty(),
        output.status.success(),
        "{}: {said}",
        file.display()
    );
    errors
}

/// The error that a line of the compiler's JSON reports. The last error counts those before it, and
/// has no place.
fn refusal(line: &str) -> Option<(u64, String)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let place = message["spans"]
        .as_array()?
        .iter()
        .find(|span| span["is_primary"] == true)?;
    let code = message["code"]["code"].as_str().unwrap_or("without a code");
    let notes = message["children"].as_array()?.iter();
    let notes: Vec<&str> = notes.filter_map(|note| note["message"].as_str()).collect();
    let said = format!(
        "{code} {} {}",
        message["message"].as_str().unwrap_or_default(),
        notes.join(" ")
    );
    (message["level"] == "error").then(|| (place["line_start"].as_u64().unwrap_or_default(), said))
}
