//! Limits from a file that is read again while the program runs. A file that is wrong changes
//! nothing.
//!
//! ```text
//! cargo run -p memcg-examples-config [FILE [SECONDS]]
//! ```

mod settings;

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use memcg::{
    Bytes, ChargeError, Charged, Group, Limit, Limits, Percent, Priority, Reclaim, ReclaimContext,
    Registration, Runtime,
};
use settings::{Settings, SettingsError, read};

const LOOK_EVERY: Duration = Duration::from_millis(100);
const PRINT_EVERY: Duration = Duration::from_secs(1);
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
}

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
            Err(ChargeError::Offline { .. }) => break,
            Err(_) => {} // not cached
        }
        thread::sleep(Duration::from_millis(1));
    }
    cache.0.lock().unwrap().clear();
}

// ANCHOR: apply
/// Sets all limits, or none: one that the file does not name gets its default.
fn apply(group: &Group, limits: &Limits) -> Result<(), Box<dyn Error>> {
    let [elevated, critical] =
        [limits.elevated, limits.critical].map(|percent| percent.map_or(0, Percent::get));
    let whole = Limits::new()
        .pressure_levels(elevated, critical)
        .share(limits.share.unwrap_or(0))
        .min(limits.min.unwrap_or(Limit::Bytes(0)))
        .low(limits.low.unwrap_or(Limit::Bytes(0)))
        .soft(limits.soft.unwrap_or(Limit::Unlimited))
        .high(limits.high.unwrap_or(Limit::Unlimited))
        .max(limits.max.unwrap_or(Limit::Unlimited));
    group.set_limits(whole)?; // has memory reclaimed
    let above = group.usage().saturating_sub(group.max());
    if above > 0 {
        let path = group.path();
        let max = Bytes(group.max());
        println!(
            "{path} holds {} above its max {max}: it gets nothing until it gives them back",
            Bytes(above)
        );
    }
    Ok(())
}
// ANCHOR_END: apply

/// Brings the tree to what the file says: tenants come, go, and get their limits.
fn update(
    runtime: &Runtime,
    tenants: &mut BTreeMap<String, Tenant>,
    settings: &Settings,
    start: impl Fn(Group, Arc<Cache>),
) -> Result<(), Box<dyn Error>> {
    apply(&runtime.root(), &Limits::new().max(settings.max))?;
    for (name, limits) in &settings.tenants {
        if let Some(tenant) = tenants.get(name) {
            apply(&tenant.group, limits.get_ref())?;
            continue;
        }
        let group = runtime.root().create(name.as_str(), *limits.get_ref())?;
        let cache = Arc::new(Cache::default());
        let reclaimer =
            group.register_reclaimer(Arc::clone(&cache) as Arc<dyn Reclaim>, Priority::NORMAL);
        start(group.clone(), cache);
        tenants.insert(
            name.clone(),
            Tenant {
                group,
                _reclaimer: reclaimer,
            },
        );
    }
    tenants.retain(|name, tenant| {
        let stays = settings.tenants.contains_key(name);
        if !stays {
            tenant.group.offline_tree(); // its thread sees it, and ends
        }
        stays
    });
    Ok(())
}

// ANCHOR: reload
/// The settings of the file, if they are not the same as before.
fn changed(file: &Path, before: &mut Option<String>) -> Result<Option<Settings>, SettingsError> {
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
    before
        .as_deref()
        .map(|text| Settings::parse(file, text))
        .transpose()
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
    let Args { file, seconds } = Args::parse();
    let text = read(&file)?;
    let first = Settings::parse(&file, &text)?;
    let mut before = Some(text);
    let runtime = Runtime::builder().max(first.max).build()?;
    let mut tenants = BTreeMap::new();
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
                    Ok(Some(settings)) => {
                        println!("{} has changed", file.display());
                        update(&runtime, &mut tenants, &settings, start)?;
                    }
                    Err(error) => println!("{error}; the limits stay as they were"),
                }
                if began.elapsed() >= next {
                    println!("{}", runtime.snapshot());
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
