//! Holds a request's way through the layer by its number of instructions, which a noisy machine does
//! not change. `cargo bench -p memcg-tower-benches --bench instructions`
//!
//! No socket and no runtime: one thread polls each request to its end, and each fits. What the same
//! service takes without the layer is taken off.

use std::convert::Infallible;
use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use memcg::{Limit, Limits, Runtime};
use memcg_bench_rows::Bench;
use memcg_bench_rows::instructions::{CountedPath, count_paths, counted};
use memcg_tower::{AdmissionLayer, RequestBody};
use tower::{Layer, Service, service_fn};

const BENCH: Bench = Bench {
    name: "instructions",
    about: "Counts the instructions of a request through the layer under valgrind, and fails above a ceiling.",
};

/// A request with a body of one frame, more than without the layer: 2,071 on x86-64 with rustc 1.95,
/// and a tenth more for other compilers.
const REQUEST_INSTRUCTIONS_MAX: f64 = 2_278.0;

/// The same with a group of its own: 8,129.
const REQUEST_GROUP_INSTRUCTIONS_MAX: f64 = 8_942.0;

const REQUESTS: u64 = 10_000;
const FRAME: &[u8] = &[0; 1024];

/// Runs the future to its end. Nothing here waits.
fn finish<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("each request fits"),
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
fn serve<S, R>(mut service: S, requests: u64)
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    let mut serve = |times: u64| {
        for _ in 0..times {
            let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(ready, Poll::Ready(Ok(()))), "it is ready");
            let request = Request::new(Full::new(Bytes::from_static(black_box(FRAME))));
            let Ok(response) = finish(service.call(request)) else {
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

fn layer(has_groups: bool, requests: u64) {
    let budget = Runtime::builder()
        .max(Limit::gib(2))
        .build()
        .expect("memory for a runtime");
    let acme = budget
        .root()
        .create("acme", Limits::new().max(Limit::gib(1)))
        .expect("a group");
    let tenant = acme.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Full<Bytes>>| Some(tenant.clone()));
    if has_groups {
        let with_groups = layer.request_groups(Limits::new());
        serve(with_groups.layer(bare::<RequestBody<_>>()), requests);
    } else {
        serve(layer.layer(bare::<RequestBody<_>>()), requests);
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
        beside: Some(|(), requests| serve(bare(), requests)),
    }
}

const PATHS: &[CountedPath<()>] = &[
    requests(
        "requests",
        "a request through the layer, more than without",
        REQUEST_INSTRUCTIONS_MAX,
        |(), requests| layer(false, requests),
    ),
    requests(
        "requests-with-groups",
        "a request with a group of its own",
        REQUEST_GROUP_INSTRUCTIONS_MAX,
        |(), requests| layer(true, requests),
    ),
];

fn main() -> ExitCode {
    count_paths(&BENCH, PATHS, || ((), "Layer".to_owned()))
}
