//! Faults that reviews found.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{Limit, OnFull, OomPolicy, Runtime};

use super::{bare, build, create};

/// A root that chooses.
fn root_of(max: u64) -> Runtime {
    build(bare().max(Limit::Bytes(max)))
}

/// A subtree goes as one, exempt groups aside: a charge that does not fit there waits for the
/// victim as any other.
#[test]
fn an_exempt_group_is_not_refused_as_cancelled() {
    let runtime = root_of(100);
    let service = create(&runtime.root(), "service");
    service.set_oom_group(true);
    let [hog, exempt] = ["hog", "exempt"].map(|name| create(&service, name));
    exempt.set_oom_exempt(true);
    let held = Arc::new(Mutex::new(Some(hog.charge(90).expect("room"))));
    let _hook = hog.on_cancel({
        let held = Arc::clone(&held);
        move |_| drop(held.lock().expect("whole").take())
    });
    let charge = exempt.charge(50).expect("the victim's memory");
    assert_eq!((hog.live(), charge.bytes()), (0, 50));
}

/// A charge that waits in the victim is refused before the hooks run: a hook may join its thread.
#[test]
fn a_hook_may_join_a_thread_that_waits_in_its_group() {
    let runtime = root_of(100);
    let root = runtime.root();
    let [hog, other] = ["hog", "other"].map(|name| create(&root, name));
    let held = hog.charge(90).expect("room");
    // No group chooses as long as it goes into line.
    root.set_oom_policy(OomPolicy::Refuse);
    let waits = std::thread::spawn({
        let hog = hog.clone();
        move || {
            let ended = hog.charge_with(50, OnFull::Wait(Duration::from_secs(600)));
            drop(held);
            ended.map(drop)
        }
    });
    while root.waiting_count() == 0 {
        std::thread::yield_now();
    }
    root.set_oom_policy(OomPolicy::Choose);
    let waits = Mutex::new(Some(waits));
    let _hook = hog.on_cancel(move |_| {
        let thread = waits.lock().expect("whole").take().expect("called once");
        let ended = thread.join().expect("no panic");
        assert!(matches!(&ended, Err(error) if error.is_cancelled()));
    });
    assert!(other.charge(50).is_ok());
    assert_eq!(root.events().get(memcg::Event::Panic), 0);
}

/// A hook that gives its place up, with all that kept its group: the call goes on with a group that
/// is there.
#[test]
fn a_hook_may_give_its_own_place_up() {
    let runtime = root_of(100);
    let root = runtime.root();
    let hog = create(&root, "hog");
    let held = hog.charge(90).expect("room");
    let place = Arc::new(Mutex::new(None));
    let told = Arc::new(AtomicBool::new(false));
    let kept = Mutex::new(Some((held, hog.clone())));
    let hook = hog.on_cancel({
        let place = Arc::clone(&place);
        let told = Arc::clone(&told);
        move |why| {
            let hook: Option<memcg::Registration> = place.lock().expect("whole").take();
            drop((hook, kept.lock().expect("whole").take()));
            assert_eq!(why.group().path(), "/hog");
            told.store(true, Ordering::SeqCst);
        }
    });
    *place.lock().expect("whole") = Some(hook);
    hog.offline().expect("no children");
    drop(hog);
    assert!(root.charge(50).is_ok());
    assert!(told.load(Ordering::SeqCst));
    assert_eq!(
        (
            root.events().get(memcg::Event::Panic),
            runtime.dying_count()
        ),
        (0, 0)
    );
}
