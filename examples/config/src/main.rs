//! A tree of groups from a file that is read again while the program runs. A file that is wrong
//! changes nothing.
//!
//! ```text
//! cargo run -p memcg-examples-config [FILE [SECONDS]] [--observe]
//! ```

mod settings;

use std::collections::VecDeque;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use memcg::errors::SpecError;
use memcg::figures::GroupChange;
use memcg::{
    ApplyOptions, Bytes, Charged, Event, Group, GroupSpec, Reclaim, ReclaimContext,
    ReclaimPriority, Registration, Runtime,
};
use settings::{SettingsError, parse, read};

const LOOK_EVERY: Duration = Duration::from_millis(100);
const PRINT_EVERY: Duration = Duration::from_secs(1);
const AS_THEY_WERE: &str = "the limits stay as they were";
const ENTRY: usize = 64 << 10;
/// The bytes that a tenant needs as long as it is there: no reclaimer gives them.
const PINNED: usize = 1 << 20;

#[derive(Default)]
struct Cache(Mutex<VecDeque<Charged<Vec<u8>>>>);

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut entries = self.0.lock().unwrap();
        let mut freed = 0;
        while freed < want
            && let Some(entry) = entries.pop_front()
        {
            freed += Charged::charge(&entry).bytes();
        }
        freed
    }
}

/// Limits from a file that is read again while the program runs.
#[derive(Parser)]
struct Args {
    #[arg(default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/limits.toml"))]
    file: PathBuf,
    #[arg(default_value_t = 5)]
    seconds: u64,
    /// Tries the limits out: nothing is refused, delayed or evicted, and each tenant is told what
    /// would have been.
    #[arg(long)]
    observe: bool,
}

/// A group of the file that is online, and its cache.
struct Tenant {
    group: Group,
    _reclaimer: Registration,
}

/// Fills the tenant's cache until the tenant goes offline.
fn work(group: &Group, cache: &Cache, stop: &AtomicBool) {
    let _pinned = group.force_charge(PINNED);
    while !stop.load(Relaxed) {
        match Charged::make(group, ENTRY, || vec![0; ENTRY]) {
            Ok(entry) => cache.0.lock().unwrap().push_back(entry),
            Err(error) if error.is_offline() => break,
            Err(_) => {} // not cached
        }
        thread::sleep(Duration::from_millis(1));
    }
    cache.0.lock().unwrap().clear();
}

// ANCHOR: apply
/// Brings the tree to what the file says, or changes nothing. Groups come and go, and each that
/// comes starts to work.
fn update(
    runtime: &Runtime,
    tenants: &mut Vec<Tenant>,
    spec: &GroupSpec,
    start: impl Fn(Group, Arc<Cache>),
) -> Result<(), SpecError> {
    let changes = spec.apply_with(&runtime.root(), ApplyOptions::new().prune(true))?;
    print!("{changes}");
    tenants.retain(|tenant| !tenant.group.is_offline()); // its thread sees it, and ends
    for GroupChange { group, .. } in changes.created {
        let cache = Arc::new(Cache::default());
        let reclaimer = group.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
        start(group.clone(), cache);
        tenants.push(Tenant {
            group,
            _reclaimer: reclaimer,
        });
    }
    Ok(())
}
// ANCHOR_END: apply

/// What the limits would have done if they acted.
fn tell_observed(tenants: &[Tenant]) {
    for Tenant { group, .. } in tenants {
        let path = group.path();
        let times = group.events().get(Event::Observed);
        if times > 0 {
            let above = Bytes(group.usage().saturating_sub(group.max()));
            println!("{path}: {times} charges went above its max; it holds {above} too much");
        }
    }
}

// ANCHOR: reload
/// The tree of the file, if it is not the same as before.
fn changed(file: &Path, before: &mut Option<String>) -> Result<Option<GroupSpec>, SettingsError> {
    let text = match read(file) {
        Ok(text) => Some(text),
        Err(_) if before.is_none() => return Ok(None), // said already
        Err(error) => {
            *before = None;
            return Err(error);
        }
    };
    if text == *before {
        return Ok(None);
    }
    *before = text; // also where it is wrong: one message for each change
    before.as_deref().map(|text| parse(file, text)).transpose()
}
// ANCHOR_END: reload

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let Args {
        file,
        seconds,
        observe,
    } = Args::parse();
    let text = read(&file)?;
    let first = parse(&file, &text)?;
    let mut before = Some(text);
    let runtime = Runtime::builder().build()?;
    // Holds for all groups below, also for those that come later.
    runtime.root().set_observe_only(observe);
    let mut tenants = Vec::new();
    let stop = AtomicBool::new(false);
    println!("{seconds} s; the limits follow {}", file.display());

    let result = thread::scope(|scope| {
        let stop = &stop;
        let start =
            |group: Group, cache: Arc<Cache>| drop(scope.spawn(move || work(&group, &cache, stop)));
        let mut follow = || {
            update(&runtime, &mut tenants, &first, start)?;
            let began = Instant::now();
            let mut next = PRINT_EVERY;
            while began.elapsed() < Duration::from_secs(seconds) {
                thread::sleep(LOOK_EVERY);
                match changed(&file, &mut before) {
                    Ok(None) => {}
                    Ok(Some(spec)) => {
                        println!("{} has changed", file.display());
                        if let Err(error) = update(&runtime, &mut tenants, &spec, start) {
                            println!("{error}; {AS_THEY_WERE}");
                        }
                    }
                    Err(error) => println!("{error}; {AS_THEY_WERE}"),
                }
                if began.elapsed() >= next {
                    println!("{}", runtime.snapshot());
                    if observe {
                        tell_observed(&tenants);
                    }
                    next += PRINT_EVERY;
                }
            }
            Ok(())
        };
        let result = follow();
        stop.store(true, Relaxed);
        result
    });
    println!("{}", runtime.verify());
    result
}
