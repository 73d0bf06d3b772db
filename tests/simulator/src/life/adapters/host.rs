//! A max that follows the files of the host, in a folder of the life.
//!
//! The threads that follow take no turns: each step waits until they have seen the files.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;
use memcg::{Bytes, Charge, Limits, Percent, Reclaim, ReclaimContext, ReclaimPriority, Runtime};
use memcg_host::{FollowGuard, Host, Reconciler};
use tempfile::TempDir;

use super::super::Life;
use super::LATEST;
use crate::script::Adapter;

pub(super) const MACHINE: u64 = 64 << 20;
const LIMIT: &str = "sys/fs/cgroup/memory.max";

/// Between two looks at the files.
pub(super) const PERIOD: Duration = Duration::from_millis(1);

pub(super) struct Followed {
    folder: TempDir,
    share: Percent,
    /// The group that follows, and the max that was set last.
    follows: Option<(usize, FollowGuard, u64)>,
    /// The limit that the files have; `None`: none that can be read.
    limit: Option<u64>,
}

/// Replaces a file at once: a reader sees the old content or the new.
pub(super) fn write(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let new = path.with_extension("new");
    std::fs::write(&new, content).expect("a file");
    std::fs::rename(new, path).expect("a file");
}

impl Followed {
    fn new() -> Followed {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path();
        let meminfo = format!(
            "MemTotal:       {} kB\nMemFree:        1000 kB\n",
            MACHINE >> 10
        );
        write(root, "proc/meminfo", &meminfo);
        write(root, "proc/self/cgroup", "0::/\n");
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n";
        write(root, "proc/self/mountinfo", mounts);
        write(root, LIMIT, "max\n");
        Followed {
            folder,
            share: Percent::new(50).expect("a percentage"),
            follows: None,
            limit: Some(u64::MAX),
        }
    }

    fn host(&self) -> Host {
        Host::at(self.folder.path())
    }

    /// Nothing follows any more.
    fn end(&mut self) {
        let follows = self.follows.take();
        in_time(move || drop(follows));
    }

    /// What the group may have by the files as they are.
    fn granted(&self) -> Option<u64> {
        Some(self.share.of(self.limit?.min(MACHINE)))
    }
}

/// Does what may wait for a victim by the clock: that stands still at first, so that most runs are the
/// same by the clock, and then goes on.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let begun = Instant::now();
    let works = std::thread::spawn(work);
    while !works.is_finished() {
        if begun.elapsed() > Duration::from_millis(20) {
            clock::advance(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    works
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A cache that gives what it is asked for.
pub(super) struct Gives(Mutex<Charge>);

impl Gives {
    pub(super) fn new(held: Charge) -> Gives {
        Gives(Mutex::new(held))
    }
}

impl Reclaim for Gives {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.shrink(Bytes(want))
    }
}

/// Waits for what a thread of the adapter does.
pub(super) fn wait_for(mut is_so: impl FnMut() -> bool, told: impl Fn() -> String) {
    let until = Instant::now() + LATEST;
    while !is_so() {
        assert!(Instant::now() < until, "{}", told());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The limit falls and rises while the thread that asks caches is busy with a hook, and stands for
/// some looks each time. Afterwards usage comes below the max that is left.
fn follow_while_busy(mut limits: u16) {
    let followed = Followed::new();
    let runtime = Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let group = runtime.root().create("follows", Limits::new());
    let group = group.expect("nothing is in the way");
    let held = group.charge(Bytes(MACHINE / 4)).expect("no limit");
    let cache = Arc::new(Gives::new(held));
    let asked = Arc::clone(&cache) as Arc<dyn Reclaim>;
    let registration = group.register_reclaimer(asked, ReclaimPriority::NORMAL);
    let (is_busy, is_over) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (begins, ends) = (Arc::clone(&is_busy), Arc::clone(&is_over));
    let is_first = AtomicBool::new(true);
    let told = Arc::new(Mutex::new(None));
    let hears = Arc::clone(&told);
    let follower = followed
        .host()
        .follower(followed.share)
        .on_change(move |state| {
            *hears.lock().unwrap_or_else(PoisonError::into_inner) = Some(state.clone());
            if is_first.swap(false, Ordering::SeqCst) {
                begins.wait();
                ends.wait();
            }
        });
    let guard = follower.period(PERIOD).start(&group);
    let guard = guard.expect("files that can be read");
    let grant = |units: u64| {
        let bytes = units * (MACHINE / 16);
        write(followed.folder.path(), LIMIT, &format!("{bytes}\n"));
        let max = followed.share.of(bytes);
        let told = || format!("never seen: {max} of {:?}", guard.state());
        wait_for(|| guard.state().max == max, told);
        std::thread::sleep(Duration::from_millis(4));
    };
    let (mut at, mut changes) = (8, guard.state().changes + 1);
    grant(at);
    is_busy.wait();
    for _ in 0..3 {
        let next = u64::from(limits % 7) + 1;
        grant(next);
        changes += u64::from(next != at);
        at = next;
        limits /= 7;
    }
    is_over.wait();
    let used = || format!("{} are used of {:?}", group.usage(), guard.state());
    wait_for(|| group.usage() <= guard.state().max, used);
    // The hook is told of the last state, a fault and its end included.
    for has_fault in [false, true, false] {
        if has_fault {
            write(followed.folder.path(), LIMIT, "a lot\n");
        } else {
            grant(at);
        }
        let is_told = || {
            let last = told.lock().unwrap_or_else(PoisonError::into_inner);
            let now = guard.state();
            now.fault.is_some() == has_fault && last.as_ref() == Some(&now)
        };
        wait_for(is_told, || {
            format!("{told:?} is told of {:?}", guard.state())
        });
    }
    assert_eq!(guard.state().changes, changes, "how often the max was set");
    drop((guard, registration));
    drop(cache);
    assert_eq!(runtime.root().live(), 0, "live at the end");
}

impl Life {
    pub(super) fn step_host(&mut self, adapter: &Adapter) {
        let mut followed = self.adapters.host.take().unwrap_or_else(Followed::new);
        let follows = followed.follows.as_ref().map(|(group, ..)| *group);
        if follows.is_some_and(|group| !self.twin.groups[group].online) {
            // The thread ends with its group. One that has not had its turn since would still set a max by
            // the files that are about to change.
            followed.end();
        }
        match *adapter {
            Adapter::Follow(group, share) => {
                if let Some(group) = self.group(group).filter(|_| followed.follows.is_none()) {
                    self.follow(&mut followed, group, share);
                }
            }
            Adapter::HostLimit(kib) => {
                let bytes = u64::from(kib) << 10;
                write(followed.folder.path(), LIMIT, &format!("{bytes}\n"));
                followed.limit = Some(bytes);
                self.host_has_changed(&mut followed);
            }
            Adapter::HostFault(is_gone) => {
                if is_gone {
                    let _ = std::fs::remove_file(followed.folder.path().join(LIMIT));
                } else {
                    write(followed.folder.path(), LIMIT, "a lot\n");
                }
                followed.limit = None;
                self.host_has_changed(&mut followed);
            }
            Adapter::Reconcile(group, kib) => {
                if let Some(group) = self.group(group) {
                    self.reconcile(&followed, group, u64::from(kib) << 10);
                }
            }
            Adapter::HostWhileBusy(limits) => follow_while_busy(limits),
            Adapter::Unfollow => {
                if let Some((group, ..)) = &followed.follows {
                    self.max_stays(*group);
                }
                followed.end();
            }
            _ => unreachable!("an operation on the host"),
        }
        self.adapters.host = Some(followed);
        self.settle_accounts();
    }

    fn follow(&mut self, followed: &mut Followed, group: usize, share: u8) {
        followed.share = Percent::new(share).expect("a percentage");
        if followed.limit.is_none() {
            // Without a file from the beginning there is no limit, and no fault.
            write(followed.folder.path(), LIMIT, "max\n");
            followed.limit = Some(u64::MAX);
        }
        let follower = followed.host().follower(followed.share);
        let of = self.handle(group).clone();
        let started = in_time(move || follower.period(PERIOD).start(&of));
        // A reclaimer may have been asked on the thread that follows.
        match started {
            Ok(guard) => {
                let state = guard.state();
                let granted = followed.granted();
                assert_eq!(
                    (Some(state.max), &state.fault),
                    (granted, &None),
                    "{state:?}"
                );
                self.set_by_host(group, state.max);
                followed.follows = Some((group, guard, state.max));
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn set_by_host(&mut self, group: usize, max: u64) {
        self.max_has_moved(group, max);
        self.settle_accounts();
    }

    /// No max of a group and below it moves by itself any more.
    fn max_stays(&mut self, group: usize) {
        let twin = &self.twin;
        self.moved.retain(|&moved, _| !twin.is_within(moved, group));
    }

    /// Waits for the looks that see the files as they are.
    fn host_has_changed(&mut self, followed: &mut Followed) {
        let granted = followed.granted();
        let Some((group, guard, max)) = &mut followed.follows else {
            return;
        };
        let until = Instant::now() + LATEST;
        loop {
            let state = guard.state();
            let is_seen = match granted {
                Some(granted) => state.fault.is_none() && state.max == granted,
                None => state.fault.is_some(),
            };
            if is_seen {
                break;
            }
            assert!(Instant::now() < until, "never seen: {state:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        let now = guard.state().max;
        // What cannot be read raises no max.
        assert!(granted.is_some() || now <= *max, "a max rises by a fault");
        if now != *max {
            *max = now;
            let group = *group;
            self.set_by_host(group, now);
        }
    }

    fn reconcile(&mut self, followed: &Followed, group: usize, allocated: u64) {
        let status = "VmRSS:\t    1200 kB\nRssAnon:\t     800 kB\nRssFile:\t     400 kB\nRssShmem:\t       0 kB\nVmSwap:\t       4 kB\n";
        write(followed.folder.path(), "proc/self/status", status);
        let reconciler = Reconciler::new(self.handle(group))
            .host(followed.host())
            .allocated(move || allocated);
        let live = self.twin.live(group, 0);
        match reconciler.read() {
            Ok(now) => {
                assert_eq!(now.charged, live, "{now}");
                let uncharged = i128::from(allocated) - i128::from(live);
                assert_eq!(now.uncharged().map(i128::from), Some(uncharged), "{now}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn end_host(&mut self) {
        if let Some(mut followed) = self.adapters.host.take() {
            followed.end();
        }
        self.settle_accounts();
    }
}
