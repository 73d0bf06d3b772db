//! Bytes beside the charge: of handlers that answer before they have read, of layers that compress
//! and decompress, of connections that go on with another protocol, and of calls of gRPC that
//! stream.

use std::convert::Infallible;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use futures_util::{StreamExt, stream};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use memcg::{Group, Limit, Limits, Runtime};
use memcg_tower::{AdmissionLayer, AdmittedRequest, MeterLayer, RefusalKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_http::compression::CompressionLayer;
use tower_http::decompression::RequestDecompressionLayer;

use crate::rest::{TIME, until, until_adds_up, until_live};

const MIB: usize = 1 << 20;

struct Service {
    runtime: Runtime,
    acme: Group,
}

type Layer = AdmissionLayer<Box<dyn Fn(&Request<Body>) -> Option<Group> + Send + Sync>>;

impl Service {
    fn new(max: usize) -> (Service, Layer) {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let acme = runtime
            .root()
            .create("acme", Limits::new().max(Limit::Bytes(max as u64)))
            .unwrap();
        let tenant = acme.clone();
        let layer: Layer =
            AdmissionLayer::new(Box::new(move |_: &Request<Body>| Some(tenant.clone())) as Box<_>);
        (
            Service { runtime, acme },
            layer
                .overhead(16 << 10)
                .response(16 << 10)
                .patience(Duration::from_millis(50)),
        )
    }

    async fn gives_back(&self) {
        until_live(&self.acme, 0).await;
        until_adds_up(&self.runtime).await;
    }
}

async fn serve(app: Router) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, tasks)
}

fn client() -> Client<hyper_util::client::legacy::connect::HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

/// A handler answers at once, and reads all of its body into memory while it streams its answer.
/// What it has is charged: of a body of known length until the request has ended, of a stream while
/// its frames live.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_answers_before_it_has_read_is_charged() {
    const UPLOADS: usize = 4;
    for copies in [true, false] {
        let (service, layer) = Service::new(100 * MIB);
        let (release, released) = watch::channel(false);
        let held = Arc::new(Mutex::new(Vec::new()));
        let app = {
            let held = Arc::clone(&held);
            let handler = move |request: Request<Body>| async move {
                let mut body = request.into_body().into_data_stream();
                let mut released = released.clone();
                let answer = stream::once(async move {
                    let mut whole = Vec::new();
                    let mut frames = Vec::new();
                    while let Some(Ok(frame)) = body.next().await {
                        if copies {
                            whole.extend_from_slice(&frame)
                        } else {
                            frames.push(frame)
                        }
                    }
                    let bytes = whole.len() + frames.iter().map(Bytes::len).sum::<usize>();
                    held.lock().unwrap().push(bytes);
                    released.wait_for(|released| *released).await.unwrap();
                    drop((whole, frames));
                    Ok::<_, Infallible>(bytes.to_string())
                });
                Response::new(Body::from_stream(answer))
            };
            Router::new().route("/", post(handler)).layer(layer)
        };
        let (address, _tasks) = serve(app).await;
        let mut answers = JoinSet::new();
        for _ in 0..UPLOADS {
            // A body to copy says its length; a body to hold frame by frame is a stream.
            let body = if copies {
                Body::from(vec![1; 2 * MIB])
            } else {
                let frames = stream::iter(
                    (0..32).map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![1; 65536])))),
                );
                Body::new(StreamBody::new(frames))
            };
            let request = Request::post(format!("http://{address}/"))
                .body(body)
                .unwrap();
            answers.spawn(async move {
                let response = client().request(request).await.unwrap();
                response.into_body().collect().await.unwrap().to_bytes()
            });
        }
        let have_read = || held.lock().unwrap().len();
        until(
            || have_read() == UPLOADS,
            || format!("{} have read", have_read()),
        )
        .await;
        let in_memory: usize = held.lock().unwrap().iter().sum();
        assert_eq!(in_memory, UPLOADS * 2 * MIB);
        assert!(
            service.acme.live() >= in_memory as u64,
            "{} of {in_memory} bytes are charged",
            service.acme.live()
        );
        release.send(true).unwrap();
        while let Some(answer) = answers.join_next().await {
            assert_eq!(answer.unwrap(), (2 * MIB).to_string());
        }
        service.gives_back().await;
    }
}

fn gzip(bytes: usize) -> Vec<u8> {
    use std::process::{Command, Stdio};
    let mut gzip = Command::new("gzip")
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = gzip.stdin.take().unwrap();
    let writes =
        std::thread::spawn(move || std::io::Write::write_all(&mut stdin, &vec![0; bytes]).unwrap());
    let mut packed = Vec::new();
    gzip.stdout
        .take()
        .unwrap()
        .read_to_end(&mut packed)
        .unwrap();
    writes.join().unwrap();
    assert!(gzip.wait().unwrap().success());
    packed
}

/// The bytes that a body unpacks to, inside of the layer, which a meter sees, and outside of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_unpacked_is_charged_what_it_becomes() {
    for meter_inside in [true, false] {
        let (service, layer) = Service::new(8 * MIB);
        let figures = layer.figures();
        let acme = service.acme.clone();
        let upload = move |body: Bytes| async move { format!("{} of {}", acme.live(), body.len()) };
        let app = Router::new()
            .route("/", post(upload))
            .layer(DefaultBodyLimit::disable());
        let app = if meter_inside {
            app.layer(MeterLayer::new())
                .layer(RequestDecompressionLayer::new())
                .layer(layer)
        } else {
            app.layer(layer).layer(RequestDecompressionLayer::new())
        };
        let (address, _tasks) = serve(app).await;
        let own = 32 << 10;
        for (packed, bytes, status) in [
            (true, 4 * MIB, 200),
            (false, 4 * MIB, 200),
            (true, 32 * MIB, 413),
        ] {
            let request = Request::post(format!("http://{address}/"));
            let request = if packed {
                request
                    .header(CONTENT_ENCODING, "gzip")
                    .body(Body::from(gzip(bytes)))
            } else {
                request.body(Body::from(vec![0; bytes]))
            };
            let response = tokio::time::timeout(TIME, client().request(request.unwrap()))
                .await
                .unwrap()
                .unwrap();
            assert_eq!(
                response.status().as_u16(),
                status,
                "{meter_inside}, {packed}, {bytes}"
            );
            let text = response.into_body().collect().await.unwrap().to_bytes();
            if status == 200 {
                // Once: it is charged the larger of what came and what it was unpacked to.
                assert_eq!(
                    text,
                    format!("{} of {bytes}", own + bytes),
                    "{meter_inside}, {packed}"
                );
            }
            service.gives_back().await;
        }
        assert_eq!(figures.refused(RefusalKind::Outgrown), 1);
    }
}

/// A response that is packed outside of the layer is charged what it is before, and one that does
/// not fit has a status.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_is_packed_outside_is_charged_what_it_was() {
    let (service, layer) = Service::new(8 * MIB);
    let figures = layer.figures();
    let app = Router::new()
        .route("/4", get(|| async { vec![0_u8; 4 * MIB] }))
        .route("/16", get(|| async { vec![0_u8; 16 * MIB] }))
        .layer(layer)
        .layer(CompressionLayer::new());
    let (address, _tasks) = serve(app).await;
    for (mib, status) in [(4, StatusCode::OK), (16, StatusCode::PAYLOAD_TOO_LARGE)] {
        let request =
            Request::get(format!("http://{address}/{mib}")).header(ACCEPT_ENCODING, "gzip");
        let response = client()
            .request(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(response.status(), status);
        if status == StatusCode::OK {
            assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
            assert!(response.headers().get(CONTENT_LENGTH).is_none());
            assert!(
                service.acme.peak() >= 4 * MIB as u64,
                "{} at the most",
                service.acme.peak()
            );
        }
        assert!(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .len()
                < MIB
        );
        service.gives_back().await;
    }
    assert_eq!(figures.refused(RefusalKind::ResponseTooLarge), 1);
}

/// A connection that goes on with another protocol keeps what its request holds, and charges its
/// messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_connection_keeps_its_charge() {
    const CLIENTS: u64 = 20;
    for request_groups in [false, true] {
        let (service, layer) = Service::new(8 * MIB);
        let layer = if request_groups {
            layer.request_groups(Limits::new())
        } else {
            layer
        };
        let handler = |mut request: Request<Body>| async move {
            let admitted = request
                .extensions()
                .get::<AdmittedRequest>()
                .unwrap()
                .clone();
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut connection = TokioIo::new(upgrade.await.unwrap());
                // Messages of 1 KiB, which it keeps.
                let mut messages = Vec::new();
                loop {
                    let charge = admitted.group().charge_async(1024).await.unwrap();
                    let mut message = vec![0; 1024];
                    if connection.read_exact(&mut message).await.is_err() {
                        break;
                    }
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
        let (address, _tasks) = serve(Router::new().route("/", get(handler)).layer(layer)).await;
        let mut clients = Vec::new();
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
        // The overhead, and room for a message.
        until_live(&service.acme, CLIENTS * (17 << 10)).await;
        for client in &mut clients {
            client.write_all(&[1; 10 << 10]).await.unwrap();
        }
        until_live(&service.acme, CLIENTS * (27 << 10)).await;
        assert_eq!(
            service.acme.children().len() as u64,
            if request_groups { CLIENTS } else { 0 }
        );
        drop(clients);
        service.gives_back().await;
    }
}

/// A call of gRPC whose client streams: what the handler gathers is charged, and what does not fit
/// is refused in gRPC's way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_streams_is_charged_what_has_come() {
    let (service, layer) = Service::new(4 * MIB);
    let figures = layer.figures();
    let acme = service.acme.clone();
    let gathers = move |request: Request<Body>| async move {
        let mut body = request.into_body().into_data_stream();
        let mut messages = Vec::new();
        while let Some(Ok(frame)) = body.next().await {
            messages.push(frame.to_vec());
            let held: usize = messages.iter().map(Vec::len).sum();
            assert!(
                acme.live() >= held as u64,
                "{} of {held} bytes are charged",
                acme.live()
            );
        }
        let trailers = [("grpc-status", "0")];
        (trailers, messages.len().to_string())
    };
    let (address, _tasks) = serve(Router::new().route("/", post(gathers)).layer(layer)).await;
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Body>();
    for (messages, code) in [(32, "0"), (128, "8")] {
        let frames = (0..messages).map(|_| {
            let mut message = vec![0, 0, 0, 255, 251];
            message.resize(65536, 1);
            Ok::<_, Infallible>(Frame::data(Bytes::from(message)))
        });
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        let call =
            Request::post(format!("http://{address}/")).header(CONTENT_TYPE, "application/grpc");
        let response = tokio::time::timeout(TIME, client.request(call.body(body).unwrap()))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(response.headers()["grpc-status"], code);
        drop(response);
        service.gives_back().await;
    }
    assert_eq!(figures.refused(RefusalKind::Outgrown), 1);
}
