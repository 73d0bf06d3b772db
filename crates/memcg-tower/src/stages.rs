//! What the future of a request goes through: it runs, or is refused.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;

use crate::account::Account;
use crate::body::{Refused, ResponseBody};
use crate::refusal::{Refusal, is_grpc};
use crate::settings::Settings;

pin_project! {
    /// A request that was admitted. Its future runs in the group, and is dropped there.
    pub(crate) struct Running<F> {
        // `None` once it has answered.
        #[pin]
        future: Option<F>,
        account: Option<Arc<Account>>,
        pub(crate) patience: Duration,
        pub(crate) is_grpc: bool,
    }

    impl<F> PinnedDrop for Running<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut running = this.project();
            if let Some(account) = running.account {
                account.group().run(|| running.future.set(None));
            }
        }
    }
}

impl<F> Running<F> {
    #[inline(always)]
    pub(crate) fn new(future: F, account: Arc<Account>, patience: Duration, is_grpc: bool) -> Self {
        Running { future: Some(future), account: Some(account), patience, is_grpc }
    }
}

impl<F: Future> Running<F> {
    /// The answer, and the request's account. `None`: it has answered before.
    pub(crate) fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<(Arc<Account>, F::Output)>> {
        let mut running = self.project();
        let (Some(account), Some(future)) = (running.account.as_ref(), running.future.as_mut().as_pin_mut()) else {
            return Poll::Ready(None);
        };
        let answered = ready!(account.group().run(|| future.poll(context)));
        // It goes first, with the body that it may hold.
        account.group().run(|| running.future.set(None));
        Poll::Ready(running.account.take().map(|account| (account, answered)))
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
