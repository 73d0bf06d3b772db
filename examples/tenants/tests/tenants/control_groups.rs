//! The folder where a control group is made, and nothing that stays where none can be: in folders that look like the
//! system's.

use std::fs;
use std::path::Path;

use super::Folder;
use super::control_group::{ControlGroup, NotMade};
use super::hierarchy::{Hierarchy, Version};

const LIMIT: u64 = 64 << 20;

/// The uppermost group and one below it, of the second version, with these files each.
fn unified(test: &str, top: &[(&str, &str)], own: &[(&str, &str)]) -> (Folder, Hierarchy) {
    let folder = Folder::new(test);
    let hierarchy = Hierarchy { version: Version::V2, top: folder.0.clone(), own: folder.0.join("job") };
    fs::create_dir(&hierarchy.own).expect("a folder");
    for (group, files) in [(&hierarchy.top, top), (&hierarchy.own, own)] {
        for (name, text) in files {
            fs::write(group.join(name), text).expect("a file");
        }
    }
    (folder, hierarchy)
}

fn fault(hierarchy: &Hierarchy) -> NotMade {
    ControlGroup::new(hierarchy, "fresh", LIMIT).expect_err("these are no control groups")
}

fn text(folder: &Path, file: &str) -> String {
    fs::read_to_string(folder.join(file)).expect("a file")
}

#[test]
fn group_without_the_controller_is_passed_by() {
    let files = [("cgroup.controllers", "cpu io\n"), ("cgroup.subtree_control", "\n")];
    let (_folder, hierarchy) = unified("no-memory", &files, &files);
    assert_eq!(
        fault(&hierarchy).to_string(),
        format!("memory is not among the controllers of {}", hierarchy.own.display())
    );
    for group in hierarchy.upwards() {
        assert_eq!(text(group, "cgroup.subtree_control"), "\n", "nothing was switched on");
        assert!(!group.join("fresh").exists());
    }
}

#[test]
fn what_was_made_goes_when_a_limit_cannot_be_set() {
    let off = [("cgroup.controllers", "cpu memory\n"), ("cgroup.subtree_control", "")];
    let on = [("cgroup.controllers", "memory"), ("cgroup.subtree_control", "memory pids\n")];
    let (_folder, hierarchy) = unified("no-limit", &on, &off);
    // The nearest is told of, though the one above was tried, too.
    let message = fault(&hierarchy).to_string();
    assert!(
        message.starts_with(&format!("cannot write {}", hierarchy.own.join("fresh/memory.max").display())),
        "{message}"
    );
    assert!(hierarchy.upwards().all(|group| !group.join("fresh").exists()));
    assert_eq!(text(&hierarchy.own, "cgroup.subtree_control"), "-memory", "switched on, and off again");
    assert_eq!(text(&hierarchy.top, "cgroup.subtree_control"), "memory pids\n", "was on, and stays");
}

#[test]
fn group_above_with_too_little_room_is_left_alone() {
    let full = [
        ("memory.max", "100000000\n"),
        ("memory.current", "90000000\n"),
        ("memory.stat", "anon 1\ninactive_file 1000\n"),
    ];
    let (_folder, hierarchy) = unified("no-room", &full, &[("memory.max", "max\n")]);
    let message = fault(&hierarchy).to_string();
    let room = memcg::Bytes(100_000_000 - 90_000_000 + 1_000);
    assert_eq!(message, format!("{} has room for {room} only, 64 MiB are needed", hierarchy.top.display()));
}

#[test]
fn group_of_another_tenant_stays() {
    let on = [("cgroup.controllers", "memory"), ("cgroup.subtree_control", "memory")];
    let (_folder, hierarchy) = unified("taken", &on, &on);
    let taken = hierarchy.upwards().map(|group| group.join("fresh")).collect::<Vec<_>>();
    taken.iter().for_each(|group| fs::create_dir(group).expect("a folder"));
    assert!(matches!(fault(&hierarchy), NotMade::Io { what: "cannot make", .. }));
    assert!(taken.iter().all(|group| group.exists()));
}
