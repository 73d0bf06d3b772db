//! Waiting for a service that comes to rest.

use std::time::{Duration, Instant};

use memcg::{Group, Runtime};

/// Far beyond what a test takes.
pub(crate) const TIME: Duration = Duration::from_secs(60);

/// Waits until something is so. It has long been in vain when the test fails.
pub(crate) async fn until(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let late = Instant::now() + TIME;
    while !is_so() {
        assert!(Instant::now() < late, "{}", what());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until a group holds so many bytes.
pub(crate) async fn until_live(group: &Group, bytes: u64) {
    let what = || format!("{} are charged, not {bytes}", group.live());
    until(|| group.live() == bytes, what).await;
}

/// Waits until all counts add up.
///
/// That no byte is live does not say so yet. A connection's task, which nobody waits for, may be
/// about to charge for a request whose client has gone; and bytes that it has given back are credit
/// of its thread before it takes them off each level.
pub(crate) async fn until_adds_up(runtime: &Runtime) {
    until(|| runtime.verify().is_ok(), || runtime.verify().to_string()).await;
}
