//! The time that the layer adds to a request that fits, beside what services put there today:
//! tower's `ConcurrencyLimit` and `LoadShed`. The service reads the body of the request, which is
//! one frame or has ended, and answers with one frame.
//!
//! ```text
//! cargo bench -p memcg-tower-benches --bench request    the table, a few seconds
//! cargo bench -p memcg-tower-benches --bench request -- --rounds 1 "the layer"    only rows whose names begin so
//! ```
//!
//! No socket and no runtime: one thread polls each request to its end, so that the layers alone are
//! measured. The rows run in turns, round by round. A figure is what a row costs beyond the bare
//! service, in raw pairs of the same round: a charge without a guard, and its uncharge. It is the
//! median of all rounds; the brackets have the first and the third quartile.

use std::convert::Infallible;
use std::future::Future;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use memcg::{Charge, Group, GroupName, Limit, Limits, OnFull, Runtime};
use memcg_tower::{AdmissionLayer, RequestBody};
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::{Layer, Service, service_fn};

const ROUNDS: usize = 1000;
/// A turn is so short that the system mostly takes the processor away between turns, and not in
/// one.
const REQUESTS: u32 = 200;
const PAIRS: u32 = 10_000;
/// The body of a request: one frame, or none.
const ONE: &[u8] = &[0; 1024];
const NONE: &[u8] = &[];

/// The figure that a row measures, given what the bare service takes with a body of one frame, and
/// with none.
type Row<'a> = dyn Fn([f64; 2]) -> f64 + 'a;

/// Runs the future to its end. Nothing here waits.
fn finish<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("each request fits"),
    }
}

/// The service that all rows wrap.
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

/// Seconds that a request takes: ready, called, answered, and the answer's body read.
fn timed<S, R>(mut service: S, data: &'static [u8]) -> f64
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    let data = Bytes::from_static(black_box(data));
    per_turn(REQUESTS, || {
        let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(ready, Poll::Ready(Ok(()))), "it is ready");
        let answered = finish(service.call(Request::new(Full::new(data.clone()))));
        let Ok(response) = answered else {
            panic!("each request fits")
        };
        let mut body = pin!(response.into_body());
        while let Some(frame) = finish(body.frame()) {
            black_box(frame.is_ok());
        }
    })
}

fn per_turn(turns: u32, mut turn: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..turns {
        turn();
    }
    begun.elapsed().as_secs_f64() / f64::from(turns)
}

fn raw_pair(group: &Group) -> f64 {
    per_turn(PAIRS, || {
        let charged = group.raw().charge(black_box(1024));
        assert!(charged.is_ok(), "it fits");
        group.raw().uncharge(black_box(1024));
    })
}

/// A group that is created, charged once and ended.
fn life(group: &Group) -> f64 {
    per_turn(REQUESTS, || {
        let scope = group
            .scope(GroupName::Unnamed, Limits::new())
            .expect("there are few groups");
        drop(scope.charge(1024).expect("it fits"));
    })
}

fn quartiles(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| figures[(figures.len() * quarter / 4).min(figures.len() - 1)])
}

/// The least that a layer of bytes does: it takes a handle, charges once, runs the request in the
/// group, and keeps the charge until the response's body has ended. It has no limit on a body, no
/// wait and no answer of its own.
struct Least<S>(S, Group);

pin_project_lite::pin_project! {
    struct Read<B> {
        #[pin]
        inner: B,
        bytes: usize,
    }
}

pin_project_lite::pin_project! {
    struct Held<I> {
        #[pin]
        inner: I,
        charge: Option<Charge>,
        group: Option<Group>,
    }
}

impl<B: Body<Data = Bytes>> Body for Read<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let body = self.project();
        let frame = ready!(body.inner.poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            *body.bytes += frame.data_ref().map_or(0, Bytes::len);
        }
        Poll::Ready(frame)
    }
}

impl<B: Body<Data = Bytes>> Body for Held<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let body = self.project();
        let frame = ready!(body.inner.poll_frame(context));
        if frame.is_none() {
            *body.charge = None;
        }
        Poll::Ready(frame)
    }
}

impl<F: Future<Output = Result<Response<R>, E>>, R, E> Future for Held<F> {
    type Output = Result<Response<Held<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let held = self.project();
        let Some(group) = held.group.as_ref() else {
            return Poll::Pending;
        };
        let answered = ready!(group.run(|| held.inner.poll(context)));
        let charge = held.charge.take();
        let group = held.group.take();
        Poll::Ready(answered.map(|response| {
            response.map(|inner| Held {
                inner,
                charge,
                group,
            })
        }))
    }
}

impl<S: Service<Request<Read<B>>, Response = Response<R>>, B, R> Service<Request<B>> for Least<S> {
    type Response = Response<Held<R>>;
    type Error = S::Error;
    type Future = Held<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let group = self.1.clone();
        let charge = group
            .charge_with(memcg::Bytes(81 << 10), OnFull::IfRoom)
            .ok();
        assert!(charge.is_some(), "it fits");
        let request = request.map(|inner| Read { inner, bytes: 0 });
        let inner = group.run(|| self.0.call(request));
        Held {
            inner,
            charge,
            group: Some(group),
        }
    }
}

fn main() {
    let mut rounds = ROUNDS;
    let mut filter = String::new();
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        if argument != "--rounds" {
            filter = argument;
            continue;
        }
        let count = arguments
            .next()
            .and_then(|count| count.parse().ok())
            .filter(|&count| count > 0);
        let Some(count) = count else {
            eprintln!("--rounds takes a number from 1 on");
            std::process::exit(2);
        };
        rounds = count;
    }
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
    let with_groups = layer.clone().request_groups(Limits::new());
    let peer = (LoadShedLayer::new(), ConcurrencyLimitLayer::new(1024));
    let rows: [(&str, &Row<'_>); 7] = [
        ("the layer", &|[alone, _]| {
            timed(layer.layer(bare::<RequestBody<_>>()), ONE) - alone
        }),
        ("the layer, no body", &|[_, alone]| {
            timed(layer.layer(bare::<RequestBody<_>>()), NONE) - alone
        }),
        ("a group for each request", &|[alone, _]| {
            timed(with_groups.layer(bare::<RequestBody<_>>()), ONE) - alone
        }),
        ("the life of a group", &|_| life(&acme)),
        ("ConcurrencyLimit and LoadShed", &|[alone, _]| {
            timed(peer.layer(bare()), ONE) - alone
        }),
        ("the least that charges", &|[alone, _]| {
            timed(Least(bare::<Read<_>>(), acme.clone()), ONE) - alone
        }),
        ("the least, no body", &|[_, alone]| {
            timed(Least(bare::<Read<_>>(), acme.clone()), NONE) - alone
        }),
    ];
    let mut figures = rows.map(|(name, row)| (name, row, Vec::new())).to_vec();
    figures.retain(|(name, ..)| name.starts_with(&filter));
    if figures.is_empty() {
        eprintln!(
            "no row begins with {filter:?}; there are: {}",
            rows.map(|(name, _)| name).join("; ")
        );
        std::process::exit(2);
    }
    for _ in 0..rounds {
        let pair = raw_pair(&acme);
        let alone = [timed(bare(), ONE), timed(bare(), NONE)];
        for (_, row, figures) in &mut figures {
            figures.push(row(alone) / pair);
        }
    }
    assert_eq!(acme.live(), 0, "all bytes are given back");
    println!("beyond the bare service, in raw pairs; {rounds} rounds of {REQUESTS} requests");
    for (name, _, figures) in figures {
        let [low, median, high] = quartiles(figures);
        println!("{name:<32} {median:>8.1} [{low:.1}, {high:.1}]");
    }
}
