//! Schedules that are forced by pause points, with real threads: each fails at once where its rule is broken.

use std::mem::ManuallyDrop;
use std::sync::mpsc::channel;
use std::thread;

use crate::sync::at;
use crate::{Bytes, Limits, Runtime};

/// E15. A guard loses its last byte before the claimer of its group reads usage, and takes a byte again after that. Its
/// handle has come and gone: the mark *moved* tells the claimer, and the group stays.
#[test]
fn a_guard_turns_over_while_its_group_is_claimed() {
    let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
    let gone = runtime.root().create("gone", Limits::new()).unwrap();
    let mut guard = gone.try_charge(1).unwrap();
    gone.offline().unwrap();
    let (claimer, at_claimer) = channel();
    let (turner, at_turner) = channel();
    let claims = thread::spawn(move || {
        let (turner_1, turner_2) = (turner.clone(), turner);
        let at_claimer = std::rc::Rc::new(at_claimer);
        let waits = at_claimer.clone();
        at("claimed", move || {
            turner_1.send("claimed").unwrap();
            waits.recv().unwrap();
        });
        at("usage read", move || {
            turner_2.send("usage read").unwrap();
            at_claimer.recv().unwrap();
        });
        drop(gone);
    });
    assert_eq!(at_turner.recv(), Ok("claimed"));
    guard.shrink(1);
    claimer.send(()).unwrap();
    assert_eq!(at_turner.recv(), Ok("usage read"));
    guard.grow(1);
    claimer.send(()).unwrap();
    claims.join().unwrap();
    // A guard of a released group panics when it is dropped, also while the assertion unwinds.
    let guard = ManuallyDrop::new(guard);
    assert_eq!((runtime.root().usage(), runtime.dying()), (1, 1), "the guard keeps its group");
    drop(ManuallyDrop::into_inner(guard));
    assert_eq!((runtime.root().usage(), runtime.dying()), (0, 0));
}
