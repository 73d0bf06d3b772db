//! A service of gRPC, of tonic's health checks, whose calls are charged to the group of their
//! tenant before they run. A tenant that is full gets `RESOURCE_EXHAUSTED` with details, and the
//! other one is answered.
//!
//! ```text
//! cargo run --manifest-path crates/Cargo.toml --example grpc_service
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use memcg::{Limit, Limits, Runtime};
use memcg_tower::{AdmissionLayer, ConnectionPace, Refusal};
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

const STREAMS: u32 = 64;
const STREAM_WINDOW: u32 = 64 << 10;

// ANCHOR: serve
async fn serve(listener: TcpListener, budget: Runtime) -> Result<(), tonic::transport::Error> {
    let admission = AdmissionLayer::new(move |request: &http::Request<Body>| {
        let name = request
            .headers()
            .get("x-tenant")
            .and_then(|name| name.to_str().ok());
        let tenant = name.and_then(|name| budget.root().child(name));
        tenant.ok_or_else(|| Refusal::new(http::StatusCode::FORBIDDEN, "no such tenant"))
    });
    // A client that takes nothing of its answer is ended, and what that holds comes back.
    let pace = ConnectionPace::new();
    let connections = TcpListenerStream::new(listener)
        .map(move |accepted| accepted.map(|stream| pace.connection(stream)));
    let (_reporter, health) = tonic_health::server::health_reporter();
    Server::builder()
        // A call that waits does not read: the window of the connection has room for all streams.
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAMS * STREAM_WINDOW)
        .layer(
            admission
                .unknown_body(64 << 10)
                .patience(Duration::from_millis(20))
                .answer(|refusal| {
                    // The client reads a sentence that tells nothing of other tenants.
                    println!("log: {refusal}");
                    refusal.to_response()
                }),
        )
        .add_service(health)
        .serve_with_incoming(connections)
        .await
}
// ANCHOR_END: serve

async fn check(client: &mut HealthClient<Channel>, tenant: &'static str) -> Result<String, Status> {
    let mut request = Request::new(HealthCheckRequest::default());
    request
        .metadata_mut()
        .insert("x-tenant", tenant.parse().expect("an ASCII name"));
    let response = client.check(request).await?;
    Ok(response.into_inner().status().as_str_name().to_owned())
}

// ANCHOR: refused
fn print_refusal(tenant: &str, status: &Status) {
    println!("{tenant}: {:?}: {}", status.code(), status.message());
    let details = status.get_error_details();
    if let Some(retry) = details.retry_info().and_then(|info| info.retry_delay) {
        println!("  try again after {retry:?}");
    }
    for violation in details
        .quota_failure()
        .map(|failure| &failure.violations[..])
        .unwrap_or_default()
    {
        println!("  short: the {}", violation.subject);
    }
}
// ANCHOR_END: refused

async fn run(address: SocketAddr, budget: &Runtime) -> Result<(), Box<dyn Error>> {
    let mut client = HealthClient::new(
        Endpoint::from_shared(format!("http://{address}"))?
            .connect()
            .await?,
    );
    let acme = budget.group("/acme").expect("it was created");
    for (held, tenant) in [
        (0, "acme"),
        (7 << 20, "acme"),
        (7 << 20, "globex"),
        (0, "acme"),
        (0, "initech"),
        (0, ""),
    ] {
        // The bytes that other calls of the tenant hold.
        let busy = acme.force_charge(held);
        let answer = check(&mut client, tenant).await;
        let is_known = ["acme", "globex"].contains(&tenant);
        assert_eq!(
            answer
                .as_ref()
                .is_err_and(|status| status.code() == Code::PermissionDenied),
            !is_known
        );
        match answer {
            Ok(answer) => println!("{tenant}: {answer}"),
            Err(status) => print_refusal(tenant, &status),
        }
        drop(busy);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // Made and dropped outside of the executor, because the drop of the last handle may block.
    let budget = Runtime::builder().max(Limit::mib(64)).audit(true).build()?;
    for name in ["acme", "globex"] {
        budget
            .root()
            .create(name, Limits::new().max(Limit::mib(7)))?;
    }
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    tokio.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(serve(listener, budget.clone()));
        let ran = run(address, &budget).await;
        server.abort();
        ran
    })?;
    drop(tokio);
    println!("{}", budget.verify());
    assert_eq!(budget.root().live(), 0);
    Ok(())
}
