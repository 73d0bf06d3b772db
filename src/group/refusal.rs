//! A refused charge: the group that refused, its usage and limit, the group that asked and for how much.

use std::fmt;

use super::diagnosis::{Holders, holders, max_of};
use super::handle::Group;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::hierarchy::group_tree;
use crate::pressure::line;
use crate::units::Bytes;

/// A charge that did not fit below a max.
///
/// There was an instant during the call at which live charges, charges in flight and the bytes asked for together were
/// above `max` at [`group`](Self::group). The charge drained the credit stranded in stocks first. This does not hold
/// for a charge that [is behind](Self::is_behind) others in line: it may have fit.
///
/// ```
/// use memcg::{ChargeError, Limit, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(512 << 20))?;
/// acme.set_reserve(1 << 20);
/// let query = acme.create("q17", Limits::new())?;
/// let ChargeError::Limit(refusal) = query.try_charge(1 << 30).unwrap_err() else { panic!() };
/// let line = "/acme refused 1 GiB for /acme/q17: 0 B live of max 512 MiB, at most 0 B stocked, 1 MiB kept for reclaim";
/// assert_eq!(refusal.to_string(), line);
/// assert_eq!((refusal.group(), refusal.requester(), refusal.counter()), (&acme, &query, None));
/// assert_eq!((refusal.requested(), refusal.usage(), refusal.max()), (1 << 30, 0, 512 << 20));
/// assert_eq!((refusal.reserve(), refusal.want()), (1 << 20, (1 << 30) - (511 << 20)));
/// assert_eq!((refusal.stocked_bound(), refusal.is_behind()), (0, false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Refusal {
    // The fields are plain values: the thread that makes a refusal may be in an allocator, and must not allocate.
    pub(crate) group: Group,
    pub(crate) requester: Group,
    /// The number of the counter that refused; memory is 0.
    pub(crate) counter: u16,
    pub(crate) requested: u64,
    pub(crate) usage: u64,
    pub(crate) max: u64,
    pub(crate) reserve: u64,
    /// Another charge is first in line.
    pub(crate) is_behind: bool,
    pub(crate) stocked_bound: u64,
    pub(crate) holders: Holders,
}

impl Refusal {
    /// Takes handles of its own. The requester keeps the levels, and the caller keeps the requester.
    pub(super) fn new(requester: &'static Counter, requested: u64, refusal: &LevelRefusal<'_>) -> Refusal {
        let level = refusal.level.header.counter();
        Refusal {
            group: Group::pinned(level.first()),
            requester: Group::pinned(requester.first()),
            counter: u16::try_from(level.number_in_group()).unwrap_or(u16::MAX),
            requested,
            usage: refusal.usage,
            max: refusal.max,
            reserve: refusal.reserve,
            is_behind: line::ahead(level) > 0,
            stocked_bound: refusal.stocked_bound(),
            holders: holders(level),
        }
    }

    /// Returns the group whose max was met: the requester or an ancestor.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns the group that was charged.
    pub fn requester(&self) -> &Group {
        &self.requester
    }

    /// Returns the name of the further counter that was full; `None` for memory.
    pub fn counter(&self) -> Option<&str> {
        group_tree::further_name(self.group.first().group().nth(self.counter.into())?)
    }

    /// Returns the bytes asked for.
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// Returns the usage of the group when it refused, in bytes. All of it is live charge but at most
    /// [`stocked_bound`](Self::stocked_bound).
    pub fn usage(&self) -> u64 {
        self.usage
    }

    /// Returns the max of the group when it refused, in bytes.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the bytes that had to be given back there for the charge to fit, when it was refused. 0 where it fit and
    /// was behind others.
    pub fn want(&self) -> u64 {
        self.usage().saturating_add(self.requested()).saturating_sub(self.max().saturating_sub(self.reserve()))
    }

    /// Returns the bytes of the max that are kept for charges made inside reclaim: see [`Group::set_reserve`].
    pub fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Returns whether an older charge waited in line there. A charge that would fit is refused, too, once other
    /// charges have barged past the first in line by as many bytes as it asks for: see [`Group::charge_timeout`].
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Returns the groups that held most below the group when it refused: up to three of its children and the usage of
    /// each in bytes, the largest first. It is empty for a further counter, and where the group has more than 256
    /// children (use [`Group::top`]). It is also empty where a group was created or went offline at that moment, and
    /// where an allocator was refused inside this crate.
    ///
    /// ```
    /// # use memcg::{ChargeError, Limit, Limits, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let [hog, query] = ["hog", "q17"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let _held = hog.try_charge(90)?;
    /// let ChargeError::Limit(refusal) = query.try_charge(20).unwrap_err() else { panic!() };
    /// assert_eq!(refusal.holders().collect::<Vec<_>>(), [(&hog, 90)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holders(&self) -> impl Iterator<Item = (&Group, u64)> {
        self.holders.iter().flatten().map(|(group, usage)| (group, *usage))
    }

    /// Returns the published bound on credit below the group when it refused, in bytes. 0 in all but rare races.
    pub fn stocked_bound(&self) -> u64 {
        self.stocked_bound
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { group, requester, requested, usage, max, reserve, is_behind, stocked_bound, .. } = self;
        let [requested, usage, stocked] = [requested, usage, stocked_bound].map(|&bytes| Bytes(bytes));
        write!(f, "{} refused {requested}", group.path())?;
        if let Some(counter) = self.counter() {
            write!(f, " of {counter}")?;
        }
        let max = max_of(*max);
        write!(f, " for {}: {usage} live of {max}, at most {stocked} stocked", requester.path())?;
        if *reserve > 0 {
            write!(f, ", {} kept for reclaim", Bytes(*reserve))?;
        }
        if *is_behind {
            f.write_str(", behind those in line")?;
        }
        for (number, (holder, usage)) in self.holders().enumerate() {
            let most = if number == 0 { "; most in" } else { "," };
            write!(f, "{most} {} {}", holder.path(), Bytes(usage))?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}
