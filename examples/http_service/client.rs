//! The client, a process of its own: three tenants in three phases, and one of them alone.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::policy::Sizes;

type Failure = Box<dyn Error + Send + Sync>;

/// Idle connections, and slow readers, of tenant `c`.
const IDLE: usize = 100;
const SLOW: usize = 60;

/// The client's report. `a` has its figures for each phase.
#[derive(Deserialize, Serialize)]
pub(crate) struct Report {
    hits: [u64; 3],
    misses: [u64; 3],
    /// 99 of 100 requests of `a` took at most so many milliseconds.
    p99: [f64; 3],
    pub(crate) shed: [u64; 3],
    /// Bytes that were charged while `b` was alone.
    pub(crate) used_alone: u64,
}

impl Report {
    pub(crate) const HEAD: &str = "      hits of a, %      p99 of a, ms  shed: a, b, c";

    fn hit_ratio(&self, phase: usize) -> f64 {
        100.0 * self.hits[phase] as f64 / (self.hits[phase] + self.misses[phase]).max(1) as f64
    }

    /// Points of the hit ratio of `a` that the flood cost.
    pub(crate) fn hit_ratio_lost(&self) -> f64 {
        self.hit_ratio(0) - self.hit_ratio(1)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..3).try_for_each(|phase| write!(f, "{:>6.1}", self.hit_ratio(phase)))?;
        self.p99
            .iter()
            .try_for_each(|time| write!(f, "{time:>6.1}"))?;
        self.shed.iter().try_for_each(|shed| write!(f, "{shed:>5}"))
    }
}

struct Counts {
    phase: AtomicUsize,
    hits: [AtomicU64; 3],
    misses: [AtomicU64; 3],
    shed: [AtomicU64; 3],
    /// Microseconds of the requests of `a`.
    times: Mutex<[Histogram<u64>; 3]>,
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Empty<bytes::Bytes>>, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move { connection.await.ok() });
    Ok(sender)
}

/// Asks for a value. Returns its status, and whether the service had it.
async fn get(
    sender: &mut SendRequest<Empty<bytes::Bytes>>,
    path: &str,
) -> Result<(StatusCode, bool), Failure> {
    sender.ready().await?;
    let request = Request::get(path)
        .header("host", "service")
        .body(Empty::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let hit = response
        .headers()
        .get("x-hit")
        .is_some_and(|hit| hit == "1");
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok((status, hit))
}

/// Has `b` scan more than the budget, alone. Returns the most bytes that were charged meanwhile.
async fn scan_alone(
    sender: &mut SendRequest<Empty<bytes::Bytes>>,
    sizes: Sizes,
) -> Result<u64, Failure> {
    let mut most = 0;
    for key in 0..(sizes.budget + sizes.budget / 4) / sizes.scan_value {
        get(sender, &format!("/values/1/{key}/{}", sizes.scan_value)).await?;
        sender.ready().await?;
        let request = Request::get("/charged")
            .header("host", "service")
            .body(Empty::new())?;
        let body = sender
            .send_request(request)
            .await?
            .into_body()
            .collect()
            .await?
            .to_bytes();
        most = most.max(std::str::from_utf8(&body)?.parse()?);
    }
    Ok(most)
}

/// One connection after the other with requests of a tenant, each of the path that `next` makes.
async fn requests(
    address: SocketAddr,
    counts: Arc<Counts>,
    tenant: usize,
    pause: Duration,
    mut next: impl FnMut() -> String,
) {
    let mut sender = None;
    loop {
        let begun = Instant::now();
        if sender.is_none() {
            sender = connect(address).await.ok();
        }
        let phase = counts.phase.load(Relaxed);
        let got = match sender.as_mut() {
            Some(sender) => get(sender, &next()).await,
            None => Err("no connection".into()),
        };
        match got {
            Ok((StatusCode::OK, hit)) if tenant == 0 => {
                let seen = if hit { &counts.hits } else { &counts.misses };
                seen[phase].fetch_add(1, Relaxed);
                let times = &mut counts.times.lock().unwrap_or_else(PoisonError::into_inner)[phase];
                times.saturating_record(begun.elapsed().as_micros() as u64);
            }
            Ok((StatusCode::OK, _)) => {}
            other => {
                counts.shed[tenant].fetch_add(1, Relaxed);
                sender = sender.filter(|_| other.is_ok());
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Reads an answer slowly, and begins again.
async fn slow_reader(address: SocketAddr, counts: Arc<Counts>, sizes: Sizes) {
    let len = sizes.large;
    loop {
        let read = async {
            let socket = TcpSocket::new_v4()?;
            socket.set_recv_buffer_size(u32::try_from(sizes.socket).unwrap_or(u32::MAX))?;
            let mut stream = socket.connect(address).await?;
            let request =
                format!("GET /large/{len} HTTP/1.1\r\nhost: service\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut head = [0; 12];
            stream.read_exact(&mut head).await?;
            if !head.ends_with(b"200") {
                return Ok(false);
            }
            let mut buffer = vec![0; len / 40 + 1];
            while stream.read(&mut buffer).await? > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok::<_, std::io::Error>(true)
        };
        if !matches!(read.await, Ok(true)) {
            counts.shed[2].fetch_add(1, Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn run(
    address: SocketAddr,
    sizes: Sizes,
    seconds: u64,
) -> Result<Report, Failure> {
    let counts = Arc::new(Counts {
        phase: AtomicUsize::new(0),
        hits: Default::default(),
        misses: Default::default(),
        shed: Default::default(),
        times: Mutex::new([(); 3].map(|()| {
            Histogram::new_with_bounds(1, 60_000_000, 3).expect("three digits of a minute")
        })),
    });
    // The hot set is there before anything is counted.
    let mut warm = connect(address).await?;
    for key in 0..sizes.hot_keys {
        get(&mut warm, &format!("/values/0/{key}/{}", sizes.hot_value)).await?;
    }
    drop(warm);
    // It is there before the budget is full.
    let mut alone = connect(address).await?;
    let phase = Duration::from_secs(seconds);
    let hot_keys = Zipf::new(sizes.hot_keys as f64, 0.99)?;
    let mut hot = JoinSet::new();
    for number in 0..4 {
        let mut random = StdRng::seed_from_u64(number);
        let next = move || {
            format!(
                "/values/0/{}/{}",
                hot_keys.sample(&mut random) as u64 - 1,
                sizes.hot_value
            )
        };
        hot.spawn(requests(
            address,
            Arc::clone(&counts),
            0,
            Duration::from_millis(2),
            next,
        ));
    }
    tokio::time::sleep(phase).await;
    counts.phase.store(1, Relaxed);
    let mut flood = JoinSet::new();
    let scanned = Arc::new(AtomicU64::new(0));
    for _ in 0..8 {
        let scanned = Arc::clone(&scanned);
        let next = move || {
            format!(
                "/values/1/{}/{}",
                scanned.fetch_add(1, Relaxed) % sizes.scan_keys,
                sizes.scan_value
            )
        };
        flood.spawn(requests(
            address,
            Arc::clone(&counts),
            1,
            Duration::ZERO,
            next,
        ));
    }
    for _ in 0..SLOW {
        flood.spawn(slow_reader(address, Arc::clone(&counts), sizes));
    }
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        let mut stream = TcpStream::connect(address).await?;
        // Refused where connections have no room.
        stream
            .write_all(b"GET /none HTTP/1.1\r\nhost: service\r\n\r\n")
            .await
            .ok();
        idle.push(stream);
    }
    tokio::time::sleep(phase).await;
    counts.phase.store(2, Relaxed);
    flood.shutdown().await;
    drop(idle);
    tokio::time::sleep(phase).await;
    hot.shutdown().await;
    let used_alone = scan_alone(&mut alone, sizes).await?;
    let loads = |counts: &[AtomicU64; 3]| std::array::from_fn(|at| counts[at].load(Relaxed));
    let times = counts.times.lock().unwrap_or_else(PoisonError::into_inner);
    let p99 = times
        .each_ref()
        .map(|times| times.value_at_quantile(0.99) as f64 / 1000.0);
    Ok(Report {
        hits: loads(&counts.hits),
        misses: loads(&counts.misses),
        p99,
        shed: loads(&counts.shed),
        used_alone,
    })
}
