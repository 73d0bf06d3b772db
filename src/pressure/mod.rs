//! Charges that cannot be met at once: how long they are delayed, what they wait for, whom they choose.
//!
//! ```text
//! a charge of n to G
//!   admitted, and a level above its high ─> reclaim there ─> delay ─> done
//!   refused at L, reclaim brought nothing
//!     L's policy chooses ─> cancel a victim, wait for its memory ─> the next one
//!     the caller waits   ─> in line at L, until he who frees bytes charges them for him
//!     else               ─> refused
//! ```
//!
//! Here is what is pure and what foreign code sees: the formula of a delay, what a caller wants when there is no room,
//! what a cancel hook is told. Who stands in line is the tree's business: `charge::waiting`; who is chosen,
//! `charge::oom`; what a thread does for others at the end of a slow path, `charge::service`. The protocol and its
//! races are in `README.md`.

pub(crate) mod cancel;
pub(crate) mod delay;
pub(crate) mod delays;
mod exhausted;
pub(crate) mod high;
pub(crate) mod line;
pub(crate) mod listeners;
pub(crate) mod observe;
pub(crate) mod service;
pub(crate) mod victims;
pub(crate) mod wakers;

pub use cancel::{Cancel, OomPolicy};
pub use exhausted::{OnExhausted, ParseOnExhaustedError};
