//! The pools are there before the root is, which is taken from them: only `build` gives both, so what is configured
//! has no groups yet, and a runtime is made no other way. A `u64` is no limit and no amount by itself.

use memcg::{Group, Limits, Runtime, RuntimeBuilder};

fn max_of_a_u64(builder: RuntimeBuilder, bytes: u64) -> bool {
    let runtime = builder.max(bytes).build(); //~ E0277 `u64` is no limit
    runtime.is_ok_and(|runtime| runtime.root().charge(bytes).is_ok()) //~ E0277 `u64` is no amount of bytes
}

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
