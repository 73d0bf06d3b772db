//! The future of a request.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use memcg::ChargeFuture;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::account::Account;
use crate::body::{RequestBody, ResponseBody};
use crate::order::Order;
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::stages::{Refusing, Running};

pin_project! {
    /// The future of a request: it waits for the tenant, and then runs the inner service's in the group.
    #[must_use = "futures do nothing unless they are polled"]
    pub struct ResponseFuture<S, B, R>
    where
        S: Service<Request<RequestBody<B>>>,
    {
        #[pin]
        stage: Stage<S, B, S::Future, R>,
    }
}

pin_project! {
    #[project = StageProjection]
    #[project_replace = StageOwned]
    enum Stage<S, B, F, R> {
        // On the heap: most requests do not wait, and their future is small then.
        Waits { waiting: Box<Waiting<S, B>> },
        Runs { #[pin] running: Running<F> },
        Passed { #[pin] future: F },
        Refused { #[pin] refusing: Refusing<B, R> },
        Done { body: PhantomData<R> },
    }
}

/// A request in line.
pub(crate) struct Waiting<S, B> {
    /// First: its drop leaves the line before the group's own handle goes.
    pub(crate) charge: ChargeFuture,
    /// It was ready.
    pub(crate) inner: S,
    pub(crate) request: Request<B>,
    pub(crate) order: Order,
    pub(crate) settings: Arc<Settings>,
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<RequestBody<B>>>,
{
    pub(crate) fn waiting(waiting: Waiting<S, B>) -> Self {
        ResponseFuture { stage: Stage::Waits { waiting: Box::new(waiting) } }
    }

    #[inline(always)]
    pub(crate) fn running(running: Running<S::Future>) -> Self {
        ResponseFuture { stage: Stage::Runs { running } }
    }

    pub(crate) fn passed(future: S::Future) -> Self {
        ResponseFuture { stage: Stage::Passed { future } }
    }

    pub(crate) fn refused(refusing: Refusing<B, R>) -> Self {
        ResponseFuture { stage: Stage::Refused { refusing } }
    }
}

/// The answer of the inner service, or 413 where the body of the request has outgrown its reservation.
fn answer<R: Body, E>(
    account: Arc<Account>,
    answered: Result<Response<R>, E>,
    patience: Duration,
    is_grpc: bool,
) -> Result<Response<ResponseBody<R>>, E> {
    let has = match &answered {
        // A response of known length may have what the request's body has brought.
        Ok(response) => account.has_answered(response.body().size_hint().exact().unwrap_or(0)),
        Err(_) => account.failed().map_or(Ok(0), Err),
    };
    match has {
        Ok(bytes) => answered.map(|response| response.map(|body| ResponseBody::new(body, account, bytes, patience))),
        Err(failed) => Ok(Refusal::of_body(&failed, &account.tenant(), patience).into_response(is_grpc)),
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    B: Body,
    R: Body,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::Waits { waiting } => {
                    let charged = ready!(Pin::new(&mut waiting.charge).poll(context));
                    let done = Stage::Done { body: PhantomData };
                    let StageOwned::Waits { waiting } = stage.as_mut().project_replace(done) else {
                        unreachable!("it waits");
                    };
                    let Waiting { mut inner, request, order, settings, .. } = *waiting;
                    match charged {
                        Ok(charge) => {
                            let running = order.call(&mut inner, request, charge, &settings);
                            stage.set(Stage::Runs { running });
                        }
                        Err(refused) => {
                            stage.set(Stage::Refused { refusing: order.refuse(&refused, request, &settings) });
                        }
                    }
                }
                StageProjection::Runs { running } => {
                    let (patience, is_grpc) = (running.patience, running.is_grpc);
                    let answered = ready!(running.poll(context));
                    stage.set(Stage::Done { body: PhantomData });
                    let Some((account, answered)) = answered else { return Poll::Pending };
                    return Poll::Ready(answer(account, answered, patience, is_grpc));
                }
                StageProjection::Passed { future } => {
                    let answered = ready!(future.poll(context));
                    return Poll::Ready(answered.map(|response| response.map(ResponseBody::uncharged)));
                }
                StageProjection::Refused { refusing } => match ready!(refusing.poll(context)) {
                    Some(response) => return Poll::Ready(Ok(response)),
                    None => stage.set(Stage::Done { body: PhantomData }),
                },
                // Polled after its answer, it stays pending.
                StageProjection::Done { .. } => return Poll::Pending,
            }
        }
    }
}

impl<S, B, R> fmt::Debug for ResponseFuture<S, B, R>
where
    S: Service<Request<RequestBody<B>>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
