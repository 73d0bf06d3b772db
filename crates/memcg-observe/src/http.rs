//! A router of axum: `/metrics`, and the files of groups.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Mutex;
use tokio::task;

use crate::exposition::Exposition;
use crate::{CONTENT_TYPE, files};

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
    /// | `/metrics` | [`openmetrics`](Self::openmetrics) |
    /// | `/memcg/acme/memory.max` | what that [`File`](crate::File) of the group `/acme` has; 404 where there is none |
    ///
    /// A request waits for those before it and is then served on tokio's threads for blocking work, so no async worker
    /// reads figures. The router checks no one's rights: nest it behind the service's own layers, or bind it to loopback.
    /// A service that lets limits be set has a handler of its own, which calls [`write`](crate::write).
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
        let shared = Arc::new(Shared { exposition: self, turn: Arc::default() });
        let router = Router::new().route("/metrics", get(metrics)).route("/memcg/{*file}", get(file));
        router.with_state(shared)
    }
}

impl Shared {
    /// Runs `read` once it is its turn, which lasts until its end even where the client has gone meanwhile.
    async fn read(&self, read: impl FnOnce(&Exposition) -> Response + Send + 'static) -> Response {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let exposition = self.exposition.clone();
        let work = move || {
            let response = read(&exposition);
            drop(turn);
            response
        };
        // The task is not aborted, and what it calls contains the panics of foreign code.
        task::spawn_blocking(work).await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    shared.read(|exposition| ([(header::CONTENT_TYPE, CONTENT_TYPE)], exposition.openmetrics()).into_response()).await
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
