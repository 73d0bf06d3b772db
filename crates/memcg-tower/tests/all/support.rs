//! Two tenants below one budget, and requests of theirs without a connection.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use memcg::{Group, Limits, Runtime};
use memcg_tower::{AdmissionLayer, Refusal, RequestBody};
use tokio::sync::mpsc;

pub(crate) const KIB: usize = 1024;
pub(crate) const OVERHEAD: u64 = 1024;
pub(crate) const RESPONSE: u64 = 2048;

/// The tenants acme (100 KiB) and globex, below a budget of 150 KiB.
pub(crate) struct Scene {
    pub(crate) runtime: Runtime,
    pub(crate) acme: Group,
    pub(crate) globex: Group,
}

pub(crate) type InBody = RequestBody<Body>;
pub(crate) type Answer = Result<Response<Full<Bytes>>, Infallible>;

pub(crate) fn ok(text: impl Into<Bytes>) -> Answer {
    Ok(Response::new(Full::new(text.into())))
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let runtime = Runtime::builder()
            .max(150 * KIB)
            .audit(true)
            .build()
            .unwrap();
        let acme = runtime
            .root()
            .create("acme", Limits::new().max(100 * KIB))
            .unwrap();
        let globex = runtime.root().create("globex", Limits::new()).unwrap();
        Scene {
            runtime,
            acme,
            globex,
        }
    }

    /// The path is the tenant. A body of unknown length reserves 4 KiB.
    pub(crate) fn layer(
        &self,
    ) -> AdmissionLayer<impl Fn(&Request<Body>) -> Option<Group> + Clone + use<>> {
        let tenants = [self.acme.clone(), self.globex.clone()];
        let classify = move |request: &Request<Body>| {
            let tenant = request.uri().path().trim_start_matches('/');
            tenants.iter().find(|group| group.name() == tenant).cloned()
        };
        let layer = AdmissionLayer::new(classify)
            .overhead(KIB)
            .unknown_body(4 * KIB)
            .response(2 * KIB);
        layer.patience(Duration::ZERO).answer(text_for_operators)
    }

    #[track_caller]
    pub(crate) fn assert_given_back(&self) {
        assert_eq!(
            (
                self.acme.live(),
                self.globex.live(),
                self.acme.waiting_count()
            ),
            (0, 0, 0)
        );
        assert_eq!(self.acme.children().len(), 0, "no request's group is left");
        let verdict = self.runtime.verify().to_string();
        assert!(verdict.ends_with("all add up"), "{verdict}");
    }
}

/// What a service answers whose clients are its operators.
pub(crate) fn text_for_operators(refusal: &Refusal) -> Response<Bytes> {
    let response = refusal.to_response();
    if response.body().is_empty() {
        return response; // that of gRPC is in the headers
    }
    response.map(|_| refusal.to_string().into())
}

pub(crate) fn request(tenant: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder()
        .uri(format!("/{tenant}"))
        .body(body.into())
        .unwrap()
}

pub(crate) fn sized(tenant: &str, bytes: usize) -> Request<Body> {
    request(tenant, vec![1; bytes])
}

/// A body of unknown length, whose frames come from a channel.
pub(crate) fn unsized_body() -> (mpsc::UnboundedSender<Bytes>, Body) {
    let (frames, mut received) = mpsc::unbounded_channel::<Bytes>();
    let stream = tokio_stream(move |context| received.poll_recv(context));
    (frames, Body::new(StreamBody::new(stream)))
}

/// A stream of frames out of a function that polls.
pub(crate) fn tokio_stream(
    mut poll: impl FnMut(&mut std::task::Context<'_>) -> std::task::Poll<Option<Bytes>> + Send + 'static,
) -> impl futures_core::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    futures_util::stream::poll_fn(move |context| {
        poll(context).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes))))
    })
}

/// When a client is told to come back, after a second at least: spread over two more, and one.
#[track_caller]
pub(crate) fn retry<B>(response: &Response<B>) -> Option<u64> {
    let seconds: u64 = response
        .headers()
        .get("retry-after")?
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=4).contains(&seconds), "{seconds}");
    Some(1)
}

pub(crate) async fn text(
    response: Response<impl hyper::body::Body<Data = Bytes, Error: std::fmt::Debug>>,
) -> (u16, String) {
    let status = response.status().as_u16();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(text.to_vec()).unwrap())
}
