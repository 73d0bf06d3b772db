//! A session's state in a group: a copy of the session's own, but for the memory pool, the planner,
//! and the marks on tables.
//!
//! DataFusion's `SessionStateBuilder` forgets prepared statements and the session's id, and a
//! `SessionState` has no way to set its runtime, its planner or its catalogs. So this module clones
//! the state, and exchanges these fields of the clone in place.

use std::any::type_name;
use std::fmt;
use std::mem::size_of;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use memcg::{Bytes, Group, InGroup};

use crate::again::{Again, Logical, Plan};
use crate::figures::WithFigures;
use crate::frames::unmarked;
use crate::merges::leave_room_beside_sorts;
use crate::plan::{ShowInGroup, put_query_in_group, with_pool};
use crate::pool::GroupPool;
use crate::queued::put_in_queue;
use crate::rules::Rules;
use crate::settings::{Keys, RUNTIME, runtime_of};
use crate::tables::{MarkedCatalogs, marked_function};

/// Returns a session with all that `session` has, whose memory pool is `pool` and whose plans run
/// in the pool's group.
pub(crate) fn session_in(
    session: &SessionContext,
    pool: &Arc<GroupPool>,
) -> Result<SessionContext> {
    let mut state = session.state();
    let dynamic = Arc::clone(pool) as Arc<dyn MemoryPool>;
    leave_room_beside_sorts(state.config_mut(), pool.group().effective_max());
    let keys = Keys::new(pool.runtime_keys().to_vec());
    let env = runtime_of(state.runtime_env(), &dynamic, &keys)?;
    let path: Arc<str> = pool.group().path().into();
    let catalogs = MarkedCatalogs::over(state.catalog_list(), &path);
    let functions = state.table_functions().iter();
    let functions = functions
        .map(|(name, function)| (name.clone(), marked_function(function, &path)))
        .collect();
    let before = own_planner(state.query_planner());
    let rules = Rules::of(&state, before.map(|planner| &planner.rules), pool.group());
    let analyzer = rules.analyzer(state.analyzer());
    let optimizer = rules.optimizer();
    let planner = Arc::new(InGroupPlanner {
        // A session of a group that is made from another one leaves that group.
        inner: base_planner(state.query_planner()),
        pool: Arc::clone(pool),
        rules,
        keys,
        env: Mutex::new(Arc::clone(&env)),
        restore: OnceLock::new(),
    });
    let own = Arc::clone(&planner);
    // SAFETY: the calls are plain readers of DataFusion that return a field of the state.
    #[allow(unsafe_code)]
    unsafe {
        let of = SessionState::catalog_list;
        drop(exchange(&mut state, of, catalogs)?);
        let of = SessionState::table_functions;
        drop(exchange(&mut state, of, functions)?);
        let of = SessionState::analyzer;
        drop(exchange(&mut state, of, analyzer)?);
        let of = SessionState::optimizer;
        drop(exchange(&mut state, of, optimizer)?);
        drop(exchange(&mut state, |state| state.runtime_env(), env)?);
        drop(exchange(
            &mut state,
            |state| state.query_planner(),
            own as _,
        )?);
    }
    let context = SessionContext::new_with_state(state);
    let state = context.state_weak_ref();
    let restore = move |env: Arc<RuntimeEnv>| {
        let Some(state) = state.upgrade() else { return };
        // While the session is in use, its pool stays; a later statement then finds the other pool
        // again.
        let Some(mut state) = state.try_write() else {
            return;
        };
        // SAFETY: as above.
        #[allow(unsafe_code)]
        let replaced = unsafe { exchange(&mut *state, |state| state.runtime_env(), env) };
        // Without the lock: a runtime that is dropped drops foreign pools.
        drop(state);
        drop(replaced);
    };
    // No other line sets it.
    let _ = planner.restore.set(Box::new(restore));
    Ok(context)
}

/// Returns a session with all that `session` has, in whose default catalog a schema `memcg` shows
/// figures of `below` and of the groups below it.
pub(crate) fn session_with_figures(
    session: &SessionContext,
    below: &Group,
) -> Result<SessionContext> {
    let mut state = session.state();
    let catalogs = WithFigures::over(&state, below);
    // SAFETY: the call is a plain reader of DataFusion that returns a field of the state.
    #[allow(unsafe_code)]
    unsafe {
        let of = SessionState::catalog_list;
        drop(exchange(&mut state, of, catalogs)?);
    }
    Ok(SessionContext::new_with_state(state))
}

/// Replaces a field of the state by `new`. Returns the old value, or an error if the state does not
/// store the field itself.
///
/// # Safety
///
/// `field` returns a field of the state, which may hold any value of its type.
#[allow(unsafe_code)]
unsafe fn exchange<S, F>(state: &mut S, field: impl Fn(&S) -> &F, new: F) -> Result<F> {
    let offset = ptr::from_ref(field(state))
        .addr()
        .wrapping_sub(ptr::from_ref(&*state).addr());
    if offset
        .checked_add(size_of::<F>())
        .is_none_or(|end| end > size_of::<S>())
    {
        return internal_err!(
            "{} has no {} of its own",
            type_name::<S>(),
            type_name::<F>()
        );
    }
    // SAFETY: the bytes are those of a field of this type by the caller's word, within the state as
    // was looked at, and the state is borrowed mutably, so nothing else refers to them.
    let place = unsafe { &mut *ptr::from_mut(state).cast::<u8>().add(offset).cast::<F>() };
    Ok(std::mem::replace(place, new))
}

type Planner = Arc<dyn QueryPlanner + Send + Sync>;

/// The planner of a group's session. `None`: the session is outside of all groups.
fn own_planner(planner: &Planner) -> Option<&InGroupPlanner> {
    let any: &dyn std::any::Any = &**planner;
    any.downcast_ref()
}

/// Returns the planner inside a group's planner, or `planner` itself.
fn base_planner(planner: &Planner) -> Planner {
    Arc::clone(own_planner(planner).map_or(planner, |own| &own.inner))
}

/// Planner that plans as the session's own planner does, and puts the plans into a group. Each
/// statement that runs passes through it, so it finds a memory pool that SQL has set.
struct InGroupPlanner {
    inner: Planner,
    pool: Arc<GroupPool>,
    rules: Rules,
    keys: Arc<Keys>,
    /// The session's runtime.
    env: Mutex<Arc<RuntimeEnv>>,
    /// Gives the session the runtime of its group back.
    restore: OnceLock<Box<dyn Fn(Arc<RuntimeEnv>) + Send + Sync>>,
}

impl InGroupPlanner {
    async fn plan(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Plan> {
        let env = self.runtime(session.runtime_env(), is_of_a_command(plan))?;
        let plan = &unmarked(plan.clone())?.data;
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            let planned = self.inner.create_physical_plan(plan, session).await?;
            return put_query_in_group(planned, &self.pool, Some(&env));
        };
        // This state lives as long as the planner plans, or the plan that may be made again. It is
        // made for each statement, so it is a clone: a builder would hash each function's names
        // anew, a quarter of all that a group's session would then add to a query.
        let mut state = state.clone();
        // SAFETY: the calls are plain readers of DataFusion that return a field of the state.
        #[allow(unsafe_code)]
        unsafe {
            let inner = Arc::clone(&self.inner);
            let of = SessionState::query_planner;
            drop(exchange(&mut state, of, inner)?);
            let of = SessionState::runtime_env;
            drop(exchange(&mut state, of, Arc::clone(&env))?);
        }
        // Only a builder takes one more rule. It makes a new id, so the session's own is given back.
        // EXPLAIN may cost more: it runs nothing.
        if let LogicalPlan::Explain(explain) = plan {
            let id = state.session_id().to_string();
            state = SessionStateBuilder::new_from_existing(state)
                .with_session_id(id)
                .with_physical_optimizer_rule(Arc::new(ShowInGroup {
                    query: Arc::clone(&explain.plan),
                    pool: Arc::clone(&self.pool),
                }))
                .build();
        }
        let mut planned = self.inner.create_physical_plan(plan, &state).await?;
        let is_run = !matches!(plan, LogicalPlan::Explain(_));
        if let Some(queued) = self.pool.queued().filter(|_| is_run) {
            let planner = Arc::clone(&self.inner);
            let again = |query: &LogicalPlan, _: &Plan| {
                Again::Logical(Box::new(Logical {
                    planner,
                    plan: query.clone(),
                    state,
                }))
            };
            planned = put_in_queue(planned, plan, &queued.repeatable, again)?;
        }
        put_query_in_group(planned, &self.pool, Some(&env))
    }

    /// The runtime of the session, where a statement finds `theirs`: if SQL has set another one
    /// meanwhile, the session gets its own back. Returns an error for the statement that has.
    fn runtime(&self, theirs: &Arc<RuntimeEnv>, is_command: bool) -> Result<Arc<RuntimeEnv>> {
        let lock = || self.env.lock().unwrap_or_else(PoisonError::into_inner);
        let own = Arc::clone(&lock());
        if Arc::ptr_eq(theirs, &own) {
            return Ok(own);
        }
        let pool = Arc::clone(&self.pool) as Arc<dyn MemoryPool>;
        if !Arc::ptr_eq(&theirs.object_store_registry, &own.object_store_registry) {
            // The service has made it, for a session with this one's state.
            let with_pool = with_pool(theirs, &pool)?;
            return Ok(with_pool.unwrap_or_else(|| Arc::clone(theirs)));
        }
        let changed = self.keys.changed(&own, theirs);
        let is_allowed = !changed.is_empty() && changed.iter().all(|key| self.keys.allows(key));
        let env = if is_allowed {
            with_pool(theirs, &pool)?.unwrap_or_else(|| Arc::clone(theirs))
        } else {
            own
        };
        let before = std::mem::replace(&mut *lock(), Arc::clone(&env));
        // Without the lock: a runtime that is dropped drops foreign pools.
        drop(before);
        if let Some(restore) = self.restore.get() {
            restore(Arc::clone(&env));
        }
        if is_command && !is_allowed {
            return Err(self.kept(&changed));
        }
        Ok(env)
    }

    /// The error of a statement that sets keys of the runtime.
    fn kept(&self, keys: &[&str]) -> DataFusionError {
        let group = self.pool.group();
        let max = match group.effective_max() {
            u64::MAX => "no max".to_string(),
            max => format!("a max of {}", Bytes(max)),
        };
        let keys = match keys {
            [] => format!("keys of {}", RUNTIME.trim_end_matches('.')),
            keys => {
                let whole: Vec<_> = keys.iter().map(|key| format!("{RUNTIME}{key}")).collect();
                whole.join(" and ")
            }
        };
        DataFusionError::Configuration(format!(
            "SET and RESET do not change {keys} in a session of {}, which shares its runtime with others; its memory \
             limit is that of the group, with {max}",
            group.path()
        ))
    }
}

/// True for the plan that SET and RESET leave to be planned: it has no rows and no columns.
fn is_of_a_command(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::EmptyRelation(empty) if !empty.produce_one_row && empty.schema.fields().is_empty())
}

impl QueryPlanner for InGroupPlanner {
    fn create_physical_plan<'a, 'b, 'c, 'd>(
        &'a self,
        logical_plan: &'b LogicalPlan,
        session: &'c dyn Session,
    ) -> Pin<Box<dyn Future<Output = Result<Plan>> + Send + 'd>>
    where
        'a: 'd,
        'b: 'd,
        'c: 'd,
        Self: 'd,
    {
        Box::pin(self.plan(logical_plan, session).in_group(self.pool.group()))
    }
}

impl fmt::Debug for InGroupPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InGroupPlanner")
            .field("group", self.pool.group())
            .field("inner", &self.inner)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct State {
        before: u8,
        name: Box<str>,
        apart: Box<u64>,
        after: Vec<u8>,
    }

    #[test]
    #[allow(unsafe_code)]
    fn a_field_is_exchanged_in_place() {
        let mut state = State {
            before: 1,
            name: "a".into(),
            apart: Box::new(3),
            after: vec![2],
        };
        // SAFETY: it is a field.
        let replaced = unsafe { exchange(&mut state, |state| &state.name, "c".into()) };
        assert_eq!((&*replaced.unwrap(), &*state.name), ("a", "c"));
        // SAFETY: it is a field of another object.
        let refused = unsafe { exchange(&mut state, |state| &*state.apart, 4) };
        assert!(refused.unwrap_err().to_string().contains("has no"));
        assert_eq!(
            (state.before, *state.apart, &*state.after),
            (1, 3, &[2][..])
        );
    }
}
