//! Memories and tables that grow.

use memcg::{ChargeError, Limit, Limits, Runtime};
use memcg_wasmtime::{GroupLimiter, WhenFull, limit};
use wasmtime::{
    Engine, Instance, Memory, MemoryType, Module, Ref, RefType, Store, Table, TableType,
};

use super::{GUEST, Guest, PAGE, START, all_is_back, group_of};

#[test]
fn a_guest_grows_within_the_max() {
    let (runtime, acme) = group_of(4 * PAGE);
    let mut guest = Guest::new(GroupLimiter::new(&acme));
    assert_eq!((acme.live(), guest.store.data().bytes()), (START, START));
    assert_eq!((guest.call("grow", 2), acme.live()), (1, START + 2 * PAGE));
    assert_eq!((guest.call("grow", 1), acme.live()), (-1, START + 2 * PAGE));
    assert_eq!((guest.call("grow", 0), acme.live()), (3, START + 2 * PAGE));
    assert_eq!(guest.store.data().refused_count(), 1);
    let said = guest.refusal();
    assert!(
        said.starts_with("/acme refused 64 KiB for /acme: short by 16 B, "),
        "{said}"
    );
    drop(guest);
    all_is_back(&runtime);
}

#[test]
fn a_table_is_charged_by_its_elements() {
    let (runtime, acme) = group_of(2 * PAGE);
    let mut guest = Guest::new(GroupLimiter::new(&acme));
    assert_eq!(
        (guest.call("grow_table", 1_000), acme.live()),
        (2, START + 8_000)
    );
    assert_eq!(
        (guest.call("grow_table", 8_000), acme.live()),
        (-1, START + 8_000)
    );
    assert!(
        guest.refusal().starts_with("/acme refused 62.5 KiB"),
        "{}",
        guest.refusal()
    );
    drop(guest);
    all_is_back(&runtime);
}

#[test]
fn a_host_grows_as_a_guest_does() {
    let (runtime, acme) = group_of(4 * PAGE);
    let mut guest = Guest::new(GroupLimiter::new(&acme));
    let memory = guest
        .instance
        .get_memory(&mut guest.store, "memory")
        .expect("a memory");
    assert_eq!(memory.grow(&mut guest.store, 1).unwrap(), 1);
    let more = Memory::new(&mut guest.store, MemoryType::new(1, None)).unwrap();
    assert_eq!(
        (acme.live(), more.size(&guest.store)),
        (START + 2 * PAGE, 1)
    );
    assert!(memory.grow(&mut guest.store, 1).is_err());
    assert!(Memory::new(&mut guest.store, MemoryType::new(1, None)).is_err());
    let table = TableType::new(RefType::FUNCREF, 100, None);
    let table = Table::new(&mut guest.store, table, Ref::Func(None)).unwrap();
    table.grow(&mut guest.store, 50, Ref::Func(None)).unwrap();
    assert_eq!(acme.live(), START + 2 * PAGE + 150 * 8);
    assert_eq!(guest.store.data().refused_count(), 2);
    drop(guest);
    all_is_back(&runtime);
}

#[test]
fn a_refusal_is_a_trap_by_choice() {
    let (runtime, acme) = group_of(2 * PAGE);
    let mut guest = Guest::new(GroupLimiter::new(&acme).trap_on_grow_failure(true));
    let trap = guest.try_call("grow", 9).unwrap_err();
    let refusal = trap
        .downcast_ref::<ChargeError>()
        .and_then(ChargeError::over_limit);
    let refusal = refusal.expect("a limit was in the way");
    assert_eq!((refusal.group(), refusal.requested()), (&acme, 9 * PAGE));
    assert!(
        guest
            .try_call("grow_table", 1 << 20)
            .unwrap_err()
            .is::<ChargeError>()
    );
    assert_eq!(acme.live(), START);
    drop(guest);
    all_is_back(&runtime);
}

#[test]
fn readme_has_the_sentence_that_its_example_prints() {
    let budget = Runtime::builder().max(Limit::gib(2)).build().unwrap();
    let acme = budget
        .root()
        .create("acme", Limits::new().max(Limit::mib(512)))
        .unwrap();
    let text = r#"(module
        (memory 1)
        (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"#;
    let mut guest = Guest::of(&Engine::default(), text, GroupLimiter::new(&acme)).unwrap();
    assert_eq!(
        (guest.call("grow", 99), guest.call("grow", 10_000)),
        (1, -1)
    );
    let said = guest.refusal();
    assert!(
        include_str!("../../README.md").contains(&format!("\n{said}\n")),
        "{said}"
    );
}

#[test]
fn a_start_that_does_not_fit_is_an_error() {
    let (runtime, acme) = group_of(PAGE);
    for traps in [false, true] {
        let mut store = Store::new(
            &Engine::default(),
            GroupLimiter::new(&acme).trap_on_grow_failure(traps),
        );
        limit(&mut store, |limiter| limiter);
        let module = Module::new(store.engine(), GUEST).unwrap();
        let error = Instance::new(&mut store, &module, &[]).expect_err("a table more");
        let refusal = store.data().last_refusal().expect("a refusal").to_string();
        assert!(
            refusal.starts_with("/acme refused 16 B for /acme: "),
            "{refusal}"
        );
        // Words of wasmtime's own, or words that name no group.
        assert_eq!(
            (
                error.is::<ChargeError>(),
                error.to_string() == "there is no room for the growth"
            ),
            (traps, traps),
            "{error}"
        );
        assert!(!error.to_string().contains("acme"), "{error}");
    }
    all_is_back(&runtime);
}

#[test]
fn growth_above_the_modules_own_maximum_is_no_refusal_of_the_group() {
    let (runtime, acme) = group_of(64 * PAGE);
    let text = r#"(module
        (memory 1 2)
        (table 1 3 funcref)
        (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
        (func (export "grow_table") (param i32) (result i32) (table.grow (ref.null func) (local.get 0))))"#;
    for traps in [false, true] {
        let limiter = GroupLimiter::new(&acme).trap_on_grow_failure(traps);
        let mut guest = Guest::of(&Engine::default(), text, limiter).unwrap();
        for (name, said) in [
            ("grow", "a memory of 196608 bytes"),
            ("grow_table", "a table of 4 elements"),
        ] {
            let more = if name == "grow" { 2 } else { 3 };
            match guest.try_call(name, more) {
                Ok(answer) => assert_eq!((answer, traps), (-1, false)),
                Err(trap) => assert!(traps && format!("{trap:#}").contains(said), "{trap:#}"),
            }
        }
        assert_eq!(
            (acme.live(), guest.store.data().refused_count()),
            (PAGE + 8, 0)
        );
        assert!(guest.store.data().last_refusal().is_none());
    }
    all_is_back(&runtime);
}

#[test]
fn a_growth_may_be_forced() {
    let (runtime, acme) = group_of(2 * PAGE);
    let mut guest = Guest::new(GroupLimiter::new(&acme).when_full(WhenFull::Force));
    assert_eq!(guest.call("grow", 4), 1);
    assert_eq!(
        (acme.live(), acme.forced()),
        (START + 4 * PAGE, START + 2 * PAGE)
    );
    drop(guest);
    all_is_back(&runtime);
}
