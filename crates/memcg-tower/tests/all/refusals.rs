//! Requests that are refused: for what reason, after how much of their body, and with which time to
//! come back.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{EXPECT, RETRY_AFTER};
use http::{Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body as _, Frame, SizeHint};
use memcg::{Group, Limits, OomPolicy, PressureLevel, Runtime};
use memcg_tower::{AdmissionLayer, BodyError, Refusal, RefusalKind, RequestWeight};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{InBody, KIB, Scene, ok, request, retry, sized, text};

/// A body of frames of 1 KiB that counts the bytes read from it.
struct Counted {
    frames: VecDeque<Bytes>,
    says_its_length: bool,
    read: Arc<AtomicUsize>,
}

impl Counted {
    fn new(bytes: usize, says_its_length: bool) -> (Arc<AtomicUsize>, Counted) {
        let whole = Bytes::from(vec![1; bytes]);
        let frames = (0..bytes)
            .step_by(KIB)
            .map(|at| whole.slice(at..bytes.min(at + KIB)))
            .collect();
        let read = Arc::new(AtomicUsize::new(0));
        (
            Arc::clone(&read),
            Counted {
                frames,
                says_its_length,
                read,
            },
        )
    }

    fn left(&self) -> usize {
        self.frames.iter().map(Bytes::len).sum()
    }
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = self.frames.pop_front();
        self.read
            .fetch_add(frame.as_ref().map_or(0, Bytes::len), Ordering::Relaxed);
        Poll::Ready(frame.map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        if self.says_its_length {
            SizeHint::with_exact(self.left() as u64)
        } else {
            SizeHint::new()
        }
    }
}

type Answer = (u16, Option<u64>, String);

async fn answer(
    response: Response<impl hyper::body::Body<Data = Bytes, Error: std::fmt::Debug>>,
) -> Answer {
    let retry = retry(&response);
    let (status, text) = text(response).await;
    (status, retry, text)
}

/// A handler forces so many bytes on the group before it reads its body, and says that all is well.
async fn force<C>(layer: AdmissionLayer<C>, tenant: &str, group: &Group, bytes: usize) -> Answer
where
    C: Fn(&Request<Body>) -> Option<Group>,
{
    let group = group.clone();
    let service = layer.layer(service_fn(move |request: Request<InBody>| {
        let group = group.clone();
        async move {
            let _forced = group.force_charge(bytes);
            let mut body = request.into_body();
            let failed = body.frame().await.unwrap().unwrap_err();
            assert!(matches!(failed, BodyError::Refused(_)), "{failed}");
            assert!(
                body.frame().await.is_none(),
                "nothing comes after the error"
            );
            ok("all is well")
        }
    }));
    answer(service.oneshot(sized(tenant, 1000)).await.unwrap()).await
}

#[tokio::test]
async fn a_group_that_is_above_max_by_force_reads_no_body() {
    let scene = Scene::new();
    let (status, retry, text) = force(scene.layer(), "acme", &scene.acme, 120 * KIB).await;
    assert_eq!((status, retry), (429, Some(1)), "{text}");
    assert!(
        text.starts_with("/acme refuses a checkpoint of /acme: "),
        "{text}"
    );
    let (status, retry, text) =
        force(scene.layer(), "globex", &scene.runtime.root(), 160 * KIB).await;
    assert_eq!(
        (status, retry),
        (503, Some(1)),
        "the service is above its max: {text}"
    );
    assert!(
        text.starts_with("/ refuses a checkpoint of /globex: "),
        "{text}"
    );
    scene.assert_given_back();
}

/// The tenant is the parent of the request's group, and not a group above the tenant.
#[tokio::test]
async fn a_request_with_a_group_is_told_whether_its_tenant_or_the_service_is_above_max() {
    let scene = Scene::new();
    let layer = || scene.layer().request_groups(Limits::new());
    let (status, _, text) = force(layer(), "acme", &scene.acme, 120 * KIB).await;
    assert_eq!(status, 429, "{text}");
    let (status, _, text) = force(layer(), "globex", &scene.runtime.root(), 160 * KIB).await;
    assert_eq!(status, 503, "{text}");
    scene.assert_given_back();
}

#[tokio::test]
async fn a_group_that_is_cancelled_reads_no_body() {
    let scene = Scene::new();
    scene.runtime.root().set_oom_policy(OomPolicy::Choose);
    let hook = scene.globex.on_cancel(|_| {});
    let (status, retry, text) = force(scene.layer(), "globex", &scene.globex, 160 * KIB).await;
    assert_eq!(
        (status, retry),
        (503, None),
        "it is told to stop, not to come back: {text}"
    );
    assert!(text.starts_with("/globex is cancelled"), "{text}");
    drop(hook);
    scene.assert_given_back();
}

/// The number of bytes that the layer reads of a refused request's body before the answer.
async fn drained(
    scene: &Scene,
    bound: usize,
    bytes: usize,
    says_its_length: bool,
    set: fn(&mut Request<Body>),
) -> usize {
    let service = scene
        .layer()
        .drain(bound)
        .layer(service_fn(|_: Request<InBody>| async { ok("") }));
    let (read, body) = Counted::new(bytes, says_its_length);
    let mut asks = request("acme", Body::new(body));
    set(&mut asks);
    let response = service.oneshot(asks).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), scene.acme.live()),
        (429, 100 * KIB as u64),
        "what is drained holds nothing"
    );
    read.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_refused_body_is_drained_up_to_the_bound() {
    let scene = Scene::new();
    let held = scene.acme.force_charge(100 * KIB);
    let bound = 10 * KIB;
    for (bytes, of_known_length, of_unknown) in [
        (bound - 1, bound - 1, bound - 1),
        (bound, bound, bound),
        // It is known before that the rest would be too much; or the frame that is too much is the
        // last one read.
        (bound + 1, 0, bound + 1),
        (3 * bound, 0, bound + KIB),
    ] {
        assert_eq!(
            drained(&scene, bound, bytes, true, |_| {}).await,
            of_known_length,
            "of {bytes}"
        );
        assert_eq!(
            drained(&scene, bound, bytes, false, |_| {}).await,
            of_unknown,
            "of {bytes}"
        );
    }
    assert_eq!(drained(&scene, 0, 1, true, |_| {}).await, 0);
    drop(held);
    scene.assert_given_back();
}

#[tokio::test]
async fn no_body_is_drained_that_its_client_does_not_send_yet() {
    let scene = Scene::new();
    let held = scene.acme.force_charge(100 * KIB);
    let waits = |asks: &mut Request<Body>| {
        asks.headers_mut()
            .insert(EXPECT, "100-continue".parse().unwrap());
    };
    for says_its_length in [true, false] {
        assert_eq!(
            drained(&scene, 10 * KIB, 5000, says_its_length, waits).await,
            0,
            "it expects 100"
        );
        let http2 = |asks: &mut Request<Body>| *asks.version_mut() = Version::HTTP_2;
        assert_eq!(
            drained(&scene, 10 * KIB, 5000, says_its_length, http2).await,
            0,
            "its stream ends alone"
        );
        let http10 = |asks: &mut Request<Body>| *asks.version_mut() = Version::HTTP_10;
        assert_eq!(
            drained(&scene, 10 * KIB, 5000, says_its_length, http10).await,
            5000
        );
    }
    drop(held);
    scene.assert_given_back();
}

/// A tenant that is not known runs nothing.
#[tokio::test]
async fn a_classifier_may_refuse() {
    let scene = Scene::new();
    let acme = scene.acme.clone();
    let layer = AdmissionLayer::new(move |request: &Request<Body>| match request.uri().path() {
        "/acme" => Ok(acme.clone()),
        "/no-error" => Err(Refusal::new(StatusCode::SWITCHING_PROTOCOLS, "no error")),
        path => Err(Refusal::new(
            StatusCode::FORBIDDEN,
            format!("{path} is no tenant"),
        )),
    });
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = service_fn(|_: Request<InBody>| {
        runs.fetch_add(1, Ordering::Relaxed);
        std::future::ready(ok("runs"))
    });
    let mut service = layer.layer(ConcurrencyLimitLayer::new(1).layer(handler));
    for (tenant, status, text) in [
        ("", 403, "/ is no tenant"),
        ("other", 403, "/other is no tenant"),
        ("no-error", 500, "no error"),
    ] {
        let refused = service
            .ready()
            .await
            .unwrap()
            .call(request(tenant, "body"))
            .await
            .unwrap();
        assert_eq!(answer(refused).await, (status, None, text.to_owned()));
        assert_eq!(runs.load(Ordering::Relaxed), 0);
    }
    // Its permit went with the refusal.
    let admitted = service
        .clone()
        .oneshot(request("acme", "body"))
        .await
        .unwrap();
    assert_eq!(answer(admitted).await, (200, None, "runs".to_owned()));
    // Before the answer, the layer reads what the client sends, as that of each refused request.
    let (read, body) = Counted::new(5000, true);
    let refused = service
        .clone()
        .oneshot(request("other", Body::new(body)))
        .await
        .unwrap();
    assert_eq!(
        (refused.status(), read.load(Ordering::Relaxed)),
        (StatusCode::FORBIDDEN, 5000)
    );
    scene.assert_given_back();
    // Of a group where there is one, and uncharged where there is none.
    let layer = AdmissionLayer::new(|request: &Request<Body>| match request.uri().path() {
        "/health" => Ok(None),
        _ => Err(Refusal::new(StatusCode::UNAUTHORIZED, "who asks?")),
    });
    let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("runs") }));
    for (tenant, status) in [("health", 200), ("acme", 401)] {
        assert_eq!(
            answer(service.clone().oneshot(request(tenant, "")).await.unwrap())
                .await
                .0,
            status
        );
    }
}

#[tokio::test]
async fn a_refusal_of_a_classifier_has_its_code_in_grpc() {
    for (status, code) in [
        (400, "3"),
        (401, "16"),
        (403, "7"),
        (404, "5"),
        (413, "8"),
        (429, "8"),
        (503, "14"),
        (500, "2"),
        (200, "2"),
    ] {
        let layer =
            AdmissionLayer::new(move |_: &Request<Body>| -> Result<Option<Group>, Refusal> {
                Err(Refusal::new(
                    StatusCode::from_u16(status).unwrap(),
                    "not you",
                ))
            });
        let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("runs") }));
        let mut call = request("acme", "");
        call.headers_mut()
            .insert("content-type", "application/grpc".parse().unwrap());
        let response = service.oneshot(call).await.unwrap();
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(
            (header("grpc-status"), header("grpc-message")),
            (code.to_owned(), "not you".to_owned())
        );
        assert_eq!(response.status(), StatusCode::OK);
    }
}

/// The root, the tenant, and one request.
#[tokio::test]
async fn a_request_for_which_there_is_no_group_is_503() {
    let runtime = Runtime::builder()
        .groups_max(3)
        .audit(true)
        .build()
        .unwrap();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(100 * KIB))
        .unwrap();
    let tenant = acme.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Body>| Some(tenant.clone()))
        .request_groups(Limits::new())
        .answer(crate::support::text_for_operators);
    let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("done") }));
    let first = service.clone().oneshot(request("acme", "")).await.unwrap();
    assert_eq!((first.status().as_u16(), acme.children().len()), (200, 1));
    let (read, body) = Counted::new(5000, true);
    let (status, retry, text) = answer(
        service
            .clone()
            .oneshot(request("acme", Body::new(body)))
            .await
            .unwrap(),
    )
    .await;
    assert_eq!((status, retry), (503, Some(1)), "{text}");
    assert!(
        text.contains("in /acme: there are 3 groups, as many as groups_max allows"),
        "{text}"
    );
    assert_eq!(
        read.load(Ordering::Relaxed),
        5000,
        "its client reads the answer after it has sent"
    );
    drop(first);
    let (status, _, text) =
        answer(service.clone().oneshot(request("acme", "")).await.unwrap()).await;
    assert_eq!(
        (status, text.as_str()),
        (200, "done"),
        "the first one's group is there for it"
    );
    acme.offline().unwrap();
    let (status, retry, text) = answer(service.oneshot(request("acme", "")).await.unwrap()).await;
    assert_eq!((status, retry), (503, None), "{text}");
    assert_eq!(text, "cannot create a group in /acme: /acme is offline");
    assert_eq!((runtime.root().live(), acme.children().len()), (0, 0));
    let verdict = runtime.verify().to_string();
    assert!(verdict.ends_with("all add up"), "{verdict}");
}

/// After its wait a request that was admitted would be delayed.
#[tokio::test]
async fn the_delay_above_a_high_is_a_part_of_the_time_to_come_back() {
    let scene = Scene::new();
    let held = scene.acme.force_charge(100 * KIB);
    scene.acme.set_limits(Limits::new().high(10 * KIB)).unwrap();
    // Of the request with its overhead and its response; the most that a charge is delayed.
    assert_eq!(
        scene.acme.inspect().high_delay(20 * KIB + 3 * KIB),
        Duration::from_secs(2)
    );
    for (patience, seconds) in [(Duration::ZERO, 2), (Duration::from_millis(10), 3)] {
        let layer = scene.layer().patience(patience);
        let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("") }));
        let response = service.oneshot(sized("acme", 20 * KIB)).await.unwrap();
        let retry: u64 = response.headers()[RETRY_AFTER]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((seconds..=3 * seconds + 1).contains(&retry), "{retry}");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    drop(held);
    scene.assert_given_back();
}

/// A frame that waits for room is still to come.
#[tokio::test]
async fn the_size_of_a_body_counts_the_frame_that_waits() {
    let scene = Scene::new();
    let held = scene.acme.force_charge(95 * KIB);
    for says_its_length in [true, false] {
        let layer = scene
            .layer()
            .body_window(0)
            .response(0)
            .patience(Duration::from_secs(60));
        let service = layer.layer(service_fn(move |_: Request<InBody>| async move {
            let (_, mut body) = Counted::new(1000, says_its_length);
            body.frames.push_front(Bytes::from(vec![2; 50 * KIB]));
            Ok::<_, Infallible>(Response::new(body))
        }));
        let mut body = service
            .oneshot(request("acme", ""))
            .await
            .unwrap()
            .into_body();
        let whole = 50 * KIB as u64 + 1000;
        let exact = says_its_length.then_some(whole);
        assert_eq!(body.size_hint().exact(), exact);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            assert!(Pin::new(&mut body).poll_frame(&mut context).is_pending());
            let lower = body.size_hint().lower();
            let upper = body.size_hint().upper();
            let least = if says_its_length {
                whole
            } else {
                50 * KIB as u64
            };
            assert_eq!((lower, upper), (least, exact));
        }
        drop(body);
        assert_eq!(
            (scene.acme.live(), scene.acme.waiting_count()),
            (95 * KIB as u64, 0)
        );
    }
    // If the frame that waits is the last one, the body has not ended.
    let layer = scene
        .layer()
        .body_window(0)
        .patience(Duration::from_secs(60));
    let service = layer.layer(service_fn(|_: Request<InBody>| async {
        ok(vec![7; 50 * KIB])
    }));
    let mut body = service
        .oneshot(request("acme", ""))
        .await
        .unwrap()
        .into_body();
    assert!(
        Pin::new(&mut body)
            .poll_frame(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    assert_eq!(
        (body.size_hint().exact(), body.is_end_stream()),
        (Some(50 * KIB as u64), false)
    );
    drop(held);
    assert_eq!(
        body.frame()
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap()
            .len(),
        50 * KIB
    );
    assert_eq!(
        (body.size_hint().exact(), body.is_end_stream()),
        (Some(0), true)
    );
    drop(body);
    scene.assert_given_back();
}

/// The body of a request ends with its last frame.
#[tokio::test]
async fn the_body_of_a_request_ends() {
    let scene = Scene::new();
    let service = scene
        .layer()
        .layer(service_fn(|request: Request<InBody>| async {
            let mut body = request.into_body();
            assert!(!body.is_end_stream());
            assert_eq!(
                body.frame()
                    .await
                    .unwrap()
                    .unwrap()
                    .into_data()
                    .unwrap()
                    .len(),
                10
            );
            assert!(body.is_end_stream() && body.frame().await.is_none());
            ok(vec![])
        }));
    assert_eq!(
        service
            .oneshot(request("acme", vec![1; 10]))
            .await
            .unwrap()
            .status(),
        200
    );
    scene.assert_given_back();
}

/// The client of a stream may pause once its answer has begun.
#[tokio::test]
async fn a_stream_that_is_answered_may_pause() {
    let scene = Scene::new();
    let time = Duration::from_millis(20);
    let kept = Mutex::new(None);
    let service = scene
        .layer()
        .body_timeout(time)
        .layer(service_fn(|request: Request<InBody>| {
            *kept.lock().unwrap() = Some(request.into_body());
            async { ok("") }
        }));
    let never = StreamBody::new(futures_util::stream::pending::<
        Result<Frame<Bytes>, Infallible>,
    >());
    let answer = service
        .oneshot(request("acme", Body::new(never)))
        .await
        .unwrap();
    let mut body = kept.lock().unwrap().take().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert!(Pin::new(&mut body).poll_frame(&mut context).is_pending());
        tokio::time::sleep(time).await;
    }
    drop((answer, body));
    scene.assert_given_back();
}

/// A tenant under pressure gets no request: those that can wait are refused at a lower pressure
/// than the others.
#[tokio::test]
async fn a_tenant_under_pressure_is_shed() {
    let scene = Scene::new();
    scene
        .acme
        .set_limits(Limits::new().pressure_levels(50, 90))
        .unwrap();
    let acme = scene.acme.clone();
    let layer = AdmissionLayer::new(move |request: &Request<Body>| {
        let weighed = RequestWeight::new(acme.clone()).overhead(0).response(0);
        if request.uri().path() == "/report" {
            weighed.shed_from(PressureLevel::Elevated)
        } else {
            weighed
        }
    });
    let layer = layer
        .shed_from(PressureLevel::Critical)
        .answer(crate::support::text_for_operators);
    let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("served") }));
    let mut seen = Vec::new();
    for held in [0, 50, 95, 0] {
        let held = scene.acme.charge(held * KIB).unwrap();
        for path in ["/report", "/query"] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            seen.push(answer(service.clone().oneshot(request).await.unwrap()).await);
        }
        drop(held);
    }
    let status: Vec<u16> = seen.iter().map(|(status, ..)| *status).collect();
    assert_eq!(status, [200, 200, 503, 200, 503, 503, 200, 200]);
    assert!(
        seen.iter()
            .all(|(status, retry, _)| (*status == 503) == retry.is_some()),
        "{seen:?}"
    );
    assert_eq!(
        seen[2].2,
        "/acme is short of memory: its pressure level is elevated"
    );
    assert_eq!(
        (
            layer.figures().refused(RefusalKind::Shed),
            scene.acme.live()
        ),
        (3, 0)
    );
    // The root is short of memory, and the tenant is not.
    let root = scene.acme.ancestors().last().unwrap();
    root.set_limits(Limits::new().max(1000 * KIB).pressure_levels(50, 90))
        .unwrap();
    let _held = root.charge(950 * KIB).unwrap();
    assert_eq!(scene.acme.pressure_level(), PressureLevel::Normal);
    let request = Request::get("/query").body(Body::empty()).unwrap();
    let (status, _, text) = answer(service.oneshot(request).await.unwrap()).await;
    assert_eq!(
        (status, &*text),
        (503, "/ is short of memory: its pressure level is critical")
    );
}

/// The service is short of memory: the requests of the less important tenant are refused first.
#[tokio::test]
async fn less_important_tenants_are_shed_first() {
    let scene = Scene::new();
    let root = scene.runtime.root();
    root.set_limits(Limits::new().pressure_levels(50, 90))
        .unwrap();
    let tenants = [(&scene.acme, 1), (&scene.globex, 0)].map(|(tenant, importance)| {
        tenant
            .set_limits(Limits::new().importance(importance))
            .unwrap();
        let is_important = tenant.limits().importance >= Some(1);
        let from = if is_important {
            PressureLevel::Critical
        } else {
            PressureLevel::Elevated
        };
        RequestWeight::new(tenant.clone())
            .overhead(0)
            .response(0)
            .shed_from(from)
    });
    let layer = AdmissionLayer::new(move |request: &Request<Body>| {
        tenants[usize::from(request.uri().path() == "/globex")].clone()
    });
    let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("served") }));
    for (held, served) in [(0, [200, 200]), (80, [200, 503]), (140, [503, 503])] {
        let _held = root.charge(held * KIB).unwrap();
        for (path, status) in ["/acme", "/globex"].into_iter().zip(served) {
            let request = Request::get(path).body(Body::empty()).unwrap();
            assert_eq!(
                answer(service.clone().oneshot(request).await.unwrap())
                    .await
                    .0,
                status,
                "{path} at {held} KiB"
            );
        }
    }
    scene.assert_given_back();
}
