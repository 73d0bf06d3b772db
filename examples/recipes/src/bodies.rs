//! hyper: a body that stays charged until its last byte is in the socket.
//!
//! A handler that drops its charge when it returns has given it back long before a slow client has
//! the answer. `Bytes::from_owner` keeps both: hyper's slices of the body share them.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use memcg::{Charged, Group};
use tokio::net::TcpListener;

/// The time that an answer waits for room.
const PATIENCE: Duration = Duration::from_millis(250);

/// Makes a body of `len` bytes, charged before `fill` makes it. 503 and the refusal if there is no
/// room.
pub async fn body(
    group: &Group,
    len: usize,
    fill: impl FnOnce() -> Vec<u8>,
) -> Response<Full<Bytes>> {
    match group.charge_async(len).timeout(PATIENCE).await {
        Ok(charge) => Response::new(Full::new(Bytes::from_owner(Charged::new(fill(), charge)))),
        Err(refused) => {
            let mut response = Response::new(Full::new(refused.to_string().into()));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        }
    }
}

/// Answers each request with as many bytes as its path says.
pub async fn serve(listener: TcpListener, group: Group) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let group = group.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request: Request<Incoming>| {
                let group = &group;
                async move {
                    let len = request.uri().path()[1..].parse().unwrap_or(0);
                    Ok::<_, Infallible>(body(group, len, || vec![b'x'; len]).await)
                }
            });
            // A client that goes away is no fault of the service.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}
