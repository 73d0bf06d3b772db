//! A router of axum: `/metrics`, and the files of groups.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Mutex;
use tokio::task;

use crate::exposition::Exposition;
use crate::{CONTENT_TYPE, TEXT_CONTENT_TYPE, files};

const TEXT: &str = "text/plain; charset=utf-8";

struct Shared {
    exposition: Exposition,
    /// Held while a thread reads figures, so that any number of requests keeps one thread busy.
    turn: Arc<Mutex<()>>,
}

impl Exposition {
    /// Returns a router for axum that reads and changes nothing:
    ///
    /// | path | answer |
    /// |---|---|
    /// | `/metrics` | [`openmetrics`](Self::openmetrics), or [`text`](Self::text) where the client would rather have that |
    /// | `/readyz` | 200 while the service may get new work, else 503; the text is the pressure level: see [`not_ready_from`](Self::not_ready_from) |
    /// | `/memcg/acme/memory.max` | what that [`GroupFile`](crate::GroupFile) of the group `/acme` has; 404 where there is none |
    ///
    /// `/readyz` is a load and is answered at once. A request for figures waits for those before it
    /// and is then served on tokio's threads for blocking work, so no async worker reads figures.
    /// The router checks no one's rights: nest it behind the service's own layers, or bind it to
    /// loopback. A service that lets limits be set has a handler of its own, which calls
    /// [`write`](crate::write).
    ///
    /// ```
    /// use axum::Router;
    /// use memcg_observe::Exposition;
    ///
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let app: Router = Router::new().merge(Exposition::new(&runtime).router());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        let shared = Arc::new(Shared {
            exposition: self,
            turn: Arc::default(),
        });
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/readyz", get(ready));
        let router = router.route("/memcg/{*file}", get(file));
        router.with_state(shared)
    }
}

impl Shared {
    /// Runs `read` once it is its turn, which lasts until its end even where the client has gone
    /// meanwhile.
    async fn read(&self, read: impl FnOnce(&Exposition) -> Response + Send + 'static) -> Response {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let exposition = self.exposition.clone();
        let work = move || {
            let response = read(&exposition);
            drop(turn);
            response
        };
        // The task is not aborted, and what it calls contains the panics of foreign code.
        task::spawn_blocking(work)
            .await
            .unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
    }
}

async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let accepted = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let wants_text = wants_text(&accepted.collect::<Vec<_>>().join(","));
    let read = move |exposition: &Exposition| {
        let (kind, text) = if wants_text {
            (TEXT_CONTENT_TYPE, exposition.text())
        } else {
            (CONTENT_TYPE, exposition.openmetrics())
        };
        (
            [(header::CONTENT_TYPE, kind), (header::VARY, "accept")],
            text,
        )
            .into_response()
    };
    shared.read(read).await
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let (group, from) = &shared.exposition.ready;
    let pressure = group.pressure_level();
    let status = if pressure >= *from {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    (
        status,
        [(header::CONTENT_TYPE, TEXT)],
        format!("{}\n", pressure.name()),
    )
        .into_response()
}

/// True if a client with this header `Accept` takes plain text, and OpenMetrics not at all or with
/// a lower weight.
fn wants_text(accept: &str) -> bool {
    let ranges: Vec<(String, f32)> = accept.split(',').filter_map(range).collect();
    // The most exact range decides.
    let weight = |kinds: [&str; 3]| {
        kinds
            .iter()
            .find_map(|kind| ranges.iter().find(|range| range.0 == *kind))
    };
    let weight = |kinds| weight(kinds).map_or(0.0, |range| range.1);
    let text = weight(["text/plain", "text/*", "*/*"]);
    text > weight(["application/openmetrics-text", "application/*", "*/*"])
}

/// A range of media types with its weight, such as `text/plain;q=0.5`.
fn range(text: &str) -> Option<(String, f32)> {
    let mut parts = text.split(';').map(|part| part.trim().to_ascii_lowercase());
    let kind = parts.next().filter(|kind| !kind.is_empty())?;
    let weight = parts.find_map(|part| part.strip_prefix("q=")?.trim().parse::<f32>().ok());
    Some((kind, weight.unwrap_or(1.0)))
}

async fn file(State(shared): State<Arc<Shared>>, Path(path): Path<String>) -> Response {
    let read = move |exposition: &Exposition| {
        let (group, name) = path.rsplit_once('/').unwrap_or(("", &path));
        match files::read(&exposition.runtime, &format!("/{group}"), name) {
            Ok(text) => ([(header::CONTENT_TYPE, TEXT)], text).into_response(),
            Err(fault) => (StatusCode::NOT_FOUND, format!("{fault}\n")).into_response(),
        }
    };
    shared.read(read).await
}

#[cfg(test)]
mod tests {
    use super::wants_text;

    #[test]
    fn what_a_client_would_rather_have() {
        for text in [
            "text/plain",
            "TEXT/Plain; version=0.0.4",
            "text/*",
            "text/plain;q=0.5, */*;q=0.1",
        ] {
            assert!(wants_text(text), "{text}");
        }
        let rather = "application/openmetrics-text;q=0.2, text/plain; version=0.0.4; q=0.4";
        assert!(wants_text(rather) && wants_text("application/openmetrics-text;q=0, */*"));
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for other in [
            "",
            "*/*",
            prometheus,
            "application/openmetrics-text, text/plain",
            "text/html",
            "q=1",
            ";,",
            "image/*",
        ] {
            assert!(!wants_text(other), "{other}");
        }
    }
}
