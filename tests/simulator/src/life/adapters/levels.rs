//! Control groups in each other, whose files have limits, none, or rubbish, or are gone.
//!
//! What they mean is said again, naively. Threads that follow them are waited for until they have
//! seen the files as they are.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memcg::{Bytes, Charge, Limit, Percent, Reclaim, ReclaimContext, ReclaimPriority, Runtime};
use memcg_host::{FollowState, Host, MaxOfHost};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use super::host::{Gives, MACHINE, PERIOD, wait_for, write};
use crate::script::pick;

const STEPS: usize = 6;

/// The own group first.
const GROUPS: [&str; 3] = ["a/b", "a", ""];
const FILES: [&str; 3] = ["memory.max", "memory.high", "memory.swap.max"];

/// Swap of the machine.
const SWAP: u64 = 8 << 20;

/// Anonymous memory of the process.
const ANON: u64 = 2 << 20;

/// What the machine has.
fn meminfo() -> String {
    let (machine, swap) = (MACHINE >> 10, SWAP >> 10);
    format!("MemTotal:       {machine} kB\nSwapTotal:      {swap} kB\n")
}

/// What a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Nothing,
    Unlimited,
    Rubbish,
    Bytes(u64),
}

impl Says {
    fn draw(rng: &mut Xoshiro256PlusPlus) -> Says {
        match rng.random_range(0..8) {
            0 | 1 => Says::Nothing,
            2 | 3 => Says::Unlimited,
            4 if rng.random_bool(0.3) => Says::Rubbish,
            5 if rng.random_bool(0.2) => Says::Bytes(0),
            _ => Says::Bytes(rng.random_range(1..40) << 19),
        }
    }

    fn bytes(self) -> Option<u64> {
        match self {
            Says::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The files of a machine, and what they say.
struct Machine {
    folder: TempDir,
    /// By group and file.
    says: [[Says; 3]; 3],
    /// What each group holds; `None`: its file is gone.
    holds: [Option<u64>; 3],
}

impl Machine {
    fn new() -> Machine {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path();
        write(root, "proc/meminfo", &meminfo());
        let status = format!("VmRSS: {} kB\nRssAnon: {} kB\n", ANON >> 9, ANON >> 10);
        write(root, "proc/self/status", &status);
        write(root, "proc/self/cgroup", "0::/a/b\n");
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n";
        write(root, "proc/self/mountinfo", mounts);
        write(root, "sys/fs/cgroup/a/b/cgroup.procs", "1\n");
        Machine {
            folder,
            says: [[Says::Nothing; 3]; 3],
            holds: [None; 3],
        }
    }

    fn host(&self) -> Host {
        Host::at(self.folder.path())
    }

    fn path(&self, group: usize, file: &str) -> String {
        match GROUPS[group] {
            "" => format!("sys/fs/cgroup/{file}"),
            group => format!("sys/fs/cgroup/{group}/{file}"),
        }
    }

    fn replace(&self, path: &str, text: Option<String>) {
        match text {
            Some(text) => write(self.folder.path(), path, &text),
            None => _ = std::fs::remove_file(self.folder.path().join(path)),
        }
    }

    fn say(&mut self, group: usize, file: usize, says: Says) {
        self.says[group][file] = says;
        let text = match says {
            Says::Nothing => None,
            Says::Unlimited => Some(String::from("max\n")),
            Says::Rubbish => Some(String::from("a lot\n")),
            Says::Bytes(bytes) => Some(format!("{bytes}\n")),
        };
        self.replace(&self.path(group, FILES[file]), text);
    }

    /// Memory of its own, shared, and of sockets; and of files, which the kernel can give back.
    fn hold(&mut self, group: usize, holds: Option<[u64; 3]>) {
        self.holds[group] = holds.map(|kinds| kinds.iter().sum());
        let text = holds.map(|[anon, shared, sockets]| {
            format!("anon {anon}\nfile 900000000\nshmem {shared}\nsock {sockets}\n")
        });
        self.replace(&self.path(group, "memory.stat"), text);
    }

    fn limit(&self, group: usize, file: usize) -> Option<(u64, PathBuf)> {
        let bytes = self.says[group][file].bytes()?;
        // A high of nothing is none.
        let path = self.folder.path().join(self.path(group, FILES[file]));
        (file != 1 || bytes > 0).then_some((bytes, path))
    }

    /// The least that a file of each level says, of the level that is nearest.
    fn least(&self, file: usize) -> Option<(u64, PathBuf)> {
        let all = (0..3).filter_map(|group| self.limit(group, file));
        all.min_by_key(|limit| limit.0)
    }

    fn rubbish(&self) -> usize {
        let all = self.says.iter().flatten();
        all.filter(|&&says| says == Says::Rubbish).count()
    }

    /// The level that holds the largest part of its limit: its file, its limit and what it holds. And
    /// the most that one has too much.
    fn fullest(&self) -> (Level, u64) {
        let mut levels: Vec<Level> = Vec::new();
        for group in 0..3 {
            for (bytes, path) in (0..2).filter_map(|file| self.limit(group, file)) {
                levels.push((Some(path), bytes, self.holds[group].unwrap_or(ANON)));
            }
        }
        levels.push((None, MACHINE, ANON));
        let above = levels
            .iter()
            .map(|&(_, limit, held)| held.saturating_sub(limit * 9 / 10))
            .max();
        let part = |level: &Level| (u128::from(level.2) << 64) / u128::from(level.1.max(1));
        let fullest = levels.into_iter().reduce(|most, other| {
            if part(&other) > part(&most) {
                other
            } else {
                most
            }
        });
        (fullest.expect("the machine is one"), above.unwrap_or(0))
    }
}

type Level = (Option<PathBuf>, u64, u64);

/// The limits are read, of files that change in between.
pub(super) fn read(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut machine = Machine::new();
    for _ in 0..STEPS {
        for _ in 0..rng.random_range(1..5) {
            let (group, file) = (rng.random_range(0..3), rng.random_range(0..3));
            machine.say(group, file, Says::draw(rng));
        }
        let limits = machine.host().limits().expect("the machine's memory");
        let of = |limit: &Option<memcg_host::HostLimit>| {
            let limit = limit.as_ref();
            limit.map(|limit| (limit.bytes, limit.path.clone()))
        };
        let found = (limits.machine, of(&limits.max), of(&limits.high));
        let known = (MACHINE, machine.least(0), machine.least(1));
        assert_eq!(found, known, "of {:?}", machine.says);
        let swap = machine.least(2).map_or(SWAP, |least| least.0.min(SWAP));
        assert_eq!(limits.swap, swap, "swap of {:?}", machine.says);
        let least = [known.1, known.2].into_iter().flatten();
        let least = least.map(|limit| limit.0).chain([MACHINE]).min();
        assert_eq!(Some(limits.bytes()), least, "of {:?}", machine.says);
        let is_said = |says: Says| matches!(says, Says::Unlimited | Says::Bytes(_));
        // A high of nothing is none.
        let limits_memory =
            |says: &[Says; 3]| is_said(says[0]) || is_said(says[1]) && says[1] != Says::Bytes(0);
        let version = u8::from(machine.says.iter().any(limits_memory)) * 2;
        let found = (limits.version, limits.unread.len());
        let known = (version, machine.rubbish());
        assert_eq!(found, known, "version, and faults of {:?}", machine.says);
        assert_eq!(limits.whole().is_ok(), known.1 == 0, "all is read");
    }
}

/// Memory is asked for while a level holds too much, and what is told is what the files say now.
pub(super) fn reclaim(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut machine = Machine::new();
    let runtime = Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let root = runtime.root();
    let cache = Arc::new(Gives::new(root.force_charge(Bytes(MACHINE))));
    let asked = Arc::clone(&cache) as Arc<dyn Reclaim>;
    let registration = root.register_reclaimer(asked, ReclaimPriority::NORMAL);
    let reclaimer = machine.host().reclaimer(&root).period(PERIOD);
    let guard = reclaimer.start().expect("files that can be read");
    let mut has_asked = false;
    for _ in 0..STEPS {
        let group = rng.random_range(0..3);
        if rng.random() {
            machine.say(group, rng.random_range(0..3), Says::draw(rng));
        } else {
            let kinds = [20, 15, 5].map(|most| rng.random_range(0..most) << 19);
            machine.hold(group, rng.random_bool(0.7).then_some(kinds));
        }
        let (level, above) = machine.fullest();
        let has_fault = machine.rubbish() > 0;
        if rng.random_bool(0.2) {
            // Nothing is known of the machine for a while: that is a fault, and all else stays.
            machine.replace("proc/meminfo", None);
            wait_for(
                || guard.state().fault.is_some(),
                || format!("no fault: {:?}", guard.state()),
            );
            machine.replace("proc/meminfo", Some(meminfo()));
        }
        let is_seen = || {
            let state = guard.state();
            let found = state.level.map(|it| (it.path, it.limit, it.held));
            found.as_ref() == Some(&level) && state.fault.is_some() == has_fault
        };
        wait_for(is_seen, || {
            format!("{:?}, not {level:?}, faults: {has_fault}", guard.state())
        });
        has_asked |= above > 0;
        if has_asked {
            let is_given = || root.usage() == 0;
            wait_for(is_given, || {
                format!("{above} too much: {:?}", guard.state())
            });
        } else {
            let state = guard.state();
            assert_eq!((state.asked, root.usage()), (0, MACHINE), "{state:?}");
        }
    }
    drop((guard, registration));
    drop(cache);
    assert_eq!(root.live(), 0, "live at the end");
}

/// The process says how much anonymous memory it has, of which a part is swapped out; `None`: it says
/// nothing.
fn process_has(machine: &Machine, anon: Option<u64>) {
    status_says(machine.folder.path(), anon);
}

fn status_says(folder: &Path, anon: Option<u64>) {
    let status = anon.map_or(String::from("Name: life\n"), |anon| {
        let (anon, swapped) = ((anon >> 10) - (anon >> 12), anon >> 12);
        format!(
            "VmRSS: {} kB\nRssAnon: {anon} kB\nVmSwap: {swapped} kB\n",
            anon * 2
        )
    });
    write(folder, "proc/self/status", &status);
}

/// A max is what is granted less what is not charged, or what the service has set since the limits
/// have changed last, if that is less.
pub(super) fn make_room(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut machine = Machine::new();
    let share = Percent::new(50).expect("a percentage");
    let mut limit = 16 << 20;
    machine.say(0, 0, Says::Bytes(limit));
    let runtime = Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let root = runtime.root();
    let held = root.charge(Bytes(1 << 20)).expect("no limit");
    let allocated = Arc::new(AtomicU64::new(3 << 20));
    let told = Arc::clone(&allocated);
    let follower = machine.host().follower(share).period(PERIOD);
    // The allocator says what it has handed out, or the process what it has.
    let by_allocator = rng.random();
    process_has(&machine, Some(3 << 20));
    let follower = if by_allocator {
        follower.allocated(move || match told.load(Ordering::SeqCst) {
            u64::MAX => panic!("an allocator that panics on purpose"),
            told => told,
        })
    } else {
        follower.less_uncharged()
    };
    let guard = follower.start(&root).expect("files that can be read");
    let mut by_hand = u64::MAX;
    for _ in 0..STEPS {
        let granted = |limit: u64| limit / 2;
        let target = |limit: u64, by_hand: u64| {
            let uncharged = allocated.load(Ordering::SeqCst) - held.bytes();
            let room = granted(limit).saturating_sub(uncharged);
            room.max(granted(limit) / 4).min(by_hand)
        };
        match rng.random_range(0..8) {
            0 => {
                let other = pick(rng, &[12, 16, 24, 40]) << 20;
                if other != limit {
                    limit = other;
                    by_hand = u64::MAX;
                    machine.say(0, 0, Says::Bytes(limit));
                }
            }
            1 => {
                let anon = rng.random_range(1..20) << 20;
                allocated.store(anon, Ordering::SeqCst);
                process_has(&machine, Some(anon));
            }
            3 if by_allocator => {
                // Where the allocator says nothing the process does.
                let anon = rng.random_range(1..20) << 20;
                process_has(&machine, Some(anon));
                allocated.store(u64::MAX, Ordering::SeqCst);
                let room = granted(limit).saturating_sub(anon - held.bytes());
                let target = room.max(granted(limit) / 4).min(by_hand);
                wait_for(
                    || root.max().abs_diff(target) <= granted(limit) / 100 + 1,
                    || format!("{target}, by the process: {:?}", guard.state()),
                );
                allocated.store(anon, Ordering::SeqCst);
            }
            // What a level above says cannot be read: what is less holds at once, and what is more once
            // all is read again.
            4 => {
                let other = pick(rng, &[12, 16, 24, 40]) << 20;
                machine.say(1, 0, Says::Rubbish);
                machine.say(0, 0, Says::Bytes(other));
                let least = granted(other.min(limit));
                let is_seen = || {
                    let state = guard.state();
                    state.fault.is_some() && state.host == other && state.granted == least
                };
                wait_for(is_seen, || format!("not {least}: {:?}", guard.state()));
                machine.say(1, 0, Says::Nothing);
                if other != limit {
                    by_hand = u64::MAX;
                }
                limit = other;
            }
            // The machine says nothing for a while, and all stays.
            5 => {
                let before = guard.state();
                machine.replace("proc/meminfo", None);
                wait_for(
                    || guard.state().fault.is_some(),
                    || format!("no fault: {:?}", guard.state()),
                );
                let found = guard.state();
                assert_eq!((found.host, found.granted), (before.host, before.granted));
                machine.replace("proc/meminfo", Some(meminfo()));
            }
            3 => {
                // Where it says nothing the figure stays, wherever it was on its way.
                let before = guard.state().uncharged;
                process_has(&machine, None);
                let is_seen = || guard.state().fault.is_some();
                wait_for(is_seen, || format!("no fault: {:?}", guard.state()));
                let (anon, state) = (allocated.load(Ordering::SeqCst), guard.state());
                let least = before.min(anon - held.bytes());
                assert!(state.uncharged >= least, "{state:?}, and {before} before");
                process_has(&machine, Some(anon));
            }
            // The process is moved into another group, beside its own or below it, and back.
            6 => {
                let other = pick(rng, &[12, 16, 24, 40]) << 20;
                let group = pick(rng, &["c", "a/b/d"]);
                let file = format!("sys/fs/cgroup/{group}/memory.max");
                machine.replace(&file, Some(format!("{other}\n")));
                let there = match group {
                    "c" => other,
                    _ => other.min(limit),
                };
                for (own, now) in [(group, there), ("a/b", limit)] {
                    machine.replace("proc/self/cgroup", Some(format!("0::/{own}\n")));
                    let is_seen = || {
                        let state = guard.state();
                        let found = (state.host, state.granted);
                        found == (now, granted(now)) && state.fault.is_none()
                    };
                    wait_for(is_seen, || format!("{own} has {now}: {:?}", guard.state()));
                }
                if there != limit {
                    by_hand = u64::MAX;
                }
            }
            // A limit that moves by next to nothing is followed all the same.
            7 if by_allocator => {
                let uncharged = allocated.load(Ordering::SeqCst) - held.bytes();
                let is_found = || guard.state().uncharged == uncharged;
                wait_for(is_found, || format!("not {uncharged}: {:?}", guard.state()));
                limit += 40_000;
                by_hand = u64::MAX;
                machine.say(0, 0, Says::Bytes(limit));
                let exactly = target(limit, by_hand);
                let is_set = || root.max() == exactly;
                wait_for(is_set, || format!("not {exactly}: {:?}", guard.state()));
            }
            _ => {
                by_hand = target(limit, by_hand) / 4 * 3;
                root.set_max(Limit::Bytes(by_hand)).expect("no percentage");
                wait_for(
                    || guard.state().max == by_hand,
                    || format!("set to {by_hand}, and {:?}", guard.state()),
                );
            }
        }
        let target = target(limit, by_hand);
        let is_there = || {
            let (state, max) = (guard.state(), root.max());
            let is_near = max.abs_diff(target) <= granted(limit) / 100 + 1;
            is_near && state.host == limit && state.max == max && state.fault.is_none()
        };
        wait_for(is_there, || {
            let (state, max) = (guard.state(), root.max());
            format!("a max of {max}, not {target}; set {by_hand}: {state:?}")
        });
    }
    // A look may come between the two.
    let is_shown = || root.inspect().uncharged() == guard.state().uncharged;
    wait_for(is_shown, || {
        let shown = root.inspect().uncharged();
        format!("{shown} is shown as not charged: {:?}", guard.state())
    });
    // It waits for what comes back, while the limit is below it for a moment.
    let mut waits = Box::pin(root.charge_async(Bytes(root.max())));
    let mut context = Context::from_waker(Waker::noop());
    let polled = waits.as_mut().poll(&mut context);
    assert!(polled.is_pending(), "beside what is held: {polled:?}");
    machine.say(0, 0, Says::Bytes(4 << 20));
    let told = || format!("never seen: {:?}", guard.state());
    wait_for(|| guard.state().host == 4 << 20, told);
    drop(guard);
    // Nobody follows any more, and the max stays.
    let polled = waits.as_mut().poll(&mut context);
    let is_right = matches!(&polled, Poll::Ready(Err(error)) if error.is_over_limit());
    assert!(is_right, "of a max that stays: {polled:?}");
    let shown = root.inspect().uncharged();
    assert_eq!(shown, 0, "what is not charged, and nobody looks any more");
    drop(held);
    assert_eq!(root.live(), 0, "live at the end");
}

/// What was charged and given back the allocator has, and hands out again: it is not what nobody is
/// charged for, until the system has got it back.
pub(super) fn heap_stays(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut machine = Machine::new();
    machine.say(0, 0, Says::Bytes(40 << 20));
    let [others, load, left] = [3, 5, 1].map(|least| rng.random_range(least..least + 3) << 20);
    process_has(&machine, Some(others + load));
    let runtime = Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let root = runtime.root();
    let mut held = root.charge(Bytes(load)).expect("no limit");
    let share = Percent::new(50).expect("a percentage");
    let follower = machine.host().follower(share).period(PERIOD);
    let guard = follower.less_uncharged().start(&root);
    let guard = guard.expect("files that can be read");
    let is_found = |why: &str| {
        let is_near = || guard.state().uncharged.abs_diff(others) <= others / 16;
        wait_for(is_near, || {
            format!("not {others}, {why}: {:?}", guard.state())
        });
    };
    is_found("at first");
    held.shrink(Bytes(load - left));
    std::thread::sleep(PERIOD * 3);
    is_found("while the heap keeps what was given back");
    process_has(&machine, Some(others + left));
    // The figure was right before, so the looks that would move it have to come.
    let before = guard.state().uncharged;
    std::thread::sleep(PERIOD * 12);
    is_found("once the system has it back");
    assert!(before.abs_diff(others) <= others / 16);
    drop((guard, held));
    assert_eq!(root.live(), 0, "live at the end");
}

/// A cache whose memory the system has as soon as it is given back. It gives pages, of which the
/// process has some others.
struct Unmaps {
    held: Mutex<Charge>,
    others: u64,
    folder: PathBuf,
}

impl Reclaim for Unmaps {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let gives = want.next_multiple_of(1 << 20);
        let given = held.shrink(Bytes(gives));
        status_says(&self.folder, Some(self.others + held.bytes()));
        given
    }
}

/// The limit falls, and what a cache gives for that goes to the system: what nobody is charged for is
/// as before.
pub(super) fn heap_shrinks(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut machine = Machine::new();
    machine.say(0, 0, Says::Bytes(64 << 20));
    let [others, load] = [3, 16].map(|least| rng.random_range(least..least + 4) << 20);
    process_has(&machine, Some(others + load));
    let runtime = Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let root = runtime.root();
    let cache = Arc::new(Unmaps {
        held: Mutex::new(root.charge(Bytes(load)).expect("no limit")),
        others,
        folder: machine.folder.path().to_path_buf(),
    });
    let asked = Arc::clone(&cache) as Arc<dyn Reclaim>;
    let registration = root.register_reclaimer(asked, ReclaimPriority::NORMAL);
    let share = Percent::new(50).expect("a percentage");
    let follower = machine.host().follower(share).period(PERIOD);
    let guard = follower.less_uncharged().start(&root);
    let guard = guard.expect("files that can be read");
    for limit in [64_u64, 32, 24] {
        let limit = limit << 20;
        machine.say(0, 0, Says::Bytes(limit));
        let max = limit / 2 - others;
        // After some looks as well.
        for _ in 0..2 {
            let is_right = || {
                let uncharged = guard.state().uncharged;
                let [found, known] = [(uncharged, others), (root.max(), max)]
                    .map(|(found, known)| found.abs_diff(known) <= known / 16);
                found && known && root.live() <= root.max()
            };
            wait_for(is_right, || {
                let live = root.live();
                format!(
                    "not {max} beside {others}, {live} live: {:?}",
                    guard.state()
                )
            });
            std::thread::sleep(PERIOD * 6);
        }
    }
    drop((guard, registration, cache));
    assert_eq!(root.live(), 0, "live at the end");
}

/// A `memory.high` that is there for a look or two is none, however often it comes.
pub(super) fn high_for_a_moment(seed: u64) {
    const LOOK: Duration = Duration::from_millis(2);
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut machine = Machine::new();
    let mut limit: u64 = 32 << 20;
    machine.say(0, 0, Says::Bytes(limit));
    let runtime = Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let root = runtime.root();
    let share = Percent::new(50).expect("a percentage");
    let follower = machine.host().follower(share).period(LOOK);
    let guard = follower.start(&root).expect("files that can be read");
    for _ in 0..rng.random_range(1..8) {
        let begun = Instant::now();
        machine.say(0, 1, Says::Bytes(8 << 20));
        std::thread::sleep(LOOK);
        machine.say(0, 1, Says::Nothing);
        if begun.elapsed() > LOOK * 2 {
            // It was there for longer.
            return;
        }
        // A look has found it gone.
        limit ^= 1 << 20;
        machine.say(0, 0, Says::Bytes(limit));
        let told = || format!("not {limit}: {:?}", guard.state());
        wait_for(|| guard.state().host == limit, told);
        assert_eq!(root.max(), limit / 2, "{:?}", guard.state());
    }
}

/// A runtime whose max is the host's, and a hook that hears of each change, and may panic. Where all
/// has to be read, rubbish is an error.
pub(super) fn built(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut machine = Machine::new();
    process_has(&machine, Some(3 << 20));
    let mut limit = 16 << 20;
    machine.say(0, 0, Says::Bytes(limit));
    if rng.random_bool(0.2) {
        machine.say(1, rng.random_range(0..3), Says::Rubbish);
    }
    let (is_strict, uncharged) = (rng.random(), rng.random_range(0..3));
    let states = Arc::<Mutex<Vec<FollowState>>>::default();
    let (hears, panics) = (Arc::clone(&states), rng.random_bool(0.3));
    let builder = Runtime::builder().batch(0).max_of_host("50%");
    let builder = builder.expect("a share").host(machine.host());
    let builder = builder.period(PERIOD).on_change(move |state| {
        hears.lock().expect("nobody panics").push(state.clone());
        assert!(!panics, "a hook that panics on purpose");
    });
    let builder = match uncharged {
        0 => builder,
        1 => builder.less_uncharged(),
        _ => builder.allocated(|| 3 << 20),
    };
    let builder = if is_strict { builder.strict() } else { builder };
    let built = builder.build();
    let is_read = machine.rubbish() == 0;
    assert_eq!(
        built.is_ok(),
        is_read || !is_strict,
        "built, strict: {is_strict}"
    );
    let Ok((runtime, guard)) = built else {
        return;
    };
    let root = runtime.root();
    let max = |limit: u64| limit / 2 - if uncharged > 0 { 3 << 20 } else { 0 };
    let (found, state) = (root.max(), guard.state());
    assert_eq!(found, max(limit), "of the host at first: {state:?}");
    // It is built with it, and nothing has moved since.
    assert!(state.changes == 0, "{state:?}");
    for _ in 0..3 {
        let before = guard.state();
        limit = pick(rng, &[12, 16, 24, 40]) << 20;
        machine.say(0, 0, Says::Bytes(limit));
        let same = before.host == limit;
        let target = if is_read {
            limit
        } else {
            limit.min(before.granted * 2)
        };
        let is_near = || root.max().abs_diff(max(target)) <= target / 100;
        wait_for(
            || is_near() && guard.state().host == limit,
            || format!("not {}: {:?}", max(target), guard.state()),
        );
        // A hook that has panicked before hears of it, too.
        let heard = || {
            states
                .lock()
                .expect("nobody panics")
                .last()
                .map(|it| it.host)
        };
        let is_told = || same || heard() == Some(limit);
        wait_for(is_told, || format!("heard {:?}, not {limit}", heard()));
    }
    drop(guard);
    let states = states.lock().expect("nobody panics");
    for two in states.windows(2) {
        let of = |state: &FollowState| FollowState::clone(state);
        let (mut one, other) = (of(&two[0]), of(&two[1]));
        one.uncharged = other.uncharged;
        assert!(one != other, "no change, and it is told: {other:?}");
    }
    let shown = root.inspect().uncharged();
    assert_eq!(shown, 0, "what is not charged, and nobody looks any more");
}
