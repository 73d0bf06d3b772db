//! Control groups in each other, each with a limit and with what it holds: which of them asks, and
//! for how much.

mod support;

use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Bytes, Percent, ReclaimPriority, Runtime};
use memcg_host::{Host, HostError, HostReclaimState, MaxOfHost, Reconciler};
use support::{Cache, Layout};

const MIB: u64 = 1 << 20;
const PERIOD: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(60);

/// The machine has 16 GiB, the process 300 MiB of anonymous memory.
const SYSTEM: &str = "== proc/meminfo\nMemTotal: 16777216 kB\nSwapTotal: 0 kB\n\
    == proc/self/status\nVmRSS: 337920 kB\nRssAnon: 307200 kB\n";
/// The process is in `/pod/own` of version 2.
const V2: &str = "== proc/self/cgroup\n0::/pod/own\n\
    == proc/self/mountinfo\n33 31 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
/// The process is in `/pod/own` of version 1.
const V1: &str = "== proc/self/cgroup\n4:memory:/pod/own\n\
    == proc/self/mountinfo\n33 31 0:29 / /sys/fs/cgroup rw - cgroup cgroup rw,memory\n";

fn file(path: &str, text: &str) -> String {
    format!("== sys/fs/cgroup/{path}\n{text}\n")
}

/// A `memory.stat`, in MiB.
fn stat(group: &str, figures: &[(&str, u64)]) -> String {
    let mut text = String::new();
    for (key, mib) in figures {
        writeln!(text, "{key} {}", mib * MIB).expect("a string");
    }
    file(&format!("{group}/memory.stat"), &text)
}

fn limit(path: &str, mib: u64) -> String {
    file(path, &(mib * MIB).to_string())
}

/// The state of a reclaimer after a look at these files.
fn after_a_look(parts: &[&str]) -> HostReclaimState {
    let layout = Layout::of(&parts.concat());
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting");
    let root = runtime.root();
    let _registration = root.register_reclaimer(Cache::of_mib(&root, 300), ReclaimPriority::NORMAL);
    // One look is enough, and the next is far away.
    let reclaimer = Host::at(layout.root()).reclaimer(&root).period(PERIOD);
    let reclaiming = reclaimer.start().expect("a readable layout");
    let until = Instant::now() + PATIENCE;
    while reclaiming.state().level.is_none() {
        assert!(
            Instant::now() < until,
            "the thread looks at the host: {:?}",
            reclaiming.state()
        );
        thread::sleep(PERIOD);
    }
    reclaiming.state()
}

#[track_caller]
fn asks(what: &str, parts: &[&str], by: &str, held_mib: u64) {
    let state = after_a_look(parts);
    let level = state.level.clone().expect("a look");
    assert!(
        state.asked > 0 && state.fault.is_none(),
        "{what}: {state:?}"
    );
    assert!(
        level.path.is_some_and(|path| path.ends_with(by)),
        "{what}: {by}"
    );
    assert_eq!(level.held / MIB, held_mib, "{what}");
}

#[track_caller]
fn asks_nothing(what: &str, parts: &[&str]) {
    let state = after_a_look(parts);
    assert!(
        state.asked == 0 && state.fault.is_none(),
        "{what}: {state:?}"
    );
}

/// A level whose max cannot be read is judged by its high, and by what it holds itself.
#[test]
fn a_high_beside_a_max_that_cannot_be_read() {
    let max = file("pod/memory.max", "a lot");
    let high = limit("pod/memory.high", 1000);
    let full = stat("pod", &[("anon", 980)]);
    let state = after_a_look(&[SYSTEM, V2, &max, &high, &full]);
    let level = state.level.clone().expect("a look");
    assert!(state.asked > 0 && state.fault.is_some(), "{state:?}");
    assert_eq!(level.held / MIB, 980, "{state:?}");
}

/// The limit of each level is held against what that level has.
#[test]
fn each_level_by_its_own_usage() {
    let pod = limit("pod/memory.max", 1024);
    let own = stat("pod/own", &[("anon", 300)]);
    let full = stat("pod", &[("anon", 980)]);
    let no_max = file("pod/own/memory.max", "max");
    asks(
        "a neighbour fills the pod",
        &[SYSTEM, V2, &pod, &full, &no_max, &own],
        "pod/memory.max",
        980,
    );
    let procs = file("pod/own/cgroup.procs", "1");
    asks(
        "the own level has no controller",
        &[SYSTEM, V2, &pod, &full, &procs],
        "pod/memory.max",
        980,
    );
    let half = stat("pod", &[("anon", 500)]);
    asks_nothing(
        "the pod is half full",
        &[SYSTEM, V2, &pod, &half, &no_max, &own],
    );
    let own_max = limit("pod/own/memory.max", 320);
    asks(
        "the own limit is close",
        &[SYSTEM, V2, &pod, &half, &own_max, &own],
        "pod/own/memory.max",
        300,
    );
    asks(
        "both, the fuller is shown",
        &[SYSTEM, V2, &pod, &full, &own_max, &own],
        "pod/memory.max",
        980,
    );
    // The neighbour's memory is not held against the own limit.
    let wide = limit("pod/own/memory.max", 900);
    let large = limit("pod/memory.max", 4096);
    asks_nothing(
        "room at both levels",
        &[SYSTEM, V2, &large, &full, &wide, &own],
    );
    let high = limit("pod/memory.high", 1000);
    asks(
        "high is a limit",
        &[SYSTEM, V2, &large, &high, &full, &own],
        "pod/memory.high",
        980,
    );
    let zero = file("pod/memory.high", "0");
    asks_nothing(
        "a high of 0 is none",
        &[SYSTEM, V2, &large, &zero, &full, &own],
    );
}

#[test]
fn each_level_of_version_1() {
    let pod = limit("pod/memory.limit_in_bytes", 1024);
    let full = stat(
        "pod",
        &[
            ("total_rss", 980),
            ("total_swap", 60),
            ("hierarchical_memory_limit", 1024),
        ],
    );
    let own = stat(
        "pod/own",
        &[("total_rss", 300), ("hierarchical_memory_limit", 1024)],
    );
    let none = file("pod/own/memory.limit_in_bytes", "9223372036854771712");
    asks(
        "a neighbour",
        &[SYSTEM, V1, &pod, &full, &none, &own],
        "pod/memory.limit_in_bytes",
        980,
    );
    let large = limit("pod/memory.limit_in_bytes", 1100);
    let both = limit("pod/memory.memsw.limit_in_bytes", 1100);
    asks(
        "with swap",
        &[SYSTEM, V1, &large, &both, &full, &none, &own],
        "pod/memory.memsw.limit_in_bytes",
        1040,
    );
    let shared = stat(
        "pod/own",
        &[
            ("total_rss", 300),
            ("total_cache", 700),
            ("total_shmem", 650),
        ],
    );
    let max = limit("pod/own/memory.limit_in_bytes", 1024);
    asks(
        "shared memory",
        &[SYSTEM, V1, &max, &shared],
        "pod/own/memory.limit_in_bytes",
        950,
    );
    let kernel = limit("pod/own/memory.kmem.usage_in_bytes", 650);
    asks(
        "the kernel's",
        &[SYSTEM, V1, &max, &own, &kernel],
        "pod/own/memory.limit_in_bytes",
        950,
    );
    // The machine's slab that can be reclaimed may be the group's.
    let system = SYSTEM.replace("SwapTotal", "SReclaimable: 614400 kB\nSwapTotal");
    asks_nothing("dentries", &[&system, V1, &max, &own, &kernel]);
    let cache = stat(
        "pod/own",
        &[
            ("total_rss", 300),
            ("total_cache", 700),
            ("total_inactive_file", 700),
        ],
    );
    asks_nothing("page cache", &[SYSTEM, V1, &max, &cache]);
    // The group that has the limit is above the mount: only the own usage can be seen.
    let hidden = stat(
        "pod/own",
        &[("total_rss", 980), ("hierarchical_memory_limit", 1024)],
    );
    asks(
        "a hidden level",
        &[SYSTEM, V1, &none, &hidden],
        "pod/own/memory.stat",
        980,
    );
}

/// Memory that the kernel cannot give back counts, of whatever kind; page cache does not.
#[test]
fn what_stays() {
    let max = limit("pod/own/memory.max", 1024);
    for kind in [
        "shmem",
        "sock",
        "slab_unreclaimable",
        "kernel",
        "kernel_stack",
        "pagetables",
        "percpu",
        "vmalloc",
    ] {
        let own = stat(
            "pod/own",
            &[("anon", 300), (kind, 650), ("inactive_file", 5)],
        );
        asks(kind, &[SYSTEM, V2, &max, &own], "pod/own/memory.max", 950);
    }
    let cache = [
        ("anon", 300),
        ("file", 700),
        ("inactive_file", 650),
        ("active_file", 50),
        ("slab_reclaimable", 20),
    ];
    let current = limit("pod/own/memory.current", 1020);
    asks_nothing(
        "page cache",
        &[SYSTEM, V2, &max, &current, &stat("pod/own", &cache)],
    );
}

/// Without a limit the machine is the level, with what all of its processes hold.
#[test]
fn the_machine_is_a_level() {
    let own = stat("pod/own", &[("anon", 300)]);
    let system = |anon_mib: u64| {
        SYSTEM.replace(
            "SwapTotal",
            &format!("AnonPages: {} kB\nSwapTotal", anon_mib << 10),
        )
    };
    asks_nothing("half full", &[&system(8_192), V2, &own]);
    let state = after_a_look(&[&system(15_000), V2, &own]);
    assert!(
        state.asked > 0 && state.level.is_some_and(|level| level.path.is_none()),
        "others fill the machine"
    );
}

/// A figure that not every kernel has is no error.
#[test]
fn figures_that_are_not_there() {
    let own = stat("pod/own", &[("anon", 300)]);
    let max = limit("pod/own/memory.max", 320);
    for gone in [
        "RssAnon: 307200 kB\n",
        "VmRSS: 337920 kB\nRssAnon: 307200 kB\n",
    ] {
        let system = SYSTEM.replace(gone, "");
        let state = after_a_look(&[&system, V2, &max, &own]);
        assert!(
            state.asked > 0,
            "the group's figures are enough without {gone}: {state:?}"
        );
    }
    let runtime = Runtime::builder().build().expect("no odd setting");
    let anon = |status: &str| {
        let layout = Layout::of(&format!("== proc/self/status\n{status}"));
        let host = Host::at(layout.root());
        let read = Reconciler::new(&runtime.root())
            .host(host.clone())
            .read()
            .expect("resident is there");
        assert_eq!(read.anon, host.memory().expect("resident is there").anon);
        read.anon >> 10
    };
    assert_eq!(anon("VmRSS: 900 kB\n"), 900, "at most the resident memory");
    assert_eq!(
        anon("VmRSS: 900 kB\nRssFile: 500 kB\nRssShmem: 100 kB\n"),
        300
    );
    assert_eq!(
        anon("VmRSS: 900 kB\nRssAnon: 200 kB\nRssFile: 500 kB\n"),
        200
    );
    // The file of a group cannot be read: it is said, and the process's own memory is judged.
    let folder = "== sys/fs/cgroup/pod/own/memory.stat/\n";
    let state = after_a_look(&[SYSTEM, V2, &max, folder]);
    assert!(state.asked > 0 && state.fault.expect("said").contains("memory.stat"));
}

/// Memory that is set aside for huge pages is not to be had.
#[test]
fn reserved_huge_pages() {
    let share = |more: &str| {
        let layout = Layout::of(
            &[
                &SYSTEM.replace("SwapTotal", &format!("{more}SwapTotal")),
                V2,
            ]
            .concat(),
        );
        Host::at(layout.root())
            .limits()
            .expect("readable")
            .share(Percent::new(80).expect("at most 100"))
    };
    let of_4_gib = (4 << 30) / 100 * 80 + (4 << 30) % 100 * 80 / 100;
    assert_eq!(
        share("HugePages_Total: 6144\nHugepagesize: 2048 kB\nHugetlb: 12582912 kB\n"),
        of_4_gib
    );
    assert_eq!(
        share("HugePages_Total: 6144\nHugepagesize: 2048 kB\n"),
        of_4_gib,
        "an older kernel"
    );
    assert_eq!(
        share("HugePages_Total: 0\nHugepagesize: 2048 kB\nHugetlb: 12582912 kB\n"),
        of_4_gib,
        "of another size"
    );
    assert_eq!(share("Hugetlb: 99999999999 kB\n"), 0, "more than there is");
}

/// The limits that a layout with this `mountinfo` has. The pod has 1 GiB, the own group none.
fn of_mounts(mountinfo: &str, more: &str) -> Layout {
    let pod = limit("pod/memory.max", 1024);
    let own = file("pod/own/memory.max", "max");
    let groups = "== proc/self/cgroup\n0::/pod/own\n== proc/self/mountinfo\n";
    Layout::of(&[SYSTEM, groups, mountinfo, &pod, &own, more].concat())
}

fn mib(layout: &Layout) -> u64 {
    Host::at(layout.root()).limits().expect("readable").bytes() / MIB
}

const WHOLE: &str = "33 31 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

/// Each level is looked for in all mounts.
#[test]
fn bind_mounts_hide_no_level() {
    let own = "== mnt/own/memory.max\nmax\n";
    let later = "90 31 0:29 /pod/own /mnt/own rw - cgroup2 cgroup2 rw\n";
    for mounts in [
        [WHOLE, later].concat(),
        [later, WHOLE].concat(),
        [WHOLE, later, later].concat(),
    ] {
        assert_eq!(mib(&of_mounts(&mounts, own)), 1024, "{mounts}");
    }
    let other = "91 31 0:29 /other /mnt/other rw - cgroup2 cgroup2 rw\n";
    assert_eq!(
        mib(&of_mounts(
            &[WHOLE, other].concat(),
            "== mnt/other/memory.max\n4096\n"
        )),
        1024,
        "another group"
    );
    let file = "92 31 0:29 /pod/own/memory.max /mnt/max rw - cgroup2 cgroup2 rw\n";
    assert_eq!(
        mib(&of_mounts(&[WHOLE, file].concat(), "== mnt/max\nmax\n")),
        1024,
        "a file alone"
    );
    // The mount that shows more was made before the namespace: its groups above have no name.
    let above = "93 31 0:29 /.. /mnt/above rw - cgroup2 cgroup2 rw\n";
    let higher = "== mnt/above/memory.max\n536870912\n";
    assert_eq!(
        mib(&of_mounts(&[WHOLE, above].concat(), higher)),
        512,
        "a limit above the namespace"
    );
    // A name may be any bytes.
    let layout = of_mounts(WHOLE, "");
    let odd = std::ffi::OsString::from_vec(b"odd\xff name".to_vec());
    let dir = layout.root().join("sys/fs/cgroup").join(&odd);
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::write(dir.join("memory.max"), "4194304\n").expect("a file");
    let mut groups = b"0::/".to_vec();
    groups.extend(odd.as_bytes());
    std::fs::write(layout.root().join("proc/self/cgroup"), groups).expect("a file");
    assert_eq!(mib(&layout), 4);
}

/// A machine with many mounts: the one that counts comes last, after more than any buffer has.
#[test]
fn a_mountinfo_of_any_length() {
    let options = "x".repeat(4_000);
    let mut mounts = String::new();
    for number in 0..2_500 {
        writeln!(
            mounts,
            "{} 31 0:50 / /var/lib/m{number} rw - overlay overlay rw,lowerdir={options}",
            100 + number
        )
        .expect("a string");
    }
    assert!(mounts.len() > 9 << 20);
    mounts.push_str(WHOLE);
    assert_eq!(mib(&of_mounts(&mounts, "")), 1024);
}

/// A service that is started where limits cannot be read knows it, and may choose not to start.
#[test]
fn what_is_not_known_is_said() {
    let no_mount = of_mounts("31 23 0:28 / / rw - overlay overlay rw\n", "");
    let limits = Host::at(no_mount.root())
        .limits()
        .expect("the machine's memory can be read");
    assert!(
        matches!(&limits.unread[..], [HostError::NotMounted { group, .. }] if group.ends_with("pod/own"))
    );
    assert!(
        limits
            .to_string()
            .contains("no mount shows the control group /pod/own"),
        "{limits}"
    );
    let unreadable = of_mounts(WHOLE, "== sys/fs/cgroup/pod/memory.high/\n");
    for layout in [&no_mount, &unreadable] {
        let host = Host::at(layout.root());
        let builder = || {
            Runtime::builder()
                .max_of_host("80%")
                .expect("a share")
                .host(host.clone())
        };
        let (_runtime, follow) = builder().build().expect("it starts with what is known");
        assert!(follow.state().fault.is_some());
        assert!(builder().strict().build().is_err());
        assert!(host.limits().expect("readable").whole().is_err());
        let runtime = Runtime::builder().build().expect("no odd setting");
        let follower = host
            .follower(Percent::new(80).expect("at most 100"))
            .strict();
        assert!(follower.start(&runtime.root()).is_err());
        assert_eq!(runtime.root().max(), u64::MAX, "nothing was set");
    }
    let whole = of_mounts(WHOLE, "");
    let builder = Runtime::builder()
        .max_of_host("80%")
        .expect("a share")
        .host(Host::at(whole.root()));
    assert!(builder.strict().build().is_ok());
    let endless = of_mounts(WHOLE, "");
    endless.write("sys/fs/cgroup/pod/memory.max", &"1".repeat(2 << 20));
    assert_eq!(
        Host::at(endless.root())
            .limits()
            .expect("readable")
            .unread
            .len(),
        1,
        "no file of the kernel"
    );
}

/// Waits until the thread has looked at the limits some more times.
fn some_looks() {
    thread::sleep(20 * PERIOD);
}

/// A mount that comes later never raises the max of a service that runs.
#[test]
fn a_level_that_is_no_longer_shown_raises_no_max() {
    let layout = of_mounts(WHOLE, "== mnt/own/memory.max\nmax\n");
    let runtime = Runtime::builder().build().expect("no odd setting");
    let root = runtime.root();
    let (sender, changes) = mpsc::channel();
    let follower = Host::at(layout.root())
        .follower(Percent::new(100).expect("at most 100"))
        .period(PERIOD);
    let follow = follower
        .on_change(move |now| sender.send(now.clone()).expect("the test waits"))
        .start(&root)
        .expect("a readable layout");
    assert_eq!(root.max(), 1024 * MIB);
    let only_own = "33 31 0:29 /pod/own /mnt/own rw - cgroup2 cgroup2 rw\n";
    layout.write("proc/self/mountinfo", only_own);
    let said = changes
        .recv_timeout(PATIENCE)
        .expect("a change")
        .fault
        .expect("it is said");
    assert!(
        said.contains("sys/fs/cgroup is not shown any more"),
        "{said}"
    );
    some_looks();
    assert_eq!(root.max(), 1024 * MIB);
    // It is shown again, and its limit has risen.
    layout.write("sys/fs/cgroup/pod/memory.max", "2147483648\n");
    layout.write("proc/self/mountinfo", WHOLE);
    let now = changes.recv_timeout(PATIENCE).expect("a change");
    assert_eq!(
        (now.max, now.fault, root.max()),
        (2048 * MIB, None, 2048 * MIB)
    );
    // The process moves to another group, which has fewer above it: that is no fault.
    layout.write("proc/self/cgroup", "0::/\n");
    let now = changes.recv_timeout(PATIENCE).expect("a change");
    assert_eq!((now.max, now.fault), (16 << 30, None));
    drop(follow);
}

/// Nor does a file of limits that goes while its directory stays.
#[test]
fn a_file_of_limits_that_goes_raises_no_max() {
    let layout = of_mounts(WHOLE, "");
    let file = "sys/fs/cgroup/pod/memory.max";
    let runtime = Runtime::builder().build().expect("no odd setting");
    let root = runtime.root();
    let (sender, changes) = mpsc::channel();
    let follow = Host::at(layout.root())
        .follower(Percent::new(100).expect("at most 100"))
        .period(PERIOD)
        .on_change(move |now| sender.send(now.clone()).expect("the test waits"))
        .start(&root)
        .expect("a readable layout");
    assert_eq!(root.max(), 1024 * MIB);
    fs::remove_file(layout.root().join(file)).expect("it is there");
    let said = changes
        .recv_timeout(PATIENCE)
        .expect("a change")
        .fault
        .expect("it is said");
    assert!(
        said.contains("pod/memory.max is not shown any more"),
        "{said}"
    );
    some_looks();
    assert_eq!(root.max(), 1024 * MIB);
    layout.write(file, "2147483648\n");
    let now = changes.recv_timeout(PATIENCE).expect("a change");
    assert_eq!((now.max, now.fault), (2048 * MIB, None));
    drop(follow);
}

/// A high that stands for a moment alone does not count. A zero never does.
#[test]
fn a_high_for_a_moment() {
    let layout = of_mounts(WHOLE, "");
    let high = |text: &str| layout.write("sys/fs/cgroup/pod/own/memory.high", text);
    high("0\n");
    let builder = Runtime::builder()
        .max_of_host("100%")
        .expect("a share")
        .host(Host::at(layout.root()));
    let (sender, changes) = mpsc::channel();
    // Long enough for the test to take the high away between two looks, however busy the machine
    // is.
    let builder = builder
        .period(Duration::from_millis(400))
        .on_change(move |now| {
            let _ = sender.send(now.clone());
        });
    let (runtime, follow) = builder.build().expect("a readable layout");
    assert_eq!(
        runtime.root().max(),
        1024 * MIB,
        "not a service that refuses each charge"
    );
    high("4096\n");
    thread::sleep(Duration::from_millis(450));
    high("max\n");
    thread::sleep(Duration::from_millis(850));
    assert_eq!(
        (runtime.root().max(), follow.state().changes),
        (1024 * MIB, 0)
    );
    assert!(runtime.root().charge(Bytes(MIB)).is_ok());
    high("536870912\n");
    let now = changes
        .recv_timeout(PATIENCE)
        .expect("a high that stays counts");
    assert_eq!((now.max, runtime.root().max()), (512 * MIB, 512 * MIB));
    drop(follow);
}

/// The hook may panic, and may drop what called it.
#[test]
fn a_hook_of_any_kind() {
    let layout = of_mounts(WHOLE, "");
    let runtime = Runtime::builder().build().expect("no odd setting");
    let root = runtime.root();
    let held: Arc<Mutex<Option<memcg_host::FollowGuard>>> = Arc::default();
    let (sender, calls) = mpsc::channel();
    let of_hook = Arc::clone(&held);
    let percent = Percent::new(100).expect("at most 100");
    let follower = Host::at(layout.root())
        .follower(percent)
        .period(PERIOD)
        .on_change(move |now| {
            sender.send(now.max).expect("the test waits");
            if now.changes > 2 {
                drop(of_hook.lock().expect("no panic while it is held").take());
            }
            panic!("a hook that panics");
        });
    *held.lock().expect("no panic") = Some(follower.start(&root).expect("a readable layout"));
    for (mib, text) in [(512, "536870912\n"), (256, "268435456\n")] {
        layout.write("sys/fs/cgroup/pod/memory.max", text);
        assert_eq!(
            calls.recv_timeout(PATIENCE).expect("the thread goes on"),
            mib * MIB
        );
    }
    let gone = calls.recv_timeout(PATIENCE);
    assert!(
        gone.is_err() && held.lock().expect("no panic").is_none(),
        "the hook has dropped it"
    );
}
