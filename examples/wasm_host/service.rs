//! The service: `/run/TENANT` runs the tenant's module in a store of its own.

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read, stdin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use memcg::{Bytes, Group, Limits, Runtime};
use memcg_wasmtime::{GroupLimiter, WhenFull, limit_async};
use tokio::net::TcpListener;
use wasmtime::{Engine, InstancePre, Linker, Module, Store, StoreLimits, StoreLimitsBuilder};

use crate::Policy;

/// Requests of a tenant at a time.
pub(crate) const AT_ONCE: usize = 4;
/// Each, with what its module wants, in percent of the budget; the last one grows without end.
pub(crate) const TENANTS: [(&str, u64); 3] =
    [("thumbnails", 4), ("reports", 12), ("greedy", 1_000)];
/// The time that a module waits for room, and that its host keeps it while it sends the answer.
const PATIENCE: Duration = Duration::from_secs(2);
const SENDS: Duration = Duration::from_millis(20);

/// A module that grows by `step` pages of 64 KiB until it has `pages`, and writes into each page. A
/// refusal is the end of it. One that grows once holds nothing while it waits.
fn text(step: u64, pages: u64) -> String {
    format!(
        r#"(module
            (memory 1)
            (func (export "run") (result i32)
                (local $page i32)
                (loop $more
                    (if (i32.eq (memory.grow (i32.const {step})) (i32.const -1)) (then (unreachable)))
                    (loop $write
                        (memory.fill (i32.shl (local.get $page) (i32.const 16)) (i32.const 7) (i32.const 65536))
                        (local.set $page (i32.add (local.get $page) (i32.const 1)))
                        (br_if $write (i32.lt_u (local.get $page) (memory.size))))
                    (br_if $more (i32.lt_u (memory.size) (i32.const {pages}))))
                (memory.size)))"#
    )
}

struct Data {
    group: Option<GroupLimiter>,
    shares: StoreLimits,
}

struct Tenant {
    module: InstancePre<Data>,
    group: Group,
}

pub(crate) struct Service {
    policy: Policy,
    engine: Engine,
    budget: u64,
    tenants: HashMap<&'static str, Tenant>,
    /// It goes last, and its groups take no charges from then on.
    _runtime: Runtime,
}

impl Service {
    fn new(policy: Policy, budget: u64) -> Result<Service, Box<dyn Error>> {
        let runtime = Runtime::builder().max(Bytes(budget)).build()?;
        let engine = Engine::default();
        let mut tenants = HashMap::new();
        for (name, percent) in TENANTS {
            // Each tenant may use what the others leave, up to half of the budget.
            let group = runtime
                .root()
                .create(name, Limits::new().max(Bytes(budget / 2)))?;
            let pages = budget / 100 * percent / 65_536;
            let text = if name == "greedy" {
                text(16, 65_536)
            } else {
                text(pages, pages)
            };
            let module = Linker::new(&engine).instantiate_pre(&Module::new(&engine, text)?)?;
            tenants.insert(name, Tenant { module, group });
        }
        Ok(Service {
            policy,
            engine,
            budget,
            tenants,
            _runtime: runtime,
        })
    }

    fn store(&self, tenant: &Tenant) -> Store<Data> {
        // Stores that may run at a time have equal shares: wasmtime's limiter knows no other store.
        let share = self.budget as usize / (AT_ONCE * TENANTS.len());
        let group = (self.policy == Policy::Groups)
            .then(|| GroupLimiter::new(&tenant.group).when_full(WhenFull::Wait(PATIENCE)));
        let shares = StoreLimitsBuilder::new().memory_size(share).build();
        let mut store = Store::new(&self.engine, Data { group, shares });
        match self.policy {
            Policy::None => {}
            Policy::StoreLimits => store.limiter(|data| &mut data.shares),
            Policy::Groups => {
                limit_async(&mut store, |data| data.group.as_mut().expect("with groups"))
            }
        }
        store
    }

    async fn run(&self, name: &str) -> Result<String, (StatusCode, String)> {
        let tenant = self
            .tenants
            .get(name)
            .ok_or((StatusCode::NOT_FOUND, "no such tenant".to_string()))?;
        let mut store = self.store(tenant);
        let done = async {
            let instance = tenant.module.instantiate_async(&mut store).await?;
            instance
                .get_typed_func::<(), i32>(&mut store, "run")?
                .call_async(&mut store, ())
                .await
        };
        let done = done.await;
        tokio::time::sleep(SENDS).await;
        match done {
            Ok(pages) => Ok(format!("{} MiB\n", pages / 16)),
            Err(trap) => {
                let refusal = store
                    .data()
                    .group
                    .as_ref()
                    .and_then(GroupLimiter::last_refusal);
                // The refusal names groups, which is for the operator.
                let why = match refusal {
                    Some(refusal) => {
                        eprintln!("{refusal}");
                        "there is no room for the guest's memory".to_string()
                    }
                    None => trap.root_cause().to_string(),
                };
                Err((StatusCode::INSUFFICIENT_STORAGE, why))
            }
        }
    }
}

async fn answer(
    State(service): State<Arc<Service>>,
    Path(tenant): Path<String>,
) -> (StatusCode, String) {
    match service.run(&tenant).await {
        Ok(text) => (StatusCode::OK, text),
        Err(refused) => refused,
    }
}

/// Waits for a byte of the input, or its end.
async fn byte() {
    // An error is an end, too.
    let _ = tokio::task::spawn_blocking(|| stdin().read(&mut [0])).await;
}

/// Waits for a byte, says on which port it listens, and ends with its input.
pub(crate) async fn serve(policy: Policy, budget: u64) -> Result<(), Box<dyn Error>> {
    byte().await; // it is in its control group now
    let service = Arc::new(Service::new(policy, budget)?);
    let app = Router::new()
        .route("/run/{tenant}", get(answer))
        .with_state(service.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    axum::serve(listener, app)
        .with_graceful_shutdown(byte())
        .await?;
    let left: u64 = service
        .tenants
        .values()
        .map(|tenant| tenant.group.live())
        .sum();
    if left == 0 {
        Ok(())
    } else {
        Err(format!("{left} bytes are left").into())
    }
}
