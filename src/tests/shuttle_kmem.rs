//! Memory on nodes, with many threads: threads that other threads move between groups.

use super::{Threads, assert_adds_up, check, runtime};
use crate::Limits;
use crate::kmem::KmemMember;

/// Threads that other threads move between groups charge the group that they are in. Once all moves
/// are over, each thread is in the group of its last move.
#[test]
fn shuttle_members_are_moved() {
    check(300, || {
        let runtime = runtime(1 << 20, 0);
        let root = runtime.root();
        let [first, second] =
            ["first", "second"].map(|name| root.create(name, Limits::new()).unwrap());
        let mut threads = Threads::new();
        for _ in 0..3 {
            let mut member = KmemMember::of(&root);
            let mover = member.mover();
            let to = second.clone();
            threads.add((), move |()| {
                for _ in 0..2 {
                    drop(member.group().charge(1).unwrap());
                }
                Some(member)
            });
            mover.move_to(&first).unwrap();
            threads.add((), move |()| {
                mover.move_to(&to).unwrap();
                None
            });
        }
        let members = threads.join();
        for mut member in members.into_iter().flatten() {
            assert_eq!(*member.group(), second);
        }
        assert_adds_up(&runtime, &[]);
    });
}
