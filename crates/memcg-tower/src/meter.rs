//! The bytes that a body becomes inside of other layers.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Request;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::account::{AdmittedRequest, Came, Waiting};
use crate::body::with_frame;
use crate::frame::{BodyError, len};

/// A layer that charges what a body of a request becomes: inside of a layer that decompresses it,
/// which is inside of [`AdmissionLayer`](crate::AdmissionLayer).
///
/// A request is charged the larger of what has come and what that was decoded to. What is beyond
/// the length that the head says is charged where there is room, and is else answered with 413: a
/// body that unpacks to much more than it says reads no further. A request without
/// [`AdmittedRequest`] passes as it is.
///
/// ```
/// use axum::body::{Body, Bytes};
/// use axum::http::Request;
/// use axum::{Router, routing::post};
/// use memcg::Runtime;
/// use memcg_tower::{AdmissionLayer, MeterLayer};
/// use tower_http::decompression::RequestDecompressionLayer;
///
/// let root = Runtime::builder().max(1 << 30).build()?.root();
/// let app: Router = Router::new()
///     .route("/", post(|body: Bytes| async move { body.len().to_string() }))
///     .layer(MeterLayer::new()) // the innermost
///     .layer(RequestDecompressionLayer::new())
///     .layer(AdmissionLayer::new(move |_: &Request<Body>| Some(root.clone())));
/// # drop(app);
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MeterLayer {
    _private: (),
}

impl MeterLayer {
    /// Creates a layer.
    pub fn new() -> MeterLayer {
        MeterLayer::default()
    }
}

impl<S> Layer<S> for MeterLayer {
    type Service = Meter<S>;

    fn layer(&self, inner: S) -> Meter<S> {
        Meter { inner }
    }
}

/// The service that [`MeterLayer`] makes.
#[derive(Clone, Debug)]
pub struct Meter<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for Meter<S>
where
    S: Service<Request<Metered<B>>>,
    B: Body,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        let admitted = request.extensions().get::<AdmittedRequest>().cloned();
        self.inner
            .call(request.map(|body| Metered::new(body, admitted)))
    }
}

pin_project! {
    /// A body that charges what comes through it to its request: what [`MeterLayer`] makes of a
    /// request's, and for what a handler decodes itself.
    pub struct Metered<B>
    where
        B: Body,
    {
        #[pin]
        inner: B,
        admitted: Option<AdmittedRequest>,
        came: u64,
        waits: Option<Waiting<B::Data>>,
        failed: bool,
    }
}

impl<B: Body> Metered<B> {
    /// Creates one. `None` charges nothing.
    pub fn new(inner: B, admitted: Option<AdmittedRequest>) -> Metered<B> {
        Metered {
            inner,
            admitted,
            came: 0,
            waits: None,
            failed: false,
        }
    }
}

impl<B> Body for Metered<B>
where
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    type Data = B::Data;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BodyError>>> {
        let body = self.project();
        // Also where the inner body has ended: it need not bear a poll after that.
        if *body.failed {
            return Poll::Ready(None);
        }
        let Some(AdmittedRequest(account)) = body.admitted else {
            return body
                .inner
                .poll_frame(context)
                .map_err(|error| BodyError::Inner(error.into()));
        };
        if body.waits.is_none() {
            let frame = match ready!(body.inner.poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => {
                    *body.failed = true;
                    return Poll::Ready(
                        ended.map(|ended| ended.map_err(|error| BodyError::Inner(error.into()))),
                    );
                }
            };
            *body.came = body.came.saturating_add(len(&frame));
            // As no stream: all of it counts against what has come undecoded, and a frame that is
            // charged alone would be charged beside that. Nor is a delay taken here: while the
            // tenant is above its high the outer body, which this one reads from, is held back.
            match account.comes(frame, *body.came, false) {
                Ok(Came::Waits(waiting)) => *body.waits = Some(waiting),
                Ok(Came::Charged(frame) | Came::Alone(frame, _) | Came::AboveHigh(frame, ..)) => {
                    return Poll::Ready(Some(Ok(frame)));
                }
                Err(failed) => {
                    *body.failed = true;
                    return Poll::Ready(Some(Err(failed)));
                }
            }
        }
        Poll::Ready(Some(
            match ready!(Waiting::poll(body.waits, account, context)) {
                Ok(Came::Charged(frame) | Came::Alone(frame, _) | Came::AboveHigh(frame, ..)) => {
                    Ok(frame)
                }
                Ok(Came::Waits(waiting)) => {
                    *body.waits = Some(waiting);
                    return Poll::Pending;
                }
                Err(failed) => {
                    // Mutation: a-frame-that-waits-in-vain-ends-no-body
                    *body.failed = true;
                    Err(failed)
                }
            },
        ))
    }

    fn is_end_stream(&self) -> bool {
        self.failed || self.waits.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.waits {
            Some(waits) => with_frame(self.inner.size_hint(), &waits.frame),
            None => self.inner.size_hint(),
        }
    }
}

impl<B: Body> fmt::Debug for Metered<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metered")
            .field("came", &self.came)
            .finish_non_exhaustive()
    }
}
