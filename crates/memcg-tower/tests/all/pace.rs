//! The time that counts against a client is the time in which a reader waits for it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use memcg::{Limits, Runtime};
use memcg_tower::AdmissionLayer;
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{InBody, ok, request, text, unsized_body};

const TIME: Duration = Duration::from_secs(1);

/// What a handler does between two looks at the body.
#[derive(Clone, Copy, Debug)]
enum Works {
    /// It looks with a timeout, and works then.
    Timeout(Duration),
    /// It reads in a `select!` with its work, which is done first.
    Select(Duration),
    /// Its read has begun and is dropped at once.
    Polls(Duration),
}

impl Works {
    async fn look(self, body: &mut InBody) -> Option<Result<usize, String>> {
        let frame = |frame: Option<Result<hyper::body::Frame<Bytes>, _>>| match frame {
            None => Some(Ok(0)),
            Some(Ok(frame)) => Some(Ok(frame.into_data().map_or(0, |data| data.len()))),
            Some(Err(failed)) => Some(Err::<usize, String>(format!("{failed:?}"))),
        };
        match self {
            Works::Timeout(time) => {
                let looked = timeout(Duration::from_millis(20), body.frame()).await;
                sleep(time).await;
                looked.ok().and_then(frame)
            }
            Works::Select(time) => {
                let looked = tokio::select! {
                    looked = body.frame() => Some(looked),
                    () = sleep(Duration::from_millis(30)) => None,
                };
                sleep(time).await;
                looked.and_then(frame)
            }
            Works::Polls(time) => {
                let looked = futures_util::FutureExt::now_or_never(body.frame());
                let looked = looked.and_then(frame);
                sleep(time).await;
                looked
            }
        }
    }
}

/// A handler that works between looks, and a client that sends meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_a_handler_that_has_dropped_its_read_is_its_own() {
    let works = [
        (Works::Timeout(Duration::from_millis(1500)), 1),
        (Works::Timeout(Duration::from_millis(3000)), 1),
        (Works::Timeout(Duration::from_millis(200)), 12),
        (Works::Select(Duration::from_millis(400)), 8),
        (Works::Polls(Duration::from_millis(50)), 60),
    ];
    let mut tasks = tokio::task::JoinSet::new();
    for (works, looks) in works {
        tasks.spawn(async move {
            let runtime = Runtime::builder().max(64 << 20).build().unwrap();
            let acme = runtime.root();
            let layer = AdmissionLayer::new(move |_: &Request<_>| Some(acme.clone()));
            let layer = layer.body_timeout(TIME).least_rate(500);
            let service = layer.layer(service_fn(move |request: Request<InBody>| async move {
                let mut body = request.into_body();
                let mut read = 0;
                for _ in 0..looks {
                    match works.look(&mut body).await {
                        None => {}
                        Some(Ok(bytes)) => read += bytes,
                        Some(Err(failed)) => return ok(failed),
                    }
                }
                match body.collect().await {
                    Ok(rest) => ok((read + rest.to_bytes().len()).to_string()),
                    Err(failed) => ok(format!("{failed:?}")),
                }
            }));
            let (frames, body) = unsized_body();
            let answer = tokio::spawn(service.oneshot(request("", body)));
            // Once the handler has looked in vain for the first time: ten bytes, and then silence
            // for as long as it works.
            sleep(Duration::from_millis(50)).await;
            frames.send(Bytes::from_static(b"0123456789")).unwrap();
            let time = match works {
                Works::Timeout(time) | Works::Select(time) => time + Duration::from_millis(20),
                Works::Polls(time) => time,
            };
            sleep(time * looks).await;
            let _ = frames.send(Bytes::from_static(b"0123456789"));
            drop(frames);
            let (status, text) = text(answer.await.unwrap().unwrap()).await;
            assert_eq!((status, text.as_str()), (200, "20"), "{works:?}");
            drop(runtime);
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// However a handler reads while it waits: alone, or beside an interval.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_nothing_gets_408() {
    for ticks in [
        None,
        Some(Duration::from_millis(5)),
        Some(Duration::from_millis(40)),
    ] {
        let runtime = Runtime::builder().max(64 << 20).build().unwrap();
        let acme = runtime.root();
        let layer = AdmissionLayer::new(move |_: &Request<_>| Some(acme.clone()));
        let layer = layer.body_timeout(Duration::from_millis(300));
        let service = layer.layer(service_fn(move |request: Request<InBody>| async move {
            let mut body = request.into_body();
            let Some(ticks) = ticks else {
                drop(body.collect().await);
                return ok("");
            };
            loop {
                tokio::select! {
                    frame = body.frame() => match frame {
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => return ok(""),
                    },
                    () = sleep(ticks) => {}
                }
            }
        }));
        let (frames, body) = unsized_body();
        let begun = Instant::now();
        let answer = timeout(Duration::from_secs(60), service.oneshot(request("", body)));
        let (status, _) = text(answer.await.expect("it ends").unwrap()).await;
        assert_eq!(status, 408, "{ticks:?}");
        assert!(begun.elapsed() >= Duration::from_millis(300), "{ticks:?}");
        drop((frames, runtime));
    }
}

/// While the layer holds the body back, no reader waits for the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_a_delay_is_the_tenants() {
    let runtime = Runtime::builder()
        .max(64 << 20)
        .batch(memcg::Bytes(0))
        .build()
        .unwrap();
    let acme = runtime
        .root()
        .create("acme", Limits::new().high(1 << 20))
        .unwrap();
    let tenant = acme.clone();
    let layer = AdmissionLayer::new(move |_: &Request<_>| Some(tenant.clone()));
    let layer = layer.body_timeout(Duration::from_millis(500));
    let service = layer.layer(service_fn(|request: Request<InBody>| async move {
        match request.into_body().collect().await {
            Ok(read) => ok(read.to_bytes().len().to_string()),
            Err(failed) => ok(format!("{failed:?}")),
        }
    }));
    let (frames, body) = unsized_body();
    let answer = tokio::spawn(service.oneshot(request("", body)));
    sleep(Duration::from_millis(100)).await;
    // The first 256 KiB are read, and then its delay of 2 s begins.
    let held = acme.force_charge(16 << 20);
    for _ in 0..5 {
        frames.send(Bytes::from(vec![1; 64 << 10])).unwrap();
    }
    sleep(Duration::from_millis(1500)).await;
    frames.send(Bytes::from_static(b"x")).unwrap();
    drop((held, frames));
    let (status, text) = text(answer.await.unwrap().unwrap()).await;
    assert_eq!((status, text), (200, (5 * (64 << 10) + 1).to_string()));
}
