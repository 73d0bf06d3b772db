//! The charge, the waits and the answer of a request: without a connection.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use http::header::RETRY_AFTER;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Frame;
use memcg::{Event, Group, Limits};
use memcg_tower::{AdmittedRequest, PromisedBytes};
use tokio::sync::mpsc;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::*;

#[tokio::test]
async fn a_request_is_charged_before_it_runs_and_until_its_last_body_ends() {
    let scene = Scene::new();
    let acme = scene.acme.clone();
    let service = scene
        .layer()
        .layer(service_fn(move |request: Request<InBody>| {
            let acme = acme.clone();
            async move {
                // The bytes to come are a promise, and no memory.
                assert_eq!(
                    (acme.live(), PromisedBytes::to(&acme).bytes),
                    (OVERHEAD + RESPONSE, 10_000)
                );
                assert_eq!(Group::current(), Some(acme.clone()));
                let body = request.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(
                    acme.live(),
                    OVERHEAD + RESPONSE + 10_000,
                    "what was read is held"
                );
                assert_eq!(PromisedBytes::to(&acme).bytes, 0);
                drop(body);
                ok(vec![2; 3000])
            }
        }));
    let response = service.oneshot(sized("acme", 10_000)).await.unwrap();
    // A response of known length has taken over as much of the body's bytes.
    assert_eq!(scene.acme.live(), OVERHEAD + RESPONSE + 3000);
    assert_eq!(
        format!("{:?}", response.body()),
        "ResponseBody { waits: false, .. }"
    );
    let shown = format!("{:?}", scene.layer().layer("inner"));
    assert!(
        shown.starts_with("Admission { inner: \"inner\", settings: "),
        "{shown}"
    );
    assert_eq!(text(response).await.1.len(), 3000);
    scene.assert_given_back();
}

/// Says to the test in which group it was dropped.
struct Dropped(mpsc::UnboundedSender<Option<Group>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(Group::current());
    }
}

/// As the futures of `async` do, after a service's answer and after a refusal.
#[tokio::test]
async fn a_future_that_is_polled_after_its_answer_panics() {
    let scene = Scene::new();
    let layer = scene.layer();
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let held = (status != StatusCode::OK).then(|| scene.acme.force_charge(100 * KIB));
        let mut service = layer.layer(service_fn(|_: Request<InBody>| async { ok("") }));
        let mut answered = Box::pin(service.call(sized("acme", 10)));
        assert_eq!(
            answered.as_mut().now_or_never().unwrap().unwrap().status(),
            status
        );
        let again = catch_unwind(AssertUnwindSafe(|| {
            answered.as_mut().now_or_never().is_some()
        }));
        let said = again.unwrap_err();
        assert!(
            said.downcast_ref::<&str>()
                .unwrap()
                .contains("after it has answered")
        );
        drop((held, answered));
        scene.assert_given_back();
    }
}

/// All that the inner future holds goes in the group, whether it has answered or its client is
/// gone.
#[tokio::test]
async fn a_future_is_dropped_in_its_group() {
    let scene = Scene::new();
    let (dropped, mut seen) = mpsc::unbounded_channel();
    let layer = scene.layer();
    let handler = |answers: bool| {
        let dropped = dropped.clone();
        layer.layer(service_fn(move |request: Request<InBody>| {
            let held = (Dropped(dropped.clone()), request);
            async move {
                if !answers {
                    std::future::pending::<()>().await;
                }
                drop(held);
                ok("")
            }
        }))
    };
    for answers in [true, false] {
        let ended = handler(answers).oneshot(sized("acme", 10)).now_or_never();
        assert_eq!(ended.is_some(), answers);
        drop(ended);
        assert_eq!(
            seen.try_recv(),
            Ok(Some(scene.acme.clone())),
            "it has answered: {answers}"
        );
        assert_eq!(Group::current(), None);
        scene.assert_given_back();
    }
}

#[tokio::test]
async fn a_request_of_no_tenant_passes() {
    let scene = Scene::new();
    let service = scene
        .layer()
        .layer(service_fn(|request: Request<InBody>| async move {
            ok(request.into_body().collect().await.unwrap().to_bytes())
        }));
    let held = scene.runtime.root().force_charge(150 * KIB);
    assert_eq!(
        text(service.oneshot(request("health", "fine")).await.unwrap()).await,
        (200, "fine".to_owned())
    );
    drop(held);
    scene.assert_given_back();
}

#[tokio::test]
async fn each_refusal_has_its_status() {
    let scene = Scene::new();
    let service = scene
        .layer()
        .layer(service_fn(|request: Request<InBody>| async {
            let is_read = request.into_body().collect().await.is_ok();
            ok(if is_read {
                ""
            } else {
                "whatever the handler makes of it"
            })
        }));
    let answer = async |request| {
        let response = service.clone().oneshot(request).await.unwrap();
        let retry = retry(&response);
        let (status, text) = text(response).await;
        (status, retry, text)
    };
    let (status, retry, text) = answer(sized("acme", 100 * KIB)).await;
    assert_eq!((status, retry), (413, None), "{text}");
    assert!(text.starts_with("/acme refused 103 KiB"), "{text}");
    // With the overhead and the response exactly the max: it fits once the byte has gone.
    let byte = scene.acme.force_charge(1);
    let (status, retry, text) = answer(sized("acme", 97 * KIB)).await;
    assert_eq!((status, retry), (429, Some(1)), "{text}");
    drop(byte);
    let held = scene.acme.force_charge(90 * KIB);
    let (status, retry, text) = answer(sized("acme", 20 * KIB)).await;
    assert_eq!((status, retry), (429, Some(1)), "{text}");
    assert!(text.starts_with("/acme refused 23 KiB"), "{text}");
    assert_eq!(
        answer(sized("globex", 20 * KIB)).await.0,
        200,
        "another tenant has room"
    );
    let (status, retry, text) = answer(sized("globex", 60 * KIB)).await;
    assert_eq!(
        (status, retry),
        (503, Some(1)),
        "the service is full: {text}"
    );
    assert!(text.starts_with("/ refused 60 KiB for /globex"), "{text}");
    drop(held);
    scene.acme.offline().unwrap();
    let (status, retry, text) = answer(sized("acme", 1)).await;
    assert_eq!((status, retry), (503, None));
    assert!(text.starts_with("/acme is offline"), "{text}");
    scene.assert_given_back();
}

#[tokio::test]
async fn a_request_waits_for_its_tenant_in_its_future() {
    let scene = Scene::new();
    let layer = scene.layer().patience(Duration::from_secs(60));
    let mut service = layer.layer(service_fn(|_: Request<InBody>| async { ok("done") }));
    let held = scene.acme.force_charge(100 * KIB);
    // Ready, though the tenant is full; and it takes nothing, however often it is asked, cloned or
    // dropped.
    for _ in 0..3 {
        service.ready().await.unwrap();
        drop(service.clone());
    }
    assert_eq!(
        (scene.acme.live(), scene.acme.waiting_count()),
        (100 * KIB as u64, 0)
    );
    let waits = tokio::spawn(service.call(sized("acme", 1000)));
    while scene.acme.waiting_count() == 0 {
        tokio::task::yield_now().await;
    }
    service.ready().await.unwrap();
    assert_eq!(
        text(service.call(sized("globex", 10)).await.unwrap())
            .await
            .0,
        200,
        "none behind it waits"
    );
    drop(held);
    assert_eq!(
        text(waits.await.unwrap().unwrap()).await,
        (200, "done".to_owned())
    );
    scene.assert_given_back();
}

/// Through each clone of `service`, as many requests of acme as there are permits wait for acme or
/// are refused, and one of globex runs. Then those of acme run, too.
async fn lines_hold_no_permit<S>(scene: &Scene, service: S, is_refused: bool)
where
    S: Service<
            Request<Body>,
            Response: Send,
            Error: std::fmt::Debug + Send,
            Future: Send + 'static,
        > + Clone,
{
    let held = scene.acme.force_charge(100 * KIB);
    let mut clones = [service.clone(), service.clone(), service];
    let mut waiting = Vec::new();
    for service in &mut clones {
        for _ in 0..2 {
            let ready = service.ready().now_or_never().expect("a permit is free");
            let mut waits = Box::pin(ready.unwrap().call(sized("acme", 1000)));
            assert_eq!(waits.as_mut().now_or_never().is_some(), is_refused);
            waiting.push(waits);
        }
    }
    // Each may have been asked already, and kept.
    for service in &mut clones {
        let ready = tokio::time::timeout(Duration::from_secs(20), service.ready())
            .await
            .expect("a permit is free");
        let runs = ready.unwrap().call(sized("globex", 10));
        tokio::time::timeout(Duration::from_secs(20), runs)
            .await
            .expect("a permit is free")
            .unwrap();
    }
    drop(held);
    for waits in waiting.into_iter().filter(|_| !is_refused) {
        tokio::time::timeout(Duration::from_secs(20), waits)
            .await
            .expect("acme has room")
            .unwrap();
    }
    drop(clones);
    scene.assert_given_back();
}

#[tokio::test]
async fn a_request_in_line_has_no_permit_of_a_limit_below() {
    for patience in [Duration::from_secs(60), Duration::ZERO] {
        let scene = Scene::new();
        let handler = service_fn(|_: Request<InBody>| async { ok("done") });
        let layer = scene.layer().patience(patience);
        let limited = ConcurrencyLimitLayer::new(2).layer(handler);
        lines_hold_no_permit(&scene, layer.layer(limited), patience.is_zero()).await;
        let buffer = tower::buffer::Buffer::new(handler, 2);
        lines_hold_no_permit(&scene, layer.layer(buffer), patience.is_zero()).await;
        // There is no group for a request below it, so the request is refused before it is charged.
        if patience.is_zero() {
            let limited = ConcurrencyLimitLayer::new(1).layer(handler);
            scene.acme.offline().unwrap();
            let mut service = layer.request_groups(Limits::new()).layer(limited);
            let refused = service
                .ready()
                .await
                .unwrap()
                .call(sized("acme", 10))
                .await
                .unwrap();
            assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
            let mut other = service.clone();
            assert!(other.ready().now_or_never().is_some(), "the permit is free");
        }
    }
}

/// An inner service that fails before it is ready, after the wait.
#[tokio::test]
async fn an_inner_service_that_fails_after_the_wait_gives_back() {
    let scene = Scene::new();
    let panics = |request: Request<InBody>| {
        assert_eq!(request.uri().path(), "/acme", "a handler of the test");
        std::future::ready(ok(""))
    };
    let handler = tower::buffer::Buffer::new(service_fn(panics), 1);
    let mut service = scene
        .layer()
        .patience(Duration::from_secs(60))
        .layer(handler);
    let held = scene.acme.force_charge(100 * KIB);
    let mut waits = Box::pin(service.ready().await.unwrap().call(sized("acme", 10)));
    assert!(waits.as_mut().now_or_never().is_none());
    // The worker of the buffer ends with its service.
    assert!(
        service
            .ready()
            .await
            .unwrap()
            .call(sized("globex", 10))
            .await
            .is_err()
    );
    while service.ready().await.is_ok() {
        tokio::task::yield_now().await;
    }
    drop(held);
    assert!(waits.await.is_err());
    scene.assert_given_back();
}

#[tokio::test]
async fn a_wait_that_is_cut_short_leaves_nothing() {
    let scene = Scene::new();
    let layer = scene.layer().patience(Duration::from_secs(60));
    let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("done") }));
    let held = scene.acme.force_charge(100 * KIB);
    let timed = tower::timeout::Timeout::new(service.clone(), Duration::from_millis(5));
    assert!(timed.oneshot(sized("acme", 1000)).await.is_err());
    assert_eq!(scene.acme.waiting_count(), 0, "the timer has dropped it");
    let aborted = tokio::spawn(service.clone().oneshot(sized("acme", 1000)));
    while scene.acme.waiting_count() == 0 {
        tokio::task::yield_now().await;
    }
    aborted.abort();
    assert!(aborted.await.is_err() && scene.acme.waiting_count() == 0);
    // Behind a buffer, whose worker holds the service between `poll_ready` and `call`.
    let buffered = tower::buffer::Buffer::new(service, 4);
    let waits = tokio::spawn(buffered.clone().oneshot(sized("acme", 1000)));
    assert!(buffered.oneshot(sized("globex", 1000)).await.is_ok());
    drop(held);
    assert_eq!(waits.await.unwrap().unwrap().status(), StatusCode::OK);
    scene.assert_given_back();
}

#[tokio::test]
async fn a_wait_in_vain_is_answered_with_what_it_waited() {
    let scene = Scene::new();
    let layer = scene.layer().patience(Duration::from_millis(1100));
    let service = layer.layer(service_fn(|_: Request<InBody>| async { ok("done") }));
    let held = scene.acme.force_charge(100 * KIB);
    let response = service.oneshot(sized("acme", 1000)).await.unwrap();
    let seconds: u64 = response.headers()[RETRY_AFTER]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        response.status() == StatusCode::TOO_MANY_REQUESTS && (2..=7).contains(&seconds),
        "{seconds}"
    );
    assert_eq!(scene.acme.events().get(Event::TimedOut), 1);
    drop(held);
    scene.assert_given_back();
}

/// Whatever the handler makes of the error.
#[tokio::test]
async fn an_unknown_body_that_outgrows_its_reservation_is_413_and_never_waits() {
    let scene = Scene::new();
    let layer = scene.layer().patience(Duration::from_secs(600));
    let acme = scene.acme.clone();
    let service = layer.layer(service_fn(move |request: Request<InBody>| {
        let acme = acme.clone();
        async move {
            assert_eq!(acme.live(), OVERHEAD + RESPONSE);
            let mut body = request.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                assert!(frame.is_data());
            }
            assert!(
                body.frame().await.is_none(),
                "nothing comes after the error"
            );
            ok("all is well")
        }
    }));
    let (frames, body) = unsized_body();
    frames.send(Bytes::from(vec![0; 90 * KIB])).unwrap(); // there is room for more than was reserved
    drop(frames);
    assert_eq!(
        text(
            service
                .clone()
                .oneshot(request("acme", body))
                .await
                .unwrap()
        )
        .await
        .0,
        200
    );
    let (frames, body) = unsized_body();
    frames.send(Bytes::from(vec![0; 90 * KIB])).unwrap();
    frames.send(Bytes::from(vec![0; 10 * KIB])).unwrap();
    let (status, text) = text(service.oneshot(request("acme", body)).await.unwrap()).await;
    assert_eq!(status, 413);
    assert!(
        text.starts_with("the body is larger than what was promised for it: /acme refused"),
        "{text}"
    );
    scene.assert_given_back();
}

#[tokio::test]
async fn what_does_not_come_is_given_back() {
    let scene = Scene::new();
    let acme = scene.acme.clone();
    let service = scene
        .layer()
        .layer(service_fn(move |request: Request<InBody>| {
            let acme = acme.clone();
            async move {
                let read = request.into_body().collect().await.unwrap().to_bytes();
                assert_eq!((read.len(), acme.live()), (100, OVERHEAD + RESPONSE + 100));
                ok("")
            }
        }));
    let (frames, body) = unsized_body();
    frames.send(Bytes::from(vec![0; 100])).unwrap();
    drop(frames);
    assert!(service.oneshot(request("acme", body)).await.is_ok());
    // A handler that reads nothing gives all of it back.
    let acme = scene.acme.clone();
    let service = scene
        .layer()
        .layer(service_fn(move |request: Request<InBody>| {
            drop(request);
            std::future::ready(ok(acme.live().to_string()))
        }));
    for bytes in [KIB, 50 * KIB] {
        let response = service.clone().oneshot(sized("acme", bytes)).await.unwrap();
        assert_eq!(
            scene.acme.live(),
            OVERHEAD + RESPONSE,
            "once: the response has its own"
        );
        assert_eq!(text(response).await.1, (OVERHEAD + RESPONSE).to_string());
    }
    scene.assert_given_back();
}

/// A body that has ended, and does not say its length.
struct Ended;

impl hyper::body::Body for Ended {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_body_that_has_ended_reserves_and_holds_nothing() {
    let scene = Scene::new();
    let acme = scene.acme.clone();
    let (kept, mut bodies) = mpsc::unbounded_channel();
    let service = scene
        .layer()
        .layer(service_fn(move |request: Request<InBody>| {
            let acme = acme.clone();
            let kept = kept.clone();
            async move {
                assert_eq!(acme.live(), OVERHEAD + RESPONSE);
                kept.send(request.into_body()).unwrap();
                ok("answer")
            }
        }));
    let response = service
        .oneshot(request("acme", Body::new(Ended)))
        .await
        .unwrap();
    assert_eq!(
        scene.acme.live(),
        OVERHEAD + RESPONSE,
        "the response's body is there"
    );
    assert_eq!(text(response).await, (200, "answer".into()));
    let body = bodies.recv().await.unwrap();
    assert_eq!(body.collect().await.unwrap().to_bytes(), Bytes::new());
    scene.assert_given_back();
}

#[tokio::test]
async fn a_window_bounds_the_charge_of_a_body_that_is_passed_on() {
    let scene = Scene::new();
    let acme = scene.acme.clone();
    let service =
        scene
            .layer()
            .body_window(8 * KIB)
            .layer(service_fn(move |request: Request<InBody>| {
                let acme = acme.clone();
                async move {
                    let mut body = request.into_body();
                    let mut sum = 0;
                    while let Some(frame) = body.frame().await {
                        sum += frame.unwrap().into_data().map_or(0, |data| data.len());
                        assert_eq!(acme.live(), OVERHEAD + RESPONSE + 8192);
                    }
                    ok(sum.to_string())
                }
            }));
    let response = service.oneshot(sized("acme", 10_000 * KIB)).await.unwrap();
    assert_eq!(text(response).await, (200, (10_000 * KIB).to_string()));
    scene.assert_given_back();
}

/// A frame that is larger than the tenant's max, and of which the window asks for a part.
#[tokio::test]
async fn a_window_bounds_what_is_too_large() {
    let scene = Scene::new();
    let acme = scene.acme.clone();
    let service =
        scene
            .layer()
            .body_window(8 * KIB)
            .layer(service_fn(move |request: Request<InBody>| {
                let acme = acme.clone();
                async move {
                    // Others come meanwhile.
                    let _others = acme.charge(96 * KIB).unwrap();
                    let read = request.into_body().collect().await;
                    ok(format!("{}", read.is_ok()))
                }
            }));
    let response = service.oneshot(sized("acme", 200 * KIB)).await.unwrap();
    assert_eq!(
        (response.status(), retry(&response)),
        (429.try_into().unwrap(), Some(1))
    );
    drop(response);
    scene.assert_given_back();
}

#[tokio::test]
async fn a_large_frame_of_a_response_is_charged_or_waits() {
    let scene = Scene::new();
    let layer = scene
        .layer()
        .body_window(0)
        .patience(Duration::from_millis(20));
    let service = layer.layer(service_fn(|_: Request<InBody>| async {
        ok(vec![7; 50 * KIB])
    }));
    let mut response = service.clone().oneshot(request("acme", "")).await.unwrap();
    assert_eq!(scene.acme.live(), OVERHEAD + RESPONSE);
    let frame = response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(
        (frame.into_data().unwrap().len(), scene.acme.live()),
        (50 * KIB, OVERHEAD + 50 * KIB as u64)
    );
    // The tenant is full for the next one: it is held back, with its length, and then refused.
    let mut held_back = service.clone().oneshot(request("acme", "")).await.unwrap();
    let refused = held_back.body_mut().frame().await.unwrap().unwrap_err();
    assert!(
        refused.to_string() == "there is no room for the body"
            && std::error::Error::source(&refused)
                .is_some_and(|refused| refused.to_string().starts_with("/acme refused 48 KiB")),
        "{refused:?}"
    );
    assert!(held_back.body_mut().frame().await.is_none());
    let layer = scene
        .layer()
        .body_window(0)
        .patience(Duration::from_secs(60));
    let service = layer.layer(service_fn(|_: Request<InBody>| async {
        ok(vec![7; 50 * KIB])
    }));
    let waits = service.oneshot(request("acme", "")).await.unwrap();
    let waits =
        tokio::spawn(async move { waits.into_body().collect().await.unwrap().to_bytes().len() });
    while scene.acme.waiting_count() == 0 {
        tokio::task::yield_now().await;
    }
    drop(response);
    assert_eq!(waits.await.unwrap(), 50 * KIB);
    drop(held_back);
    scene.assert_given_back();
}

/// Its head would say that all is well.
#[tokio::test]
async fn a_response_of_known_length_is_charged_before_its_head() {
    let scene = Scene::new();
    let layer = || scene.layer().patience(Duration::from_millis(20));
    let long =
        |bytes: usize| service_fn(move |_: Request<InBody>| async move { ok(vec![7; bytes]) });
    // Up to 8 KiB a connection buffers anyway. The rest of what is reserved is taken over.
    for (bytes, held) in [
        (8 * KIB, OVERHEAD + RESPONSE),
        (8 * KIB + 1, OVERHEAD + 8 * KIB as u64 + 1),
    ] {
        let response = layer()
            .layer(long(bytes))
            .oneshot(request("acme", ""))
            .await
            .unwrap();
        assert_eq!(scene.acme.live(), held, "of {bytes}");
        assert_eq!(text(response).await.1.len(), bytes);
    }
    for (tenant, bytes, asks, status, retry) in [
        // With the overhead exactly the max, and above it.
        ("acme", 99 * KIB, request("acme", ""), 200, None),
        ("acme", 99 * KIB + 1, request("acme", ""), 413, None),
        ("acme", 99 * KIB + 1, sized("acme", 10), 413, None),
        // Beside 20 KiB of another request, or of another tenant.
        ("acme", 80 * KIB, sized("acme", 10), 429, Some(1)),
        ("globex", 135 * KIB, sized("globex", 10), 503, Some(1)),
    ] {
        let held = (status != 200 && status != 413).then(|| scene.acme.force_charge(20 * KIB));
        let response = layer().layer(long(bytes)).oneshot(asks).await.unwrap();
        let said = crate::support::retry(&response);
        let (is, text) = text(response).await;
        assert_eq!(
            (is, said),
            (status, retry),
            "{bytes} bytes of {tenant}: {text:.100}"
        );
        drop(held);
        scene.assert_given_back();
    }
    // It waits for room, and its client may go meanwhile.
    let held = scene.acme.force_charge(50 * KIB);
    let service = scene
        .layer()
        .patience(Duration::from_secs(60))
        .layer(long(60 * KIB));
    for goes in [true, false] {
        let mut waits = Box::pin(service.clone().oneshot(sized("acme", 10)));
        while scene.acme.waiting_count() == 0 {
            assert!(waits.as_mut().now_or_never().is_none());
        }
        if goes {
            drop(waits);
            assert_eq!(
                (scene.acme.live(), scene.acme.waiting_count()),
                (50 * KIB as u64, 0)
            );
            continue;
        }
        scene.runtime.root().set_max(200 * KIB).unwrap();
        scene.acme.set_max(120 * KIB).unwrap();
        assert_eq!(text(waits.await.unwrap()).await.1.len(), 60 * KIB);
    }
    drop(held);
    scene.assert_given_back();
}

/// A response that is passed on is not in memory as a whole.
#[tokio::test]
async fn a_window_bounds_the_charge_of_a_response_that_is_passed_on() {
    let scene = Scene::new();
    let handler = service_fn(|_: Request<InBody>| async { ok(vec![7; 50 * KIB]) });
    for (window, held) in [
        (2 * KIB, OVERHEAD + RESPONSE),
        (20 * KIB, OVERHEAD + 20 * KIB as u64),
    ] {
        let layer = scene.layer().body_window(window);
        let response = layer
            .layer(handler)
            .oneshot(request("acme", ""))
            .await
            .unwrap();
        assert_eq!((response.status().as_u16(), scene.acme.live()), (200, held));
        drop(response);
        scene.assert_given_back();
    }
}

/// A connection takes a frame whole, and the body has ended before a slow reader has it.
#[tokio::test]
async fn a_large_frame_is_charged_until_it_is_sent() {
    let scene = Scene::new();
    let service = scene
        .layer()
        .layer(service_fn(|request: Request<InBody>| async move {
            ok(vec![
                7;
                request.headers()["length"]
                    .to_str()
                    .unwrap()
                    .parse()
                    .unwrap()
            ])
        }));
    for (len, held) in [(8 * KIB, 0), (20 * KIB, OVERHEAD + 20 * KIB as u64)] {
        let mut asks = request("acme", "");
        asks.headers_mut()
            .insert("length", len.to_string().parse().unwrap());
        let mut response = service.clone().oneshot(asks).await.unwrap();
        let frame = response.body_mut().frame().await.unwrap().unwrap();
        assert!(response.body_mut().frame().await.is_none());
        drop(response);
        assert_eq!(scene.acme.live(), held, "{len} bytes are on their way");
        let data = frame.into_data().unwrap();
        assert_eq!((data.len(), data[0], scene.acme.live()), (len, 7, held));
        let rest = data.slice(len / 2..);
        drop(data);
        assert_eq!(scene.acme.live(), held, "a part of them is");
        drop(rest);
        scene.assert_given_back();
    }
}

/// The last one too, behind which nothing is left of the body.
#[tokio::test]
async fn a_frame_that_has_waited_for_room_is_charged_until_it_is_sent() {
    let scene = Scene::new();
    let layer = scene
        .layer()
        .body_window(0)
        .patience(Duration::from_secs(60));
    let service = layer.layer(service_fn(|_: Request<InBody>| async {
        ok(vec![7; 50 * KIB])
    }));
    let held = scene.acme.force_charge(60 * KIB);
    let mut body = service
        .oneshot(request("acme", ""))
        .await
        .unwrap()
        .into_body();
    assert!(body.frame().now_or_never().is_none(), "there is no room");
    drop(held);
    let frame = body.frame().await.unwrap().unwrap();
    assert!(body.frame().await.is_none());
    let charged = OVERHEAD + 50 * KIB as u64;
    assert_eq!(scene.acme.live(), charged, "it is on its way");
    drop(body);
    assert_eq!(scene.acme.live(), charged, "behind the end, too");
    drop(frame);
    scene.assert_given_back();
}

#[tokio::test]
async fn a_request_has_a_group_of_its_own() {
    let scene = Scene::new();
    let acme = scene.acme.clone();
    let layer = scene.layer().request_groups(Limits::new().max(60 * KIB));
    let service = layer.layer(service_fn(move |request: Request<InBody>| {
        let acme = acme.clone();
        async move {
            let admitted = request
                .extensions()
                .get::<AdmittedRequest>()
                .unwrap()
                .clone();
            let group = Group::current().unwrap();
            assert_eq!(
                (&group, group.parent().as_ref()),
                (admitted.group(), Some(&acme))
            );
            assert_eq!(
                (admitted.reserved(), group.live()),
                (OVERHEAD + RESPONSE, OVERHEAD + RESPONSE)
            );
            assert_eq!(
                request
                    .into_body()
                    .collect()
                    .await
                    .unwrap()
                    .to_bytes()
                    .len(),
                10
            );
            assert_eq!(
                (admitted.reserved(), group.live()),
                (OVERHEAD + RESPONSE + 10, OVERHEAD + RESPONSE + 10)
            );
            let more = admitted.group().charge(1000).unwrap();
            assert_eq!(group.live(), more.bytes() + admitted.reserved());
            ok("")
        }
    }));
    // Two at once: they have no names that could be taken.
    let (first, second) = tokio::join!(
        service.clone().oneshot(sized("acme", 10)),
        service.clone().oneshot(sized("acme", 10))
    );
    assert_eq!(
        scene.acme.children().len(),
        2,
        "as long as the responses are there"
    );
    drop((first.unwrap(), second.unwrap()));
    let (status, text) = text(service.oneshot(sized("acme", 60 * KIB)).await.unwrap()).await;
    assert_eq!(status, 413, "more than one request may have: {text}");
    scene.assert_given_back();
}

/// The current group of a handler that is dropped in the middle, and of one that panics.
#[tokio::test]
async fn a_handler_that_ends_otherwise_gives_back() {
    let scene = Scene::new();
    let service = scene
        .layer()
        .layer(service_fn(|request: Request<InBody>| async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            if body.len() == 1 {
                panic!("a handler of the test");
            }
            std::future::pending::<Answer>().await
        }));
    let panicked = tokio::spawn(service.clone().oneshot(sized("acme", 1))).await;
    assert!(panicked.unwrap_err().is_panic());
    assert_eq!(scene.acme.live(), 0);
    let aborted = tokio::spawn(service.oneshot(sized("acme", 2)));
    while scene.acme.live() == 0 {
        tokio::task::yield_now().await;
    }
    aborted.abort();
    assert!(aborted.await.is_err());
    scene.assert_given_back();
}

#[tokio::test]
async fn reading_is_held_back_above_high() {
    let scene = Scene::new();
    let service = scene
        .layer()
        .layer(service_fn(|request: Request<InBody>| async move {
            ok(request.into_body().collect().await.unwrap().to_bytes())
        }));
    let mut response = Box::pin(service.oneshot(sized("globex", 1000)));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    scene
        .globex
        .set_limits(Limits::new().high(10 * KIB))
        .unwrap();
    let held = scene.globex.force_charge(100 * KIB);
    assert!(
        response.as_mut().poll(&mut context).is_pending(),
        "the body is there, and is not read"
    );
    drop(held);
    assert_eq!(text(response.await.unwrap()).await.1.len(), 1000);
    scene.assert_given_back();
}

/// The extension is there if something may keep what the request holds: its connection, a body that
/// becomes another one, or a handler that asks.
#[tokio::test]
async fn the_extension_is_there_where_it_is_of_use() {
    let scene = Scene::new();
    let plain = |asks: Request<Body>| asks;
    let upgrades = |mut asks: Request<Body>| {
        asks.headers_mut()
            .insert("upgrade", "websocket".parse().unwrap());
        asks
    };
    let packed = |mut asks: Request<Body>| {
        asks.headers_mut()
            .insert("content-encoding", "gzip".parse().unwrap());
        asks
    };
    type Set = fn(Request<Body>) -> Request<Body>;
    let cases: [(bool, Set, &str); 4] = [
        (false, plain, "false"),
        (false, upgrades, "true"),
        (false, packed, "true"),
        (true, plain, "true"),
    ];
    for (all, set, is) in cases {
        let layer = if all {
            scene.layer().admitted()
        } else {
            scene.layer()
        };
        let service = layer.layer(service_fn(|request: Request<InBody>| async move {
            ok(request
                .extensions()
                .get::<AdmittedRequest>()
                .is_some()
                .to_string())
        }));
        for bytes in [0, 10, 20 * KIB] {
            let answered = service
                .clone()
                .oneshot(set(sized("acme", bytes)))
                .await
                .unwrap();
            assert_eq!(text(answered).await.1, is, "{bytes}");
        }
        scene.assert_given_back();
    }
}
