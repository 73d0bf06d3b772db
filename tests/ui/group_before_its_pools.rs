//! The pools are there before the root is, which is taken from them: only `build` gives both, so what is configured
//! has no groups yet, and a runtime is made no other way.

use memcg::{Group, Limits, Runtime, RuntimeBuilder};

fn root_of_a_configuration(builder: &RuntimeBuilder) -> Group {
    builder.root() //~ E0599
}

fn group_of_a_configuration(builder: &RuntimeBuilder) -> Group {
    builder.create("acme", Limits::new()).unwrap() //~ E0599
}

fn runtime_of_nothing() -> Runtime {
    Default::default() //~ E0277
}

fn main() {}
