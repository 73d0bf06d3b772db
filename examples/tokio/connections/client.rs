//! The client: connections that come and go one by one, and many that are there at the same time.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::service::WELCOME;

/// A request goes out in so many pieces, with a pause between any two.
const PIECES: usize = 4;

struct Client {
    stream: TcpStream,
    number: usize,
}

/// One after the other: the next connection is made when the last is gone.
pub(crate) async fn in_turn(
    address: SocketAddr,
    tenants: &[&str],
    count: usize,
    bytes: u32,
) -> io::Result<()> {
    for number in 0..count {
        let mut client = Client::open(address, tenants[number % tenants.len()], number).await?;
        client.request(bytes, Duration::ZERO).await?;
        client.close().await?;
    }
    Ok(())
}

/// All are open and welcome before the first of them asks for anything. The first tenant's requests
/// are the large ones.
pub(crate) async fn at_once(
    address: SocketAddr,
    tenants: &[&str],
    count: usize,
    requests: usize,
    (large, small): (u32, u32),
    pause: Duration,
) -> io::Result<()> {
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        clients.push(Client::open(address, tenants[number % tenants.len()], number).await?);
    }
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let bytes = if client.number % tenants.len() == 0 {
            large
        } else {
            small
        };
        tasks.spawn(async move {
            for _ in 0..requests {
                client.request(bytes, pause).await?;
            }
            client.close().await
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

// === impl Client ===

impl Client {
    async fn open(address: SocketAddr, tenant: &str, number: usize) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let length = u8::try_from(tenant.len()).map_err(io::Error::other)?;
        stream
            .write_all(&[&[length], tenant.as_bytes()].concat())
            .await?;
        match stream.read_u8().await? {
            WELCOME => Ok(Self { stream, number }),
            other => Err(io::Error::other(format!("greeted with {other}"))),
        }
    }

    /// Sends so many bytes, and has them back.
    async fn request(&mut self, bytes: u32, pause: Duration) -> io::Result<()> {
        let body: Vec<u8> = (0..bytes as usize)
            .map(|at| (at % 251 + self.number) as u8)
            .collect();
        self.stream.write_u32(bytes).await?;
        for (number, piece) in body.chunks(body.len().div_ceil(PIECES).max(1)).enumerate() {
            if number > 0 && !pause.is_zero() {
                sleep(pause).await;
            }
            self.stream.write_all(piece).await?;
        }
        let mut answer = vec![0; body.len()];
        if self.stream.read_u32().await? != bytes {
            return Err(io::Error::other("an answer of another length"));
        }
        self.stream.read_exact(&mut answer).await?;
        if answer == body {
            Ok(())
        } else {
            Err(io::Error::other("an answer of other bytes"))
        }
    }

    /// Returns once the service has closed its side, too.
    async fn close(mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        match self.stream.read(&mut [0]).await? {
            0 => Ok(()),
            _ => Err(io::Error::other("bytes that the client has not asked for")),
        }
    }
}
