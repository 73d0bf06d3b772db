//! `Limits`: the limits of a group as plain data, and a search for contradictions among them.

use std::fmt;

use super::error::NameError;
use crate::counter::object::Counter;
use crate::hierarchy::importance;
use crate::hierarchy::setting_names::{self, SettingName};
use crate::state::applied::Settings;
use crate::state::limits::LimitKind;
use crate::units::{IntoLimit, Limit, Percent};

/// Limits of a group, set together by [`create`](crate::Group::create), or later by
/// [`set_limits`](crate::Group::set_limits). `create` leaves a limit that is not named at its
/// default (no limit, nothing protected); `set_limits` leaves it as it was. Limits of usage are in
/// bytes, or a percentage of the nearest max above.
///
/// A setter here only stores its value: it never fails, and costs nothing. The call that the limits
/// are given to checks them, and sets all of them or none.
///
/// ```
/// use memcg::{Limit, Limits};
///
/// let tenant = Limits::new().max(Limit::mib(512)).high(500 << 20).low(Limit::percent(25));
/// assert_eq!((tenant.max, tenant.high), (Some(Limit::mib(512)), Some(Limit::mib(500))));
/// assert_eq!((tenant.low, tenant.min, tenant.soft), (Some("25%".parse()?), None, None));
/// let kept = Limits::new().min(4096).soft(Limit::Unlimited);
/// assert_eq!((kept.min, kept.soft), (Some(Limit::kib(4)), Some(Limit::Unlimited)));
/// # Ok::<(), memcg::errors::ParseLimitError>(())
/// ```
#[must_use = "no group has these limits yet"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes that reclaim never touches.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub min: Option<Limit>,
    /// Bytes that reclaim touches last.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub low: Option<Limit>,
    /// Usage above which charges are slowed down.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub high: Option<Limit>,
    /// The most bytes that charges may bring usage to.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub max: Option<Limit>,
    /// Usage above which the group is reclaimed first.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub soft: Option<Limit>,
    /// The weight among siblings that makes the soft limit: see [`share`](Self::share).
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub share: Option<u32>,
    /// Usage above which a thread of the runtime reclaims: see
    /// [`reclaim_above`](Self::reclaim_above).
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub reclaim_above: Option<Limit>,
    /// The part of max from which on the pressure level is elevated: see
    /// [`pressure_levels`](Self::pressure_levels).
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub elevated: Option<Percent>,
    /// The part of max from which on the pressure level is critical.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub critical: Option<Percent>,
    /// Usage is the larger of what is reserved and what is allocated: see
    /// [`cover_allocations`](Self::cover_allocations).
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "std::ops::Not::not"))]
    pub cover_allocations: bool,
    /// Rank among groups that give for each other: see [`importance`](Self::importance).
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub importance: Option<u8>,
    /// The service's name for its setting of these limits: see [`setting`](Self::setting). It has
    /// no text form.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) setting: Option<Result<SettingName, NameError>>,
}

impl Limits {
    /// Makes a value that names no limit.
    pub fn new() -> Self {
        Limits::default()
    }

    /// Sets the bytes that reclaim never touches, 0 by default: as long as usage is not above them,
    /// no charge that lacks room in a group above asks this group's reclaimers. They protect only
    /// what the group uses, and siblings together no more than their parent does; a group that is
    /// offline protects nothing. Charges do not compare usage with it.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().min(100))?;
    /// let _held = acme.charge(30)?;
    /// assert_eq!(runtime.root().memory().children_min_usage(), 30, "30 bytes need protection");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn min(mut self, limit: impl IntoLimit) -> Self {
        self.min = Some(limit.into_limit());
        self
    }

    /// Sets the bytes that reclaim touches last, 0 by default. As long as usage is not above them,
    /// a charge that lacks room in a group above asks this group's reclaimers only if no other
    /// memory is left, and counts [`Event::Low`](crate::Event::Low). Otherwise it is like
    /// [`min`](Self::min).
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().low(40))?;
    /// let _held = acme.charge(30)?;
    /// assert_eq!((acme.inspect().low(), runtime.root().memory().children_low_usage()), (40, 30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn low(mut self, limit: impl IntoLimit) -> Self {
        self.low = Some(limit.into_limit());
        self
    }

    /// Sets the usage in bytes above which charges slow down. The default is [`Limit::Unlimited`]:
    /// no charge slows down.
    ///
    /// A charge that walks the tree and leaves the group above high, or finds it there, reclaims
    /// the excess and is delayed. The delay follows the kernel's formula: it grows with the square
    /// of the excess relative to high, and with the size of the charge, to at most
    /// [`delay_max`](crate::RuntimeBuilder::delay_max), which a single charge as large as high
    /// reaches. A high never refuses a charge. It does not delay a charge from the stock, a forced
    /// one, one made inside reclaim, or a transfer.
    ///
    /// Source: `memory_high_write` and `mem_cgroup_handle_over_high` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # use memcg::{Event, Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().high(1_000_000))?;
    /// let _held = acme.charge(1 << 20)?;
    /// let _more = acme.charge(1 << 20)?; // delayed
    /// assert!(acme.events().get(Event::High) > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn high(mut self, limit: impl IntoLimit) -> Self {
        self.high = Some(limit.into_limit());
        self
    }

    /// Sets the most bytes that charges may bring usage to. The default is [`Limit::Unlimited`].
    /// With 0 every charge is refused, but those of 0 bytes and forced ones. It is exact: usage is
    /// above it only by [forced](crate::Group::forced) charges, or because it was set below usage.
    ///
    /// ```
    /// # use memcg::{Limit, Limits, Runtime};
    /// let runtime = Runtime::builder().max(Limit::mib(64)).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(Limit::percent(25)))?;
    /// assert_eq!(acme.max(), 16 << 20, "a quarter of the root's");
    /// assert!(acme.charge((16 << 20) + 1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max(mut self, limit: impl IntoLimit) -> Self {
        self.max = Some(limit.into_limit());
        self
    }

    /// Sets the usage in bytes above which the group, and all groups below it, is reclaimed before
    /// others: with 0, whenever it holds anything; with [`Limit::Unlimited`], the default, never. A
    /// group that is offline is never above it. It refuses and delays no charge.
    ///
    /// A charge that walks compares usage with the soft limit, and reports each crossing to the
    /// groups above. A charge from the stock does not need to: its bytes were in usage already, as
    /// credit.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(1_000))?;
    /// let _held = acme.charge(1_001)?;
    /// assert!(acme.inspect().is_in_excess(), "its caches are asked first");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn soft(mut self, limit: impl IntoLimit) -> Self {
        self.soft = Some(limit.into_limit());
        self
    }

    /// Gives the group a share of what its parent may hold, as its soft limit: the part that
    /// `share` is of the shares of all siblings that are online. It takes the place of
    /// [`soft`](Self::soft). A soft limit that is set later takes the share away again; a share of
    /// 0 does so, too, and leaves no soft limit. Siblings without a share have no part, and a share
    /// of the root has no meaning.
    ///
    /// A parent may hold the least max of itself and the groups above it, and no more than the part
    /// of the nearest of them that has a share. Without any max there are no parts, and so no soft
    /// limits. What the parent itself and siblings without a share hold is not taken off. A group
    /// without siblings has all of it, so no byte lies idle: reclaim takes first from groups above
    /// their part, and only if memory is short. Victims are chosen by it, too.
    ///
    /// When a sibling comes, goes or changes, that call takes one more lock. The parts are worked
    /// out later, by the next reclaim or the next reader of a soft limit: a step for each sibling
    /// that has a share. After a max has moved it is a step for each parent of shares there and
    /// below, and one for each group whose part has moved. The tree's lock is held for 64 steps at
    /// a time, and none of this counts against
    /// [`reclaim_time`](crate::RuntimeBuilder::reclaim_time).
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().max(1_000).build()?;
    /// let gold = runtime.root().create("gold", Limits::new().share(300))?;
    /// assert_eq!(gold.inspect().soft(), 1_000, "alone");
    /// let silver = runtime.root().create("silver", Limits::new().share(100))?;
    /// assert_eq!((gold.inspect().soft(), silver.inspect().soft()), (750, 250));
    /// gold.offline()?;
    /// assert_eq!(silver.inspect().soft(), 1_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn share(mut self, share: u32) -> Self {
        self.share = Some(share);
        self
    }

    /// Sets two thresholds, in per cent of the group's own max, from which on
    /// [`Group::pressure_level`](crate::Group::pressure_level) is elevated and critical. More than
    /// 100 counts as 100; a threshold of 0 is never reached. A group without thresholds, the
    /// default, has the pressure level of the nearest group above that has some; 0 for both takes
    /// the thresholds away.
    ///
    /// The pressure falls once usage is a sixteenth below the threshold. A charge that walks
    /// compares usage with it, which costs some nanoseconds; a charge from the stock does not need
    /// to.
    ///
    /// ```
    /// # use memcg::{Limits, PressureLevel};
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(1_000).pressure_levels(80, 95))?;
    /// let mut held = acme.charge(800)?;
    /// assert_eq!(acme.pressure_level(), PressureLevel::Elevated);
    /// held.shrink(40);
    /// assert_eq!(acme.pressure_level(), PressureLevel::Elevated, "760 is less than a sixteenth below 800");
    /// held.shrink(20);
    /// assert_eq!(acme.pressure_level(), PressureLevel::Normal);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn pressure_levels(mut self, elevated: u8, critical: u8) -> Self {
        self.elevated = Some(Percent::at_most_whole(elevated));
        self.critical = Some(Percent::at_most_whole(critical));
        self
    }

    /// Sets the usage in bytes above which a thread of the runtime reclaims, so that charges find
    /// room. A percentage is one of the group's own max, or if it has none, of the nearest max
    /// above. With [`Limit::Unlimited`], the default, the thread never does.
    ///
    /// The charge that passes the threshold wakes the thread; it neither waits nor runs foreign
    /// code for that. The thread asks reclaimers until usage is a sixteenth below the threshold,
    /// with the cause [`ReclaimCause::Background`](crate::ReclaimCause::Background). It takes
    /// nothing that min or low protects. As long as nothing is freed it pauses: for 10 ms at first,
    /// then for twice as long each time, up to a second.
    ///
    /// The thread is the runtime's `memcg-reclaim`, which serves one group after another: a
    /// reclaimer that blocks holds up the others. Charges that do not fit still reclaim themselves.
    /// A charge that walks compares usage with the threshold; a charge from the stock does not need
    /// to. A group that is offline has no threshold.
    ///
    /// ```
    /// use memcg::{Bytes, Charge, Limit, Limits, ReclaimPriority, Reclaim, ReclaimCause, ReclaimContext, Runtime};
    /// use std::sync::{Arc, Mutex};
    ///
    /// struct Cache(Mutex<Charge>);
    /// impl Reclaim for Cache {
    ///     fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
    ///         assert_eq!(context.cause(), ReclaimCause::Background);
    ///         self.0.lock().unwrap().shrink(Bytes(want))
    ///     }
    /// }
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let limits = Limits::new().max(100 << 20).reclaim_above(Limit::percent(85));
    /// let tenant = runtime.root().create("tenant", limits)?;
    /// let cache = Arc::new(Cache(Mutex::new(tenant.charge(80 << 20)?)));
    /// let _registration = tenant.register_reclaimer(cache, ReclaimPriority::NORMAL);
    /// let _query = tenant.charge(10 << 20)?; // 90 MiB: above the threshold
    /// while tenant.usage() > 80 << 20 {
    ///     std::thread::yield_now(); // the thread of the runtime makes room for the next query
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reclaim_above(mut self, limit: impl IntoLimit) -> Self {
        self.reclaim_above = Some(limit.into_limit());
        self
    }

    /// Has reserved bytes pay for bytes that an allocator hands out. Usage of the group is then the
    /// larger of the bytes [reserved](crate::figures::Ledger::reserved) in it and below, and the
    /// bytes [allocated](crate::figures::Ledger::allocated) there; without the setting it is their
    /// sum. Bytes allocated beyond the reserved ones are [unpaid](crate::figures::Ledger::unpaid),
    /// and charged by force.
    ///
    /// It is for a service that charges before it works, and for the memory pool of a query engine:
    /// with it neither pays twice in a process whose allocator charges groups as well. It is set
    /// when the group is created, and holds for as long as the group lives. Each group below
    /// covers, too, so a reservation in one pays for objects of another. The parent is charged
    /// once.
    ///
    /// Charges of such a group use no credit: each one walks, and costs a few hundred nanoseconds
    /// while other threads charge at the same time. An object costs what it costs in any group.
    ///
    /// ```
    /// use memcg::allocator::Owner; // stands for what an allocator does
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new().max(4 << 20).cover_allocations())?;
    /// let charge = query.charge(2 << 20)?; // before the work: it may be refused
    /// let batch = query.run(|| Owner::charge(3 << 20));
    /// assert_eq!((query.live(), query.ledger().unpaid()), (3 << 20, 1 << 20), "paid once");
    /// drop(charge);
    /// assert_eq!((query.live(), query.ledger().unpaid()), (3 << 20, 3 << 20), "the memory is there still");
    /// # unsafe { batch.uncharge(3 << 20) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn cover_allocations(mut self) -> Self {
        self.cover_allocations = true;
        self
    }

    /// Sets how important the group is beside others, when it is decided which of them gives memory
    /// and which is served first. A higher number is more important. A group without an importance
    /// of its own has that of its parent; a root has 0. A
    /// [`ReclaimPriority`](crate::ReclaimPriority) orders the reclaimers of one group; importance
    /// orders groups.
    ///
    /// * A charge cancels no group of a higher importance than its own. A group without a cancel
    ///   hook goes with the one above that has one, whatever its own importance.
    ///   [Victims](crate::OomPolicy::Choose) come from the lowest importance that alone can give
    ///   enough, else from the lowest of all.
    /// * Reclaim for a charge takes nothing that [`low`](Self::low) protects from a group of a
    ///   higher importance.
    /// * In line a charge goes before those of a lower importance, even where it would otherwise be
    ///   refused because they wait. The oldest in a line lets later ones of a higher importance go
    ///   first until they have taken sixteen times the bytes it asks for; the last of them may take
    ///   more. Then it goes first, at each group of its path. [`OnFull::Now`](crate::OnFull::Now),
    ///   [`IfRoom`](crate::OnFull::IfRoom) and [`Start`](crate::OnFull::Start) go before none.
    ///
    /// A charge has the importance that its group has when it begins to wait. A group that was
    /// given an importance no longer inherits one, unless a [spec](crate::GroupSpec) had set it and
    /// no longer names it. A max that is lowered, and [`Group::reclaim`](crate::Group::reclaim),
    /// take from any group. To set it is a store; no charge that fits reads it.
    ///
    /// ```
    /// use memcg::{Limits, OomPolicy, Runtime};
    /// use std::sync::{Arc, Mutex};
    ///
    /// let runtime = Runtime::builder().max(100).build()?;
    /// runtime.root().set_oom_policy(OomPolicy::Choose);
    /// let gold = runtime.root().create("gold", Limits::new().importance(2))?;
    /// let batch = runtime.root().create("batch", Limits::new())?;
    /// let held = Arc::new(Mutex::new(vec![batch.charge(40)?]));
    /// let _hook = batch.on_cancel({
    ///     let held = Arc::clone(&held);
    ///     move |_| held.lock().unwrap().clear() // a service would stop the query
    /// });
    /// let _dashboard = gold.on_cancel(|_| unreachable!("only less important work asks"));
    /// let _shown = [gold.charge(60)?, gold.charge(30)?]; // batch gives its 40
    /// assert_eq!((gold.live(), batch.live()), (90, 0));
    /// assert!(batch.charge(20).is_err(), "gold gives nothing for batch");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn importance(mut self, importance: u8) -> Self {
        self.importance = Some(importance);
        self
    }

    /// Names the setting of your service that the max comes from. A refusal then tells its reader
    /// to raise that setting, and not a max that only this crate knows.
    ///
    /// The name may come from a file. The process keeps 255 different names of at most 255 bytes,
    /// for as long as it lives. One more name, an empty one, or one with characters that control or
    /// format is refused: by the call that these limits are given to, with
    /// [`LimitError::Setting`](crate::errors::LimitError::Setting).
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new().max(1 << 20).setting("query.memory_limit"))?;
    /// let refused = query.charge(2 << 20).unwrap_err();
    /// let line = "/q17 refused 2 MiB for /q17: short by 1 MiB, max 1 MiB; \
    ///             neither waiting nor reclaim can help; to fit, raise query.memory_limit or charge less";
    /// assert_eq!(refused.to_string(), line);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn setting(mut self, name: &str) -> Self {
        let fault = NameError::of_printed(name);
        self.setting =
            Some(fault.map_or_else(|| SettingName::of(name).ok_or(NameError::TooMany), Err));
        self
    }

    /// Returns the name of the [setting](Self::setting), `None` if there is none or it is refused.
    pub fn setting_name(&self) -> Option<&'static str> {
        self.setting?.ok().map(SettingName::get)
    }

    pub(super) fn setting_if_valid(&self) -> Option<SettingName> {
        self.setting?.ok()
    }

    /// The fault of the [setting](Self::setting)'s name.
    pub(super) fn setting_fault(&self) -> Option<NameError> {
        self.setting?.err()
    }

    /// Returns each kind of limit with its value here; `None`: not named.
    pub(super) fn kinds(&self) -> [(LimitKind, Option<Limit>); 6] {
        let Limits {
            min,
            low,
            high,
            max,
            soft,
            reclaim_above,
            ..
        } = *self;
        [
            (LimitKind::Max, max),
            (LimitKind::Min, min),
            (LimitKind::Low, low),
            (LimitKind::Soft, soft),
            (LimitKind::High, high),
            (LimitKind::ReclaimAbove, reclaim_above),
        ]
    }

    /// The settings that are named here.
    pub(super) fn settings(&self) -> Settings {
        let of = |setting: Settings, is_named: bool| setting.only_if(is_named);
        self.kinds()
            .into_iter()
            .map(|(kind, limit)| of(Settings::limit(kind), limit.is_some()))
            .chain([
                of(Settings::SHARE, self.share.is_some()),
                of(Settings::ELEVATED, self.elevated.is_some()),
                of(Settings::CRITICAL, self.critical.is_some()),
                of(Settings::IMPORTANCE, self.importance.is_some()),
                of(Settings::SETTING_NAME, self.setting.is_some()),
            ])
            .fold(Settings::NONE, Settings::and)
    }

    /// These limits without those that are not among `settings`.
    pub(super) fn only(&self, settings: Settings) -> Limits {
        let limit =
            |limit: Option<Limit>, kind| limit.filter(|_| settings.has(Settings::limit(kind)));
        Limits {
            min: limit(self.min, LimitKind::Min),
            low: limit(self.low, LimitKind::Low),
            high: limit(self.high, LimitKind::High),
            max: limit(self.max, LimitKind::Max),
            soft: limit(self.soft, LimitKind::Soft),
            share: self.share.filter(|_| settings.has(Settings::SHARE)),
            reclaim_above: limit(self.reclaim_above, LimitKind::ReclaimAbove),
            elevated: self.elevated.filter(|_| settings.has(Settings::ELEVATED)),
            critical: self.critical.filter(|_| settings.has(Settings::CRITICAL)),
            importance: self
                .importance
                .filter(|_| settings.has(Settings::IMPORTANCE)),
            setting: self
                .setting
                .filter(|_| settings.has(Settings::SETTING_NAME)),
            ..*self
        }
    }

    /// These limits, and the default for each of `settings` that they do not name, where a default
    /// can be named.
    pub(super) fn filled(&self, settings: Settings) -> Limits {
        let limit = |limit: Option<Limit>, kind, default: Limit| {
            limit.or(settings.has(Settings::limit(kind)).then_some(default))
        };
        let none = |percent: Option<Percent>, setting| {
            percent.or(settings.has(setting).then_some(Percent::at_most_whole(0)))
        };
        Limits {
            min: limit(self.min, LimitKind::Min, Limit::Bytes(0)),
            low: limit(self.low, LimitKind::Low, Limit::Bytes(0)),
            high: limit(self.high, LimitKind::High, Limit::Unlimited),
            max: limit(self.max, LimitKind::Max, Limit::Unlimited),
            soft: limit(self.soft, LimitKind::Soft, Limit::Unlimited),
            share: self.share.or(settings.has(Settings::SHARE).then_some(0)),
            reclaim_above: limit(
                self.reclaim_above,
                LimitKind::ReclaimAbove,
                Limit::Unlimited,
            ),
            elevated: none(self.elevated, Settings::ELEVATED),
            critical: none(self.critical, Settings::CRITICAL),
            ..*self
        }
    }

    /// The settings with their values as text; `None` where a value stands for no limit, and where
    /// it is not named. Beside a share there is no soft limit of the group's own.
    pub(super) fn texts(&self) -> [(&'static str, Option<String>); 12] {
        let limit = |limit: Option<Limit>| {
            limit
                .filter(|limit| *limit != Limit::Unlimited)
                .map(|limit| limit.to_string())
        };
        let percent = |percent: Option<Percent>| {
            percent
                .filter(|percent| percent.get() > 0)
                .map(|percent| percent.to_string())
        };
        let share = self.share.filter(|share| *share > 0);
        let covers = self.cover_allocations.then(|| true.to_string());
        [
            ("min", limit(self.min)),
            ("low", limit(self.low)),
            ("high", limit(self.high)),
            ("max", limit(self.max)),
            ("soft", limit(self.soft.filter(|_| share.is_none()))),
            ("share", share.map(|share| share.to_string())),
            ("reclaim_above", limit(self.reclaim_above)),
            ("elevated", percent(self.elevated)),
            ("critical", percent(self.critical)),
            ("importance", self.importance.map(|of| of.to_string())),
            ("cover_allocations", covers),
            ("setting", self.setting_name().map(str::to_owned)),
        ]
    }

    /// Sets what no charge compares.
    pub(super) fn set_apart(&self, group: &Counter, setting: Option<SettingName>) {
        if let Some(name) = setting {
            setting_names::set(group, name);
        }
        if let Some(importance) = self.importance {
            importance::set(group, importance);
        }
    }

    /// The thresholds of pressure, in per cent; `None` where neither is named.
    pub(super) fn thresholds(&self) -> Option<[Option<u8>; 2]> {
        let thresholds = [self.elevated, self.critical].map(|percent| percent.map(Percent::get));
        thresholds.iter().any(Option::is_some).then_some(thresholds)
    }

    /// Looks for two limits that contradict each other, so that one of them can have no effect. It
    /// compares bytes with bytes and percentages with percentages.
    ///
    /// `create` and `set_limits` take such limits all the same, as the kernel does: a program that
    /// changes one limit after the other passes through such states.
    ///
    /// # Errors
    ///
    /// [`ContradictionError`] names the two.
    ///
    /// ```
    /// use memcg::Limits;
    ///
    /// assert_eq!(Limits::new().low(1 << 20).max(2 << 20).check(), Ok(()));
    /// let contradiction = Limits::new().low(2 << 20).max(1 << 20).check().unwrap_err();
    /// assert_eq!(contradiction.to_string(), "low 2 MiB is above max 1 MiB: no usage is above max");
    /// ```
    pub fn check(&self) -> Result<(), ContradictionError> {
        let Limits {
            min,
            low,
            high,
            max,
            soft,
            ..
        } = *self;
        let [min, low, high, max, soft] = [
            ("min", min),
            ("low", low),
            ("high", high),
            ("max", max),
            ("soft", soft),
        ];
        let threshold = |percent: Option<Percent>| {
            percent
                .filter(|percent| percent.get() > 0)
                .map(Limit::Percent)
        };
        let elevated = ("elevated", threshold(self.elevated));
        let critical = ("critical", threshold(self.critical));
        // A percentage of the threshold is one of max itself.
        let reclaim_above = (
            "reclaim_above",
            self.reclaim_above
                .filter(|above| matches!(above, Limit::Bytes(_))),
        );
        let below_max = [high, soft, min, low, reclaim_above].map(|lower| (lower, max));
        let others = [
            (min, high),
            (low, high),
            (min, soft),
            (low, soft),
            (elevated, critical),
        ];
        for (lower, upper) in below_max.into_iter().chain(others) {
            let ((lower, Some(below)), (upper, Some(above))) = (lower, upper) else {
                continue;
            };
            let contradict = match (below, above) {
                (Limit::Bytes(below), Limit::Bytes(above)) => below > above,
                (Limit::Percent(below), Limit::Percent(above)) => below > above,
                // What a percentage is in bytes depends on the groups above, and moves with them.
                _ => false,
            };
            if contradict {
                return Err(ContradictionError {
                    lower: (lower, below),
                    upper: (upper, above),
                });
            }
        }
        Ok(())
    }
}

/// Two limits, one of which keeps the other from having any effect: see [`Limits::check`].
///
/// ```
/// let limits = memcg::Limits::new().min(4096).soft(100);
/// let contradiction = limits.check().unwrap_err();
/// assert_eq!((contradiction.lower(), contradiction.upper()), (("min", limits.min.unwrap()), ("soft", limits.soft.unwrap())));
/// assert_eq!(contradiction.to_string(), "min 4 KiB is above soft 100 B: above soft the group gives first what min keeps");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContradictionError {
    lower: (&'static str, Limit),
    upper: (&'static str, Limit),
}

impl fmt::Display for ContradictionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lower: (lower, lower_limit),
            upper: (upper, upper_limit),
        } = self;
        write!(
            f,
            "{lower} {lower_limit} is above {upper} {upper_limit}: {}",
            self.why()
        )
    }
}

impl std::error::Error for ContradictionError {}

impl ContradictionError {
    /// Returns the limit that should be the lower one: its name and its value.
    pub fn lower(&self) -> (&'static str, Limit) {
        self.lower
    }

    /// Returns the limit that should be the higher one: its name and its value.
    pub fn upper(&self) -> (&'static str, Limit) {
        self.upper
    }

    fn why(&self) -> String {
        match self.upper.0 {
            "max" => "no usage is above max".to_owned(),
            "critical" => "no usage is elevated".to_owned(),
            upper => format!(
                "above {upper} the group gives first what {} keeps",
                self.lower.0
            ),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Runtime;

    #[test]
    fn a_threshold_above_max_is_never_passed() {
        let check = |above| {
            Limits::new()
                .reclaim_above(Limit::Bytes(above))
                .max(2 << 20)
                .check()
        };
        assert_eq!(check(2 << 20), Ok(()));
        let line = "reclaim_above 3 MiB is above max 2 MiB: no usage is above max";
        assert_eq!(check(3 << 20).unwrap_err().to_string(), line);
        let shares = Limits::new()
            .reclaim_above(Limit::percent(85))
            .max(Limit::percent(50));
        assert_eq!(shares.check(), Ok(()), "of its own max");
    }

    #[test]
    fn a_setting_has_a_name_that_a_line_can_show() {
        let runtime = Runtime::builder().build().unwrap();
        let acme = runtime.root().create("acme", Limits::new()).unwrap();
        for (name, fault) in [
            (String::new(), "a name is not empty"),
            ("x".repeat(256), "a name has at most 255 bytes"),
            ("a\nb".to_owned(), "a name has no control characters"),
        ] {
            let limits = Limits::new().max(100).setting(&name);
            assert_eq!(limits.setting_name(), None);
            let refused = acme.set_limits(limits).unwrap_err();
            assert_eq!(
                refused.to_string(),
                format!("cannot name a setting for /acme: {fault}")
            );
            let refused = acme.create("q17", limits).unwrap_err();
            assert_eq!(
                refused.to_string(),
                format!("cannot name a setting for \"q17\" in /acme: {fault}")
            );
        }
        assert_eq!(
            (acme.max(), acme.limits().setting_name()),
            (u64::MAX, None),
            "nothing was set"
        );
        // As a file gives it.
        acme.set_limits(
            Limits::new()
                .max(100)
                .setting(&String::from("acme/limits#max")),
        )
        .unwrap();
        assert_eq!(acme.limits().setting_name(), Some("acme/limits#max"));
        assert!(
            acme.charge(101)
                .unwrap_err()
                .to_string()
                .contains("raise acme/limits#max or charge less")
        );
    }
}
