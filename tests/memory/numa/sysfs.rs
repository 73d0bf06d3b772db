//! Machines of every shape, and files that are not what they should be.

use std::io::ErrorKind;

use memcg::kmem::{NodeId, Topology, TopologyError};

use super::fixture::Sysfs;

fn read(sysfs: &Sysfs) -> Topology {
    Topology::from_sysfs(sysfs).expect("a machine")
}

fn refusal(sysfs: &Sysfs) -> TopologyError {
    Topology::from_sysfs(sysfs).expect_err("no machine")
}

fn numbers(machine: &Topology) -> Vec<u16> {
    machine.nodes().map(NodeId::get).collect()
}

fn nodes_of_processors(machine: &Topology) -> Vec<Option<u16>> {
    (0..machine.processor_count())
        .map(|processor| machine.node_of_processor(processor).map(NodeId::get))
        .collect()
}

// === machines ===

/// Nodes that may be there, those that are, the processors of each, processors that may be there;
/// and what is read.
type Machine = (
    &'static str,
    &'static str,
    &'static [(u16, &'static str)],
    &'static str,
    &'static str,
);

const MACHINES: [Machine; 7] = [
    ("0", "0", &[(0, "0-3")], "0-3", r#"Topology {0: "0-3"}"#),
    (
        "0-1",
        "0-1",
        &[(0, "0-1,4-5"), (1, "2-3,6-7")],
        "0-7",
        r#"Topology {0: "0-1,4-5", 1: "2-3,6-7"}"#,
    ),
    // Node 1 is to come; so are processors 2 and 3, which no file names yet.
    (
        "0-2",
        "0,2",
        &[(0, "0"), (2, "1")],
        "0-3",
        r#"Topology {0: "0,2-3", 1 (offline): "", 2: "1"}"#,
    ),
    (
        "0-2",
        "1-2",
        &[(1, "0"), (2, "1")],
        "0-2",
        r#"Topology {0 (offline): "", 1: "0,2", 2: "1"}"#,
    ),
    // A node that is online counts as possible.
    (
        "0",
        "0-1",
        &[(0, "0"), (1, "1")],
        "0-1",
        r#"Topology {0: "0", 1: "1"}"#,
    ),
    // The folder of a node that is offline is read.
    (
        "0-1",
        "0",
        &[(0, "0"), (1, "1")],
        "0-1",
        r#"Topology {0: "0", 1 (offline): "1"}"#,
    ),
    (
        "0,8,252-253",
        "0,8,252-253",
        &[(0, "0"), (8, "4"), (252, ""), (253, "")],
        "0,4",
        r#"Topology {0: "0", 8: "4", 252: "", 253: ""}"#,
    ),
];

#[test]
fn machines_are_read() {
    for (possible, online, nodes, processors, expected) in MACHINES {
        let machine = read(&Sysfs::machine(possible, online, nodes, processors));
        assert_eq!(format!("{machine:?}"), expected);
    }
}

#[test]
fn what_a_machine_says() {
    let one = read(&Sysfs::machine("0", "0", &[(0, "0-3")], "0-3"));
    assert!(
        one.is_one_node() && one.is_online(NodeId::new(0)) && one.current_node() == NodeId::new(0)
    );
    let none = [2, 3, 4, 5, 6, 7].map(|node| (node, ""));
    let nodes = [[(0, "0-87"), (1, "88-175")].as_slice(), &none].concat();
    let eight = read(&Sysfs::machine("0-7", "0-7", &nodes, "0-175"));
    assert_eq!(
        (
            eight.is_one_node(),
            numbers(&eight).len(),
            eight.processor_count()
        ),
        (false, 8, 176)
    );
    let with = |has| {
        eight
            .nodes()
            .filter(|&node| eight.has_processors(node) == has)
            .count()
    };
    assert_eq!((with(true), with(false)), (2, 6));
    assert!(eight.nodes().all(|node| eight.is_online(node)));
    assert_eq!(
        [88, 176].map(|processor| eight.node_of_processor(processor)),
        [Some(NodeId::new(1)), None]
    );
    let sparse = read(&Sysfs::machine("0,8", "0,8", &[(0, "0"), (8, "4")], "0,4"));
    assert_eq!(
        nodes_of_processors(&sparse),
        [Some(0), None, None, None, Some(8)]
    );
    assert!(!sparse.is_online(NodeId::new(1)) && !sparse.has_processors(NodeId::new(9)));
}

#[test]
fn more_possible_nodes_than_are_provided_for() {
    let machine = read(&Sysfs::machine(
        "0-255",
        "0,250",
        &[(0, "0"), (250, "1")],
        "0-1",
    ));
    assert_eq!(numbers(&machine), [0, 250]);
    let lists: Vec<_> = (0..65).map(|node| (node, "")).collect();
    let error = refusal(&Sysfs::machine("0-64", "0-64", &lists, "0"));
    assert_eq!(error, TopologyError::TooManyNodes { most: 64 });
}

#[test]
fn no_sysfs_at_all() {
    let machine = read(&Sysfs::empty());
    assert!(machine.is_one_node() && machine.processor_count() >= 1);
    assert!(
        Topology::from_sysfs("/nowhere/at/all")
            .expect("one node")
            .is_one_node()
    );
}

#[test]
fn no_nodes_in_sysfs() {
    let machine = read(&Sysfs::empty().with("devices/system/cpu/possible", "0-11\n"));
    assert_eq!(
        (numbers(&machine), machine.processor_count()),
        (vec![0], 12)
    );
}

#[test]
fn no_processors_in_sysfs() {
    let sysfs = Sysfs::machine("0-1", "0-1", &[(0, "0"), (1, "3")], "");
    assert_eq!(
        nodes_of_processors(&read(&sysfs)),
        [Some(0), None, None, Some(1)]
    );
    let sysfs = sysfs.without("devices/system/cpu");
    assert_eq!(
        nodes_of_processors(&read(&sysfs)),
        [Some(0), None, None, Some(1)]
    );
}

#[test]
fn this_machine() {
    let machine = Topology::detect().expect("this machine");
    let here = machine.current_node();
    assert!(machine.nodes().any(|node| node == here) && machine.is_online(here));
    assert!(machine.nodes().any(|node| machine.has_processors(node)));
    assert_eq!(machine, Topology::from_sysfs("/sys").expect("as before"));
    println!("{machine:?}");
}

// === files that are wrong ===

const FILES: [&str; 4] = [
    "devices/system/node/possible",
    "devices/system/node/online",
    "devices/system/node/node1/cpulist",
    "devices/system/cpu/possible",
];

fn two() -> Sysfs {
    Sysfs::machine("0-1", "0-1", &[(0, "0"), (1, "1")], "0-1")
}

#[test]
fn unreadable_files() {
    for file in FILES {
        let sysfs = two().with_folder(file);
        let error = refusal(&sysfs);
        let TopologyError::Read { path, kind } = &error else {
            panic!("{error}")
        };
        assert_eq!(*path, sysfs.path(file), "{file}");
        assert_ne!(*kind, ErrorKind::NotFound);
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
    }
}

#[test]
fn missing_files() {
    // All but the last, without which the nodes say which processors there are.
    for file in &FILES[..3] {
        let sysfs = two().without(file);
        assert_eq!(
            refusal(&sysfs),
            TopologyError::Read {
                path: sysfs.path(file),
                kind: ErrorKind::NotFound
            }
        );
    }
    assert_eq!(read(&two().without(FILES[3])).processor_count(), 2);
}

/// Windows says of a path through a file that there is no such path: a machine without a
/// description.
#[cfg(not(windows))]
#[test]
fn a_file_in_the_place_of_a_folder() {
    let sysfs = Sysfs::empty().with("devices", "");
    let error = refusal(&sysfs);
    assert!(
        matches!(
            error,
            TopologyError::Read {
                kind: ErrorKind::NotADirectory,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn malformed_lists() {
    for text in [
        "a",
        "-1",
        "0-",
        "0-1-2",
        "0,",
        "0,,1",
        "0 1",
        "0,1x",
        "0-1\n\n",
        " 0",
        "0x1",
        "3-1",
        "1,0",
        "0,0",
        "0-3,3",
        "65536",
        "0-99999999999999999999",
        "0-10:2/3",
        "0\0",
    ] {
        for file in FILES {
            let sysfs = two().with(file, text);
            let expected = TopologyError::Parse {
                path: sysfs.path(file),
                text: text.to_owned(),
            };
            assert_eq!(refusal(&sysfs), expected, "{text:?} in {file}");
        }
    }
}

#[test]
fn bytes_that_are_no_text() {
    for file in FILES {
        let sysfs = two().with(file, b"0,\xff\xfe\n");
        let error = refusal(&sysfs);
        let TopologyError::Parse { path, text } = &error else {
            panic!("{error}")
        };
        assert_eq!(
            (path, text.as_str()),
            (&sysfs.path(file), "0,\u{fffd}\u{fffd}\n")
        );
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
    }
}

#[test]
fn lists_with_and_without_their_last_newline() {
    assert_eq!(read(&two().with(FILES[2], "1")), read(&two()));
    let empty = read(&two().with(FILES[2], ""));
    assert!(!empty.has_processors(NodeId::new(1)));
}

#[test]
fn processors_listed_twice() {
    let sysfs = two().with("devices/system/node/node1/cpulist", "0-1\n");
    let error = refusal(&sysfs);
    assert_eq!(
        error,
        TopologyError::ProcessorTwice {
            processor: 0,
            nodes: [0, 1].map(NodeId::new)
        }
    );
}

#[test]
fn no_node_is_possible() {
    assert_eq!(
        refusal(&Sysfs::machine("", "", &[], "0")),
        TopologyError::NoNodes
    );
}

#[test]
fn the_largest_numbers() {
    let machine = read(&Sysfs::machine(
        "0,65535",
        "0,65535",
        &[(0, "0-65534"), (65_535, "65535")],
        "0-65535",
    ));
    assert_eq!(machine.processor_count(), 65_536);
    assert_eq!(machine.node_of_processor(65_535), Some(NodeId::new(65_535)));
}
