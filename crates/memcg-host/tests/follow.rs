//! A max that follows, reclaim under pressure, and the comparison with what is in memory; on files.

mod support;

use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Bytes, Limit, Limits, Percent, Reclaim, ReclaimContext, ReclaimPriority, Runtime};
use memcg_host::{
    FollowGuard, FollowState, Host, HostError, MaxOfHost, Reconciler, StallScope, StallSource,
};
use support::{Cache, Layout};

const MIB: u64 = 1 << 20;
const MAX: &str = "sys/fs/cgroup/memory.max";
const PERIOD: Duration = Duration::from_millis(2);

/// Waits for what a thread is about to do.
#[track_caller]
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[track_caller]
fn follows(follow: &FollowGuard, what: &str, is_so: impl Fn(&FollowState) -> bool) {
    wait_for(what, || is_so(&follow.state()));
}

fn percent(percent: u8) -> Percent {
    Percent::new(percent).expect("at most 100")
}

#[test]
fn a_max_follows_the_limit() {
    let layout = Layout::new("docker_v2");
    let host = Host::at(layout.root());
    let builder = Runtime::builder()
        .batch(Bytes(0))
        .max_of_host("50%")
        .expect("a percentage");
    let (runtime, follow) = builder
        .host(host)
        .period(PERIOD)
        .build()
        .expect("a readable layout");
    let root = runtime.root();
    assert_eq!(
        (root.max(), follow.state().changes),
        (128 * MIB, 0),
        "half of 256 MiB, from the beginning"
    );
    let cache = Cache::of_mib(&root, 100);
    let registration = root.register_reclaimer(cache, ReclaimPriority::NORMAL);

    layout.write(MAX, "104857600\n");
    follows(&follow, "the max falls", |state| state.max == 50 * MIB);
    wait_for("the cache gives back", || root.usage() <= 50 * MIB);
    assert_eq!((root.max(), follow.state().host), (50 * MIB, 100 * MIB));
    assert_eq!(follow.state().path, Some(layout.root().join(MAX)));

    layout.write(MAX, "max\n");
    follows(&follow, "no limit: the machine's memory", |state| {
        state.max == 4 << 30 && state.path.is_none()
    });
    assert_eq!((root.max(), follow.state().changes), (4 << 30, 2));

    layout.write("sys/fs/cgroup/memory.high", "10485760\n");
    follows(&follow, "high is a limit, too", |state| {
        state.max == 5 * MIB
    });
    drop(registration);
}

/// The guard goes within the second in which a fall may be a dip: nothing looks at the limits any
/// more, so the max that stays counts at once, in the group and in those whose max is part of it.
#[test]
fn a_guard_that_goes_leaves_no_wait_behind() {
    let layout = Layout::new("docker_v2");
    let host = Host::at(layout.root());
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting");
    let root = runtime.root();
    let follow = host
        .follow(&root, percent(50), PERIOD)
        .expect("a readable layout");
    let half = root
        .create("half", Limits::new().max(Limit::percent(50)))
        .expect("a free name");
    let _held = half.charge(Bytes(40 * MIB)).expect("64 MiB");
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let time = memcg::OnFull::Wait(Duration::from_secs(600));
            half.charge_with(Bytes(45 * MIB), time)
        });
        wait_for("it waits", || half.waiting_count() == 1);
        layout.write(MAX, "104857600\n");
        follows(&follow, "the max falls", |state| state.max == 50 * MIB);
        drop(follow);
        let refused = waits.join().expect("no panic").expect_err("25 MiB at most");
        assert!(
            refused.is_over_limit() && !refused.is_timeout(),
            "{refused}"
        );
    });
    assert_eq!((root.max(), half.waiting_count()), (50 * MIB, 0));
}

/// A charge that waits is not lost to a limit that falls for a moment. Once the limit has stood for a
/// second, it can never fit.
#[test]
fn a_dip_loses_no_wait() {
    let layout = Layout::new("docker_v2");
    let host = Host::at(layout.root());
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting");
    let root = runtime.root();
    let follow = host
        .follow(&root, percent(50), PERIOD)
        .expect("a readable layout");
    let half = root
        .create("half", Limits::new().max(Limit::percent(50)))
        .expect("a free name");
    let _held = half.charge(Bytes(40 * MIB)).expect("64 MiB");
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let begun = Instant::now();
            let time = memcg::OnFull::Wait(Duration::from_secs(600));
            let refused = half.charge_with(Bytes(45 * MIB), time).expect_err("held");
            (begun.elapsed(), refused.to_string())
        });
        wait_for("it waits", || half.waiting_count() == 1);
        layout.write(MAX, "104857600\n");
        follows(&follow, "the max falls", |state| state.max == 50 * MIB);
        layout.write(MAX, "268435456\n");
        follows(&follow, "it was a dip", |state| state.max == 128 * MIB);
        assert_eq!(half.waiting_count(), 1);
        layout.write(MAX, "104857600\n");
        follows(&follow, "the max falls", |state| state.max == 50 * MIB);
        let (waited, refused) = waits.join().expect("no panic");
        assert!(waited >= Duration::from_secs(1));
        assert!(refused.starts_with("/half refused 45 MiB"), "{refused}");
    });
}

/// An unknown limit is not trusted to be more.
#[test]
fn a_limit_that_cannot_be_read_raises_no_max() {
    let layout = Layout::new("docker_v2");
    let runtime = Runtime::builder().build().expect("no odd setting");
    let group = runtime
        .root()
        .create("acme", Limits::new())
        .expect("a free name");
    let follow = Host::at(layout.root())
        .follow(&group, percent(100), PERIOD)
        .expect("a readable layout");
    assert_eq!(
        (group.max(), follow.state().changes, follow.state().fault),
        (256 * MIB, 1, None)
    );

    layout.write(MAX, "a lot\n");
    follows(&follow, "the fault is shown", |state| state.fault.is_some());
    assert_eq!((group.max(), follow.state().max), (256 * MIB, 256 * MIB));
    assert!(
        follow
            .state()
            .fault
            .expect("shown")
            .contains("\"a lot\" found")
    );
    layout.write("sys/fs/cgroup/memory.high", "1048576\n");
    follows(&follow, "a lower limit holds all the same", |state| {
        state.max == MIB
    });

    layout.write(MAX, "314572800\n");
    layout.write("sys/fs/cgroup/memory.high", "max\n");
    follows(&follow, "readable again", |state| {
        state.max == 300 * MIB && state.fault.is_none()
    });

    layout.remove("proc/meminfo");
    follows(&follow, "the machine cannot be read", |state| {
        state.fault.is_some()
    });
    assert_eq!(group.max(), 300 * MIB);
}

/// A max that the service sets holds until the limit changes; a group that goes offline ends the
/// thread.
#[test]
fn beside_the_service() {
    let layout = Layout::new("docker_v2");
    let runtime = Runtime::builder().build().expect("no odd setting");
    let group = runtime
        .root()
        .create("acme", Limits::new())
        .expect("a free name");
    let follow = Host::at(layout.root())
        .follow(&group, percent(100), PERIOD)
        .expect("a readable layout");
    group.set_max(Limit::mib(7)).expect("a number");
    layout.write("proc/self/cgroup", "0::/\n");
    thread::sleep(10 * PERIOD);
    assert_eq!((group.max(), follow.state().max), (7 * MIB, 256 * MIB));
    layout.write(MAX, "1048576\n");
    follows(&follow, "a new limit", |state| state.max == MIB);
    assert_eq!(group.max(), MIB);
    group.offline().expect("no children");
    drop(follow);
}

#[test]
fn bad_input() {
    for text in [
        "", "80", "80 %", "101%", "-1%", "max", "1GiB", "%", "0%", "00%",
    ] {
        let error = Runtime::builder().max_of_host(text).expect_err(text);
        assert!(
            matches!(&error, HostError::Share { text: told, .. } if told == text),
            "{error}"
        );
    }
    let error = Runtime::builder().max_of_host("a%").expect_err("no number");
    assert_eq!(
        error.to_string(),
        "\"a%\" is no share of the host's memory: write a whole percentage, such as 80%"
    );
    let nowhere = Host::at("/no/such/place");
    let builder = Runtime::builder()
        .max_of_host("80%")
        .expect("a percentage")
        .host(nowhere.clone());
    assert!(matches!(builder.build(), Err(HostError::Read { .. })));
    let runtime = Runtime::builder().build().expect("no odd setting");
    assert!(nowhere.reclaimer(&runtime.root()).start().is_err());
    assert!(
        Reconciler::new(&runtime.root())
            .host(nowhere.clone())
            .read()
            .is_err()
    );
    let trigger = nowhere.trigger(
        StallScope::Some,
        Duration::from_millis(100),
        Duration::from_secs(2),
    );
    let told = "/no/such/place/proc/pressure/memory takes no trigger of 100000 us in 2000000 us: ";
    assert!(trigger.expect_err("no file").to_string().starts_with(told));
}

/// A max of nothing would refuse each charge.
#[test]
fn a_share_of_nothing_is_refused() {
    let layout = Layout::new("docker_v2");
    let runtime = Runtime::builder().build().expect("no odd setting");
    let root = runtime.root();
    let follow = Host::at(layout.root()).follow(&root, percent(0), PERIOD);
    let error = follow.expect_err("0 %").to_string();
    assert!(error.starts_with("\"0%\" is no share"), "{error}");
    assert!(root.charge(Bytes(1)).is_ok());
    assert!(Runtime::builder().max_of_host("1%").is_ok());
}

/// Says that it has begun, and goes on when it is told to.
struct Slow {
    begun: mpsc::Sender<()>,
    go: Mutex<mpsc::Receiver<()>>,
}

impl Slow {
    fn new() -> (Arc<Slow>, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (begun, begins) = mpsc::channel();
        let (goes, go) = mpsc::channel();
        let go = Mutex::new(go);
        (Arc::new(Slow { begun, go }), begins, goes)
    }

    fn wait(&self) {
        let _ = self.begun.send(());
        // An end of the test lets it go, too.
        let _ = self.go.lock().expect("no panic").recv();
    }
}

impl Reclaim for Slow {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        self.wait();
        0
    }
}

/// While a reclaimer or a hook runs for the first of two limits, the second is the max in time.
#[test]
fn code_of_the_service_delays_no_limit() {
    for by in ["reclaimer", "hook", "allocated"] {
        let layout = Layout::new("docker_v2");
        let runtime = Runtime::builder()
            .batch(Bytes(0))
            .build()
            .expect("no odd setting");
        let root = runtime.root();
        let _held = root.force_charge(Bytes(200 * MIB));
        let (slow, begins, goes) = Slow::new();
        let (told, tells) = mpsc::channel();
        let registration = (by == "reclaimer")
            .then(|| root.register_reclaimer(slow.clone(), ReclaimPriority::NORMAL));
        let by_hook = by == "hook";
        let counts = Arc::new(AtomicBool::new(false));
        let counted = Arc::clone(&slow);
        let follower = Host::at(layout.root())
            .follower(percent(100))
            .period(PERIOD)
            .on_change(move |now| {
                told.send(now.max).expect("the test waits");
                if by_hook && now.max == 100 * MIB {
                    slow.wait();
                }
            });
        let follower = if by == "allocated" {
            let counting = Arc::clone(&counts);
            follower.allocated(move || {
                if counting.load(Ordering::Relaxed) {
                    counted.wait();
                }
                0
            })
        } else {
            follower
        };
        let follow = follower.start(&root).expect("a readable layout");
        counts.store(true, Ordering::Relaxed);
        layout.write(MAX, "104857600\n");
        let patience = Duration::from_secs(60);
        begins.recv_timeout(patience).expect("it is asked");
        follows(&follow, "the first limit", |state| state.max == 100 * MIB);
        layout.write(MAX, "52428800\n");
        follows(&follow, "the second limit", |state| state.max == 50 * MIB);
        layout.write(MAX, "62914560\n");
        follows(&follow, "a third, higher", |state| state.max == 60 * MIB);
        assert_eq!(root.max(), 60 * MIB);
        drop(goes);
        // The hook learns of the last state, once what it waited for is over.
        let mut last = 0;
        while last != 60 * MIB {
            last = tells.recv_timeout(patience).expect("a call");
        }
        drop((follow, registration));
    }
}

/// Anonymous memory above the mark is asked for; a page cache of any size is not.
#[test]
fn anonymous_memory_is_reclaimed() {
    let layout = Layout::new("docker_v2");
    let stat = |anon: u64| {
        layout.write(
            "sys/fs/cgroup/memory.stat",
            &format!("anon {}\nfile 99999999999\n", anon * MIB),
        )
    };
    stat(100);
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting");
    let root = runtime.root();
    let cache = Cache::of_mib(&root, 100);
    let registration = root.register_reclaimer(cache, ReclaimPriority::NORMAL);
    // The file is not the kernel's, which takes a trigger from its own alone: so the totals are
    // compared.
    let reclaimer = Host::at(layout.root())
        .reclaimer(&root)
        .anon(percent(50))
        .period(PERIOD);
    layout.write(
        "sys/fs/cgroup/memory.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    );
    let reclaiming = reclaimer
        .stall(Duration::from_millis(200), Duration::from_secs(1))
        .start()
        .expect("a readable layout");
    thread::sleep(10 * PERIOD);
    assert_eq!(
        (root.usage(), reclaiming.state().rounds),
        (100 * MIB, 0),
        "100 MiB are below half of 256 MiB"
    );

    stat(131);
    wait_for("what is above is given back", || {
        reclaiming.state().rounds > 0
    });
    stat(100);
    wait_for("the cache gave 3 MiB or more", || root.usage() <= 97 * MIB);
    assert!(
        reclaiming.state().freed >= 3 * MIB && reclaiming.state().fault.is_none(),
        "{:?}",
        reclaiming.state()
    );

    assert_eq!(
        (reclaiming.state().by, reclaiming.state().stalls),
        (StallSource::Totals, 0)
    );
    let lost = "some avg10=9.00 avg60=0.00 avg300=0.00 total=900000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    layout.write("sys/fs/cgroup/memory.pressure", lost);
    wait_for("a stall", || reclaiming.state().stalls > 0);
    drop((reclaiming, registration));
}

#[test]
fn charged_beside_resident() {
    let layout = Layout::new("docker_v2");
    let runtime = Runtime::builder().build().expect("no odd setting");
    let _held = runtime.root().force_charge(Bytes(50 * MIB));
    let host = Host::at(layout.root());
    let now = Reconciler::new(&runtime.root())
        .host(host.clone())
        .allocated(|| 45 * MIB)
        .read()
        .expect("a status");
    assert_eq!(
        (now.charged, now.anon, now.swapped, now.resident),
        (50 * MIB, 40 * MIB, 2 * MIB, 60 * MIB)
    );
    let signed = |mib: i64| mib * (1 << 20);
    assert_eq!(
        (now.drift(), now.uncharged(), now.kept()),
        (signed(-8), Some(signed(-5)), Some(signed(-3)))
    );
    let silent = Reconciler::new(&runtime.root())
        .host(host.clone())
        .allocated(|| panic!("a hook that panics"));
    assert_eq!(silent.read().expect("a status").allocated, None);
    let again = Reconciler::new(&runtime.root())
        .host(host)
        .allocated(|| panic_any(PanicsAgain));
    assert_eq!(again.read().expect("a status").allocated, None);
}

/// The payload of a panic, which panics itself when it is dropped.
struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        panic_any(PanicsAgain);
    }
}
