//! The stages that the future of a request goes through: it runs, or is refused.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use memcg::ChargeFuture;
use pin_project_lite::pin_project;

use crate::body::ResponseBody;
use crate::hold::Hold;
use crate::protocol::Protocol;
use crate::refusal::Refusal;
use crate::request_body::Refused;
use crate::sends::{SMALL, Sends};
use crate::settings::Settings;

pin_project! {
    /// A request that was admitted. Its future runs in the group, and is dropped there.
    pub(crate) struct Running<F, R> {
        // `None` once it has answered.
        #[pin]
        future: Option<F>,
        // Its head is not sent before its bytes are charged. On the heap: most answers do not wait.
        waits: Option<Box<Answered<R>>>,
        // `None` once the answer is handed on.
        hold: Option<Hold>,
    }

    impl<F, R> PinnedDrop for Running<F, R> {
        fn drop(this: Pin<&mut Self>) {
            let mut running = this.project();
            if let Some(hold) = running.hold {
                // What they free and allocate as they are dropped is the request's, as in a poll.
                hold.group().run(|| {
                    running.future.set(None);
                    *running.waits = None;
                });
            }
        }
    }
}

/// An answer of known length, for which there was no room at once.
struct Answered<R> {
    charge: ChargeFuture,
    /// The bytes that it charges.
    lacks: u64,
    response: Response<R>,
    /// The bytes that the response has without the charge.
    has: u64,
}

impl<F, R> Running<F, R> {
    #[inline(always)]
    pub(crate) fn new(future: F, hold: Hold) -> Self {
        Running {
            future: Some(future),
            waits: None,
            hold: Some(hold),
        }
    }

    /// The answer.
    #[inline]
    pub(crate) fn poll<E>(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody<R>>, E>>
    where
        F: Future<Output = Result<Response<R>, E>>,
        R: Body,
    {
        let mut running = self.project();
        let Some(hold) = running.hold.as_mut() else {
            polled_again()
        };
        let Some(future) = running.future.as_mut().as_pin_mut() else {
            return poll_waiting(running.waits, running.hold, context).map(Ok);
        };
        let answered = ready!(hold.group().run(|| future.poll(context)));
        // It goes first, with the body that it may hold.
        hold.group().run(|| running.future.set(None));
        // Matched in place: what returns the answer in something else moves it once more.
        let failed =
            match &answered {
                // A response of known length may have what the request's body has brought.
                Ok(response) => {
                    let length = response.body().size_hint().exact().unwrap_or(0);
                    match hold.has_answered(response.status(), length) {
                        Ok(has) if length.min(hold.window()) <= has.max(SMALL) => {
                            let sends = running.hold.take().map(|hold| Sends::new(hold, has));
                            return Poll::Ready(answered.map(|response| {
                                response.map(|body| ResponseBody::new(body, sends))
                            }));
                        }
                        Ok(has) => {
                            // As a frame that is larger than what is reserved, but before the head
                            // says that all is well.
                            let lacks = length.min(hold.window()).saturating_sub(has);
                            let charge = hold
                                .group()
                                .charge_async(memcg::Bytes(lacks))
                                .timeout(hold.patience());
                            *running.waits = answered.ok().map(|response| {
                                Box::new(Answered {
                                    charge,
                                    lacks,
                                    response,
                                    has,
                                })
                            });
                            return poll_waiting(running.waits, running.hold, context).map(Ok);
                        }
                        Err(failed) => Some(failed),
                    }
                }
                // Mutation: an-error-of-the-handler-hides-that-of-the-body
                Err(_) => hold.failed(),
            };
        let answered = match failed {
            Some(failed) => Ok(failed.into_response(hold.protocol(), hold.settings())),
            None => answered.map(|response| response.map(ResponseBody::uncharged)),
        };
        *running.hold = None;
        Poll::Ready(answered)
    }
}

/// A future that is polled after its answer panics, as those of `async` do.
#[cold]
pub(crate) fn polled_again() -> ! {
    panic!("a `ResponseFuture` is polled after it has answered")
}

/// The answer whose bytes are charged, or the refusal in its place.
#[cold]
fn poll_waiting<R>(
    waits: &mut Option<Box<Answered<R>>>,
    held: &mut Option<Hold>,
    context: &mut Context<'_>,
) -> Poll<Response<ResponseBody<R>>> {
    let (Some(waiting), Some(hold)) = (waits.as_mut(), held.as_mut()) else {
        polled_again()
    };
    let charged = ready!(Pin::new(&mut waiting.charge).poll(context));
    match charged {
        Ok(charge) => {
            let bytes = waiting.has + waiting.lacks;
            hold.add(charge);
            let sends = held.take().map(|hold| Sends::new(hold, bytes));
            match waits.take() {
                Some(waiting) => {
                    Poll::Ready(waiting.response.map(|body| ResponseBody::new(body, sends)))
                }
                None => polled_again(),
            }
        }
        Err(refused) => {
            let total = hold.bytes().saturating_add(waiting.lacks);
            let refusal =
                Refusal::of_charge(&refused, &hold.tenant(), total, hold.patience()).of_response();
            hold.settings().refuses(refusal.kind, &refusal);
            let response = refusal.into_response(hold.protocol(), hold.settings());
            hold.group().run(|| *waits = None);
            *held = None;
            Poll::Ready(response)
        }
    }
}

pin_project! {
    // A request that never runs.
    pub(crate) struct Refusing<B, R> {
        #[pin]
        drains: Option<Refused<B>>,
        response: Option<Response<ResponseBody<R>>>,
        settings: Arc<Settings>,
    }
}

impl<B: Body, R> Refusing<B, R> {
    pub(crate) fn new(refusal: Refusal, request: Request<B>, settings: &Arc<Settings>) -> Self {
        settings.refuses(refusal.kind, &refusal);
        let response = Some(refusal.into_response(Protocol::of(request.headers()), settings));
        Refusing {
            drains: Refused::of(request, settings.drain),
            response,
            settings: Arc::clone(settings),
        }
    }

    /// The answer, once the body is drained.
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Response<ResponseBody<R>>>> {
        let mut refusing = self.project();
        if let Some(drains) = refusing.drains.as_mut().as_pin_mut() {
            ready!(drains.poll_drained(refusing.settings, context));
            refusing.drains.set(None);
        }
        Poll::Ready(refusing.response.take())
    }
}
