//! Clients that declare a long body and send little of it: they hold up no tenant but their own,
//! and not for ever.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use memcg::{Group, Limit, Limits, Runtime};
use memcg_tower::{AdmissionFigures, AdmissionLayer, PromisedBytes, RefusalKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::rest::{TIME, until, until_adds_up, until_live};

const KIB: u64 = 1024;

/// A service of 1 MiB with three tenants.
struct Service {
    runtime: Runtime,
    tenants: Vec<Group>,
    figures: AdmissionFigures,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

/// The type that takes a setting of the layer.
type Layer = AdmissionLayer<Box<dyn Fn(&Request<Body>) -> Option<Group> + Send + Sync>>;

impl Service {
    async fn start(limits: Limits, set: impl FnOnce(Layer) -> Layer) -> Service {
        let runtime = Runtime::builder()
            .max(Limit::kib(1024))
            .audit(true)
            .build()
            .unwrap();
        let tenants = ["a", "a2", "b"].map(|name| {
            let limits = if name == "b" {
                Limits::new().max(Limit::kib(512))
            } else {
                limits
            };
            runtime.root().create(name, limits).unwrap()
        });
        let known = tenants.clone();
        let layer: Layer = AdmissionLayer::new(Box::new(move |request: &Request<Body>| {
            let tenant = request.headers().get("x-tenant")?.to_str().ok()?;
            known.iter().find(|group| group.name() == tenant).cloned()
        }) as Box<_>);
        let layer = set(layer
            .overhead(1 << 10)
            .response(1 << 10)
            .patience(Duration::from_millis(300))
            .answer(super::server::text_for_operators));
        let figures = layer.figures();
        let app = Router::new()
            .route(
                "/",
                post(|body: Bytes| async move { body.len().to_string() }),
            )
            .route("/small", get(|| async { "small" }))
            .layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = TowerToHyperService::new(app.clone());
                connections.spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    // A client that goes is an error of its connection.
                    server
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                        .ok();
                });
            }
        });
        Service {
            runtime,
            tenants: tenants.to_vec(),
            figures,
            address,
            _tasks: tasks,
        }
    }

    /// A client that has sent its head and `sends`.
    async fn declares(&self, tenant: &str, length: u64, sends: &[u8]) -> TcpStream {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "POST / HTTP/1.1\r\nhost: x\r\nx-tenant: {tenant}\r\ncontent-length: {length}\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(sends).await.unwrap();
        client
    }

    /// The status of a whole upload.
    async fn uploads(&self, tenant: &str, length: u64) -> String {
        let mut client = self
            .declares(tenant, length, &vec![1; length as usize])
            .await;
        status(&mut client).await
    }

    async fn promised(&self, bytes: [u64; 2]) {
        let promised =
            || [0, 1].map(|tenant: usize| PromisedBytes::to(&self.tenants[tenant]).bytes);
        until(
            || promised() == bytes,
            || format!("{:?} are promised, not {bytes:?}", promised()),
        )
        .await;
    }

    async fn gives_back(&self) {
        let root = self.runtime.root();
        until_live(&root, 0).await;
        let promised = || {
            self.tenants
                .iter()
                .map(|tenant| PromisedBytes::to(tenant).bytes)
                .sum::<u64>()
        };
        until(
            || promised() == 0,
            || format!("{} bytes are promised", promised()),
        )
        .await;
        until_adds_up(&self.runtime).await;
    }
}

/// The first line's status, once it is there.
async fn status(client: &mut TcpStream) -> String {
    let mut head = [0; 12];
    tokio::time::timeout(TIME, client.read_exact(&mut head))
        .await
        .expect("no request is stuck")
        .unwrap();
    String::from_utf8(head[9..].to_vec()).unwrap()
}

/// The bytes that silent clients promise, with and without a max of their tenants, are no memory of
/// the service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_holds_up_no_other_tenant() {
    let max = Limits::new().max(Limit::kib(512));
    for (limits, silent, window, promised) in [
        (Limits::new(), vec![("a", 1000)], None, [1000, 0]),
        (max, vec![("a", 500), ("a2", 500)], None, [500, 500]),
        (
            Limits::new(),
            vec![("a", 1000), ("a2", 1000)],
            None,
            [1000, 1000],
        ),
        (max, vec![("a", 500), ("a2", 500)], Some(64 << 10), [64, 64]),
        (
            Limits::new(),
            vec![("a", 9), ("a", 9), ("a", 9), ("a2", 1000)],
            None,
            [27, 1000],
        ),
    ] {
        let service = Service::start(limits, |layer| match window {
            Some(window) => layer.body_window(window),
            None => layer,
        });
        let service = service.await;
        let mut clients = Vec::new();
        for (tenant, kib) in &silent {
            clients.push(service.declares(tenant, kib * KIB, b"1").await);
        }
        // Each has sent a byte, which is charged.
        let came = [0, 1].map(|tenant: usize| {
            silent
                .iter()
                .filter(|(name, _)| *name == ["a", "a2"][tenant])
                .count()
        });
        service
            .promised([0, 1].map(|tenant: usize| promised[tenant] * KIB - came[tenant] as u64))
            .await;
        let held = service.runtime.root().live();
        assert_eq!(
            held,
            silent.len() as u64 * 2 * KIB + silent.len() as u64,
            "what they hold, and what has come"
        );
        for _ in 0..6 {
            assert_eq!(service.uploads("b", 100 * KIB).await, "200");
        }
        drop(clients);
        service.gives_back().await;
        assert!(
            RefusalKind::ALL
                .iter()
                .all(|kind| service.figures.refused(*kind) == 0),
            "{}",
            service.figures
        );
    }
}

/// It weighs on its own tenant, where the next one waits for it in line, and gets its room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_weighs_on_its_own_tenant() {
    let max = Limits::new().max(Limit::kib(512));
    let service = Service::start(max, |layer| layer).await;
    let silent = service.declares("a", 500 * KIB, b"").await;
    service.promised([500 * KIB, 0]).await;
    let mut refused = service.declares("a", 100 * KIB, &[1; 100 << 10]).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"wait longer") {
        assert!(
            refused.read_buf(&mut answer).await.unwrap() > 0,
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.contains("\r\nretry-after: "), "{answer}");
    let text = "/a refused 102 KiB for /a: short by 92 KiB, usage 2 KiB and 500 KiB of bodies on their way, of max 512 KiB";
    assert!(answer.contains(text), "{answer}");
    assert_eq!(service.figures.refused(RefusalKind::TenantFull), 1);
    assert_eq!(
        service.uploads("a2", 100 * KIB).await,
        "200",
        "another one does not wait for it"
    );
    // More than its tenant may ever have makes no promise.
    assert_eq!(service.uploads("a", 511 * KIB).await, "413");
    assert_eq!(service.figures.refused(RefusalKind::TooLarge), 1);
    drop(silent);
    service.gives_back().await;
}

/// Requests of a tenant wait in one line, in the order in which they came. Small ones pass the first,
/// until together they have taken as many bytes as it asks for: it is served in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_requests_pass_an_upload_that_waits() {
    let max = Limits::new().max(Limit::kib(512));
    let service = Service::start(max, |layer| layer.patience(TIME)).await;
    let silent = service.declares("a", 500 * KIB, b"").await;
    service.promised([500 * KIB, 0]).await;
    let mut upload = service.declares("a", 300 * KIB, &[]).await;
    let waiting = || PromisedBytes::to(&service.tenants[0]).waiting;
    until(|| waiting() == 1, || format!("{} wait", waiting())).await;
    let connect = async || TcpStream::connect(service.address).await.unwrap();
    let asks = b"GET /small HTTP/1.1\r\nhost: x\r\nx-tenant: a\r\n\r\n";
    // Each takes its overhead and its response, 2 KiB, and the upload asks for 302.
    for _ in 0..151 {
        let mut small = connect().await;
        small.write_all(asks).await.unwrap();
        assert_eq!(status(&mut small).await, "200");
    }
    let mut small = connect().await;
    assert_eq!((service.figures.waiting(), waiting()), (1, 1));
    small.write_all(asks).await.unwrap();
    until(|| waiting() == 2, || format!("{} wait", waiting())).await;
    assert_eq!(service.figures.waiting(), 2);
    // One of another tenant does not.
    assert_eq!(service.uploads("b", 300 * KIB).await, "200");
    drop(silent);
    assert_eq!(
        status(&mut small).await,
        "200",
        "it runs beside the one before it"
    );
    upload.write_all(&vec![1; 300 << 10]).await.unwrap();
    assert_eq!(status(&mut upload).await, "200");
    drop((upload, small));
    service.gives_back().await;
    let waits = service.figures.waits();
    assert_eq!(
        (
            waits.count,
            waits.buckets.iter().map(|(_, count)| count).sum::<u64>()
        ),
        (2, 2)
    );
    assert_eq!((service.figures.waiting(), service.figures.left()), (0, 0));
}

/// A body that brings nothing, and one that brings a byte from time to time, over each protocol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_makes_no_progress_is_408() {
    let short = |layer: Layer| {
        layer
            .body_timeout(Duration::from_millis(100))
            .least_rate(1000)
    };
    let service = Service::start(Limits::new(), short).await;
    for sends in [&b""[..], b"1", &[1; 100]] {
        let mut silent = service.declares("a", 1000 * KIB, sends).await;
        let mut answer = Vec::new();
        tokio::time::timeout(TIME, silent.read_to_end(&mut answer))
            .await
            .expect("it is closed")
            .unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        let text = format!(
            "\r\n\r\nthe body comes too slowly: {} B came in ",
            sends.len()
        );
        assert!(answer.contains(&text), "{answer}");
        service.gives_back().await;
    }
    assert_eq!(service.figures.refused(RefusalKind::TooSlow), 3);
    // A byte comes before each time is over, and the rate is too low.
    let mut slow = service.declares("a", 1000 * KIB, b"").await;
    let mut sent = 0;
    let answer = loop {
        sent += 1;
        tokio::select! {
            biased;
            answer = status(&mut slow) => break answer,
            () = tokio::time::sleep(Duration::from_millis(10)) => slow.write_all(b"1").await.unwrap(),
        }
    };
    assert_eq!(answer, "408");
    assert!(sent > 3, "{sent} bytes were sent meanwhile");
    // HTTP/2 has the same answer, and its connection goes on.
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Body>();
    let never = StreamBody::new(futures_util::stream::pending::<
        Result<Frame<Bytes>, std::convert::Infallible>,
    >());
    for body in [Body::new(never), Body::from("whole")] {
        let is_whole = hyper::body::Body::size_hint(&body).exact().is_some();
        let request = Request::post(format!("http://{}/", service.address))
            .header("x-tenant", "a")
            .body(body)
            .unwrap();
        let response = tokio::time::timeout(TIME, client.request(request))
            .await
            .expect("it ends")
            .unwrap();
        let status = if is_whole {
            StatusCode::OK
        } else {
            StatusCode::REQUEST_TIMEOUT
        };
        assert_eq!(response.status(), status);
        drop(response.into_body().collect().await);
    }
    service.gives_back().await;
    assert_eq!(service.figures.refused(RefusalKind::TooSlow), 5);
}

/// A body that comes above the least rate has all the time that it needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_makes_progress_does_not_end() {
    let time = Duration::from_secs(1);
    let service = Service::start(Limits::new(), |layer| {
        layer.body_timeout(time).least_rate(100)
    })
    .await;
    let mut slow = service.declares("a", 1000, b"").await;
    let begun = tokio::time::Instant::now();
    for _ in 0..10 {
        tokio::time::sleep(time / 5).await;
        slow.write_all(&[1; 100]).await.unwrap();
    }
    assert_eq!(
        status(&mut slow).await,
        "200",
        "though it took {:?}",
        begun.elapsed()
    );
    drop(slow);
    service.gives_back().await;
}

/// A refused client that stops in the middle of its body gets its answer, and its connection ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_body_that_makes_no_progress_is_answered() {
    let short = |layer: Layer| {
        layer
            .body_timeout(Duration::from_millis(100))
            .patience(Duration::ZERO)
    };
    let service = Service::start(Limits::new(), short).await;
    let held = service.tenants[1].force_charge(1023 << 10);
    let mut silent = service.declares("a", 10 * KIB, b"1").await;
    assert_eq!(status(&mut silent).await, "503");
    drop(held);
    service.gives_back().await;
}

/// A body whose tenant has room comes no further than the room above it, and goes on with what
/// others give back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_waits_for_room_above_its_tenant() {
    for goes_on in [true, false] {
        let patience = if goes_on {
            TIME
        } else {
            Duration::from_millis(50)
        };
        let service = Service::start(Limits::new(), |layer| layer.patience(patience)).await;
        let held = service.tenants[1].force_charge(600 << 10);
        let mut upload = service.declares("a", 700 * KIB, &[1; 500 << 10]).await;
        let root = service.runtime.root();
        if goes_on {
            until(|| root.waiting_count() == 1, || "it waits".to_owned()).await;
            drop(held);
            upload.write_all(&[1; 200 << 10]).await.unwrap();
            assert_eq!(status(&mut upload).await, "200");
        } else {
            assert_eq!(status(&mut upload).await, "503");
            assert_eq!(service.figures.refused(RefusalKind::AboveFull), 1);
            drop(held);
        }
        drop(upload);
        service.gives_back().await;
    }
}
