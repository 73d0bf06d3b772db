//! Groups that go offline with a value, and handles on a runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use memcg::errors::CreateError;
use memcg::{GroupName, Limits, Runtime};

use super::{build, charge, create, fixed, left_empty, runtimes};

#[test]
fn a_scope_goes_offline_with_its_value() {
    for runtime in runtimes() {
        let root = runtime.root();
        let scope = root.scope("q17", Limits::new().max(100)).expect("a name");
        assert!(
            matches!(root.scope("q17", Limits::new()), Err(CreateError::Taken { group }) if group.name() == "q17")
        );
        assert_eq!((scope.max(), scope.path().as_str()), (100, "/q17"));
        let held = charge(&scope, 60);
        let id = scope.id();
        drop(scope);
        assert_eq!(runtime.group("/q17"), None);
        assert_eq!(
            runtime
                .find(id)
                .map(|group| (group.is_offline(), group.live())),
            Some((true, 60))
        );
        let _again = root.scope("q17", Limits::new()).expect("the name is free");
        drop(held);
        runtime.settle();
        assert_eq!(runtime.find(id), None);
    }
}

#[test]
fn a_scope_takes_all_below_it_along() {
    let runtime = left_empty(build(fixed()));
    let scope = runtime.root().scope(1, Limits::new()).expect("a name");
    let part = create(&scope, "part");
    let inner = part.scope("inner", Limits::new()).expect("a name");
    let _held = charge(&inner, 10);
    drop(scope);
    assert!(part.is_offline() && inner.is_offline());
    assert_eq!((runtime.group_count(), runtime.root().live()), (1, 10));
    drop((inner, part));
}

#[test]
fn a_scope_that_is_kept_or_offline_already() {
    let runtime = build(fixed());
    let root = runtime.root();
    let kept = root.scope("kept", Limits::new()).expect("a name").keep();
    assert!(!kept.is_offline());
    let scope = root.scope("gone", Limits::new()).expect("a name");
    scope.offline().expect("no children");
    let next = create(&root, "gone");
    drop(scope);
    assert!(!next.is_offline(), "another group of the name");
    let outlives = root.scope("outlives", Limits::new()).expect("a name");
    drop(runtime);
    assert!(outlives.is_offline());
    drop(outlives);
}

#[test]
fn a_scope_ends_where_its_thread_panics() {
    let runtime = left_empty(build(fixed()));
    let root = runtime.root();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let scope = root
            .scope(GroupName::Unnamed, Limits::new())
            .expect("no name is taken");
        let _part = create(&scope, "part");
        let _held = charge(&scope, 10);
        panic!("a query fails");
    }));
    assert!(caught.is_err());
    assert_eq!(runtime.group_count(), 1);
}

#[test]
fn a_number_and_its_text_are_one_name() {
    let runtime = build(fixed());
    let root = runtime.root();
    let group = root.create(17, Limits::new()).expect("a name");
    assert_eq!((&*group.name(), group.path().as_str()), ("17", "/17"));
    assert_eq!(
        (runtime.group("/17").as_ref(), runtime.group("/017")),
        (Some(&group), None)
    );
    for taken in [GroupName::Text("17"), GroupName::Number(17)] {
        let error = root.create(taken, Limits::new()).expect_err("taken");
        assert_eq!(
            error.to_string(),
            "cannot create \"17\" in /: the name is taken; get_or_create returns that group"
        );
    }
    let other = root.create("017", Limits::new()).expect("another name");
    assert_eq!(runtime.group("/017"), Some(other));
    let below = group.create(17, Limits::new()).expect("another parent");
    assert_eq!(runtime.group("/17/17"), Some(below));
}

#[test]
fn unnamed_groups_are_told_apart_by_their_ids() {
    let runtime = left_empty(build(fixed()));
    let root = runtime.root();
    let unnamed = [(); 3].map(|()| {
        root.create(GroupName::Unnamed, Limits::new())
            .expect("never taken")
    });
    for group in &unnamed {
        assert_eq!(
            (group.name().len(), runtime.find(group.id()).as_ref()),
            (0, Some(group))
        );
        assert_eq!(
            group.path(),
            format!("/#{}", group.id().to_string().trim_start_matches("group "))
        );
        assert_eq!(
            (
                runtime.group(&group.path()),
                runtime.group("/"),
                runtime.group("//")
            ),
            (None, Some(root.clone()), None)
        );
        assert_eq!(
            create(group, "part").path(),
            format!("{}/part", group.path())
        );
    }
    let mut children = root.children();
    children.retain(|child| unnamed.contains(child));
    assert_eq!(children.len(), 3);
    unnamed.iter().for_each(|group| group.offline_tree());
}

#[test]
fn the_last_handle_on_a_runtime_takes_its_groups_offline() {
    let runtime = build(Runtime::builder());
    runtime
        .start_flusher(std::time::Duration::from_secs(60))
        .expect("a thread");
    let group = create(&runtime.root(), "q");
    let clones: Vec<Runtime> = (0..4).map(|_| runtime.clone()).collect();
    drop(runtime);
    thread::scope(|scope| {
        for clone in clones {
            let group = &group;
            scope.spawn(move || {
                assert_eq!(clone.group("/q").as_ref(), Some(group));
                assert!(!group.is_offline());
            });
        }
    });
    assert!(group.is_offline());
}
