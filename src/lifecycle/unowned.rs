//! The charge for what allocators have handed out and no group owns: one group of the process has
//! it.
//!
//! Threads count these bytes (`thread::unowned`), and a thread in an outer slow path charges what
//! the count has moved by. So the charge follows the count, and both are equal after
//! [`follow_exactly`].

use crate::counter::allocator;
use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::sync::lock::{Lock, Rank};
use crate::sync::{Patience, process_wide};
use crate::thread::deferred::{UNOWNED, deferred};
use crate::thread::registry::registry;
use crate::thread::slot::Consume;
use crate::thread::slow_path;
use crate::thread::unowned::{self, STEP};

/// Turns in which a thread compares: what it charges may itself need memory, and other threads go
/// on.
const TURNS_MAX: usize = 8;

/// The group that has the charge, and how much.
struct ChargedGroup {
    group: Handle,
    bytes: u64,
}

#[derive(Default)]
pub(crate) struct UnownedState {
    charged: Option<ChargedGroup>,
    /// A thread has taken the charge out and brings it up to date.
    out: bool,
    /// Number of changes of the group: the thread that puts a charge back finds its group still
    /// wanted, or not.
    turn: u64,
}

process_wide!(unowned_charge: Lock<UnownedState> = || Lock::new(Rank::Bookkeeping, UnownedState::default()));

/// Charges the count to `group` from here on, or to no group. The group that had the charge gives
/// it back.
pub(crate) fn charge_to(group: Option<&Counter>) {
    let next = group.map(|group| ChargedGroup {
        group: Handle::pin(group),
        bytes: 0,
    });
    let unowned = unowned_charge();
    let mut state = unowned.lock();
    state.turn += 1;
    state.out = false;
    let before = std::mem::replace(&mut state.charged, next);
    drop(state);
    give_up(before);
    // Mutation: the-next-group-of-the-unowned-is-charged-late
    follow_exactly();
}

/// Without the lock: to give back calls the policies, and the handle may be the last one.
fn give_up(charged: Option<ChargedGroup>) {
    if let Some(ChargedGroup { group, bytes }) = charged {
        uncharge(&group, bytes);
    }
}

/// Bytes that no group owns are allocated: in a group that covers they are no reserved ones.
fn charge(counter: &Counter, n: u64) -> u64 {
    match counter.cover() {
        // Forced, for the bytes are allocated already: no refusal would take them back.
        None => counter.force_slow(n, Consume::Miss),
        Some(_) => {
            allocator::charge_owned(counter, n, Consume::Miss);
            n
        }
    }
}

/// The reverse of [`charge`].
fn uncharge(counter: &Counter, n: u64) {
    match counter.cover() {
        None => counter.give_back(n),
        Some(_) => allocator::uncharge_owned(counter, n),
    }
}

/// Returns how many bytes no group owns, as all threads have counted them.
pub(crate) fn sum() -> u64 {
    unowned::sum(registry().blocks())
}

/// Charges what the count has moved by, where a thread has noticed that it has moved by a step.
#[inline]
pub(crate) fn may_have_changed() {
    if deferred().take_due(UNOWNED) {
        follow(STEP);
    }
}

/// Charges what the count has moved by; waits a moment for a thread that does so.
pub(crate) fn follow_exactly() {
    let patience = Patience::new();
    while !follow(1) && patience.wait() {}
}

/// Brings the charge up to the count, in steps of `step` at least. False where another thread has
/// the charge.
#[cold]
fn follow(step: u64) -> bool {
    // An allocator may come here inside a slow path: the caller outside of it follows.
    if slow_path::is_running() {
        return true;
    }
    let unowned = unowned_charge();
    let mut state = unowned.lock();
    // The thread that has it compares again before it puts it back. One that wants an exact figure
    // comes again: see `follow_exactly`.
    if state.out {
        return false;
    }
    let Some(mut charged) = state.charged.take() else {
        return true;
    };
    // The charge is out of the lock while this thread charges: that may call policies and wait.
    state.out = true;
    let turn = state.turn;
    drop(state);
    // To charge may itself allocate, and move the count.
    for _ in 0..TURNS_MAX {
        let now = sum();
        if now >= charged.bytes.saturating_add(step) {
            charged.bytes += charge(&charged.group, now - charged.bytes);
        } else if charged.bytes >= now.saturating_add(step) {
            uncharge(&charged.group, charged.bytes - now);
            charged.bytes = now;
        } else {
            break;
        }
    }
    let mut state = unowned.lock();
    // Mutation: unowned-charge-of-another-turn
    if state.turn == turn {
        // The group is still the one that is wanted.
        state.charged = Some(charged);
        state.out = false;
    } else {
        drop(state);
        // Another group, or none, is to have the charge by now: the one that this thread has
        // charged gives all of it back.
        give_up(Some(charged));
    }
    true
}
