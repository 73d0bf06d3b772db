//! Foreign code: whether it may still be called, that nobody is in it once it is gone, and that its panics end here.
//!
//! One word counts calls under way beside the mark *gone*. Whoever calls counts himself first and then looks for the
//! mark; whoever takes the code away sets the mark first and then waits until nobody is counted. So either a call is
//! seen and waited for, or it sees the mark and is none.
//!
//! Edge: E24 (taken away/called).

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{AtomicU64, Ordering, Patience, pause};

const GONE: u64 = 1 << 63;

/// Payloads of one panic that are dropped, each the panic of the drop before it.
const PAYLOADS_MAX: usize = 8;

/// Calls of one piece of foreign code.
pub(crate) struct Calls(AtomicU64);

/// A call under way.
pub(crate) struct Call<'a>(&'a AtomicU64);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // Release (E24): what the call did is done before it is over; pairs with `wait`.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Calls {
    pub(crate) fn new() -> Self {
        Calls(AtomicU64::new(0))
    }

    /// `None`: it is gone.
    pub(crate) fn begin(&self) -> Option<Call<'_>> {
        // AcqRel (E24): counted before the look for the mark; pairs with `retire`.
        let gone = self.0.fetch_add(1, Ordering::AcqRel) & GONE != 0;
        let call = Call(&self.0);
        (!gone).then_some(call)
    }

    /// No call begins from here on.
    pub(crate) fn retire(&self) {
        // AcqRel (E24): marked before the look in `wait`; pairs with `begin`.
        self.0.fetch_or(GONE, Ordering::AcqRel);
    }

    /// Until no call is under way. After [`retire`](Self::retire).
    pub(crate) fn wait(&self) {
        let patience = Patience::new();
        // AcqRel (E24): the latest count; pairs with the end of a call.
        while self.0.fetch_add(0, Ordering::AcqRel) & !GONE > 0 {
            if !patience.wait() {
                pause();
            }
        }
    }

    /// A hint, as [`under_way`](Self::under_way): whoever relies on it calls [`begin`](Self::begin). Acquire: what was
    /// done before the word changed is seen.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) & GONE != 0
    }

    pub(crate) fn under_way(&self) -> u64 {
        self.0.load(Ordering::Acquire) & !GONE
    }
}

/// Foreign code has panicked.
#[derive(Debug)]
pub(crate) struct Panicked;

/// What is dropped may be foreign, and the last of it.
pub(crate) fn drop_contained<T>(foreign: T) -> Result<(), Panicked> {
    contain(|| drop(foreign))
}

/// Whatever it does, the caller goes on.
pub(crate) fn contain<R>(work: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        discard(payload);
        Panicked
    })
}

/// What foreign code panicked with is foreign, too: its drop may panic, with something whose drop does the same. A
/// payload that goes on like that is leaked.
fn discard(mut payload: Box<dyn Any + Send>) {
    for _ in 0..PAYLOADS_MAX {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(next) => payload = next,
        }
    }
    mem::forget(payload);
}
