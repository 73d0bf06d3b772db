//! Charges without a guard that cover: `cover.md` is the protocol.

use std::ptr;

use crate::counter::below;
use crate::counter::cover::{ASKED, ASKED_WHOLE, of, release};
use crate::counter::object::Counter;
use crate::counter::raw::{self, Way};
use crate::sync::{AtomicU64, Ordering};
use crate::thread::directory::Header;
use crate::thread::ledger::STEP;

/// Bytes that one raw cover has charged, so that none is given up twice. Relaxed: each byte is taken once, whichever thread
/// takes it.
#[derive(Default)]
pub(crate) struct RawHeld(AtomicU64);

impl RawHeld {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes up to `n` out. Returns how many.
    pub(crate) fn take(&self, n: u64) -> u64 {
        let less = |held: u64| Some(held.saturating_sub(n));
        // Mutation: raw-held-is-taken-in-two-steps
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map_or(0, |held| held.min(n))
    }
}

/// A cover for charges without a guard begins. The caller has prepared the record, and keeps the counter.
pub(crate) fn begin(header: &'static Header) {
    if let Some(cover) = of(header) {
        // Relaxed: the record becomes coarse, late or early.
        cover.coarse.fetch_add(1, Ordering::Relaxed);
    }
}

/// The cover ends, with `held` bytes that stay charged without a guard and cover no longer. The caller keeps the counter.
pub(crate) fn end(header: &'static Header, held: u64) {
    if let Some(cover) = of(header) {
        // Relaxed (E50): before the thread asks for a look, which then finds the record coarse no longer.
        // Mutation: e50-raw-cover-ends-after-its-look
        cover.coarse.fetch_sub(1, Ordering::Relaxed);
        release(header, held);
    }
}

/// Up to `n` unpaid bytes become bytes that are charged to `to` without a guard, and cover. Returns how many. `to` is the
/// counter behind the header or below it; the caller keeps both.
pub(crate) fn take_unpaid(header: &'static Header, to: &'static Counter, n: u64) -> u64 {
    let Some(cover) = of(header) else { return 0 };
    // Relaxed: a hint. What the look finds over is there.
    let wanted = n.min(cover.unpaid.load(Ordering::Relaxed));
    if wanted == 0 {
        return 0;
    }
    // Release (E52): as in `hold`.
    cover.added.fetch_add(wanted, Ordering::Release);
    let over = cover.compare(ASKED);
    let mut taken = over.min(wanted);
    if taken > 0 && moves(header.counter(), to, taken, header.counter()) {
        raw::count(to, taken, Way::Charged);
    } else {
        taken = 0;
    }
    cover.return_over(over - taken);
    if taken < wanted {
        // Another thread looks, and gives back what is over.
        // Mutation: e50-what-another-look-found-is-held
        release(header, wanted - taken);
    }
    taken
}

/// Moves charged units from one counter to another. `top` is one of them, and the other is below it or the same. False: a
/// level below would pass its max, and nothing is moved.
fn moves(from: &'static Counter, to: &'static Counter, n: u64, top: &Counter) -> bool {
    if ptr::eq(from, to) {
        return true;
    }
    let is_charged = below::charge_slow(to, n, top).is_ok();
    if is_charged {
        // Mutation: raw-cover-gives-up-all-levels
        below::uncharge_slow(from, n, top);
    }
    is_charged
}

/// Bytes that are charged to `from` without a guard, and cover, are given up. `from` is the counter behind the header or
/// below it; the caller keeps both.
pub(crate) fn give_up(header: &'static Header, from: &'static Counter, n: u64) {
    let Some(cover) = of(header) else { return };
    raw::count(from, n, Way::Uncharged);
    moves(from, header.counter(), n, header.counter());
    // Relaxed (E50): before the thread asks.
    let before = cover.given_up.fetch_add(n, Ordering::Relaxed);
    // Else the record keeps them: less than a step.
    if before ^ before.wrapping_add(n) >= STEP {
        cover.compare_and_return(ASKED_WHOLE);
    }
}
