//! Waiting for memory on an async worker: short, and only as long as something moves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memcg::{ChargeError, Group};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::account::Account;
use crate::demand::{Stage, stage_below};
#[cfg(feature = "session")]
use crate::queue::InPlace;

/// Time that a wait goes on while nothing moves, and while operators that were asked have not come:
/// such a part of the patience. Each wait in vain halves both for the next.
const STILL_PART: u32 = 50;
const ASKED_PART: u32 = 5;
/// The same of the queue's patience, where all queries below the level wait in place, or the query
/// runs alone.
const STUCK_PART: u32 = 500;
/// After so many waits in vain none is made.
const VAIN_MAX: u32 = 5;
/// After this time without one the waits in vain are forgotten.
const FORGET: Duration = Duration::from_secs(1);
/// Time after which a wait charges again, and number of times after which it has others asked
/// again.
const LOOK: Duration = Duration::from_millis(1);
const ASK_AGAIN: u32 = 16;

/// Longest wait of a pool, and its waits in vain.
#[derive(Debug)]
pub(crate) struct Patience {
    most: Duration,
    vain: Mutex<VainWaits>,
}

#[derive(Debug)]
struct VainWaits {
    count: u32,
    last: Instant,
    /// None is to wait again: tokio has refused it.
    never: bool,
}

impl Patience {
    /// `None` where there is none.
    pub(crate) fn new(most: Duration) -> Option<Patience> {
        let vain = Mutex::new(VainWaits {
            count: 0,
            last: Instant::now(),
            never: false,
        });
        (!most.is_zero()).then_some(Patience { most, vain })
    }

    /// Waits in vain that count against the next one. `None`: there were more than `most`.
    fn vain(&self, most: u32) -> Option<u32> {
        let mut vain = self.vain.lock().unwrap_or_else(PoisonError::into_inner);
        if vain.last.elapsed() > FORGET {
            vain.count = 0;
        }
        (!vain.never && vain.count <= most).then_some(vain.count)
    }

    /// The pool's consumers may not wait.
    fn never(&self) {
        self.vain
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .never = true;
    }

    fn learn(&self, is_vain: bool) {
        let mut vain = self.vain.lock().unwrap_or_else(PoisonError::into_inner);
        vain.count = if is_vain {
            (vain.count + 1).min(VAIN_MAX)
        } else {
            0
        };
        vain.last = Instant::now();
    }

    /// Charges `bytes` without a guard, where `level` has refused them. `None`: they did not come
    /// in time, or the query `gives_up`. `waits` counts waits. `of_queue`: the queue's patience,
    /// for an attempt that no other follows; it waits as long on a busy machine, whatever was in
    /// vain before.
    pub(crate) fn wait(
        &self,
        (account, bytes): (&Account, u64),
        level: &Group,
        waits: &AtomicUsize,
        of_queue: Option<Duration>,
        gives_up: impl Fn() -> bool,
    ) -> Option<Result<(), ChargeError>> {
        let most = if of_queue.is_some() {
            VAIN_MAX
        } else {
            VAIN_MAX - 1
        };
        let vain = self.vain(most)?;
        let of_queue = of_queue.unwrap_or(Duration::ZERO);
        if !may_wait() {
            return None;
        }
        waits.fetch_add(1, Ordering::Relaxed);
        let goes_on = |moved: Duration, stage: Option<Stage>| {
            let still = self.most
                / if stage.is_some() {
                    ASKED_PART
                } else {
                    STILL_PART
                }
                / (1 << vain);
            moved < still.max(of_queue / STUCK_PART) && !gives_up()
        };
        let Some(charged) =
            block(|| charge(account, bytes, level, self.most.max(of_queue), goes_on))
        else {
            self.never();
            return None;
        };
        // A wait that the query has cut short says nothing about the next one.
        if charged.is_some() || !gives_up() {
            self.learn(charged.is_none());
        }
        charged
    }
}

/// Charges `bytes` without a guard, where `level` has refused them, for a query that can neither
/// spill nor run again. `None`: they did not come in time.
#[cfg(feature = "session")]
pub(crate) fn wait_in_place(
    account: &Account,
    bytes: u64,
    level: &Group,
    most: Duration,
    place: &InPlace,
    waits: &AtomicUsize,
) -> Option<Result<(), ChargeError>> {
    // If all attempts below the level wait in place, only consumers that spill make room.
    let goes_on = |moved: Duration, _| {
        !place.is_over()
            && moved
                < if place.others_go_on() {
                    most
                } else {
                    most / STUCK_PART
                }
    };
    if !may_wait() {
        return None;
    }
    waits.fetch_add(1, Ordering::Relaxed);
    block(|| charge(account, bytes, level, most, goes_on))?
}

/// Runs work that sleeps. `None`: tokio refuses to block a local task, by a panic, and has no way
/// to ask.
fn block<R>(work: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(|| tokio::task::block_in_place(work))).ok()
}

/// Charges again and again, for at most a time, and while it `goes_on`: it is told how long nothing
/// has moved.
///
/// It takes no place in line: the line would refuse operators the memory that they need to spill.
fn charge(
    account: &Account,
    bytes: u64,
    level: &Group,
    most: Duration,
    goes_on: impl Fn(Duration, Option<Stage>) -> bool,
) -> Option<Result<(), ChargeError>> {
    let begun = Instant::now();
    let mut moved = begun;
    let mut least = level.usage();
    for look in 1_u32.. {
        let charged = if look.is_multiple_of(ASK_AGAIN) {
            account.try_charge_or_start(bytes)
        } else {
            account.try_charge_now(bytes)
        };
        match charged {
            // A refusal: it may fit later.
            Err(error) if error.over_limit().is_some() => {}
            ended => return Some(ended),
        }
        let usage = level.usage();
        let stage = stage_below(level);
        if usage < least || stage == Some(Stage::Spilling) {
            moved = Instant::now();
        }
        least = least.min(usage);
        if begun.elapsed() >= most || !goes_on(moved.elapsed(), stage) {
            break;
        }
        thread::sleep(LOOK);
    }
    None
}

/// True if the thread may block here: a task of a multi-thread runtime, whose worker hands its
/// other tasks on.
fn may_wait() -> bool {
    let is_multi_thread = |handle: Handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread;
    tokio::task::try_id().is_some() && Handle::try_current().is_ok_and(is_multi_thread)
}

#[cfg(test)]
mod tests {
    use memcg::{Bytes, Limits, Runtime};

    use super::*;

    /// Waits that the query cuts short do not shorten the next one; those in vain do.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_wait_cut_short_is_not_in_vain() {
        let runtime = Runtime::builder().build().unwrap();
        let full = runtime.root().create("full", Limits::new().max(1)).unwrap();
        let held = full.charge(Bytes(1)).unwrap();
        for (gives_up, vain) in [(true, Some(0)), (false, Some(1))] {
            let patience = Patience::new(Duration::from_millis(100)).unwrap();
            let account = Account::plain(full.clone());
            let level = full.clone();
            let counted = tokio::spawn(async move {
                let waits = AtomicUsize::new(0);
                assert!(
                    patience
                        .wait((&account, 1), &level, &waits, None, || gives_up)
                        .is_none()
                );
                assert_eq!(waits.load(Ordering::Relaxed), 1);
                patience.vain(VAIN_MAX)
            });
            assert_eq!(counted.await.unwrap(), vain);
        }
        drop(held);
    }
}
