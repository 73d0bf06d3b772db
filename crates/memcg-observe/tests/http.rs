//! The router, behind a real server: what it answers, and what it does not.
#![cfg(feature = "axum")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use axum::Router;
use memcg::{Bytes, Limits, Runtime};
use memcg_observe::{CONTENT_TYPE, Exposition, TEXT_CONTENT_TYPE};
use openmetrics_parser::openmetrics::parse_openmetrics;
use openmetrics_parser::prometheus::parse_prometheus;
use tokio::net::TcpListener;

const KIB: u64 = 1 << 10;

/// Serves `runtime` while `work` runs.
fn served(runtime: &Runtime, work: impl FnOnce(SocketAddr)) {
    let workers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_io()
        .build()
        .expect("threads");
    let listener = workers
        .block_on(TcpListener::bind("127.0.0.1:0"))
        .expect("a free port");
    let address = listener.local_addr().expect("an address");
    let app: Router = Router::new().merge(Exposition::new(runtime).depth(1).top(2).router());
    workers.spawn(async move { axum::serve(listener, app).await });
    work(address);
    workers.shutdown_background();
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

fn ask(address: SocketAddr, method: &str, path: &str) -> Answer {
    ask_with(address, method, path, "")
}

/// Asks with these lines in the head, too.
fn ask_with(address: SocketAddr, method: &str, path: &str, more: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a time");
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{more}\r\n"
    )
    .expect("the server reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Answer {
        status: status.expect("a status"),
        head: head.to_ascii_lowercase(),
        body: body.to_string(),
    }
}

#[test]
fn files_and_metrics() {
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting");
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(64 << 10))
        .expect("a free name");
    let odd = acme.create("a b%", Limits::new()).expect("a free name");
    let held = odd.force_charge(Bytes(3 * KIB));
    served(&runtime, |address| {
        for (path, body) in [
            ("/memcg/memory.current", "3072\n"),
            ("/memcg/acme/memory.max", "65536\n"),
            ("/memcg/acme/memory.high", "max\n"),
            ("/memcg/acme/a%20b%25/memory.current", "3072\n"),
        ] {
            let answer = ask(address, "GET", path);
            assert_eq!((answer.status, answer.body.as_str()), (200, body), "{path}");
            assert!(
                answer
                    .head
                    .contains("content-type: text/plain; charset=utf-8"),
                "{}",
                answer.head
            );
        }
        let metrics = ask(address, "GET", "/metrics");
        assert!(
            metrics.status == 200
                && metrics
                    .head
                    .contains(&format!("content-type: {CONTENT_TYPE}"))
        );
        parse_openmetrics(&metrics.body)
            .unwrap_or_else(|fault| panic!("{fault}: {}", metrics.body));
        assert!(
            metrics
                .body
                .contains("memcg_usage_bytes{group=\"/acme\",depth=\"1\"} 3072\n")
        );

        for (path, body) in [
            ("/memcg/nobody/memory.max", "no group /nobody\n"),
            (
                "/memcg/acme/memory.limit",
                "/acme has no file \"memory.limit\"\n",
            ),
            ("/memcg/acme//memory.max", "no group /acme/\n"),
            ("/memcg/..%2f/memory.max", "no group /../\n"),
        ] {
            let answer = ask(address, "GET", path);
            assert_eq!((answer.status, answer.body.as_str()), (404, body), "{path}");
        }
        assert_eq!(ask(address, "GET", "/memcg").status, 404);
        for method in ["PUT", "POST", "DELETE", "PATCH"] {
            assert_eq!(
                ask(address, method, "/memcg/acme/memory.max").status,
                405,
                "{method}: it changes nothing"
            );
        }
        assert_eq!(acme.max(), 64 << 10);
        let head = ask(address, "HEAD", "/metrics");
        assert_eq!((head.status, head.body.as_str()), (200, ""));
    });
    drop(held);
}

/// A client that takes plain text alone gets that, in the format that Prometheus has had before.
#[test]
fn plain_text_where_only_that_is_accepted() {
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting");
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(64 << 10))
        .expect("a free name");
    let held = acme.force_charge(Bytes(3 * KIB));
    served(&runtime, |address| {
        let of = |accept: &str| ask_with(address, "GET", "/metrics", accept);
        let plain = of("Accept: text/plain\r\n");
        assert!(
            plain.status == 200
                && plain
                    .head
                    .contains(&format!("content-type: {TEXT_CONTENT_TYPE}")),
            "{}",
            plain.head
        );
        let families = parse_prometheus(&plain.body)
            .unwrap_or_else(|fault| panic!("{fault}: {}", plain.body))
            .families;
        assert!(
            families.contains_key("memcg_usage_bytes")
                && families.contains_key("memcg_refused_charges_total")
        );
        assert!(!plain.body.contains("# EOF") && !plain.body.contains("# UNIT"));
        let whole = of("");
        // All samples are in both.
        let samples = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples(&plain.body), samples(&whole.body));
        for accept in [
            "",
            "Accept: */*\r\n",
            "Accept: application/openmetrics-text; version=1.0.0\r\nAccept: text/plain\r\n",
        ] {
            let answer = of(accept);
            assert!(
                answer
                    .head
                    .contains(&format!("content-type: {CONTENT_TYPE}")),
                "{accept}: {}",
                answer.head
            );
            assert!(answer.body.ends_with("# EOF\n"), "{accept}");
        }
    });
    drop(held);
}

/// Requests wait for each other, and a client that goes while it waits holds up no other.
#[test]
fn many_clients_at_once() {
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("no odd setting");
    let groups: Vec<_> = (0..200_u64)
        .map(|number| runtime.root().create(number, Limits::new()))
        .collect();
    assert!(groups.iter().all(Result::is_ok));
    served(&runtime, |address| {
        let gone: Vec<TcpStream> = (0..50)
            .map(|_| {
                let mut stream = TcpStream::connect(address).expect("the server listens");
                stream
                    .write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
                    .expect("the server reads");
                stream
            })
            .collect();
        drop(gone);
        let together = Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    together.wait();
                    for _ in 0..5 {
                        assert!(ask(address, "GET", "/metrics").body.ends_with("# EOF\n"));
                    }
                });
            }
        });
    });
}

/// Ready, until the group is as short of memory as the service says; and no request for figures
/// holds the answer up.
#[test]
fn ready_by_the_pressure_level() {
    let runtime = Runtime::builder().max(100).build().expect("no odd setting");
    let root = runtime.root();
    served(&runtime, |address| {
        let is_ready = || {
            let answer = ask(address, "GET", "/readyz");
            (answer.status, answer.body)
        };
        assert_eq!(is_ready(), (200, "normal\n".to_string()), "no thresholds");
        root.set_limits(Limits::new().pressure_levels(50, 90))
            .expect("limits");
        let mut held = root.charge(60).expect("room");
        assert_eq!(is_ready(), (200, "elevated\n".to_string()));
        held.grow(30).expect("room");
        assert_eq!(is_ready(), (503, "critical\n".to_string()));
        let metrics = ask(address, "GET", "/metrics").body;
        assert!(
            metrics.contains("memcg_pressure_level{group=\"/\",depth=\"0\"} 2\n"),
            "{metrics}"
        );
        drop(held);
        assert_eq!(is_ready(), (200, "normal\n".to_string()));
    });
}
