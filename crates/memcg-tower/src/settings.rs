//! What the layer was told.

use std::time::Duration;

use memcg::Limits;

/// What a request is charged, and how long it may wait.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) overhead: u64,
    pub(crate) unknown: u64,
    /// The most bytes to reserve for a body in either direction.
    pub(crate) window: u64,
    pub(crate) response: u64,
    pub(crate) patience: Duration,
    pub(crate) drain: u64,
    /// The limits of a request's own group, where each request has one.
    pub(crate) request_group: Option<Limits>,
}

impl Settings {
    #[inline]
    pub(crate) fn patience_ns(&self) -> u64 {
        u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX)
    }
}
