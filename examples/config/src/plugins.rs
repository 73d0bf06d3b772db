//! A host of plugins. A file says which there are and what each may hold. A plugin at its own max is
//! refused; where the host is full, the largest one ends; one that the file names no longer is
//! unloaded.
//!
//! ```text
//! cargo run -p memcg-examples-config --bin plugins
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memcg::figures::GroupChange;
use memcg::{
    ApplyOptions, Bytes, ChargeError, Charged, ChargedVec, Event, Group, GroupSpec, Registration,
    Runtime,
};

const FILE: &str = include_str!("../plugins.toml");
const PATIENCE: Duration = Duration::from_secs(10);
const PLUGINS: &str = "/plugins/";

/// What a plugin does for each call of the host. It charges its group.
trait Plugin: Send {
    fn call(&mut self, group: &Group, number: usize) -> Result<(), ChargeError>;
}

/// Keeps nothing. Each eighth picture is larger than the plugin may hold.
struct Thumbnails;

impl Plugin for Thumbnails {
    fn call(&mut self, group: &Group, number: usize) -> Result<(), ChargeError> {
        let bytes = if number % 8 == 7 { 5 << 20 } else { 1 << 20 };
        let picture = Charged::make(group, bytes, || vec![0_u8; bytes])?;
        drop(picture);
        Ok(())
    }
}

/// Keeps an index, which stops to grow.
struct Search {
    postings: ChargedVec<u64>,
}

impl Plugin for Search {
    fn call(&mut self, _: &Group, number: usize) -> Result<(), ChargeError> {
        if self.postings.len() < 200_000 {
            let first = number as u64 * 1_000;
            self.postings.extend(first..first + 1_000)?;
        }
        Ok(())
    }
}

/// Keeps all that it is given.
#[derive(Default)]
struct Leaky {
    pages: Vec<Charged<Vec<u8>>>,
}

impl Plugin for Leaky {
    fn call(&mut self, group: &Group, _: usize) -> Result<(), ChargeError> {
        let page = Charged::make(group, 64 << 10, || vec![1; 64 << 10])?;
        self.pages.push(page);
        Ok(())
    }
}

fn load(group: &Group) -> Option<Box<dyn Plugin>> {
    match &*group.name() {
        "thumbnails" => Some(Box::new(Thumbnails)),
        "search" => Some(Box::new(Search {
            postings: ChargedVec::new(group),
        })),
        "leaky" => Some(Box::<Leaky>::default()),
        _ => None,
    }
}

// ANCHOR: run
/// A plugin that is loaded, on a thread of its own.
struct Loaded {
    group: Group,
    end: Arc<AtomicBool>,
    calls: JoinHandle<(usize, usize)>,
    /// Tells the thread to end when the group is chosen.
    _hook: Registration,
}

impl Loaded {
    fn start(group: Group, mut plugin: Box<dyn Plugin>) -> Loaded {
        let end = Arc::new(AtomicBool::new(false));
        let hook = group.on_cancel({
            let end = Arc::clone(&end);
            move |_| end.store(true, Relaxed) // it must not take long: the thread frees
        });
        let calls = thread::spawn({
            let (group, end) = (group.clone(), Arc::clone(&end));
            move || {
                let (mut calls, mut refused) = (0, 0);
                while !end.load(Relaxed) && !group.is_offline() {
                    refused += usize::from(plugin.call(&group, calls).is_err());
                    calls += 1;
                    thread::sleep(Duration::from_millis(1)); // the next call of the host
                }
                drop(plugin); // its memory is back before the thread ends
                (calls, refused)
            }
        });
        Loaded {
            group,
            end,
            calls,
            _hook: hook,
        }
    }

    /// Ends the plugin, and returns how many calls it had, and how many were refused.
    fn end(self) -> (usize, usize) {
        self.end.store(true, Relaxed);
        self.calls.join().expect("a plugin does not panic")
    }
}
// ANCHOR_END: run

// ANCHOR: reload
/// Brings the plugins to what the file says: all of it, or nothing.
fn reload(
    runtime: &Runtime,
    plugins: &mut BTreeMap<String, Loaded>,
    file: &str,
) -> Result<(), Box<dyn Error>> {
    let spec: GroupSpec = toml::from_str(file)?;
    let changes = spec.apply_with(&runtime.root(), ApplyOptions::new().prune(true))?;
    print!("{changes}");
    for group in changes.removed {
        if let Some(plugin) = plugins.remove(&*group.name()) {
            plugin.end();
        }
    }
    for GroupChange { group, .. } in changes.created {
        if group.path().starts_with(PLUGINS)
            && let Some(plugin) = load(&group)
        {
            plugins.insert(group.name().to_string(), Loaded::start(group, plugin));
        }
    }
    Ok(())
}
// ANCHOR_END: reload

/// Waits until this holds. A machine that is busy takes its time.
fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > Duration::from_secs(60) {
            return Err(format!("not within a minute: {what}"));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder()
        .oom_time(PATIENCE) // a plugin that is in a call does not see at once that it has to end
        .audit(true)
        .build()?;
    let mut plugins = BTreeMap::new();
    reload(&runtime, &mut plugins, FILE)?;

    // The host itself needs memory, and the plugin that leaks has to go.
    let host = runtime.group("/host").ok_or("the file has it")?;
    let leaky = runtime.group("/plugins/leaky").ok_or("the file has it")?;
    until("leaky grows", || leaky.peak() >= 8 << 20)?;
    let held = host.charge(Bytes::mib(6))?;
    until("leaky is gone", || leaky.live() == 0)?;
    let ended = plugins.remove("leaky").ok_or("it was loaded")?.end();
    println!(
        "leaky: ended after {} calls, {} victims",
        ended.0,
        leaky.events().get(Event::OomKill)
    );
    drop(held);

    println!("the file changes: search has a max, leaky is gone");
    let file = FILE.replace("low = \"4 MiB\"", "max = \"8 MiB\"");
    let file = file.split("[groups.plugins.groups.leaky]").next();
    reload(&runtime, &mut plugins, file.ok_or("a part")?)?;
    let wrong = FILE.replace("low =", "lowest =");
    if let Err(error) = reload(&runtime, &mut plugins, &wrong) {
        println!("{error}");
    }

    until("an index is whole", || {
        let search = runtime.group("/plugins/search");
        search.is_some_and(|search| search.live() >= 8 * 200_000)
    })?;
    for (name, plugin) in plugins {
        let group = plugin.group.clone();
        let (calls, refused) = plugin.end();
        println!(
            "{name}: {refused} of {calls} calls refused, peak {}",
            Bytes(group.peak())
        );
        assert!(group.live() == 0 && group.peak() <= group.max());
    }
    println!("{}", runtime.verify());
    Ok(())
}

#[cfg(test)]
#[path = "plugins/heap.rs"]
mod heap;
