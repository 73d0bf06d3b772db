//! `OnFull`: what a charge does that does not fit.

use std::time::Duration;

/// Says what a charge does that does not fit at once: the argument of
/// [`Group::try_charge_with`](crate::Group::try_charge_with).
///
/// ```
/// use memcg::{Limit, Limits, OnFull, Runtime};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(Limit::kib(1)))?;
/// assert!(acme.try_charge_with(2_000, OnFull::Wait(Duration::from_millis(1))).is_err());
/// assert_eq!(acme.try_charge_with(2_000, OnFull::Force)?.bytes(), 2_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFull {
    /// It drains, reclaims and has victims cancelled, then is refused. It may sleep and wait for others.
    #[default]
    Refuse,
    /// As `Refuse`, and then it waits in line, for so long at most.
    Wait(Duration),
    /// As `Refuse` without victims, and then it is made above the limit.
    Force,
    /// As `Refuse`, but it neither sleeps nor waits for others, and cancels one victim at most.
    Reclaim,
    /// It never blocks. Other threads begin to drain, reclaim and cancel for it.
    Start,
    /// It never blocks and starts nothing.
    Now,
    /// As `Now`, also below each high; a refusal counts nothing and has no figures.
    IfRoom,
}
