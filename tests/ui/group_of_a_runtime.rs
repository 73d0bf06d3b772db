//! The twin that compiles: a group of a runtime, a charge of that group, sent to where its memory goes.

use memcg::{Charge, Group, GroupId, Limits, Runtime};

fn main() {
    let runtime = Runtime::builder().build().unwrap();
    let made: Group = runtime.root().create("acme", Limits::new()).unwrap();
    let id: GroupId = made.id();
    let charge: Charge = made.charge(64).unwrap();
    std::thread::spawn(move || drop(charge)).join().unwrap();
    assert_eq!(runtime.find(id), Some(made));
}
