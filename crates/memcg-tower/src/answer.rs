//! The answer that a refusal becomes.

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};

use crate::body::ResponseBody;
use crate::grpc;
use crate::protocol::Protocol;
use crate::refusal::Refusal;

impl Refusal {
    pub(crate) fn into_response<B>(self, protocol: Protocol) -> Response<ResponseBody<B>> {
        if let Protocol::Grpc = protocol {
            return grpc::response(&self);
        }
        let mut response = Response::new(ResponseBody::text(self.text));
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
}
