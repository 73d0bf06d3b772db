//! The client, a process of its own: three tenants in three phases, and one of them alone.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::policy::Sizes;

type Failure = Box<dyn Error + Send + Sync>;

/// Idle connections, and slow readers, of tenant `c`.
const IDLE: usize = 100;
const SLOW: usize = 60;

/// The client's report. `a` has its figures for each phase.
#[derive(Default)]
pub(crate) struct Report {
    hits: [u64; 3],
    misses: [u64; 3],
    /// 99 of 100 requests of `a` took at most so many microseconds.
    p99: [u64; 3],
    shed: [u64; 3],
    answered: [u64; 3],
    /// Thousandths of the budget that were in use while `b` was alone.
    used: [u64; 1],
}

impl Report {
    pub(crate) const HEAD: &str = "    hits of a: before, during, after     p99 of a in ms: the same    shed: a, b, c";

    fn figures(&mut self) -> [&mut u64; 16] {
        let Report { hits, misses, p99, shed, answered, used } = self;
        let mut all = [hits, misses, p99, shed, answered].into_iter().flatten().chain(used);
        std::array::from_fn(|_| all.next().expect("16 figures"))
    }

    pub(crate) fn line(mut self) -> String {
        self.figures().map(|figure| figure.to_string()).join(" ")
    }

    pub(crate) fn parse(line: &str) -> Result<Report, Box<dyn Error>> {
        let mut report = Report::default();
        let mut words = line.split_whitespace();
        for figure in report.figures() {
            *figure = words.next().ok_or_else(|| format!("the client printed {line:?}"))?.parse()?;
        }
        Ok(report)
    }

    fn hit_ratio(&self, phase: usize) -> f64 {
        100.0 * self.hits[phase] as f64 / (self.hits[phase] + self.misses[phase]).max(1) as f64
    }

    /// Points of the hit ratio of `a` that the flood cost.
    pub(crate) fn hit_ratio_lost(&self) -> f64 {
        self.hit_ratio(0) - self.hit_ratio(1)
    }

    pub(crate) fn used_alone(&self) -> u64 {
        self.used[0]
    }

    pub(crate) fn shed(&self, tenant: usize) -> u64 {
        self.shed[tenant]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for phase in 0..3 {
            write!(f, "{:>11.1} %", self.hit_ratio(phase))?;
        }
        for phase in 0..3 {
            write!(f, "{:>9.1}", self.p99[phase] as f64 / 1000.0)?;
        }
        for tenant in 0..3 {
            write!(f, "{:>6}", self.shed[tenant])?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Counts {
    phase: AtomicUsize,
    hits: [AtomicU64; 3],
    misses: [AtomicU64; 3],
    shed: [AtomicU64; 3],
    answered: [AtomicU64; 3],
    times: Mutex<[Vec<u64>; 3]>,
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Empty<bytes::Bytes>>, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move { connection.await.ok() });
    Ok(sender)
}

/// Asks for a value. Returns its status, and whether the service had it.
async fn get(sender: &mut SendRequest<Empty<bytes::Bytes>>, path: &str) -> Result<(StatusCode, bool), Failure> {
    sender.ready().await?;
    let request = Request::get(path).header("host", "service").body(Empty::new())?;
    let response = sender.send_request(request).await?;
    let (status, hit) = (response.status(), response.headers().get("x-hit").is_some_and(|hit| hit == "1"));
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok((status, hit))
}

/// Has `b` scan more than the budget, alone. Returns the most thousandths of the budget that were in use meanwhile.
async fn scan_alone(sender: &mut SendRequest<Empty<bytes::Bytes>>, sizes: Sizes) -> Result<u64, Failure> {
    let mut most = 0;
    for key in 0..(sizes.budget + sizes.budget / 4) / sizes.scan_value {
        get(sender, &format!("/values/1/{key}/{}", sizes.scan_value)).await?;
        sender.ready().await?;
        let request = Request::get("/used").header("host", "service").body(Empty::new())?;
        let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
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
            Ok((StatusCode::OK, hit)) => {
                counts.answered[tenant].fetch_add(1, Relaxed);
                if tenant == 0 {
                    let seen = if hit { &counts.hits } else { &counts.misses };
                    seen[phase].fetch_add(1, Relaxed);
                    let time = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                    counts.times.lock().unwrap_or_else(PoisonError::into_inner)[phase].push(time);
                }
            }
            Ok(_) => {
                counts.shed[tenant].fetch_add(1, Relaxed);
            }
            Err(_) => {
                counts.shed[tenant].fetch_add(1, Relaxed);
                sender = None;
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
            let request = format!("GET /large/{len} HTTP/1.1\r\nhost: service\r\nconnection: close\r\n\r\n");
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
        let count = if matches!(read.await, Ok(true)) { &counts.answered } else { &counts.shed };
        count[2].fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A number of the hot set, by Zipf's law with exponent 0.99.
fn zipf(random: &mut StdRng, sums: &[f64]) -> u64 {
    let at = random.random_range(0.0..*sums.last().expect("keys"));
    sums.partition_point(|&sum| sum < at) as u64
}

pub(crate) async fn run(address: SocketAddr, sizes: Sizes, seconds: u64) -> Result<Report, Failure> {
    let counts = Arc::new(Counts::default());
    // The hot set is there before anything is counted.
    let mut warm = connect(address).await?;
    for key in 0..sizes.hot_keys {
        get(&mut warm, &format!("/values/0/{key}/{}", sizes.hot_value)).await?;
    }
    drop(warm);
    // It is there before the budget is full.
    let mut alone = connect(address).await?;
    let sums: Arc<[f64]> = (1..=sizes.hot_keys)
        .scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-0.99);
            Some(*sum)
        })
        .collect();
    let phase = Duration::from_secs(seconds);
    let mut hot = JoinSet::new();
    for number in 0..4 {
        let (sums, mut random) = (Arc::clone(&sums), StdRng::seed_from_u64(number));
        let next = move || format!("/values/0/{}/{}", zipf(&mut random, &sums), sizes.hot_value);
        hot.spawn(requests(address, Arc::clone(&counts), 0, Duration::from_millis(2), next));
    }
    tokio::time::sleep(phase).await;
    counts.phase.store(1, Relaxed);
    let mut flood = JoinSet::new();
    let scanned = Arc::new(AtomicU64::new(0));
    for _ in 0..8 {
        let scanned = Arc::clone(&scanned);
        let next =
            move || format!("/values/1/{}/{}", scanned.fetch_add(1, Relaxed) % sizes.scan_keys, sizes.scan_value);
        flood.spawn(requests(address, Arc::clone(&counts), 1, Duration::ZERO, next));
    }
    for _ in 0..SLOW {
        flood.spawn(slow_reader(address, Arc::clone(&counts), sizes));
    }
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        let mut stream = TcpStream::connect(address).await?;
        // Refused where connections have no room.
        stream.write_all(b"GET /none HTTP/1.1\r\nhost: service\r\n\r\n").await.ok();
        idle.push(stream);
    }
    tokio::time::sleep(phase).await;
    counts.phase.store(2, Relaxed);
    flood.shutdown().await;
    drop(idle);
    tokio::time::sleep(phase).await;
    hot.shutdown().await;
    let used = [scan_alone(&mut alone, sizes).await?];
    let loads = |counts: &[AtomicU64; 3]| std::array::from_fn(|at| counts[at].load(Relaxed));
    let mut times = std::mem::take(&mut *counts.times.lock().unwrap_or_else(PoisonError::into_inner));
    let p99 = std::array::from_fn(|phase| {
        times[phase].sort_unstable();
        times[phase].get(times[phase].len() * 99 / 100).copied().unwrap_or(0)
    });
    Ok(Report {
        hits: loads(&counts.hits),
        misses: loads(&counts.misses),
        p99,
        shed: loads(&counts.shed),
        answered: loads(&counts.answered),
        used,
    })
}
