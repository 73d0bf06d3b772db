//! Everything that may be refused reclaims first; what is never refused, and what is not memory,
//! asks no group.

use memcg::{Bytes, Charge, CounterKey, Event, Group, Limit, Limits};

use super::{Cache, Log, MIB, assert_sound, build, charge, create, create_with, kinds, runtimes};

/// A group below a full one, and the cache that fills it.
struct Full {
    top: Group,
    leaf: Group,
    beside: Group,
}

impl Full {
    fn below(root: &Group) -> Self {
        let top = create_with(root, "top", Limits::new().max(Limit::Bytes(16 * MIB)));
        let leaf = create(&top, "leaf");
        let beside = create(root, "beside");
        Full { top, leaf, beside }
    }
}

type Verb = (&'static str, fn(&Full, &mut Charge, &mut Charge) -> bool);

/// All of them ask for 2 MiB in a full group. The first charge is of the leaf, the second of a
/// group beside.
const VERBS: [Verb; 5] = [
    ("charge", |full, _, _| {
        full.leaf.charge(Bytes(2 * MIB)).is_ok()
    }),
    ("grow", |_, ours, _| ours.grow(Bytes(2 * MIB)).is_ok()),
    ("resize", |_, ours, _| ours.resize(Bytes(3 * MIB)).is_ok()),
    ("transfer", |full, _, theirs| {
        theirs.transfer(&full.leaf).is_ok()
    }),
    ("charge_set", |full, _, _| {
        full.leaf
            .charge_set(&[(CounterKey::MEMORY, Bytes(2 * MIB))])
            .is_ok()
    }),
];

#[test]
fn what_may_be_refused_reclaims() {
    for (name, verb) in VERBS {
        for runtime in runtimes() {
            let full = Full::below(&runtime.root());
            let log = Log::default();
            let mut ours = charge(&full.leaf, MIB);
            let mut theirs = charge(&full.beside, 2 * MIB);
            let (cache, registration) = Cache::of(&full.top, 15 * MIB, &log);
            assert!(verb(&full, &mut ours, &mut theirs), "{name}");
            assert!(
                cache.bytes() <= 13 * MIB && cache.bytes() >= 12 * MIB,
                "{name}: {}",
                cache.bytes()
            );
            assert!(
                full.top.events().local().get(Event::Max) > 0
                    && full.top.events().get(Event::Oom) == 0,
                "{name}"
            );
            assert_sound(&runtime);
            // And is refused, as it was, where no group gives.
            drop(registration);
            cache
                .add(full.top.max() - full.top.live())
                .expect("what is left");
            let held = charge(&full.beside, 2 * MIB);
            let before = ours.bytes();
            let mut theirs = held;
            let grown = if name == "resize" {
                ours.resize(Bytes(before + 2 * MIB)).is_ok()
            } else {
                false
            };
            assert!(
                !grown && (name == "resize" || !verb(&full, &mut ours, &mut theirs)),
                "{name}"
            );
            assert_eq!(
                (ours.bytes(), theirs.group()),
                (before, full.beside.clone()),
                "{name}"
            );
            assert!(full.top.events().local().get(Event::Oom) > 0, "{name}");
            assert_sound(&runtime);
        }
    }
}

/// It goes above, is counted, and no group is asked: the memory exists already.
#[test]
fn what_is_forced_asks_no_group() {
    for runtime in runtimes() {
        let full = Full::below(&runtime.root());
        let log = Log::default();
        let (cache, _registration) = Cache::of(&full.top, 16 * MIB, &log);
        let mut held = full.leaf.force_charge(Bytes(MIB));
        held.force_grow(Bytes(MIB));
        assert_eq!(
            (cache.bytes(), log.len(), full.top.forced()),
            (16 * MIB, 0, 2 * MIB)
        );
        assert!(full.top.events().local().get(Event::Overcharge) > 0);
        assert_eq!(full.top.events().local().get(Event::Oom), 0);
        assert_sound(&runtime);
    }
}

/// Reclaim is for memory: a further counter that is full refuses at once, also in a set whose
/// memory would fit.
#[test]
fn further_counters_ask_no_group() {
    for mut builder in kinds() {
        let spill = builder.counter("spill", memcg::Unit::Bytes);
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let log = Log::default();
        let (cache, _registration) = Cache::of(&group, 16 * MIB, &log);
        group
            .counter(spill)
            .expect("declared")
            .set_max(100)
            .expect("a number");
        assert!(group.charge_set(&[(spill, 101)]).is_err());
        assert!(
            group
                .charge_set(&[(CounterKey::MEMORY, Bytes(MIB)), (spill, Bytes(101))])
                .is_err()
        );
        assert_eq!(
            (cache.bytes(), log.len(), group.live()),
            (16 * MIB, 0, 16 * MIB)
        );
        // Memory that is full is made room for in a set as elsewhere.
        group.set_max(Limit::Bytes(16 * MIB)).expect("a number");
        let set = group
            .charge_set(&[(CounterKey::MEMORY, Bytes(MIB)), (spill, Bytes(100))])
            .expect("after reclaim");
        assert_eq!(set.each_ref().map(Charge::bytes), [MIB, 100]);
        assert!(cache.bytes() <= 15 * MIB);
        assert_sound(&runtime);
    }
}
