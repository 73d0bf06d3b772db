//! A thread whose step may have been the last claims the object, and queues its release for the end
//! of its slow path.
//!
//! There `slow_path::release_all_claimed` has `lifecycle/create.rs` release it: all that belongs to
//! the incarnation goes, and the object goes back to the pool. From then on the next group that is
//! created may get it. An allocator's path, and a thread that unwinds, leave the release to the
//! next outermost slow path of any thread.
//!
//! The steps are those of `incarnation`. Edge: E15 (last uncharge/last handle).

use std::ptr;

use crate::counter::incarnation::{Generation, Unreferenced};
use crate::counter::object::Object;
use crate::counter::raw;
use crate::sync::{Ordering, fence_after_exchange, pause_point};
use crate::thread::slow_path;

/// Queues the release of an object, given by its first counter, if the caller's step was the last.
/// Called in a slow path, after that step and a fence; the caller read `of` before the step.
#[inline]
pub(crate) fn try_release_last(first: &'static Object, of: Generation) {
    // Mutation: e15-usage-before-state
    if let Some(word) = first.state().unreferenced(of) {
        claim_slow(first, of, word);
    }
}

/// Claims the object, and finds out whether anything is left of it. Each turn ends in one of three
/// ways: another thread has the object, this thread releases it, or this thread gives the claim
/// back.
#[cold]
#[allow(unsafe_code)]
fn claim_slow(first: &'static Object, of: Generation, word: Unreferenced) {
    let state = first.state();
    let mut unreferenced = Some(word);
    // The claim fails where the word has changed since it was read. Then another thread has taken a
    // step of its own, and looks after the object at the end of that.
    while let Some(word) = unreferenced.filter(|&word| state.claim(word)) {
        pause_point("claimed");
        // No other thread releases the object now: the list of its counters is there.
        // Mutation: e15-usage-before-the-claim
        // Mutation: e15-one-counter-stands-for-all
        let used = first.objects().find(|counter| !usage_is_zero(counter));
        pause_point("usage read");
        // Mutation: e15-guards-hidden-by-uncharges
        // SAFETY: this thread has claimed the object, so the incarnation goes on.
        let hides_guards = used.is_none() && raw::hides_guards(unsafe { first.kept() });
        // Bytes that came back without a guard may hide what guards hold: usage is zero, and
        // uncharges are still to come. The object is never used again.
        // Mutation: e15-claim-stays-where-the-object-is-not-kept
        if hides_guards && state.keep_claimed(word) {
            return;
        }
        // The exchange succeeds only where no handle has come since the claim. Then nobody can
        // bring usage back, and the object is this thread's. It is released at the end of the slow
        // path, where the thread holds no lock.
        if used.is_none() && !hides_guards && state.end_claimed(word) {
            // Relaxed: from here on the object belongs to this thread.
            let after = slow_path::exchange_release_queue(ptr::from_ref(first).cast());
            first
                .usage
                .next_to_release
                .store(after.cast_mut().cast(), Ordering::Relaxed);
            return;
        }
        // Something is left, or a handle has come and gone. A thread whose last step fell into the
        // claim has left the object to this thread, so after the claim is given back this one looks
        // again.
        state.unclaim();
        // Mutation: e15-state-and-usage-unordered
        fence_after_exchange();
        // What was found is still there. So the step that takes it away is still to come, and its
        // thread looks itself.
        // Mutation: e15-state-and-usage-unordered
        // Mutation: e15-claim-given-back-without-a-look
        if used.is_some_and(|counter| !usage_is_zero(counter)) {
            return;
        }
        unreferenced = state.unreferenced(of);
    }
}

fn usage_is_zero(counter: &Object) -> bool {
    // SeqCst (E15): after the state word; pairs with the subtraction in `Counter::subtract_usage`.
    counter.usage.units.load(Ordering::SeqCst) == 0
}
