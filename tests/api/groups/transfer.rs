//! Which group may get a charge: siblings, ancestors, descendants, and which group refuses it.

use memcg::{Group, Runtime};

use super::{
    Other, assert_empty, assert_sound, bare, build, charge, create, fixed, kinds, left_empty,
    runtimes,
};

/// R{A{B, C}, D}
fn tree(runtime: &Runtime) -> [Group; 5] {
    let root = runtime.root();
    let a = create(&root, "a");
    let d = create(&root, "d");
    let b = create(&a, "b");
    let c = create(&a, "c");
    [root, a, b, c, d]
}

fn live(groups: &[Group; 5]) -> [u64; 5] {
    groups.each_ref().map(Group::live)
}

#[test]
fn a_refusal_leaves_all_as_it_was() {
    for runtime in runtimes() {
        let groups = tree(&runtime);
        let [_, a, _, c, d] = &groups;
        let other = Other::spawn();
        for group in [a, c] {
            group.set_max(50).expect("a number");
        }
        let _beside = other.with(c, |c| charge(c, 30));
        let mut held = charge(d, 21);
        let before = live(&groups);
        let Some(refusal) = held
            .transfer(c)
            .err()
            .and_then(|error| error.over_limit().cloned())
        else {
            panic!("30 + 21 > 50")
        };
        assert_eq!(
            (
                refusal.requester(),
                refusal.requested(),
                refusal.usage(),
                refusal.max()
            ),
            (c, 21, 30, 50)
        );
        assert!(refusal.group() == c || refusal.group() == a);
        assert_eq!(
            (live(&groups), held.bytes(), held.group()),
            (before, 21, d.clone())
        );
        assert_eq!(a.refused_count() + c.refused_count(), 1);
        assert_sound(&runtime);
        // To the byte it fits.
        held.shrink(1);
        held.transfer(c).expect("30 + 20 = 50");
        assert_eq!(live(&groups), [50, 50, 0, 50, 0]);
    }
}

#[test]
fn not_to_a_group_that_is_offline() {
    for builder in kinds() {
        for bytes in [0, 10] {
            let runtime = left_empty(build(builder.clone()));
            let groups = tree(&runtime);
            let [root, a, b, c, _] = &groups;
            let mut held = charge(b, bytes);
            let gone = charge(c, 3);
            c.offline().expect("no children");
            let error = held.transfer(c).expect_err("it is offline");
            assert!(error.is_offline(), "{error}");
            assert_eq!((error.group(), error.requested()), (c, bytes));
            drop(error); // it has a handle
            assert_eq!(
                (live(&groups), held.group()),
                ([bytes + 3, bytes + 3, bytes, 3, 0], b.clone())
            );
            // From one, yes: what is left behind finds a new home.
            b.offline().expect("no children");
            held.transfer(a).expect("online");
            let mut gone = gone;
            gone.transfer(root).expect("online");
            assert_eq!(
                (live(&groups), runtime.dying_count()),
                ([bytes + 3, bytes, 0, 0, 0], 2)
            );
            drop(groups);
            assert_eq!(runtime.dying_count(), 0, "nothing is left in them");
            assert_sound(&runtime);
        }
    }
}

#[test]
fn not_to_another_runtime() {
    let [ours, theirs] = [build(fixed()), build(bare())];
    let here = create(&ours.root(), "here");
    let there = create(&theirs.root(), "there");
    for bytes in [0, 10] {
        let mut held = charge(&here, bytes);
        for to in [&there, &theirs.root()] {
            let error = held.transfer(to).expect_err("of another runtime");
            assert!(error.is_other_runtime() && *error.group() == here);
            let text = format!("/here and {} belong to two runtimes", to.path());
            assert_eq!(error.to_string(), text);
        }
        assert_eq!(
            (held.group(), here.live(), theirs.root().live()),
            (here.clone(), bytes, 0)
        );
    }
    drop((here, there));
    assert_empty(&ours);
    assert_empty(&theirs);
}

#[test]
fn zero_bytes_take_their_handle_along() {
    for runtime in runtimes() {
        let groups = tree(&runtime);
        let [_, a, b, c, d] = groups.clone();
        let mut held = charge(&b, 0);
        a.set_max(0).expect("a number");
        held.transfer(&c).expect("nothing always fits");
        drop(groups);
        b.offline().expect("no children");
        drop(b);
        assert_eq!(runtime.dying_count(), 0, "nothing keeps where it was");
        c.offline().expect("no children");
        drop(c);
        assert_eq!(runtime.dying_count(), 1, "it keeps where it is");
        held.transfer(&d).expect("online");
        assert_eq!(runtime.dying_count(), 0);
        held.grow(5).expect("no limit there");
        assert_eq!((d.live(), a.live()), (5, 0));
    }
}
