//! Which group said no: its usage and limit, who asked for how much.

use std::fmt;

use super::Group;
use super::diagnosis::{Holders, holders};
use crate::counter::object::Counter;
use crate::counter::refusal;
use crate::units::{Bytes, Limit};

/// A charge that did not fit below a max.
///
/// It implies an instant during the call at which live charges, charges in flight and the bytes asked for together were
/// above `max` at [`group`](Self::group): credit stranded in stocks was drained first. But for one that
/// [is behind](Self::is_behind) others in line: it may have fit.
///
/// ```
/// use memcg::{ChargeError, Limit, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(Limit::Bytes(512 << 20)))?;
/// let query = acme.create("q17", Limits::new())?;
/// let refused = query.try_charge(u64::MAX).unwrap_err();
/// assert_eq!(refused.to_string(), "/acme refused 16 EiB for /acme/q17: 0 B live of max 512 MiB, at most 0 B stocked");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Refusal {
    // Plain: who makes it may be an allocator.
    pub(crate) group: Group,
    pub(crate) requester: Group,
    /// Its number; memory is 0.
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
    /// With handles of its own. The requester keeps the levels, and the caller keeps the requester.
    pub(super) fn new(requester: &'static Counter, requested: u64, refusal: &refusal::Refusal<'_>) -> Refusal {
        let level = refusal.level.header.node();
        Refusal {
            group: Group::pinned(level.first()),
            requester: Group::pinned(requester.first()),
            counter: u16::try_from(level.number_in_group()).unwrap_or(u16::MAX),
            requested,
            usage: refusal.usage,
            max: refusal.max,
            reserve: refusal.reserve,
            is_behind: refusal.ahead > 0,
            stocked_bound: refusal.stocked_bound(),
            holders: holders(level),
        }
    }

    /// The group whose max was met: the requester or an ancestor.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max("1KiB".parse::<memcg::Limit>()?).build()?;
    /// # let memcg::ChargeError::Limit(refusal) = runtime.root().try_charge(2_000).unwrap_err() else { panic!() };
    /// assert_eq!(refusal.group().path(), "/");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The group that was charged.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max("1KiB".parse::<memcg::Limit>()?).build()?;
    /// # let query = runtime.root().create("q17", memcg::Limits::new())?;
    /// # let memcg::ChargeError::Limit(refusal) = query.try_charge(2_000).unwrap_err() else { panic!() };
    /// assert_eq!(refusal.requester(), &query);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn requester(&self) -> &Group {
        &self.requester
    }

    /// The further counter that was full; `None`: memory.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max("1KiB".parse::<memcg::Limit>()?).build()?;
    /// # let memcg::ChargeError::Limit(refusal) = runtime.root().try_charge(2_000).unwrap_err() else { panic!() };
    /// assert_eq!(refusal.counter(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counter(&self) -> Option<&str> {
        self.group.node().group().nth(self.counter.into())?.further_name()
    }

    /// Bytes asked for.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max("1KiB".parse::<memcg::Limit>()?).build()?;
    /// # let memcg::ChargeError::Limit(refusal) = runtime.root().try_charge(2_000).unwrap_err() else { panic!() };
    /// assert_eq!(refusal.requested(), 2_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// Usage of the group when it refused, in bytes: live charge, but for what [`stocked_bound`](Self::stocked_bound)
    /// leaves open.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max("1KiB".parse::<memcg::Limit>()?).build()?;
    /// # let memcg::ChargeError::Limit(refusal) = runtime.root().try_charge(2_000).unwrap_err() else { panic!() };
    /// assert_eq!(refusal.usage(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn usage(&self) -> u64 {
        self.usage
    }

    /// Max of the group when it refused, in bytes.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max("1KiB".parse::<memcg::Limit>()?).build()?;
    /// # let memcg::ChargeError::Limit(refusal) = runtime.root().try_charge(2_000).unwrap_err() else { panic!() };
    /// assert_eq!(refusal.max(), 1_024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Bytes that must be given back there for the charge to fit, as things stood when it was refused; 0 where it fits
    /// and is behind others.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max("1KiB".parse::<memcg::Limit>()?).build()?;
    /// # let memcg::ChargeError::Limit(refusal) = runtime.root().try_charge(2_000).unwrap_err() else { panic!() };
    /// assert_eq!(refusal.want(), 2_000 - 1_024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn want(&self) -> u64 {
        self.usage().saturating_add(self.requested()).saturating_sub(self.max().saturating_sub(self.reserve()))
    }

    /// What of the max is kept for charges made inside reclaim, in bytes: see [`Group::set_reserve`].
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max("1KiB".parse::<memcg::Limit>()?).build()?;
    /// runtime.root().set_reserve(100);
    /// # let memcg::ChargeError::Limit(refusal) = runtime.root().try_charge(1_000).unwrap_err() else { panic!() };
    /// assert_eq!((refusal.reserve(), refusal.want()), (100, 1_000 - 924));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Whether an older charge waits in line there. A charge that would fit is refused, too, once others have charged
    /// past the first in line as much as it asks for: see [`Group::charge_timeout`].
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max("1KiB".parse::<memcg::Limit>()?).build()?;
    /// # let memcg::ChargeError::Limit(refusal) = runtime.root().try_charge(2_000).unwrap_err() else { panic!() };
    /// assert!(!refusal.is_behind());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// The groups that held most below the group when it refused: up to three of its children and the usage of each, the largest
    /// first. None where the group has more than 256 children, which [`Group::top`] is for, where a group came
    /// or went at that moment, for a further counter, or where an allocator was refused inside this crate.
    ///
    /// ```
    /// # use memcg::{ChargeError, Limit, Limits, Runtime};
    /// let runtime = Runtime::builder().max(Limit::Bytes(100)).build()?;
    /// let [hog, query] = ["hog", "q17"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let _held = hog.try_charge(90)?;
    /// let ChargeError::Limit(refusal) = query.try_charge(20).unwrap_err() else { panic!() };
    /// assert_eq!(refusal.holders().collect::<Vec<_>>(), [(&hog, 90)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holders(&self) -> impl Iterator<Item = (&Group, u64)> {
        self.holders.iter().flatten().map(|(group, usage)| (group, *usage))
    }

    /// The published bound on credit below the group when it refused, in bytes; 0 in all but rare races.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max("1KiB".parse::<memcg::Limit>()?).build()?;
    /// # let memcg::ChargeError::Limit(refusal) = runtime.root().try_charge(2_000).unwrap_err() else { panic!() };
    /// assert_eq!(refusal.stocked_bound(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        let max = if *max == u64::MAX { Limit::Max.to_string() } else { format!("max {}", Bytes(*max)) };
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
