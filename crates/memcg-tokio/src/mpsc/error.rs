//! Why a message was not sent.

use std::fmt;

use memcg::ChargeError;

/// Why a message was not sent, with the message.
///
/// Its text names no group: a sender may hand it on to a stranger. The
/// [refusal](Self::refusal), which is its source, is for operators: it names the group that was full
/// and what holds its bytes.
///
/// A sender ends on [`Closed`](Self::Closed). Anything else is a message that was not sent, which it
/// drops, keeps or tries again: other reasons may come, so a `match` ends with `Err(error)`.
///
/// ```
/// use memcg::{Limits, Runtime};
/// use memcg_tokio::{SendError, channel};
///
/// let budget = Runtime::builder().build()?;
/// let queue = budget.root().create("queue", Limits::new().max(1000))?;
/// let (sender, receiver) = channel::<Vec<u8>>(&queue);
/// let refused = sender.try_send(vec![0; 2000]).unwrap_err();
/// assert_eq!(refused.to_string(), "there is no room for the message");
/// assert!(refused.refusal().is_some_and(|refusal| refusal.to_string().starts_with("/queue refused")));
/// assert_eq!(refused.into_message().len(), 2000);
/// drop(receiver);
/// assert!(matches!(sender.try_send(Vec::new()), Err(SendError::Closed(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError<T> {
    /// The receiver has closed the channel, or is gone.
    #[error("the channel is closed")]
    Closed(T),
    /// The group has refused the message's bytes:
    /// [`ChargeErrorKind::OverLimit`](memcg::ChargeErrorKind::OverLimit) where they could never
    /// fit, or where the call does not wait;
    /// [`ChargeErrorKind::TimedOut`](memcg::ChargeErrorKind::TimedOut) where it has waited in vain;
    /// [`ChargeErrorKind::Offline`](memcg::ChargeErrorKind::Offline).
    #[error("there is no room for the message")]
    Refused(T, #[source] ChargeError),
}

impl<T> SendError<T> {
    /// Returns the message.
    pub fn into_message(self) -> T {
        match self {
            SendError::Closed(message) | SendError::Refused(message, _) => message,
        }
    }

    /// Returns why the group has refused; `None` where the channel is closed.
    pub fn refusal(&self) -> Option<&ChargeError> {
        match self {
            SendError::Closed(_) => None,
            SendError::Refused(_, refusal) => Some(refusal),
        }
    }

    pub(super) fn with<U>(self, message: U) -> SendError<U> {
        match self {
            SendError::Closed(_) => SendError::Closed(message),
            SendError::Refused(_, refusal) => SendError::Refused(message, refusal),
        }
    }
}

/// Without the message, which need not be printable.
impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Closed(_) => f.write_str("Closed(..)"),
            SendError::Refused(_, refusal) => f.debug_tuple("Refused").field(refusal).finish(),
        }
    }
}
