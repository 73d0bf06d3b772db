//! Charges with tokio's clock, checkpoints, and credit that goes back where a worker parks.

use std::future::Future;
use std::time::Duration;

use memcg::{Charge, ChargeError, Group, IntoBytes, OnFull, Runtime};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};

/// Charges `bytes` to `group`, and waits in line for at most `time` by tokio's clock, which tests
/// can pause.
///
/// It does what [`Group::charge_async`] does. A charge that hits the thread's stock arms no timer.
/// The delay above a [high](memcg::Limits::high) goes by the system's clock, and ends with `time`,
/// too. The charge counts in tokio's budget of a task, so a loop of charges that fit leaves turns
/// to the other tasks of its worker.
///
/// # Errors
///
/// [`ChargeError`], as [`Group::charge_async`]:
/// [`ChargeErrorKind::TimedOut`](memcg::ChargeErrorKind::TimedOut) after `time`, which
/// [`Event::TimedOut`](memcg::Event::TimedOut) counts, and
/// [`ChargeErrorKind::OverLimit`](memcg::ChargeErrorKind::OverLimit) at once where the charge could
/// never fit. Nothing of it remains, and neither where the future is dropped.
///
/// # Panics
///
/// Outside of a tokio runtime whose timer is enabled, where the charge does not hit the stock.
///
/// ```
/// use std::time::Duration;
///
/// use memcg::{ChargeError, Runtime};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let budget = Runtime::builder().max(100).build()?;
/// let _held = budget.root().charge(80)?;
/// let late = memcg_tokio::charge_timeout(&budget.root(), 30, Duration::from_secs(3600)).await;
/// assert!(matches!(&late, Err(error) if error.is_timeout())); // the paused clock jumps over the hour
/// # Ok(())
/// # }
/// ```
pub async fn charge_timeout(
    group: &Group,
    bytes: impl IntoBytes,
    time: Duration,
) -> Result<Charge, ChargeError> {
    let bytes = bytes.into_bytes();
    consume_budget().await;
    // A charge that fits at once needs no timer.
    match group.charge_with(bytes, OnFull::IfRoom).ok() {
        Some(charge) => Ok(charge),
        None => {
            group
                .charge_async(bytes)
                .until(tokio::time::sleep(time))
                .await
        }
    }
}

/// Charges as [`charge_timeout`] does, and gives up at `deadline`: for a request whose steps share
/// one deadline.
///
/// # Errors
///
/// As [`charge_timeout`]. A deadline that is over refuses no charge that fits.
///
/// # Panics
///
/// As [`charge_timeout`].
///
/// ```
/// use std::time::Duration;
///
/// use memcg::Runtime;
/// use tokio::time::Instant;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let budget = Runtime::builder().max(100).build()?;
/// let deadline = Instant::now() + Duration::from_millis(5);
/// let head = memcg_tokio::charge_until(&budget.root(), 20, deadline).await?;
/// assert!(memcg_tokio::charge_until(&budget.root(), 90, deadline).await.is_err());
/// # drop(head);
/// # Ok(())
/// # }
/// ```
pub async fn charge_until(
    group: &Group,
    bytes: impl IntoBytes,
    deadline: Instant,
) -> Result<Charge, ChargeError> {
    let bytes = bytes.into_bytes();
    consume_budget().await;
    match group.charge_with(bytes, OnFull::IfRoom).ok() {
        Some(charge) => Ok(charge),
        None => group.charge_async(bytes).until(sleep_until(deadline)).await,
    }
}

/// Asks whether the work of the current group may go on, as [`Group::checkpoint_async`] does, and
/// counts in tokio's budget of a task: a loop that only computes and asks leaves turns to the other
/// tasks of its worker, which a loop of the core's checkpoints does not.
///
/// The group is the one that is current at this call: `group.run(memcg_tokio::checkpoint)` asks for
/// another one.
///
/// # Errors
///
/// As [`Group::checkpoint_async`].
///
/// ```
/// use memcg::{Group, Limits, Runtime};
/// use memcg_tokio::{checkpoint, spawn_in};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let budget = Runtime::builder().build()?;
/// let query = budget.root().create("q17", Limits::new().max(100))?;
/// let work = spawn_in(&query, async {
///     let mut held = Vec::new();
///     loop {
///         held.push(Group::current().unwrap().force_charge(40)); // as an allocator charges
///         if let Err(stopped) = checkpoint().await {
///             return (held.len(), stopped);
///         }
///     }
/// });
/// let (rows, stopped) = work.await?;
/// assert_eq!((rows, stopped.group()), (3, &query));
/// # Ok(())
/// # }
/// ```
pub fn checkpoint() -> impl Future<Output = Result<(), ChargeError>> + Send + 'static {
    // Not in the block below: the group is the one that is current at the call, wherever the future
    // is polled.
    let check = Group::checkpoint_async();
    async move {
        consume_budget().await;
        check.await
    }
}

/// Returns a hook for `on_thread_park` of tokio's builder: a worker that parks gives back the
/// credit that it holds in `runtime`. The usage of an idle service is then its live charge.
///
/// The hook runs [`Runtime::release_thread_credit`] at each park, which says the cost. Where
/// workers park for microseconds and wake up again, [`Runtime::start_flusher`] takes back idle
/// credit and costs the workers nothing.
///
/// The hook has a handle on the `memcg` runtime. So the tree lives as long as the tokio runtime.
///
/// ```
/// let budget = memcg::Runtime::builder().build()?;
/// let service = tokio::runtime::Builder::new_multi_thread()
///     .worker_threads(2)
///     .on_thread_park(memcg_tokio::release_credit(&budget))
///     .build()?;
/// # drop(service);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn release_credit(runtime: &Runtime) -> impl Fn() + Send + Sync + 'static {
    let runtime = runtime.clone();
    move || {
        runtime.release_thread_credit();
    }
}
