//! Frames of a body: how large one is, and why none comes any more.

use std::error::Error;

use bytes::Buf;
use http_body::Frame;
use memcg::ChargeError;

use crate::pace::TooSlowError;

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The body of a request has outgrown what it had promised, and there is no room for more. The
    /// layer answers 413, whatever the handler answers.
    #[error("the body is larger than what was promised for it: {0}")]
    Outgrown(String),
    /// There was no room for a frame within the patience. Or the group of a request is above its
    /// max by force, or was cancelled. For the body of a request the layer then answers 429 or 503,
    /// whatever the handler answers.
    #[error("there is no room for the body: {0}")]
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

/// The bytes of a frame's data.
pub(crate) fn len<D: Buf>(frame: &Frame<D>) -> u64 {
    frame.data_ref().map_or(0, |data| data.remaining() as u64)
}
