//! The service: whose request it is, what it weighs, and whether it runs at once.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::{Asking, Called, ResponseFuture, Waiting};
use crate::order::{Line, Order};
use crate::request_body::RequestBody;
use crate::settings::Settings;
use crate::stages::{Refusing, Running};
use crate::verdict::{Classification, Said};

/// The service that [`AdmissionLayer`](crate::AdmissionLayer) makes.
///
/// `poll_ready` is that of the inner service and takes nothing else: it knows no request and so no
/// tenant. A request waits for its tenant in the future of `call`, with a clone of the inner
/// service that is asked after the charge. So a request in line has no permit of a limit below the
/// layer. Nothing is left where the service is dropped or cloned after `poll_ready`, or a timer
/// ends the request: the drop of the future leaves the line, or gives the bytes back.
pub struct Admission<S, C> {
    inner: S,
    shared: Arc<Shared<C>>,
}

/// The part that all clones of a service share: servers clone theirs for each connection, or for
/// each request.
struct Shared<C> {
    classify: Arc<C>,
    settings: Arc<Settings>,
}

impl<S, C> Admission<S, C> {
    pub(crate) fn new(inner: S, classify: Arc<C>, settings: Arc<Settings>) -> Self {
        Admission {
            inner,
            shared: Arc::new(Shared { classify, settings }),
        }
    }

    /// Gives back what `poll_ready` has taken of a limit or a buffer below, for a request that does
    /// not run now. A clone that was never asked takes the place: its caller asks it first.
    #[cold]
    fn release(&mut self)
    where
        S: Clone,
    {
        self.inner = self.inner.clone();
    }
}

impl<S: Clone, C> Clone for Admission<S, C> {
    fn clone(&self) -> Self {
        Admission {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S, C, B, R, V> Service<Request<B>> for Admission<S, C>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
    C: Fn(&Request<B>) -> V,
    V: Into<Classification>,
    B: Body,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Classification(said) = (self.shared.classify)(&request).into();
        let settings = &self.shared.settings;
        let tenant = match said {
            Said::Now(Ok(Some(tenant))) => tenant,
            // The current group is that of the caller, as it is without this layer.
            Said::Now(Ok(None)) => {
                return ResponseFuture::passed(
                    self.inner.call(request.map(RequestBody::uncharged)),
                );
            }
            Said::Now(Err(refusal)) => {
                let refusing = Refusing::new(refusal, request, settings);
                self.release();
                return ResponseFuture::refused(refusing);
            }
            Said::Later(verdict) => {
                let settings = Arc::clone(settings);
                self.release();
                let inner = self.inner.clone();
                return ResponseFuture::asking(Asking {
                    verdict,
                    inner,
                    request,
                    settings,
                });
            }
        };
        let order = match Order::new(tenant, &request, settings) {
            Ok(order) => order,
            Err(refusal) => {
                let refusing = Refusing::new(refusal, request, settings);
                self.release();
                return ResponseFuture::refused(refusing);
            }
        };
        let lacks = match order.charge_if_room() {
            Ok(charged) => {
                // Written out: each function in between that takes the request or returns the
                // future moves it once more.
                let is_stream = order.is_stream();
                let (hold, of_body) = order.admit(charged, &mut request, settings);
                let request = request.map(|body| RequestBody::new(body, of_body, is_stream));
                let future = hold.group().run(|| self.inner.call(request));
                return ResponseFuture::running(Running::new(future, hold));
            }
            Err(lacks) => lacks,
        };
        if settings.patience.is_zero() {
            // The future of a charge would first look for a thread that ends its wait.
            return match order.charge_now(lacks) {
                Ok(charged) => {
                    ResponseFuture::running(order.call(&mut self.inner, request, charged, settings))
                }
                Err(refusal) => {
                    // Its group goes first.
                    drop(order);
                    let refusing = Refusing::new(refusal, request, settings);
                    self.release();
                    ResponseFuture::refused(refusing)
                }
            };
        }
        let line = Line::new(&order, lacks, settings);
        let settings = Arc::clone(settings);
        self.release();
        let inner = self.inner.clone();
        ResponseFuture::waiting(Waiting {
            line,
            called: Called {
                inner,
                request,
                order,
                settings,
            },
        })
    }
}

impl<S: fmt::Debug, C> fmt::Debug for Admission<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Admission { inner, shared } = self;
        f.debug_struct("Admission")
            .field("inner", inner)
            .field("settings", &shared.settings)
            .finish_non_exhaustive()
    }
}
