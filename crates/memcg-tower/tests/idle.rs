//! The bytes that a connection of HTTP/1.1 really holds while it is idle, by an allocator that
//! charges each object to the group of its connection: the charge that a service makes for it has
//! to cover that.

use std::alloc::System;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use memcg::{Group, GroupName, InGroup, Limits, Runtime};
use memcg_alloc::MemcgAlloc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[global_allocator]
static ALLOCATOR: MemcgAlloc = MemcgAlloc::new(System);

const KIB: usize = 1024;
/// `max_buf_size` where no one sets it: hyper's `DEFAULT_MAX_BUFFER_SIZE`.
const DEFAULT: usize = 408 * KIB;
/// The bytes of a connection before its first request: 8 KiB to read into, 8 KiB for heads of
/// answers, and its state.
const FIRST: usize = 20 * KIB;
/// Hyper keeps the text of the date for all connections of a thread: whichever answers first in a
/// second has made it.
const DATE: u64 = 29;

/// Reads the request's body, drops it, and answers.
async fn read(request: Request<Incoming>) -> Result<Response<Full<bytes::Bytes>>, Infallible> {
    let read = request
        .into_body()
        .collect()
        .await
        .map_or(0, |body| body.to_bytes().len());
    Ok(Response::new(Full::new(read.to_string().into())))
}

/// Serves one connection in the group.
async fn connect(group: &Group, most: Option<usize>) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let mut http = Builder::new();
    if let Some(most) = most {
        http.max_buf_size(most);
    }
    let serve = async move {
        http.serve_connection(TokioIo::new(stream), service_fn(read))
            .await
            .ok();
    };
    tokio::spawn(serve.in_group(group));
    client
}

/// Sends a request whose head has so many bytes more, and whose body so many, and waits for the
/// answer.
async fn ask(client: &mut TcpStream, head: usize, body: usize) {
    let more = "x".repeat(head);
    let request =
        format!("POST / HTTP/1.1\r\nhost: a\r\nx-more: {more}\r\ncontent-length: {body}\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    client.write_all(&vec![1; body]).await.unwrap();
    let mut answer = Vec::new();
    let end = format!("\r\n\r\n{body}");
    while !answer.ends_with(end.as_bytes()) {
        assert!(
            client.read_buf(&mut answer).await.unwrap() > 0,
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert!(
        answer.starts_with(b"HTTP/1.1 200 OK"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

/// The bytes that a connection holds once it waits for the next request, after a head and a body of
/// these sizes.
async fn idle_after(runtime: &Runtime, most: Option<usize>, head: usize, body: usize) -> usize {
    let group = runtime
        .root()
        .scope(GroupName::Unnamed, Limits::new())
        .unwrap();
    let mut client = connect(&group, most).await;
    ask(&mut client, head, body).await;
    // The answer may be there before its task has settled. The task runs on this thread, while this
    // one sleeps.
    let mut held = u64::MAX;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        held = held.min(group.live());
    }
    drop(client);
    let until = Instant::now() + Duration::from_secs(60);
    while group.live() > DATE {
        assert!(
            Instant::now() < until,
            "{} bytes are left of a connection that is gone",
            group.live()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    usize::try_from(held).unwrap()
}

#[tokio::test]
async fn an_idle_connection_holds_up_to_twice_its_largest_buffer() {
    assert!(memcg_alloc::is_installed());
    let runtime = Runtime::builder().build().unwrap();
    for most in [Some(8 * KIB), Some(64 * KIB), None] {
        let bound = most.unwrap_or(DEFAULT);
        let small = idle_after(&runtime, most, 10, 10).await;
        assert!(
            (8 * KIB..FIRST).contains(&small),
            "{small} bytes before anything large came"
        );
        let mut largest = idle_after(&runtime, most, 10, 4096 * KIB).await;
        for eighths in 1..8 {
            largest = largest.max(idle_after(&runtime, most, bound * eighths / 8, 10).await);
        }
        println!("max_buf_size of {bound}: {small} bytes at first, {largest} at most");
        // The trap: the size alone is too little to charge.
        assert!(largest > bound, "{largest} of {bound}");
        assert!(largest <= 2 * bound + FIRST, "{largest} of {bound}");
    }
}
