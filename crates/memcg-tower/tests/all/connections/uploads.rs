//! Uploads by clients that send and read all: hyper's and curl.

use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::server::{LARGE, MIB, Server};
use crate::rest::TIME;

/// Uploads of globex, one after the other, until those of acme have ended. None is refused.
async fn with_another_tenant<T>(
    server: &Server,
    client: &Client<HttpConnector, Full<Bytes>>,
    acme: impl Future<Output = T>,
) -> T {
    let mut acme = pin!(acme);
    let mut beside = 0;
    loop {
        tokio::select! {
            ended = &mut acme => {
                assert!(beside > 0, "globex was served while acme was");
                return ended;
            }
            answered = timeout(TIME, client.request(server.request("globex", MIB))) => {
                let answered = answered.expect("no request is stuck");
                assert_eq!(answered.unwrap().status(), StatusCode::OK, "no other tenant is refused");
                beside += usize::from(server.acme.live() > 0);
            }
        }
    }
}

/// Some uploads at a time by hyper's client, and another tenant's beside them. Returns how many
/// were admitted.
async fn upload_by_hyper(server: &Server, uploads: usize, http2: bool) -> usize {
    let client = Client::builder(TokioExecutor::new())
        .http2_only(http2)
        .build_http::<Full<Bytes>>();
    let mut tasks = JoinSet::new();
    let admitted = Arc::new(AtomicUsize::new(0));
    let acme = async {
        for _ in 0..uploads {
            if tasks.len() >= 40 {
                tasks.join_next().await.unwrap().unwrap();
            }
            let client = client.clone();
            let admitted = Arc::clone(&admitted);
            let upload = server.request("acme", MIB);
            tasks.spawn(async move {
                let response = timeout(TIME, client.request(upload))
                    .await
                    .expect("no request is stuck")
                    .unwrap();
                let status = response.status();
                let retry = response.headers().get("retry-after").cloned();
                let text = response.into_body().collect().await.unwrap().to_bytes();
                if status == StatusCode::OK {
                    assert_eq!(text, "1048576");
                    admitted.fetch_add(1, Ordering::Relaxed);
                } else {
                    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text:?}");
                    assert!(
                        retry.is_some() && text.starts_with(b"/acme refused"),
                        "{text:?}"
                    );
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    };
    with_another_tenant(server, &client, acme).await;
    admitted.load(Ordering::Relaxed)
}

/// Uploads by one process of curl, 40 at a time, each on a connection of its own, and another
/// tenant's beside them. Returns how many were admitted. (Over HTTP/2 curl 7.88 fails to upload to
/// servers without the layer, too.)
async fn upload_by_curl(server: &Server, uploads: usize) -> usize {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("memcg-tower-{}-{number}", std::process::id()));
    std::fs::write(&file, vec![1_u8; MIB]).unwrap();
    let url = format!("http://{}/?number=[1-{uploads}]", server.address);
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--max-time",
        "60",
        "--http1.1",
        "--parallel",
        "--parallel-max",
        "40",
    ])
    .args([
        "--header",
        "x-tenant: acme",
        "--header",
        "expect:",
        "--write-out",
        "\n%{http_code}\n",
    ])
    .args(["--data-binary", &format!("@{}", file.display()), &url])
    .stdin(Stdio::null());
    let client = Client::builder(TokioExecutor::new()).build_http();
    let curl = with_another_tenant(server, &client, curl.output())
        .await
        .expect("curl is installed");
    std::fs::remove_file(&file).unwrap();
    assert!(
        curl.status.success(),
        "{:?}: {}",
        curl.status,
        String::from_utf8_lossy(&curl.stderr)
    );
    let said = String::from_utf8(curl.stdout).unwrap();
    let count = |status: &str| said.lines().filter(|line| *line == status).count();
    assert_eq!(count("200") + count("429"), uploads, "{said}");
    count("200")
}

/// A large answer that does not fit, over each protocol. Its client reads a status, and no 200 that
/// ends early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_does_not_fit_has_a_status() {
    for (patience, http2) in [(Duration::from_millis(20), false), (Duration::ZERO, true)] {
        let server = Server::start(patience).await;
        let client = Client::builder(TokioExecutor::new())
            .http2_only(http2)
            .build_http::<Full<Bytes>>();
        let root = server.runtime.root();
        for (acme, all, status) in [
            (7 * MIB, 14 * MIB, StatusCode::TOO_MANY_REQUESTS),
            (7 * MIB, 7 * MIB, StatusCode::TOO_MANY_REQUESTS),
            (MIB, 14 * MIB, StatusCode::PAYLOAD_TOO_LARGE),
            (14 * MIB, 7 * MIB, StatusCode::SERVICE_UNAVAILABLE),
            (7 * MIB, 14 * MIB, StatusCode::OK),
        ] {
            server.acme.set_max(acme).unwrap();
            let is_full = [
                StatusCode::TOO_MANY_REQUESTS,
                StatusCode::SERVICE_UNAVAILABLE,
            ]
            .contains(&status);
            let held = is_full.then(|| server.acme.force_charge(6 * MIB));
            root.set_max(all).unwrap();
            let mut asks = server.request("acme", 10);
            *asks.method_mut() = http::Method::GET;
            *asks.uri_mut() = format!("http://{}/large", server.address).parse().unwrap();
            let response = timeout(TIME, client.request(asks))
                .await
                .expect("no request is stuck")
                .unwrap();
            let is = response.status();
            let retries = response.headers().contains_key("retry-after");
            let body = response
                .into_body()
                .collect()
                .await
                .expect("the body has its end")
                .to_bytes();
            assert_eq!(
                (is, retries),
                (status, is_full),
                "{:?}",
                &body[..body.len().min(200)]
            );
            assert_eq!(status == StatusCode::OK, body.len() == LARGE);
            drop(held);
            server.gives_back().await;
        }
        server.end().await;
    }
}

/// 1,000 uploads, of which six fit at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_uploads_wait_for_their_turn() {
    let server = Server::start(TIME).await;
    assert_eq!(upload_by_hyper(&server, 300, true).await, 300);
    assert_eq!(server.connections(), 1, "all requests share it");
    // After HTTP/2: hyper's client finishes a connection over HTTP/1.1 that no request waits for
    // any more.
    assert_eq!(upload_by_hyper(&server, 300, false).await, 300);
    let connections = server.connections() - 1;
    assert!(
        (2..300).contains(&connections),
        "{connections} for more than 300 requests: they are kept alive"
    );
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
