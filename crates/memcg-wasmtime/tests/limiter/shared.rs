//! Shared memories, which the limiter sees at their start alone.

use memcg::Bytes;
use memcg_wasmtime::GroupLimiter;
use wasmtime::{Config, Engine, MemoryType, SharedMemory};

use super::{Guest, PAGE, all_is_back, group_of};

const SHARED: &str = r#"(module
    (memory (export "memory") 1 8 shared)
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"#;

#[test]
fn a_shared_memory_grows_without_the_limiter() {
    let (runtime, acme) = group_of(2 * PAGE);
    let engine = Engine::new(Config::new().wasm_threads(true).shared_memory(true)).unwrap();
    let mut guest = Guest::of(&engine, SHARED, GroupLimiter::new(&acme)).unwrap();
    assert_eq!(acme.live(), PAGE);
    assert_eq!((guest.call("grow", 7), acme.live()), (1, PAGE));
    drop(guest);
    all_is_back(&runtime);

    // So the host charges what it allows, before it makes one.
    let refused = acme.charge(Bytes(8 * PAGE));
    assert!(refused.is_err());
    acme.set_max(Bytes(8 * PAGE)).unwrap();
    let charge = acme.charge(Bytes(8 * PAGE)).unwrap();
    let memory = SharedMemory::new(&engine, MemoryType::shared(1, 8)).unwrap();
    memory.grow(7).unwrap();
    assert_eq!(
        (memory.data_size() as u64, acme.live()),
        (charge.bytes(), 8 * PAGE)
    );
    drop((memory, charge));
    all_is_back(&runtime);
}

#[test]
fn shared_memories_are_refused_by_default() {
    let (runtime, acme) = group_of(2 * PAGE);
    assert!(Guest::of(&Engine::default(), SHARED, GroupLimiter::new(&acme)).is_err());
    all_is_back(&runtime);
}
