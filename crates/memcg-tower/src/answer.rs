//! The answer that a refusal becomes.

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};

use crate::body::ResponseBody;
use crate::grpc;
use crate::protocol::Protocol;
use crate::refusal::Refusal;
use crate::settings::Settings;

impl Refusal {
    /// Returns the answer of the layer, by the protocol of the request: the
    /// [sentence](Self::sentence) with its status and `Retry-After`, and for gRPC the trailers of
    /// its code.
    pub fn to_response(&self) -> Response<Bytes> {
        if let Some(content_type) = self.protocol.grpc_type() {
            return grpc::response(self, content_type);
        }
        let mut response = Response::new(Bytes::copy_from_slice(self.sentence().as_bytes()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        if let Some(time) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(time.as_secs()));
        }
        response
    }

    /// The answer that the client gets.
    pub(crate) fn into_response<B>(
        mut self,
        protocol: Protocol,
        settings: &Settings,
    ) -> Response<ResponseBody<B>> {
        self.protocol = protocol;
        let response = match &settings.answers {
            Some(answers) => answers(&self),
            None => self.to_response(),
        };
        response.map(ResponseBody::text)
    }
}
