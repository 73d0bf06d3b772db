//! The layouts of containers, from files: what each says of the limits, and what the crate makes of
//! it.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Percent, Runtime};
use memcg_host::{Host, HostError, HostLimits, MaxOfHost};
use support::Layout;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The expected result of a layout.
struct Expected {
    layout: &'static str,
    bytes: u64,
    /// The file that decides, below the root of the layout; none where the machine does.
    by: &'static str,
    high: Option<u64>,
    swap: u64,
    version: u8,
}

const EXPECTED: [Expected; 13] = [
    Expected {
        layout: "docker_v1",
        bytes: 512 * MIB,
        by: DOCKER_V1,
        high: None,
        swap: 512 * MIB,
        version: 1,
    },
    Expected {
        layout: "docker_v2",
        bytes: 256 * MIB,
        by: "sys/fs/cgroup/memory.max",
        high: None,
        swap: 0,
        version: 2,
    },
    Expected {
        layout: "docker_v2_host_namespace",
        bytes: 300 * MIB,
        by: DOCKER_V2_HOST,
        high: None,
        swap: GIB,
        version: 2,
    },
    Expected {
        layout: "hybrid",
        bytes: 128 * MIB,
        by: HYBRID,
        high: None,
        swap: 2 * GIB,
        version: 1,
    },
    Expected {
        layout: "hybrid_v2_memory",
        bytes: 200 * MIB,
        by: HYBRID_V2,
        high: None,
        swap: 0,
        version: 2,
    },
    Expected {
        layout: "kubernetes_nested",
        bytes: 384 * MIB,
        by: POD,
        high: None,
        swap: 0,
        version: 2,
    },
    Expected {
        layout: "kubernetes_v1_hidden_parent",
        bytes: GIB,
        by: STAT_V1,
        high: None,
        swap: 0,
        version: 1,
    },
    Expected {
        layout: "systemd_user_slice",
        bytes: 3 * GIB,
        by: USER_SLICE,
        high: Some(3 * GIB),
        swap: GIB,
        version: 2,
    },
    Expected {
        layout: "no_limit",
        bytes: 8 * GIB,
        by: "",
        high: None,
        swap: 2 * GIB,
        version: 2,
    },
    Expected {
        layout: "no_limit_v1",
        bytes: 8 * GIB,
        by: "",
        high: None,
        swap: 0,
        version: 1,
    },
    Expected {
        layout: "above_machine",
        bytes: 8 * GIB,
        by: "",
        high: None,
        swap: 2 * GIB,
        version: 2,
    },
    Expected {
        layout: "no_control_groups",
        bytes: 8 * GIB,
        by: "",
        high: None,
        swap: 0,
        version: 0,
    },
    Expected {
        layout: "flat_v1",
        bytes: 700 * MIB,
        by: "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
        high: None,
        swap: 0,
        version: 1,
    },
];
const DOCKER_V1: &str = "sys/fs/cgroup/memory/memory.limit_in_bytes";
const DOCKER_V2_HOST: &str = "sys/fs/cgroup/system.slice/docker-1f.scope/memory.max";
const HYBRID: &str = "sys/fs/cgroup/memory/system.slice/app.service/memory.limit_in_bytes";
const HYBRID_V2: &str = "sys/fs/cgroup/unified/app/memory.max";
const POD: &str = "sys/fs/cgroup/kubepods.slice/pod7.slice/memory.max";
const STAT_V1: &str = "sys/fs/cgroup/memory/memory.stat";
const USER_SLICE: &str = "sys/fs/cgroup/user.slice/user-1000.slice/memory.high";

#[test]
fn the_least_on_the_way_up() {
    for expected in EXPECTED {
        let layout = Layout::new(expected.layout);
        let limits = Host::at(layout.root()).limits().expect(expected.layout);
        let by = limits.binding().map_or(Path::new(""), |limit| {
            limit.path.strip_prefix(layout.root()).unwrap()
        });
        let what = (limits.bytes(), by, limits.swap, limits.version);
        let as_expected = (
            expected.bytes,
            Path::new(expected.by),
            expected.swap,
            expected.version,
        );
        assert_eq!(what, as_expected, "{}: {limits}", expected.layout);
        assert_eq!(
            limits.high.as_ref().map(|high| high.bytes),
            expected.high,
            "{}",
            expected.layout
        );
        assert!(
            limits.unread.is_empty() && limits.machine == 8 * GIB,
            "{}: {limits:?}",
            expected.layout
        );
        assert_eq!(
            limits.share(percent(80)),
            expected.bytes / 100 * 80 + expected.bytes % 100 * 80 / 100
        );
    }
}

/// Every layout that is there has a row above, but those that other tests are about.
#[test]
fn each_layout_is_expected() {
    let others = ["unreadable"];
    for entry in fs::read_dir(support::layouts()).expect("the folder of the layouts") {
        let file = entry
            .expect("an entry")
            .file_name()
            .into_string()
            .expect("a name");
        let name = file.strip_suffix(".txt").expect("a layout");
        let is_known =
            others.contains(&name) || EXPECTED.iter().any(|expected| expected.layout == name);
        assert!(is_known, "{name} has no row");
    }
}

#[test]
fn what_it_prints() {
    let layout = Layout::new("docker_v2");
    let limits = Host::at(layout.root()).limits().expect("readable");
    let path = layout.root().join("sys/fs/cgroup/memory.max");
    assert_eq!(limits.to_string(), format!("256 MiB: {}", path.display()));
    let layout = Layout::new("no_limit");
    assert_eq!(
        Host::at(layout.root())
            .limits()
            .expect("readable")
            .to_string(),
        "8 GiB: the machine's memory"
    );
}

/// A directory in the place of a file cannot be read by anybody, root included.
#[test]
fn files_that_cannot_be_read() {
    let layout = Layout::new("unreadable");
    let host = Host::at(layout.root());
    let limits = host.limits().expect("the machine's memory can be read");
    assert_eq!(
        (limits.bytes(), limits.unread.len()),
        (GIB, 2),
        "{limits:?}"
    );
    let malformed =
        |fault: &HostError| matches!(fault, HostError::Malformed { found, .. } if found == "lots");
    assert!(limits.unread.iter().any(malformed), "{limits:?}");
    assert!(
        limits
            .unread
            .iter()
            .any(|fault| matches!(fault, HostError::Read { .. })),
        "{limits:?}"
    );
    assert!(limits.to_string().contains(", and 1 more)"), "{limits}");
    layout.write("proc/meminfo", "MemFree: 1 kB\n");
    let error = host.limits().expect_err("no MemTotal");
    assert!(
        error
            .to_string()
            .ends_with("proc/meminfo: a line MemTotal expected, \"MemFree: 1 kB\\n\" found"),
        "{error}"
    );
    layout.remove("proc/meminfo");
    assert!(matches!(host.limits(), Err(HostError::Read { .. })));
}

/// Without the permission: nothing to see for root, who has it anyway.
#[test]
fn files_without_permission() {
    let layout = Layout::new("docker_v2");
    let path = layout.root().join("sys/fs/cgroup/memory.max");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000))
        .expect("the owner sets permissions");
    let limits = Host::at(layout.root())
        .limits()
        .expect("the machine's memory can be read");
    match fs::read(&path) {
        Ok(_) => assert_eq!(limits.bytes(), 256 * MIB),
        Err(_) => assert_eq!((limits.bytes(), limits.unread.len()), (8 * GIB, 1)),
    }
}

#[test]
fn anonymous_memory_of_the_group() {
    for (layout, anon) in [
        ("docker_v1", Some(90 * MIB)),
        ("docker_v2", Some(70 * MIB)),
        ("no_control_groups", None),
    ] {
        let layout = Layout::new(layout);
        let memory = Host::at(layout.root()).memory().expect("a status");
        assert_eq!(memory.group_anon, anon);
        assert_eq!(
            (memory.resident, memory.anon, memory.swapped),
            (60 * MIB, 40 * MIB, 2 * MIB)
        );
    }
}

/// The file of the nearest group, or the machine's.
#[test]
fn pressure_of_the_nearest() {
    for (layout, total) in [
        ("docker_v2", 1_500),
        ("docker_v1", 9_000),
        ("hybrid", 2_500),
    ] {
        let layout = Layout::new(layout);
        let pressure = Host::at(layout.root()).pressure().expect("a pressure file");
        assert_eq!(pressure.some.total, Duration::from_millis(total));
    }
    // That of a group above is there, too.
    let layout = Layout::new("hybrid");
    let slice = "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
    layout.write("sys/fs/cgroup/unified/system.slice/memory.pressure", slice);
    let pressure = Host::at(layout.root()).pressure().expect("a pressure file");
    assert_eq!(pressure.some.total, Duration::from_millis(2_500));
    let layout = Layout::new("no_control_groups");
    assert!(matches!(
        Host::at(layout.root()).pressure(),
        Err(HostError::Read { .. })
    ));
}

/// This system, whatever it is.
#[test]
fn this_system() {
    let limits: HostLimits = Host::new().limits().expect("/proc is mounted");
    assert!(
        limits.machine > MIB && limits.bytes() > 0 && limits.bytes() <= limits.machine,
        "{limits}"
    );
    let memory = Host::new().memory().expect("/proc is mounted");
    assert!(
        memory.anon > 0 && memory.resident >= memory.anon,
        "{memory:?}"
    );
}

/// Files of any content: an error or a figure, and no panic.
#[test]
fn broken_files() {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    let mut random = StdRng::seed_from_u64(7);
    for name in [
        "docker_v1",
        "kubernetes_nested",
        "hybrid",
        "systemd_user_slice",
    ] {
        let layout = Layout::new(name);
        let files = layout.files();
        for _ in 0..300 {
            let (path, whole) = &files[random.random_range(0..files.len())];
            let mut text = whole.clone().into_bytes();
            for _ in 0..random.random_range(1..8) {
                let at = random.random_range(0..=text.len());
                match random.random_range(0..4) {
                    0 if at < text.len() => text[at] = random.random(),
                    1 => text.insert(at, b" :/-\n\\09max"[random.random_range(0..11)]),
                    2 => text.truncate(at),
                    _ => text.extend_from_within(at..),
                }
            }
            fs::write(path, &text).expect("a file of the layout");
            let host = Host::at(layout.root());
            if let Ok(limits) = host.limits() {
                assert!(
                    limits.bytes() <= limits.machine,
                    "{limits} of {:?}",
                    String::from_utf8_lossy(&text)
                );
            }
            let _ = (host.memory(), host.pressure());
            fs::write(path, whole).expect("a file of the layout");
        }
        assert!(
            Host::at(layout.root()).limits().is_ok(),
            "all files are whole again"
        );
    }
}

fn percent(percent: u8) -> Percent {
    Percent::new(percent).expect("at most 100")
}

/// A machine of 8 GiB, with these files of the process and of control groups.
fn layout_of(own: &str, mounts: &str, files: &str) -> Layout {
    let system = "== proc/meminfo\nMemTotal: 8388608 kB\nSwapTotal: 0 kB\n\
        == proc/self/status\nVmRSS: 61440 kB\nRssAnon: 40960 kB\n";
    Layout::of(&format!(
        "{system}== proc/self/cgroup\n{own}\n== proc/self/mountinfo\n{mounts}\n{files}"
    ))
}

const WHOLE: &str = "33 31 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
/// Mounted before the process went into a namespace of its own.
const OLDER: &str = "33 31 0:29 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
const OLDER_V1: &str = "33 31 0:29 /../.. /sys/fs/cgroup rw - cgroup cgroup rw,memory";
const ELSEWHERE: &str = "33 31 0:29 / /no/such/place rw - cgroup2 cgroup2 rw";
const LIMIT_150: &str = "157286400\n";

/// Where no mount shows the own group, its limit is not known, whatever is read of others: so it is
/// said, and a strict service does not start.
#[test]
fn an_own_group_that_is_not_shown_is_said() {
    let top = "== sys/fs/cgroup/cgroup.procs\n\n";
    let above = "== sys/fs/cgroup/cgroup.procs\n\n== sys/fs/cgroup/memory.max\n2147483648\n";
    let limit = format!("== sys/fs/cgroup/a/b/memory.max\n{LIMIT_150}");
    let limit_v1 = format!(
        "== sys/fs/cgroup/a/b/memory.limit_in_bytes\n{LIMIT_150}\
         == sys/fs/cgroup/memory.limit_in_bytes\n9223372036854771712\n\
         == sys/fs/cgroup/memory.stat\nhierarchical_memory_limit 9223372036854771712\n"
    );
    let taken = format!("== sys/fs/cgroup/a/memory.max\n{LIMIT_150}");
    let covered = format!("{WHOLE}\n34 33 0:29 /x /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
    for (what, own, mounts, files) in [
        ("a namespace of its own", "0::/", OLDER, &*limit),
        (
            "the same with version 1",
            "4:memory:/\n0::/",
            OLDER_V1,
            &limit_v1,
        ),
        ("beside the namespace", "0::/../../test", WHOLE, top),
        ("beside it, a limit at the mount", "0::/../x", WHOLE, above),
        ("above it", "0::/..", WHOLE, above),
        ("the mount shows / alone", "0::/docker/abc", WHOLE, top),
        ("it was removed", "0::/a (deleted)", WHOLE, &taken),
        (
            "another group of its name, in a mount upon the mount",
            "0::/a/b",
            &covered,
            &limit,
        ),
        ("the mount is not there", "0::/", ELSEWHERE, top),
        (
            "no line tells of the own group",
            "1:name=systemd:/",
            WHOLE,
            top,
        ),
        ("the file is empty", "", WHOLE, top),
    ] {
        let layout = layout_of(own, mounts, files);
        let host = Host::at(layout.root());
        let limits = host.limits().expect(what);
        assert!(!limits.unread.is_empty(), "{what}: {limits:?}");
        assert!(limits.whole().is_err(), "{what}");
        let builder = Runtime::builder().max_of_host("80%").expect("a share");
        let started = builder.host(host).strict().build();
        assert!(started.is_err(), "{what}: a strict service starts");
    }
}

/// A sandbox that hides the file of groups is no kernel without groups.
#[test]
fn a_file_of_groups_that_is_hidden_is_said() {
    let files = format!("== sys/fs/cgroup/memory.max\n{LIMIT_150}");
    let layout = layout_of("0::/", WHOLE, &files);
    let limits = || Host::at(layout.root()).limits().expect("readable");
    assert_eq!((limits().bytes(), limits().unread.len()), (150 * MIB, 0));
    layout.remove("proc/self/cgroup");
    assert_eq!(limits().unread.len(), 1);
    layout.remove("proc/self/mountinfo");
    assert_eq!(limits().unread.len(), 0, "nothing tells of control groups");
}

/// A name may end as the kernel ends the path of a group that has been removed.
#[test]
fn a_group_named_deleted() {
    let files = format!(
        "== sys/fs/cgroup/a (deleted)/memory.max\n{LIMIT_150}== sys/fs/cgroup/a/memory.max\nmax\n"
    );
    let layout = layout_of("0::/a (deleted)", WHOLE, &files);
    let limits = Host::at(layout.root()).limits().expect("readable");
    assert_eq!((limits.bytes(), limits.unread.len()), (150 * MIB, 0));
}

/// The names may not fit each other: a group that lists the process is its own.
#[test]
fn a_group_that_lists_the_process_is_its_own() {
    let own = std::process::id();
    let mounts = "33 31 0:29 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
    let files = |processes: &str| {
        format!(
            "== sys/fs/cgroup/memory.max\n{LIMIT_150}== sys/fs/cgroup/cgroup.procs\n{processes}"
        )
    };
    for (listed, unread) in [
        (format!("1\n{own}\n"), 0),
        (format!("1{own}\n{own}0\n"), 1),
        (String::new(), 1),
    ] {
        let layout = layout_of("0::/outer/docker/abc", mounts, &files(&listed));
        let limits = Host::at(layout.root()).limits().expect("readable");
        let found = (limits.bytes(), limits.unread.len());
        assert_eq!(found, (150 * MIB, unread), "{listed:?}");
    }
}

/// A group that goes out of sight raises no max, however it goes.
#[test]
fn a_max_does_not_rise_out_of_sight() {
    let files = format!(
        "== sys/fs/cgroup/a/memory.max\n{LIMIT_150}== sys/fs/cgroup/a/b/memory.max\nmax\n\
         == sys/fs/cgroup/a/c/memory.max\nmax\n== mnt/c/memory.max\nmax\n"
    );
    let bind = "33 31 0:29 /a/c /mnt/c rw - cgroup2 cgroup2 rw";
    let unified = "33 31 0:29 / /mnt/none rw - cgroup cgroup rw,memory";
    for (what, own, mounts) in [
        ("into a namespace of its own", "0::/", OLDER),
        ("to a group outside of it", "0::/../../x", WHOLE),
        ("to a group that no mount shows", "0::/x/y", WHOLE),
        ("to a group whose parent no mount shows", "0::/a/c", bind),
        ("no mount is left", "0::/a/b", ""),
        ("another hierarchy", "4:memory:/\n0::/a/b", unified),
        ("no hierarchy", "", ""),
    ] {
        let layout = layout_of("0::/a/b", WHOLE, &files);
        fs::create_dir_all(layout.root().join("mnt/none")).expect("a folder");
        let builder = Runtime::builder().max_of_host("100%").expect("a share");
        let builder = builder.host(Host::at(layout.root()));
        let (runtime, follow) = builder
            .period(Duration::from_millis(1))
            .build()
            .expect("readable");
        assert_eq!(runtime.root().max(), 150 * MIB);
        layout.write("proc/self/mountinfo", &format!("{mounts}\n"));
        layout.write("proc/self/cgroup", &format!("{own}\n"));
        let until = Instant::now() + Duration::from_secs(60);
        while follow.state().fault.is_none() {
            assert!(Instant::now() < until, "{what}: it is never said");
            assert_eq!(runtime.root().max(), 150 * MIB, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(50));
        assert_eq!(runtime.root().max(), 150 * MIB, "{what}");
        drop(follow);
    }
}
