//! The accounting of nodedb-mem 0.4, on memcg: a module that is added to theirs. The ceiling is the root's max, a database
//! a group, and a tenant a group below it. Engines are a second dimension, a counter each, because any tenant charges
//! any engine.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use memcg::{Charge, CounterConfig, Group, Limit, Limits, PageCounter, Runtime};
use nodedb_types::{DatabaseId, TenantId};

use crate::engine::EngineId;
use crate::error::{MemError, Result};

/// A figure that they read as an atomic.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live(Arc<OnceLock<Group>>);

impl Live {
    pub(crate) fn load(&self, _: Ordering) -> usize {
        self.0.get().map_or(0, |group| group.live() as usize)
    }

    fn is_of(&self, group: &Group) {
        self.0.get_or_init(|| group.clone());
    }
}

// === An engine ===

#[derive(Debug)]
pub struct Budget(Arc<PageCounter>);

impl Budget {
    pub fn new(limit: usize) -> Self {
        let config = CounterConfig::bytes().max(limit as u64);
        Budget(Arc::new(PageCounter::root(config)))
    }

    pub fn try_reserve(&self, size: usize) -> bool {
        self.0.try_charge(size as u64).is_ok()
    }

    pub fn release(&self, size: usize) {
        self.0.uncharge(size as u64);
    }

    pub fn allocated(&self) -> usize {
        self.0.live() as usize
    }

    pub fn limit(&self) -> usize {
        self.0.max() as usize
    }

    pub fn over_release_count(&self) -> usize {
        self.0.counts().underflows as usize
    }

    pub fn available(&self) -> usize {
        self.limit().saturating_sub(self.allocated())
    }

    pub fn utilization_percent(&self) -> u8 {
        let (allocated, limit) = (self.allocated() as u128, self.limit() as u128);
        let percent = (allocated * 100).checked_div(limit);
        percent.map_or(100, |percent| percent.min(100) as u8)
    }

    pub fn peak(&self) -> usize {
        self.0.peak() as usize
    }

    pub fn rejections(&self) -> usize {
        self.0.refused_count() as usize
    }

    pub fn set_limit(&self, limit: usize) {
        let limit = limit.max(self.allocated()) as u64;
        self.0.set_max(limit).expect("so much is not held");
    }
}

// === The levels ===

/// The ceiling: a tree of groups.
#[derive(Debug)]
pub struct GlobalCounter {
    pub(crate) allocated: Live,
    runtime: Runtime,
}

impl GlobalCounter {
    pub(crate) fn new(ceiling: usize) -> Self {
        let runtime = Runtime::builder().max(ceiling).build().expect("a max");
        let allocated = Live::default();
        allocated.is_of(&runtime.root());
        GlobalCounter { allocated, runtime }
    }
}

/// The limit of a database or tenant, which may be set before anything is charged there.
#[derive(Debug)]
pub(crate) struct ScopedBudget {
    limit: usize,
    pub(crate) allocated: Live,
}

impl ScopedBudget {
    pub(crate) fn new(limit: usize) -> Self {
        ScopedBudget { limit, allocated: Live::default() }
    }
}

fn below(above: &Group, number: u64, budget: Option<&ScopedBudget>) -> Group {
    let group = above.get_or_create(number, Limits::new()).expect("room for a group");
    let limit = budget.map_or(Limit::Unlimited, |budget| Limit::bytes(budget.limit as u64));
    group.set_limits(Limits::new().max(limit)).expect("nothing reclaims");
    if let Some(budget) = budget {
        budget.allocated.is_of(&group);
    }
    group
}

/// What a reservation asks for.
pub(crate) struct Asked {
    pub(crate) db: DatabaseId,
    pub(crate) tenant: TenantId,
    pub(crate) engine: EngineId,
    pub(crate) size: usize,
}

/// Charges the path of groups, then the engine.
pub(crate) fn try_reserve(
    global: &Arc<GlobalCounter>,
    databases: &HashMap<DatabaseId, ScopedBudget>,
    tenants: &HashMap<(DatabaseId, TenantId), ScopedBudget>,
    engines: &HashMap<EngineId, Budget>,
    asked: Asked,
) -> Result<ReservationToken> {
    let Asked { db, tenant, engine, size } = asked;
    let root = global.runtime.root();
    let database = below(&root, db.as_u64(), databases.get(&db));
    let group = below(&database, tenant.as_u64(), tenants.get(&(db, tenant)));
    let charge = group.try_charge(size).map_err(|refused| {
        let over = refused.over_limit().expect("nothing goes offline");
        let (allocated, limit) = (over.usage() as usize, over.max() as usize);
        let available = limit - allocated;
        if *over.group() == root {
            MemError::GlobalCeilingExceeded { allocated, ceiling: limit, requested: size }
        } else if *over.group() == database {
            MemError::DatabaseBudgetExhausted { db, requested: size, available, limit }
        } else {
            MemError::TenantBudgetExhausted { db, tenant, requested: size, available, limit }
        }
    })?;
    let budget = engines.get(&engine).ok_or(MemError::UnknownEngine(engine))?;
    if !budget.try_reserve(size) {
        let (available, limit) = (budget.available(), budget.limit());
        return Err(MemError::BudgetExhausted { engine, requested: size, available, limit });
    }
    let of_engine = Arc::clone(&budget.0);
    Ok(ReservationToken { charge, of_engine, db, tenant, engine, _global: Arc::clone(global) })
}

#[derive(Debug)]
#[must_use]
pub struct ReservationToken {
    charge: Charge,
    of_engine: Arc<PageCounter>,
    db: DatabaseId,
    tenant: TenantId,
    engine: EngineId,
    /// Keeps the runtime.
    _global: Arc<GlobalCounter>,
}

impl ReservationToken {
    pub fn size(&self) -> usize {
        self.charge.bytes() as usize
    }

    pub fn database_id(&self) -> DatabaseId {
        self.db
    }

    pub fn tenant_id(&self) -> TenantId {
        self.tenant
    }

    pub fn engine(&self) -> EngineId {
        self.engine
    }
}

impl Drop for ReservationToken {
    fn drop(&mut self) {
        self.of_engine.uncharge(self.charge.bytes());
    }
}
