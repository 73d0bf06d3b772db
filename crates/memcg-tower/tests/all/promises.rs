//! The bytes that bodies have promised to their tenant, and the line of requests beside that:
//! without a connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use memcg::{Charge, Reclaim, ReclaimContext, ReclaimPriority};
use memcg_tower::{PromisedBytes, RefusalKind};
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::*;

/// A body of known length whose frames come from a channel.
struct Coming {
    length: u64,
    frames: mpsc::UnboundedReceiver<Bytes>,
}

impl hyper::body::Body for Coming {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = std::task::ready!(self.frames.poll_recv(context));
        std::task::Poll::Ready(frame.map(|frame| {
            self.length -= frame.len() as u64;
            Ok(Frame::data(frame))
        }))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length)
    }
}

fn coming(tenant: &str, length: usize) -> (mpsc::UnboundedSender<Bytes>, Request<Body>) {
    let (sender, frames) = mpsc::unbounded_channel();
    (
        sender,
        request(
            tenant,
            Body::new(Coming {
                length: length as u64,
                frames,
            }),
        ),
    )
}

async fn reads(request: Request<InBody>) -> Answer {
    match request.into_body().collect().await {
        Ok(body) => ok(body.to_bytes().len().to_string()),
        Err(failed) => ok(format!("whatever the handler says: {failed}")),
    }
}

/// A cache that gives back all it has.
struct Cache(Mutex<Option<Charge>>);

impl Reclaim for Cache {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        let charge = self.0.lock().unwrap().take();
        charge.as_ref().map_or(0, Charge::bytes)
    }
}

/// It is asked before a request of its tenant is refused, and not for one of another tenant.
#[tokio::test]
async fn a_promise_reclaims_of_its_own_tenant_alone() {
    for patience in [Duration::ZERO, Duration::from_secs(60)] {
        let scene = Scene::new();
        let [of_acme, of_globex] = [&scene.acme, &scene.globex].map(|tenant| {
            let cache = Arc::new(Cache(Mutex::new(Some(tenant.force_charge(60 * KIB)))));
            (
                tenant.register_reclaimer(cache.clone(), ReclaimPriority::NORMAL),
                cache,
            )
        });
        let service = scene.layer().patience(patience).layer(service_fn(reads));
        let (frames, asks) = coming("acme", 80 * KIB);
        let mut runs = Box::pin(service.clone().oneshot(asks));
        assert!(
            runs.as_mut().now_or_never().is_none(),
            "it waits for its body"
        );
        assert_eq!(PromisedBytes::to(&scene.acme).bytes, 80 * KIB as u64);
        let holds = |cache: &Cache| cache.0.lock().unwrap().is_some();
        assert_eq!((holds(&of_acme.1), holds(&of_globex.1)), (false, true));
        frames.send(Bytes::from(vec![1; 80 * KIB])).unwrap();
        drop(frames);
        assert_eq!(
            text(runs.await.unwrap()).await,
            (200, (80 * KIB).to_string())
        );
        drop((of_acme, of_globex));
        scene.assert_given_back();
    }
}

/// Bytes that a handler or a cache gives back wake no line of promises: the first in it looks
/// again.
#[tokio::test]
async fn the_first_in_line_sees_what_others_give_back() {
    let scene = Scene::new();
    let service = scene
        .layer()
        .patience(Duration::from_secs(60))
        .layer(service_fn(reads));
    let held = scene.acme.force_charge(50 * KIB);
    let waits = tokio::spawn(service.clone().oneshot(sized("acme", 60 * KIB)));
    let behind = tokio::spawn(service.oneshot(sized("acme", 60 * KIB)));
    while PromisedBytes::to(&scene.acme).waiting < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(scene.acme.waiting_count(), 0);
    drop(held);
    // The second one is woken by the end of the first one.
    for waits in [waits, behind] {
        let answered = tokio::time::timeout(Duration::from_secs(20), waits)
            .await
            .expect("none is stuck");
        assert_eq!(text(answered.unwrap().unwrap()).await.0, 200);
    }
    scene.assert_given_back();
}

/// Those that leave the line at each place leave the rest in it.
#[tokio::test]
async fn a_place_in_line_that_is_left_is_taken() {
    let scene = Scene::new();
    let layer = scene.layer().patience(Duration::from_secs(60));
    let figures = layer.figures();
    let service = layer.layer(service_fn(reads));
    for leaves in 0..3 {
        let (frames, first) = coming("acme", 60 * KIB);
        let mut runs = Box::pin(service.clone().oneshot(first));
        assert!(runs.as_mut().now_or_never().is_none());
        let mut line: Vec<_> = (0..3)
            .map(|_| {
                Some(tokio::spawn(
                    service.clone().oneshot(sized("acme", 60 * KIB)),
                ))
            })
            .collect();
        while PromisedBytes::to(&scene.acme).waiting < 3 {
            tokio::task::yield_now().await;
        }
        let left = line[leaves].take().unwrap();
        left.abort();
        assert!(left.await.is_err() && PromisedBytes::to(&scene.acme).waiting == 2);
        assert_eq!((figures.waiting(), figures.left()), (2, leaves as u64 + 1));
        drop((frames, runs));
        for waits in line.into_iter().flatten() {
            let answered = tokio::time::timeout(Duration::from_secs(20), waits)
                .await
                .expect("none is stuck");
            assert_eq!(text(answered.unwrap().unwrap()).await.0, 200);
        }
        scene.assert_given_back();
    }
    assert_eq!(figures.waits().count, 9);
}

/// A body that outgrows its promise takes nothing of what others have promised.
#[tokio::test]
async fn a_body_that_outgrows_its_promise_leaves_those_of_others() {
    let scene = Scene::new();
    let layer = scene.layer();
    let figures = layer.figures();
    let service = layer.layer(service_fn(reads));
    let (frames, first) = coming("acme", 60 * KIB);
    let mut runs = Box::pin(service.clone().oneshot(first));
    assert!(runs.as_mut().now_or_never().is_none());
    // 100 KiB without 60 KiB, and without 3 KiB for each of both.
    for (bytes, status) in [(34 * KIB, 200), (34 * KIB + 1, 413)] {
        let (unknown, body) = unsized_body();
        unknown.send(Bytes::from(vec![1; bytes])).unwrap();
        drop(unknown);
        let (is, text) = text(
            service
                .clone()
                .oneshot(request("acme", body))
                .await
                .unwrap(),
        )
        .await;
        assert_eq!(is, status, "{text}");
        assert!(
            status == 200 || text.contains("60 KiB of bodies on their way"),
            "{text}"
        );
    }
    assert_eq!(figures.refused(RefusalKind::Outgrown), 1);
    frames.send(Bytes::from(vec![1; 60 * KIB])).unwrap();
    drop(frames);
    assert_eq!(text(runs.await.unwrap()).await.0, 200);
    scene.assert_given_back();
}

/// Two layers over one tenant, as those of two routes, know of each other's promises.
#[tokio::test]
async fn layers_share_the_promises_of_a_tenant() {
    let scene = Scene::new();
    let services = [(); 2].map(|()| scene.layer().layer(service_fn(reads)));
    let (frames, first) = coming("acme", 60 * KIB);
    let mut runs = Box::pin(services[0].clone().oneshot(first));
    assert!(runs.as_mut().now_or_never().is_none());
    assert_eq!(
        text(
            services[1]
                .clone()
                .oneshot(sized("acme", 60 * KIB))
                .await
                .unwrap()
        )
        .await
        .0,
        429
    );
    drop((frames, runs));
    assert_eq!(
        text(
            services[1]
                .clone()
                .oneshot(sized("acme", 60 * KIB))
                .await
                .unwrap()
        )
        .await
        .0,
        200
    );
    scene.assert_given_back();
}

/// Of those in line the smallest passes the first where only that fits, and the first goes then.
#[tokio::test]
async fn the_smallest_in_line_passes_the_first() {
    let scene = Scene::new();
    let service = scene
        .layer()
        .patience(Duration::from_secs(60))
        .layer(service_fn(reads));
    let held = scene.acme.force_charge(100 * KIB);
    let asks = |bytes| Box::pin(service.clone().oneshot(sized("acme", bytes)));
    let [mut first, mut middle, mut small] = [70, 30, 20].map(|kib| asks(kib * KIB));
    for waits in [&mut first, &mut middle, &mut small] {
        assert!(waits.as_mut().now_or_never().is_none());
    }
    assert_eq!(PromisedBytes::to(&scene.acme).waiting, 3);
    drop(held);
    // Room for the last of them, and not for the one before it.
    let held = scene.acme.force_charge(70 * KIB);
    assert_eq!(text(small.await.unwrap()).await.1, (20 * KIB).to_string());
    assert!(first.as_mut().now_or_never().is_none());
    assert!(middle.as_mut().now_or_never().is_none());
    drop(held);
    assert_eq!(text(first.await.unwrap()).await.1, (70 * KIB).to_string());
    assert_eq!(text(middle.await.unwrap()).await.1, (30 * KIB).to_string());
    scene.assert_given_back();
}

/// Any number is a length that a head may say.
#[tokio::test]
async fn lengths_that_are_no_memory_are_promised_or_refused() {
    let scene = Scene::new();
    let service = scene.layer().layer(service_fn(reads));
    let length = usize::MAX - 2;
    assert_eq!(
        text(
            service
                .clone()
                .oneshot(coming("acme", length).1)
                .await
                .unwrap()
        )
        .await
        .0,
        413
    );
    // A tenant without a max, and as many as two of them.
    let runtime = memcg::Runtime::builder().build().unwrap();
    let tenant = runtime.root();
    let layer = memcg_tower::AdmissionLayer::new(move |_: &Request<Body>| Some(tenant.clone()))
        .patience(Duration::ZERO);
    let unbounded = layer.clone().layer(service_fn(reads));
    let mut run: Vec<_> = (0..3)
        .map(|_| {
            let (frames, asks) = coming("", length);
            (Box::pin(unbounded.clone().oneshot(asks)), frames)
        })
        .collect();
    for (runs, _) in &mut run {
        assert!(runs.as_mut().now_or_never().is_none(), "it is read");
    }
    assert_eq!(PromisedBytes::to(&runtime.root()).bytes, u64::MAX);
    for (runs, frames) in run {
        frames.send(Bytes::from_static(b"text")).unwrap();
        drop(frames);
        assert_eq!(text(runs.await.unwrap()).await, (200, "4".into()));
    }
    assert_eq!(PromisedBytes::to(&runtime.root()).bytes, 0);
    // The weight of a request may be any number, too: what could never fit is 413.
    for patience in [Duration::ZERO, Duration::from_millis(10)] {
        for set in [
            |layer: AnyLayer| layer.overhead(usize::MAX),
            |layer: AnyLayer| layer.response(usize::MAX),
            |layer: AnyLayer| layer.overhead(usize::MAX).response(usize::MAX),
        ] {
            let tenant = runtime.root();
            let classify: Classify = Box::new(move |_| Some(tenant.clone()));
            let layer = set(memcg_tower::AdmissionLayer::new(classify)).patience(patience);
            for body in [Body::empty(), Body::from("text")] {
                let service = layer.layer(service_fn(reads));
                let answered = service.oneshot(Request::new(body)).await.unwrap();
                assert_eq!(text(answered).await.0, 413);
            }
        }
    }
    assert_eq!(runtime.root().live(), 0);
    scene.assert_given_back();
}

type Classify = Box<dyn Fn(&Request<Body>) -> Option<memcg::Group> + Send + Sync>;
type AnyLayer = memcg_tower::AdmissionLayer<Classify>;

/// A request that runs keeps what its classifier has: it may be the last handle on the runtime.
#[tokio::test]
async fn a_request_that_runs_outlives_its_router() {
    let runtime = memcg::Runtime::builder().max(1 << 20).build().unwrap();
    let acme = runtime.root().create("acme", memcg::Limits::new()).unwrap();
    let layer =
        memcg_tower::AdmissionLayer::new(move |_: &Request<Body>| runtime.root().child("acme"));
    let service = layer.layer(service_fn(reads));
    drop(layer);
    for bytes in [0, 60 * KIB] {
        let (frames, asks) = coming("", bytes);
        let asks = if bytes == 0 {
            Request::new(Body::empty())
        } else {
            asks
        };
        let mut runs = Box::pin(service.clone().oneshot(asks));
        if bytes > 0 {
            assert!(runs.as_mut().now_or_never().is_none());
            frames.send(Bytes::from(vec![1; bytes])).unwrap();
        }
        drop(frames);
        assert_eq!(text(runs.await.unwrap()).await.0, 200);
    }
    let (frames, asks) = coming("", 60 * KIB);
    let mut runs = Box::pin(service.oneshot(asks));
    assert!(
        runs.as_mut().now_or_never().is_none(),
        "the service is gone from here on"
    );
    assert!(!acme.is_offline());
    frames.send(Bytes::from(vec![1; 60 * KIB])).unwrap();
    drop(frames);
    assert_eq!(
        text(runs.await.unwrap()).await,
        (200, (60 * KIB).to_string())
    );
    tokio::task::spawn_blocking(move || while !acme.is_offline() {})
        .await
        .unwrap();
}
