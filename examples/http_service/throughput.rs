//! The cost of the limits in requests a second: ours beside the same service without it, in turns.
//!
//! Both run at once, with one worker for the two of them. A client of its own process asks the one and then the other, for
//! a moment each, over connections that stay open. So both of a pair meet the same machine.
//!
//! Other programs on the machine take away more of a turn than the limits cost. So the client also reads for how long
//! the threads of the services ran: the processor time of a request says the same with less noise.

use std::error::Error;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::policy::{Policy, Sizes, settle};
use crate::service;

type Failure = Box<dyn Error + Send + Sync>;

const CONNECTIONS: u64 = 16;
const TURN: Duration = Duration::from_millis(100);
/// With fewer pairs the interval has no meaning.
pub(crate) const PAIRS_MIN: usize = 10;

/// A client's connection, which sends one request after the other.
struct Connection {
    stream: TcpStream,
    /// The length of each answer, by the first one.
    answer: usize,
    buffer: Vec<u8>,
    asked: u64,
}

impl Connection {
    async fn open(address: SocketAddr, number: u64, sizes: Sizes) -> Result<Connection, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream, answer: 0, buffer: vec![0; sizes.hot_value + 4096], asked: number };
        // The first time a value is not in the cache, and the answer says so in as many bytes.
        connection.write(sizes).await?;
        let mut read = 0;
        while connection.answer == 0 {
            read += connection.stream.read(&mut connection.buffer[read..]).await?;
            let head = connection.buffer[..read].windows(4).position(|end| end == b"\r\n\r\n");
            if let Some(head) = head {
                connection.answer = head + 4 + sizes.hot_value;
            }
        }
        connection.stream.read_exact(&mut connection.buffer[read..connection.answer]).await?;
        Ok(connection)
    }

    async fn write(&mut self, sizes: Sizes) -> Result<(), Failure> {
        self.asked += CONNECTIONS;
        let path = format!("/values/0/{}/{}", self.asked % sizes.hot_keys, sizes.hot_value);
        let request = format!("GET {path} HTTP/1.1\r\nhost: service\r\n\r\n");
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    /// Asks until the moment. Returns itself and how many answers came.
    async fn ask(mut self, sizes: Sizes, until: Instant) -> Result<(Connection, u64), Failure> {
        let mut answered = 0;
        while Instant::now() < until {
            self.write(sizes).await?;
            self.stream.read_exact(&mut self.buffer[..self.answer]).await?;
            if !self.buffer.starts_with(b"HTTP/1.1 200 OK\r\n") {
                return Err(format!("an answer of another kind: {:?}", self.buffer[..64].utf8_chunks()).into());
            }
            answered += 1;
        }
        Ok((self, answered))
    }
}

/// For how long the threads of both services have run: they are of the process that has started this one. 0 where the
/// system does not say.
fn ran() -> Duration {
    #[cfg(unix)]
    let service = std::os::unix::process::parent_id();
    #[cfg(not(unix))]
    let service = 0;
    let tasks = std::fs::read_dir(format!("/proc/{service}/task"));
    let stats = tasks.into_iter().flatten().flatten().filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(stats.sum())
}

/// Requests that a service answers over these connections: in a second, and in a second of processor time.
async fn turn(connections: &mut Vec<Connection>, sizes: Sizes, time: Duration) -> Result<[f64; 2], Failure> {
    let (begun, ran_before) = (Instant::now(), ran());
    let asks = connections.drain(..).map(|connection| connection.ask(sizes, begun + time));
    let mut all = 0;
    for ended in asks.collect::<JoinSet<_>>().join_all().await {
        let (connection, answered) = ended?;
        connections.push(connection);
        all += answered;
    }
    Ok([begun.elapsed(), ran().saturating_sub(ran_before)].map(|time| all as f64 / time.as_secs_f64()))
}

/// Asks both services in turns. A line has what a turn gives of the one, and of the other.
pub(crate) async fn client(addresses: [SocketAddr; 2], sizes: Sizes, pairs: usize) -> Result<String, Failure> {
    let mut services = [Vec::new(), Vec::new()];
    for (connections, address) in services.iter_mut().zip(addresses) {
        for number in 0..CONNECTIONS {
            connections.push(Connection::open(address, number, sizes).await?);
        }
        // All values are in the cache then.
        while connections.iter().any(|connection| connection.asked < sizes.hot_keys + CONNECTIONS) {
            turn(connections, sizes, TURN).await?;
        }
    }
    let mut lines = String::new();
    for pair in 0..pairs {
        let mut each = [[0.0; 2]; 2];
        // The first of a pair is the second of the next one.
        for at in [pair % 2, 1 - pair % 2] {
            each[at] = turn(&mut services[at], sizes, TURN).await?;
        }
        let line = each.as_flattened().iter().map(f64::to_string).collect::<Vec<_>>();
        lines += &(line.join(" ") + "\n");
    }
    Ok(lines)
}

/// The median, and an interval that has the true one in 95 of 100 runs, whatever the figures' distribution.
fn median(mut figures: Vec<f64>) -> (f64, [f64; 2]) {
    figures.sort_by(f64::total_cmp);
    let (count, half) = (figures.len() as f64, 0.98 * (figures.len() as f64).sqrt());
    let at = |rank: f64| figures[(rank.max(0.0) as usize).min(figures.len() - 1)];
    (at(count / 2.0), [at((count / 2.0 - half).floor()), at((count / 2.0 + half).ceil())])
}

pub(crate) fn run(pairs: usize, sizes: Sizes, scale: usize) -> Result<(), Box<dyn Error>> {
    let (ours, without) = (Policy::new("unaudited", sizes)?, Policy::new("without", sizes)?);
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let output = tokio.block_on(async {
        let mut client = tokio::process::Command::new(std::env::current_exe()?);
        client.args(["--scale", &scale.to_string(), "--throughput", &pairs.to_string()]);
        for (argument, policy) in [("--client", &ours), ("--other", &without)] {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            client.args([argument, &listener.local_addr()?.to_string()]);
            tokio::spawn(service::serve(listener, policy.clone()));
        }
        client.stderr(Stdio::inherit()).kill_on_drop(true).output().await
    })?;
    drop(tokio);
    let printed = String::from_utf8(output.stdout)?;
    if !output.status.success() {
        return Err(format!("the client failed: {}\n{printed}", output.status).into());
    }
    let mut pairs = Vec::new();
    for line in printed.lines() {
        let figures = line.split(' ').map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        pairs.push(<[f64; 4]>::try_from(figures).map_err(|_| "the client prints pairs of two figures")?);
    }
    println!("{} pairs of turns of {} ms, {CONNECTIONS} connections, one worker", pairs.len(), TURN.as_millis());
    let of = |figure: fn(&[f64; 4]) -> f64| median(pairs.iter().map(figure).collect());
    println!("ours     {:>8.0} requests a second", of(|pair| pair[0]).0);
    println!("without  {:>8.0} requests a second", of(|pair| pair[2]).0);
    let (requests, processor) = (of(|pair| pair[0] / pair[2]), of(|pair| pair[1] / pair[3]));
    for (name, (ratio, [low, high])) in [("a second", requests), ("a second of processor time", processor)] {
        // The system may not say for how long a thread ran.
        if ratio.is_nan() {
            continue;
        }
        println!("ratio    {ratio:>8.3} [{low:.3}, {high:.3}] {name}: the median, and where it lies in 95 of 100 runs");
    }
    println!("{}", settle(ours)?.1);
    Ok(())
}
