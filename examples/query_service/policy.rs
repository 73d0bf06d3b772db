//! The policy between the queries and the memory.

use std::num::NonZeroUsize;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, TrackConsumersPool, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::errors::LimitError;
use memcg::{Bytes, CounterKey, Event, Group, Limit, Limits, OomPolicy, Percent, Runtime};
use memcg_datafusion::{GroupTracer, InGroupSession, PoolConfig, QuerySession};

use crate::data::{PARTITIONS, Tables, batch};
use crate::load::Tenant;

/// The number of consumers that `TrackConsumersPool` names.
const NAMED: NonZeroUsize = NonZeroUsize::new(5).unwrap();

/// The number of files that a sort reads at once: DataFusion takes as many as the memory holds.
const FILES: usize = 4;

/// Of heavy's max: what the operators of one of its queries may hold before they spill. Two queries
/// leave a third to what reads the sorted rows and cannot spill.
const SPILLABLE: Limit = Limit::Percent(Percent::new(31).unwrap());

/// The memory pool that stands between the queries and the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// DataFusion's pool without a limit.
    Unbounded,
    /// DataFusion's pool with one limit for all.
    Greedy,
    /// DataFusion's pool that gives each spilling operator an equal share.
    Fair,
    /// Greedy, and a refusal names the largest operators.
    Track,
    /// A Greedy for each tenant, of a third of the memory.
    Split,
    /// Groups.
    Ours,
    /// Groups that differ in importance, with reclaim in the background and victims.
    Ranked,
}

impl Policy {
    pub(crate) fn name(self) -> &'static str {
        [
            "unbounded",
            "greedy",
            "fair",
            "track",
            "split",
            "ours",
            "ranked",
        ][self as usize]
    }
}

/// The sessions of a service.
pub(crate) enum Service {
    /// A session for each tenant, with its pool: one for all, or one each.
    Pools([(SessionContext, Arc<dyn MemoryPool>); 3]),
    Groups(Groups),
}

/// A group for each tenant, and one for the tables.
pub(crate) struct Groups {
    runtime: Runtime,
    data: Group,
    tenants: [Group; 3],
    sessions: SessionContext,
    config: PoolConfig,
}

/// A session for one query.
pub(crate) enum Session {
    Shared(SessionContext),
    Own(QuerySession),
}

impl Deref for Session {
    type Target = SessionContext;

    fn deref(&self) -> &SessionContext {
        match self {
            Session::Shared(session) => session,
            Session::Own(query) => query,
        }
    }
}

/// The memory of a service at its end, and the check of its counts.
pub(crate) struct Left {
    pub(crate) bytes: u64,
    /// Charged above a max, because DataFusion lets the growth not fail: in all.
    pub(crate) forced_bytes: u64,
    /// Queries that were cancelled for the memory of others.
    pub(crate) victims: u64,
    pub(crate) faults: Vec<String>,
}

fn sessions(
    pool: Option<Arc<dyn MemoryPool>>,
    tables: &[(&'static str, Arc<MemTable>)],
    memory: u64,
) -> Result<SessionContext> {
    // Without exchanges: in DataFusion 55.2 one that spills from two inputs at once may stop for
    // ever, under any pool that refuses (apache/datafusion#24883).
    let config = SessionConfig::new()
        .with_target_partitions(PARTITIONS)
        .with_round_robin_repartition(false)
        .with_repartition_aggregations(false)
        .with_repartition_joins(false)
        .with_batch_size(batch(memory))
        .with_sort_spill_reservation_bytes(usize::try_from(memory / 64).unwrap_or(usize::MAX));
    let files = DiskManagerBuilder::default().with_max_spill_merge_fan_in(FILES);
    let mut env = RuntimeEnvBuilder::new().with_disk_manager_builder(files);
    if let Some(pool) = pool {
        env = env.with_memory_pool(pool);
    }
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_runtime_env(env.build_arc()?)
        .with_default_features();
    let session = SessionContext::new_with_state(state.build());
    for (name, table) in tables {
        session.register_table(*name, Arc::clone(table) as _)?;
    }
    Ok(session)
}

impl Service {
    /// A service with `memory` bytes for its queries.
    pub(crate) fn new(
        policy: Policy,
        tables: Tables,
        memory: u64,
    ) -> std::result::Result<Service, Box<dyn std::error::Error>> {
        let bytes = usize::try_from(memory)?;
        let pool: Arc<dyn MemoryPool> = match policy {
            Policy::Unbounded => Arc::new(UnboundedMemoryPool::default()),
            Policy::Greedy => Arc::new(GreedyMemoryPool::new(bytes)),
            Policy::Fair => Arc::new(FairSpillPool::new(bytes)),
            Policy::Track => Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(bytes), NAMED)),
            Policy::Split => {
                let tables = tables.into_providers()?;
                let [gold, silver, heavy] = [0; 3].map(|_| {
                    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(bytes / 3));
                    sessions(Some(Arc::clone(&pool)), &tables, memory)
                        .map(|session| (session, pool))
                });
                return Ok(Service::Pools([gold?, silver?, heavy?]));
            }
            Policy::Ours | Policy::Ranked => {
                return Ok(Service::Groups(Groups::new(
                    tables,
                    memory,
                    policy == Policy::Ranked,
                )?));
            }
        };
        let session = sessions(Some(Arc::clone(&pool)), &tables.into_providers()?, memory)?;
        Ok(Service::Pools(
            [0; 3].map(|_| (session.clone(), Arc::clone(&pool))),
        ))
    }

    /// The runtime of its groups, where it has any.
    #[cfg(feature = "serve")]
    pub(crate) fn runtime(&self) -> Option<&Runtime> {
        match self {
            Service::Groups(groups) => Some(&groups.runtime),
            Service::Pools(_) => None,
        }
    }

    /// A session for the query of this number.
    pub(crate) fn session(&self, tenant: Tenant, number: u64) -> Result<Session> {
        match self {
            Service::Pools(pools) => Ok(Session::Shared(pools[tenant as usize].0.clone())),
            Service::Groups(groups) => {
                let group = &groups.tenants[tenant as usize];
                let query =
                    groups
                        .sessions
                        .for_query(group, number, Limits::new(), &groups.config)?;
                if tenant == Tenant::Heavy {
                    let children = query.group().children();
                    let spillable = children.iter().find(|child| child.name() == "spillable");
                    let external = |error: LimitError| DataFusionError::External(error.into());
                    spillable
                        .map(|group| group.memory().set_max_now(SPILLABLE))
                        .transpose()
                        .map_err(external)?;
                }
                Ok(Session::Own(query))
            }
        }
    }

    /// The bytes that the queries have reserved.
    pub(crate) fn reserved(&self) -> u64 {
        match self {
            Service::Groups(groups) => groups.tenants.iter().map(Group::usage).sum(),
            Service::Pools(pools) => {
                let own = if Arc::ptr_eq(&pools[0].1, &pools[1].1) {
                    1
                } else {
                    pools.len()
                };
                pools[..own]
                    .iter()
                    .map(|(_, pool)| pool.reserved() as u64)
                    .sum()
            }
        }
    }

    /// The time for which each tenant's queries have stood still for memory.
    pub(crate) fn stood_still(&self) -> [Duration; 3] {
        match self {
            Service::Groups(groups) => groups
                .tenants
                .each_ref()
                .map(|tenant| tenant.pressure().some.total),
            Service::Pools(_) => [Duration::ZERO; 3],
        }
    }

    /// Leaves the queries so much from now on. Returns whether the policy can.
    pub(crate) fn lower(&self, memory: u64) -> bool {
        let Service::Groups(groups) = self else {
            return false;
        };
        let max = groups.data.live() + memory;
        let heavy = &groups.tenants[Tenant::Heavy as usize];
        heavy.memory().set_max_now(most_of(memory)).is_ok()
            && groups
                .runtime
                .root()
                .memory()
                .set_max_now(Limit::Bytes(max))
                .is_ok()
    }

    /// Ends the service.
    pub(crate) fn end(self) -> Left {
        match self {
            Service::Pools(_) => Left {
                bytes: self.reserved(),
                forced_bytes: 0,
                victims: 0,
                faults: Vec::new(),
            },
            Service::Groups(groups) => groups.end(),
        }
    }
}

impl Groups {
    fn new(
        tables: Tables,
        memory: u64,
        is_ranked: bool,
    ) -> std::result::Result<Groups, Box<dyn std::error::Error>> {
        GroupTracer::install()?;
        let runtime = Runtime::builder().build()?;
        let root = runtime.root();
        let data = root.create("data", Limits::new())?;
        tables.charge(&data);
        data.set_limits(Limits::new().min(Limit::Bytes(data.live())))?;
        root.set_max(Limit::Bytes(data.live() + memory))?;
        let gold = root.create("gold", Limits::new().low(Limit::Bytes(memory / 4)))?;
        let silver = root.create("silver", Limits::new().low(Limit::Bytes(memory / 4)))?;
        // Heavy leaves something to the others at any time: `low` only decides who is asked to
        // give.
        let heavy = root.create("heavy", Limits::new().max(most_of(memory)))?;
        if is_ranked {
            gold.set_limits(Limits::new().importance(2))?;
            silver.set_limits(Limits::new().importance(1))?;
            root.set_limits(
                Limits::new().reclaim_above(Limit::Bytes(data.live() + memory / 20 * 17)),
            )?;
            root.set_oom_policy(OomPolicy::Choose);
        }
        let sessions = sessions(None, &tables.into_providers()?, memory)?;
        let config = PoolConfig::new()
            .spill_on_demand()
            .unspillable_reserve(Bytes(memory / 8));
        Ok(Groups {
            runtime,
            data,
            tenants: [gold, silver, heavy],
            sessions,
            config,
        })
    }

    fn end(self) -> Left {
        let Groups {
            runtime,
            data,
            tenants,
            sessions,
            ..
        } = self;
        let mut faults = Vec::new();
        for tenant in &tenants {
            if !tenant.children().is_empty() {
                faults.push(format!("{} has queries", tenant.path()));
            }
            tenant.offline_tree();
        }
        drop(tenants);
        drop(sessions);
        data.offline_tree();
        drop(data);
        runtime.settle();
        let verdict = runtime.verify();
        if !verdict.is_ok() {
            faults.push(verdict.to_string());
        }
        let victims = runtime.root().events().get(Event::OomKill);
        Left {
            bytes: runtime.root().live(),
            forced_bytes: forced_total(&runtime),
            victims,
            faults,
        }
    }
}

/// The most that one tenant may have of the memory of all.
fn most_of(memory: u64) -> Limit {
    Limit::Bytes(memory / 8 * 7)
}

fn forced_total(runtime: &Runtime) -> u64 {
    runtime
        .root()
        .counter(CounterKey::MEMORY)
        .map_or(0, |memory| memory.forced_total())
}
