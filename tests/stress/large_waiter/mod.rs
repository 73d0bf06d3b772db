//! A large charge that waits while threads charge a KiB at a time: they pass it, but not for ever.
//!
//! While it is the first in line the others may take as many bytes as it asks for, and then no
//! more; besides, a charge of each thread may be under way when it becomes the first. The test
//! counts itself what they take.

mod scene;

use memcg::{Bytes, OnFull};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use memcg::Charge;
use scene::{LARGE, Place, Scene, THREADS};

use crate::support::poll::poll_for;
use crate::support::turns::turn;
use crate::support::watchdog::Watchdog;

/// For a machine that is busy with other things.
const WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Blocking,
    Async,
}

fn wait(scene: &Scene, form: Form) -> Charge {
    match form {
        Form::Blocking => scene
            .large
            .charge_with(Bytes(LARGE), OnFull::Wait(WITHIN))
            .expect("others have to leave it room"),
        Form::Async => match poll_for(&mut scene.large.charge_async(Bytes(LARGE)), WITHIN) {
            Poll::Ready(charge) => charge.expect("it fits"),
            Poll::Pending => panic!("others have to leave it room"),
        },
    }
}

/// All threads hold what there is; one large charge is wanted. `at_once`: the others give and take
/// when it comes, else from when it is in line.
fn round(form: Form, place: Place, at_once: bool, queues: bool) -> u64 {
    let scene = Arc::new(Scene::new(place, at_once));
    let watched = Arc::clone(&scene);
    let described = Arc::clone(&scene);
    let progress = move || watched.steps.load(Ordering::Relaxed);
    let describe = Arc::new(move || described.level.snapshot(usize::MAX).to_string());
    let _watchdog = Watchdog::start("large waiter", WITHIN, progress, describe);
    std::thread::scope(|scope| {
        let scene = &scene;
        let smalls: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || scene.churn(number, at_once, queues)))
            .collect();
        scene.full.wait();
        let large = scope.spawn(|| {
            let charge = wait(scene, form);
            scene.over.store(true, Ordering::SeqCst);
            charge
        });
        // It is alone in the line, for so far no other thread waits: the count begins when it has.
        while scene.level.waiting_count() == 0 && !large.is_finished() {
            std::thread::yield_now();
        }
        scene.counts.store(true, Ordering::SeqCst);
        scene.line.store(true, Ordering::SeqCst);
        let charge = large.join().expect("it is admitted");
        smalls
            .into_iter()
            .for_each(|small| small.join().expect("the bound holds"));
        drop(charge);
    });
    scene.check_end();
    scene.passed.load(Ordering::SeqCst)
}

#[test]
fn as_many_bytes_pass_it_as_it_asks_for() {
    let _turn = turn(module_path!());
    for (form, place) in [
        (Form::Blocking, Place::Same),
        (Form::Blocking, Place::Siblings),
        (Form::Async, Place::Same),
        (Form::Async, Place::Siblings),
    ] {
        // Thousands of charges each: unoptimised half of them will do.
        if cfg!(debug_assertions) && (form == Form::Blocking) == (place == Place::Same) {
            continue;
        }
        for (at_once, queues) in [(true, false), (true, true), (false, false), (false, true)] {
            let passed = round(form, place, at_once, queues);
            let from = if at_once { "under way" } else { "in line" };
            let how = if queues { "queue" } else { "try" };
            println!(
                "{form:?}, {place:?}, others {from} {how}: {:.1} of {} MiB passed",
                mib(passed),
                LARGE >> 20
            );
            // Under way they may be through before the test knows that it is in line.
            assert!(
                at_once || passed > 0,
                "there was room for a small one, and not for the large one"
            );
        }
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}
