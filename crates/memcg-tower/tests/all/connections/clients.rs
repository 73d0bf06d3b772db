//! Clients of HTTP/1.1 that stop or go in the middle.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::server::{LARGE, MAX, MIB, Server};
use crate::rest::{TIME, until};

const ASKS_FOR_LARGE: &[u8] = b"GET /large HTTP/1.1\r\nhost: a\r\nx-tenant: acme\r\n\r\n";

fn head(length: usize) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nhost: a\r\nx-tenant: acme\r\ncontent-length: {length}\r\n\r\n")
        .into_bytes()
}

/// Clients that go after each number of bytes sent, after each number of bytes received, and while
/// a handler runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_leaves_nothing() {
    let server = Server::start(TIME).await;
    let mut request = head(3000);
    request.extend(vec![1; 3000]);
    for sent in (0..200).chain((200..request.len()).step_by(97)) {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(&request[..sent]).await.unwrap();
        stream.flush().await.unwrap();
        if sent % 3 == 0 {
            // It has been read by then, mostly.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    for received in (1..200).step_by(7).chain((1000..LARGE).step_by(200_000)) {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(ASKS_FOR_LARGE).await.unwrap();
        stream.read_exact(&mut vec![0; received]).await.unwrap();
    }
    for _ in 0..20 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream
            .write_all(b"GET /never HTTP/1.1\r\nhost: a\r\nx-tenant: acme\r\n\r\n")
            .await
            .unwrap();
        until(|| server.acme.live() > 0, || "it runs".to_owned()).await;
    }
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    drop(stream);
    server.end().await;
}

/// Half-sent bodies hold the bytes of their tenant, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_stop_hold_only_their_own_tenant() {
    let server = Server::start(Duration::from_millis(50)).await;
    let mut stopped = Vec::new();
    for _ in 0..6 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(&head(MIB)).await.unwrap();
        stream.write_all(&[1; 1000]).await.unwrap();
        stopped.push(stream);
    }
    server.has(6, 0).await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let shed = client.request(server.request("acme", MIB)).await.unwrap();
    assert_eq!(shed.status(), StatusCode::TOO_MANY_REQUESTS);
    for _ in 0..20 {
        assert_eq!(
            client
                .request(server.request("globex", MIB))
                .await
                .unwrap()
                .status(),
            StatusCode::OK
        );
    }
    drop(stopped);
    server.end().await;
}

/// The bytes that a connection has not sent stay charged, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_its_answer_and_no_other_tenant() {
    let server = Server::start(Duration::from_millis(50)).await;
    let mut slow = Vec::new();
    for _ in 0..3 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let mut stream = socket.connect(server.address).await.unwrap();
        stream.write_all(ASKS_FOR_LARGE).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'H');
        slow.push(stream);
    }
    server.has(3, 0).await;
    until(
        || server.acme.live() > 3 * LARGE as u64,
        || "the answers are charged".to_owned(),
    )
    .await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    for _ in 0..20 {
        assert_eq!(
            client
                .request(server.request("globex", MIB))
                .await
                .unwrap()
                .status(),
            StatusCode::OK
        );
        assert!(
            server.acme.live() > 3 * LARGE as u64,
            "{} bytes",
            server.acme.live()
        );
    }
    let shed = client.request(server.request("acme", MIB)).await.unwrap();
    assert_eq!(shed.status(), StatusCode::TOO_MANY_REQUESTS);
    for stream in &mut slow {
        let mut answer = vec![b'H'];
        while !answer.ends_with(&[7; LARGE]) {
            assert!(
                stream.read_buf(&mut answer).await.unwrap() > 0,
                "{} bytes came",
                answer.len()
            );
        }
    }
    // Though their connections are open.
    server.end().await;
    drop(slow);
}

/// The layer asks for a body by reading it, which it does where the request is admitted alone.
#[tokio::test]
async fn a_client_that_expects_100_sends_no_body_that_is_refused() {
    let server = Server::start(Duration::ZERO).await;
    let mut head = head(MIB);
    head.truncate(head.len() - 2);
    head.extend(b"expect: 100-continue\r\n\r\n");
    let first_of_answer = async |stream: &mut TcpStream| {
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        String::from_utf8(first.to_vec()).unwrap()
    };
    let held = server.acme.force_charge(MAX);
    let mut refused = TcpStream::connect(server.address).await.unwrap();
    refused.write_all(&head).await.unwrap();
    assert_eq!(first_of_answer(&mut refused).await, "HTTP/1.1 429");
    drop(held);
    let mut admitted = TcpStream::connect(server.address).await.unwrap();
    admitted.write_all(&head).await.unwrap();
    assert_eq!(first_of_answer(&mut admitted).await, "HTTP/1.1 100");
    admitted
        .read_exact(&mut [0; " Continue\r\n\r\n".len()])
        .await
        .unwrap();
    admitted.write_all(&vec![1; MIB]).await.unwrap();
    assert_eq!(first_of_answer(&mut admitted).await, "HTTP/1.1 200");
    server.end().await;
}
