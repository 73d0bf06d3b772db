#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

/// The chapter of the book, so that its code is tested.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/channel.md")]
struct Chapter;

mod charge;
mod mpsc;
mod spawn;

pub use charge::{charge_timeout, charge_until, checkpoint, release_credit};
#[cfg(feature = "tokio-util")]
pub use mpsc::PollSender;
pub use mpsc::{
    DropPolicy, LossySender, OwnedPermit, Receiver, SendError, Sender, WeakSender, channel,
    message_overhead,
};
pub use spawn::{spawn_blocking_in, spawn_in};
