use memcg::expert::Inspect;
use memcg::{Group, Limits};

use super::{Object, assert_figures, assert_verified, covering, group, runtime};

/// What is reserved in one group of a subtree pays for what is allocated in another. The parent is charged once.
#[test]
fn groups_below_pay_for_each_other() {
    let runtime = runtime();
    let tenant = group(&runtime, "t");
    let query = covering(&tenant, "q");
    let sorts = query.create("sorts", Limits::new()).unwrap();
    let scans = query.create("scans", Limits::new().cover_allocations()).unwrap();
    assert!(sorts.limits().cover_allocations && scans.limits().cover_allocations && !tenant.limits().cover_allocations);
    let charge = sorts.try_charge(100).unwrap();
    let objects = [Object::of(&query, 60), Object::of(&scans, 30)];
    assert_figures(&sorts, [100, 100, 0, 0]);
    assert_figures(&scans, [30, 0, 30, 30]);
    assert_figures(&query, [100, 100, 90, 0]);
    assert_figures(&tenant, [100, 100, 90, 0]);
    let more = Object::of(&sorts, 50);
    assert_figures(&sorts, [100, 100, 50, 0]);
    assert_figures(&query, [140, 100, 140, 40]);
    assert_figures(&runtime.root(), [140, 100, 140, 40]);
    let own = query.ledger_local();
    assert_eq!((own.reserved(), own.allocated(), own.unpaid(), query.live_local()), (0, 60, 60, 60));
    assert_verified(&runtime);
    drop(charge);
    assert_figures(&tenant, [140, 0, 140, 140]);
    drop((objects, more));
    assert_figures(&tenant, [0; 4]);
    assert_verified(&runtime);
}

/// Beside a group that covers there are some that do not: a parent that has not asked has the sum.
#[test]
fn a_parent_that_has_not_asked_has_the_sum() {
    let runtime = runtime();
    let tenant = group(&runtime, "t");
    let [one, two] = ["one", "two"].map(|name| covering(&tenant, name));
    let plain = tenant.create("plain", Limits::new()).unwrap();
    let held = [one.try_charge(100).unwrap(), plain.try_charge(7).unwrap(), tenant.try_charge(1).unwrap()];
    let objects = [Object::of(&one, 30), Object::of(&two, 200), Object::of(&plain, 11), Object::of(&tenant, 3)];
    assert_figures(&tenant, [322, 108, 244, 200]);
    assert_figures(&runtime.root(), [322, 108, 244, 200]);
    let own = tenant.ledger_local();
    assert_eq!((own.reserved(), own.allocated(), own.unpaid(), tenant.live_local()), (1, 3, 0, 4));
    assert_verified(&runtime);
    drop((held, objects));
    assert_figures(&tenant, [0; 4]);
}

#[track_caller]
fn assert_lives(groups: [&Group; 3], lives: [u64; 3]) {
    assert_eq!(groups.map(Group::live), lives);
}

/// What a charge has paid for stays where it is allocated.
#[test]
fn a_charge_is_transferred() {
    let runtime = runtime();
    let tenant = runtime.root().create("t", Limits::new().max(100)).unwrap();
    let [from, to] = ["from", "to"].map(|name| covering(&tenant, name));
    let groups = [&tenant, &from, &to];
    let mut charge = from.try_charge(100).unwrap();
    charge.transfer(&to).unwrap();
    assert_lives(groups, [100, 0, 100]);
    // A full parent has no room for what stays.
    let object = Object::of(&to, 60);
    assert!(charge.transfer(&from).is_err());
    assert_lives(groups, [100, 100 - 100, 100]);
    assert_eq!((charge.bytes(), charge.group()), (100, to.clone()));
    charge.shrink(60);
    charge.transfer(&from).unwrap();
    assert_lives(groups, [100, 40, 60]);
    // Back to where it pays for what is there.
    charge.transfer(&to).unwrap();
    assert_lives(groups, [60, 0, 60]);
    assert_verified(&runtime);
    drop(charge);
    assert_lives(groups, [60, 0, 60]);
    drop(object);
    assert_verified(&runtime);
}

#[test]
fn a_charge_leaves_and_enters_groups_that_cover() {
    let runtime = runtime();
    let tenant = runtime.root().create("t", Limits::new().max(100)).unwrap();
    let query = covering(&tenant, "q");
    let [sorts, scans] = ["sorts", "scans"].map(|name| query.create(name, Limits::new()).unwrap());
    let plain = tenant.create("plain", Limits::new()).unwrap();
    let object = Object::of(&query, 50);
    let mut charge = sorts.try_charge(80).unwrap();
    charge.transfer(&scans).unwrap();
    assert_eq!((sorts.live(), scans.live(), query.live(), tenant.live()), (0, 80, 80, 80), "the query has it already");
    charge.transfer(&query).unwrap();
    assert_eq!((scans.live(), query.live(), tenant.live()), (0, 80, 80));
    assert!(charge.transfer(&plain).is_err(), "130 of 100");
    charge.shrink(30);
    charge.transfer(&plain).unwrap();
    assert_eq!((plain.live(), query.live(), tenant.live()), (50, 50, 100));
    charge.transfer(&sorts).unwrap();
    assert_eq!((plain.live(), sorts.live(), query.live(), tenant.live()), (0, 50, 50, 50));
    charge.transfer(&tenant).unwrap();
    assert_eq!((sorts.live(), query.live(), tenant.live()), (0, 50, 100));
    charge.transfer(&sorts).unwrap();
    assert_eq!((sorts.live(), tenant.live()), (50, 50));
    assert_verified(&runtime);
    drop((charge, object));
    assert_figures(&tenant, [0; 4]);
    assert_verified(&runtime);
}

/// Each level of the subtree has a max of its own.
#[test]
fn each_level_refuses_for_itself() {
    let runtime = runtime();
    let query = runtime.root().create("q", Limits::new().max(100).cover_allocations()).unwrap();
    let operators = ["a", "b"].map(|name| query.create(name, Limits::new().max(60)).unwrap());
    let objects = operators.each_ref().map(|operator| Object::of(operator, 50));
    assert_eq!(query.live(), 100);
    let charges = operators.each_ref().map(|operator| operator.try_charge(50).unwrap());
    assert_eq!(query.live(), 100, "paid");
    let refused = operators[0].try_charge(11).unwrap_err();
    assert!(refused.to_string().starts_with("/q/a refused 11 B"), "{refused}");
    let refused = operators[0].try_charge(10).unwrap_err();
    assert!(refused.to_string().starts_with("/q refused 10 B"), "{refused}");
    assert_eq!(operators[0].live(), 50);
    drop((objects, charges));
    assert_verified(&runtime);
}
