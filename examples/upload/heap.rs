//! Uploads in the middle, and the heap that they really take.

#[path = "../tests/counting.rs"]
mod counting;

use std::sync::Arc;

use counting::{Heap, assert_close};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use super::*;

/// Sends most of a part in small frames, and no more until it may.
fn body(go_on: Arc<Semaphore>) -> Body {
    const FRAME: usize = 16 << 10;
    let frames = tokio_stream::StreamExt::then(tokio_stream::iter(0..PART / FRAME), move |frame| {
        let go_on = Arc::clone(&go_on);
        async move {
            if frame == PART / FRAME - 1 {
                drop(go_on.acquire().await);
            }
            Ok::<_, io::Error>(vec![b'x'; FRAME])
        }
    });
    Body::from_stream(frames)
}

/// The last handle on the runtime goes into the router.
fn service(folder: &std::path::Path) -> (Router, memcg::Group) {
    let budget = tenants().unwrap();
    let acme = budget.group("/acme").unwrap();
    let folder = folder.to_owned();
    (app(App { budget, folder }), acme)
}

#[tokio::test]
async fn heap_is_what_uploads_are_charged() {
    let folder = tempfile::tempdir().unwrap();
    let (app, acme) = service(folder.path());
    let go_on = Arc::new(Semaphore::new(0));
    let upload = |name: &str, body| {
        let request = Request::put(format!("/files/{name}")).header("x-tenant", "acme");
        app.clone().oneshot(request.body(body).unwrap())
    };
    let heap = Heap::measure();
    let uploads =
        ["one", "two", "three"].map(|name| tokio::spawn(upload(name, body(Arc::clone(&go_on)))));
    for _ in 0..10_000 {
        tokio::task::yield_now().await; // all come to their last frame
    }
    assert_close("in the middle", heap.live(), acme.live());
    let fourth = upload("four", Body::from("text")).await.unwrap();
    assert_eq!(fourth.status(), StatusCode::TOO_MANY_REQUESTS);
    go_on.add_permits(100);
    for upload in uploads {
        assert_eq!(upload.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    assert_close("peak", heap.peak(), acme.peak());
}
