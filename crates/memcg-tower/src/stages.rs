//! What the future of a request goes through: it runs, or is refused.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use memcg::Grouped;
use pin_project_lite::pin_project;

use crate::account::Account;
use crate::body::{Refused, ResponseBody};
use crate::refusal::{Refusal, is_grpc};
use crate::settings::Settings;

pin_project! {
    /// A request that was admitted.
    pub(crate) struct Running<F> {
        #[pin]
        pub(crate) future: Grouped<F>,
        pub(crate) account: Option<Arc<Account>>,
        pub(crate) patience: Duration,
        pub(crate) is_grpc: bool,
    }
}

pin_project! {
    // A request that never runs.
    pub(crate) struct Refusing<B, R> {
        #[pin]
        drains: Option<Refused<B>>,
        response: Option<Response<ResponseBody<R>>>,
    }
}

impl<B: Body, R> Refusing<B, R> {
    pub(crate) fn new(refusal: Refusal, request: Request<B>, settings: &Settings) -> Self {
        let response = Some(refusal.into_response(is_grpc(request.headers())));
        Refusing { drains: Refused::of(request, settings.drain), response }
    }

    /// The answer, once the body is drained.
    pub(crate) fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Response<ResponseBody<R>>>> {
        let mut refusing = self.project();
        if let Some(drains) = refusing.drains.as_mut().as_pin_mut() {
            ready!(drains.poll_drained(context));
            refusing.drains.set(None);
        }
        Poll::Ready(refusing.response.take())
    }
}
