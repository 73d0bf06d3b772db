//! A refused charge: the group that refused, its usage and limit, the group that asked and for how
//! much.

use std::fmt;

use super::handle::Group;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::SlowPath;
use crate::counter::{cover, thresholds};
use crate::error::USAGE_MAX;
use crate::hierarchy::group_tree;
use crate::hierarchy::setting_names::{self, SettingName};
use crate::reclaim::registrations;
use crate::stat::Unit;
use crate::stat::item::InUnit;
use crate::thread::slow_path;

/// A step that helps a caller that does not wait.
pub(super) const WAIT: &str = "wait in line (OnFull::Wait, charge_async)";

/// What can make a refused charge fit: the answer of
/// [`ChargeError::remedy`](crate::ChargeError::remedy), which the text of the error says, too.
///
/// ```
/// use memcg::errors::Remedy;
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().max(100).build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let _held = runtime.root().charge(60)?;
/// let refused = query.charge(50).unwrap_err();
/// assert_eq!(refused.remedy(), Remedy::Waiting, "another group holds the memory");
/// assert!(refused.to_string().contains("; waiting can help; to fit, "));
/// assert_eq!(query.charge(101).unwrap_err().remedy(), Remedy::Nothing, "it is more than the max");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remedy {
    /// Groups hold the memory, and no reclaimer can be asked for it. Wait in line until they give
    /// it back, with [`Group::charge_async`](crate::Group::charge_async) or
    /// [`OnFull::Wait`](crate::OnFull::Wait).
    Waiting,
    /// A reclaimer below the full group can be asked, now or once it has something to give:
    /// [`Group::charge`](crate::Group::charge) asks it.
    Reclaim,
    /// Neither of the two, as things are: the charge is larger than a max, or its group is
    /// cancelled or offline. It is also the answer for calls that never wait and ask no reclaimer,
    /// a charge of a further counter for one; there it helps if others give back what they hold.
    Nothing,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Remedy::Waiting => "waiting can help",
            Remedy::Reclaim => "reclaim can help",
            Remedy::Nothing => "neither waiting nor reclaim can help",
        })
    }
}

impl Remedy {
    /// For a charge that was refused without figures, as things are now.
    pub(super) fn now(group: &Group, requested: u64) -> Remedy {
        let counter = group.first();
        let is_short = |level: &Counter, below: u64| level.room(below) < requested;
        // Inside another slow path this thread may hold the lock that the look for a reclaimer
        // takes.
        let asks = |level: &Counter| !slow_path::is_running() && registrations::any_below(level);
        match counter
            .path_to_root()
            .find(|level| is_short(level, level.admits()))
        {
            _ if counter.state().is_offline() => Remedy::Nothing,
            Some(full) => Remedy::of_refusal(
                requested,
                full,
                (full.usage(), full.admits().min(USAGE_MAX)),
            ),
            // Above high, where no charge waits in line.
            None if counter
                .path_to_root()
                .any(|level| is_short(level, thresholds::high(level)) && asks(level)) =>
            {
                Remedy::Reclaim
            }
            None => Remedy::Waiting,
        }
    }

    /// For a charge that `level` refuses with this usage.
    fn of_refusal(requested: u64, level: &Counter, (usage, most): (u64, u64)) -> Remedy {
        let never_fits = |above: &Counter| requested > above.admits();
        match () {
            () if requested > most || level.path_to_root().skip(1).any(never_fits) => {
                Remedy::Nothing
            }
            // It fits by now.
            () if requested > 0 && usage.saturating_add(requested) <= most => Remedy::Waiting,
            () if !level.is_memory() => Remedy::Nothing,
            () if !slow_path::is_running() && registrations::any_below(level) => Remedy::Reclaim,
            () if requested == 0 => Remedy::Nothing,
            () => Remedy::Waiting,
        }
    }
}

/// An amount of a counter. That of a further counter is named.
pub(super) fn amount(counter: Option<&Counter>, amount: u64) -> String {
    let shown = InUnit(amount, counter.map_or(Unit::Bytes, group_tree::unit));
    match counter.and_then(group_tree::further_name) {
        Some(name) => format!("{shown} of {name}"),
        None => shown.to_string(),
    }
}

/// A charge that did not fit below a max.
///
/// There was an instant during the call at which live charges, charges in flight and the bytes
/// asked for together were above `max` at [`group`](Self::group). The charge drained the credit
/// stranded in stocks first, where that could have helped. This does not hold for a charge that [is
/// behind](Self::is_behind) others in line: it may have fit.
///
/// It prints as one line: which group refused how much to which group, by how much the charge is
/// [short](Self::want), the figures that are not zero, what [helps](Remedy), and what would make
/// the charge fit. Sizes in the line are rounded; the getters are exact. A counter of things prints
/// bare numbers: [`RuntimeBuilder::counter`](crate::RuntimeBuilder::counter).
///
/// ```
/// use memcg::{Limit, Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", Limits::new().max(512 << 20))?;
/// let query = acme.create("q17", Limits::new())?;
/// let error = query.charge(1 << 30).unwrap_err();
/// let line = "/acme refused 1 GiB for /acme/q17: short by 512 MiB, max 512 MiB; \
///             neither waiting nor reclaim can help; to fit, raise max of /acme or charge less";
/// assert_eq!(error.to_string(), line);
/// let refusal = error.over_limit().unwrap();
/// assert_eq!(refusal.to_string(), "the limit of /acme, max 512 MiB");
/// assert_eq!((refusal.group(), refusal.requester(), refusal.counter()), (&acme, &query, None));
/// assert_eq!((refusal.requested(), refusal.usage(), refusal.max()), (1 << 30, 0, 512 << 20));
/// assert_eq!((refusal.want(), refusal.stocked_bound(), refusal.is_behind()), (512 << 20, 0, false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OverLimitError {
    // The fields are plain values: the thread that makes a refusal may be in an allocator, and must
    // not allocate.
    pub(crate) group: Group,
    pub(crate) requester: Group,
    /// The number of the counter that refused; memory is 0.
    pub(crate) counter: u16,
    pub(crate) requested: u64,
    /// The part of that by which usage would rise.
    pub(crate) adds: u64,
    pub(crate) usage: u64,
    pub(crate) max: u64,
    /// Charges waited in line there.
    pub(crate) is_behind: bool,
    pub(crate) stocked_bound: u64,
    pub(crate) helps: Remedy,
    pub(crate) holders: Holders,
    /// KiB that the max leaves out, because no group is charged for them: it takes no room beside
    /// the other fields.
    pub(crate) uncharged_kib: u32,
}

impl OverLimitError {
    /// Takes handles of its own. The requester keeps the levels, and the caller keeps the
    /// requester.
    pub(super) fn new(
        requester: &Counter,
        requested: u64,
        refusal: &LevelRefusal<'_>,
    ) -> OverLimitError {
        let level = refusal.level;
        OverLimitError {
            group: Group::pinned(level.first()),
            requester: Group::pinned(requester.first()),
            counter: u16::try_from(level.number_in_group()).unwrap_or(u16::MAX),
            requested,
            adds: cover::added_to(requester, requested, level, refusal.usage),
            usage: refusal.usage,
            max: refusal.max,
            is_behind: refusal.is_behind,
            stocked_bound: refusal.stocked_bound(),
            helps: Remedy::of_refusal(
                requested,
                level,
                (refusal.usage, refusal.max.min(USAGE_MAX)),
            ),
            holders: holders(level, refusal.usage),
            uncharged_kib: u32::try_from(group_tree::uncharged(level) >> 10).unwrap_or(u32::MAX),
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
        group_tree::further_name(self.full()?)
    }

    /// Returns what the full counter counts: [`Unit::Bytes`] for memory. The getters' numbers are
    /// amounts in this unit.
    pub fn unit(&self) -> Unit {
        self.full().map_or(Unit::Bytes, group_tree::unit)
    }

    fn full(&self) -> Option<&Counter> {
        self.group.nth(self.counter.into())
    }

    fn amount(&self, amount: u64) -> InUnit {
        InUnit(amount, self.unit())
    }

    /// It refuses a checkpoint: a charge of 0 bytes is never refused.
    fn is_checkpoint(&self) -> bool {
        self.requested == 0
    }

    /// Returns the amount asked for, in the counter's [unit](Self::unit): 0 at a
    /// [checkpoint](Group::checkpoint).
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// Returns the usage of the group when it refused. At most
    /// [`stocked_bound`](Self::stocked_bound) of it was credit; the rest was live.
    pub fn usage(&self) -> u64 {
        self.usage
    }

    /// Returns the max of the group when it refused.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns by how much the charge was short when it was refused: had so much been given back in
    /// the group, it would have fit. It is 0 for a charge that would have fit but [was
    /// behind](Self::is_behind) others.
    pub fn want(&self) -> u64 {
        self.usage
            .saturating_add(self.adds)
            .saturating_sub(self.most())
    }

    /// The most bytes that such charges can bring the group to.
    fn most(&self) -> u64 {
        self.max.min(USAGE_MAX)
    }

    /// Returns true if an older charge waited in line at the group. Once other charges have passed
    /// the first in line by as many bytes as it asks for, even a charge that would fit is refused:
    /// see [`Group::charge_with`].
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Returns the groups that held most below the group when it refused: up to three of its
    /// children and the usage of each in bytes, the largest first, together no more than
    /// [`usage`](Self::usage). It is empty for a further counter, and if the group has more than
    /// 256 children (use [`top`](crate::inspect::GroupInspector::top)). It may also be empty
    /// because another group was being created or taken offline at that moment, or because the
    /// charge was an allocator's, inside this crate.
    ///
    /// ```
    /// # use memcg::{ChargeError, Limit, Limits, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let [hog, query] = ["hog", "q17"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let _held = hog.charge(90)?;
    /// let Some(refusal) = query.charge(20).unwrap_err().over_limit().cloned() else { panic!() };
    /// assert_eq!(refusal.holders().collect::<Vec<_>>(), [(&hog, 90)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holders(&self) -> impl Iterator<Item = (&Group, u64)> {
        self.holders
            .iter()
            .flatten()
            .map(|(group, usage)| (group, *usage))
    }

    /// Returns the published bound on the credit below the group when it refused. It is 0, unless
    /// the charge was larger than max, or in rare races, and at most [`usage`](Self::usage).
    pub fn stocked_bound(&self) -> u64 {
        self.stocked_bound
    }
}

// === The line ===

/// Prints the figures alone: the [`ChargeError`](crate::ChargeError), whose source this is, says
/// the rest.
impl fmt::Display for OverLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = if self.is_checkpoint() { ": " } else { "" };
        write!(f, "the limit of {}{between}", self.group.shown_path())?;
        self.write_usage(f)
    }
}

impl std::error::Error for OverLimitError {}

impl OverLimitError {
    /// Usage beside max. Figures that are rounded to the same text are told by their difference.
    fn write_usage(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usage = self.amount(self.usage);
        let max = self.amount(self.max);
        let apart = self.amount(self.usage.abs_diff(self.max));
        match () {
            () if self.is_checkpoint() => write!(f, "usage is {apart} above max {max}"),
            // The request alone is beyond what any counter can hold: neither figure explains it.
            () if self.usage == 0 && self.max >= USAGE_MAX => Ok(()),
            () if self.max >= USAGE_MAX => write!(f, ", usage {usage}"),
            () if self.usage == 0 => write!(f, ", max {max}"),
            // Rounded as they are printed, the two look alike. Their difference does not.
            () if self.usage != self.max && usage.to_string() == max.to_string() => {
                let side = if self.usage > self.max {
                    "above"
                } else {
                    "below"
                };
                write!(f, ", usage {apart} {side} max {max}")
            }
            () => write!(f, ", usage {usage} of max {max}"),
        }
    }

    /// Writes the figures that are not zero, `between`, what `helps`, and the steps that would make
    /// the charge fit. `first` is the step that helps this caller before all others.
    pub(super) fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        between: &str,
        helps: Remedy,
        first: Option<&str>,
    ) -> fmt::Result {
        if self.is_checkpoint() {
            write!(
                f,
                "{} refuses a checkpoint of {}: ",
                self.group.shown_path(),
                self.requester.shown_path()
            )?;
        } else {
            let amount = amount(self.full(), self.requested);
            write!(
                f,
                "{} refused {amount} for {}: ",
                self.group.shown_path(),
                self.requester.shown_path()
            )?;
            match self.want() {
                0 => f.write_str("it fits")?,
                short => write!(f, "short by {}", self.amount(short))?,
            }
        }
        self.write_usage(f)?;
        if self.stocked_bound > 0 {
            write!(
                f,
                ", at most {} of it unused credit",
                self.amount(self.stocked_bound)
            )?;
        }
        if self.uncharged_kib > 0 {
            let uncharged = self.amount(u64::from(self.uncharged_kib) << 10);
            write!(
                f,
                "; memory that is not charged holds {uncharged} of what the host leaves"
            )?;
        }
        if self.is_behind {
            f.write_str(", behind charges in line")?;
        }
        for (number, (holder, usage)) in self.holders().enumerate() {
            let most = if number == 0 { "; most in" } else { "," };
            write!(f, "{most} {} {}", holder.shown_path(), self.amount(usage))?;
        }
        write!(
            f,
            "{}{between}; {helps}; ",
            if between.is_empty() { "" } else { "; " }
        )?;
        if self.max >= USAGE_MAX {
            return write!(
                f,
                "charge less: no group counts more than {}",
                self.amount(USAGE_MAX)
            );
        }
        let steps = self.steps(helps, first);
        for (number, step) in steps.iter().enumerate() {
            let before = match number {
                0 if self.is_checkpoint() => "to go on, ",
                0 => "to fit, ",
                _ if number + 1 == steps.len() => " or ",
                _ => ", ",
            };
            write!(f, "{before}{step}")?;
        }
        Ok(())
    }

    fn steps(&self, helps: Remedy, first: Option<&str>) -> Vec<String> {
        let at = self.group.shown_path();
        let of = self
            .counter()
            .map_or(String::new(), |counter| format!(" of {counter}"));
        let is_memory = of.is_empty();
        let first = first.map(str::to_string);
        let setting = self
            .full()
            .and_then(setting_names::of)
            .map(SettingName::get);
        let raise = setting.map_or_else(
            || format!("raise max{of} of {at}"),
            |setting| format!("raise {setting}"),
        );
        // It would not fit into an empty group, so no step that frees memory is named.
        if self.requested > self.most() {
            return vec![raise, "charge less".to_string()];
        }
        if is_memory && self.requested > self.requester.first().effective_max() {
            return vec!["charge less".to_string()];
        }
        if self.want() == 0 {
            let step = if self.is_behind { WAIT } else { "try again" };
            return vec![first.unwrap_or_else(|| step.to_string())];
        }
        let release = if is_memory {
            format!("release memory in {at}")
        } else {
            format!("uncharge some{of} in {at}")
        };
        let register = (is_memory && helps == Remedy::Waiting)
            .then(|| "register a reclaimer there".to_string());
        [first, Some(release), register, Some(raise)]
            .into_iter()
            .flatten()
            .collect()
    }
}

// === Holders ===

/// The most children that a refusal names.
const HOLDERS: usize = 3;

/// A refusal looks at this many children at most, because no group is created or goes offline
/// meanwhile.
const LOOKED_AT_MAX: u32 = 256;

/// Children of one group and what they hold, the largest first.
pub(crate) type Holders = [Option<(Group, u64)>; HOLDERS];

/// Finds the children of `level` that hold most, of the usage that refused. It allocates nothing,
/// because the caller may be an allocator. Inside another slow path it names none.
fn holders(level: &Counter, usage: u64) -> Holders {
    let mut most: [Option<(&Counter, u64)>; HOLDERS] = [None; HOLDERS];
    if !level.is_memory()
        || !(1..=LOOKED_AT_MAX).contains(&level.child_count().get())
        || slow_path::is_running()
    {
        return [const { None }; HOLDERS];
    }
    let _path = SlowPath::enter();
    // A thread that is refused does not queue for the lock.
    let Some(shape) = level.tree().hierarchy.try_snapshot() else {
        return [const { None }; HOLDERS];
    };
    for child in shape.children(level) {
        // Most of many children hold less than the last of those found, or nothing.
        let usage = child.usage();
        if usage <= most[HOLDERS - 1].map_or(0, |(_, least)| least) {
            continue;
        }
        let mut next = Some((child, usage));
        for held in &mut most {
            if next.is_some_and(|(_, usage)| held.is_none_or(|(_, most)| usage > most)) {
                std::mem::swap(held, &mut next);
            }
        }
    }
    // The children are read later than `level`, and may have grown since: what they held of its
    // usage is no more than that.
    let mut rest = usage;
    // The lock keeps the children until this takes handles on them.
    most.map(|held| {
        let (child, held) = held?;
        let held = held.min(rest);
        rest -= held;
        (held > 0).then(|| (Group::pinned(child), held))
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::counter::open_count::OpenCount;
    use crate::thread::slot::Consume;
    use crate::{
        Bytes, Charge, ChargeError, Limit, Limits, OnFull, Reclaim, ReclaimContext,
        ReclaimPriority, Registration, Runtime, Unit,
    };

    /// A root of 100 bytes, a tenant that holds 60 of them, and one that charges.
    fn full(limits: Limits) -> (Runtime, [Group; 2], Charge) {
        let runtime = Runtime::builder().batch(0).max(100).build().unwrap();
        let groups = ["held", "asks"].map(|name| runtime.root().create(name, limits).unwrap());
        let held = groups[0].charge(60).unwrap();
        (runtime, groups, held)
    }

    fn empty_handed(group: &Group) -> Registration {
        struct Nothing;
        impl Reclaim for Nothing {
            fn reclaim(&self, _want: u64, _context: &ReclaimContext<'_>) -> u64 {
                0
            }
        }
        group.register_reclaimer(Arc::new(Nothing), ReclaimPriority::NORMAL)
    }

    /// The answer, which the refusal prints.
    fn said(refused: Result<Charge, ChargeError>) -> Remedy {
        let refused = refused.unwrap_err();
        let line = refused.to_string();
        let helps = refused.remedy();
        assert!(line.contains(&format!("; {helps}")), "{line}");
        helps
    }

    #[test]
    fn a_refusal_says_what_helps() {
        let (_runtime, [held, asks], _kept) = full(Limits::new());
        for group in [&held, &asks] {
            for (bytes, helps) in [
                (41, Remedy::Waiting),
                (101, Remedy::Nothing),
                (u64::MAX, Remedy::Nothing),
            ] {
                assert_eq!(
                    said(group.charge(Bytes(bytes))),
                    helps,
                    "{bytes} for {}",
                    group.path()
                );
            }
        }
        let _registration = empty_handed(&held);
        assert_eq!(said(held.charge(41)), Remedy::Reclaim);
        assert_eq!(said(asks.charge(101)), Remedy::Nothing);
    }

    /// Usage and max that round to the same text are told by their difference, and its side.
    #[test]
    fn figures_that_round_alike_are_told_apart() {
        for (held, told) in [
            ((1 << 30) - 1, "usage 1 B below max 1 GiB"),
            ((1 << 30) + 1, "usage 1 B above max 1 GiB"),
        ] {
            let runtime = Runtime::builder().batch(0).max(1 << 30).build().unwrap();
            let _held = runtime.root().force_charge(held);
            let refused = runtime.root().charge(2).unwrap_err().to_string();
            assert!(refused.contains(told), "{refused}");
        }
    }

    /// The figures of a refusal are read one after the other, while others charge: the parts,
    /// credit and holders, are never more than the whole.
    #[test]
    fn no_part_is_above_the_whole() {
        let runtime = Runtime::builder()
            .max(8 << 20)
            .batch(1 << 20)
            .budget(8 << 20)
            .adaptive(false)
            .build()
            .unwrap();
        let root = runtime.root();
        let groups = ["a", "b", "c"].map(|name| root.create(name, Limits::new()).unwrap());
        let _held = groups
            .each_ref()
            .map(|group| group.charge(100 << 10).unwrap());
        for usage in [0, 1, 22 << 10, 1 << 20, 8 << 20] {
            let refusal = LevelRefusal {
                level: root.first(),
                open: OpenCount::default(),
                usage,
                max: 8 << 20,
                is_behind: false,
            };
            let refused = OverLimitError::new(root.first(), 16 << 20, &refusal);
            assert!(root.first().bound() > 1 << 20, "credit of three groups");
            assert!(refused.stocked_bound() <= usage, "{refused}");
            let held: u64 = refused.holders().map(|(_, held)| held).sum();
            assert!(
                held <= usage && refused.holders().all(|(_, held)| held > 0),
                "{refused}"
            );
            assert_eq!(refused.holders().next().is_some(), usage > 0, "{refused}");
            let of_counter = refusal.refused(root.first(), 16 << 20);
            assert!(of_counter.stocked_bound <= usage, "{of_counter}");
        }
    }

    /// The refusal says what was there as the charge was refused: the line may have been served
    /// since.
    #[test]
    fn a_line_that_has_been_served_since_is_told() {
        let runtime = Runtime::builder().batch(0).max(100).build().unwrap();
        let root = runtime.root();
        let held = root.charge(80).unwrap();
        let mut waits = std::pin::pin!(root.charge_async(30));
        let mut poll = || {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            waits.as_mut().poll(&mut context)
        };
        assert!(poll().is_pending());
        let passed = [root.charge(15).unwrap(), root.charge(1).unwrap()];
        drop(passed);
        // The first in line has let 16 of its 30 bytes pass, and lets no 15 more.
        let try_once = || root.first().try_charge_once_slow(15, Consume::Miss);
        let refusal = try_once().map(drop).expect_err("behind the line");
        drop(held);
        assert!(poll().is_ready() && root.waiting_count() == 0);
        let refused = OverLimitError::new(root.first(), 15, &refusal);
        assert!(refused.is_behind() && refused.want() == 0, "{refused}");
    }

    /// A charge that a group above never admits is told so, though another group refuses it.
    #[test]
    fn more_than_a_max_above_never_fits() {
        let runtime = Runtime::builder().batch(0).max(100).build().unwrap();
        let tenant = runtime
            .root()
            .create("tenant", Limits::new().max(Limit::Bytes(200)))
            .unwrap();
        let _held = tenant.force_charge(60);
        let refused = tenant.charge(150).unwrap_err();
        assert!(
            refused
                .to_string()
                .ends_with("; neither waiting nor reclaim can help; to fit, charge less"),
            "{refused}"
        );
        assert_eq!(said(tenant.charge(50)), Remedy::Waiting);
    }

    /// Below a high no charge without room waits in line; a reclaimer is asked.
    #[test]
    fn reclaim_helps_above_high() {
        let (_runtime, [held, _], _kept) = full(Limits::new().high(70));
        let if_room = || said(held.charge_with(Bytes(20), OnFull::IfRoom));
        assert_eq!(if_room(), Remedy::Waiting);
        let _registration = empty_handed(&held);
        assert_eq!(if_room(), Remedy::Reclaim);
    }

    /// It has no figures, and looks at the groups as they are.
    #[test]
    fn a_charge_without_room_says_what_helps() {
        let (runtime, [held, asks], _kept) = full(Limits::new().max(Limit::Bytes(90)));
        let if_room = |bytes| asks.charge_with(Bytes(bytes), OnFull::IfRoom);
        assert_eq!(
            [41, 91, u64::MAX].map(|bytes| said(if_room(bytes))),
            [Remedy::Waiting, Remedy::Nothing, Remedy::Nothing]
        );
        let registration = empty_handed(&held);
        assert_eq!(
            [41, 91].map(|bytes| said(if_room(bytes))),
            [Remedy::Reclaim, Remedy::Nothing]
        );
        drop(registration);
        let _own = empty_handed(&asks);
        assert_eq!(
            said(if_room(41)),
            Remedy::Reclaim,
            "below the root, which is full"
        );
        let refused = if_room(41).unwrap_err();
        runtime.root().set_limits(Limits::new().max(40)).unwrap();
        assert_eq!(
            refused.remedy(),
            Remedy::Nothing,
            "more than the max by now"
        );
        asks.offline().unwrap();
        runtime.root().set_limits(Limits::new().max(100)).unwrap();
        assert_eq!(said(if_room(41)), Remedy::Nothing);
    }

    /// A charge of a further counter never waits, and no reclaimer is asked for it.
    #[test]
    fn no_wait_helps_a_further_counter() {
        let mut builder = Runtime::builder();
        let handles: crate::CounterKey = builder.counter("handles", Unit::Events);
        let runtime = builder.build().unwrap();
        let root = runtime.root();
        root.counter(handles).unwrap().set_max(3).unwrap();
        let _registration = empty_handed(&root);
        let _held = root.charge_set(&[(handles, 3)]).unwrap();
        let refused = root.charge_set(&[(handles, 1)]).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("; neither waiting nor reclaim can help; to fit, uncharge"),
            "{refused}"
        );
        assert_eq!(refused.remedy(), Remedy::Nothing);
    }

    #[test]
    fn a_checkpoint_does_not_wait() {
        let (_runtime, [held, _], _kept) = full(Limits::new());
        let _above = held.force_charge(60);
        let checkpoint = || held.run(Group::checkpoint).unwrap_err();
        assert_eq!(checkpoint().remedy(), Remedy::Nothing);
        assert!(checkpoint().to_string().contains("above max 100 B; "));
        let _registration = empty_handed(&held);
        assert_eq!(checkpoint().remedy(), Remedy::Reclaim);
        assert!(
            checkpoint()
                .to_string()
                .contains("; reclaim can help; to go on, ")
        );
    }
}
