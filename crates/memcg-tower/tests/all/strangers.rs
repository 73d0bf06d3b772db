//! What a client reads of a refusal: nothing of the tree. Each kind of refusal is made in a tree
//! whose groups have secret names, and every byte of its answer is read, in each protocol.

use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use base64::Engine;
use bytes::Bytes;
use futures_util::StreamExt;
use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use memcg::{Charge, Group, Limits, PressureLevel, Runtime};
use memcg_tower::{AdmissionLayer, BodyError, Refusal, RefusalKind, RequestBody};
use tower::{Layer, ServiceExt, service_fn};

const KIB: usize = 1 << 10;
/// Each name has it.
const SECRET: &str = "s3cret";
/// Usage, max and what is short, in numbers that nothing else has.
const MAX: usize = 113 * KIB;
const BYTES: [&str; 4] = ["113 KiB", "115712", "97 KiB", "99328"];

struct Tree {
    runtime: Runtime,
    acme: Group,
    globex: Group,
}

impl Tree {
    fn new() -> Tree {
        let runtime = Runtime::builder().max(200 * KIB).build().unwrap();
        let create = |name: &str| {
            let limits = Limits::new().max(MAX).pressure_levels(80, 95);
            runtime
                .root()
                .create(&format!("{SECRET}-{name}"), limits)
                .unwrap()
        };
        Tree {
            acme: create("acme"),
            globex: create("globex"),
            runtime,
        }
    }
}

type Layered = AdmissionLayer<Classifier>;
type Classifier = Box<dyn Fn(&Request<Body>) -> Result<Group, Refusal> + Send + Sync>;

/// A request that is refused for this reason, and what makes it so.
struct Case {
    kind: RefusalKind,
    layer: fn(Layered) -> Layered,
    makes: fn(&Tree) -> Vec<Charge>,
    body: fn() -> Body,
}

fn layer(tree: &Tree, refuses: bool) -> Layered {
    let acme = tree.acme.clone();
    let classify: Classifier = Box::new(move |_| {
        if refuses {
            Err(Refusal::new(StatusCode::FORBIDDEN, "no such tenant"))
        } else {
            Ok(acme.clone())
        }
    });
    AdmissionLayer::new(classify)
        .overhead(KIB)
        .response(KIB)
        .unknown_body(4 * KIB)
        .patience(Duration::ZERO)
        .body_timeout(Duration::from_millis(50))
}

fn unsized_body(frames: usize) -> Body {
    let frame = || Ok::<_, Infallible>(Frame::data(Bytes::from(vec![7; 16 * KIB])));
    Body::new(StreamBody::new(
        futures_util::stream::repeat_with(frame).take(frames),
    ))
}

fn cases() -> Vec<Case> {
    let none: fn(&Tree) -> Vec<Charge> = |_| Vec::new();
    let same: fn(Layered) -> Layered = |layer| layer;
    let of = |kind, layer, makes, body| Case {
        kind,
        layer,
        makes,
        body,
    };
    vec![
        of(RefusalKind::TooLarge, same, none, || {
            vec![1; 150 * KIB].into()
        }),
        of(
            RefusalKind::Outgrown,
            same,
            |tree| vec![tree.acme.force_charge(97 * KIB)],
            || unsized_body(10),
        ),
        of(RefusalKind::ResponseTooLarge, same, none, || {
            Body::from("answer 150 KiB")
        }),
        of(
            RefusalKind::TenantFull,
            same,
            |tree| vec![tree.acme.force_charge(97 * KIB)],
            || vec![1; 20 * KIB].into(),
        ),
        of(
            RefusalKind::AboveFull,
            same,
            |tree| {
                vec![
                    tree.globex.force_charge(103 * KIB),
                    tree.acme.force_charge(96 * KIB),
                ]
            },
            Body::empty,
        ),
        of(
            RefusalKind::Offline,
            same,
            |tree| {
                tree.acme.offline().unwrap();
                Vec::new()
            },
            Body::empty,
        ),
        of(
            RefusalKind::NoGroup,
            |layer| layer.request_groups(Limits::new()),
            |tree| {
                tree.acme.offline().unwrap();
                Vec::new()
            },
            Body::empty,
        ),
        of(RefusalKind::TooSlow, same, none, || {
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>())
        }),
        of(RefusalKind::Classifier, same, none, Body::empty),
        of(
            RefusalKind::Shed,
            |layer| layer.shed_from(PressureLevel::Elevated),
            |tree| vec![tree.acme.force_charge(99 * KIB)],
            Body::empty,
        ),
    ]
}

/// A handler that reads the body, and says whatever it finds to its client.
async fn handler(request: Request<RequestBody<Body>>) -> Result<Response<Body>, Infallible> {
    let read = request.into_body().collect().await;
    let said = match read.map(|read| read.to_bytes()) {
        Ok(read) if read.starts_with(b"answer") => {
            return Ok(Response::new(Body::from(vec![7; 150 * KIB])));
        }
        Ok(_) => "read".to_owned(),
        Err(failed) => format!("it failed: {failed}"),
    };
    assert_tells_nothing(&said, "what a handler has to print");
    Ok(Response::new(Body::from(said)))
}

#[track_caller]
fn assert_tells_nothing(answer: &str, what: &str) {
    for secret in [SECRET].iter().chain(&BYTES) {
        assert!(!answer.contains(secret), "{what} tells {secret}: {answer}");
    }
}

/// All bytes of an answer, with what its headers have in base64.
async fn read<B>(response: Response<B>) -> String
where
    B: hyper::body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let mut read = format!("{:?}\n", response.status());
    for (name, value) in response.headers() {
        read += &format!("{name}: {}\n", value.to_str().unwrap());
        if let Ok(decoded) = base64::engine::general_purpose::STANDARD_NO_PAD.decode(value) {
            read += &String::from_utf8_lossy(&decoded);
        }
    }
    let body = response.into_body().collect().await.unwrap().to_bytes();
    read + &String::from_utf8_lossy(&body)
}

#[tokio::test]
async fn no_answer_tells_anything_of_the_tree() {
    for case in cases() {
        let kind = case.kind;
        for content_type in [
            "text/plain",
            "application/grpc",
            "application/grpc-web+proto",
            "application/grpc-web-text",
        ] {
            let tree = Tree::new();
            let told = Arc::new(Mutex::new(Vec::new()));
            let tells = Arc::clone(&told);
            let layer = (case.layer)(layer(&tree, kind == RefusalKind::Classifier));
            let layer = layer.answer(move |refusal| {
                let told = (refusal.to_string(), refusal.group().map(str::to_owned));
                tells.lock().unwrap().push(told);
                refusal.to_response()
            });
            let figures = layer.figures();
            let held = (case.makes)(&tree);
            let service = layer.layer(service_fn(handler));
            let asks = Request::post("/").header(CONTENT_TYPE, content_type);
            let asks = asks.body((case.body)()).unwrap();
            let response = service.oneshot(asks).await.unwrap();
            let what = format!("{kind:?} as {content_type}");
            assert_eq!(figures.refused(kind), 1, "{what}: {figures:?}");
            let is_grpc = content_type.starts_with("application/grpc");
            assert_eq!(response.status() == StatusCode::OK, is_grpc, "{what}");
            if is_grpc {
                let answered = response.headers()[CONTENT_TYPE].to_str().unwrap();
                assert!(
                    answered == content_type || answered == format!("{content_type}+proto"),
                    "{what}: {answered}"
                );
                assert!(response.headers().contains_key("grpc-status"), "{what}");
            }
            let answer = read(response).await;
            assert_tells_nothing(&answer, &what);
            assert!(
                answer.contains(kind.sentence())
                    || matches!(kind, RefusalKind::TooSlow | RefusalKind::Classifier),
                "{what}: {answer}"
            );
            // The operator reads all of it.
            let told = told.lock().unwrap();
            let (text, group) = &told[0];
            let names = !matches!(kind, RefusalKind::TooSlow | RefusalKind::Classifier);
            assert_eq!(
                (group.is_some(), text.contains(SECRET)),
                (names, names),
                "{what}: {text}"
            );
            drop((held, tree.runtime));
        }
    }
    let mut kinds: Vec<_> = cases().iter().map(|case| case.kind.name()).collect();
    kinds.push(RefusalKind::CutOff.name());
    assert_eq!(
        kinds,
        RefusalKind::ALL.map(RefusalKind::name),
        "each kind has a case"
    );
}

/// A response that ends early has no answer, but its error may be printed.
#[tokio::test]
async fn no_error_of_a_body_tells_anything_of_the_tree() {
    let tree = Tree::new();
    let _held = tree.acme.force_charge(97 * KIB);
    let service = layer(&tree, false).layer(service_fn(|_: Request<RequestBody<Body>>| async {
        Ok::<_, Infallible>(Response::new(unsized_body(2)))
    }));
    let response = service.oneshot(Request::new(Body::empty())).await.unwrap();
    let failed = response.into_body().collect().await.unwrap_err();
    assert!(matches!(failed, BodyError::Refused(_)), "{failed:?}");
    assert_tells_nothing(&failed.to_string(), "the error of a body");
    let source = failed.source().expect("the operator reads it").to_string();
    assert!(source.contains(SECRET), "{source}");
}

/// A service may say what it likes.
#[tokio::test]
async fn a_service_answers_itself() {
    let tree = Tree::new();
    let _held = tree.acme.force_charge(MAX);
    let layer = layer(&tree, false).answer(|refusal| {
        let mut response = Response::new(Bytes::from(format!("{}: {refusal}", refusal.sentence())));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    });
    let service = layer.layer(service_fn(handler));
    let response = service.oneshot(Request::new(Body::empty())).await.unwrap();
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    let answer = read(response).await;
    assert!(
        answer.contains(RefusalKind::TenantFull.sentence()) && answer.contains(SECRET),
        "{answer}"
    );
}
