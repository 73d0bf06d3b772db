//! The way to say a refusal: by the protocol of the request.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

/// The way to say a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// A word, as all that a request's account has.
#[repr(usize)]
pub(crate) enum Protocol {
    Http,
    Grpc,
    /// gRPC of browsers. A status without a message is headers alone there, too.
    GrpcWeb,
    /// The same, whose messages are base64.
    GrpcWebText,
}

/// The content types of gRPC, each before those that it is the beginning of.
const GRPC: [(&[u8], Protocol); 3] = [
    (b"application/grpc-web-text", Protocol::GrpcWebText),
    (b"application/grpc-web", Protocol::GrpcWeb),
    (b"application/grpc", Protocol::Grpc),
];

impl Protocol {
    /// A request of gRPC says its content type with or without a format behind it.
    pub(crate) fn of(headers: &HeaderMap) -> Protocol {
        let name: HeaderName = CONTENT_TYPE;
        let value = headers
            .get(name)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        let is_of = |begins: &[u8]| {
            let rest = value.strip_prefix(begins);
            rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
        };
        GRPC.into_iter()
            .find(|(begins, _)| is_of(begins))
            .map_or(Protocol::Http, |(_, protocol)| protocol)
    }

    /// The content type of an answer without a message; `None`: it is no gRPC.
    pub(crate) fn grpc_type(self) -> Option<&'static str> {
        match self {
            Protocol::Http => None,
            Protocol::Grpc => Some("application/grpc"),
            Protocol::GrpcWeb => Some("application/grpc-web+proto"),
            Protocol::GrpcWebText => Some("application/grpc-web-text+proto"),
        }
    }
}
