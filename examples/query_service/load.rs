//! The tenants' queries, and how they arrive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::StreamExt;
use tokio::task::JoinHandle;

use crate::policy::Service;

/// A query that takes longer is given up.
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenant {
    Gold,
    Silver,
    Heavy,
}

impl Tenant {
    pub(crate) const ALL: [Tenant; 3] = [Tenant::Gold, Tenant::Silver, Tenant::Heavy];

    pub(crate) fn name(self) -> &'static str {
        ["gold", "silver", "heavy"][self as usize]
    }

    fn queries(self) -> &'static [Query] {
        match self {
            Tenant::Gold => &GOLD,
            Tenant::Silver => &SILVER,
            Tenant::Heavy => &HEAVY,
        }
    }
}

pub(crate) struct Query {
    pub(crate) name: &'static str,
    sql: &'static str,
}

/// In the form of the benchmark's first and sixth query.
const GOLD: [Query; 2] = [
    Query {
        name: "summary",
        sql: "SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice * (1 - l_discount)), \
              avg(l_discount), count(*) FROM lineitem WHERE l_shipdate <= DATE '1998-09-02' \
              GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus",
    },
    Query {
        name: "revenue",
        sql: "SELECT sum(l_extendedprice * l_discount) FROM lineitem WHERE l_shipdate >= DATE '1994-01-01' \
              AND l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24",
    },
];

/// The second compares ranges, which a nested loop does: that operator grows its reservation
/// without asking.
const SILVER: [Query; 2] = [
    Query {
        name: "join",
        sql: "SELECT o_orderpriority, count(*), sum(l_extendedprice) FROM orders JOIN lineitem \
              ON o_orderkey = l_orderkey WHERE o_orderdate >= DATE '1995-01-01' GROUP BY o_orderpriority",
    },
    Query {
        name: "ranges",
        sql: "SELECT a.o_orderpriority, count(*) FROM (SELECT * FROM orders WHERE o_orderkey < 512) a \
              FULL JOIN (SELECT * FROM orders WHERE o_orderkey < 512) b \
              ON a.o_totalprice < b.o_totalprice AND a.o_orderdate > b.o_orderdate GROUP BY a.o_orderpriority",
    },
];

const HEAVY: [Query; 2] = [
    Query {
        name: "sort",
        sql: "SELECT * FROM lineitem ORDER BY l_comment, l_shipdate",
    },
    Query {
        name: "groups",
        sql: "SELECT l_orderkey, l_partkey, l_suppkey, sum(l_quantity), max(l_comment) FROM lineitem \
              GROUP BY l_orderkey, l_partkey, l_suppkey",
    },
];

/// The end of a query.
#[derive(Debug)]
pub(crate) enum Ended {
    Rows(u64),
    /// Memory was refused.
    Refused(String),
    Failed(String),
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) phase: usize,
    pub(crate) tenant: Tenant,
    pub(crate) query: &'static str,
    pub(crate) number: u64,
    /// From when it was due.
    pub(crate) took: Duration,
    pub(crate) spilled_bytes: u64,
    pub(crate) ended: Ended,
}

/// The load on a service: it counts queries and keeps what each came to.
pub(crate) struct Load {
    service: Arc<Service>,
    numbers: AtomicU64,
    records: Mutex<Vec<Record>>,
}

impl Load {
    pub(crate) fn new(service: Arc<Service>) -> Arc<Load> {
        Arc::new(Load {
            service,
            numbers: AtomicU64::new(0),
            records: Mutex::default(),
        })
    }

    /// Does `work` with what all queries so far came to.
    pub(crate) fn with_records(&self, work: impl FnOnce(&[Record])) {
        work(&self.records.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sends a query at each beat, whether the ones before have ended or not; returns when all
    /// have.
    pub(crate) async fn at_rate(
        self: Arc<Self>,
        phase: usize,
        tenant: Tenant,
        beat: Duration,
        time: Duration,
    ) {
        let begun = Instant::now();
        let mut running = Vec::new();
        for turn in 0.. {
            let due = begun + beat * turn;
            if due - begun >= time {
                break;
            }
            tokio::time::sleep_until(due.into()).await;
            running.push(self.send(phase, tenant, turn as usize, due));
        }
        for query in running {
            query
                .await
                .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
    }

    /// Sends a query when the one before has ended, until the time is over or so many have.
    pub(crate) async fn one_by_one(
        self: Arc<Self>,
        phase: usize,
        client: usize,
        time: Option<Duration>,
        most: usize,
    ) {
        let begun = Instant::now();
        for turn in 0..most {
            if time.is_some_and(|time| begun.elapsed() >= time) {
                break;
            }
            let query = self.send(phase, Tenant::Heavy, client + turn, Instant::now());
            query
                .await
                .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
    }

    /// A query in a task of its own, as in a service: there an operator may wait for memory.
    fn send(
        self: &Arc<Self>,
        phase: usize,
        tenant: Tenant,
        turn: usize,
        due: Instant,
    ) -> JoinHandle<()> {
        // Relaxed: the number orders nothing.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let load = Arc::clone(self);
        let query = &tenant.queries()[turn % tenant.queries().len()];
        tokio::spawn(async move {
            let mut spilled_bytes = 0;
            let rows = run(&load.service, tenant, number, query.sql, &mut spilled_bytes);
            let rows = tokio::time::timeout(DEADLINE, rows).await;
            let ended = match rows {
                Err(_) => Ended::Failed(format!("{} has not ended after {DEADLINE:?}", query.name)),
                Ok(Ok(rows)) => Ended::Rows(rows),
                Ok(Err(error)) => match error.find_root() {
                    DataFusionError::ResourcesExhausted(text) => Ended::Refused(text.clone()),
                    _ => Ended::Failed(error.to_string()),
                },
            };
            let took = due.elapsed();
            let record = Record {
                phase,
                tenant,
                query: query.name,
                number,
                took,
                spilled_bytes,
                ended,
            };
            load.records
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(record);
        })
    }
}

/// Runs a query and reads all its rows, as a client does that keeps none.
async fn run(
    service: &Service,
    tenant: Tenant,
    number: u64,
    sql: &str,
    spilled: &mut u64,
) -> Result<u64> {
    let session = service.session(tenant, number)?;
    let frame = session.sql(sql).await?;
    let context = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await?;
    let mut stream = execute_stream(Arc::clone(&plan), context)?;
    let mut rows = 0;
    let ended = loop {
        match stream.next().await {
            Some(Ok(batch)) => rows += batch.num_rows() as u64,
            Some(Err(error)) => break Err(error),
            None => break Ok(rows),
        }
    };
    *spilled = spilled_bytes(&plan);
    ended
}

/// The bytes that the operators of a plan have written to files.
fn spilled_bytes(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let own = plan
        .metrics()
        .and_then(|metrics| metrics.spilled_bytes())
        .unwrap_or(0) as u64;
    own + plan.children().into_iter().map(spilled_bytes).sum::<u64>()
}
