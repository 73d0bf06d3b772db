//! A request's way through the layer of memcg-tower. Each fits. What the same service takes without the
//! layer is taken off.

use std::convert::Infallible;
use std::future::Future;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use memcg::{Limit, Limits, Runtime};
use memcg_bench_rows::instructions::{CountedPath, counted};
use memcg_tower::{AdmissionLayer, RequestBody};
use tower::{Layer, Service, service_fn};

use crate::finish;

/// A request with a body of one frame, more than without the layer: 2,082 on x86-64 with rustc 1.95,
/// and a tenth more for other compilers.
const REQUEST_INSTRUCTIONS_MAX: f64 = 2_278.0;

/// The same with a group of its own: 9,779. A thousand of them keep the peak of the group, and of
/// those above, exact where one thread charges.
const REQUEST_GROUP_INSTRUCTIONS_MAX: f64 = 10_720.0;

/// The same, of an upload of 64 frames of 8 KiB whose length the head says: 34,644. The ceiling is
/// what it took before a body gathered the delay above a high.
const UPLOAD_INSTRUCTIONS_MAX: f64 = 37_730.0;

/// And of one whose length the head does not say: 47,865, and what it took before that.
const UNSIZED_UPLOAD_INSTRUCTIONS_MAX: f64 = 50_052.0;

const REQUESTS: u64 = 10_000;
const UPLOADS: u64 = 1_000;
const FRAME: &[u8] = &[0; 1024];

/// An upload in frames of 8 KiB, the first size of hyper's buffer for reads. No frame has to be
/// waited for.
struct Upload {
    left: usize,
    is_sized: bool,
}

const PIECE: &[u8] = &[0; 8 << 10];
const PIECES: usize = 64;

impl Upload {
    fn new(is_sized: bool) -> Upload {
        let left = black_box(PIECES);
        Upload { left, is_sized }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Poll::Ready(None);
        };
        self.left = left;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(black_box(PIECE))))))
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_sized {
            SizeHint::with_exact((self.left * PIECE.len()) as u64)
        } else {
            SizeHint::new()
        }
    }
}

/// The service that all paths wrap: it reads the body and answers with one frame.
fn bare<B>() -> impl Service<
    Request<B>,
    Response = Response<Full<Bytes>>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Full<Bytes>>, Infallible>>,
> + Clone
where
    B: Body<Data = Bytes>,
{
    service_fn(|request: Request<B>| async move {
        let mut body = pin!(request.into_body());
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, Bytes::len);
        }
        black_box(read);
        Ok(Response::new(Full::new(Bytes::from_static(b"read"))))
    })
}

/// So many requests: ready, called, answered, and the answer's body read.
fn serve<S, B, R>(mut service: S, body: impl Fn() -> B, requests: u64)
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    let mut serve = |times: u64| {
        for _ in 0..times {
            let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(ready, Poll::Ready(Ok(()))), "it is ready");
            let Ok(response) = finish(service.call(Request::new(body()))) else {
                panic!("each request fits")
            };
            let mut body = pin!(response.into_body());
            while let Some(frame) = finish(body.frame()) {
                black_box(frame.is_ok());
            }
        }
    };
    serve(1_000);
    counted(|| serve(requests));
}

fn one_frame() -> Full<Bytes> {
    Full::new(Bytes::from_static(black_box(FRAME)))
}

/// The requests of a tenant that has room for each.
fn layer<B>(has_groups: bool, body: impl Fn() -> B, requests: u64)
where
    B: Body<Data = Bytes, Error = Infallible>,
{
    let budget = Runtime::builder()
        .max(Limit::gib(2))
        .build()
        .expect("memory for a runtime");
    let acme = budget
        .root()
        .create("acme", Limits::new().max(Limit::gib(1)))
        .expect("a group");
    let tenant = acme.clone();
    let layer = AdmissionLayer::new(move |_: &Request<B>| Some(tenant.clone()));
    if has_groups {
        let with_groups = layer.request_groups(Limits::new());
        serve(with_groups.layer(bare::<RequestBody<_>>()), body, requests);
    } else {
        serve(layer.layer(bare::<RequestBody<_>>()), body, requests);
    }
    assert_eq!(acme.live(), 0, "all bytes are given back");
}

const fn requests(
    name: &'static str,
    what: &'static str,
    most: f64,
    run: fn(&(), u64),
) -> CountedPath<()> {
    CountedPath {
        name,
        what,
        most,
        rounds: REQUESTS,
        run,
        beside: Some(|(), requests| serve(bare(), one_frame, requests)),
    }
}

pub(crate) fn paths() -> [CountedPath<()>; 4] {
    [
        requests(
            "requests",
            "a request through the layer, more than without",
            REQUEST_INSTRUCTIONS_MAX,
            |(), requests| layer(false, one_frame, requests),
        ),
        requests(
            "requests-with-groups",
            "a request with a group of its own",
            REQUEST_GROUP_INSTRUCTIONS_MAX,
            |(), requests| layer(true, one_frame, requests),
        ),
        CountedPath {
            name: "uploads",
            what: "an upload of 64 frames through the layer, more than without",
            most: UPLOAD_INSTRUCTIONS_MAX,
            rounds: UPLOADS,
            run: |(), uploads| layer(false, || Upload::new(true), uploads),
            beside: Some(|(), uploads| serve(bare(), || Upload::new(true), uploads)),
        },
        CountedPath {
            name: "uploads-of-no-length",
            what: "the same, whose head says no length",
            most: UNSIZED_UPLOAD_INSTRUCTIONS_MAX,
            rounds: UPLOADS,
            run: |(), uploads| layer(false, || Upload::new(false), uploads),
            beside: Some(|(), uploads| serve(bare(), || Upload::new(false), uploads)),
        },
    ]
}
