//! The pooling allocator.

use memcg::Bytes;
use memcg_wasmtime::GroupLimiter;
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::{GUEST, Guest, PAGE, START, all_is_back, group_of};

fn pool_of(slots: u32) -> Engine {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_memories(slots)
        .total_tables(slots)
        .total_core_instances(slots);
    pool.max_memory_size(16 << 16)
        .table_elements(100)
        .linear_memory_keep_resident(1 << 16);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .memory_reservation(16 << 16);
    Engine::new(&config).expect("a small pool")
}

/// The addresses of a pool are no tenant's, and a slot is charged with what its guest has.
#[test]
fn a_slot_is_charged_while_a_store_uses_it() {
    let (runtime, acme) = group_of(64 * PAGE);
    let engine = pool_of(2);
    assert_eq!(acme.live(), 0);
    for _ in 0..20 {
        let mut guests =
            [(); 2].map(|()| Guest::of(&engine, GUEST, GroupLimiter::new(&acme)).unwrap());
        for guest in &mut guests {
            assert_eq!(guest.call("grow", 5), 1);
        }
        assert_eq!(acme.live(), 2 * (START + 5 * PAGE));
        // No slot is free: nothing is charged.
        assert!(Guest::of(&engine, GUEST, GroupLimiter::new(&acme)).is_err());
        assert_eq!(acme.live(), 2 * (START + 5 * PAGE));
        drop(guests);
        assert_eq!(acme.live(), 0);
    }
    all_is_back(&runtime);
}

/// A refused guest leaves its slot to the next one.
#[test]
fn a_refusal_takes_no_slot() {
    let (runtime, acme) = group_of(PAGE / 2);
    let engine = pool_of(1);
    for _ in 0..5 {
        assert!(Guest::of(&engine, GUEST, GroupLimiter::new(&acme)).is_err());
        assert_eq!(acme.live(), 0);
    }
    acme.set_max(Bytes(2 * PAGE)).unwrap();
    assert!(Guest::of(&engine, GUEST, GroupLimiter::new(&acme)).is_ok());
    all_is_back(&runtime);
}
