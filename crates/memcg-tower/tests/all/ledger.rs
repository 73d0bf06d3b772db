//! The ledger by threads: requests of one tenant that promise, bring their bodies, wait in line and
//! are dropped, on all workers at once. What those that run were promised and charged is within the
//! tenant's max at every moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, SizeHint};
use memcg_tower::PromisedBytes;
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::*;

const MAX: u64 = 100 * KIB as u64;
const TASKS: u64 = 16;
const EACH: u64 = 120;

/// A body of known length, of frames from a channel.
struct Known<B> {
    length: u64,
    inner: B,
}

impl<B: hyper::body::Body<Data = Bytes> + Unpin> hyper::body::Body for Known<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = std::task::ready!(std::pin::Pin::new(&mut self.inner).poll_frame(context));
        let came = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref().map(Bytes::len));
        self.length -= came.unwrap_or(0) as u64;
        std::task::Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length)
    }
}

fn known(length: u64) -> (mpsc::UnboundedSender<Bytes>, Request<Body>) {
    let (frames, mut received) = mpsc::unbounded_channel();
    let inner = StreamBody::new(tokio_stream(move |context| received.poll_recv(context)));
    (
        frames,
        request(
            "acme",
            Body::new(Known {
                length,
                inner: Box::pin(inner),
            }),
        ),
    )
}

/// Weight of a request that runs, until its handler is dropped.
struct Runs(Arc<AtomicU64>, u64);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_runs_is_within_the_max_on_all_threads() {
    let scene = Scene::new();
    let running = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(AtomicUsize::new(0));
    let layer = scene.layer().patience(Duration::from_secs(60));
    let figures = layer.figures();
    let service = {
        let running = Arc::clone(&running);
        layer.layer(service_fn(move |request: Request<InBody>| {
            let running = Arc::clone(&running);
            async move {
                let mut body = request.into_body();
                let total =
                    hyper::body::Body::size_hint(&body).exact().unwrap() + OVERHEAD + RESPONSE;
                // Dropped before the body, which gives back what it was promised.
                let now = running.fetch_add(total, Ordering::SeqCst) + total;
                let _runs = Runs(Arc::clone(&running), total);
                assert!(now <= MAX, "{now} bytes run");
                while let Some(frame) = body.frame().await {
                    frame.unwrap();
                }
                ok("")
            }
        }))
    };
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let service = service.clone();
            let ended = Arc::clone(&ended);
            tokio::spawn(async move {
                for step in 0..EACH {
                    // Above what promises nothing, and so that one to ten of them fit.
                    let number = task * EACH + step;
                    let length = (9 + number * 7 % 60) * 1024;
                    let (frames, asks) = known(length);
                    let brings = async {
                        for _ in 0..4 {
                            frames.send(Bytes::from(vec![1; length as usize / 4])).ok();
                            tokio::task::yield_now().await;
                        }
                        drop(frames);
                    };
                    let asks = service.clone().oneshot(asks);
                    if number.is_multiple_of(5) {
                        // It goes in the middle, in line or as it runs.
                        let mut both = Box::pin(async { tokio::join!(asks, brings) });
                        for _ in 0..number % 4 {
                            let polled = std::future::poll_fn(|context| {
                                std::task::Poll::Ready(both.as_mut().poll(context).is_ready())
                            });
                            if polled.await {
                                break;
                            }
                            tokio::task::yield_now().await;
                        }
                        continue;
                    }
                    let (answer, ()) = tokio::join!(asks, brings);
                    assert_eq!(text(answer.unwrap()).await.0, 200);
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(120), task)
            .await
            .expect("none is stuck")
            .unwrap();
    }
    assert!(
        ended.load(Ordering::Relaxed) as u64 >= TASKS * EACH * 4 / 5 && figures.waits().count > 100
    );
    assert_eq!(
        (
            running.load(Ordering::SeqCst),
            PromisedBytes::to(&scene.acme)
        ),
        (0, PromisedBytes::default())
    );
    scene.assert_given_back();
}
