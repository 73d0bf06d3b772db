//! Sessions of a group: a `SessionContext` whose queries run in it, and one for a single query.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::{DataFusionError, Result, TableReference};
use datafusion::dataframe::DataFrame;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::SessionContext;
use memcg::{Group, GroupScope, InGroup, IntoName, Limits};

use crate::allocates::covering;
use crate::config::PoolConfig;
use crate::frames::marked;
use crate::pool::GroupPool;
use crate::state::{session_in, session_with_figures};

/// Puts the queries of a `SessionContext` into groups.
///
/// Each call returns a session with all that the first session has. Both share catalogs, tables,
/// disk manager and caches; settings, functions, prepared statements and id are as they were at the
/// call. The new session's memory pool is a [`GroupPool`]. Its plans run in the group
/// ([`Group::current`]); with a [`GroupTracer`](crate::GroupTracer) the tasks that they spawn do,
/// too. They end with [`EndedError`](crate::EndedError) when the group is chosen as a victim or
/// goes offline. A call copies the session's state, which takes some tens of microseconds.
///
/// A frame of such a session may become part of one of another session, as in
/// `other_frame.join(frame)`, as a view, or by its logical plan. It is then charged to the group of
/// that session. A session outside of all groups ends with an error that names the group of the
/// frame, and reads no row. For that the tables and the table functions of the session's catalogs
/// are wrapped, except where a rule of the analyzer or the optimizer sees them. A frame that has no
/// such table, as `VALUES` or one over a table that the service hands to `read_table`, is told where
/// a [`QuerySession`] has made it; else it is a frame of the session that runs it. Rows that
/// `DataFrame::cache` has collected are a table in memory, and belong to no group.
///
/// `datafusion.execution.sort_spill_reservation_bytes` is 10 MiB by default, for each sort of each
/// partition and before it reads a row. Where all partitions together would so reserve more than an
/// eighth of the least max on the way up, the session has the part of that eighth, at least 64 KiB,
/// in the place of the default. A value that the service has set stays, and SQL may set another.
///
/// SQL does not leave the group, nor does it change what other sessions share. `SET` and `RESET` of
/// a key of `datafusion.runtime` return an error that names it when their (empty) result is read,
/// and change nothing, unless the service [allows](PoolConfig::runtime_key) the key. The session
/// keeps its pool in any case.
pub trait InGroupSession {
    /// Returns a session of `group`: for all queries of a tenant together.
    ///
    /// # Errors
    ///
    /// `DataFusionError::External` with a [`CreateError`](memcg::errors::CreateError), where the
    /// configuration asks for groups below and they cannot be made.
    /// `DataFusionError::Configuration`, where its reserve is as large as the least max on the way
    /// up.
    ///
    /// ```
    /// use datafusion::prelude::SessionContext;
    /// use memcg::{Limits, Runtime};
    /// use memcg_datafusion::{InGroupSession, PoolConfig};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(64 << 20))?;
    /// let session = SessionContext::new().with_group(&acme, &PoolConfig::new())?;
    /// assert_eq!(session.runtime_env().memory_pool.to_string(), "group(/acme)");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn with_group(&self, group: &Group, config: &PoolConfig) -> Result<SessionContext>;

    /// Returns a session for one query, in a new group below `parent`. The group goes offline when
    /// the value is dropped.
    ///
    /// # Errors
    ///
    /// `DataFusionError::External` with a [`CreateError`](memcg::errors::CreateError) if the group
    /// cannot be created. `DataFusionError::Configuration` if the reserve is as large as the least
    /// max on the way up, or larger.
    ///
    /// ```
    /// use datafusion::prelude::SessionContext;
    /// use memcg::{GroupName, Limits, Runtime};
    /// use memcg_datafusion::{InGroupSession, PoolConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let sessions = SessionContext::new();
    /// let query = sessions.for_query(&acme, GroupName::Unnamed, Limits::new(), &PoolConfig::new())?;
    /// assert_eq!(query.read_empty()?.count().await?, 1);
    /// assert_eq!(acme.children().len(), 1);
    /// drop(query);
    /// assert_eq!((acme.children().len(), acme.live()), (0, 0));
    /// # Ok(())
    /// # }
    /// ```
    fn for_query<'a>(
        &self,
        parent: &Group,
        name: impl IntoName<'a>,
        limits: Limits,
        config: &PoolConfig,
    ) -> Result<QuerySession>;

    /// Returns a session for an operator, with all that this one has and a schema `memcg` in the
    /// default catalog, whose tables show `below` and the groups below it:
    ///
    /// | table | a row is | columns |
    /// |---|---|---|
    /// | `memcg.groups` | a group | `path`; `usage`, `live`, `max` (null: none of its own), `low` in bytes; `refused`: charges that it has refused; `waiting`: those that wait in its line now; `waited_seconds`: time in which some charge below has waited; `peak_live_min`, `peak_live_max`: bounds on the [peak of the live bytes](Group::peak_live) |
    /// | `memcg.queries` | a plan that runs in a group of the process | `path` of the group; `seconds` since its start; `partitions` that run; `refused` and `waits`: growths of the group's pool, so of all queries of one session together; `usage` of the group |
    ///
    /// The figures are read when a query is planned, and cost a walk of the groups below. A query
    /// that waits in line of a [`QueryQueue`](crate::QueryQueue) runs. The tables are those of this
    /// session alone: sessions that are made from it by [`with_group`](Self::with_group) and
    /// [`for_query`](Self::for_query) do not have them. To show a tenant its own groups, call this
    /// on the tenant's session, with the tenant's group.
    ///
    /// # Errors
    ///
    /// Those of DataFusion.
    ///
    /// ```
    /// use datafusion::prelude::SessionContext;
    /// use memcg::{Limits, Runtime};
    /// use memcg_datafusion::InGroupSession;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(64 << 20))?;
    /// let operator = SessionContext::new().with_figures(&runtime.root())?;
    /// let full = "SELECT path, usage, max FROM memcg.groups WHERE usage >= 0.9 * max";
    /// assert_eq!(operator.sql(full).await?.count().await?, 0);
    /// # let _ = acme;
    /// # Ok(())
    /// # }
    /// ```
    fn with_figures(&self, below: &Group) -> Result<SessionContext>;
}

impl InGroupSession for SessionContext {
    fn with_group(&self, group: &Group, config: &PoolConfig) -> Result<SessionContext> {
        session_in(self, &GroupPool::of_session(group, config)?)
    }

    fn for_query<'a>(
        &self,
        parent: &Group,
        name: impl IntoName<'a>,
        limits: Limits,
        config: &PoolConfig,
    ) -> Result<QuerySession> {
        let group = parent
            .scope(name, covering(limits))
            .map_err(|error| DataFusionError::External(error.into()))?;
        let pool = GroupPool::of_query(&group, config)?;
        let context = session_in(self, &pool)?;
        Ok(QuerySession {
            context,
            group: Some(group),
            pool,
        })
    }

    fn with_figures(&self, below: &Group) -> Result<SessionContext> {
        session_with_figures(self, below)
    }
}

/// A session for one query: [`InGroupSession::for_query`] makes it, and it derefs to its
/// `SessionContext`.
///
/// Keep it until the last row is read. The drop takes the query's group offline, and what still
/// runs ends with [`EndedError`](crate::EndedError). Reservations of such work stay charged until they are
/// dropped.
#[must_use = "dropped at once, the query's group goes offline at once, and `let _ =` drops it at once: bind it to a name"]
pub struct QuerySession {
    context: SessionContext,
    /// Taken by the drop.
    group: Option<GroupScope>,
    pool: Arc<GroupPool>,
}

impl QuerySession {
    /// Returns the query's group.
    pub fn group(&self) -> &Group {
        self.pool.group()
    }

    /// Returns the memory pool of the query.
    pub fn pool(&self) -> &Arc<GroupPool> {
        &self.pool
    }
}

/// Frames of the query, as those of its `SessionContext`. What the calls allocate, and later the
/// rules of the analyzer and the optimizer, is the query's; with [`sql`](Self::sql) also the copies
/// of the plan that DataFusion makes for each run.
impl QuerySession {
    fn frame(&self, frame: DataFrame) -> DataFrame {
        marked(frame, self.group().path())
    }

    /// Does what `SessionContext::sql` does, in the query's group: what parsing and planning allocate
    /// is the query's.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn sql(&self, sql: &str) -> Result<DataFrame> {
        Ok(self.frame(self.context.sql(sql).in_group(self.group()).await?))
    }

    /// Does what `SessionContext::sql_with_options` does.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn sql_with_options(&self, sql: &str, options: SQLOptions) -> Result<DataFrame> {
        let planned = self.context.sql_with_options(sql, options);
        Ok(self.frame(planned.in_group(self.group()).await?))
    }

    /// Does what `SessionContext::table` does.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn table(&self, table: impl Into<TableReference>) -> Result<DataFrame> {
        Ok(self.frame(self.context.table(table).await?))
    }

    /// Does what `SessionContext::read_table` does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn read_table(&self, provider: Arc<dyn TableProvider>) -> Result<DataFrame> {
        Ok(self.frame(self.context.read_table(provider)?))
    }
}

impl Deref for QuerySession {
    type Target = SessionContext;

    fn deref(&self) -> &SessionContext {
        &self.context
    }
}

impl Drop for QuerySession {
    fn drop(&mut self) {
        drop(self.group.take());
        // Streams that wait look again, and end.
        self.pool.life().wake();
    }
}

impl fmt::Debug for QuerySession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuerySession")
            .field("group", self.group())
            .finish_non_exhaustive()
    }
}
