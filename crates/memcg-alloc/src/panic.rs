//! A hook for panics, in which no group is charged.

use std::panic::PanicHookInfo;

use memcg::allocator::unowned;

/// Returns a hook that calls `hook` in no group, for `std::panic::set_hook`.
///
/// With `RUST_BACKTRACE=1` the standard library reads the program's symbols at the first panic, tens of
/// megabytes for a large program, and keeps them. Without this hook the group whose task panics first
/// has them for ever, and each later checkpoint of it is refused. The same holds for what any other hook
/// keeps: a logger's buffers, a reporter's client. The crate installs no hook itself: the program does,
/// around the hook that it has.
///
/// ```
/// use memcg::{Group, Limits, Runtime};
/// use memcg_alloc::{MemcgAlloc, unowned_panic_hook};
///
/// #[global_allocator]
/// static ALLOCATOR: MemcgAlloc<std::alloc::System> = MemcgAlloc::new(std::alloc::System);
///
/// std::panic::set_hook(unowned_panic_hook(std::panic::take_hook()));
///
/// let runtime = Runtime::builder().build()?;
/// let tenant = runtime.root().create("acme", Limits::new().max(1 << 20))?;
/// let failed = std::panic::catch_unwind(|| tenant.run(|| panic!("a bug of one job")));
/// assert!(failed.is_err());
/// drop(failed);
/// assert_eq!(tenant.live(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn unowned_panic_hook(
    hook: impl Fn(&PanicHookInfo<'_>) + Send + Sync + 'static,
) -> Box<dyn Fn(&PanicHookInfo<'_>) + Send + Sync + 'static> {
    Box::new(move |info| unowned(|| hook(info)))
}
