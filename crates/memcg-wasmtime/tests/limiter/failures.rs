//! Growths that the group allows and wasmtime cannot make, and those that wasmtime refuses before
//! it asks.

use memcg_wasmtime::GroupLimiter;
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, TypedFunc};

use super::{GUEST, Guest, PAGE, START, all_is_back, group_of};

/// 2^47 bytes: more addresses than a process has.
const TOO_MANY_PAGES: i64 = 1 << 31;

#[test]
fn memory_that_the_system_does_not_have_is_given_back() {
    let (runtime, acme) = group_of(u64::MAX);
    let text = r#"(module
        (memory i64 1)
        (func (export "grow") (param i64) (result i64) (memory.grow (local.get 0))))"#;
    let engine = Engine::new(Config::new().wasm_memory64(true)).unwrap();
    for traps in [false, true] {
        let limiter = GroupLimiter::new(&acme).trap_on_grow_failure(traps);
        let mut guest = Guest::of(&engine, text, limiter).unwrap();
        let grow: TypedFunc<i64, i64> = guest
            .instance
            .get_typed_func(&mut guest.store, "grow")
            .unwrap();
        for _ in 0..3 {
            assert!(grow.call(&mut guest.store, 1).is_ok_and(|pages| pages > 0));
            let before = acme.live();
            let failed = grow.call(&mut guest.store, TOO_MANY_PAGES);
            let is_refused = if traps {
                failed.is_err()
            } else {
                failed.unwrap() == -1
            };
            assert!(is_refused);
            assert_eq!(
                (acme.live(), guest.store.data().refused_count()),
                (before, 0)
            );
        }
        assert_eq!(acme.live(), 4 * PAGE);
        // No usage may pass 2^63: the group refuses that itself.
        assert!(
            grow.call(&mut guest.store, 1 << 48)
                .map_or(traps, |pages| pages == -1)
        );
        assert_eq!(
            (acme.live(), guest.store.data().refused_count()),
            (4 * PAGE, 1)
        );
    }
    all_is_back(&runtime);
}

#[test]
fn a_slot_that_is_too_small_gives_its_charge_back() {
    let (runtime, acme) = group_of(1 << 30);
    let mut pool = PoolingAllocationConfig::default();
    pool.total_memories(1)
        .total_tables(1)
        .total_core_instances(1);
    pool.max_memory_size(3 << 16).table_elements(10);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .memory_reservation(3 << 16);
    let engine = Engine::new(&config).unwrap();
    let mut guest = Guest::of(&engine, GUEST, GroupLimiter::new(&acme)).unwrap();
    for _ in 0..5 {
        assert_eq!(
            (guest.call("grow", 3), guest.call("grow_table", 9)),
            (-1, -1)
        );
        assert_eq!(
            (acme.live(), guest.store.data().refused_count()),
            (START, 0)
        );
    }
    assert_eq!((guest.call("grow", 2), guest.call("grow_table", 8)), (1, 2));
    assert_eq!(acme.live(), START + 2 * PAGE + 64);
    drop(guest);
    all_is_back(&runtime);
}

/// A guest could else have back what it still uses: it grows, and then fails on purpose.
#[test]
fn a_failure_that_was_not_asked_for_gives_nothing_back() {
    let (runtime, acme) = group_of(1 << 30);
    let text = r#"(module
        (table $table i64 1 funcref)
        (memory $memory 0 (pagesize 1))
        (func (export "grow") (param i32) (result i32) (memory.grow $memory (local.get 0)))
        (func (export "grow_table") (param i64) (result i64) (table.grow $table (ref.null func) (local.get 0))))"#;
    let mut config = Config::new();
    config.wasm_memory64(true).wasm_custom_page_sizes(true);
    for traps in [false, true] {
        let limiter = GroupLimiter::new(&acme).trap_on_grow_failure(traps);
        let mut guest = Guest::of(&Engine::new(&config).unwrap(), text, limiter).unwrap();
        let grow_table: TypedFunc<i64, i64> = guest
            .instance
            .get_typed_func(&mut guest.store, "grow_table")
            .unwrap();
        for _ in 0..2 {
            let before = acme.live();
            assert_eq!(guest.call("grow", 100_000) % 100_000, 0);
            assert!(guest.try_call("grow", -1).map_or(traps, |size| size == -1));
            assert_eq!(acme.live(), before + 100_000);
            assert!(grow_table.call(&mut guest.store, 1_000).unwrap() > 0);
            assert!(
                grow_table
                    .call(&mut guest.store, -1)
                    .map_or(traps, |size| size == -1)
            );
            assert_eq!(acme.live(), before + 100_000 + 8_000);
        }
    }
    all_is_back(&runtime);
}

/// A failure of a table says nothing of the memory that grew before it.
#[test]
fn failures_of_tables_and_of_memories_are_apart() {
    let (runtime, acme) = group_of(1 << 30);
    let mut guest = Guest::new(GroupLimiter::new(&acme));
    assert_eq!(guest.call("grow", 1), 1);
    let limiter: &mut dyn wasmtime::ResourceLimiter = guest.store.data_mut();
    limiter
        .table_grow_failed(wasmtime::Error::msg("another one"))
        .unwrap();
    assert_eq!(acme.live(), START + PAGE);
    let limiter: &mut dyn wasmtime::ResourceLimiter = guest.store.data_mut();
    for _ in 0..2 {
        // Only once.
        limiter
            .memory_grow_failed(wasmtime::Error::msg("this one"))
            .unwrap();
        assert_eq!(acme.live(), START);
    }
    drop(guest);
    all_is_back(&runtime);
}
