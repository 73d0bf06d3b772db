//! Tasks that run in a group.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use memcg::allocator::unowned;
use memcg::{Group, InGroup};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Spawns a task that runs in `group`: [`Group::current`] names the group at each poll, and where
/// the future is dropped, also after an abort. `memcg-alloc` then charges the group for what the
/// task allocates.
///
/// It costs what `tokio::spawn` costs, and two switches of the thread's current group for each
/// poll. What the task spawns has no group of its own. For a `JoinSet` use [`InGroup::in_group`]:
/// `set.spawn(future.in_group(&group))`.
///
/// # Panics
///
/// As `tokio::spawn`, outside of a tokio runtime.
///
/// ```
/// use memcg::{Group, Limits, Runtime};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let budget = Runtime::builder().build()?;
/// let acme = budget.root().create("acme", Limits::new())?;
/// let path = memcg_tokio::spawn_in(&acme, async { Group::current().map(|group| group.path()) }).await?;
/// assert_eq!(path.as_deref(), Some("/acme"));
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn spawn_in<F>(group: &Group, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(future.in_group(group))
}

/// Runs `work` in `group` on a thread for blocking work. Where tokio shuts down before `work` runs,
/// the drop of `work` happens in the group, too.
///
/// The group has what `work` holds and allocates. What tokio allocates for it belongs to no group: a
/// thread that it starts and the room of its queue serve all that come later, so no group would give
/// them back ([`unowned`](memcg::allocator::unowned)). That is so of this call alone: the blocking work
/// of tokio's own functions, as `tokio::fs`, is spawned in the group that is current then.
///
/// It costs what `tokio::task::spawn_blocking` costs, an allocation, and two switches of the thread's
/// current group.
///
/// # Panics
///
/// As `tokio::task::spawn_blocking`, outside of a tokio runtime.
///
/// ```
/// use memcg::{Group, Limits, Runtime};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let budget = Runtime::builder().max(1 << 20).build()?;
/// let acme = budget.root().create("acme", Limits::new())?;
/// // A blocking charge belongs on such a thread.
/// let charge = memcg_tokio::spawn_blocking_in(&acme, || Group::current().unwrap().charge(4096)).await??;
/// assert_eq!(charge.group(), acme);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn spawn_blocking_in<F, R>(group: &Group, work: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    // A future, so that its wrapper drops in the group what was never run. Its memory is the group's,
    // too: a task of tokio has it within itself else.
    let mut work = group.run(|| Box::pin(async move { work() }.in_group(group)));
    // Outside of the closure, so that the panic without a runtime names the caller.
    let tokio = Handle::current();
    unowned(|| {
        tokio.spawn_blocking(move || {
            match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(done) => done,
                Poll::Pending => {
                    unreachable!("a block without an await is ready at its first poll")
                }
            }
        })
    })
}
