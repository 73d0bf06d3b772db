//! Frames of a body: how large one is, and why none comes any more.

use std::error::Error;
use std::time::Duration;

use bytes::Buf;
use http_body::Frame;
use memcg::{Bytes, ChargeError};

/// Why a body ended before its end.
///
/// Its text names no group: a handler may hand it on to its client. The
/// [source](std::error::Error::source) is for operators, and names the group that was full.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The body of a request has outgrown what it had promised, and there is no room for more. The
    /// layer answers 413, whatever the handler answers.
    #[error("the body is larger than what was promised for it")]
    Outgrown(#[source] OutgrownError),
    /// There was no room for a frame within the patience. Or the group of a request is above its
    /// max by force, or was cancelled. For the body of a request the layer then answers 429 or 503,
    /// whatever the handler answers.
    #[error("there is no room for the body")]
    Refused(#[source] ChargeError),
    /// The client has sent nothing for the [time](crate::AdmissionLayer::body_timeout) that a body
    /// has, or less than the [least rate](crate::AdmissionLayer::least_rate). The layer answers
    /// 408, whatever the handler answers.
    #[error("the body comes too slowly: {0}")]
    TooSlow(#[source] TooSlowError),
    /// The inner body has failed.
    #[error("{0}")]
    Inner(#[source] Box<dyn Error + Send + Sync>),
}

/// A body came too slowly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} came in {waited:.1?} of waiting for the client, the last {gap:.1?} ago", Bytes(*.came))]
pub struct TooSlowError {
    /// The bytes that have come.
    pub came: u64,
    /// For how long the reader has waited for the client, over the whole body.
    pub waited: Duration,
    /// For how long nothing has come.
    pub gap: Duration,
}

/// Why there was no room for what a body has brought beyond its promise: the text of a refused
/// charge, for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OutgrownError(pub(crate) String);

/// The bytes of a frame's data.
pub(crate) fn len<D: Buf>(frame: &Frame<D>) -> u64 {
    frame.data_ref().map_or(0, |data| data.remaining() as u64)
}
