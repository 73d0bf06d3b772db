//! The places of memory control groups: the system's two files as they stand on machines of several kinds.

use std::path::Path;

use super::hierarchy::{Hierarchy, NotFound, Version};

/// Both versions are mounted, memory is in the first, and each controller by itself.
const HYBRID: (&str, &str) = (
    "9:name=systemd:/\n\
     4:memory:/service/job7\n\
     1:cpu:/\n\
     0::/elsewhere\n",
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
     31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
     32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
     35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
     41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
);

/// One tree for all, as desktops and servers have it by now.
const UNIFIED: (&str, &str) = (
    "0::/user.slice/user-1000.slice/user@1000.service/app.slice/shell.scope\n",
    "22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw\n\
     35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 \
     rw,nsdelegate,memory_recursiveprot\n",
);

/// A container of the first version that sees the host's paths, and of its tree a part; controllers share a tree.
const CONTAINER: (&str, &str) = (
    "7:cpu,memory:/docker/8f3a/inner\n\
     1:name=systemd:/docker/8f3a\n",
    "700 690 0:31 /docker/8f3a /sys/fs/cgroup/cpu,memory ro,nosuid master:11 - cgroup cgroup rw,cpu,memory\n\
     701 690 0:31 /docker/8f3a /mnt/with\\040blank\\134 rw - cgroup cgroup rw,cpu,memory\n",
);

fn parse((cgroup, mountinfo): (&str, &str)) -> Result<Hierarchy, NotFound> {
    Hierarchy::parse(cgroup, mountinfo)
}

fn found(version: Version, top: &str, own: &str) -> Result<Hierarchy, NotFound> {
    Ok(Hierarchy { version, top: top.into(), own: own.into() })
}

#[test]
fn memory_is_found_in_each_version() {
    let memory = "/sys/fs/cgroup/memory";
    assert_eq!(parse(HYBRID), found(Version::V1, memory, "/sys/fs/cgroup/memory/service/job7"));
    let own = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/shell.scope";
    assert_eq!(parse(UNIFIED), found(Version::V2, "/sys/fs/cgroup", own));
    let top = "/sys/fs/cgroup/cpu,memory";
    assert_eq!(parse(CONTAINER), found(Version::V1, top, "/sys/fs/cgroup/cpu,memory/inner"));
}

#[test]
fn uppermost_group_is_a_group() {
    assert_eq!(parse(("0::/\n", UNIFIED.1)), found(Version::V2, "/sys/fs/cgroup", "/sys/fs/cgroup"));
    let within = ("7:memory:/docker/8f3a\n", CONTAINER.1);
    assert_eq!(parse(within), found(Version::V1, "/sys/fs/cgroup/cpu,memory", "/sys/fs/cgroup/cpu,memory"));
    let blank = CONTAINER.1.lines().last().expect("a second mount");
    assert_eq!(parse((within.0, blank)), found(Version::V1, "/mnt/with blank\\", "/mnt/with blank\\"));
}

#[test]
fn upwards_ends_with_what_can_be_seen() {
    let hierarchy = parse(HYBRID).expect("memory");
    let upwards: Vec<_> = hierarchy.upwards().collect();
    let expected = ["/sys/fs/cgroup/memory/service/job7", "/sys/fs/cgroup/memory/service", "/sys/fs/cgroup/memory"];
    assert_eq!(upwards, expected.map(Path::new));
}

#[test]
fn what_is_not_there_is_said() {
    for texts in [("", UNIFIED.1), ("1:cpu:/\n", HYBRID.1), ("no such line\n", "")] {
        assert_eq!(parse(texts), Err(NotFound::NoGroup));
    }
    // Mounted is another version, another controller, or nothing; lines that are no such lines are none.
    for (cgroup, mountinfo) in [
        (UNIFIED.0, CONTAINER.1),
        (HYBRID.0, UNIFIED.1),
        (HYBRID.0, "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"),
        (UNIFIED.0, "35 24 0:30 / /sys/fs/cgroup rw - cgroup2\n\n - \n35 24 - cgroup2 cgroup2 rw"),
        (UNIFIED.0, ""),
    ] {
        assert_eq!(parse((cgroup, mountinfo)), Err(NotFound::NotMounted), "{mountinfo}");
    }
    for path in ["/docker/8f3", "/docker/other", "/../outside", "/docker/8f3a/../other"] {
        let cgroup = format!("7:memory:{path}\n");
        assert_eq!(parse((&cgroup, CONTAINER.1)), Err(NotFound::NotVisible(path.to_string())));
    }
}
