//! A group comes from a runtime, a charge from a group, an id from a group: none of them comes from nothing.

use memcg::{Charge, Group, GroupId};

fn group() -> Group {
    Default::default()
}

fn charge() -> Charge {
    Default::default()
}

fn id() -> GroupId {
    Default::default()
}

fn main() {}
