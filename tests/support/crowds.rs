//! Threads that do something at the same time, round after round.
//!
//! A thread that is woken is late by more than most of what is tried takes. So the threads meet
//! awake, and each is late by another amount in each round.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Turns without looking away; more of them, and a thread that is waited for may need this
/// processor.
const TURNS: u32 = 500;

/// A point where threads meet: each counts its visits.
struct Meeting(Vec<AtomicU64>);

impl Meeting {
    fn of(threads: usize) -> Self {
        Meeting((0..threads).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns when all others are here as often. One that panicked is here for ever.
    fn come(&self, who: usize) {
        let times = self.0[who].fetch_add(1, Ordering::AcqRel) + 1;
        for other in &self.0 {
            let mut turns = 0;
            while other.load(Ordering::Acquire) < times {
                turns += 1;
                if turns % TURNS == 0 {
                    std::thread::yield_now()
                } else {
                    std::hint::spin_loop()
                }
            }
        }
    }
}

/// A thread that leaves, by panic or not, is waited for no more.
struct Leaves<'a>(&'a AtomicU64);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX >> 1, Ordering::Release);
    }
}

/// Runs `others` on so many threads less one, and `own` on the caller's. Threads are spawned here
/// alone: where each test spawned its own, a good part of the time to compile it went there.
fn side_by_side(threads: usize, others: &(dyn Fn(usize) + Sync), own: &mut dyn FnMut()) {
    std::thread::scope(|scope| {
        for who in 1..threads {
            scope.spawn(move || others(who));
        }
        own();
    });
}

/// In each round `prepare` makes what the threads work on, all of them `act` on it at once, and
/// `check` sees what each of them got, by number. Thread 0 is the caller's.
pub(crate) fn crowd<S: Send + Sync, A: Send>(
    threads: usize,
    rounds: u64,
    mut prepare: impl FnMut(u64) -> S,
    act: impl Fn(usize, &S) -> A + Sync,
    mut check: impl FnMut(u64, S, Vec<A>),
) {
    let meeting = Meeting::of(threads);
    let shared: Mutex<Option<Arc<S>>> = Mutex::new(None);
    let answers: Vec<Mutex<Option<A>>> = (0..threads).map(|_| Mutex::new(None)).collect();
    let round_of = |who: usize, round: u64, on: &S| {
        meeting.come(who);
        // Every thread is late by another amount, and each by another one the next time.
        (0..(round * 37 + who as u64 * 151) % 400).for_each(|_| std::hint::spin_loop());
        *answers[who].lock().unwrap_or_else(PoisonError::into_inner) = Some(act(who, on));
    };
    let others = |who: usize| {
        let _leaves = Leaves(&meeting.0[who]);
        for round in 1..=rounds {
            meeting.come(who);
            let on = shared
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            // Thread 0 has failed.
            let Some(on) = on else { return };
            round_of(who, round, &on);
            drop(on);
            meeting.come(who);
        }
    };
    side_by_side(threads, &others, &mut || {
        let _leaves = Leaves(&meeting.0[0]);
        for round in 1..=rounds {
            let on = Arc::new(prepare(round));
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&on));
            meeting.come(0);
            round_of(0, round, &on);
            meeting.come(0);
            drop(shared.lock().unwrap_or_else(PoisonError::into_inner).take());
            let on = Arc::into_inner(on).expect("the others have let go of it");
            let answered = answers
                .iter()
                .map(|answer| answer.lock().unwrap_or_else(PoisonError::into_inner).take());
            check(
                round,
                on,
                answered
                    .map(|answer| answer.expect("every thread answers"))
                    .collect(),
            );
        }
    });
}

enum Either<A, B> {
    One(A),
    Other(B),
}

/// [`crowd`] of two threads, which do different things.
pub(crate) fn pair<S: Send + Sync, A: Send, B: Send>(
    rounds: u64,
    prepare: impl FnMut(u64) -> S,
    one: impl Fn(&S) -> A + Sync,
    other: impl Fn(&S) -> B + Sync,
    mut check: impl FnMut(u64, S, A, B),
) {
    let act = |who: usize, on: &S| {
        if who == 0 {
            Either::One(one(on))
        } else {
            Either::Other(other(on))
        }
    };
    crowd(2, rounds, prepare, act, |round, on, answers| {
        let mut answers = answers.into_iter();
        match (answers.next(), answers.next()) {
            (Some(Either::One(one)), Some(Either::Other(other))) => check(round, on, one, other),
            _ => unreachable!("each answers for itself"),
        }
    });
}
