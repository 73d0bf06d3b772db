//! Streams of one connection of HTTP/2 that go at each point, and the connection that goes with all
//! of them.

use std::convert::Infallible;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::CONTENT_LENGTH;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use memcg_tower::PromisedBytes;
use tokio::net::TcpStream;

use super::server::{LARGE, MIB, Server, WINDOW};
use crate::rest::{TIME, until};

type Body = BoxBody<Bytes, Infallible>;

/// So many requests of acme, of which six uploads fit.
const REQUESTS: usize = 40;
const FIT: usize = 6;
/// A frame of a body.
const FRAME: usize = 16 << 10;

/// Its client takes no more of a large answer than the window before it reads. The second handle
/// closes the connection, whichever tasks and streams of the client are there.
async fn connect(server: &Server) -> (SendRequest<Body>, std::net::TcpStream) {
    let stream = std::net::TcpStream::connect(server.address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    let closes = stream.try_clone().unwrap();
    let stream = TcpStream::from_std(stream).unwrap();
    let mut client = Builder::new(TokioExecutor::new());
    client
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    let (requests, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    (requests, closes)
}

fn upload(server: &Server, body: Body) -> Request<Body> {
    let request = server.request("acme", 0).map(|_| body);
    let (mut head, body) = request.into_parts();
    head.headers.insert(CONTENT_LENGTH, MIB.into());
    Request::from_parts(head, body)
}

/// A body of 1 MiB that stops after so many frames, and counts those that the connection has taken.
fn stops_after(frames: usize, taken: &Arc<AtomicUsize>) -> Body {
    let taken = Arc::clone(taken);
    let endless = stream::repeat_with(move || {
        taken.fetch_add(1, Ordering::Relaxed);
        Ok(Frame::data(Bytes::from_static(&[1; FRAME])))
    });
    BodyExt::boxed(StreamBody::new(
        endless.take(frames).chain(stream::pending()),
    ))
}

fn get(server: &Server, path: &str) -> Request<Body> {
    let uri = format!("http://{}{path}", server.address);
    Request::get(uri)
        .header("x-tenant", "acme")
        .body(Empty::new().boxed())
        .unwrap()
}

async fn is_uploaded(answered: impl Future<Output = hyper::Result<Response<Incoming>>>) {
    let response = tokio::time::timeout(TIME, answered)
        .await
        .expect("no request is stuck")
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "1048576"
    );
}

fn whole() -> Body {
    Full::new(Bytes::from_static(&[1; MIB])).boxed()
}

/// Those that wait behind the ones that go are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_go_in_line_leave_it() {
    let server = Server::start(TIME).await;
    let (mut requests, _connection) = connect(&server).await;
    let mut stopped: Vec<_> = Vec::new();
    let taken = Arc::default();
    for _ in 0..FIT {
        stopped.push(requests.send_request(upload(&server, stops_after(1, &taken))));
    }
    server.has(FIT, 0).await;
    let mut waiting: Vec<_> = (FIT..REQUESTS)
        .map(|_| requests.send_request(upload(&server, whole())))
        .collect();
    server.has(FIT, REQUESTS - FIT).await;
    let left = waiting.split_off(waiting.len() / 2);
    drop(waiting);
    server.has(FIT, left.len()).await;
    drop(stopped);
    for answered in left {
        is_uploaded(answered).await;
    }
    is_uploaded(requests.send_request(upload(&server, whole()))).await;
    assert_eq!(server.connections(), 1);
    server.end().await;
}

/// After each frame of the body that was sent, some beyond the window: those the handler has read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_goes_in_its_body_leaves_nothing() {
    let server = Server::start(TIME).await;
    let (mut requests, _connection) = connect(&server).await;
    for frames in 0..2 * WINDOW as usize / FRAME {
        let taken = Arc::default();
        let goes = requests.send_request(upload(&server, stops_after(frames, &taken)));
        server.has(1, 0).await;
        assert!(
            PromisedBytes::to(&server.acme).bytes > 0,
            "what may come is promised"
        );
        let has_taken = || taken.load(Ordering::Relaxed);
        until(
            || has_taken() == frames,
            || format!("{} of {frames} frames", has_taken()),
        )
        .await;
        drop(goes);
        server.gives_back().await;
    }
    is_uploaded(requests.send_request(upload(&server, whole()))).await;
    assert_eq!(server.connections(), 1);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_goes_while_its_handler_runs_leaves_nothing() {
    let server = Server::start(TIME).await;
    let (mut requests, _connection) = connect(&server).await;
    let mut running: Vec<_> = (0..REQUESTS)
        .map(|_| requests.send_request(get(&server, "/never")))
        .collect();
    server.has(REQUESTS, 0).await;
    while running.pop().is_some() {
        server.has(running.len(), 0).await;
    }
    is_uploaded(requests.send_request(upload(&server, whole()))).await;
    assert_eq!(server.connections(), 1);
    server.end().await;
}

/// After each so many bytes of the answer. What is not sent is charged until the stream goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_goes_in_its_answer_leaves_nothing() {
    let server = Server::start(TIME).await;
    let (mut requests, _connection) = connect(&server).await;
    for least in (0..LARGE).step_by(LARGE / 32) {
        let response = requests.send_request(get(&server, "/large")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let mut body = response.into_body();
        let mut came = 0;
        while came < least {
            came += body
                .frame()
                .await
                .unwrap()
                .unwrap()
                .into_data()
                .unwrap()
                .len();
        }
        if (1..LARGE - 2 * WINDOW as usize).contains(&came) {
            assert!(
                server.acme.live() >= LARGE as u64,
                "{} bytes after {came}",
                server.acme.live()
            );
        }
        drop(body);
        server.gives_back().await;
    }
    let whole = requests.send_request(get(&server, "/large")).await.unwrap();
    assert_eq!(
        whole.into_body().collect().await.unwrap().to_bytes(),
        vec![7; LARGE]
    );
    assert_eq!(server.connections(), 1);
    server.end().await;
}

/// Some are in their bodies, one in its answer, one in its handler, and all others in line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_goes_takes_all_its_streams() {
    let server = Server::start(TIME).await;
    let (mut requests, connection) = connect(&server).await;
    let response = requests.send_request(get(&server, "/large")).await.unwrap();
    until(
        || server.acme.live() > LARGE as u64,
        || "its answer is charged".to_owned(),
    )
    .await;
    let mut streams = vec![requests.send_request(get(&server, "/never"))];
    let taken = Arc::default();
    let frames = 2 * WINDOW as usize / FRAME;
    let fit = FIT - LARGE / MIB;
    let running = 2 + fit;
    for _ in 0..fit {
        streams.push(requests.send_request(upload(&server, stops_after(frames, &taken))));
    }
    let has_taken = || taken.load(Ordering::Relaxed);
    until(
        || has_taken() == fit * frames,
        || format!("{} frames", has_taken()),
    )
    .await;
    for _ in running..REQUESTS {
        streams.push(requests.send_request(upload(&server, whole())));
    }
    server.has(running, REQUESTS - running).await;
    assert_eq!(
        server.connections(),
        1,
        "all are there at once, on one connection"
    );
    connection.shutdown(Shutdown::Both).unwrap();
    server.gives_back().await;
    drop((response, streams));
    let (mut requests, _connection) = connect(&server).await;
    is_uploaded(requests.send_request(upload(&server, whole()))).await;
    server.end().await;
}
