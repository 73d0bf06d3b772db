#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

mod limiter;

use wasmtime::Store;

pub use limiter::{GroupLimiter, WhenFull};

/// Gives `store` the limiter that `limiter` finds in its data, in the place of [`Store::limiter`].
/// Blocks never.
///
/// The charge lasts until the store has freed its memories. With [`Store::limiter`] it ends a
/// moment before that: a store drops its data first.
///
/// Call it once for each store, before the first instance is made. Memory that the store has
/// already is not charged.
pub fn limit<T: 'static>(
    store: &mut Store<T>,
    limiter: impl Fn(&mut T) -> &mut GroupLimiter + Send + Sync + 'static,
) {
    let outlives = limiter(store.data_mut()).outlives_data();
    store.limiter(move |data| {
        let _until_memory_is_freed = &outlives;
        limiter(data)
    });
}

/// As [`limit`], in the place of [`Store::limiter_async`]: a growth that waits blocks no thread.
/// Such a store needs the `_async` functions of wasmtime.
///
/// A future of a call that is dropped while a growth waits leaves nothing in the group's line.
///
/// ```
/// use std::time::Duration;
///
/// use memcg::{Limits, Runtime};
/// use memcg_wasmtime::{GroupLimiter, WhenFull, limit_async};
/// use wasmtime::{Engine, Memory, MemoryType, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let budget = Runtime::builder().max(1 << 20).build()?;
/// let [acme, globex] = ["acme", "globex"].map(|name| budget.root().create(name, Limits::new()).unwrap());
/// let other = globex.charge(1 << 20)?;
///
/// let patient = GroupLimiter::new(&acme).when_full(WhenFull::Wait(Duration::from_secs(10)));
/// let mut store = Store::new(&Engine::default(), patient);
/// limit_async(&mut store, |limiter| limiter);
/// let task = tokio::spawn(async move {
///     Memory::new_async(&mut store, MemoryType::new(1, None)).await?;
///     Ok::<_, wasmtime::Error>(store)
/// });
/// tokio::task::yield_now().await; // the task waits in line
/// assert_eq!(acme.live(), 0);
/// drop(other);
/// let store = task.await??;
/// assert_eq!(acme.live(), 1 << 16);
/// # drop(store);
/// # Ok(())
/// # }
/// ```
pub fn limit_async<T: 'static>(
    store: &mut Store<T>,
    limiter: impl Fn(&mut T) -> &mut GroupLimiter + Send + Sync + 'static,
) {
    let outlives = limiter(store.data_mut()).outlives_data();
    store.limiter_async(move |data| {
        let _until_memory_is_freed = &outlives;
        limiter(data)
    });
}

/// The chapter's code.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/wasm.md")]
struct Chapter;
