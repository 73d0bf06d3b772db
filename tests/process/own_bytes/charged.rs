//! A thread that has the charge.

use std::sync::Barrier;
use std::thread;

use memcg::{ChargeError, Event, Group, Limits, Runtime};

use super::create;

/// How far the charge may be from the figure: it follows in steps of 64 KiB, and looking at it every so many groups.
const BEHIND: u64 = 128 << 10;

fn audited() -> Runtime {
    Runtime::builder().audit(true).build().expect("defaults hold")
}

#[track_caller]
fn assert_charged(runtime: &Runtime, books: &Group) {
    let (charged, own) = (books.live(), runtime.own_bytes().total());
    assert!(charged.abs_diff(own) < BEHIND, "{charged} bytes charged of {own}");
}

#[test]
fn the_charge_follows_the_figure() {
    let runtime = audited();
    let root = runtime.root();
    let books = create(&root, "books");
    runtime.charge_own(&books).expect("a group of the runtime");
    let at_first = books.live();
    assert_charged(&runtime, &books);

    let groups: Vec<_> = (0..2_000).map(|number| create(&root, &number.to_string())).collect();
    assert!(books.live() > at_first + 2_000 * 256);
    assert_charged(&runtime, &books);
    assert!(runtime.verify().is_ok());
    assert_eq!(root.live(), books.live());

    for group in groups {
        group.offline().expect("no children");
    }
    runtime.settle();
    assert_charged(&runtime, &books);
    drop(runtime);
    assert_eq!((books.usage(), root.usage()), (0, 0));
}

#[test]
fn another_group_takes_it_over() {
    let runtime = audited();
    let root = runtime.root();
    let [first, second] = ["first", "second"].map(|name| create(&root, name));
    runtime.charge_own(&first).expect("a group of the runtime");
    runtime.charge_own(&second).expect("a group of the runtime");
    assert_eq!(first.live(), 0);
    assert_charged(&runtime, &second);
    assert_eq!(root.live(), second.live());
    assert!(runtime.verify().is_ok());
    // Nothing keeps the first any more.
    first.offline().expect("no children");
    drop(first);
    runtime.settle();
    assert_eq!(runtime.dying_count(), 0);
}

#[test]
fn a_group_that_goes_offline_leaves_it_to_the_nearest_above() {
    let runtime = audited();
    let root = runtime.root();
    let tenant = create(&root, "tenant");
    let query = create(&tenant, "query");
    let part = create(&query, "part");
    runtime.charge_own(&part).expect("a group of the runtime");
    let charged = part.live();
    part.offline().expect("no children");
    assert_eq!((part.live(), query.live()), (0, charged));
    tenant.offline_tree();
    assert_eq!((query.live(), tenant.live()), (0, 0));
    assert_charged(&runtime, &root);
    drop((part, query, tenant));
    runtime.settle();
    assert_eq!(runtime.dying_count(), 0);
    assert!(runtime.verify().is_ok());
    drop(runtime);
    assert_eq!(root.usage(), 0);
}

#[test]
fn it_is_never_refused() {
    let runtime = audited();
    let books = runtime.root().create("books", Limits::new().max(1).high(1)).expect("a name");
    runtime.charge_own(&books).expect("a group of the runtime");
    assert_charged(&runtime, &books);
    assert_eq!(books.forced(), books.usage() - 1);
    assert_eq!(books.events_local().get(Event::Overcharge), 1);
}

#[test]
fn only_a_group_that_is_online_and_of_the_runtime_can_have_it() {
    let [runtime, other] = [audited(), audited()];
    let stranger = runtime.charge_own(&other.root()).unwrap_err();
    assert!(matches!(stranger, ChargeError::OtherRuntime { .. }), "{stranger}");
    let gone = create(&runtime.root(), "gone");
    gone.offline().expect("no children");
    let offline = runtime.charge_own(&gone).unwrap_err();
    assert!(matches!(offline, ChargeError::Offline { .. }), "{offline}");
    assert_eq!((runtime.root().usage(), other.root().usage()), (0, 0));
}

/// Groups come and go on several threads, and the charge with them from group to group.
#[test]
fn many_threads_change_it_at_once() {
    const ROUNDS: usize = if cfg!(debug_assertions) { 300 } else { 3_000 };
    let runtime = audited();
    let root = runtime.root();
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for worker in 0..3 {
            let (root, start) = (&root, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..ROUNDS {
                    let groups: Vec<_> = (0..20).map(|n| create(root, &format!("{worker}.{round}.{n}"))).collect();
                    let held: Vec<_> = groups.iter().map(|group| group.try_charge(100).expect("room")).collect();
                    groups.iter().for_each(|group| group.offline().expect("no children"));
                    drop((held, groups));
                }
            });
        }
        start.wait();
        for round in 0..ROUNDS {
            let books = create(&root, &format!("books-{round}"));
            runtime.charge_own(&books).expect("online: this thread alone takes it offline");
            books.offline().expect("no children");
        }
    });
    runtime.settle();
    assert_eq!(runtime.dying_count(), 0);
    assert_charged(&runtime, &root);
    assert!(runtime.verify().is_ok(), "{}", runtime.verify());
    drop(runtime);
    assert_eq!(root.usage(), 0);
}
