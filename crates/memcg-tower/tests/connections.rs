//! Uploads over real connections: hyper's client and curl, HTTP/1.1 with keep-alive and HTTP/2, clients that stop or go in
//! the middle. No sample of usage is above a max, no request is stuck, no other tenant is refused, and all is given back.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use memcg::{Group, Limits, Runtime};
use memcg_tower::AdmissionLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;

const MIB: usize = 1 << 20;
/// Six uploads fit.
const MAX: usize = 7 * MIB;
const TIME: Duration = Duration::from_secs(60);

struct Server {
    runtime: Runtime,
    acme: Group,
    globex: Group,
    address: SocketAddr,
    tasks: JoinSet<()>,
    ends: Arc<AtomicBool>,
    sampler: JoinHandle<(u64, u64)>,
}

/// The number of bytes that came, after a little work with all of them in memory.
async fn upload(body: Bytes) -> String {
    tokio::time::sleep(Duration::from_millis(1)).await;
    body.len().to_string()
}

impl Server {
    async fn start(patience: Duration) -> Server {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let [acme, globex] =
            ["acme", "globex"].map(|name| runtime.root().create(name, Limits::new().max(MAX)).unwrap());
        let tenants = [acme.clone(), globex.clone()];
        let layer = AdmissionLayer::new(move |request: &Request<Body>| {
            let tenant = request.headers().get("x-tenant")?.to_str().ok()?;
            tenants.iter().find(|group| group.name() == tenant).cloned()
        });
        let app = Router::new()
            .route("/", post(upload).layer(axum::extract::DefaultBodyLimit::disable()))
            .route("/large", get(|| async { vec![7_u8; 2 * MIB] }))
            .layer(layer.patience(patience).request_groups(Limits::new()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = TowerToHyperService::new(app.clone());
                connections.spawn(async move {
                    let mut server = auto::Builder::new(TokioExecutor::new());
                    // So that requests that wait, unread, leave the connection's window to those that run.
                    let mut http2 = server.http2();
                    http2.max_concurrent_streams(64).initial_stream_window_size(64 << 10);
                    http2.initial_connection_window_size(64 * (64 << 10));
                    // A client that goes is an error of its connection.
                    server.serve_connection(TokioIo::new(stream), service).await.ok();
                });
            }
        });
        let ends = Arc::new(AtomicBool::new(false));
        let sampler = std::thread::spawn({
            let (ends, groups) = (Arc::clone(&ends), [acme.clone(), globex.clone()]);
            move || {
                let (mut samples, mut most) = (0, 0);
                while !ends.load(Ordering::Relaxed) {
                    for group in &groups {
                        let usage = group.usage();
                        assert!(usage <= MAX as u64, "{usage} of {}", group.path());
                        most = most.max(usage);
                    }
                    samples += 1;
                    std::thread::sleep(Duration::from_micros(50));
                }
                (samples, most)
            }
        });
        Server { runtime, acme, globex, address, tasks, ends, sampler }
    }

    /// All requests have ended: everything is given back, though connections are open.
    async fn end(mut self) -> u64 {
        let until = std::time::Instant::now() + TIME;
        while self.runtime.root().live() > 0 {
            assert!(std::time::Instant::now() < until, "{} bytes are held", self.runtime.root().live());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for group in [&self.acme, &self.globex] {
            assert_eq!((group.live(), group.waiting_count(), group.children().len()), (0, 0, 0));
        }
        self.ends.store(true, Ordering::Relaxed);
        let (samples, most) = self.sampler.join().unwrap();
        assert!(samples > 0);
        self.tasks.shutdown().await;
        let verdict = self.runtime.verify().to_string();
        assert!(verdict.ends_with("all add up"), "{verdict}");
        most
    }

    fn request(&self, tenant: &str, bytes: usize) -> Request<Full<Bytes>> {
        let body = Full::new(Bytes::from(vec![1; bytes]));
        Request::post(format!("http://{}/", self.address)).header("x-tenant", tenant).body(body).unwrap()
    }
}

/// Some uploads at a time by hyper's client, and one of globex beside each. Returns how many were admitted.
async fn upload_by_hyper(server: &Server, uploads: usize, http2: bool) -> usize {
    let client = Client::builder(TokioExecutor::new()).http2_only(http2).build_http::<Full<Bytes>>();
    let (mut tasks, admitted) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for number in 0..uploads {
        if tasks.len() >= 40 {
            tasks.join_next().await.unwrap().unwrap();
        }
        let (client, admitted) = (client.clone(), Arc::clone(&admitted));
        let requests = [server.request("acme", MIB), server.request("globex", 1000)];
        tasks.spawn(async move {
            let [upload, beside] = requests;
            if number % 4 == 0 {
                let response = client.request(beside).await.unwrap();
                assert_eq!(response.status(), StatusCode::OK, "no other tenant is refused");
            }
            let response =
                tokio::time::timeout(TIME, client.request(upload)).await.expect("no request is stuck").unwrap();
            let (status, retry) = (response.status(), response.headers().get("retry-after").cloned());
            let text = response.into_body().collect().await.unwrap().to_bytes();
            if status == StatusCode::OK {
                assert_eq!(text, "1048576");
                admitted.fetch_add(1, Ordering::Relaxed);
            } else {
                assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text:?}");
                assert!(retry.is_some() && text.starts_with(b"/acme refused"), "{text:?}");
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    admitted.load(Ordering::Relaxed)
}

/// Uploads by one process of curl, 40 at a time, each on a connection of its own. Returns how many were admitted. (Over
/// HTTP/2 curl 7.88 fails to upload to servers without the layer, too.)
async fn upload_by_curl(server: &Server, uploads: usize) -> usize {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("memcg-tower-{}-{number}", std::process::id()));
    std::fs::write(&file, vec![1_u8; MIB]).unwrap();
    let url = format!("http://{}/?number=[1-{uploads}]", server.address);
    let curl = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60", "--http1.1", "--parallel", "--parallel-max", "40"])
        .args(["--header", "x-tenant: acme", "--header", "expect:", "--write-out", "\n%{http_code}\n"])
        .args(["--data-binary", &format!("@{}", file.display()), &url])
        .stdin(Stdio::null())
        .output()
        .await
        .expect("curl is installed");
    std::fs::remove_file(&file).unwrap();
    assert!(curl.status.success(), "{:?}: {}", curl.status, String::from_utf8_lossy(&curl.stderr));
    let said = String::from_utf8(curl.stdout).unwrap();
    let count = |status: &str| said.lines().filter(|line| *line == status).count();
    assert_eq!(count("200") + count("429"), uploads, "{said}");
    count("200")
}

/// 1,000 uploads, of which six fit at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_uploads_wait_for_their_turn() {
    let server = Server::start(TIME).await;
    assert_eq!(upload_by_hyper(&server, 300, false).await, 300);
    assert_eq!(upload_by_hyper(&server, 300, true).await, 300);
    assert_eq!(upload_by_curl(&server, 400).await, 400);
    assert!(server.end().await > 6 * MIB as u64, "the tenant was full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn uploads_without_patience_are_shed() {
    let server = Server::start(Duration::ZERO).await;
    let admitted = upload_by_hyper(&server, 200, false).await;
    assert!((1..200).contains(&admitted), "{admitted} of 200");
    assert!(upload_by_curl(&server, 100).await > 0);
    server.end().await;
}

fn head(length: usize) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nhost: a\r\nx-tenant: acme\r\ncontent-length: {length}\r\n\r\n").into_bytes()
}

/// Clients that go after each number of bytes sent, and after each number of bytes received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_leaves_nothing() {
    let server = Server::start(TIME).await;
    let mut request = head(3000);
    request.extend(vec![1; 3000]);
    for sent in (0..200).chain((200..request.len()).step_by(97)) {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(&request[..sent]).await.unwrap();
        stream.flush().await.unwrap();
        if sent % 3 == 0 {
            // It has been read by then, mostly.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    for received in (1..200).step_by(7).chain((1000..2 * MIB).step_by(200_000)) {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\nx-tenant: acme\r\n\r\n").await.unwrap();
        stream.read_exact(&mut vec![0; received]).await.unwrap();
    }
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    drop(stream);
    server.end().await;
}

/// Half-sent bodies and slow readers hold the bytes of their tenant, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_stop_hold_only_their_own_tenant() {
    let server = Server::start(Duration::from_millis(50)).await;
    let mut stopped = Vec::new();
    for _ in 0..6 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(&head(MIB)).await.unwrap();
        stream.write_all(&[1; 1000]).await.unwrap();
        stopped.push(stream);
    }
    while server.acme.live() < 6 * MIB as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let shed = client.request(server.request("acme", MIB)).await.unwrap();
    assert_eq!(shed.status(), StatusCode::TOO_MANY_REQUESTS);
    for _ in 0..20 {
        assert_eq!(client.request(server.request("globex", MIB)).await.unwrap().status(), StatusCode::OK);
    }
    drop(stopped);
    // A slow reader of a response that has been read from the handler holds nothing of the request any more.
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(&head(10)).await.unwrap();
    slow.write_all(&[1; 10]).await.unwrap();
    while server.acme.live() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.end().await;
}
