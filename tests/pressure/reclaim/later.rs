//! "Asked, will report": answers that come afterwards, from wherever, or never.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{
    Bytes, Group, Limit, Limits, OnFull, Reclaim, ReclaimContext, ReclaimPriority, ReclaimPromise,
    Registration,
};

use super::{
    Cache, KIB, Log, MIB, assert_empty, assert_sound, bare, build, call, charge, create,
    create_with, left_empty, lock, soft,
};

/// Frees nothing when it is asked; hands the question on.
struct Asynchronous {
    cache: Arc<Cache>,
    questions: Mutex<Sender<ReclaimPromise>>,
    /// Takes so many at once.
    times: usize,
}

impl Reclaim for Asynchronous {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        for _ in 0..self.times {
            let later = context.promise();
            assert_eq!(later.want(), want);
            // No thread listens any more: dropped, which is an answer too.
            let _ = lock(&self.questions).send(later);
        }
        0
    }

    fn reclaimable(&self) -> u64 {
        self.cache.bytes()
    }
}

struct Made {
    cache: Arc<Cache>,
    questions: Receiver<ReclaimPromise>,
    registration: Registration,
}

fn asynchronous(group: &Group, bytes: u64, times: usize) -> Made {
    let cache = Cache::alone(group, bytes, &Log::default());
    let (sender, questions) = channel();
    let reclaimer = Asynchronous {
        cache: Arc::clone(&cache),
        questions: Mutex::new(sender),
        times,
    };
    let registration = group.register_reclaimer(Arc::new(reclaimer), ReclaimPriority::NORMAL);
    Made {
        cache,
        questions,
        registration,
    }
}

/// Time enough to be asked, not to be waited for.
fn impatient() -> memcg::RuntimeBuilder {
    bare().reclaim_time(Duration::from_millis(5))
}

fn is_send<T: Send + 'static>(_: &T) {}

#[test]
fn not_asked_again_before_it_reports() {
    let runtime = build(impatient());
    let group = create(&runtime.root(), "q");
    let made = asynchronous(&group, 8 * MIB, 1);
    let report = group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
    let question = made.questions.try_recv().expect("asked");
    is_send(&question);
    assert!(
        report.freed == 0 && report.pending >= question.want(),
        "{report:?}"
    );
    assert!(question.want() > 0 && question.want() <= MIB);
    for _ in 0..5 {
        group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
        assert!(
            made.questions.try_recv().is_err(),
            "asked while an answer is due"
        );
    }
    question.report(made.cache.evict(MIB));
    let report = group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
    assert!(
        made.questions.try_recv().is_ok(),
        "not asked again: {report:?}"
    );
    assert_sound(&runtime);
}

/// The next reclaimer of the group makes up for what the first one does not promise.
#[test]
fn what_is_promised_is_asked_of_no_other() {
    let runtime = build(impatient());
    let group = create(&runtime.root(), "q");
    let made = asynchronous(&group, 4 * KIB, 1);
    let other = Cache::alone(&group, 8 * MIB, &Log::default());
    let reclaimer = Arc::clone(&other) as Arc<dyn Reclaim>;
    let _registration = group.register_reclaimer(reclaimer, ReclaimPriority::HIGH);
    let report = group
        .reclaim(Bytes(16 * KIB))
        .expect("not inside a reclaimer");
    assert_eq!((report.pending, report.freed), (4 * KIB, 12 * KIB));
    let question = made.questions.try_recv().expect("asked");
    question.report(made.cache.evict(4 * KIB));
    assert_sound(&runtime);
}

/// Two questions of one call: while either is open it is not asked again.
#[test]
fn twice_outstanding() {
    let runtime = build(impatient());
    let group = create(&runtime.root(), "q");
    let made = asynchronous(&group, 8 * MIB, 2);
    group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
    let questions: Vec<ReclaimPromise> = made.questions.try_iter().collect();
    assert_eq!(questions.len(), 2);
    for question in questions {
        group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
        assert_eq!(
            made.questions.try_iter().count(),
            0,
            "asked while an answer is due"
        );
        question.report(made.cache.evict(64 * KIB));
    }
    group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
    assert_eq!(made.questions.try_iter().count(), 2);
    assert_sound(&runtime);
}

/// A group that waits for no group is refused at once while an answer is due, and told so.
#[test]
fn undelayed_does_not_wait_for_an_answer() {
    let runtime = build(bare().reclaim_time(Duration::from_secs(600)));
    let group = create_with(
        &runtime.root(),
        "q",
        Limits::new().max(Limit::Bytes(8 * MIB)),
    );
    let made = asynchronous(&group, 8 * MIB, 1);
    let question = loop {
        let error = group
            .charge_with(Bytes(MIB), OnFull::Reclaim)
            .expect_err("nothing is freed yet");
        let Some(refusal) = error.over_limit() else {
            panic!("{error}")
        };
        assert_eq!(refusal.group(), &group);
        if let Ok(question) = made.questions.try_recv() {
            break question;
        }
    };
    assert!(
        matches!(group.charge_with(Bytes(MIB), OnFull::Reclaim), Err(error) if error.is_would_block()),
        "the answer is due"
    );
    question.report(made.cache.evict(MIB));
    drop(
        group
            .charge_with(Bytes(MIB), OnFull::Reclaim)
            .expect("freed"),
    );
    assert_sound(&runtime);
}

/// Its report is not what it freed: no group is admitted for it.
#[test]
fn a_report_may_lie() {
    for lie in [0, MIB, u64::MAX] {
        let runtime = build(impatient());
        let group = create_with(
            &runtime.root(),
            "q",
            Limits::new().max(Limit::Bytes(8 * MIB)),
        );
        let made = asynchronous(&group, 8 * MIB, 1);
        for _ in 0..4 {
            assert!(group.charge(Bytes(MIB)).is_err(), "{lie}");
            made.questions
                .try_iter()
                .for_each(|question| question.report(lie));
        }
        made.cache.evict(MIB);
        drop(charge(&group, MIB));
        assert_sound(&runtime);
    }
}

/// Reported after its registration, its group and its runtime have gone.
#[test]
fn a_report_may_come_too_late() {
    for order in 0..3 {
        let runtime = build(impatient());
        let group = create(&runtime.root(), "q");
        let Made {
            cache,
            questions,
            registration,
        } = asynchronous(&group, 8 * MIB, 1);
        group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
        let question = questions.try_recv().expect("asked");
        drop(registration);
        if order == 0 {
            question.report(cache.evict(MIB));
            drop((cache, group));
            assert_empty(&runtime);
            continue;
        }
        group.offline().expect("no children");
        drop((cache, group));
        if order == 1 {
            assert_sound(&runtime);
            std::thread::spawn(move || question.report(MIB))
                .join()
                .expect("no panic");
            assert_empty(&runtime);
        } else {
            drop(runtime);
            std::thread::spawn(move || drop(question))
                .join()
                .expect("no panic");
        }
    }
}

/// While a group in excess owes memory no other group pays: the charge waits for the answer.
#[test]
fn others_do_not_pay_for_what_is_owed() {
    for round in 0..20 {
        // Time without end: the charge can only be admitted by the answer.
        let runtime = build(bare().max(Limit::Bytes(32 * MIB)));
        let root = runtime.root();
        let log = Log::default();
        let over = create_with(&root, "over", soft(0));
        let plain = create(&root, "plain");
        let (others, _registration) = Cache::of(&plain, 16 * MIB, &log);
        let made = asynchronous(&over, 16 * MIB, 1);
        std::thread::scope(|scope| {
            let cache = &made.cache;
            let questions = made.questions;
            let answers = scope.spawn(move || {
                let mut answered = 0;
                for question in questions {
                    if round % 2 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let freed = cache.evict(question.want());
                    answered += 1;
                    question.report(freed);
                }
                answered
            });
            let held = charge(&root, MIB);
            assert_eq!(
                (others.bytes(), log.len()),
                (16 * MIB, 0),
                "another group paid"
            );
            drop((held, made.registration));
            assert!(answers.join().expect("no panic") > 0);
        });
        assert_sound(&runtime);
    }
}

/// For as long as the call has time, no longer: then every group is asked.
#[test]
fn others_pay_when_the_time_is_over() {
    let runtime = build(impatient().max(Limit::Bytes(32 * MIB)));
    let root = runtime.root();
    let log = Log::default();
    let over = create_with(&root, "over", soft(0));
    let plain = create(&root, "plain");
    let (_others, _registration) = Cache::of(&plain, 16 * MIB, &log);
    let made = asynchronous(&over, 16 * MIB, 1);
    let mut admitted = 0;
    let mut held = Vec::new();
    for _ in 0..20 {
        held.extend(root.charge(Bytes(64 * KIB)).ok());
        admitted += held.len();
        if admitted > 0 {
            break;
        }
    }
    assert!(
        admitted > 0,
        "an answer that never comes refuses every group"
    );
    assert_eq!(made.questions.try_iter().count(), 1);
    assert_eq!(made.cache.bytes(), 16 * MIB);
    assert_sound(&runtime);
}

/// A max is written without waiting: it tells what is above it, and that no other group paid for
/// what is owed.
#[test]
fn a_max_tells_what_is_owed() {
    let runtime = build(bare());
    let root = runtime.root();
    let top = create(&root, "top");
    let over = create_with(&top, "over", soft(0));
    let plain = create(&top, "plain");
    let (others, _registration) = Cache::of(&plain, 16 * MIB, &Log::default());
    let made = asynchronous(&over, 16 * MIB, 1);
    let mut rounds = 0;
    loop {
        let above = top.set_max(Limit::Bytes(24 * MIB)).expect("a number");
        assert_eq!(above, top.usage().saturating_sub(24 * MIB));
        if above == 0 {
            break;
        }
        let asked = made.questions.try_iter().fold(0, |asked, question| {
            let freed = made.cache.evict(question.want());
            question.report(freed);
            asked + 1
        });
        assert!(asked > 0, "{above} above, and no group asked");
        rounds += 1;
    }
    assert!(
        rounds > 0 && others.bytes() == 16 * MIB,
        "{rounds} rounds, {} left",
        others.bytes()
    );
    assert_sound(&runtime);
}

/// A promise in the reclaimer's own queue, the natural place for it, keeps neither of them once no
/// group is registered.
#[test]
fn kept_in_its_reclaimer_it_keeps_nothing() {
    struct Queues(Mutex<Vec<ReclaimPromise>>);
    impl Reclaim for Queues {
        fn reclaim(&self, _: u64, context: &ReclaimContext<'_>) -> u64 {
            lock(&self.0).push(context.promise());
            0
        }
    }
    let runtime = left_empty(build(impatient()));
    let _held = charge(&runtime.root(), KIB);
    let reclaimer = Arc::new(Queues(Mutex::new(Vec::new())));
    let weak = Arc::downgrade(&reclaimer);
    let registration = runtime
        .root()
        .register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
    assert!(
        runtime
            .root()
            .reclaim(Bytes(KIB))
            .expect("not inside a reclaimer")
            .pending
            > 0
    );
    drop(registration);
    assert!(weak.upgrade().is_none(), "it waits for its own answer");
}

/// Promises that come to nothing are remembered as calls that free nothing are.
#[test]
fn one_that_never_frees_anything_is_spared() {
    let runtime = left_empty(build(bare().max(Limit::Bytes(MIB))));
    let group = create(&runtime.root(), "q");
    let _held = charge(&group, MIB);
    let asked = Arc::new(AtomicU64::new(0));
    let _registration = {
        let asked = Arc::clone(&asked);
        let reclaimer = call(move |_, context| {
            asked.fetch_add(1, Ordering::Relaxed);
            // Dropped: it has freed nothing.
            drop(context.promise());
            0
        });
        group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
    };
    for _ in 0..20 {
        group
            .charge(Bytes(KIB))
            .expect_err("no thread frees anything");
    }
    let asked = asked.load(Ordering::Relaxed);
    assert!(
        (1..=20).contains(&asked),
        "asked {asked} times for 20 charges"
    );
}

/// A promise that is dropped before the call returns is an answer: what is missing is asked of others,
/// also for a charge that waits for none.
#[test]
fn an_answer_at_once_is_nothing_to_come() {
    let runtime = build(bare().max(Limit::Bytes(17 * MIB)));
    let root = runtime.root();
    let [forgets, gives] = ["forgets", "gives"].map(|name| create(&root, name));
    let made = asynchronous(&forgets, 14 * MIB, 1);
    drop(made.questions);
    let (cache, _registration) = Cache::of(&gives, 2 * MIB, &Log::default());
    let charged = root.charge_with(Bytes(2 * MIB), OnFull::Reclaim);
    assert!(charged.is_ok(), "{charged:?}");
    assert!(cache.bytes() < 2 * MIB, "it has given");
    let report = root.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
    assert!(report.pending == 0 && report.freed >= MIB, "{report:?}");
    drop((charged, made.registration));
    assert_sound(&runtime);
}
