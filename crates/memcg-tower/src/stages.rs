//! What the future of a request goes through: it runs, or is refused.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;

use crate::body::{Refused, ResponseBody, Sends};
use crate::hold::Hold;
use crate::protocol::Protocol;
use crate::refusal::Refusal;
use crate::settings::Settings;

pin_project! {
    /// A request that was admitted. Its future runs in the group, and is dropped there.
    pub(crate) struct Running<F> {
        // `None` once it has answered.
        #[pin]
        future: Option<F>,
        // The same.
        hold: Option<Hold>,
    }

    impl<F> PinnedDrop for Running<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut running = this.project();
            if let Some(hold) = running.hold {
                hold.group().run(|| running.future.set(None));
            }
        }
    }
}

impl<F> Running<F> {
    #[inline(always)]
    pub(crate) fn new(future: F, hold: Hold) -> Self {
        Running { future: Some(future), hold: Some(hold) }
    }

    /// The answer. Polled after it, the request stays pending.
    #[inline]
    pub(crate) fn poll<R, E>(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody<R>>, E>>
    where
        F: Future<Output = Result<Response<R>, E>>,
        R: Body,
    {
        let mut running = self.project();
        let (Some(hold), Some(future)) = (running.hold.as_ref(), running.future.as_mut().as_pin_mut()) else {
            return Poll::Pending;
        };
        let answered = ready!(hold.group().run(|| future.poll(context)));
        // It goes first, with the body that it may hold.
        hold.group().run(|| running.future.set(None));
        // Matched in place: what returns the answer in something else moves it once more.
        let failed = match &answered {
            // A response of known length may have what the request's body has brought.
            Ok(response) => match hold.has_answered(response.body().size_hint().exact().unwrap_or(0)) {
                Ok(bytes) => {
                    let sends = running.hold.take().map(|hold| Sends::new(hold, bytes));
                    return Poll::Ready(answered.map(|response| response.map(|body| ResponseBody::new(body, sends))));
                }
                Err(failed) => Some(failed),
            },
            Err(_) => hold.failed(),
        };
        let answered = match failed {
            Some(failed) => {
                Ok(Refusal::of_body(&failed, &hold.tenant(), hold.patience()).into_response(hold.protocol()))
            }
            None => answered.map(|response| response.map(ResponseBody::uncharged)),
        };
        *running.hold = None;
        Poll::Ready(answered)
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
        let response = Some(refusal.into_response(Protocol::of(request.headers())));
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
