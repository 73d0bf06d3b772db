//! Uploads to a tenant above its `high`, over real connections. A client sends small pieces, so
//! that each frame is small: a body pays the delay of what has come, and not one for each frame.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use bytes::Bytes;
use futures_util::StreamExt;
use http::Request;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use memcg::{Group, Limits, Runtime};
use memcg_tower::AdmissionLayer;
use tokio::net::{TcpListener, TcpStream};

use crate::rest::{until_adds_up, until_live};

const KIB: usize = 1 << 10;
const LENGTH: usize = 1_000_000;
const PIECE: usize = 4_000;
/// A delay of 2 s for each frame above the high would take minutes.
const LATE: Duration = Duration::from_secs(20);

struct Server {
    runtime: Runtime,
    acme: Group,
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

async fn serve(limits: Limits) -> Server {
    let runtime = Runtime::builder()
        .max(16 << 20)
        .batch(memcg::Bytes(0))
        .audit(true)
        .build()
        .unwrap();
    let acme = runtime.root().create("acme", limits).unwrap();
    let tenant = acme.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Body>| Some(tenant.clone()));
    let app = Router::new()
        .route(
            "/",
            post(|body: Bytes| async move { body.len().to_string() }),
        )
        .layer(layer)
        .layer(DefaultBodyLimit::disable());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Server {
        runtime,
        acme,
        address,
        task,
    }
}

/// Sends so much of the body in pieces, and then ends it, or goes. Returns the answer's text.
async fn upload(address: SocketAddr, is_http2: bool, sends: usize) -> Option<String> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let io = TokioIo::new(stream);
    let pieces = futures_util::stream::unfold(0, move |sent| async move {
        if sent >= sends && sends < LENGTH {
            tokio::time::sleep(Duration::from_millis(50)).await;
            return Some((Err(std::io::Error::other("it goes")), sent));
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
        let piece = PIECE.min(LENGTH - sent);
        (piece > 0).then(|| {
            (
                Ok(Frame::data(Bytes::from(vec![b'x'; piece]))),
                sent + piece,
            )
        })
    });
    let body = BodyExt::boxed(StreamBody::new(pieces.map(|piece| piece)));
    let request = Request::post(format!("http://{address}/"))
        .header("host", "a")
        .header("content-length", LENGTH)
        .body(body)
        .unwrap();
    let (answer, connection) = if is_http2 {
        let (mut asks, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        (asks.send_request(request).await, connection)
    } else {
        let (mut asks, connection) = http1::handshake(io).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        (asks.send_request(request).await, connection)
    };
    let text = match answer {
        Ok(answer) => {
            let text = answer.into_body().collect().await.unwrap().to_bytes();
            Some(String::from_utf8(text.to_vec()).unwrap())
        }
        Err(_) => None,
    };
    connection.abort();
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_above_high_pays_for_its_bytes_and_not_for_its_frames() {
    for is_http2 in [false, true] {
        let limits = Limits::new().max(1200 * KIB).high(700 * KIB);
        let server = serve(limits).await;
        let begun = Instant::now();
        let text = tokio::time::timeout(LATE, upload(server.address, is_http2, LENGTH)).await;
        let what = format!("HTTP/2: {is_http2}, after {:?}", begun.elapsed());
        assert_eq!(text.expect(&what).as_deref(), Some("1000000"), "{what}");
        assert!(
            begun.elapsed() >= Duration::from_millis(100),
            "{what}: no delay"
        );
        assert!(server.acme.peak() > 700 << 10);
        // One that goes leaves nothing, though no one else is there to lower usage.
        assert_eq!(
            upload(server.address, is_http2, LENGTH - 10_000).await,
            None
        );
        until_live(&server.acme, 0).await;
        server.task.abort();
        until_adds_up(&server.runtime).await;
    }
}

/// A body that is not to be polled after its end, as a stream is not.
struct Once(Option<Bytes>, bool);

impl hyper::body::Body for Once {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = self.0.take();
        assert!(frame.is_some() || !self.1, "it has ended already");
        self.1 = frame.is_none();
        std::task::Poll::Ready(frame.map(|data| Ok(Frame::data(data))))
    }
}

/// What is left is paid at the end of a body, of which nothing is read any more.
#[tokio::test]
async fn a_small_body_pays_at_its_end() {
    use futures_util::FutureExt;
    use tower::{Layer, ServiceExt, service_fn};
    let runtime = Runtime::builder()
        .batch(memcg::Bytes(0))
        .audit(true)
        .build()
        .unwrap();
    let limits = Limits::new().high(10 * KIB);
    let acme = runtime.root().create("acme", limits).unwrap();
    let held = acme.force_charge(100 * KIB);
    let tenant = acme.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Body>| Some(tenant.clone()))
        .overhead(0)
        .response(0);
    let service = layer.layer(service_fn(|request: Request<_>| async {
        let read = BodyExt::collect(request.into_body()).await;
        let read = read.map(|read| read.to_bytes().len().to_string());
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(read.unwrap())))
    }));
    let body = Body::new(Once(Some(Bytes::from(vec![1; 1000])), false));
    let mut answer = Box::pin(service.oneshot(Request::new(body)));
    assert!(answer.as_mut().now_or_never().is_none(), "it is delayed");
    assert_eq!(acme.live() - held.bytes(), 1000, "and was read");
    drop(held);
    let answer = answer.await.unwrap().into_body();
    assert_eq!(answer.collect().await.unwrap().to_bytes(), "1000");
    assert_eq!(acme.live(), 0);
}
