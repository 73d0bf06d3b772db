//! A process that runs the mix once, with one pool below one limit.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;
use memcg::{Bytes, Group, Limits, Runtime};
use memcg_datafusion::{InGroupSession, PoolConfig, QueryQueue, QuerySession};

use crate::kinds::{KINDS, sql, tables};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Pool {
    Greedy,
    Fair,
    Plain,
    Demand,
    Reserve,
    Queue,
}

/// Settings of a run of the mix.
#[derive(Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) pool: Pool,
    pub(crate) limit: u64,
    pub(crate) rows: u64,
    pub(crate) at_once: usize,
    /// Seed of the order of the queries.
    pub(crate) seed: u64,
    /// Runs of each kind of query, for each tenant.
    pub(crate) times: usize,
    /// A bit for each kind that runs.
    pub(crate) kinds: u32,
    /// What a query waits in the queue in all.
    pub(crate) patience: Duration,
}

const PARTITIONS: u64 = 4;
/// An exchange of DataFusion that spills two inputs may stop for ever (apache/datafusion#24883), so a
/// query that goes on for so long beyond its patience is given up.
const BEYOND_PATIENCE: Duration = Duration::from_secs(20);
const ATTEMPTS: u32 = 3;

/// Memory of all queries: one flat pool, or groups below a root with a max.
enum Memory {
    Flat(Arc<dyn MemoryPool>),
    Groups {
        _runtime: Runtime,
        root: Group,
        tenants: [Group; 2],
        config: PoolConfig,
    },
}

/// The session of one query.
enum Session {
    Flat(SessionContext),
    Own(QuerySession),
}

impl std::ops::Deref for Session {
    type Target = SessionContext;

    fn deref(&self) -> &SessionContext {
        match self {
            Session::Flat(session) => session,
            Session::Own(query) => query,
        }
    }
}

/// Result of a query: its number of rows, the text of its refusal, or no end before the deadline.
enum End {
    Rows(usize),
    Refused(String),
    Hangs,
}

fn settings(limit: u64) -> SessionConfig {
    SessionConfig::new()
        .with_target_partitions(PARTITIONS as usize)
        .with_batch_size(batch_rows(limit) as usize)
        .with_sort_spill_reservation_bytes(usize::try_from(limit / 64).unwrap_or(usize::MAX))
}

/// A sort reserves more than twice a batch at a time.
fn batch_rows(limit: u64) -> u64 {
    (limit >> 15).clamp(64, 8_192)
}

impl Memory {
    fn new(mix: &Mix, queue: &QueryQueue) -> std::result::Result<Memory, Box<dyn Error>> {
        let bytes = usize::try_from(mix.limit)?;
        let demand = PoolConfig::new().spill_on_demand();
        let config = match mix.pool {
            Pool::Greedy => return Ok(Memory::Flat(Arc::new(GreedyMemoryPool::new(bytes)))),
            Pool::Fair => return Ok(Memory::Flat(Arc::new(FairSpillPool::new(bytes)))),
            Pool::Plain => PoolConfig::new(),
            Pool::Demand => demand,
            Pool::Reserve => demand.unspillable_reserve(Bytes(mix.limit / 8)),
            Pool::Queue => demand.queue(queue),
        };
        let runtime = Runtime::builder().max(Bytes(mix.limit)).build()?;
        let root = runtime.root();
        let tenants = [
            root.create("a", Limits::new())?,
            root.create("b", Limits::new())?,
        ];
        Ok(Memory::Groups {
            _runtime: runtime,
            root,
            tenants,
            config,
        })
    }

    fn session(&self, base: &SessionContext, tenant: usize, number: u64) -> Result<Session> {
        match self {
            Memory::Flat(_) => Ok(Session::Flat(SessionContext::new_with_state(base.state()))),
            Memory::Groups {
                tenants, config, ..
            } => base
                .for_query(&tenants[tenant], number, Limits::new(), config)
                .map(Session::Own),
        }
    }

    fn base(&self, tables: &[(&'static str, Arc<MemTable>)], limit: u64) -> Result<SessionContext> {
        let pool = match self {
            Memory::Flat(pool) => Arc::clone(pool),
            Memory::Groups { .. } => Arc::new(UnboundedMemoryPool::default()),
        };
        let env = RuntimeEnvBuilder::new()
            .with_memory_pool(pool)
            .build_arc()?;
        let session = SessionContext::new_with_config_rt(settings(limit), env);
        for (name, table) in tables {
            session.register_table(*name, Arc::clone(table) as _)?;
        }
        Ok(session)
    }
}

async fn rows(session: &Session, kind: usize, copy: PathBuf) -> Result<usize> {
    let kind = &KINDS[kind];
    for setting in kind.1 {
        session.sql(setting).await?.collect().await?;
    }
    let mut stream = session
        .sql(&sql(kind, &copy))
        .await?
        .execute_stream()
        .await?;
    let mut rows = 0;
    while let Some(batch) = stream.next().await {
        rows += batch?.num_rows();
    }
    let _ = std::fs::remove_dir_all(copy);
    Ok(rows)
}

/// As a service runs a query: in a task, with a session of its own.
async fn end(session: Result<Session>, kind: usize, copy: PathBuf, deadline: Duration) -> End {
    let task = tokio::spawn(async move { rows(&session?, kind, copy).await });
    let aborts = task.abort_handle();
    match tokio::time::timeout(deadline, task).await {
        Ok(Ok(Ok(rows))) => End::Rows(rows),
        Ok(Ok(Err(error))) => End::Refused(words(&error)),
        Ok(Err(panic)) => End::Refused(panic.to_string()),
        Err(_) => {
            aborts.abort();
            End::Hangs
        }
    }
}

fn words(error: &DataFusionError) -> String {
    error.to_string().replace('\n', " ")
}

/// The most that a flat pool has reserved, at looks of a millisecond.
fn watch(pool: Arc<dyn MemoryPool>, most: Arc<AtomicU64>, ends: Arc<AtomicBool>) {
    // Relaxed, both: a figure, and a flag that carries nothing.
    while !ends.load(Ordering::Relaxed) {
        most.fetch_max(pool.reserved() as u64, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The most that was resident, in KiB; 0 where the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or(0)
}

/// The numbers below `count` in an order of their own for each seed.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<_> = (0..count).collect();
    let mut bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for at in (1..count).rev() {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        order.swap(at, usize::try_from(bits % (at as u64 + 1)).unwrap_or(0));
    }
    order
}

/// Prints a line for each query, and one for the whole mix.
pub(crate) fn run(mix: &Mix) -> std::result::Result<(), Box<dyn Error>> {
    let tables = tables(mix.rows, batch_rows(mix.limit), PARTITIONS)?;
    let queue = QueryQueue::new(ATTEMPTS, mix.patience);
    let memory = Memory::new(mix, &queue)?;
    let base = memory.base(&tables, mix.limit)?;
    let most = Arc::new(AtomicU64::new(0));
    let ends = Arc::new(AtomicBool::new(false));
    if let Memory::Flat(pool) = &memory {
        let pool = Arc::clone(pool);
        let most = Arc::clone(&most);
        let ends = Arc::clone(&ends);
        std::thread::spawn(move || watch(pool, most, ends));
    }
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut order = shuffled(KINDS.len() * 2 * mix.times, mix.seed);
    order.retain(|number| mix.kinds >> (number % KINDS.len()) & 1 > 0);
    let folder = std::env::temp_dir().join(format!("memcg-mix-{}", std::process::id()));
    let deadline = mix.patience + BEYOND_PATIENCE;
    let begun = Instant::now();
    let ended: Vec<_> = tokio.block_on(
        futures::stream::iter(order)
            .map(|number| {
                let kind = number % KINDS.len();
                let tenant = number / KINDS.len() % 2;
                let session = memory.session(&base, tenant, number as u64);
                let copy = folder.join(number.to_string());
                async move {
                    let begun = Instant::now();
                    (
                        kind,
                        end(session, kind, copy, deadline).await,
                        begun.elapsed().as_secs_f64(),
                    )
                }
            })
            .buffer_unordered(mix.at_once)
            .collect(),
    );
    let seconds = begun.elapsed().as_secs_f64();
    let _ = std::fs::remove_dir_all(folder);
    let mut well = 0;
    let mut hung = BTreeMap::new();
    for (kind, end, seconds) in ended {
        match end {
            End::Rows(rows) => {
                well += 1;
                println!("ended {kind} {seconds:.3} {rows}");
            }
            End::Refused(why) => println!("refused {kind} {seconds:.3} {why}"),
            End::Hangs => *hung.entry(kind).or_insert(0) += 1,
        }
    }
    for (kind, times) in &hung {
        println!("hangs {kind} {times}");
    }
    ends.store(true, Ordering::Relaxed);
    let peak = match &memory {
        Memory::Flat(_) => most.load(Ordering::Relaxed),
        Memory::Groups { root, .. } => root.peak(),
    };
    let counts = queue.counts();
    let [restarts, after] = [counts.restarts, counts.refused_after_first_row];
    println!(
        "mix {well} {seconds:.3} {peak} {} {restarts} {after}",
        resident() << 10
    );
    // A query that hangs would keep the runtime.
    tokio.shutdown_background();
    Ok(())
}
