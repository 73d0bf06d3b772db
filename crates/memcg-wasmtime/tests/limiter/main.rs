//! Modules that run: what is charged, refused, given back, and when.

mod ends;
mod failures;
mod growth;
mod instances;
mod pooled;
mod shared;
mod threads;
mod waiting;

use memcg::{Bytes, Group, Limits, Runtime};
use memcg_wasmtime::{GroupLimiter, limit};
use wasmtime::{Engine, Instance, Module, Store, TypedFunc};

const PAGE: u64 = 1 << 16;

/// One page, a table of two elements, and functions to grow both.
const GUEST: &str = r#"(module
    (memory (export "memory") 1)
    (table (export "table") 2 funcref)
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
    (func (export "grow_table") (param i32) (result i32) (table.grow (ref.null func) (local.get 0)))
    (func (export "grow_on") (param i32) (loop (drop (memory.grow (local.get 0))) (br 0)))
    (func (export "spin") (loop (br 0))))"#;

/// The bytes of the guest before it grows.
const START: u64 = PAGE + 2 * 8;

/// An audited runtime, and a group below a max.
fn group_of(max: u64) -> (Runtime, Group) {
    let runtime = Runtime::builder()
        .audit(true)
        .build()
        .expect("limits that fit");
    let group = runtime
        .root()
        .create("acme", Limits::new().max(Bytes(max)))
        .expect("a free name");
    (runtime, group)
}

fn all_is_back(runtime: &Runtime) {
    assert_eq!(runtime.root().live(), 0);
    assert!(runtime.verify().is_ok(), "{}", runtime.verify());
}

struct Guest {
    store: Store<GroupLimiter>,
    instance: Instance,
}

impl Guest {
    fn new(limiter: GroupLimiter) -> Guest {
        Guest::of(&Engine::default(), GUEST, limiter).expect("a guest that fits")
    }

    fn of(engine: &Engine, text: &str, limiter: GroupLimiter) -> wasmtime::Result<Guest> {
        let mut store = Store::new(engine, limiter);
        limit(&mut store, |limiter| limiter);
        let instance = Instance::new(&mut store, &Module::new(engine, text)?, &[])?;
        Ok(Guest { store, instance })
    }

    fn function(&mut self, name: &str) -> TypedFunc<i32, i32> {
        self.instance
            .get_typed_func(&mut self.store, name)
            .expect("a function of the guest")
    }

    fn try_call(&mut self, name: &str, more: i32) -> wasmtime::Result<i32> {
        self.function(name).call(&mut self.store, more)
    }

    fn call(&mut self, name: &str, more: i32) -> i32 {
        self.try_call(name, more).expect("no trap")
    }

    fn refusal(&self) -> String {
        self.store
            .data()
            .last_refusal()
            .expect("a refusal")
            .to_string()
    }
}
