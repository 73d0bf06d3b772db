//! A process with the tables, which runs a query for each number that it reads.

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::{Bytes, Group, GroupName, Limits, Runtime};
use memcg_datafusion::{GroupTracer, InGroupSession, PoolConfig, QueryQueue};
use rustix::time::{ClockId, clock_gettime};

use crate::queries::{lines, register, spills, statements};

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Pool {
    Unbounded,
    Greedy,
    Plain,
    /// `spill_on_demand` with a reserve.
    Group,
    /// The same in the queue.
    Queue,
}

impl Pool {
    /// `None`: without groups.
    fn config(self, max: u64) -> Option<PoolConfig> {
        let on_demand = || {
            PoolConfig::new()
                .spill_on_demand()
                .unspillable_reserve(Bytes(max / 32))
        };
        match self {
            Pool::Unbounded | Pool::Greedy => None,
            Pool::Plain => Some(PoolConfig::new()),
            Pool::Group => Some(on_demand()),
            Pool::Queue => Some(on_demand().queue(&QueryQueue::new(3, DEADLINE))),
        }
    }
}

/// An exchange of DataFusion that spills two inputs may stop for ever (apache/datafusion#24883).
const DEADLINE: Duration = Duration::from_secs(120);

/// Results of the statements of a query.
#[derive(Default)]
struct Rows {
    batches: Vec<Vec<RecordBatch>>,
    files: usize,
}

impl Rows {
    async fn of(session: &SessionContext, number: usize) -> Result<Rows> {
        let mut all = Rows::default();
        for statement in statements(number) {
            let frame = session.sql(&statement).await?;
            let context = Arc::new(frame.task_ctx());
            let plan = frame.create_physical_plan().await?;
            let rows = collect(Arc::clone(&plan), context).await;
            if rows.is_err() {
                // The view of a query is dropped for the next run.
                let _ = session.sql("DROP VIEW IF EXISTS revenue").await?;
            }
            all.batches.push(rows?);
            all.files += spills(&plan);
        }
        Ok(all)
    }

    /// Hash of the rows, whatever their order.
    fn hash(&self) -> u64 {
        let mut all: Vec<String> = self.batches.iter().flat_map(|rows| lines(rows)).collect();
        all.sort_unstable();
        let mut hasher = DefaultHasher::new();
        all.hash(&mut hasher);
        hasher.finish()
    }
}

/// As a service runs a query: in a task, and with a group of its own where there are groups.
async fn query(
    sessions: SessionContext,
    tenant: Option<(Group, PoolConfig)>,
    number: usize,
) -> Result<Rows> {
    match tenant {
        None => Rows::of(&sessions, number).await,
        Some((tenant, config)) => {
            let query = sessions.for_query(&tenant, GroupName::Unnamed, Limits::new(), &config)?;
            Rows::of(&query, number).await
        }
    }
}

/// Processor time of the process so far: other work of the machine does not count.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// An answer is `ok SECONDS PROCESSOR_SECONDS HASH FILES`, or `refused` and why.
pub(crate) fn run(pool: Pool, scale: f64, max: u64) -> std::result::Result<(), Box<dyn Error>> {
    let mut env = RuntimeEnvBuilder::new();
    if let Pool::Greedy = pool {
        let bytes = usize::try_from(max)?;
        env = env.with_memory_pool(Arc::new(GreedyMemoryPool::new(bytes)));
    }
    let config = SessionConfig::new().with_target_partitions(2);
    let sessions = SessionContext::new_with_config_rt(config, env.build_arc()?);
    register(&sessions, scale, 8_192);
    let memory = Runtime::builder().build()?;
    let tenant = match pool.config(max) {
        None => None,
        Some(config) => {
            GroupTracer::install()?;
            let max = Limits::new().max(Bytes(max));
            Some((memory.root().create("tenant", max)?, config))
        }
    };
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    for line in std::io::stdin().lock().lines() {
        let number = line?.parse()?;
        let begun = Instant::now();
        let used = processor_time();
        let work = query(sessions.clone(), tenant.clone(), number);
        let ended =
            tokio.block_on(async { tokio::time::timeout(DEADLINE, tokio::spawn(work)).await });
        let seconds = begun.elapsed().as_secs_f64();
        let used = (processor_time() - used).as_secs_f64();
        match ended.map_err(|_| format!("query {number} does not end"))?? {
            Ok(rows) => println!("ok {seconds} {used} {} {}", rows.hash(), rows.files),
            Err(error) => println!("refused {}", error.to_string().replace('\n', " ")),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}
