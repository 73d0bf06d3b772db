//! A log shipper: four producers write lines to a channel that is bounded by bytes, and a slow
//! receiver ships them in batches. What finds no room takes the place of older lines or waits, by
//! its level. What became of the lines stands on the page of metrics, beside the bytes of the group.
//!
//! ```text
//! cargo run --manifest-path crates/Cargo.toml -p memcg-examples-log-shipper
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use memcg::{
    Charged, Freshness, Group, Limit, Limits, PressureLevel, Runtime, RuntimeBuilder, StatKey,
    Unit, Weigh,
};
use memcg_observe::Exposition;
use memcg_tokio::{DropPolicy, LossySender, Receiver, SendError, Sender, channel};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PRODUCERS: usize = 4;
const LINES: usize = 2_000;
const BATCH: usize = 32;
/// The time that an error waits for room before it is lost.
const PATIENCE: Duration = Duration::from_millis(50);

// ANCHOR: line
#[derive(Clone, Copy, PartialEq, Eq, Weigh)]
enum Level {
    Debug,
    Info,
    Error,
}

#[derive(Weigh)]
struct Line {
    level: Level,
    service: String,
    text: String,
}
// ANCHOR_END: line

/// Counts of lines, which each group has and the page shows.
#[derive(Clone, Copy)]
struct Counts {
    shipped: StatKey,
    /// Debug lines that were not even tried, because the queue fills.
    shed: StatKey,
    /// Lines whose place later ones have taken.
    dropped: StatKey,
    /// Errors that waited in vain.
    late: StatKey,
}

impl Counts {
    fn declare(builder: &mut RuntimeBuilder) -> Counts {
        let mut count = |name| builder.stat(name, Unit::Events);
        Counts {
            shipped: count("lines_shipped"),
            shed: count("lines_shed"),
            dropped: count("lines_dropped"),
            late: count("lines_late"),
        }
    }
}

// ANCHOR: policy
/// The senders of a producer, one for each policy.
#[derive(Clone)]
struct Lines {
    /// A line of it waits for room.
    wait: Sender<Line>,
    /// A line of it takes the place of the oldest ones, for the last lines before a fault tell most.
    latest: LossySender<Line>,
}

/// Sends a line by the policy of its level. `false` once nobody receives.
async fn log(lines: &Lines, line: Line, counts: Counts) -> bool {
    let group = lines.wait.group();
    let (sent, lost) = match line.level {
        // One load: no charge is tried for what is of no use when memory is short.
        Level::Debug if group.pressure_level() != PressureLevel::Normal => {
            group.stat_add(counts.shed, 1);
            return true;
        }
        Level::Debug | Level::Info => (lines.latest.send(line), counts.dropped),
        Level::Error => {
            let sent = lines.wait.send_timeout(line, PATIENCE).await;
            (sent.map(|()| 0), counts.late)
        }
    };
    match sent {
        Ok(0) => true,
        Ok(dropped) => {
            group.stat_add(lost, dropped as i64);
            true
        }
        Err(SendError::Closed(_)) => false,
        // The line is in the error: a shipper may write it to a file.
        Err(_) => {
            group.stat_add(lost, 1);
            true
        }
    }
}
// ANCHOR_END: policy

/// A service that logs in bursts: more than the receiver takes.
async fn produce(number: usize, lines: Lines, counts: Counts) {
    for at in 0..LINES {
        let level = match at % 10 {
            0 => Level::Error,
            1..5 => Level::Info,
            _ => Level::Debug,
        };
        let line = Line {
            level,
            service: format!("service-{number}"),
            text: "x".repeat(100 + at * 37 % 1_900),
        };
        if !log(&lines, line, counts).await {
            return;
        }
        if at % 100 == 99 {
            tokio::time::sleep(Duration::from_millis(5)).await; // the end of a burst
        }
    }
}

// ANCHOR: ship
/// Takes lines in batches. They stay charged until the network has them.
async fn ship(mut lines: Receiver<Line>, group: Group, counts: Counts) -> usize {
    let mut batch: Vec<Charged<Line>> = Vec::with_capacity(BATCH);
    let mut bytes = 0;
    while lines.recv_many_charged(&mut batch, BATCH).await > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await; // stands for the network
        let texts = batch
            .iter()
            .map(|line| line.service.len() + line.text.len());
        bytes += texts.sum::<usize>();
        group.stat_add(counts.shipped, batch.len() as i64);
        batch.clear();
    }
    bytes
}
// ANCHOR_END: ship

/// The page of metrics, as a monitoring system reads it.
async fn scrape(address: SocketAddr) -> Result<String, Box<dyn Error>> {
    let mut connection = TcpStream::connect(address).await?;
    connection
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await?;
    let mut page = String::new();
    connection.read_to_string(&mut page).await?;
    Ok(page)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut builder = Runtime::builder();
    let counts = Counts::declare(&mut builder);
    let budget = builder.max(Limit::mib(8)).audit(true).build()?;
    let limits = Limits::new().max(Limit::kib(256)).pressure_levels(70, 95);
    let queue = budget.root().create("lines", limits)?;
    let (sender, receiver) = channel::<Line>(&queue);
    let lines = Lines {
        latest: sender.lossy(DropPolicy::Oldest),
        wait: sender,
    };

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let page = Exposition::new(&budget).router();
    let page = tokio::spawn(async move { axum::serve(listener, page).await });

    let shipper = tokio::spawn(ship(receiver, queue.clone(), counts));
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|number| tokio::spawn(produce(number, lines.clone(), counts)))
        .collect();
    drop(lines); // the channel closes with the last producer
    for producer in producers {
        producer.await?;
    }
    let shipped = shipper.await?;

    for line in scrape(address).await?.lines() {
        if line.contains("\"/lines\"") && (line.contains("lines_") || line.contains("peak_bytes")) {
            println!("{line}");
        }
    }
    page.abort();
    let read = queue.read(Freshness::Exact);
    let lines =
        [counts.shipped, counts.shed, counts.dropped, counts.late].map(|stat| read.get(stat));
    println!(
        "{} lines, {shipped} bytes shipped",
        lines.iter().sum::<i64>()
    );
    assert!(queue.peak() <= queue.max() && queue.live() == 0);
    // It may block, as the drop of the last handle may.
    let verdict = tokio::task::spawn_blocking(move || budget.verify().to_string()).await?;
    println!("{verdict}");
    Ok(())
}

#[cfg(test)]
#[path = "heap.rs"]
mod heap;
