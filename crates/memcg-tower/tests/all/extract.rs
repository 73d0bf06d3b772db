//! The admitted request as an argument of a handler of axum.

use axum::body::Body;
use axum::routing::get;
use axum::{Extension, Router};
use http::Request;
use http_body_util::BodyExt;
use memcg::Runtime;
use memcg_tower::{AdmissionLayer, AdmittedRequest};
use tower::ServiceExt;

async fn ask(app: &Router, path: &str) -> (u16, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test]
async fn a_handler_without_its_extension_reads_what_is_missing() {
    let runtime = Runtime::builder().max(1 << 20).build().unwrap();
    let routes = Router::new()
        .route(
            "/needs",
            get(|admitted: AdmittedRequest| async move { admitted.reserved().to_string() }),
        )
        .route(
            "/may",
            get(|admitted: Option<AdmittedRequest>| async move {
                admitted
                    .map_or(0, |admitted| admitted.reserved())
                    .to_string()
            }),
        )
        .route(
            "/extension",
            get(
                |Extension(admitted): Extension<AdmittedRequest>| async move {
                    admitted.reserved().to_string()
                },
            ),
        );
    let root = runtime.root();
    let layer = AdmissionLayer::new(move |_: &Request<Body>| Some(root.clone()));
    let layer = layer.overhead(1000).response(24);
    let with = routes.clone().layer(layer.clone().admitted());
    for path in ["/needs", "/may", "/extension"] {
        assert_eq!(ask(&with, path).await, (200, "1024".to_owned()), "{path}");
    }
    for app in [routes.clone().layer(layer), routes] {
        let (status, text) = ask(&app, "/needs").await;
        assert_eq!(status, 500);
        assert!(text.contains(".admitted()"), "{text}");
        assert_eq!(ask(&app, "/may").await, (200, "0".to_owned()));
    }
}
