//! Classifiers that say it later, requests with weights of their own, and the figures of all that
//! was refused.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use memcg::{Group, Limits, Runtime};
use memcg_tower::{
    AdmissionFigures, AdmissionLayer, Classification, Refusal, RefusalKind, RequestWeight,
};
use tokio::sync::{Notify, watch};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::*;

/// A layer that asks, and is told once the test says so.
fn asks_later(
    scene: &Scene,
    told: &watch::Receiver<bool>,
) -> AdmissionLayer<impl Fn(&Request<Body>) -> Classification + use<>> {
    let tenants = [scene.acme.clone(), scene.globex.clone()];
    let told = told.clone();
    let classify = move |request: &Request<Body>| {
        let name = request.uri().path().trim_start_matches('/').to_owned();
        let tenant = tenants
            .iter()
            .find(|group| group.name() == name.as_str())
            .cloned();
        let mut told = told.clone();
        Classification::later(async move {
            told.wait_for(|told| *told).await.unwrap();
            match name.as_str() {
                "health" => Ok(None),
                "again" => Err(Refusal::new(StatusCode::UNAUTHORIZED, "asked twice")),
                _ => tenant
                    .map(Some)
                    .ok_or_else(|| Refusal::new(StatusCode::FORBIDDEN, "no such tenant")),
            }
        })
    };
    AdmissionLayer::new(classify)
        .overhead(KIB)
        .response(2 * KIB)
}

#[tokio::test]
async fn a_classifier_may_say_it_later() {
    for patience in [Duration::ZERO, Duration::from_secs(60)] {
        let scene = Scene::new();
        let (tell, told) = watch::channel(false);
        let handler = service_fn(|request: Request<InBody>| async move {
            let group = Group::current().map_or_else(|| "none".to_owned(), |group| group.path());
            let read = request
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .len();
            ok(format!("{group} {read}"))
        });
        // It has no permit while it asks.
        let layer = asks_later(&scene, &told).patience(patience);
        let figures = layer.figures();
        let mut service = layer.layer(ConcurrencyLimitLayer::new(1).layer(handler));
        let mut asking = Vec::new();
        for tenant in ["acme", "globex", "health", "other"] {
            let mut asks = Box::pin(service.ready().await.unwrap().call(sized(tenant, 20 * KIB)));
            assert!(asks.as_mut().now_or_never().is_none());
            asking.push(asks);
        }
        assert_eq!(scene.runtime.root().live(), 0, "nor bytes");
        let mut gone = Box::pin(service.ready().await.unwrap().call(sized("acme", 10)));
        assert!(gone.as_mut().now_or_never().is_none());
        drop(gone);
        tell.send(true).unwrap();
        let mut said = Vec::new();
        for asks in asking {
            said.push(text(asks.await.unwrap()).await);
        }
        let right = [
            (200, "/acme 20480"),
            (200, "/globex 20480"),
            (200, "none 20480"),
            (403, "no such tenant"),
        ];
        assert_eq!(said, right.map(|(status, text)| (status, text.to_owned())));
        assert_eq!(figures.refused(RefusalKind::Classifier), 1);
        // One that does not fit is refused, or waits.
        let held = scene.acme.force_charge(90 * KIB);
        let mut full = Box::pin(service.ready().await.unwrap().call(sized("acme", 20 * KIB)));
        let refused = full.as_mut().now_or_never();
        assert_eq!(
            refused.map(|response| response.unwrap().status().as_u16()),
            patience.is_zero().then_some(429)
        );
        drop(held);
        if !patience.is_zero() {
            assert_eq!(text(full.await.unwrap()).await.0, 200);
        }
        scene.assert_given_back();
    }
}

#[tokio::test]
async fn a_classifier_may_ask_twice() {
    let scene = Scene::new();
    let acme = scene.acme.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Body>| {
        let acme = acme.clone();
        Classification::later(async move {
            Classification::later(async move { RequestWeight::new(acme).overhead(5000) })
        })
    });
    let acme = scene.acme.clone();
    let service = layer
        .response(0)
        .layer(service_fn(move |_: Request<InBody>| {
            let held = acme.live().to_string();
            async { ok(held) }
        }));
    assert_eq!(
        text(service.oneshot(request("acme", "")).await.unwrap()).await,
        (200, "5000".to_owned())
    );
    scene.assert_given_back();
}

#[tokio::test]
async fn a_request_may_have_a_weight_of_its_own() {
    let scene = Scene::new();
    let acme = scene.acme.clone();
    let layer = AdmissionLayer::new(move |request: &Request<Body>| {
        let weighed = RequestWeight::new(acme.clone());
        match request.uri().path() {
            "/report" => weighed.overhead(50 * KIB).response(10 * KIB),
            "/stream" => weighed.unknown_body(20 * KIB),
            "/proxy" => weighed.body_window(9 * KIB),
            _ => weighed,
        }
    });
    let layer = layer
        .overhead(KIB)
        .response(2 * KIB)
        .unknown_body(10 * KIB)
        .patience(Duration::ZERO);
    let acme = scene.acme.clone();
    let service = layer.layer(service_fn(move |request: Request<InBody>| {
        let acme = acme.clone();
        async move {
            let before = (acme.live(), memcg_tower::PromisedBytes::to(&acme).bytes);
            let read = request
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .len();
            ok(format!("{before:?} {read} {}", acme.live()))
        }
    }));
    for (path, known, is) in [
        ("report", true, "(61440, 30720) 30720 92160"),
        ("stream", false, "(3072, 20480) 30720 33792"),
        ("proxy", true, "(3072, 9216) 30720 12288"),
        ("proxy", false, "(3072, 9216) 30720 12288"),
        ("other", false, "(3072, 10240) 30720 33792"),
        ("other", true, "(3072, 30720) 30720 33792"),
    ] {
        let asks = if known {
            sized(path, 30 * KIB)
        } else {
            let (frames, body) = unsized_body();
            frames.send(Bytes::from(vec![1; 30 * KIB])).unwrap();
            request(path, body)
        };
        assert_eq!(
            text(service.clone().oneshot(asks).await.unwrap()).await.1,
            is,
            "{path}, {known}"
        );
        scene.assert_given_back();
    }
}

/// The kinds whose figures have moved, and by how much, since `before`.
fn moved(
    figures: &AdmissionFigures,
    before: &mut [u64; RefusalKind::ALL.len()],
) -> Vec<(RefusalKind, u64)> {
    let now = RefusalKind::ALL.map(|kind| figures.refused(kind));
    let moved = RefusalKind::ALL
        .into_iter()
        .zip(now.iter().zip(*before))
        .map(|(kind, (now, before))| (kind, now - before));
    let moved = moved.filter(|(_, more)| *more > 0).collect();
    *before = now;
    moved
}

#[tokio::test]
async fn each_refusal_moves_its_figure() {
    let scene = Scene::new();
    let layer = scene.layer().body_timeout(Duration::from_millis(20));
    let figures = layer.figures();
    let mut before = [0; RefusalKind::ALL.len()];
    let mut is = async |asks: Request<Body>, status: u16, kind: RefusalKind| {
        let service = layer
            .clone()
            .layer(service_fn(|request: Request<InBody>| async {
                let long = request
                    .uri()
                    .query()
                    .and_then(|long| long.parse().ok())
                    .unwrap_or(0);
                let is_read = request.into_body().collect().await.is_ok();
                ok(if is_read { vec![7; long] } else { vec![] })
            }));
        let response = service.oneshot(asks).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{kind:?}");
        assert_eq!(moved(&figures, &mut before), [(kind, 1)], "{status}");
    };
    is(sized("acme", 100 * KIB), 413, RefusalKind::TooLarge).await;
    let (frames, body) = unsized_body();
    frames.send(Bytes::from(vec![1; 100 * KIB])).unwrap();
    is(request("acme", body), 413, RefusalKind::Outgrown).await;
    is(
        request("acme?200000", ""),
        413,
        RefusalKind::ResponseTooLarge,
    )
    .await;
    let never = StreamBody::new(futures_util::stream::pending::<
        Result<Frame<Bytes>, std::convert::Infallible>,
    >());
    is(request("acme", Body::new(never)), 408, RefusalKind::TooSlow).await;
    let held = scene.acme.force_charge(99 * KIB);
    is(request("acme", ""), 429, RefusalKind::TenantFull).await;
    is(sized("acme", 50 * KIB), 429, RefusalKind::TenantFull).await;
    is(
        request("globex", vec![1; 50 * KIB]),
        503,
        RefusalKind::AboveFull,
    )
    .await;
    is(request("globex?61440", ""), 503, RefusalKind::AboveFull).await;
    drop(held);
    let held = scene.acme.force_charge(60 * KIB);
    is(request("acme?51200", ""), 429, RefusalKind::TenantFull).await;
    drop(held);
    scene.acme.offline().unwrap();
    is(request("acme", ""), 503, RefusalKind::Offline).await;
    is(sized("acme", 50 * KIB), 503, RefusalKind::Offline).await;
    let text = figures.to_string();
    assert!(
        text.contains("memcg_requests_refused_total{kind=\"tenant_full\"} 3\n"),
        "{text}"
    );
    assert!(
        text.contains("memcg_requests_wait_seconds_bucket{le=\"+Inf\"} 0\n"),
        "nothing has waited: {text}"
    );
    scene.assert_given_back();
}

#[tokio::test]
async fn what_has_no_status_moves_a_figure_too() {
    let mut before = [0; RefusalKind::ALL.len()];
    // A response of unknown length that is cut off.
    let scene = Scene::new();
    let layer = scene.layer();
    let service = layer.clone().layer(service_fn(|_: Request<InBody>| async {
        let frame = Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![7; 100 * KIB])));
        Ok::<_, std::convert::Infallible>(Response::new(StreamBody::new(
            futures_util::stream::iter([frame]),
        )))
    }));
    let response = service.oneshot(request("acme", "")).await.unwrap();
    assert!(response.into_body().collect().await.is_err());
    assert_eq!(
        moved(&layer.figures(), &mut before),
        [(RefusalKind::CutOff, 1)]
    );
    scene.assert_given_back();
    // No group for a request, and a classifier's own refusal.
    let runtime = Runtime::builder().groups_max(1).build().unwrap();
    let root = runtime.root();
    let layer = AdmissionLayer::new(move |request: &Request<Body>| match request.uri().path() {
        "/none" => Err(Refusal::new(StatusCode::NOT_FOUND, "no such tenant")),
        _ => Ok(root.clone()),
    });
    let layer = layer.request_groups(Limits::new());
    let mut before = [0; RefusalKind::ALL.len()];
    for (tenant, status, kind) in [
        ("some", 503, RefusalKind::NoGroup),
        ("none", 404, RefusalKind::Classifier),
    ] {
        let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("") }));
        assert_eq!(
            service
                .oneshot(request(tenant, ""))
                .await
                .unwrap()
                .status()
                .as_u16(),
            status
        );
        assert_eq!(moved(&layer.figures(), &mut before), [(kind, 1)]);
    }
}

/// A wait is counted once it has ended, and in the bucket of its length.
#[tokio::test]
async fn waits_are_in_a_histogram() {
    let scene = Scene::new();
    let layer = scene.layer().patience(Duration::from_millis(30));
    let figures = layer.figures();
    let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("") }));
    assert!(service.clone().oneshot(request("acme", "")).await.is_ok());
    assert_eq!(figures.waits().count, 0, "it has not waited");
    let held = scene.acme.force_charge(100 * KIB);
    assert_eq!(
        service
            .clone()
            .oneshot(request("acme", ""))
            .await
            .unwrap()
            .status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    let mut goes = Box::pin(service.clone().oneshot(request("acme", "")));
    assert!(goes.as_mut().now_or_never().is_none());
    assert_eq!(
        (figures.waiting(), figures.waits().count, figures.left()),
        (1, 1, 0)
    );
    drop(goes);
    assert_eq!(
        (figures.waiting(), figures.waits().count, figures.left()),
        (0, 2, 1)
    );
    drop(held);
    let waits = figures.waits();
    assert!(waits.sum >= Duration::from_millis(30), "{waits:?}");
    let short: u64 = waits
        .buckets
        .iter()
        .filter(|(most, _)| *most <= Some(Duration::from_millis(25)))
        .map(|(_, n)| n)
        .sum();
    let last = waits.buckets.last().unwrap();
    assert!(
        short - last.1 <= 1 && last.0.is_none(),
        "the one that has waited 30 ms is above: {waits:?}"
    );
    let mut below = 0;
    for line in figures
        .to_string()
        .lines()
        .filter(|line| line.contains("_bucket{"))
    {
        let count: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(count >= below, "{line}");
        below = count;
    }
    assert_eq!(below, 2);
}

/// Clients that are refused together do not come back together.
#[tokio::test]
async fn the_time_to_come_back_is_spread() {
    let scene = Scene::new();
    let service = scene
        .layer()
        .layer(service_fn(|_: Request<InBody>| async { ok("") }));
    let _held = scene.acme.force_charge(100 * KIB);
    let mut seconds = BTreeSet::new();
    for _ in 0..50 {
        let response = service.clone().oneshot(request("acme", "")).await.unwrap();
        seconds.insert(
            response.headers()["retry-after"]
                .to_str()
                .unwrap()
                .to_owned(),
        );
    }
    assert_eq!(seconds.into_iter().collect::<Vec<_>>(), ["1", "2", "3"]);
}

/// The future of a classifier is dropped with its request.
#[tokio::test]
async fn a_classifier_ends_with_its_request() {
    let asked = Arc::new(AtomicUsize::new(0));
    let never = Arc::new(Notify::new());
    struct Asks(Arc<AtomicUsize>);
    impl Drop for Asks {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let counts = Arc::clone(&asked);
    let layer = AdmissionLayer::new(move |_: &Request<Body>| {
        counts.fetch_add(1, Ordering::Relaxed);
        let asks = Asks(Arc::clone(&counts));
        let never = Arc::clone(&never);
        Classification::later(async move {
            never.notified().await;
            drop(asks);
            Classification::uncharged()
        })
    });
    let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("") }));
    let timed = tower::timeout::Timeout::new(service, Duration::from_millis(5));
    assert!(timed.oneshot(request("acme", "")).await.is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}
