//! The policy between the tenants and the memory: ours, and those that services use today.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use memcg::{Charge, ChargeError, Group, Limits, Runtime};
use memcg_examples_caches::{Entry, OVERHEAD, QuickCache};

use crate::client::Report;

pub(crate) const NAMES: [&str; 4] = ["ours", "unlimited", "concurrency", "split"];

/// The most that hyper's buffers of a connection of HTTP/1 grow to between two reads.
pub(crate) const BUFFER: usize = 16 << 10;

/// The bytes that an idle connection may hold then: a buffer that has doubled, one for heads of
/// answers, and its state.
const CONNECTION: usize = 2 * BUFFER + (20 << 10);

/// The sizes.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) budget: usize,
    pub(crate) hot_keys: u64,
    pub(crate) hot_value: usize,
    pub(crate) scan_keys: u64,
    pub(crate) scan_value: usize,
    pub(crate) large: usize,
    /// Of the system's buffers of a connection: small beside a large answer, so that a slow reader
    /// leaves it in the service.
    pub(crate) socket: usize,
}

impl Sizes {
    pub(crate) fn new(scale: usize) -> Sizes {
        let budget = (256 << 20) / scale;
        let hot_value = 4 << 10;
        let scan_value = (256 << 10) / scale;
        Sizes {
            budget,
            hot_keys: (budget / 4 / hot_value) as u64,
            hot_value,
            scan_keys: (8 * budget / scan_value) as u64,
            scan_value,
            large: (1 << 20) / scale,
            socket: (1 << 16) / scale,
        }
    }
}

/// A value, which keeps its cache entry until it is sent.
pub(crate) enum Value {
    Charged(Arc<Entry>),
    Free(Bytes),
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        match self {
            Value::Charged(entry) => entry.bytes(),
            Value::Free(bytes) => bytes,
        }
    }
}

#[derive(Clone)]
pub(crate) enum Policy {
    Ours(Arc<Ours>),
    Peer(Arc<Peer>),
}

/// A tree of groups, with a cache in each group of a tenant that has one.
pub(crate) struct Ours {
    pub(crate) budget: Runtime,
    pub(crate) tenants: [Group; 3],
    connections: Group,
    /// Of `a` and `b`.
    caches: [QuickCache; 2],
    /// An answer of `c`.
    pub(crate) large: usize,
}

/// One cache for all, or one for each tenant, with a limit on requests or without.
pub(crate) struct Peer {
    caches: Vec<Store>,
    pub(crate) requests: Option<usize>,
}

type Store = moka::sync::Cache<(usize, u64), Bytes>;

fn store(capacity: usize) -> Store {
    let weigh =
        |_: &(usize, u64), value: &Bytes| u32::try_from(value.len() + OVERHEAD).unwrap_or(u32::MAX);
    moka::sync::Cache::builder()
        .max_capacity(capacity as u64)
        .weigher(weigh)
        .build()
}

impl Policy {
    pub(crate) fn new(name: &str, sizes: Sizes) -> Result<Policy, Box<dyn Error>> {
        let budget = sizes.budget;
        // Three quarters for the caches: a peer does not know what else is in flight.
        let one = budget * 3 / 4;
        let each = budget / 4;
        let peer = |caches, requests| Ok(Policy::Peer(Arc::new(Peer { caches, requests })));
        match name {
            "ours" => Ok(Policy::Ours(Arc::new(Ours::new(sizes)?))),
            "unlimited" => peer(vec![store(usize::MAX >> 8)], None),
            "concurrency" => peer(vec![store(one)], Some(64)),
            "split" => peer(vec![store(each), store(each)], None),
            _ => Err(format!(
                "no policy {name:?}; there are {}, and all",
                NAMES.join(", ")
            )
            .into()),
        }
    }

    /// Returns a value, and whether it was in the cache.
    pub(crate) fn get(
        &self,
        tenant: usize,
        key: u64,
        len: usize,
    ) -> Result<(Value, bool), ChargeError> {
        let load = || vec![key as u8; len];
        match self {
            Policy::Ours(ours) => {
                let mut hit = true;
                let entry = ours.caches[tenant].get(key, len, || {
                    hit = false;
                    load()
                })?;
                Ok((Value::Charged(entry), hit))
            }
            Policy::Peer(peer) => {
                let cache = &peer.caches[tenant % peer.caches.len()];
                let mut hit = true;
                let value = cache.get_with((tenant, key), || {
                    hit = false;
                    Bytes::from(load())
                });
                Ok((Value::Free(value), hit))
            }
        }
    }

    /// Charges what a connection holds, idle or not; an error where it has to go. Like a request it
    /// asks the caches to give memory back, and waits in line. A peer charges nothing.
    pub(crate) async fn connect(&self, patience: Duration) -> Result<Option<Charge>, ChargeError> {
        match self {
            Policy::Ours(ours) => ours
                .connections
                .charge_async(CONNECTION)
                .timeout(patience)
                .await
                .map(Some),
            Policy::Peer(_) => Ok(None),
        }
    }

    /// Bytes charged now; a peer charges nothing.
    pub(crate) fn charged(&self) -> u64 {
        match self {
            Policy::Ours(ours) => ours.budget.root().usage(),
            Policy::Peer(_) => 0,
        }
    }

    /// Judges a run of ours, and checks that all is given back.
    pub(crate) fn end(self, most: u64, report: &Report) -> Result<bool, Box<dyn Error>> {
        let Policy::Ours(_) = &self else {
            return Ok(true);
        };
        let (budget, verdict) = settle(self)?;
        let left = budget.root().live();
        println!("{verdict}; {left} bytes are left");
        let goals = [
            (
                "charged within max at every sample",
                most <= budget.root().max(),
            ),
            (
                "a loses at most 2 points of its hit ratio",
                report.hit_ratio_lost() <= 2.0,
            ),
            ("no request of a is shed", report.shed[0] == 0),
            ("c is shed", report.shed[2] > 0),
            (
                "b alone uses what is free: 95 % of the budget",
                report.used_alone * 100 >= budget.root().max() * 95,
            ),
            (
                "everything is given back and adds up",
                left == 0 && verdict.ends_with("all add up"),
            ),
        ];
        for (goal, met) in goals {
            println!("  {} {goal}", if met { "met:   " } else { "missed:" });
        }
        Ok(goals.iter().all(|(_, met)| *met))
    }
}

/// Waits until requests and connections have given back what they held, drops the caches, and
/// checks the books of ours.
fn settle(policy: Policy) -> Result<(Runtime, String), Box<dyn Error>> {
    let Policy::Ours(ours) = policy else {
        return Err("a peer has no books".into());
    };
    let until = Instant::now() + Duration::from_secs(10);
    let holds = || ours.connections.live() + ours.tenants[2].live();
    while holds() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    if holds() > 0 {
        return Err(format!("{} bytes of connections and of c are left", holds()).into());
    }
    let Ok(ours) = Arc::try_unwrap(ours) else {
        return Err("the service still runs".into());
    };
    let Ours { budget, caches, .. } = ours;
    drop(caches);
    let verdict = budget.verify().to_string();
    Ok((budget, verdict))
}

impl Ours {
    /// With `audit` each charge is counted a second time, so that the books can be checked. It is
    /// not for use.
    fn new(sizes: Sizes) -> Result<Ours, Box<dyn Error>> {
        let budget = Runtime::builder().max(sizes.budget).audit(true).build()?;
        let root = budget.root();
        let hot = sizes.hot_keys as usize * (sizes.hot_value + OVERHEAD);
        let tenants = [
            // Its hot set, and what its requests hold.
            root.create("a", Limits::new().low(hot + hot / 8))?,
            root.create("b", Limits::new())?,
            root.create("c", Limits::new().max(sizes.budget / 8))?,
        ];
        let connections = root.create("connections", Limits::new().max(sizes.budget / 4))?;
        let cache =
            |group, value| QuickCache::new(group, sizes.budget / value, sizes.budget as u64);
        let caches = [
            cache(&tenants[0], sizes.hot_value),
            cache(&tenants[1], sizes.scan_value),
        ];
        Ok(Ours {
            budget,
            tenants,
            connections,
            caches,
            large: sizes.large,
        })
    }
}
