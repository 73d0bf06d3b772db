//! The bytes that are alive of what a response sends, beside those that its tenant is charged: over
//! real connections whose clients read nothing, of HTTP/1 and HTTP/2. A frame counts itself, from
//! the handler that makes it to the drop of its memory.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use memcg::{Group, Limits, Runtime};
use memcg_tower::AdmissionLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::rest::{until, until_adds_up};

const KIB: usize = 1 << 10;
const MAX: usize = 8 << 20;
const OVERHEAD: usize = 16 * KIB;
const RESPONSE: usize = 64 * KIB;
const ASKS: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// The bytes of frames that are alive, now and at most.
#[derive(Default)]
struct Alive {
    now: AtomicU64,
    most: AtomicU64,
}

/// A frame's memory.
struct Counted {
    data: Vec<u8>,
    alive: Arc<Alive>,
}

impl Counted {
    fn frame(bytes: usize, alive: &Arc<Alive>) -> Bytes {
        let now = alive.now.fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64;
        alive.most.fetch_max(now, Ordering::SeqCst);
        Bytes::from_owner(Counted {
            data: vec![7; bytes],
            alive: Arc::clone(alive),
        })
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive
            .now
            .fetch_sub(self.data.len() as u64, Ordering::SeqCst);
    }
}

struct Server {
    runtime: Runtime,
    acme: Group,
    alive: Arc<Alive>,
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

/// A stream of frames, of a known length or none.
#[derive(Clone, Copy, Debug)]
struct Shape {
    frame: usize,
    frames: usize,
    window: Option<usize>,
    is_known: bool,
    patience: Duration,
}

impl Shape {
    async fn serve(self) -> Server {
        let runtime = Runtime::builder()
            .batch(memcg::Bytes(0))
            .audit(true)
            .build()
            .unwrap();
        let acme = runtime
            .root()
            .create("acme", Limits::new().max(MAX))
            .unwrap();
        let tenant = acme.clone();
        let mut layer = AdmissionLayer::new(move |_: &Request<Body>| Some(tenant.clone()))
            .overhead(OVERHEAD)
            .response(RESPONSE)
            .patience(self.patience);
        if let Some(window) = self.window {
            layer = layer.body_window(window);
        }
        let alive = Arc::<Alive>::default();
        let made = Arc::clone(&alive);
        let app = Router::new().route(
            "/",
            get(move || async move {
                let frames = stream::repeat_with(move || {
                    Ok::<_, Infallible>(Counted::frame(self.frame, &made))
                });
                let body = Body::from_stream(frames.take(self.frames));
                let mut response = http::Response::new(body);
                if self.is_known {
                    let length = self.frame * self.frames;
                    response
                        .headers_mut()
                        .insert("content-length", length.into());
                }
                response
            }),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = app.layer(layer);
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Server {
            runtime,
            acme,
            alive,
            address,
            task,
        }
    }
}

/// A connection whose client does not read.
enum Client {
    Http1 {
        _stream: TcpStream,
    },
    Http2 {
        _response: Option<http::Response<hyper::body::Incoming>>,
        _asks: http2::SendRequest<Empty<Bytes>>,
        connection: tokio::task::JoinHandle<()>,
    },
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Client::Http2 { connection, .. } = self {
            connection.abort();
        }
    }
}

impl Client {
    async fn connect(address: SocketAddr, http2: bool) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        if !http2 {
            stream.write_all(ASKS).await.unwrap();
            return Client::Http1 { _stream: stream };
        }
        // The window of the protocol is no bound here.
        let (mut asks, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(1 << 20)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        let connection = tokio::spawn(async move {
            connection.await.ok();
        });
        let request = Request::get(format!("http://{address}/")).body(Empty::new());
        let response = asks.send_request(request.unwrap()).await.ok();
        Client::Http2 {
            _response: response,
            _asks: asks,
            connection,
        }
    }
}

impl Server {
    fn alive(&self) -> u64 {
        self.alive.now.load(Ordering::SeqCst)
    }

    /// Waits until nothing has changed for a while, and returns what is alive and what is charged.
    async fn rests(&self) -> (u64, u64) {
        let mut last = (0, 0);
        let mut since = Instant::now();
        while since.elapsed() < Duration::from_millis(300) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let now = (self.alive(), self.acme.live());
            if now != last {
                last = now;
                since = Instant::now();
            }
        }
        last
    }

    async fn ends(self) {
        let left = || (self.alive(), self.acme.live());
        until(
            || left() == (0, 0),
            || format!("alive and charged: {:?}", left()),
        )
        .await;
        self.task.abort();
        until_adds_up(&self.runtime).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_alive_of_responses_is_charged() {
    let endless = |frame: usize| Shape {
        frame,
        frames: 10_000,
        window: None,
        is_known: false,
        patience: Duration::from_millis(50),
    };
    for (shape, clients) in [
        (endless(16 * KIB), 50),
        (endless(60 * KIB), 50),
        (endless(60 * KIB), 200),
        (endless(200 * KIB), 20),
        (
            Shape {
                window: Some(100 * KIB),
                ..endless(60 * KIB)
            },
            50,
        ),
        (
            Shape {
                window: Some(0),
                ..endless(60 * KIB)
            },
            50,
        ),
        (
            Shape {
                is_known: true,
                window: Some(100 * KIB),
                ..endless(60 * KIB)
            },
            50,
        ),
        (
            Shape {
                is_known: true,
                frames: 120,
                ..endless(60 * KIB)
            },
            1,
        ),
    ] {
        for http2 in [false, true] {
            let server = shape.serve().await;
            let mut connected = Vec::new();
            for _ in 0..clients {
                connected.push(Client::connect(server.address, http2).await);
            }
            let (alive, charged) = server.rests().await;
            let what = format!("{shape:?}, {clients} clients, HTTP/2: {http2}");
            assert!(alive > 0, "{what}: nothing is on its way");
            assert!(
                alive <= charged && charged <= MAX as u64,
                "{what}: {alive} alive, {charged} charged"
            );
            drop(connected);
            server.ends().await;
        }
    }
}

/// Frames that go to a client which reads are charged once for each that is alive, and all come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_gets_all_frames() {
    for (frame, window) in [(60 * KIB, None), (200 * KIB, None), (60 * KIB, Some(0))] {
        let shape = Shape {
            frame,
            frames: 100,
            window,
            is_known: false,
            patience: Duration::from_secs(60),
        };
        let server = shape.serve().await;
        // Less than half of the tenant is free.
        let held = server.acme.force_charge(5 << 20);
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let asks = [&ASKS[..ASKS.len() - 2], b"connection: close\r\n\r\n"].concat();
        stream.write_all(&asks).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.ends_with(b"\r\n0\r\n\r\n"), "it ends early");
        let sevens = answer.iter().filter(|byte| **byte == 7).count();
        assert_eq!(sevens, frame * 100);
        let most = server.alive.most.load(Ordering::SeqCst);
        assert!(
            most <= (frame.max(RESPONSE) + frame) as u64,
            "{most} of {frame} were alive at a time: they go one by one"
        );
        drop(held);
        server.ends().await;
    }
}

/// Code outside of the layer may keep all frames until the body has ended. No frame comes back
/// then, so each of them is charged for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_gathered_outside_is_charged_whole() {
    use tower::{Layer, ServiceExt, service_fn};
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(4 << 20))
        .unwrap();
    let alive = Arc::<Alive>::default();
    let made = Arc::clone(&alive);
    let handler = service_fn(move |_: Request<_>| {
        let made = Arc::clone(&made);
        let frames = stream::repeat_with(move || {
            Ok::<_, Infallible>(hyper::body::Frame::data(Counted::frame(60 * KIB, &made)))
        });
        let body = http_body_util::StreamBody::new(frames.take(20));
        async move { Ok::<_, Infallible>(http::Response::new(body)) }
    });
    let tenant = acme.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Body>| Some(tenant.clone()))
        .patience(Duration::from_millis(50));
    // Where more than half of the tenant is free, and where less is.
    for held in [0, 2 << 20] {
        let held = acme.force_charge(held);
        let asked = layer
            .layer(handler.clone())
            .oneshot(Request::new(Body::empty()));
        let gathered = asked.await.unwrap().into_body().collect().await.unwrap();
        let charged = acme.live() - held.bytes();
        assert_eq!(alive.now.load(Ordering::SeqCst), 20 * 60 * KIB as u64);
        assert!(
            charged >= 20 * 60 * KIB as u64,
            "{charged} bytes are charged"
        );
        drop(gathered);
        assert_eq!(acme.live(), held.bytes());
    }
    // And where there is no room for all: the body ends, and so does what was charged for it.
    let held = acme.force_charge(3500 * KIB);
    let layer = layer.body_timeout(Duration::from_millis(200));
    let asked = layer.layer(handler).oneshot(Request::new(Body::empty()));
    let gathered = asked.await.unwrap().into_body().collect().await;
    assert!(gathered.is_err());
    assert_eq!(acme.live(), held.bytes());
    assert_eq!(layer.figures().refused(memcg_tower::RefusalKind::CutOff), 1);
}
