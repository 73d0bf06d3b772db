//! `GroupTracer`: what DataFusion spawns runs in the group that spawned it.

use std::any::Any;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use futures::future::BoxFuture;
use memcg::{Group, InGroup};

type Output = Box<dyn Any + Send>;

/// Puts each task and each blocking closure that DataFusion spawns into the group that is current
/// where it is spawned.
///
/// DataFusion has one tracer for a process, which is set once. Without it what a query spawns has
/// no current group, so an allocator that charges (`memcg-alloc`) charges it to none; the pool
/// charges its group in any case.
///
/// ```
/// use datafusion::common::runtime::SpawnedTask;
/// use memcg::{Group, InGroup, Limits, Runtime};
/// use memcg_datafusion::GroupTracer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// GroupTracer::install()?; // once, at the start of the program
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let work = async { SpawnedTask::spawn(async { Group::current() }).join().await };
/// assert_eq!(work.in_group(&query).await?, Some(query));
/// assert!(GroupTracer::install().is_err());
/// # Ok(())
/// # }
/// ```
pub struct GroupTracer {
    inner: Option<Box<dyn JoinSetTracer>>,
}

impl GroupTracer {
    /// Sets the process's tracer.
    ///
    /// # Errors
    ///
    /// [`TracerError`]: one is set already.
    pub fn install() -> Result<(), TracerError> {
        GroupTracer { inner: None }.set()
    }

    /// Sets the process's tracer, and has `inner` trace, too: one of a telemetry library.
    ///
    /// # Errors
    ///
    /// [`TracerError`]: one is set already.
    pub fn install_over(inner: impl JoinSetTracer) -> Result<(), TracerError> {
        GroupTracer {
            inner: Some(Box::new(inner)),
        }
        .set()
    }

    fn set(self) -> Result<(), TracerError> {
        static TRACER: OnceLock<GroupTracer> = OnceLock::new();
        /// True if DataFusion has ours. The lock is held over a store of DataFusion's, which calls
        /// nothing.
        static IS_OURS: Mutex<bool> = Mutex::new(false);
        let mut is_ours = IS_OURS.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_ours {
            return Err(TracerError { is_ours: true });
        }
        // If another one is set, this one stays here unused, and a later call fails for the same
        // reason.
        set_join_set_tracer(TRACER.get_or_init(|| self))
            .map_err(|_| TracerError { is_ours: false })?;
        *is_ours = true;
        Ok(())
    }
}

impl fmt::Debug for GroupTracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupTracer")
            .field("over_another", &self.inner.is_some())
            .finish()
    }
}

impl JoinSetTracer for GroupTracer {
    fn trace_future(&self, future: BoxFuture<'static, Output>) -> BoxFuture<'static, Output> {
        let future = match &self.inner {
            Some(inner) => inner.trace_future(future),
            None => future,
        };
        match Group::current() {
            Some(group) => Box::pin(future.in_group(&group)),
            None => future,
        }
    }

    fn trace_block(
        &self,
        work: Box<dyn FnOnce() -> Output + Send>,
    ) -> Box<dyn FnOnce() -> Output + Send> {
        let work = match &self.inner {
            Some(inner) => inner.trace_block(work),
            None => work,
        };
        match Group::current() {
            Some(group) => Box::new(move || group.run(work)),
            None => work,
        }
    }
}

/// A tracer is set already: a process has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracerError {
    is_ours: bool,
}

impl fmt::Display for TracerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_ours {
            "GroupTracer is installed already: install it once, at the start of the program"
        } else {
            "another JoinSetTracer is set already: in the place of set_join_set_tracer(t) call \
             GroupTracer::install_over(t)"
        })
    }
}

impl std::error::Error for TracerError {}

#[cfg(test)]
mod tests {
    use super::*;

    struct Foreign;

    impl JoinSetTracer for Foreign {
        fn trace_future(&self, future: BoxFuture<'static, Output>) -> BoxFuture<'static, Output> {
            future
        }

        fn trace_block(
            &self,
            work: Box<dyn FnOnce() -> Output + Send>,
        ) -> Box<dyn FnOnce() -> Output + Send> {
            work
        }
    }

    /// A process has one tracer, so no other test of this program sets one.
    #[test]
    fn a_foreign_tracer_is_told_of_each_time() {
        assert!(set_join_set_tracer(&Foreign).is_ok());
        for installed in [
            GroupTracer::install(),
            GroupTracer::install_over(Foreign),
            GroupTracer::install(),
        ] {
            let said = installed.unwrap_err().to_string();
            assert!(said.contains("call GroupTracer::install_over(t)"), "{said}");
        }
    }
}
