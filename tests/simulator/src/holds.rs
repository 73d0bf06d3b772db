//! What must hold, said by what does not.

use std::sync::atomic::AtomicU64;

/// For how many milliseconds a thread of the runtime may do what it does for a moment. A script that
/// is known to fail has less: it fails again and again as it shrinks.
pub(crate) static PATIENCE: AtomicU64 = AtomicU64::new(5_000);

/// What does not hold.
#[cfg_attr(
    shuttle,
    allow(
        dead_code,
        reason = "of the twin, which has no part in runs of shuttle"
    )
)]
pub(crate) type Holds = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($told:tt)+) => {
        if !$holds {
            return Err(format!($($told)+));
        }
    };
}

macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($told:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) if found == expected => {}
            (found, expected) => {
                let of = format!($($told)+);
                return Err(format!("{of}: {found:?}, the twin has {expected:?}"));
            }
        }
    };
}

pub(crate) use {ensure, ensure_eq};
