//! The service: its routes, its layers, its connections.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use memcg::Group;
use memcg_tower::{Admission, AdmissionLayer, ConnectionPace};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::{Layer, Service, ServiceBuilder};

use crate::policy::{BUFFER, Ours, Policy, Value};

/// The time that a request waits for room, and a connection.
const PATIENCE: Duration = Duration::from_millis(100);

/// The policy owns the runtime, so the groups are online as long as the router is there.
#[derive(Clone)]
struct App(Policy);

async fn value(
    State(App(policy)): State<App>,
    Path((tenant, key, len)): Path<(usize, u64, usize)>,
) -> Response<Body> {
    match policy.get(tenant, key, len) {
        Ok((value, hit)) => {
            let mut response = with(value);
            response
                .headers_mut()
                .insert("x-hit", if hit { "1" } else { "0" }.parse().expect("ASCII"));
            response
        }
        // The text names groups, which is for no client.
        Err(_) => (StatusCode::TOO_MANY_REQUESTS, "no room for the value").into_response(),
    }
}

async fn large(Path(len): Path<usize>) -> Response<Body> {
    with(Value::Free(vec![1; len].into()))
}

async fn charged(State(App(policy)): State<App>) -> String {
    policy.charged().to_string()
}

/// A value that its reader has until it is sent.
fn with(value: Value) -> Response<Body> {
    Response::new(Body::from(Bytes::from_owner(value)))
}

// ANCHOR: routes
fn router(policy: &Policy) -> Router {
    let values = Router::new().route("/values/{tenant}/{key}/{len}", get(value));
    let large = Router::new().route("/large/{len}", get(large));
    let app = match policy {
        Policy::Ours(ours) => {
            let slow = ours.tenants[2].clone();
            // The whole answer is reserved, because its reader is slow.
            let whole =
                AdmissionLayer::new(move |_: &Request<_>| Some(slow.clone())).response(ours.large);
            values.merge(large.layer(whole.patience(PATIENCE)))
        }
        Policy::Peer(peer) => {
            let app = values.merge(large);
            match peer.requests {
                None => app,
                Some(requests) => {
                    let shed = |_: tower::BoxError| async { StatusCode::SERVICE_UNAVAILABLE };
                    app.layer(
                        ServiceBuilder::new()
                            .layer(axum::error_handling::HandleErrorLayer::new(shed))
                            .layer(LoadShedLayer::new())
                            .layer(GlobalConcurrencyLimitLayer::new(requests)),
                    )
                }
            }
        }
    };
    app.route("/charged", get(charged))
        .with_state(App(policy.clone()))
}

/// Around the whole router, which costs less than a layer of axum's: no body and no future is put
/// into a box for it.
fn admit(
    ours: &Ours,
    app: Router,
) -> Admission<Router, impl Fn(&Request<Incoming>) -> Option<Group> + use<>> {
    let tenants = ours.tenants.clone();
    let by_path = AdmissionLayer::new(move |request: &Request<Incoming>| {
        let tenant = request
            .uri()
            .path()
            .strip_prefix("/values/")?
            .split('/')
            .next()?;
        tenants.get(tenant.parse::<usize>().ok()?).cloned()
    });
    by_path.patience(PATIENCE).layer(app)
}
// ANCHOR_END: routes

pub(crate) async fn serve(listener: TcpListener, policy: Policy) {
    let app = router(&policy);
    match &policy {
        Policy::Ours(ours) => accept(listener, &policy, admit(ours, app)).await,
        Policy::Peer(_) => accept(listener, &policy, app).await,
    }
}

// ANCHOR: serve
async fn accept<S, B>(listener: TcpListener, policy: &Policy, app: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: HttpBody<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    // A client that takes nothing of its answer is ended, and what that holds comes back.
    let pace = ConnectionPace::new();
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely there are no descriptors, and only time brings some.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let policy = policy.clone();
        let service = TowerToHyperService::new(app.clone());
        connections.spawn(async move {
            // Hyper's buffers are charged as long as the connection is there, idle or not.
            let Ok(charge) = policy.connect(PATIENCE).await else {
                return;
            };
            let mut http = hyper::server::conn::http1::Builder::new();
            // A client that goes is an error of its connection.
            http.max_buf_size(BUFFER)
                .serve_connection(TokioIo::new(pace.connection(stream)), service)
                .await
                .ok();
            drop(charge);
        });
    }
}
// ANCHOR_END: serve
