//! Settings for what a pool does beyond charging its group.

#[cfg(feature = "session")]
use std::any::TypeId;
use std::time::Duration;

use memcg::{Bytes, CounterKey, IntoBytes};

#[cfg(feature = "session")]
use crate::queue::QueryQueue;
#[cfg(feature = "session")]
use crate::repeats::Repeatable;

/// Default time for which a consumer waits if its pool spills on demand.
const PATIENCE: Duration = Duration::from_secs(1);

/// Settings for what a [`GroupPool`](crate::GroupPool) does beyond charging its group. The default:
/// nothing.
///
/// ```
/// use std::time::Duration;
///
/// use memcg_datafusion::PoolConfig;
///
/// let config = PoolConfig::new().spill_on_demand().unspillable_reserve(8 << 20);
/// let at_once = config.clone().patience(Duration::ZERO);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a pool is made with it"]
pub struct PoolConfig {
    pub(crate) reserve: u64,
    pub(crate) spill_on_demand: bool,
    pub(crate) by_operator: bool,
    /// Only sessions look at it.
    #[cfg_attr(not(feature = "session"), allow(dead_code))]
    pub(crate) max_unreserved: Option<u64>,
    /// Only sessions look at it.
    #[cfg_attr(not(feature = "session"), allow(dead_code))]
    pub(crate) spill_counter: Option<CounterKey>,
    patience: Option<Duration>,
    #[cfg(feature = "session")]
    pub(crate) queue: Option<QueryQueue>,
    #[cfg(feature = "session")]
    pub(crate) repeatable: Repeatable,
    #[cfg(feature = "session")]
    pub(crate) runtime_keys: Vec<String>,
}

impl PoolConfig {
    /// A pool that charges its group and does nothing else.
    pub fn new() -> PoolConfig {
        PoolConfig::default()
    }

    /// Keeps `bytes` of headroom for consumers that cannot spill. One that has something to spill
    /// is refused, and spills, where the group or one above it would have less
    /// [headroom](memcg::Group::headroom) after its growth. To read the headroom takes a few loads
    /// a level for each growth of such a consumer. Credit of threads counts as room: before a
    /// growth is refused it is drained, which costs a barrier.
    ///
    /// From its third file on the merge of an aggregate's files leaves the reserve, and with
    /// [`spill_on_demand`](Self::spill_on_demand) that of a sort's files.
    ///
    /// A reserve of more than half of the least max on the way up counts as that half. A pool whose
    /// reserve is as large as that max is not made. An aggregate that was refused may grow in order
    /// to make room: for that it takes of the reserve.
    pub fn unspillable_reserve(mut self, bytes: impl IntoBytes) -> PoolConfig {
        Bytes(self.reserve) = bytes.into_bytes();
        self
    }

    /// Lets other groups ask this pool's operators to spill.
    ///
    /// The pool registers a reclaimer. When a charge elsewhere does not fit, the reclaimer promises
    /// what is wanted, and the pool refuses the next growth of its spillable consumers until as
    /// much has come back. A consumer is refused once for each demand, and only where its
    /// reservation is worth a spill: 256 KiB, or all that is wanted. The consumers that can spill
    /// and those that cannot have a group each below the pool's group, `spillable` and
    /// `unspillable`. A sort's merge takes over what the sort holds, so it is in `spillable`.
    ///
    /// The merge of an aggregate's files leaves as much as one file takes, for the aggregate's
    /// table. Where two files do not, it reads them with half the buffers.
    ///
    /// The bytes that a sort frees while it spills stay charged until its merge has loaded the
    /// sorted runs. Its reservation for merging, `sort_spill_reservation_bytes`, and room for the
    /// batch that did not fit stay charged throughout. In a full group another query would take
    /// them, and the sort would fail while it frees memory.
    ///
    /// It also sets a [patience](Self::patience) of one second, unless one is set.
    pub fn spill_on_demand(mut self) -> PoolConfig {
        self.spill_on_demand = true;
        self
    }

    /// Gives each kind of operator a group of its own below the pool's group, in the place of a
    /// `TrackConsumersPool`. The group's name is that of the consumer without its partition:
    /// `HashJoinInput`, `ExternalSorter`. A refusal names the largest. With
    /// [`spill_on_demand`](Self::spill_on_demand) `ExternalSorter` holds the sorts' merges, too.
    ///
    /// Each growth and each return then looks for the operator by name.
    pub fn by_operator(mut self) -> PoolConfig {
        self.by_operator = true;
        self
    }

    /// Ends a plan whose group has allocated more than `bytes` beyond what it has reserved: with a
    /// `ResourcesExhausted` that names the group, as a refusal does. Some operators reserve
    /// nothing: a window over all rows, the decoding of files. Without a bound such a query takes
    /// the memory of all, and the system kills the process.
    ///
    /// It needs `memcg-alloc` as the global allocator and a [`GroupTracer`](crate::GroupTracer):
    /// without them nothing is known to be allocated, and no plan ends. It concerns the plans of
    /// [sessions](crate::InGroupSession). While there are such sessions a thread looks at each
    /// every 10 ms, so what a plan allocates between two looks is beyond the bound. While the
    /// group's usage is below `bytes` a look reads that usage; else it costs a
    /// [`Group::ledger`](memcg::Group::ledger).
    ///
    /// ```
    /// use memcg::Bytes;
    /// use memcg_datafusion::PoolConfig;
    ///
    /// let config = PoolConfig::new().spill_on_demand().max_unreserved(Bytes(256 << 20));
    /// # let _ = config;
    /// ```
    pub fn max_unreserved(mut self, bytes: impl IntoBytes) -> PoolConfig {
        self.max_unreserved = Some(bytes.into_bytes().as_u64());
        self
    }

    /// Charges the bytes of spill files to a counter of the group beside memory. The counter's max
    /// is a quota: of a query, of its tenant, of the process. A query whose files do not fit ends
    /// with a `ResourcesExhausted` that names the group that was full. The setting concerns the
    /// plans of [sessions](crate::InGroupSession), whatever SQL sets of the runtime. Each write to
    /// a file makes one charge. Files that the service's disk manager refuses are refused as
    /// before.
    ///
    /// Making a session returns an error if the runtime has no such counter.
    ///
    /// ```
    /// use datafusion::prelude::SessionContext;
    /// use memcg::{Limits, Runtime};
    /// use memcg_datafusion::{InGroupSession, PoolConfig};
    ///
    /// let mut builder = Runtime::builder();
    /// let spill = builder.counter("spill", memcg::Unit::Bytes);
    /// let runtime = builder.build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(256 << 20))?;
    /// acme.counter(spill)?.set_max(10 << 30)?; // all files of all its queries
    /// let config = PoolConfig::new().spill_on_demand().spill_counter(spill);
    /// let query = SessionContext::new().for_query(&acme, 17, Limits::new(), &config)?;
    /// # let _ = query;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spill_counter(mut self, counter: CounterKey) -> PoolConfig {
        self.spill_counter = Some(counter);
        self
    }

    /// Longest wait of a growth that does not fit and whose operator would fail: a consumer that
    /// cannot spill, or has nothing to spill yet. The default is zero: it is refused at once.
    ///
    /// A consumer waits only in a task of a multi-thread tokio runtime, by `block_in_place`, so
    /// other tasks of the worker go on. It waits for at most `time`, and much shorter where nothing
    /// moves: where the usage of the level that is full does not fall, and no operator there spills
    /// on demand. It then gives up after a fiftieth of `time`, or a fifth where operators were
    /// asked. Each such wait in vain halves the next of the same pool, until a second has passed.
    /// An exchange (`RepartitionExec`) does not wait: it spills the batch that it holds, and others
    /// wait for its output.
    ///
    /// With a [queue](Self::queue), a query that ran beside another and may run again waits for a
    /// third of the time that it has run, in all. One that may not waits as long as the queue is
    /// patient, and gives up after a 500th of that where nothing moves.
    ///
    /// Inside a tokio `LocalSet` a worker cannot hand its tasks on. There the first consumer that
    /// is to wait prints tokio's panic, and it and the next of the same pool are refused at once.
    /// Where queries run as local tasks, set zero.
    pub fn patience(mut self, time: Duration) -> PoolConfig {
        self.patience = Some(time);
        self
    }

    /// Has a query that is refused memory that others hold wait in line and run again: see
    /// [`QueryQueue`]. The setting concerns the plans of [sessions](crate::InGroupSession).
    ///
    /// A query that never waits takes the queue's lock some six times in all. Its plan is copied
    /// once, node by node, for what is shown of it before it has run.
    #[cfg(feature = "session")]
    pub fn queue(mut self, queue: &QueryQueue) -> PoolConfig {
        self.queue = Some(queue.clone());
        self
    }

    /// Declares that what a value of `T` gives does not change from one run of a query to the next,
    /// so that the [queue](Self::queue) may run the query again. `T` is a type of the service that
    /// is part of plans: a `TableProvider`, an `ExecutionPlan`, a `DataSource`, a node of logical
    /// plans. Of a table with a plan of its own both are declared.
    ///
    /// DataFusion's own tables in memory, listings of files, views, values and series are known.
    /// A query with any other part that is not declared is not run again, and waits in its place.
    /// `QueuedExec` of `EXPLAIN` names that part.
    ///
    /// A table whose rows can be taken once, as those of a cursor or a socket, is not declared: the
    /// second run of a query would be without them.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use datafusion::catalog::streaming::StreamingTable;
    /// use datafusion::physical_plan::streaming::StreamingTableExec;
    /// use memcg_datafusion::{PoolConfig, QueryQueue};
    ///
    /// // In this service each stream begins anew.
    /// let config = PoolConfig::new()
    ///     .queue(&QueryQueue::new(3, Duration::from_secs(60)))
    ///     .repeatable::<StreamingTable>()
    ///     .repeatable::<StreamingTableExec>();
    /// # let _ = config;
    /// ```
    #[cfg(feature = "session")]
    pub fn repeatable<T: 'static>(mut self) -> PoolConfig {
        self.repeatable.declare(TypeId::of::<T>());
        self
    }

    /// Lets SQL of the [sessions](crate::InGroupSession) set a key of DataFusion's runtime, such as
    /// `datafusion.runtime.max_spill_merge_fan_in`. No other key of `datafusion.runtime` is set: it
    /// would act on caches, folders and quotas that all tenants share. `memory_limit` changes
    /// nothing in any case, the session keeps its pool.
    ///
    /// A `SET` of the quota, the folder or the fan-in gives the session a disk manager of its own,
    /// with DataFusion's defaults for the other two.
    ///
    /// ```
    /// use memcg_datafusion::PoolConfig;
    ///
    /// let config = PoolConfig::new().runtime_key("datafusion.runtime.max_spill_merge_fan_in");
    /// # let _ = config;
    /// ```
    #[cfg(feature = "session")]
    pub fn runtime_key(mut self, key: &str) -> PoolConfig {
        self.runtime_keys.push(key.to_string());
        self
    }

    pub(crate) fn patience_or_default(&self) -> Duration {
        let default = if self.spill_on_demand {
            PATIENCE
        } else {
            Duration::ZERO
        };
        self.patience.unwrap_or(default)
    }
}
