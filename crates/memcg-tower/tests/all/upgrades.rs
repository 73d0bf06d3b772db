//! Connections that go on with another protocol, on a real server: each keeps what its request
//! holds, whatever its handler does, and gives it back at its end.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use memcg::{Group, Limit, Limits, Runtime};
use memcg_tower::{AdmissionLayer, KeptConnection, RequestBody};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tower::{Layer, service_fn};

use crate::rest::{TIME, until_adds_up, until_live};

const OVERHEAD: u64 = 16 << 10;
const HEAD: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";

/// The behaviour of a handler on a request that asks for an upgrade.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    /// A task of it says what it hears.
    Echoes,
    /// It answers 101, and does not ask for the connection.
    Forgets,
    /// It answers with another status, and a task of it waits for the connection.
    Answers,
}

struct Service {
    runtime: Runtime,
    acme: Group,
    address: SocketAddr,
    /// The results of the waits for a connection.
    ended: mpsc::UnboundedReceiver<bool>,
    _tasks: JoinSet<()>,
}

async fn echo(upgraded: Upgraded) {
    let (mut reads, mut writes) = tokio::io::split(TokioIo::new(upgraded));
    tokio::io::copy(&mut reads, &mut writes).await.ok();
    writes.shutdown().await.ok();
}

impl Service {
    async fn start(does: Does, request_groups: bool) -> Service {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let acme = runtime
            .root()
            .create("acme", Limits::new().max(Limit::mib(64)))
            .unwrap();
        let tenant = acme.clone();
        let layer = AdmissionLayer::new(move |_: &Request<Incoming>| Some(tenant.clone()));
        let layer = layer.overhead(OVERHEAD as usize).response(8 << 10);
        let layer = if request_groups {
            layer.request_groups(Limits::new())
        } else {
            layer
        };
        let (ends, ended) = mpsc::unbounded_channel();
        let service = layer.layer(service_fn(
            move |mut request: Request<RequestBody<Incoming>>| {
                let ends = ends.clone();
                async move {
                    let status = match does {
                        Does::Answers => StatusCode::ACCEPTED,
                        _ if request.method() == Method::CONNECT => StatusCode::OK,
                        _ => StatusCode::SWITCHING_PROTOCOLS,
                    };
                    if does != Does::Forgets {
                        let upgrade = hyper::upgrade::on(&mut request);
                        tokio::spawn(async move {
                            let upgraded = upgrade.await;
                            ends.send(upgraded.is_ok()).unwrap();
                            if let Ok(upgraded) = upgraded {
                                echo(upgraded).await;
                            }
                        });
                    }
                    let mut answer = Response::new(Empty::<Bytes>::new());
                    *answer.status_mut() = status;
                    if status == StatusCode::SWITCHING_PROTOCOLS {
                        answer.headers_mut().insert("upgrade", "x".parse().unwrap());
                        answer
                            .headers_mut()
                            .insert("connection", "upgrade".parse().unwrap());
                    }
                    Ok::<_, Infallible>(answer)
                }
            },
        ));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = TowerToHyperService::new(service.clone());
                connections.spawn(async move {
                    let mut server = auto::Builder::new(TokioExecutor::new());
                    server.http2().enable_connect_protocol();
                    server
                        .serve_connection_with_upgrades(TokioIo::new(stream), service)
                        .await
                        .ok();
                });
            }
        });
        Service {
            runtime,
            acme,
            address,
            ended,
            _tasks: tasks,
        }
    }

    async fn gives_back(&self) {
        until_live(&self.acme, 0).await;
        until_adds_up(&self.runtime).await;
    }
}

/// A client that asks for an upgrade, with bytes of the new protocol in the same segment. Returns
/// the status.
async fn asks(service: &Service, head: &[u8], early: &[u8]) -> (TcpStream, String) {
    let mut client = TcpStream::connect(service.address).await.unwrap();
    client.write_all(&[head, early].concat()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(client.read_u8().await.unwrap());
    }
    let status = String::from_utf8(answer[9..12].to_vec()).unwrap();
    (client, status)
}

async fn hears(client: &mut (impl AsyncRead + AsyncWrite + Unpin), says: &[u8]) {
    client.write_all(says).await.unwrap();
    client.flush().await.unwrap();
    let mut heard = vec![0; says.len()];
    tokio::time::timeout(TIME, client.read_exact(&mut heard))
        .await
        .expect("it is not stuck")
        .unwrap();
    assert_eq!(heard, says);
}

/// Nothing in the handler keeps anything: the connection does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_connection_keeps_the_charge_of_its_request() {
    const CLIENTS: usize = 50;
    for request_groups in [false, true] {
        let mut service = Service::start(Does::Echoes, request_groups).await;
        let mut clients = Vec::new();
        for head in [HEAD, b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n"] {
            for _ in 0..CLIENTS / 2 {
                let (mut client, status) = asks(&service, head, b"early").await;
                assert_eq!(status, if head == HEAD { "101" } else { "200" });
                let mut early = [0; 5];
                client.read_exact(&mut early).await.unwrap();
                assert_eq!(&early, b"early");
                assert_eq!(service.ended.recv().await, Some(true));
                clients.push(client);
            }
        }
        until_live(&service.acme, CLIENTS as u64 * OVERHEAD).await;
        assert_eq!(
            service.acme.children().len(),
            if request_groups { CLIENTS } else { 0 }
        );
        for client in &mut clients {
            hears(client, &vec![7; 200_000]).await;
        }
        assert_eq!(service.acme.live(), CLIENTS as u64 * OVERHEAD);
        // One that says that it is done, and the others are gone.
        let mut done = clients.pop().unwrap();
        done.shutdown().await.unwrap();
        assert_eq!(done.read(&mut [0]).await.unwrap(), 0);
        until_live(&service.acme, (CLIENTS as u64 - 1) * OVERHEAD).await;
        drop(clients);
        service.gives_back().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_http2_that_is_connected_keeps_it_too() {
    let mut service = Service::start(Does::Echoes, false).await;
    let stream = TcpStream::connect(service.address).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let mut streams = Vec::new();
    for _ in 0..3 {
        let connect = Request::connect("x:80")
            .body(Empty::<Bytes>::new())
            .unwrap();
        let answer = client.send_request(connect).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let mut stream = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
        assert_eq!(service.ended.recv().await, Some(true));
        hears(&mut stream, &vec![7; 30_000]).await;
        streams.push(stream);
    }
    until_live(&service.acme, 3 * OVERHEAD).await;
    drop(streams.pop());
    until_live(&service.acme, 2 * OVERHEAD).await;
    drop((streams, client));
    connection.abort();
    service.gives_back().await;
}

/// A connection that does not go on keeps nothing, though it is open: the handler's future fails as
/// it does without the layer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_that_is_none_keeps_nothing() {
    for does in [Does::Answers, Does::Forgets] {
        let mut service = Service::start(does, false).await;
        let (mut client, status) = asks(&service, HEAD, b"").await;
        service.gives_back().await;
        if does == Does::Answers {
            assert_eq!(status, "202");
            assert_eq!(service.ended.recv().await, Some(false));
            // The connection serves the next request.
            client.write_all(HEAD).await.unwrap();
            assert_eq!(client.read(&mut [0; 12]).await.unwrap(), 12);
            assert_eq!(service.ended.recv().await, Some(false));
        } else {
            assert_eq!(status, "101");
            assert_eq!(
                client.read(&mut [0]).await.unwrap(),
                0,
                "no one has the connection"
            );
        }
        service.gives_back().await;
    }
}

/// The type of the server's own connections is found inside, with what keeps the charge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_inside_is_found() {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let root = runtime.root();
    let tenant = root.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Incoming>| Some(tenant.clone()))
        .overhead(OVERHEAD as usize);
    let (sends, mut found) = mpsc::unbounded_channel();
    let service = layer.layer(service_fn(
        move |mut request: Request<RequestBody<Incoming>>| {
            let sends = sends.clone();
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let kept = upgrade
                    .await
                    .unwrap()
                    .downcast::<KeptConnection>()
                    .unwrap()
                    .io;
                let (upgraded, admitted) = kept.into_parts().unwrap();
                sends
                    .send((upgraded.downcast::<TokioIo<TcpStream>>().unwrap(), admitted))
                    .unwrap();
            });
            let upgraded = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
            let upgraded = upgraded
                .header("upgrade", "x")
                .header("connection", "upgrade");
            async move { Ok::<_, Infallible>(upgraded.body(Empty::<Bytes>::new()).unwrap()) }
        },
    ));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    client.write_all(&[HEAD, b"early"].concat()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let server = hyper::server::conn::http1::Builder::new();
    let served = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    served.with_upgrades().await.unwrap();
    let (parts, admitted) = found.recv().await.unwrap();
    assert_eq!(&parts.read_buf[..], b"early");
    drop(parts);
    assert_eq!((root.live(), admitted.reserved()), (OVERHEAD, OVERHEAD));
    drop(admitted);
    assert_eq!(root.live(), 0);
}
