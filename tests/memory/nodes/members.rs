//! Threads that others move from group to group: after a move is known, what they charge is the new
//! group's.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use memcg::Group;
use memcg::kmem::Kmem;
use memcg::kmem::KmemMember;

use super::{Other, hold, left_empty, local, on, placed, runtimes};
use crate::support::trees::{build, create};

#[test]
fn what_was_charged_stays() {
    for runtime in runtimes(2) {
        let root = runtime.root();
        let [a, b] = ["a", "b"].map(|name| create(&root, name));
        let mut member = KmemMember::of(&a);
        let mover = member.mover();
        let other = Other::spawn();
        let first = hold(member.group(), &placed(&[(0, 10), (1, 20)]));
        let theirs = mover.clone();
        let to = b.clone();
        other.run(move || theirs.move_to(&to)).expect("online");
        let second = hold(member.group(), &placed(&[(0, 1), (1, 2)]));
        assert_eq!(
            (local(&a), local(&b), on(&root)),
            ([10, 20], [1, 2], [11, 22])
        );
        // There and back again, unseen; to where it is; from many at once.
        for to in [&a, &b, &b, &root, &a] {
            mover.move_to(to).expect("online");
        }
        assert_eq!(*member.group(), a);
        drop((first, second));
    }
}

#[test]
fn where_it_may_not_go() {
    let runtime = left_empty(build(crate::support::trees::bare().nodes(2)));
    let elsewhere = build(crate::support::trees::bare().nodes(2));
    let root = runtime.root();
    let [a, gone] = ["a", "gone"].map(|name| create(&root, name));
    gone.offline().expect("no children");
    let mut member = KmemMember::of(&a);
    let mover = member.mover();
    match mover.move_to(&elsewhere.root()) {
        Err(error) if error.is_other_runtime() => {
            assert_eq!(error.group(), &a);
            assert_eq!(error.to_string(), "/a and / belong to two runtimes");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(mover.move_to(&gone), Err(error) if error.is_offline()));
    assert_eq!(*member.group(), a);
    // Offline while it is there: it is moved on.
    a.offline().expect("no children");
    assert!(member.group().precharge(1).is_err());
    mover.move_to(&root).expect("online");
    drop(hold(member.group(), &placed(&[(0, 1)])));
    // No thread is there any more.
    drop(member);
    mover.move_to(&root).expect("online");
    assert!(format!("{mover:?}").contains("Mover"));
}

/// A member keeps the group that it has taken up last, and no other.
#[test]
fn it_keeps_one_group() {
    let runtime = left_empty(build(crate::support::trees::bare().nodes(2)));
    let root = runtime.root();
    let [a, b] = ["a", "b"].map(|name| create(&root, name));
    let mut member = KmemMember::of(&a);
    let mover = member.mover();
    for group in [&a, &b] {
        group.offline().expect("no children");
    }
    drop((a, b));
    runtime.settle();
    assert_eq!(runtime.dying_count(), 1, "the member's");
    mover.move_to(&root).expect("online");
    assert_eq!(*member.group(), root);
    runtime.settle();
    assert_eq!(runtime.dying_count(), 0);
}

/// Moved by others while it charges: what it charges after a move has returned, and it knows, is
/// the new group's.
#[test]
fn moved_while_it_charges() {
    const MOVES: usize = if cfg!(debug_assertions) {
        5_000
    } else {
        50_000
    };
    const MEMBERS: usize = 2;
    for runtime in runtimes(3) {
        let root = runtime.root();
        let groups: Vec<Group> = (0..4)
            .map(|number| create(&root, &number.to_string()))
            .collect();
        // The last move that has returned, by member, and the one that is under way.
        let known: Vec<AtomicUsize> = (0..MEMBERS).map(|_| AtomicUsize::new(0)).collect();
        let begun: Vec<AtomicUsize> = (0..MEMBERS).map(|_| AtomicUsize::new(0)).collect();
        let done = AtomicBool::new(false);
        let (movers, inbox) = channel();
        let held: Vec<Vec<Kmem>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..MEMBERS)
                .map(|at| {
                    let groups = &groups;
                    let known = &known[at];
                    let begun = &begun[at];
                    let done = &done;
                    let movers = movers.clone();
                    scope.spawn(move || {
                        let mut member = KmemMember::of(&groups[0]);
                        movers.send((at, member.mover())).expect("the mover waits");
                        let mut held = Vec::new();
                        let mut number = 0_u16;
                        loop {
                            let over = done.load(Ordering::Acquire);
                            let before = known.load(Ordering::Acquire);
                            let kmem = hold(
                                member.group(),
                                &placed(&[(number % 3, 5), (number / 3 % 3, 7)]),
                            );
                            let after = begun.load(Ordering::Acquire);
                            // One of those between what it knew and what had begun.
                            let is_of = |step: usize| kmem.group() == groups[step % 4];
                            assert!(
                                (before..=after).any(is_of),
                                "{} after moves {before} to {after}",
                                kmem.group().path()
                            );
                            let is_last = kmem.group() == groups[MOVES % 4];
                            number = (number + 1) % 90;
                            held.push(kmem);
                            if held.len() > 50 {
                                drop(held.swap_remove(usize::from(number) % 50));
                            }
                            if over {
                                assert!(is_last);
                                return held;
                            }
                        }
                    })
                })
                .collect();
            let mut movers: Vec<_> = (0..MEMBERS)
                .map(|_| inbox.recv().expect("a member"))
                .collect();
            movers.sort_by_key(|(at, _)| *at);
            for step in 1..=MOVES {
                for (at, mover) in &movers {
                    begun[*at].store(step, Ordering::Release);
                    mover.move_to(&groups[step % 4]).expect("online");
                    known[*at].store(step, Ordering::Release);
                }
            }
            done.store(true, Ordering::Release);
            workers
                .into_iter()
                .map(|worker| worker.join().expect("no panic"))
                .collect()
        });
        for group in &groups {
            let mut expected = [0_i64; 3];
            for kmem in held.iter().flatten().filter(|kmem| kmem.group() == *group) {
                kmem.placement()
                    .nodes()
                    .for_each(|(of, bytes)| expected[usize::from(of.get())] += bytes.cast_signed());
            }
            assert_eq!(
                (local(group), group.live().cast_signed()),
                (expected, expected.iter().sum())
            );
        }
    }
}
