//! Connections that end where their clients do not take what they are sent, with axum's `serve`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Request;
use memcg::{Group, Limits, Runtime};
use memcg_tower::{AdmissionLayer, ConnectionPace};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::rest::{until_adds_up, until_live};

const KIB: usize = 1 << 10;
const TIME: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_secs(60);

/// `GET /` as a client of HTTP/2 begins, which opens its windows.
const ASKS_HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\
    \0\0\x04\x08\0\0\0\0\0\x3f\xff\xff\xff\
    \0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x01\x01a";

struct Server {
    runtime: Runtime,
    acme: Group,
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

async fn serve(pace: ConnectionPace) -> Server {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(1 << 20))
        .unwrap();
    let tenant = acme.clone();
    let layer = AdmissionLayer::new(move |_: &Request<Body>| Some(tenant.clone()))
        .response(256 * KIB)
        .patience(Duration::from_millis(50));
    let endless = || async {
        let frame = || Ok::<_, Infallible>(Bytes::from(vec![7; 64 * KIB]));
        Body::from_stream(stream::repeat_with(frame))
    };
    let events = || async {
        let event = |number: u32| async move {
            tokio::time::sleep(TIME).await;
            Ok::<_, Infallible>(format!("event {number}\n"))
        };
        Body::from_stream(stream::iter(0..5).then(event))
    };
    let app = Router::new()
        .route("/", get(endless))
        .route("/events", get(events))
        .layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = pace.listener(listener);
    let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Server {
        runtime,
        acme,
        address,
        task,
    }
}

async fn connect(address: SocketAddr, receives: u32) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(receives).unwrap();
    socket.connect(address).await.unwrap()
}

async fn asks(address: SocketAddr, receives: u32, path: &str) -> TcpStream {
    let mut stream = connect(address, receives).await;
    let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

impl Server {
    async fn gives_back(&self) {
        until_live(&self.acme, 0).await;
    }

    async fn ends(self) {
        self.gives_back().await;
        self.task.abort();
        until_adds_up(&self.runtime).await;
    }
}

/// Clients that are there and read nothing: what they hold comes back, and the next one is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_nothing_is_ended() {
    for is_http2 in [false, true] {
        let server = serve(ConnectionPace::new().write_timeout(TIME)).await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            if is_http2 {
                let mut stream = connect(server.address, 64 << 10).await;
                stream.write_all(ASKS_HTTP2).await.unwrap();
                clients.push(stream);
            } else {
                clients.push(asks(server.address, 64 << 10, "/").await);
            }
        }
        let begun = Instant::now();
        while server.acme.live() == 0 {
            assert!(begun.elapsed() < LATE, "none was admitted");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.gives_back().await;
        let mut fifth = asks(server.address, 64 << 10, "/").await;
        let mut answer = [0; 15];
        fifth.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        drop((clients, fifth));
        server.ends().await;
    }
}

/// Time without anything to send is no time of the client's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_events_lives() {
    let pace = ConnectionPace::new().write_timeout(TIME / 4);
    let server = serve(pace).await;
    let mut stream = asks(server.address, 64 << 10, "/events").await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("event 4\n"), "{answer}");
    server.ends().await;
}

/// A client that takes what comes, slowly: less than a third of what the system buffers in the time.
/// One that takes less than the rate is ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_slowly_lives_above_the_rate() {
    for (least_rate, lives) in [(10_000, true), (100_000_000, false)] {
        let pace = ConnectionPace::new()
            .write_timeout(TIME)
            .least_rate(least_rate);
        let server = serve(pace).await;
        let mut stream = asks(server.address, 16 << 10, "/").await;
        let begun = Instant::now();
        let mut buffer = vec![0; 8 << 10];
        let mut read = 0;
        let ended = loop {
            if begun.elapsed() > TIME * 8 {
                break false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            match stream.read(&mut buffer).await {
                Ok(bytes) if bytes > 0 => read += bytes,
                _ => break true,
            }
            // What the server had sent before it ended is still to be read.
            if !lives && server.acme.live() == 0 {
                break true;
            }
        };
        assert_eq!(ended, !lives, "{least_rate} B/s: {read} read");
        drop(stream);
        server.ends().await;
    }
}

#[tokio::test]
async fn what_goes_through_is_as_it_was() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let pace = ConnectionPace::new()
        .write_timeout(Duration::from_millis(200))
        .least_rate(0);
    let sends = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut paced = pace.connection(stream);
        let data: Vec<u8> = (0..8 << 20_u32).map(|number| (number / 7) as u8).collect();
        paced.write_all(&data).await.unwrap();
        paced.shutdown().await.unwrap();
        data
    });
    let mut stream = connect(address, 16 << 10).await;
    let mut read = Vec::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        // The first ones are read slowly, so that writes are tried past the word of the socket.
        if read.len() < 1 << 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        match stream.read(&mut buffer).await.unwrap() {
            0 => break,
            bytes => read.extend_from_slice(&buffer[..bytes]),
        }
    }
    assert!(read == sends.await.unwrap(), "in this order");
}

/// A socket that takes what it is told to.
struct Takes(bool);

impl AsyncWrite for Takes {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        if self.0 {
            Poll::Ready(Ok(data.len()))
        } else {
            Poll::Pending
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A flush that is done ends a wait, and gives no time back; what the client takes after that does.
#[test]
fn what_is_taken_after_a_flush_gives_time_back() {
    let time = Duration::from_millis(1);
    let pace = ConnectionPace::new().write_timeout(time).least_rate(0);
    let mut paced = pace.connection(Takes(false));
    let mut context = Context::from_waker(Waker::noop());
    let mut paced = Pin::new(&mut paced);
    let waits = paced.as_mut().poll_write(&mut context, b"one");
    assert!(waits.is_pending(), "{waits:?}");
    std::thread::sleep(5 * time);
    let flushed = paced.as_mut().poll_flush(&mut context);
    assert!(matches!(flushed, Poll::Ready(Ok(()))), "{flushed:?}");
    paced.as_mut().get_mut().get_mut().0 = true;
    let taken = paced.as_mut().poll_write(&mut context, b"one");
    assert!(matches!(taken, Poll::Ready(Ok(3))), "{taken:?}");
    paced.as_mut().get_mut().get_mut().0 = false;
    let waits = paced.as_mut().poll_write(&mut context, b"two");
    assert!(waits.is_pending(), "it has all of its time: {waits:?}");
}
