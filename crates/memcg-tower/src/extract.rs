//! The admitted request as an argument of a handler of axum.

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use crate::account::AdmittedRequest;

/// The request was not admitted by a layer that gives it [`AdmittedRequest`]: the layer is not
/// there, lets the request pass uncharged, or does not have
/// [`admitted()`](crate::AdmissionLayer::admitted). As a response it is 500.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error(
    "the request has no `AdmittedRequest`: set `.admitted()` on the `AdmissionLayer` of this route"
)]
#[non_exhaustive]
pub struct NotAdmittedError;

impl IntoResponse for NotAdmittedError {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for AdmittedRequest {
    type Rejection = NotAdmittedError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotAdmittedError> {
        parts.extensions.get().cloned().ok_or(NotAdmittedError)
    }
}

/// For a handler whose requests may pass uncharged.
impl<S: Sync> OptionalFromRequestParts<S> for AdmittedRequest {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        _: &S,
    ) -> Result<Option<Self>, std::convert::Infallible> {
        Ok(parts.extensions.get().cloned())
    }
}
