//! The roles of the processes of a cluster.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_executor::health::ExecutorHealth;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use memcg::{Bytes, Limit, Limits, Runtime};
use memcg_ballista::{GroupEngine, config_producer};
use memcg_datafusion::{GroupTracer, PoolConfig};
use memcg_host::Host;

use crate::process::free_port;

/// Slots of an executor.
const SLOTS: usize = 2;

/// The share that an executor gives to its pools by default, in percent of the container's limit.
const POOLS: u64 = 70;

/// The root's max, in percent of the control group's limit: the tree counts what is allocated, too.
const TREE: u64 = 80;

pub(crate) fn run(role: &str) -> Result<(), Box<dyn Error>> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    // It ends with the process that has started it.
    thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let words: Vec<_> = role.splitn(5, ' ').collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match words[..] {
        ["scheduler", port] => runtime.block_on(scheduler(port.parse()?)),
        ["executor", port, sharing, limit, dir] => runtime.block_on(executor(
            port.parse()?,
            sharing == "Groups",
            limit.parse()?,
            dir,
        )),
        _ => Err(format!("no role {role:?}").into()),
    }
}

async fn scheduler(port: u16) -> Result<(), Box<dyn Error>> {
    let config = SchedulerConfig {
        bind_port: port,
        external_host: "127.0.0.1".to_string(),
        override_config_producer: Some(config_producer()),
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await?;
    let serves = start_server(cluster, ([127, 0, 0, 1], port).into(), Arc::new(config));
    let says = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        println!("ready");
    };
    Ok(tokio::join!(serves, says).0?)
}

async fn executor(
    scheduler: u16,
    has_groups: bool,
    limit: u64,
    dir: &str,
) -> Result<(), Box<dyn Error>> {
    let health = ExecutorHealth::new();
    let mut config = ExecutorProcessConfig {
        port: free_port()?,
        grpc_port: free_port()?,
        scheduler_host: "127.0.0.1".to_string(),
        scheduler_port: scheduler,
        vcores: SLOTS,
        work_dir: Some(dir.to_string()),
        override_config_producer: Some(config_producer()),
        // The size that it would take by itself in a container, where the limit stands at the top
        // of the file system.
        memory_pool_size: Some(limit / 100 * POOLS),
        health: health.clone(),
        ..ExecutorProcessConfig::default()
    };
    let tree;
    if has_groups {
        tree = tenants(limit)?;
        let pool = PoolConfig::new()
            .spill_on_demand()
            .patience(Duration::from_secs(20));
        // A task that allocates so much beyond what it has reserved ends.
        let pool = pool.max_unreserved(Bytes(tree.root().max() / 4));
        config.override_execution_engine =
            Some(Arc::new(GroupEngine::new(&tree.root()).pool(pool)));
        config.memory_pool_size = Some(0);
    }
    tokio::spawn(async move {
        while !health.is_ready() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        println!("ready");
    });
    Ok(start_executor_process(Arc::new(config)).await?)
}

/// The tree of an executor: two tenants, and a group for what the process has beside their tasks.
fn tenants(limit: u64) -> Result<Runtime, Box<dyn Error>> {
    GroupTracer::install()?;
    let max = Host::new().limits()?.bytes().min(limit) / 100 * TREE;
    let tree = Runtime::builder().max(Limit::Bytes(max)).build()?;
    // Gold is not asked for memory below this share. Alone, each tenant has all.
    tree.root()
        .create("gold", Limits::new().low(Limit::Bytes(max / 100 * 60)))?;
    tree.root().create("heavy", Limits::new())?;
    memcg_alloc::charge_unowned_to(Some(&tree.root().create("process", Limits::new())?));
    Ok(tree)
}
