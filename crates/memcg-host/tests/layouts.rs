//! The layouts of containers, from files: what each says of the limits, and what the crate makes of
//! it.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use memcg::Percent;
use memcg_host::{Host, HostError, HostLimits};
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
