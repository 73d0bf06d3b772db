//! Uploads of any length to a service of axum. An upload is admitted by the bytes that it needs
//! while it runs, one buffer of a fixed size, and goes to a file part by part. So a tenant stores
//! files that are larger than its max, and gets 429 where it sends too many at a time.
//!
//! ```text
//! cargo run --manifest-path crates/Cargo.toml -p memcg-examples-upload
//! ```

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::routing::put;
use http_body_util::BodyExt;
use memcg::{Bytes, Limit, Limits, Runtime};
use memcg_tower::{AdmissionLayer, ConnectionPace, Refusal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a handler gathers before it writes.
const PART: usize = 1 << 20;
/// The bytes of a body that may be there and are not in the part yet.
const WINDOW: usize = 64 << 10;

/// What the handlers share.
#[derive(Clone)]
struct App {
    /// A handle on the runtime, which keeps the groups online.
    budget: Runtime,
    folder: PathBuf,
}

// ANCHOR: app
fn app(state: App) -> Router {
    let root = state.budget.root();
    let admission = AdmissionLayer::new(move |request: &Request<Body>| {
        let name = request.headers().get("x-tenant");
        let name = name.and_then(|name| name.to_str().ok());
        let tenant = name.and_then(|name| root.child(name));
        tenant.ok_or_else(|| Refusal::new(StatusCode::FORBIDDEN, "no such tenant"))
    });
    Router::new()
        .route("/files/{name}", put(upload))
        .layer(
            admission
                .overhead(PART + (16 << 10)) // charged before the handler runs
                .body_window(WINDOW) // the handler passes on what it reads
                .response(1 << 10)
                .patience(Duration::from_millis(100))
                .answer(|refusal| {
                    println!("log: {refusal}"); // the client reads nothing of other tenants
                    refusal.to_response()
                }),
        )
        .with_state(state) // the groups are online as long as the router is there
}

/// Ends connections whose clients do not take their answers, so that these come back.
async fn serve(listener: TcpListener, app: Router) -> io::Result<()> {
    axum::serve(ConnectionPace::new().listener(listener), app).await
}
// ANCHOR_END: app

// ANCHOR: upload
/// Writes the body to a file, a part at a time. All that it allocates is its request's overhead.
async fn upload(
    State(app): State<App>,
    Path(name): Path<String>,
    mut body: Body,
) -> Result<String, (StatusCode, String)> {
    let failed = |error: io::Error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    if name.contains(['/', '\\']) || name.starts_with('.') {
        return Err((StatusCode::BAD_REQUEST, "not a file's name".to_owned()));
    }
    let mut file = File::create(app.folder.join(name)).map_err(failed)?;
    let mut part = Vec::with_capacity(PART);
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        // Where the layer has ended the body, the client gets the layer's status in any case.
        let frame = frame.map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
        let Ok(mut data) = frame.into_data() else {
            continue; // trailers
        };
        while !data.is_empty() {
            let fits = data.len().min(PART - part.len());
            part.extend_from_slice(&data.split_to(fits));
            bytes += fits;
            if part.len() == PART {
                (file, part) = write(file, part).await.map_err(failed)?;
            }
        }
    }
    write(file, part).await.map_err(failed)?;
    Ok(format!("{bytes} bytes"))
}

/// Writes a part on a thread for blocking work, and returns the empty buffer. A `tokio::fs::File`
/// would copy it to a buffer of its own.
async fn write(mut file: File, mut part: Vec<u8>) -> io::Result<(File, Vec<u8>)> {
    let written = tokio::task::spawn_blocking(move || {
        file.write_all(&part)?;
        part.clear();
        Ok((file, part))
    });
    written.await?
}
// ANCHOR_END: upload

/// A client that sends its file slowly.
struct Client {
    connection: TcpStream,
    left: usize,
}

impl Client {
    async fn start(
        address: SocketAddr,
        tenant: &str,
        name: &str,
        bytes: usize,
    ) -> io::Result<Client> {
        let mut connection = TcpStream::connect(address).await?;
        let head = format!(
            "PUT /files/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             X-Tenant: {tenant}\r\nContent-Length: {bytes}\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await?;
        Ok(Client {
            connection,
            left: bytes,
        })
    }

    async fn send(&mut self, bytes: usize) -> io::Result<()> {
        self.left -= bytes;
        self.connection.write_all(&vec![b'x'; bytes]).await
    }

    /// Sends the rest, and returns the status and the text of the answer.
    async fn finish(mut self) -> io::Result<String> {
        while self.left > 0 {
            self.send(self.left.min(64 << 10)).await?;
        }
        let mut answer = String::new();
        self.connection.read_to_string(&mut answer).await?;
        let status = answer.split(' ').nth(1).unwrap_or("no status");
        let text = answer.split("\r\n\r\n").nth(1).unwrap_or("no text");
        Ok(format!("{status} {text}"))
    }
}

async fn clients(address: SocketAddr, budget: &Runtime) -> Result<(), Box<dyn Error>> {
    let put = async |tenant, bytes| {
        Client::start(address, tenant, tenant, bytes)
            .await?
            .finish()
            .await
    };
    println!("acme, 16 MiB: {}", put("acme", 16 << 20).await?);
    println!("initech: {}", put("initech", 1 << 10).await?);

    // Three uploads are in the middle, and there is room for no fourth.
    let acme = budget.group("/acme").ok_or("it was created")?;
    let mut running = Vec::new();
    for number in 0..3 {
        let mut client = Client::start(address, "acme", &format!("acme-{number}"), 2 << 20).await?;
        client.send(PART / 2).await?;
        running.push(client);
    }
    while acme.live() < 3 * PART as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("three uploads hold {} or more", Bytes(3 * PART as u64));
    println!("acme, a fourth: {}", put("acme", 1 << 20).await?);
    println!("globex: {}", put("globex", 3 << 20).await?);
    for client in running {
        println!("acme, to the end: {}", client.finish().await?);
    }
    Ok(())
}

fn tenants() -> Result<Runtime, Box<dyn Error>> {
    let budget = Runtime::builder().max(Limit::mib(64)).audit(true).build()?;
    for name in ["acme", "globex"] {
        budget
            .root()
            .create(name, Limits::new().max(Limit::mib(4)))?;
    }
    Ok(budget)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let budget = tenants()?;
    let app = app(App {
        budget: budget.clone(),
        folder: folder.path().to_owned(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(serve(listener, app));
    clients(address, &budget).await?;
    server.abort();

    let root = budget.root();
    while root.live() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await; // the connections end
    }
    assert!(
        budget
            .group("/acme")
            .is_some_and(|acme| acme.peak() <= acme.max())
    );
    // It may block, as the drop of the last handle may.
    let verdict = tokio::task::spawn_blocking(move || budget.verify().to_string()).await?;
    println!("{verdict}");
    Ok(())
}

#[cfg(test)]
#[path = "heap.rs"]
mod heap;
