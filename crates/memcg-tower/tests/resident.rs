//! The memory of the process beside the charge, by an allocator that counts all that it hands out:
//! for handlers that answer before they have read, decompression, compression, upgraded connections
//! and calls of gRPC that stream.
//!
//! It is a program of its own, with one test at a time. Clients are in the same process, and share
//! the bytes that they send.

use std::alloc::System;
use std::convert::Infallible;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use futures_util::{StreamExt, stream};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use memcg::{Group, Limit, Limits, Runtime};
use memcg_alloc::{MemcgAlloc, PROCESS_ONLY, unowned_bytes};
use memcg_tower::{AdmissionLayer, AdmittedRequest, MeterLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_http::compression::CompressionLayer;
use tower_http::decompression::RequestDecompressionLayer;

#[global_allocator]
static ALLOCATOR: MemcgAlloc<System, PROCESS_ONLY> = MemcgAlloc::with_threshold(System);

const MIB: usize = 1 << 20;
const TIME: Duration = Duration::from_secs(60);

/// The bytes that the service and its clients take beside the bytes in question.
const NOISE: u64 = 2 << 20;

/// Runs a test when no other one runs, and until all tasks of its runtime are gone.
fn alone(test: impl Future<Output = ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(test);
}

fn tenant(max: usize) -> (Runtime, Group) {
    assert!(memcg_alloc::is_installed());
    let runtime = Runtime::builder().build().unwrap();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(Limit::Bytes(max as u64)))
        .unwrap();
    (runtime, acme)
}

fn layer(acme: &Group) -> AdmissionLayer<impl Fn(&Request<Body>) -> Option<Group> + Clone + use<>> {
    let tenant = acme.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Body>| Some(tenant.clone()));
    layer
        .overhead(16 << 10)
        .response(16 << 10)
        .patience(Duration::from_millis(50))
}

async fn serve(app: Router) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, tasks)
}

fn client(http2: bool) -> Client<hyper_util::client::legacy::connect::HttpConnector, Body> {
    Client::builder(TokioExecutor::new())
        .http2_only(http2)
        .build_http()
}

async fn until(is_so: impl Fn() -> bool, what: &str) {
    let late = Instant::now() + TIME;
    while !is_so() {
        assert!(Instant::now() < late, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Asserts that the charge covers the bytes that the process has more than before.
#[track_caller]
fn assert_charged(before: u64, acme: &Group, expected: u64, beside: u64, what: &str) {
    let held = unowned_bytes().saturating_sub(before);
    let charged = acme.live();
    println!("{what}: {held} bytes more in memory, {charged} are charged");
    // Buffers of before may be gone.
    assert!(
        held >= expected - expected / 20,
        "{what}: {held} bytes, of {expected}: the test measures too little"
    );
    assert!(
        held <= charged + charged / 10 + beside,
        "{what}: {held} bytes are in memory, {charged} are charged"
    );
}

/// Resident memory of the process, where the system says it: Linux, which has `/proc`.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .ok()
        .map(|kib| kib << 10)
}

/// Uploads whose handler answers at once, and reads all of its body while it streams its answer.
#[test]
fn what_a_handler_reads_after_its_answer() {
    alone(async {
        const UPLOADS: usize = 12;
        const BYTES: usize = 10_000_000;
        for (copies, http2) in [(true, false), (false, false), (false, true)] {
            let (_runtime, acme) = tenant(200 * MIB);
            let (release, released) = watch::channel(false);
            let held = Arc::new(Mutex::new(0));
            let app = {
                let held = Arc::clone(&held);
                let handler = move |request: Request<Body>| async move {
                    let mut body = request.into_body().into_data_stream();
                    let mut released = released.clone();
                    let answer = stream::once(async move {
                        let mut whole = Vec::with_capacity(if copies { BYTES } else { 0 });
                        let mut frames = Vec::new();
                        while let Some(Ok(frame)) = body.next().await {
                            if copies {
                                whole.extend_from_slice(&frame)
                            } else {
                                frames.push(frame)
                            }
                        }
                        *held.lock().unwrap() +=
                            whole.len() + frames.iter().map(Bytes::len).sum::<usize>();
                        released.wait_for(|released| *released).await.unwrap();
                        drop((whole, frames));
                        Ok::<_, Infallible>(Bytes::new())
                    });
                    Response::new(Body::from_stream(answer))
                };
                Router::new().route("/", post(handler)).layer(layer(&acme))
            };
            let (address, _tasks) = serve(app).await;
            let upload = Bytes::from(vec![1; BYTES]);
            let before = unowned_bytes();
            let resident_before = resident();
            let mut answers = JoinSet::new();
            for _ in 0..UPLOADS {
                let body = if copies {
                    Body::from(upload.clone())
                } else {
                    let upload = upload.clone();
                    let frames = (0..BYTES)
                        .step_by(50_000)
                        .map(move |at| upload.slice(at..at + 50_000));
                    Body::new(StreamBody::new(stream::iter(
                        frames.map(|frame| Ok::<_, Infallible>(Frame::data(frame))),
                    )))
                };
                let request = Request::post(format!("http://{address}/"))
                    .body(body)
                    .unwrap();
                answers.spawn(async move {
                    let response = client(http2).request(request).await.unwrap();
                    response.into_body().collect().await.unwrap();
                });
            }
            until(|| *held.lock().unwrap() == UPLOADS * BYTES, "all have read").await;
            // The buffers that hyper keeps for each connection, of both sides.
            let buffers = UPLOADS as u64 * (1 << 20);
            assert_charged(
                before,
                &acme,
                (UPLOADS * BYTES) as u64,
                buffers,
                &format!("copies: {copies}, http2: {http2}"),
            );
            // The system says no more, but for what the allocator beneath keeps for itself.
            if let (Some(before), Some(now)) = (resident_before, resident()) {
                let more = now.saturating_sub(before);
                let charged = acme.live();
                println!("{more} bytes more are resident");
                assert!(
                    more <= charged + charged / 5 + 2 * buffers,
                    "{more} bytes more are resident, {charged} are charged"
                );
            }
            release.send(true).unwrap();
            while let Some(answer) = answers.join_next().await {
                answer.unwrap();
            }
            until(|| acme.live() == 0, "all is given back").await;
        }
    });
}

fn gzip(bytes: usize) -> Bytes {
    use std::process::{Command, Stdio};
    let mut gzip = Command::new("gzip")
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = gzip.stdin.take().unwrap();
    let writes = std::thread::spawn(move || {
        for _ in 0..bytes / MIB {
            std::io::Write::write_all(&mut stdin, &vec![0; MIB]).unwrap();
        }
    });
    let mut packed = Vec::new();
    gzip.stdout
        .take()
        .unwrap()
        .read_to_end(&mut packed)
        .unwrap();
    writes.join().unwrap();
    assert!(gzip.wait().unwrap().success());
    packed.into()
}

/// The most that the process had more than before, as a thread sees it that looks all the time.
struct Most(Arc<AtomicBool>, std::thread::JoinHandle<u64>);

impl Most {
    fn from(before: u64) -> Most {
        let ends = Arc::new(AtomicBool::new(false));
        let looks = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut most = 0;
            while !looks.load(Ordering::Relaxed) {
                most = most.max(unowned_bytes().saturating_sub(before));
                std::thread::sleep(Duration::from_micros(200));
            }
            most
        });
        Most(ends, thread)
    }

    fn end(self) -> u64 {
        self.0.store(true, Ordering::Relaxed);
        self.1.join().unwrap()
    }
}

/// A small body that becomes a large one inside of the layer: what fits is charged, and what does
/// not is not unpacked.
#[test]
fn what_a_body_is_unpacked_to() {
    alone(async {
        const MAX: usize = 24 * MIB;
        let (_runtime, acme) = tenant(MAX);
        let seen = Arc::new(Mutex::new(0));
        let gathers = {
            let seen = Arc::clone(&seen);
            let acme = acme.clone();
            move |request: Request<Body>| async move {
                let mut whole = Vec::with_capacity(16 * MIB);
                let mut body = request.into_body().into_data_stream();
                let before = unowned_bytes() - whole.capacity() as u64;
                while let Some(Ok(frame)) = body.next().await {
                    if whole.len() + frame.len() <= whole.capacity() {
                        whole.extend_from_slice(&frame);
                    }
                }
                if whole.len() == 16 * MIB {
                    assert_charged(before, &acme, 16 * MIB as u64, NOISE, "unpacked");
                }
                *seen.lock().unwrap() = whole.len();
            }
        };
        let app = Router::new().route("/", post(gathers));
        let app = app
            .layer(MeterLayer::new())
            .layer(RequestDecompressionLayer::new())
            .layer(layer(&acme));
        let (address, _tasks) = serve(app).await;
        for (mib, status) in [(16, StatusCode::OK), (300, StatusCode::PAYLOAD_TOO_LARGE)] {
            let packed = gzip(mib * MIB);
            let most = Most::from(unowned_bytes());
            let request =
                Request::post(format!("http://{address}/")).header(CONTENT_ENCODING, "gzip");
            let request = client(false).request(request.body(Body::from(packed.clone())).unwrap());
            let response = tokio::time::timeout(TIME, request).await.unwrap().unwrap();
            assert_eq!(
                response.status(),
                status,
                "{} bytes for {mib} MiB",
                packed.len()
            );
            let most = most.end();
            println!(
                "{} bytes for {mib} MiB: {most} more in memory at most",
                packed.len()
            );
            assert!(most <= MAX as u64 + NOISE, "{most} bytes for {mib} MiB");
            until(|| acme.live() == 0, "all is given back").await;
        }
        assert!(*seen.lock().unwrap() <= MAX);
    });
}

/// A response that is packed outside of the layer, and whose client does not read: it is charged
/// what it was.
#[test]
fn what_a_response_is_before_it_is_packed() {
    alone(async {
        const CLIENTS: usize = 4;
        const BYTES: usize = 12 * MIB;
        let (_runtime, acme) = tenant(100 * MIB);
        // Bytes that do not become small: the system's buffers fill up, and the rest waits.
        let mut state = 7_u64;
        let mut noise = vec![0_u8; BYTES];
        noise.fill_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        });
        let noise = Bytes::from(noise);
        let app = Router::new().route("/", get(async move || noise.to_vec()));
        let (address, _tasks) = serve(app.layer(layer(&acme)).layer(CompressionLayer::new())).await;
        let before = unowned_bytes();
        let mut waiting = Vec::new();
        for _ in 0..CLIENTS {
            let request =
                Request::get(format!("http://{address}/")).header(ACCEPT_ENCODING, "gzip");
            let response = client(false)
                .request(request.body(Body::empty()).unwrap())
                .await
                .unwrap();
            assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
            waiting.push(response);
        }
        // Each encoder has its window, and each connection its buffers.
        let beside = CLIENTS as u64 * (1 << 20);
        assert_charged(
            before,
            &acme,
            (CLIENTS * BYTES) as u64,
            beside,
            "responses that wait",
        );
        drop(waiting);
        until(|| acme.live() == 0, "all is given back").await;
    });
}

/// Connections that were upgraded: what an idle one takes is within its charge, and messages are
/// charged by their task.
#[test]
fn what_upgraded_connections_hold() {
    alone(async {
        const CLIENTS: usize = 40;
        const MESSAGE: usize = 64 << 10;
        const MESSAGES: usize = 32;
        let (_runtime, acme) = tenant(200 * MIB);
        let handler = |mut request: Request<Body>| async move {
            let admitted = request
                .extensions()
                .get::<AdmittedRequest>()
                .unwrap()
                .clone();
            let group = admitted.group().clone();
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut connection = TokioIo::new(upgrade.await.unwrap());
                let mut messages = Vec::new();
                let mut first = [0; 1];
                while connection.read_exact(&mut first).await.is_ok() {
                    let charge = group.charge_async(MESSAGE).await.unwrap();
                    let mut message = vec![0; MESSAGE];
                    connection.read_exact(&mut message).await.unwrap();
                    messages.push((message, charge));
                }
            });
            let upgraded = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
            upgraded
                .header("upgrade", "x")
                .header("connection", "upgrade")
                .body(Body::empty())
                .unwrap()
        };
        let (address, _tasks) =
            serve(Router::new().route("/", get(handler)).layer(layer(&acme))).await;
        let before = unowned_bytes();
        let mut clients = Vec::with_capacity(CLIENTS);
        for _ in 0..CLIENTS {
            let mut client = TcpStream::connect(address).await.unwrap();
            client
                .write_all(
                    b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
                )
                .await
                .unwrap();
            let mut head = [0; 12];
            client.read_exact(&mut head).await.unwrap();
            assert_eq!(&head[9..], b"101");
            clients.push(client);
        }
        until(
            || acme.live() == (CLIENTS * (16 << 10)) as u64,
            "each keeps its overhead",
        )
        .await;
        assert_charged(before, &acme, 0, 64 << 10, "idle connections");
        let message = vec![1; MESSAGE + 1];
        for client in &mut clients {
            for _ in 0..MESSAGES {
                client.write_all(&message).await.unwrap();
            }
        }
        let messages = CLIENTS * MESSAGES * MESSAGE;
        until(
            || acme.live() == (CLIENTS * (16 << 10) + messages) as u64,
            "all messages are there",
        )
        .await;
        assert_charged(before, &acme, messages as u64, NOISE, "messages");
        drop(clients);
        until(|| acme.live() == 0, "all is given back").await;
    });
}

/// A call of gRPC whose client streams: what its handler gathers before it answers.
#[test]
fn what_a_call_that_streams_gathers() {
    alone(async {
        const MESSAGES: usize = 400;
        const MESSAGE: usize = 64 << 10;
        let (_runtime, acme) = tenant(100 * MIB);
        let gathers = {
            let acme = acme.clone();
            move |request: Request<Body>| async move {
                let before = unowned_bytes();
                let mut body = request.into_body().into_data_stream();
                let mut messages = Vec::with_capacity(4 * MESSAGES);
                while let Some(Ok(frame)) = body.next().await {
                    messages.push(frame.to_vec());
                }
                assert_charged(
                    before,
                    &acme,
                    (MESSAGES * MESSAGE) as u64,
                    NOISE,
                    "a call that streams",
                );
                [("grpc-status", "0")]
            }
        };
        let (address, _tasks) =
            serve(Router::new().route("/", post(gathers)).layer(layer(&acme))).await;
        let mut message = vec![0, 0, 0, 255, 251];
        message.resize(MESSAGE, 1);
        let message = Bytes::from(message);
        let frames = stream::iter(
            (0..MESSAGES).map(move |_| Ok::<_, Infallible>(Frame::data(message.clone()))),
        );
        let call =
            Request::post(format!("http://{address}/")).header(CONTENT_TYPE, "application/grpc");
        let call = call.body(Body::new(StreamBody::new(frames))).unwrap();
        let response = tokio::time::timeout(TIME, client(true).request(call))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(response.headers()["grpc-status"], "0");
        until(|| acme.live() == 0, "all is given back").await;
    });
}
