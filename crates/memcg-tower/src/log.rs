//! The text of a refusal, which is for operators, as an event of `tracing`.

#[cfg(not(feature = "tracing"))]
pub(crate) use silent::refused;
#[cfg(feature = "tracing")]
pub(crate) use traced::refused;

#[cfg(not(feature = "tracing"))]
mod silent {
    use std::fmt::Display;

    use crate::figures::RefusalKind;

    #[inline]
    pub(crate) fn refused(_: RefusalKind, _: &dyn Display) {}
}

#[cfg(feature = "tracing")]
mod traced {
    use std::fmt::Display;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, PoisonError};
    use std::time::{Duration, Instant};

    use crate::figures::RefusalKind;

    /// A kind has one event in this time: what refuses most is what has no time for its log.
    const EACH: Duration = Duration::from_secs(1);
    const KINDS: usize = RefusalKind::ALL.len();

    static LAST: Mutex<[Option<Instant>; KINDS]> = Mutex::new([None; KINDS]);
    static LEFT_OUT: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

    #[cold]
    pub(crate) fn refused(kind: RefusalKind, text: &dyn Display) {
        if !tracing::enabled!(target: "memcg_tower::refused", tracing::Level::WARN) {
            return;
        }
        let now = Instant::now();
        let is_due = {
            let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
            let last = &mut last[kind as usize];
            let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= EACH);
            if is_due {
                *last = Some(now);
            }
            is_due
        };
        let left_out = &LEFT_OUT[kind as usize];
        if !is_due {
            left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Without the lock: a subscriber is foreign code.
        let left_out = left_out.swap(0, Ordering::Relaxed);
        tracing::warn!(target: "memcg_tower::refused", kind = kind.name(), left_out, "{text}");
    }
}
