//! The future of a request.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use memcg::Charge;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::ledger::Promise;
use crate::order::{Line, Order};
use crate::request_body::RequestBody;
use crate::settings::Settings;
use crate::stages::{Refusing, Running, polled_again};
use crate::verdict::{Answer, Classification, Later, Said};

pin_project! {
    /// The future of a request: it waits for the tenant, and then runs the inner service's in the
    /// group. Polled after its answer, it panics.
    #[must_use = "futures do nothing unless they are polled"]
    pub struct ResponseFuture<S, B, R>
    where
        S: Service<Request<RequestBody<B>>>,
        B: Body,
    {
        #[pin]
        stage: Stage<S, B, S::Future, R>,
    }
}

pin_project! {
    #[project = StageProjection]
    #[project_replace = StageOwned]
    enum Stage<S, B, F, R> {
        // On the heap, too.
        Asks { asking: Box<Asking<S, B>> },
        // On the heap: most requests do not wait, and their future is small then.
        Waits { waiting: Box<Waiting<S, B>> },
        // The same. It is charged, and the inner service has to be ready before it is called.
        Readies { charged: Box<Charged<S, B>> },
        Runs { #[pin] running: Running<F, R> },
        Passed { #[pin] future: F },
        // The same.
        Refused { refusing: Pin<Box<Refusing<B, R>>> },
        Done { body: PhantomData<R> },
    }
}

/// A request whose classifier says later whose it is.
pub(crate) struct Asking<S, B> {
    pub(crate) verdict: Later,
    /// As in [`Called`].
    pub(crate) inner: S,
    pub(crate) request: Request<B>,
    pub(crate) settings: Arc<Settings>,
}

/// A request in line.
pub(crate) struct Waiting<S, B> {
    /// First: its drop leaves the line before the group's own handle goes.
    pub(crate) line: Line,
    pub(crate) called: Called<S, B>,
}

/// A request that is not called yet.
pub(crate) struct Called<S, B> {
    /// A clone that was never asked, so it has no permit and no place of a limit below. It is asked
    /// after the charge: a line of one tenant takes nothing from the others.
    pub(crate) inner: S,
    pub(crate) request: Request<B>,
    pub(crate) order: Order,
    pub(crate) settings: Arc<Settings>,
}

/// A request out of the line. The bytes go back before its group's own handle.
struct Charged<S, B> {
    /// `None`: it passes uncharged.
    charged: Option<(Charge, Option<Promise>)>,
    inner: S,
    request: Request<B>,
    order: Option<Order>,
    settings: Arc<Settings>,
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<RequestBody<B>>>,
    B: Body,
{
    pub(crate) fn asking(asking: Asking<S, B>) -> Self {
        ResponseFuture {
            stage: Stage::Asks {
                asking: Box::new(asking),
            },
        }
    }

    pub(crate) fn waiting(waiting: Waiting<S, B>) -> Self {
        ResponseFuture {
            stage: Stage::Waits {
                waiting: Box::new(waiting),
            },
        }
    }

    #[inline(always)]
    pub(crate) fn running(running: Running<S::Future, R>) -> Self {
        ResponseFuture {
            stage: Stage::Runs { running },
        }
    }

    pub(crate) fn passed(future: S::Future) -> Self {
        ResponseFuture {
            stage: Stage::Passed { future },
        }
    }

    pub(crate) fn refused(refusing: Refusing<B, R>) -> Self {
        ResponseFuture {
            stage: Stage::Refused {
                refusing: Box::pin(refusing),
            },
        }
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
                StageProjection::Asks { asking } => {
                    let Classification(said) = ready!(asking.verdict.as_mut().poll(context));
                    let said = match said {
                        Said::Later(later) => {
                            asking.verdict = later;
                            continue;
                        }
                        Said::Now(said) => said,
                    };
                    // The request moves out of its stage, which is done meanwhile: a future whose
                    // service has panicked is not polled on.
                    let done = Stage::Done { body: PhantomData };
                    let StageOwned::Asks { asking } = stage.as_mut().project_replace(done) else {
                        unreachable!("it asks whose it is");
                    };
                    let asking = *asking;
                    stage.set(asking.said(said));
                }
                StageProjection::Waits { waiting } => {
                    let Waiting { line, called } = &mut **waiting;
                    let charged = ready!(line.poll(&called.order, &called.settings, context));
                    let done = Stage::Done { body: PhantomData };
                    let StageOwned::Waits { waiting } = stage.as_mut().project_replace(done) else {
                        unreachable!("it waits");
                    };
                    let Waiting {
                        line,
                        called:
                            Called {
                                inner,
                                request,
                                order,
                                settings,
                            },
                    } = *waiting;
                    drop(line);
                    match charged {
                        Ok(charged) => {
                            let charged = Some(charged);
                            let order = Some(order);
                            let charged = Box::new(Charged {
                                charged,
                                inner,
                                request,
                                order,
                                settings,
                            });
                            stage.set(Stage::Readies { charged });
                        }
                        Err(refusal) => {
                            // The answer needs neither, and may take a while where it drains the
                            // body of the request.
                            drop((inner, order));
                            let refusing = Box::pin(Refusing::new(refusal, request, &settings));
                            stage.set(Stage::Refused { refusing });
                        }
                    }
                }
                StageProjection::Readies { charged } => {
                    let ready = ready!(charged.inner.poll_ready(context));
                    let done = Stage::Done { body: PhantomData };
                    let StageOwned::Readies { charged } = stage.as_mut().project_replace(done)
                    else {
                        unreachable!("it asks whether the inner service is ready");
                    };
                    let Charged {
                        charged,
                        mut inner,
                        request,
                        order,
                        settings,
                    } = *charged;
                    ready?;
                    match (order, charged) {
                        (Some(order), Some(charged)) => {
                            let running = order.call(&mut inner, request, charged, &settings);
                            stage.set(Stage::Runs { running });
                        }
                        _ => {
                            let future = inner.call(request.map(RequestBody::uncharged));
                            stage.set(Stage::Passed { future });
                        }
                    }
                }
                StageProjection::Runs { running } => return running.poll(context),
                StageProjection::Passed { future } => {
                    let answered = ready!(future.poll(context));
                    return Poll::Ready(
                        answered.map(|response| response.map(ResponseBody::uncharged)),
                    );
                }
                StageProjection::Refused { refusing } => {
                    match ready!(refusing.as_mut().poll(context)) {
                        Some(response) => return Poll::Ready(Ok(response)),
                        None => stage.set(Stage::Done { body: PhantomData }),
                    }
                }
                StageProjection::Done { .. } => polled_again(),
            }
        }
    }
}

impl<S, B> Asking<S, B>
where
    B: Body,
{
    /// The stage that follows once it is known whose request it is.
    fn said<F, R>(self, said: Answer) -> Stage<S, B, F, R> {
        let Asking {
            inner,
            request,
            settings,
            ..
        } = self;
        let order = match said {
            Ok(Some(tenant)) => Order::new(tenant, &request, &settings),
            Ok(None) => {
                let charged = None;
                let order = None;
                return Stage::Readies {
                    charged: Box::new(Charged {
                        charged,
                        inner,
                        request,
                        order,
                        settings,
                    }),
                };
            }
            Err(refusal) => Err(refusal),
        };
        let charged = match order {
            Ok(order) => match order.charge_if_room() {
                Ok(charged) => Ok((order, charged)),
                Err(lacks) if settings.patience.is_zero() => {
                    let charged = order.charge_now(lacks);
                    charged.map(|charged| (order, charged))
                }
                Err(lacks) => {
                    let line = Line::new(&order, lacks, &settings);
                    let called = Called {
                        inner,
                        request,
                        order,
                        settings,
                    };
                    return Stage::Waits {
                        waiting: Box::new(Waiting { line, called }),
                    };
                }
            },
            Err(refusal) => Err(refusal),
        };
        let refusal = match charged {
            Ok((order, charged)) => {
                let charged = Some(charged);
                let order = Some(order);
                return Stage::Readies {
                    charged: Box::new(Charged {
                        charged,
                        inner,
                        request,
                        order,
                        settings,
                    }),
                };
            }
            Err(refusal) => refusal,
        };
        drop(inner);
        Stage::Refused {
            refusing: Box::pin(Refusing::new(refusal, request, &settings)),
        }
    }
}

impl<S, B, R> fmt::Debug for ResponseFuture<S, B, R>
where
    S: Service<Request<RequestBody<B>>>,
    B: Body,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
