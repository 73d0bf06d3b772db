//! The load: `gold` asks short queries, `heavy` runs large jobs.

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ballista::prelude::SessionContextExt;
use ballista_core::extension::SessionConfigExt;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg_ballista::TenantOptions;
use tokio::task::JoinSet;

use crate::process::{Cluster, code};
use crate::{Options, data};

/// An aggregation, a join that keeps the orders with their texts in memory, and a join of two
/// tables with few columns: variants of queries 1, 18 and 3.
const GOLD: [&str; 3] = [
    "SELECT l_returnflag, l_linestatus, sum(l_quantity), avg(l_extendedprice), count(*) FROM lineitem \
     WHERE l_shipdate <= DATE '1998-09-02' GROUP BY 1, 2",
    "SELECT o_orderpriority, max(o_comment), max(o_clerk), sum(l_quantity) FROM orders JOIN lineitem \
     ON o_orderkey = l_orderkey GROUP BY 1",
    "SELECT o_orderpriority, count(*) FROM customer JOIN orders ON c_custkey = o_custkey \
     WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE '1995-03-15' GROUP BY 1",
];

/// A group for each row with its text, and a window over all rows.
pub(crate) const HEAVY: [(&str, &str); 2] = [
    (
        "aggregate",
        "SELECT count(*), sum(c) FROM (SELECT l_comment, l_orderkey, l_linenumber, count(*) AS c, \
         max(l_shipinstruct) FROM lineitem GROUP BY 1, 2, 3)",
    ),
    (
        "window",
        "SELECT max(l_comment), max(l_shipinstruct), max(l_shipmode), count(*) FROM (SELECT *, \
         avg(l_extendedprice) OVER () AS a FROM lineitem) WHERE l_extendedprice > a",
    ),
];

/// The time that a client waits after a refusal.
const PAUSE: Duration = Duration::from_millis(500);

/// The time between two looks at the executors.
const LOOK: Duration = Duration::from_millis(20);

/// The outcomes of a client's queries.
#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) times: Vec<Duration>,
    pub(crate) errors: Vec<String>,
}

pub(crate) struct Outcome {
    pub(crate) gold: Answers,
    /// Queries of gold that were to be asked.
    pub(crate) of_gold: usize,
    /// Of each job of heavy.
    pub(crate) heavy: [Answers; 2],
    /// Exit codes of executors that are gone.
    pub(crate) gone: Vec<i32>,
    pub(crate) peak: u64,
    /// Why an executor was in no control group.
    pub(crate) unlimited: Option<String>,
}

impl Outcome {
    pub(crate) fn is_as_it_should_be(&self) -> bool {
        self.gone.is_empty() && self.gold.errors.is_empty() && self.gold.times.len() == self.of_gold
    }
}

pub(crate) async fn run(
    cluster: &mut Cluster,
    tables: &Path,
    options: &Options,
) -> Result<Outcome, Box<dyn Error>> {
    let patience = options.patience();
    let [gold, first, second] = [(); 3].map(|()| Arc::new(Mutex::new(Answers::default())));
    let is_over = Arc::new(AtomicBool::new(false));
    // Dropped, it ends its tasks.
    let mut clients = JoinSet::new();
    for ((_, query), answers) in HEAVY.into_iter().zip([&first, &second]) {
        let session = client(&cluster.url, "heavy", 4, tables).await?;
        let answers = Arc::clone(answers);
        let is_over = Arc::clone(&is_over);
        clients.spawn(async move {
            loop {
                let answer = ask(&session, query, patience).await;
                let is_refused = answer.is_err();
                lock(&answers).add(answer);
                // At least once each.
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                if is_refused {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        });
    }
    let session = client(&cluster.url, "gold", 1, tables).await?;
    let answers = Arc::clone(&gold);
    let rounds = options.rounds();
    let over = Arc::clone(&is_over);
    clients.spawn(async move {
        for _ in 0..rounds {
            for query in GOLD {
                let answer = ask(&session, query, patience).await;
                lock(&answers).add(answer);
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let mut gone = vec![None; cluster.executors.len()];
    while !clients.is_empty() {
        for (executor, gone) in cluster.executors.iter_mut().zip(&mut gone) {
            *gone = gone.or_else(|| executor.look().map(code));
        }
        if gone.iter().all(Option::is_some) {
            eprintln!("no executor is left");
            break;
        }
        if let Ok(Some(done)) = tokio::time::timeout(LOOK, clients.join_next()).await {
            done?;
        }
    }
    clients.shutdown().await;
    Ok(Outcome {
        gold: std::mem::take(&mut lock(&gold)),
        of_gold: options.rounds() * GOLD.len(),
        heavy: [&first, &second].map(|answers| std::mem::take(&mut *lock(answers))),
        gone: gone.into_iter().flatten().collect(),
        peak: cluster
            .executors
            .iter()
            .map(|executor| executor.peak)
            .max()
            .unwrap_or(0),
        unlimited: cluster.unlimited.clone(),
    })
}

fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Answers {
    fn add(&mut self, answer: Result<Duration, String>) {
        match answer {
            Ok(time) => self.times.push(time),
            Err(error) => self.errors.push(error),
        }
    }
}

async fn client(
    url: &str,
    tenant: &str,
    tasks: usize,
    tables: &Path,
) -> Result<SessionContext, Box<dyn Error>> {
    let config = SessionConfig::new_with_ballista()
        .with_target_partitions(tasks)
        .set_bool("datafusion.optimizer.prefer_hash_join", true)
        .with_option_extension(TenantOptions::of(tenant));
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .build();
    let session = SessionContext::remote_with_state(url, state).await?;
    data::register(&session, tables).await?;
    Ok(session)
}

async fn ask(
    session: &SessionContext,
    query: &str,
    patience: Duration,
) -> Result<Duration, String> {
    let begun = Instant::now();
    let rows = async { session.sql(query).await?.collect().await };
    match tokio::time::timeout(patience, rows).await {
        Ok(Ok(_)) => Ok(begun.elapsed()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!(
            "no answer in {} s: an executor is gone, or an exchange has stopped (apache/datafusion#24883)",
            patience.as_secs()
        )),
    }
}
