//! A group comes from a runtime, a charge from a group, an id from a group: none of them comes from nothing.

use memcg::{Charge, Group, GroupId};

fn group() -> Group {
    Default::default() //~ E0277
}

fn charge() -> Charge {
    Default::default() //~ E0277
}

fn id() -> GroupId {
    Default::default() //~ E0277
}

fn main() {}
