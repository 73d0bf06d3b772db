//! The line of a refused charge: the group that refused, the bytes that are short, the figures that
//! are not zero, the steps that would help.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{
    Bytes, Charge, ChargeError, CounterConfig, CounterKey, Group, Limit, Limits, OnFull, OomPolicy,
    PageCounter, ReclaimPriority, Runtime, Unit,
};

use crate::support::reclaimers::{KIB, call, lock};
use crate::support::trees::{bare, build, charge, create, left_empty, limited, stocked};
use crate::support::waiters::in_line;

#[track_caller]
fn assert_prints(error: &dyn Error, text: &str) {
    assert_eq!(error.to_string(), text);
    assert!(!text.contains('\n') && !text.contains(" 0 "), "{text}");
}

#[track_caller]
fn refused(group: &Group, bytes: u64) -> ChargeError {
    group.charge(Bytes(bytes)).expect_err("no room")
}

/// A reclaimer that has nothing, so that charges are refused as before.
fn empty_handed(group: &Group) -> impl Sized + use<> {
    group.register_reclaimer(call(|_, _| 0), ReclaimPriority::NORMAL)
}

/// `/acme` with a max of 10 KiB, of which its child `q17` holds 8 KiB.
fn full(runtime: &Runtime) -> (Group, Group, Charge) {
    let acme = limited(&runtime.root(), "acme", 10 * KIB);
    let query = create(&acme, "q17");
    let held = charge(&query, 8 * KIB);
    (acme, query, held)
}

const FULL: &str = "/acme refused 3 KiB for /acme/q17: short by 1 KiB, usage 8 KiB of max 10 KiB; most in /acme/q17 8 KiB";

#[test]
fn a_group_that_is_full() {
    let runtime = left_empty(build(bare()));
    let (acme, query, _held) = full(&runtime);
    let helps = "waiting can help; to fit, release memory in /acme, register a reclaimer there or raise max of /acme";
    assert_prints(&refused(&query, 3 * KIB), &format!("{FULL}; {helps}"));
    // One that is there need not be registered. Below is as good as there.
    for at in [&acme, &query] {
        let registration = empty_handed(at);
        let helps = "reclaim can help; to fit, release memory in /acme or raise max of /acme";
        assert_prints(&refused(&query, 3 * KIB), &format!("{FULL}; {helps}"));
        drop(registration);
    }
}

#[test]
fn more_than_the_max() {
    let runtime = left_empty(build(bare()));
    let acme = limited(&runtime.root(), "acme", 10 * KIB);
    let text = "/acme refused 12 KiB for /acme: short by 2 KiB, max 10 KiB; neither waiting nor \
                reclaim can help; to fit, raise max of /acme or charge less";
    assert_prints(&refused(&acme, 12 * KIB), text);
    let nothing = create(&acme, "nothing");
    nothing.set_max(0).expect("a number");
    let text = "/acme/nothing refused 1 B for /acme/nothing: short by 1 B, max 0 B; neither waiting nor reclaim \
                can help; to fit, raise max of /acme/nothing or charge less";
    assert_eq!(refused(&nothing, 1).to_string(), text);
}

#[test]
fn behind_those_in_line() {
    let runtime = left_empty(build(bare()));
    let acme = limited(&runtime.root(), "acme", 10 * KIB);
    let _held = charge(&acme, 8 * KIB);
    let _waiter = in_line(&acme, 3 * KIB);
    // The first in line lets others barge past it for as much as it asks for itself.
    (0..3).for_each(|_| drop(charge(&acme, KIB)));
    let text = "/acme refused 1 KiB for /acme: it fits, usage 8 KiB of max 10 KiB, behind charges in line; \
                waiting can help; to fit, wait in line (OnFull::Wait, charge_async)";
    assert_prints(&refused(&acme, KIB), text);
    let text = "/acme refused 4 KiB for /acme: short by 2 KiB, usage 8 KiB of max 10 KiB, behind charges in line; \
                waiting can help; to fit, release memory in /acme, register a reclaimer there or raise max of /acme";
    assert_prints(&refused(&acme, 4 * KIB), text);
}

#[test]
fn a_further_counter() {
    let mut builder = bare();
    let swap = builder.counter("swap", memcg::Unit::Bytes);
    let runtime = left_empty(build(builder));
    let acme = create(&runtime.root(), "acme");
    acme.counter(swap)
        .expect("declared")
        .set_max(10)
        .expect("a number");
    let text = "/acme refused 12 B of swap for /acme: short by 2 B, max 10 B; \
                neither waiting nor reclaim can help; to fit, raise max of swap of /acme or charge less";
    let set = |bytes| acme.charge_set(&[(CounterKey::MEMORY, Bytes(5)), (swap, Bytes(bytes))]);
    assert_prints(&set(12).expect_err("no room"), text);
    let _held = set(8).expect("room");
    let text = "/acme refused 4 B of swap for /acme: short by 2 B, usage 8 B of max 10 B; \
                neither waiting nor reclaim can help; to fit, uncharge some of swap in /acme or raise max \
                of swap of /acme";
    assert_prints(&set(4).expect_err("no room"), text);
}

/// Descriptors are not bytes.
#[test]
fn a_further_counter_of_things() {
    let mut builder = bare();
    let descriptors = builder.counter("descriptors", Unit::Events);
    let delays = builder.counter("delays", Unit::Nanoseconds);
    let runtime = left_empty(build(builder));
    let acme = create(&runtime.root(), "acme");
    let query = create(&acme, "q17");
    let of = |group: &Group, counter| group.counter(counter).expect("declared");
    let units = [descriptors, delays, CounterKey::MEMORY].map(|counter| of(&acme, counter).unit());
    assert_eq!(units, [Unit::Events, Unit::Nanoseconds, Unit::Bytes]);
    of(&acme, descriptors).set_max(3).expect("a number");
    of(&acme, delays).set_max(5_000).expect("a number");
    let refused = |counter, amount: u64| {
        query
            .charge_set(&[(counter, Bytes(amount))])
            .expect_err("no room")
    };
    let text = "/acme refused 2048 of descriptors for /acme/q17: short by 2045, max 3; neither waiting nor \
                reclaim can help; to fit, raise max of descriptors of /acme or charge less";
    assert_prints(&refused(descriptors, 2_048), text);
    let held = [
        acme.charge_set(&[(descriptors, 2)]),
        query.charge_set(&[(descriptors, 1)]),
    ];
    let error = acme.charge_set(&[(descriptors, 1)]).expect_err("no room");
    let text = "/acme refused 1 of descriptors for /acme: short by 1, usage 3 of max 3; neither waiting nor \
                reclaim can help; to fit, uncharge some of descriptors in /acme or raise max of descriptors of /acme";
    assert_prints(&error, text);
    assert_eq!(
        error
            .over_limit()
            .map(|refusal| (refusal.unit(), refusal.want())),
        Some((Unit::Events, 1))
    );
    let text = "/acme refused 6000 ns of delays for /acme/q17: short by 1000 ns, max 5000 ns; neither waiting \
                nor reclaim can help; to fit, raise max of delays of /acme or charge less";
    assert_prints(&refused(delays, 6_000), text);
    let text = "/q18 refused 18446744073709551615 of descriptors for /q18: short by 9223372036854775808; \
                neither waiting nor reclaim can help; charge less: no group counts more than 9223372036854775807";
    let unlimited = create(&runtime.root(), "q18");
    assert_prints(
        &unlimited
            .charge_set(&[(descriptors, Bytes(u64::MAX))])
            .expect_err("too much"),
        text,
    );
    drop(held);
    unlimited.offline().expect("no children");
    let gone = unlimited
        .charge_set(&[(descriptors, 2)])
        .expect_err("offline");
    assert_prints(
        &gone,
        "/q18 is offline: 2 of descriptors refused; charge a group that is online",
    );
    assert!(gone.is_offline() && gone.requested() == 2);
}

/// A charge waits for memory that may come; one that has waited is told to wait longer.
#[test]
fn charges_that_do_not_wait_and_that_have() {
    let runtime = left_empty(build(bare()));
    let (acme, query, _held) = full(&runtime);
    let text = query
        .charge_with(Bytes(3 * KIB), OnFull::Wait(Duration::from_millis(1)))
        .expect_err("no room")
        .to_string();
    let helps = "ms in line; waiting can help; to fit, wait longer, release memory in /acme, register a reclaimer there \
                 or raise max of /acme";
    assert!(
        text.starts_with(&format!("{FULL}; after ")) && text.ends_with(helps),
        "{text}"
    );
    let _registration = empty_handed(&acme);
    let error = query
        .charge_with(Bytes(3 * KIB), OnFull::Now)
        .expect_err("no room");
    assert!(error.is_would_block());
    let helps = "memory may come, and this charge does not wait for it; reclaim can help; to fit, wait in line \
                 (OnFull::Wait, charge_async), release memory in /acme or raise max of /acme";
    assert_prints(&error, &format!("{FULL}; {helps}"));
}

#[test]
fn inside_reclaim() {
    let runtime = left_empty(build(bare()));
    let (acme, query, _held) = full(&runtime);
    let said = Arc::new(Mutex::new(String::new()));
    let _registration = {
        let query = query.clone();
        let said = Arc::clone(&said);
        let asks = call(move |_, _| {
            *lock(&said) = query
                .charge(Bytes(3 * KIB))
                .expect_err("no room")
                .to_string();
            0
        });
        acme.register_reclaimer(asks, ReclaimPriority::NORMAL)
    };
    refused(&query, 3 * KIB);
    let helps = "inside reclaim, which does not nest; reclaim can help; to fit, release memory in /acme or raise max of /acme";
    assert_eq!(*lock(&said), format!("{FULL}; {helps}"));
}

/// If no level has a limit, it is the largest number that refuses.
#[test]
fn without_any_limit() {
    let runtime = left_empty(build(bare()));
    let query = create(&runtime.root(), "q17");
    let _held = charge(&query, KIB);
    let text = "/q17 refused 16 EiB for /q17: short by 8 EiB, usage 1 KiB; neither waiting nor reclaim can help; \
                charge less: no group counts more than 8 EiB";
    assert_prints(&refused(&query, u64::MAX), text);
}

#[test]
fn groups_that_take_no_charges() {
    let runtime = left_empty(build(bare()));
    let domain = limited(&runtime.root(), "domain", 10 * KIB);
    domain.set_oom_policy(OomPolicy::Choose);
    let victim = create(&domain, "victim");
    let _held = charge(&victim, 10 * KIB);
    // It is the victim of its own charge, and gives nothing back.
    let _hook = victim.on_cancel(|_| ());
    let text = "/domain/victim is cancelled to make room: 1 KiB refused; release what it holds";
    assert_prints(&refused(&victim, KIB), text);
    let query = create(&domain, "q17");
    query.offline().expect("no children");
    assert_prints(
        &refused(&query, KIB),
        "/domain/q17 is offline: 1 KiB refused; charge a group that is online",
    );
}

/// Credit is drained before a refusal, unless the charge is above max: it would not fit beside
/// none.
#[test]
fn a_stock_is_named_where_it_may_have_credit() {
    let runtime = left_empty(build(stocked().adaptive(false)));
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(Limit::kib(10)))
        .expect("a name");
    let queries = ["a", "b"].map(|name| create(&acme, name));
    let _held = queries.each_ref().map(|query| charge(query, KIB));
    let usage = acme.usage();
    let open = refused(&queries[0], 11 * KIB).to_string();
    assert_eq!(
        (usage, acme.usage()),
        (8 * KIB, 8 * KIB),
        "a refusal that drains nothing"
    );
    let start = "/acme refused 11 KiB for /acme/a: short by 9 KiB, usage 8 KiB of max 10 KiB";
    assert!(
        open.starts_with(&format!(
            "{start}, at most 8 KiB of it unused credit; most in"
        )),
        "{open}"
    );
    let drained = refused(&queries[0], 9 * KIB).to_string();
    let start = "/acme refused 9 KiB for /acme/a: short by 1 KiB, usage 2 KiB of max 10 KiB";
    assert!(
        drained.starts_with(&format!("{start}; most in")),
        "{drained}"
    );
}

// === Counters alone ===

#[test]
fn counters() {
    let top = PageCounter::root(CounterConfig::new().batch(0).max(100));
    let job = top.child();
    let at = top.id();
    let of = job.id();
    let refused = job.charge(120).expect_err("no room");
    let text = format!(
        "{at} refused 120 for {of}: short by 20, max 100; to fit, raise its max or charge less"
    );
    assert_prints(&refused, &text);
    assert_eq!(refused.want(), 20);
    job.force_charge(90);
    let text = format!(
        "{at} refused 12 for {of}: short by 2, usage 90 of max 100; to fit, uncharge there or raise its max"
    );
    assert_prints(&job.charge(12).expect_err("no room"), &text);
    let text = format!("{at} is busy: usage 90 is 30 above the new max 60; uncharge there");
    assert_prints(&top.set_max(60).expect_err("busy"), &text);
    let unlimited = PageCounter::root(CounterConfig::new().batch(0));
    unlimited.force_charge(5);
    let of = unlimited.id();
    let most = PageCounter::USAGE_MAX;
    let text = format!(
        "{of} refused {most} for {of}: short by 5, usage 5; charge less: no counter counts more than {most}"
    );
    assert_prints(&unlimited.charge(most).expect_err("no room"), &text);
}

/// A group has the name of its service's setting, and loses it with its object. A process keeps 255
/// names.
#[test]
fn a_refusal_names_the_setting_of_its_group_alone() {
    let runtime = build(bare());
    let root = runtime.root();
    for number in 0..258_u64 {
        let name = format!("limit.{number}");
        let created = root.create(number, Limits::new().max(1).setting(&name));
        if number < 255 {
            let group = created.expect("a name that is free");
            assert!(
                refused(&group, 2)
                    .to_string()
                    .contains(&format!("raise {name} ")),
                "{}",
                refused(&group, 2)
            );
            group.offline().expect("no children");
        } else {
            let said = format!(
                "cannot name a setting for \"{number}\" in /: a process keeps 255 names of settings"
            );
            assert_eq!(created.expect_err("too many names").to_string(), said);
        }
    }
    let known = root
        .create("known", Limits::new().max(1).setting("limit.0"))
        .expect("a name that is free");
    assert!(
        refused(&known, 2).to_string().contains("raise limit.0 "),
        "a name that is kept"
    );
    let other = limited(&root, "other", 1);
    assert!(
        refused(&other, 2)
            .to_string()
            .contains("raise max of /other "),
        "an object that is used again"
    );
}
