//! Charges that cannot be met at once: how long they are delayed, what they wait for, which groups
//! are cancelled for them.
//!
//! ```text
//! a charge of n to G
//!   admitted, and a level above its high ─> reclaim there ─> delay ─> done
//!   refused at L, reclaim frees nothing
//!     L's policy chooses ─> cancel a victim, wait for its memory ─> the next one
//!     the caller waits   ─> in line at L, until the thread that frees bytes charges them for it
//!     else               ─> refused
//! ```
//!
//! `README.md` holds the protocol and its races; `admission/` conducts the attempt.

pub(crate) mod background;
pub(crate) mod barging;
pub(crate) mod callbacks;
pub(crate) mod delayed;
pub(crate) mod delays;
pub(crate) mod high;
pub(crate) mod incidents;
pub(crate) mod line;
pub(crate) mod listeners;
pub(crate) mod observe;
pub(crate) mod pressure_levels;
pub(crate) mod service;
pub(crate) mod stalls;
pub(crate) mod started;
pub(crate) mod throttle;
pub(crate) mod victims;
pub(crate) mod wakers;
