//! The limiter of one store.
//!
//! * **Holder.** The limiter lies in the store's data and has one charge for all memories and
//!   tables of the store, and one for its instances.
//! * **End.** A store drops its data, then its memories, then the closure that finds the limiter.
//!   So `limit` gives that closure a place, and the limiter's drop moves its charges there: they go
//!   last, on the thread that drops the store. A limiter that a host takes out of the store
//!   (`Store::into_data`), or that `limit` has never seen, gives them back itself.
//! * **Failure.** wasmtime reports a growth that it could not make at once, before the next call.
//!   The charge of that growth goes back, once. Two failures are found before the limiter is asked:
//!   their words tell them apart. A guest can cause them, and would else have back what it uses.
//! * **Wait.** A task that waits holds no lock, and nothing of the growth. Its future, dropped,
//!   leaves the line.

use std::fmt::{self, Display};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use memcg::{Bytes, Charge, ChargeError, CounterKey, Group, OnFull};
use wasmtime::{Error, ResourceLimiter, ResourceLimiterAsync, Result};

/// Bytes of an element of a table. A limiter is not told the type. References to functions are
/// pointers, those of the garbage collector take half as much.
const ELEMENT: usize = size_of::<usize>();

/// Instances of a store, unless its limiter counts them. wasmtime's own default.
const INSTANCES: usize = 10_000;

/// The words of wasmtime for a failure that it finds before it asks the limiter. Nothing was
/// charged for such a growth.
const NEVER_ASKED: [&str; 2] = [
    "memory growth exceeds memory type's limits",
    "overflow calculating new table size",
];

/// The charges of a store, from the end of its data until its memories are freed.
pub(crate) type Outlives = Arc<OnceLock<[Charge; 2]>>;

/// Says what a growth of a guest does that does not fit: [`GroupLimiter::when_full`].
///
/// | | with [`limit`](crate::limit) | with [`limit_async`](crate::limit_async) |
/// |---|---|---|
/// | `Refuse` | blocks for reclaim, 100 ms by default, and above a `high` | the task never sleeps; reclaimers run on its thread, 100 ms by default |
/// | `Wait(time)` | the thread waits in line, for so long at most | the task waits, also above a `high` |
/// | `Force` | as `Refuse`, and then the growth goes above the limit | the same |
///
/// A store that waits keeps what it has, and two such stores may wait for each other until their
/// time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// Memory is reclaimed, as [`Group::charge`] does; then the growth fails.
    #[default]
    Refuse,
    /// As `Refuse`, and then the growth waits for room, for so long at most.
    Wait(Duration),
    /// As `Refuse`, and then the growth is made above the limit. Only a group that is cancelled or
    /// offline refuses it.
    Force,
}

/// Charges the memories and the tables of one store to a group.
///
/// It belongs into the data of the store, where [`limit`](crate::limit) or
/// [`limit_async`](crate::limit_async) finds it. It has the charge of all that the store has, and
/// gives it back with the store, on whatever thread that is.
///
/// * A growth that is refused is -1 for a guest, and an error for a host that grows.
///   [`trap_on_grow_failure`](Self::trap_on_grow_failure) makes it a trap.
/// * A growth above the maximum that the module declares is refused without a charge.
/// * A growth in a group that is cancelled or offline is a trap in any case.
/// * The text of a trap names no group. The [`ChargeError`] that is its cause does, for the host
///   alone: [`downcast_ref`](wasmtime::Error::downcast_ref) finds it.
/// * The host's log has the whole sentence of a refusal, as a warning of the crate `log` with this
///   crate as its target. A guest can ask in a loop, so a store logs its refusals number 1, 2, 4, 8
///   and so on.
pub struct GroupLimiter {
    group: Group,
    memory: Charge,
    /// Of 0 instances, if they are not counted.
    instances: Charge,
    most_instances: usize,
    when_full: WhenFull,
    traps: bool,
    /// The bytes of the growth that was asked for last, if it may still fail.
    last: Option<(What, usize)>,
    refused: u64,
    refusal: Option<ChargeError>,
    outlives: Option<Outlives>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Memory,
    Table,
}

impl Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            What::Memory => "memory",
            What::Table => "table",
        })
    }
}

impl fmt::Debug for GroupLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = self.group.path();
        let bytes = self.bytes();
        f.debug_struct("GroupLimiter")
            .field("group", &group)
            .field("bytes", &bytes)
            .finish_non_exhaustive()
    }
}

impl GroupLimiter {
    /// Returns a limiter that has charged nothing yet. It never blocks, and never fails: in a group
    /// that is offline the first memory is refused.
    pub fn new(group: &Group) -> GroupLimiter {
        GroupLimiter {
            group: group.clone(),
            memory: group.force_charge(0),
            instances: group.force_charge(0),
            most_instances: INSTANCES,
            when_full: WhenFull::Refuse,
            traps: false,
            last: None,
            refused: 0,
            refusal: None,
            outlives: None,
        }
    }

    /// Says what a growth does if there is no room. The default is [`WhenFull::Refuse`].
    pub fn when_full(mut self, full: WhenFull) -> GroupLimiter {
        self.when_full = full;
        self
    }

    /// Makes each failed growth a trap, as [`wasmtime::StoreLimitsBuilder::trap_on_grow_failure`]
    /// does. The trap's error is the [`ChargeError`]. Without it the guest sees -1.
    pub fn trap_on_grow_failure(mut self, traps: bool) -> GroupLimiter {
        self.traps = traps;
        self
    }

    /// Charges `most` instances to a counter beside memory, which a runtime's builder declares. The
    /// store can then make that many instances and no more. They are given back with the store. The
    /// call never blocks, as [`Group::try_charge_set`].
    ///
    /// # Errors
    ///
    /// [`ChargeError`]: the group, or one above it, has as many instances as its limits allow.
    ///
    /// ```
    /// use memcg::{Limits, Runtime, Unit};
    /// use memcg_wasmtime::GroupLimiter;
    ///
    /// let mut builder = Runtime::builder();
    /// let instances = builder.counter("instances", Unit::Events);
    /// let runtime = builder.build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// acme.counter(instances)?.set_max(100)?;
    ///
    /// let limiter = GroupLimiter::new(&acme).instances(instances, 90)?;
    /// assert!(GroupLimiter::new(&acme).instances(instances, 11).is_err());
    /// drop(limiter);
    /// assert_eq!(acme.counter(instances)?.live(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn instances(
        mut self,
        counter: CounterKey,
        most: usize,
    ) -> Result<GroupLimiter, ChargeError> {
        let [charge] = self.group.try_charge_set(&[(counter, most)])?;
        self.instances = charge;
        self.most_instances = most;
        Ok(self)
    }

    /// Returns the group that is charged.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns the bytes that this store has charged.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Returns how many growths the group has refused to this store.
    pub fn refused_count(&self) -> u64 {
        self.refused
    }

    /// Returns why the last refused growth was refused: for the answer to the client that runs the
    /// guest.
    pub fn last_refusal(&self) -> Option<&ChargeError> {
        self.refusal.as_ref()
    }

    /// Returns an error if the group is cancelled or offline, or above its max by what an allocator
    /// has charged. It is for the epochs of a store, so that a guest ends that grows no more.
    ///
    /// It never sleeps nor waits. It costs a few loads while no group of the runtime is above a
    /// limit; else reclaimers may run on this thread, as in [`Group::checkpoint_async`].
    ///
    /// # Errors
    ///
    /// [`ChargeError`], as [`Group::checkpoint`], and
    /// [`ChargeErrorKind::Offline`](memcg::ChargeErrorKind::Offline).
    ///
    /// ```
    /// use memcg::{ChargeError, Limits, Runtime};
    /// use memcg_wasmtime::{GroupLimiter, limit};
    /// use wasmtime::{Config, Engine, Instance, Module, Store, UpdateDeadline};
    ///
    /// let budget = Runtime::builder().build()?;
    /// let acme = budget.root().create("acme", Limits::new())?;
    /// let engine = Engine::new(Config::new().epoch_interruption(true))?;
    /// let mut store = Store::new(&engine, GroupLimiter::new(&acme));
    /// limit(&mut store, |limiter| limiter);
    /// store.set_epoch_deadline(1);
    /// store.epoch_deadline_callback(|store| {
    ///     store.data().check()?;
    ///     Ok(UpdateDeadline::Continue(1)) // or a yield, in async code
    /// });
    ///
    /// let module = Module::new(&engine, r#"(module (func (export "spin") (loop (br 0))))"#)?;
    /// let spin = Instance::new(&mut store, &module, &[])?.get_typed_func::<(), ()>(&mut store, "spin")?;
    /// acme.offline()?;
    /// engine.increment_epoch(); // a thread of the host does it, every few milliseconds
    /// let trap = spin.call(&mut store, ()).unwrap_err();
    /// assert!(matches!(trap.downcast_ref::<ChargeError>(), Some(error) if error.is_offline()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<(), ChargeError> {
        // No bytes are charged, and refused where the group is offline.
        self.group.raw().charge(0)?;
        let look = self.group.run(Group::checkpoint_async);
        match pin!(look).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ended) => ended,
            // Memory is about to come, or the group is above its high: neither ends a guest.
            Poll::Pending => Ok(()),
        }
    }

    /// From now on the charge goes to what is returned when the limiter is dropped.
    pub(crate) fn outlives_data(&mut self) -> Outlives {
        self.outlives.get_or_insert_default().clone()
    }

    /// Returns the bytes to charge, or the answer where nothing is to be charged.
    fn asked(
        &mut self,
        what: What,
        now: usize,
        then: usize,
        most: Option<usize>,
    ) -> Result<usize, Result<bool>> {
        self.last = None;
        // A charge that fits does not ask for it.
        if let Err(ended) = self.check()
            && is_end(&ended)
        {
            return Err(self.refuse(what, ended));
        }
        if let Some(most) = most.filter(|most| then > *most) {
            let unit = if what == What::Memory {
                "bytes"
            } else {
                "elements"
            };
            let too_large = || {
                Error::msg(format!(
                    "a {what} of {then} {unit}: its module allows {most}"
                ))
            };
            return Err(if self.traps {
                Err(too_large())
            } else {
                Ok(false)
            });
        }
        let more = then.saturating_sub(now);
        Ok(if what == What::Memory {
            more
        } else {
            more.saturating_mul(ELEMENT)
        })
    }

    fn answered(
        &mut self,
        what: What,
        bytes: usize,
        charged: Result<Charge, ChargeError>,
    ) -> Result<bool> {
        match charged {
            Ok(charge) => {
                self.last = Some((what, bytes));
                self.memory.merge(charge).expect("one group, one counter");
                Ok(true)
            }
            Err(refusal) => self.refuse(what, refusal),
        }
    }

    #[cold]
    fn refuse(&mut self, what: What, refusal: ChargeError) -> Result<bool> {
        self.refused += 1;
        if self.refused.is_power_of_two() {
            let number = self.refused;
            log::warn!(target: "memcg_wasmtime", "a {what} cannot grow (refusal {number} of its store): {refusal}");
        }
        self.refusal = Some(refusal.clone());
        if self.traps || is_end(&refusal) {
            // A host may hand the text of a trap on to the guest's author.
            let said = if is_end(&refusal) {
                "the store has to end: its group takes no memory any more"
            } else {
                "there is no room for the growth"
            };
            Err(Error::from(refusal).context(said))
        } else {
            Ok(false)
        }
    }

    fn growing(
        &mut self,
        what: What,
        now: usize,
        then: usize,
        most: Option<usize>,
    ) -> Result<bool> {
        match self.asked(what, now, then, most) {
            Ok(bytes) => {
                let charged = match self.when_full {
                    WhenFull::Refuse => self.group.charge(bytes),
                    WhenFull::Wait(time) => self.group.charge_with(bytes, OnFull::Wait(time)),
                    WhenFull::Force => self.or_force(bytes, self.group.charge(bytes)),
                };
                self.answered(what, bytes, charged)
            }
            Err(answer) => answer,
        }
    }

    async fn growing_async(
        &mut self,
        what: What,
        now: usize,
        then: usize,
        most: Option<usize>,
    ) -> Result<bool> {
        match self.asked(what, now, then, most) {
            Ok(bytes) => {
                let charged = match self.when_full {
                    WhenFull::Refuse => self.group.charge_with(bytes, OnFull::Reclaim),
                    WhenFull::Wait(time) => self.group.charge_async(bytes).timeout(time).await,
                    WhenFull::Force => {
                        self.or_force(bytes, self.group.charge_with(bytes, OnFull::Reclaim))
                    }
                };
                self.answered(what, bytes, charged)
            }
            Err(answer) => answer,
        }
    }

    /// A growth that goes above the limit where it was refused, unless the group takes none.
    fn or_force(
        &self,
        bytes: usize,
        charged: Result<Charge, ChargeError>,
    ) -> Result<Charge, ChargeError> {
        match charged {
            Err(refused) if !is_end(&refused) => Ok(self.group.force_charge(bytes)),
            ended => ended,
        }
    }

    /// wasmtime could not grow: what the limiter charged for that goes back.
    fn failed(&mut self, what: What, error: Error) -> Result<()> {
        let said = error.to_string();
        if !NEVER_ASKED.contains(&said.as_str())
            && let Some((_, bytes)) = self.last.take_if(|(last, _)| *last == what)
        {
            self.memory.shrink(Bytes(bytes as u64));
        }
        log::debug!(target: "memcg_wasmtime", "wasmtime could not grow a {what}: {error:?}");
        if self.traps { Err(error) } else { Ok(()) }
    }
}

/// True if the group takes no charges any more, so that its guests have to end.
fn is_end(error: &ChargeError) -> bool {
    error.is_cancelled() || error.is_offline()
}

impl Drop for GroupLimiter {
    fn drop(&mut self) {
        if let Some(outlives) = self.outlives.take() {
            // It is empty: a limiter is dropped once.
            drop(outlives.set([self.memory.take(), self.instances.take()]));
        }
    }
}

impl ResourceLimiter for GroupLimiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        self.growing(What::Memory, current, desired, maximum)
    }

    fn memory_grow_failed(&mut self, error: Error) -> Result<()> {
        self.failed(What::Memory, error)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        self.growing(What::Table, current, desired, maximum)
    }

    fn table_grow_failed(&mut self, error: Error) -> Result<()> {
        self.failed(What::Table, error)
    }

    fn instances(&self) -> usize {
        self.most_instances
    }
}

#[async_trait]
impl ResourceLimiterAsync for GroupLimiter {
    async fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        self.growing_async(What::Memory, current, desired, maximum)
            .await
    }

    fn memory_grow_failed(&mut self, error: Error) -> Result<()> {
        self.failed(What::Memory, error)
    }

    async fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        self.growing_async(What::Table, current, desired, maximum)
            .await
    }

    fn table_grow_failed(&mut self, error: Error) -> Result<()> {
        self.failed(What::Table, error)
    }

    fn instances(&self) -> usize {
        self.most_instances
    }
}
