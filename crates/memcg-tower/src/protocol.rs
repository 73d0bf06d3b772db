//! The way to say a refusal: by the protocol of the request.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

/// The way to say a refusal.
#[derive(Clone, Copy)]
// A word, as all that a request's account has.
#[repr(usize)]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

impl Protocol {
    /// A request of gRPC says `application/grpc`, with or without a format behind it.
    pub(crate) fn of(headers: &HeaderMap) -> Protocol {
        let name: HeaderName = CONTENT_TYPE;
        let value = headers
            .get(name)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        let rest = value.strip_prefix(b"application/grpc");
        if rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';'))) {
            Protocol::Grpc
        } else {
            Protocol::Http
        }
    }
}
