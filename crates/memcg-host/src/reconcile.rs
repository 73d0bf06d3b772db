//! Charged bytes beside resident bytes.

use std::fmt;

use memcg::{Bytes, Group};

use crate::foreign::contain;
use crate::{Host, HostError};

type Allocated = Box<dyn Fn() -> u64 + Send + Sync>;

/// Compares what a tree has charged with what the allocator has handed out and what the process has
/// in memory.
///
/// ```
/// use memcg::Runtime;
/// use memcg_host::Reconciler;
///
/// let runtime = Runtime::builder().build()?;
/// let _held = runtime.root().charge(1 << 20)?;
/// // In a service: jemalloc's `stats.allocated`, mimalloc's committed bytes.
/// let reconciler = Reconciler::new(&runtime.root()).allocated(|| 3 << 20);
/// let now = reconciler.read()?;
/// assert_eq!((now.charged, now.uncharged()), (1 << 20, Some(2 << 20)));
/// println!("{now}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reconciler {
    host: Host,
    group: Group,
    allocated: Option<Allocated>,
}

impl Reconciler {
    /// Compares what `group` and the groups below it have charged, on [`Host::new`].
    pub fn new(group: &Group) -> Reconciler {
        Reconciler {
            host: Host::new(),
            group: group.clone(),
            allocated: None,
        }
    }

    /// Reads the memory of another host.
    pub fn host(mut self, host: Host) -> Reconciler {
        self.host = host;
        self
    }

    /// Asks `hook` for the bytes that the allocator has handed out. A hook that panics counts as
    /// none.
    pub fn allocated(mut self, hook: impl Fn() -> u64 + Send + Sync + 'static) -> Reconciler {
        self.allocated = Some(Box::new(hook));
        self
    }

    /// Reads all figures, one after the other. It costs a [`Group::live`], the hook, and a file or
    /// two.
    ///
    /// # Errors
    ///
    /// [`HostError`] where the memory of the process cannot be read.
    pub fn read(&self) -> Result<Reconciliation, HostError> {
        let charged = self.group.live();
        let allocated = self.allocated.as_ref().and_then(contain);
        let memory = self.host.memory()?;
        let resident = memory.resident;
        let anon = memory.anon;
        let swapped = memory.swapped;
        Ok(Reconciliation {
            charged,
            allocated,
            resident,
            anon,
            swapped,
        })
    }
}

impl fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Reconciler");
        debug.field("host", &self.host).field("group", &self.group);
        debug.field("allocated", &self.allocated.is_some()).finish()
    }
}

/// Charged, allocated and resident bytes, as read one after the other: see [`Reconciler::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reconciliation {
    /// The bytes that charges hold.
    pub charged: u64,
    /// The bytes that the allocator has handed out; `None` without a hook.
    pub allocated: Option<u64>,
    /// Pages of the process in memory.
    pub resident: u64,
    /// Anonymous pages in memory.
    pub anon: u64,
    /// Anonymous pages that are swapped out.
    pub swapped: u64,
}

impl Reconciliation {
    /// Returns how much more anonymous memory the process has, in memory and swapped out, than
    /// charges hold; less than 0 where more is charged than there is, as where memory is charged
    /// and not touched yet.
    pub fn drift(&self) -> i64 {
        difference(self.anon.saturating_add(self.swapped), self.charged)
    }

    /// Returns how much more is allocated than charged. What grows here is allocated by code that
    /// charges nothing.
    pub fn uncharged(&self) -> Option<i64> {
        self.allocated
            .map(|allocated| difference(allocated, self.charged))
    }

    /// Returns how much more anonymous memory there is than what is allocated: what the allocator
    /// keeps or wastes, and stacks.
    pub fn kept(&self) -> Option<i64> {
        self.allocated
            .map(|allocated| difference(self.anon.saturating_add(self.swapped), allocated))
    }
}

fn difference(more: u64, less: u64) -> i64 {
    let nearest = if more > less { i64::MAX } else { i64::MIN };
    i64::try_from(i128::from(more) - i128::from(less)).unwrap_or(nearest)
}

impl fmt::Display for Reconciliation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signed = |bytes: i64| {
            format!(
                "{}{}",
                if bytes < 0 { "-" } else { "" },
                Bytes(bytes.unsigned_abs())
            )
        };
        write!(f, "charged {}", Bytes(self.charged))?;
        if let Some(allocated) = self.allocated {
            write!(f, ", allocated {}", Bytes(allocated))?;
        }
        write!(
            f,
            ", anon {}, resident {}",
            Bytes(self.anon),
            Bytes(self.resident)
        )?;
        if self.swapped > 0 {
            write!(f, ", swapped {}", Bytes(self.swapped))?;
        }
        write!(f, "; drift {}", signed(self.drift()))?;
        match self.uncharged().zip(self.kept()) {
            Some((uncharged, kept)) => write!(
                f,
                " (uncharged {}, kept {})",
                signed(uncharged),
                signed(kept)
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line() {
        let mut now = Reconciliation {
            charged: 5 << 20,
            allocated: None,
            resident: 9 << 20,
            anon: 4 << 20,
            swapped: 0,
        };
        assert_eq!(
            now.to_string(),
            "charged 5 MiB, anon 4 MiB, resident 9 MiB; drift -1 MiB"
        );
        now.allocated = Some(6 << 20);
        now.swapped = 3 << 20;
        let line = "charged 5 MiB, allocated 6 MiB, anon 4 MiB, resident 9 MiB, swapped 3 MiB; drift 2 MiB \
                    (uncharged 1 MiB, kept 1 MiB)";
        assert_eq!(now.to_string(), line);
        assert_eq!(
            (difference(u64::MAX, 0), difference(0, u64::MAX)),
            (i64::MAX, i64::MIN)
        );
    }
}
