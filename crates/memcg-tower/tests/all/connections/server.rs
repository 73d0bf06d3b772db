//! A server of two tenants, and a thread that looks at their usage while it serves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use memcg::{Group, Limits, Runtime};
use memcg_tower::{AdmissionLayer, PromisedBytes, Refusal};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use crate::rest::{until, until_adds_up, until_live};

pub(crate) const MIB: usize = 1 << 20;
/// Six uploads fit.
pub(crate) const MAX: usize = 7 * MIB;

/// The length of the answer to `/large`.
pub(crate) const LARGE: usize = 2 * MIB;
/// The part of it that the system may take: it is in the service as long as its reader stops.
const SEND_BUFFER: u32 = 256 << 10;
/// A stream of HTTP/2 takes so much of its body from a client before a handler reads it.
pub(crate) const WINDOW: u32 = 64 << 10;
/// More streams wait at the client.
pub(crate) const STREAMS: u32 = 64;

pub(crate) struct Server {
    pub(crate) runtime: Runtime,
    pub(crate) acme: Group,
    globex: Group,
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
    ends: Arc<AtomicBool>,
    sampler: JoinHandle<(u64, u64)>,
}

/// What a service answers whose clients are its operators.
pub(crate) fn text_for_operators(refusal: &Refusal) -> Response<Bytes> {
    refusal.to_response().map(|_| refusal.to_string().into())
}

/// The number of bytes that came, after a little work with all of them in memory.
async fn upload(body: Bytes) -> String {
    tokio::time::sleep(Duration::from_millis(1)).await;
    body.len().to_string()
}

impl Server {
    pub(crate) async fn start(patience: Duration) -> Server {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let [acme, globex] = ["acme", "globex"]
            .map(|name| runtime.root().create(name, Limits::new().max(MAX)).unwrap());
        let tenants = [acme.clone(), globex.clone()];
        let layer = AdmissionLayer::new(move |request: &Request<Body>| {
            let tenant = request.headers().get("x-tenant")?.to_str().ok()?;
            tenants.iter().find(|group| group.name() == tenant).cloned()
        });
        let app = Router::new()
            .route(
                "/",
                post(upload).layer(axum::extract::DefaultBodyLimit::disable()),
            )
            .route("/large", get(|| async { vec![7_u8; LARGE] }))
            .route("/never", get(std::future::pending::<()>))
            .layer(
                layer
                    .patience(patience)
                    .request_groups(Limits::new())
                    .answer(text_for_operators),
            );
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(SEND_BUFFER).unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let listener = socket.listen(1024).unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                accepted.fetch_add(1, Ordering::Relaxed);
                let service = TowerToHyperService::new(app.clone());
                connections.spawn(async move {
                    let mut server = auto::Builder::new(TokioExecutor::new());
                    // So that requests that wait, unread, leave the connection's window to those
                    // that run.
                    let mut http2 = server.http2();
                    http2
                        .max_concurrent_streams(STREAMS)
                        .initial_stream_window_size(WINDOW);
                    http2.initial_connection_window_size(STREAMS * WINDOW);
                    // A client that goes is an error of its connection.
                    server
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                        .ok();
                });
            }
        });
        let ends = Arc::new(AtomicBool::new(false));
        let sampler = std::thread::spawn({
            let ends = Arc::clone(&ends);
            let groups = [acme.clone(), globex.clone()];
            move || {
                let mut samples = 0;
                let mut most = 0;
                loop {
                    for group in &groups {
                        let usage = group.usage();
                        assert!(usage <= MAX as u64, "{usage} of {}", group.path());
                        most = most.max(usage);
                    }
                    samples += 1;
                    if ends.load(Ordering::Relaxed) {
                        return (samples, most);
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        Server {
            runtime,
            acme,
            globex,
            address,
            connections,
            tasks,
            ends,
            sampler,
        }
    }

    /// The number of connections that it has accepted.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Waits until so many requests of acme were admitted, and so many are in line.
    pub(crate) async fn has(&self, running: usize, waiting: usize) {
        let has = || {
            let holds = self
                .acme
                .children()
                .iter()
                .map(|request| request.live() > 0)
                .collect::<Vec<_>>();
            let running = holds.iter().filter(|&&holds| holds).count();
            (
                running,
                self.acme.waiting_count() + PromisedBytes::to(&self.acme).waiting,
                holds.len(),
            )
        };
        let right = (running, waiting, running + waiting);
        until(|| has() == right, || format!("{:?}, not {right:?}", has())).await;
    }

    /// Waits until all requests have ended: everything is given back.
    pub(crate) async fn gives_back(&self) {
        let holds = || {
            [&self.acme, &self.globex]
                .map(|group| (group.live(), group.waiting_count(), group.children().len()))
        };
        until(
            || holds() == [(0, 0, 0); 2],
            || format!("{:?} are held", holds()),
        )
        .await;
        until_live(&self.runtime.root(), 0).await;
    }

    /// All requests have ended: everything is given back, though connections are open.
    pub(crate) async fn end(mut self) -> u64 {
        self.gives_back().await;
        // A request whose client has gone may begin even now, and ends with its connection.
        self.tasks.shutdown().await;
        self.gives_back().await;
        until_adds_up(&self.runtime).await;
        self.ends.store(true, Ordering::Relaxed);
        let (samples, most) = self.sampler.join().unwrap();
        assert!(samples > 0);
        most
    }

    pub(crate) fn request(&self, tenant: &str, bytes: usize) -> Request<Full<Bytes>> {
        let body = Full::new(Bytes::from(vec![1; bytes]));
        Request::post(format!("http://{}/", self.address))
            .header("x-tenant", tenant)
            .body(body)
            .unwrap()
    }
}
