//! What charges, and turns charges into others; and the answers that the twin allows.

use std::time::{Duration, Instant};

use memcg::simulated_time as clock;

use memcg::errors::{MergeError, Remedy};
use memcg::{
    Bytes, CentralStock, Charge, ChargeError, ChargeErrorKind, Charged, Event, Group, OnFull,
    OverLimitError, PageCounter, Runtime, Unit,
};

use super::tasks::Passed;
use super::{CHARGES_MAX, Life};
use crate::holds::ensure;
use crate::script::{Op, Size, Verb, What};
use crate::twin::{Held, Key, No};

/// Sums of charges stay far from what a counter can hold.
const FORCED_MAX: u64 = 1 << 40;

/// Longer paths are shortened in texts.
const PATH_MAX: usize = 200;

/// What a call asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) group: usize,
    pub(super) counter: usize,
    pub(super) bytes: u64,
    pub(super) verb: Verb,
    /// Only levels below that one are charged.
    pub(super) top: Option<usize>,
    /// It may be refused beside credit: credit was in the way as the call began.
    pub(super) beside_credit: bool,
    /// The call asks caches, where its verb does.
    pub(super) asks: bool,
    began: Instant,
}

/// The calls by their verbs, in one place.
fn charge(group: &Group, verb: Verb, bytes: u64) -> Result<Charge, ChargeError> {
    let bytes = Bytes(bytes);
    match verb {
        // With a value, which goes again.
        Verb::Plain if bytes.as_u64() % 8 == 7 => {
            Charged::make(group, bytes, || ()).map(|value| Charged::into_parts(value).1)
        }
        Verb::Try if bytes.as_u64() % 8 == 7 => {
            Charged::try_make(group, bytes, || ()).map(|value| Charged::into_parts(value).1)
        }
        Verb::Plain => group.charge(bytes),
        Verb::Try => group.try_charge(bytes),
        Verb::Force => Ok(group.force_charge(bytes)),
        _ => group.charge_with(bytes, on_full(verb)),
    }
}

pub(super) fn on_full(verb: Verb) -> OnFull {
    match verb {
        Verb::Start => OnFull::Start,
        Verb::Now => OnFull::Now,
        Verb::IfRoom => OnFull::IfRoom,
        Verb::WaitNot => OnFull::Wait(Duration::ZERO),
        _ => OnFull::Reclaim,
    }
}

fn raw_charge(group: &Group, verb: Verb, bytes: u64) -> Result<(), ChargeError> {
    let (raw, bytes) = (group.raw(), Bytes(bytes));
    match verb {
        Verb::Plain => raw.charge(bytes),
        Verb::Try => raw.try_charge(bytes),
        Verb::Force => {
            raw.force_charge(bytes);
            Ok(())
        }
        _ => raw.charge_with(bytes, on_full(verb)),
    }
}

/// Growth knows three verbs.
fn three(verb: Verb) -> Verb {
    match verb {
        Verb::Try | Verb::Now | Verb::IfRoom | Verb::Start => Verb::Try,
        Verb::Force => Verb::Force,
        _ => Verb::Plain,
    }
}

/// What the text of a refusal says that helps, where `raise` is the one way that is left to the
/// program that has set the max.
fn ends_of(error: &ChargeError, refusal: &OverLimitError, raise: &str, of: &str) -> String {
    let (helps, level) = (error.remedy(), refusal.group().path());
    let most = refusal.max().min(PageCounter::USAGE_MAX);
    if most == PageCounter::USAGE_MAX {
        return format!("; {helps}; charge less: no group counts more than ");
    }
    let line = "wait in line (OnFull::Wait, charge_async)";
    let first = match error.kind() {
        ChargeErrorKind::WouldBlock => Some(line),
        ChargeErrorKind::TimedOut if helps != Remedy::Nothing => Some("wait longer"),
        _ => None,
    };
    let is_memory = of.is_empty();
    let least = refusal.requester().effective_max();
    let steps = if refusal.requested() > most {
        vec![raise.to_string(), String::from("charge less")]
    } else if is_memory && refusal.requested() > least {
        vec![String::from("charge less")]
    } else if refusal.want() == 0 {
        let other = if refusal.is_behind() {
            line
        } else {
            "try again"
        };
        vec![first.unwrap_or(other).to_string()]
    } else {
        let release = if is_memory {
            format!("release memory in {level}")
        } else {
            format!("uncharge some{of} in {level}")
        };
        let register = is_memory && helps == Remedy::Waiting;
        let register = register.then(|| String::from("register a reclaimer there"));
        let first = first.map(str::to_string);
        let all = [first, Some(release), register, Some(raise.to_string())];
        all.into_iter().flatten().collect()
    };
    let steps = match steps.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} or {last}", before.join(", ")),
        None => String::new(),
    };
    format!("; {helps}; to fit, {steps}")
}

impl Life {
    /// What a call will ask for, judged before it is made.
    pub(super) fn ask(&mut self, group: usize, counter: usize, verb: Verb, bytes: u64) -> Ask {
        // A thread of the runtime goes on with it.
        self.may_drain(verb == Verb::Start);
        // What an adapter waits for may be asked for in the same moment.
        if counter == 0 && !self.adapters_wait() {
            self.shared.asks_for(self.twin.importance(group));
            // Nor does one that does not block, of itself.
            let is_known = self.tasks.is_empty() && verb != Verb::Plain && verb != Verb::Reclaims;
            self.shared.spares_all(is_known);
        }
        let key = self.counter(counter);
        let is_in_way = |level: usize| {
            let Some(handle) = self.handles[level].first() else {
                // Nobody can look.
                return true;
            };
            let counter_of = handle.counter(key).expect("declared");
            let room = |most: u64| most.saturating_sub(counter_of.usage());
            let is_above_high = verb == Verb::IfRoom && !self.twin.is_observed(level);
            bytes > room(self.twin.limit(level, counter))
                || is_above_high && bytes > room(self.twin.groups[level].high)
        };
        let beside_credit = match verb {
            Verb::Now | Verb::Start | Verb::IfRoom => {
                self.twin.levels(group).any(is_in_way)
                    || !self.tasks.is_empty()
                    || self.adapters_wait()
            }
            _ => false,
        };
        Ask {
            group,
            counter,
            bytes,
            verb,
            top: None,
            beside_credit,
            asks: true,
            began: clock::now(),
        }
    }

    /// Compares an answer with those that the twin allows, and settles accounts of what has
    /// happened meanwhile. True: the charge was made.
    ///
    /// # Panics
    /// When the twin does not allow it.
    pub(super) fn agree<T>(&mut self, ask: Ask, found: Result<T, ChargeError>) -> Option<T> {
        let Ask {
            group,
            counter,
            bytes,
            verb,
            top,
            ..
        } = ask;
        let took = clock::now().saturating_duration_since(ask.began);
        assert!(
            // Without a time to wait reclaimers are asked as by a plain charge.
            took.is_zero() || matches!(verb, Verb::Plain | Verb::WaitNot) && took <= self.longest(),
            "{verb:?} has waited for {took:?}"
        );
        // At the beginning, and after each thing that callbacks did.
        let mut allowed = vec![self.twin.admits(group, counter, bytes, top)];
        let in_line: Vec<Passed> = self.tasks.iter().map(|task| task.passed).collect();
        let adapters_waited = self.adapters_wait();
        self.settle_accounts_with(|life| {
            let now = life.twin.admits(group, counter, bytes, top);
            if allowed.last() != Some(&now) {
                allowed.push(now);
            }
        });
        let error = match found {
            Ok(made) => {
                assert!(
                    verb == Verb::Force || allowed.iter().any(Result::is_ok),
                    "made, the twin says {allowed:?}: {ask:?}"
                );
                let waits = !self.hooks.is_empty() || self.had_caches || self.cancelled;
                assert!(
                    verb != Verb::WaitNot || waits || took.is_zero(),
                    "made after {took:?}, by a call that has no time"
                );
                self.pass_those_in_line(bytes);
                return Some(made);
            }
            Err(error) => error,
        };
        assert!(verb != Verb::Force, "a forced charge is refused: {error}");
        if error.is_offline() {
            let is_right = allowed.contains(&Err(No::Offline));
            assert!(is_right, "{error}, the twin says {allowed:?}");
            assert_eq!(
                (error.requested(), error.group().id()),
                (bytes, self.ids[group]),
                "{error}"
            );
            return None;
        }
        if error.is_cancelled() {
            // A thread of the runtime that cancels a group has it told so before it calls its hooks.
            self.hold(|life| {
                ensure!(life.cancelled, "{error}, and no group was cancelled");
                Ok(())
            });
            self.is_cancelled_itself(group);
            return None;
        }
        self.helps(&error, ask);
        let is_of_kind = match verb {
            Verb::Plain => error.is_over_limit(),
            Verb::WaitNot => error.is_timeout() || error.is_over_limit(),
            Verb::IfRoom => error.is_would_block(),
            _ => error.is_over_limit() || error.is_would_block(),
        };
        assert!(is_of_kind, "{verb:?} says {:?}: {error}", error.kind());
        let Some(refusal) = error.over_limit().cloned() else {
            let is_right = ask.beside_credit || allowed.iter().any(Result::is_err);
            assert!(
                is_right,
                "{error}, the twin says {allowed:?}; {}",
                self.levels_told(group, counter)
            );
            return None;
        };
        let level = self.number(refusal.group());
        if verb != Verb::IfRoom {
            self.twin.groups[level].refused[counter] += 1;
        }
        self.twin.groups[level].timed_out += u64::from(error.is_timeout());
        self.is_kept_as_incident(&error, group, level);
        assert_eq!(
            (
                refusal.requested(),
                refusal.requester().id(),
                refusal.counter()
            ),
            (bytes, self.ids[group], [None, Some("further")][counter]),
            "{error}"
        );
        self.is_told(&error, counter);
        if counter == 0 && top.is_none() && !refusal.is_behind() {
            self.has_begun(level, ask);
        }
        if refusal.is_behind() {
            let is_here = |passed: &&Passed| self.twin.is_within(passed.group, level);
            let here: Vec<&Passed> = in_line.iter().filter(is_here).collect();
            let waits = !here.is_empty() || adapters_waited;
            assert!(waits, "{error}, and no charge is in line");
            // Small charges pass one in line until they have taken as much as it asks for.
            let may_refuse = |passed: &&Passed| {
                passed
                    .others
                    .is_none_or(|others| others.saturating_add(bytes) > passed.bytes)
            };
            let has_room = allowed.iter().all(Result::is_ok);
            assert!(
                !has_room
                    || adapters_waited
                    || !self.shared.is_quiet()
                    || here.iter().any(may_refuse),
                "{error}, and none of those in line was passed so far: {here:?}"
            );
            return None;
        }
        if ask.beside_credit {
            return None;
        }
        assert!(
            allowed.contains(&Err(No::Full(level)))
                || allowed
                    .iter()
                    .any(|answer| matches!(answer, Err(No::Full(_))))
                    && self.is_full_somewhen(level, ask),
            "{error}, the twin says {allowed:?}; {}",
            self.levels_told(group, counter)
        );
        assert_eq!(
            refusal.max(),
            self.twin.groups[level].max[counter],
            "{error}"
        );
        if !self.keeps {
            // A charge above max fits beside no credit.
            let live = self.twin.live(level, counter);
            assert!(
                refusal.usage() == live || bytes > refusal.max(),
                "{error}, {live} are live: credit stood behind"
            );
        }
        // Who waits for no time, or drives futures, asks as a plain charge does.
        let asks = ask.asks && matches!(verb, Verb::Plain | Verb::WaitNot | Verb::Reclaims);
        if asks && counter == 0 {
            self.nothing_left_for(level, ask);
            self.waits_for_promises(level, ask, took);
        }
        None
    }

    /// What is larger than a max nothing helps, and no memory comes for it. And who holds most of
    /// what is full are the largest of its children.
    fn helps(&self, error: &ChargeError, ask: Ask) {
        let Ask {
            group,
            counter,
            bytes,
            verb,
            ..
        } = ask;
        if counter > 0 || bytes == 0 || !self.shared.is_quiet() || ask.top.is_some() {
            return;
        }
        // Nor does a group that is offline have room by any means.
        let is_offline = verb == Verb::IfRoom && !self.twin.groups[group].online;
        let never_fits = is_offline || self.twin.never_fits(group, bytes);
        let helps = error.remedy();
        assert_eq!(
            helps == Remedy::Nothing,
            never_fits,
            "{error}: {helps:?}; {}",
            self.levels_told(group, counter)
        );
        assert!(
            !never_fits || !error.is_would_block() || verb == Verb::IfRoom,
            "{error}, and it never fits"
        );
        let Some(refusal) = error.over_limit() else {
            return;
        };
        let level = self.number(refusal.group());
        // Memory may come where somebody can be asked for it, or cancelled.
        let mut caches = self.caches.iter().filter(|cache| !cache.is_gone());
        let gives = caches.any(|cache| self.twin.is_within(self.home(cache), level))
            || self.twin.chooses(level);
        let is_known = verb == Verb::Try && self.tasks.is_empty() && !self.setup.adapters;
        assert!(
            !is_known || error.is_would_block() == (gives && !never_fits),
            "{error}, somebody can be asked: {gives}"
        );
        // A charge that would wait is told of the max that never has room for it, but for one that has
        // just moved by itself.
        let is_vain = never_fits && verb == Verb::WaitNot && self.is_vain(group, bytes).is_some();
        assert!(
            !is_vain || bytes > self.twin.limit(level, 0),
            "{error}, and another max is in the way; {}",
            self.levels_told(group, counter)
        );
        let holders: Vec<(usize, u64)> = refusal
            .holders()
            .map(|(holder, held)| (self.number(holder), held))
            .collect();
        let sum: u64 = holders.iter().map(|(_, held)| held).sum();
        let are_children =
            |&(holder, _): &(usize, u64)| self.twin.groups[holder].parent == Some(level);
        assert!(
            holders.iter().all(are_children)
                && sum <= refusal.usage()
                && holders.windows(2).all(|pair| pair[0].1 >= pair[1].1),
            "{error}, with the holders {holders:?}"
        );
        // One that is offline is no child any more.
        let online = |&child: &usize| self.twin.groups[child].online;
        let most = self.twin.children(level).filter(online);
        let most = most.map(|child| self.twin.live(child, 0)).max();
        let named = holders.first().map_or(0, |(_, held)| *held);
        // Who is refused waits for no lock to look for them.
        let is_at_rest = !holders.is_empty()
            && self.tasks.is_empty()
            && !self.adapters_wait()
            && !self.had_caches;
        assert!(
            !is_at_rest || self.cancelled || most.is_none_or(|most| named >= most),
            "{error}, and a child holds {most:?}"
        );
    }

    /// Its text names who was refused what, and where; and of what has set the max that is to be
    /// raised, the name.
    fn is_told(&self, error: &ChargeError, counter: usize) {
        let Some(refusal) = error.over_limit() else {
            return;
        };
        let (level, requester) = (refusal.group(), refusal.requester());
        let paths = [level, requester].map(Group::path);
        if refusal.requested() == 0 || paths.iter().any(|path| path.len() > PATH_MAX) {
            return;
        }
        let text = error.to_string();
        let of = ["", " of further"][counter];
        let unit = level.counter(self.counter(counter)).map(|it| it.unit());
        let amount = |amount: u64| match unit {
            Ok(Unit::Nanoseconds) => format!("{amount} ns"),
            Ok(Unit::Events) => amount.to_string(),
            _ => Bytes(amount).to_string(),
        };
        let short = match refusal.want() {
            0 => String::from("it fits"),
            want => format!("short by {}", amount(want)),
        };
        let begins = format!(
            "{} refused {}{of} for {}: {short}",
            paths[0],
            amount(refusal.requested()),
            paths[1]
        );
        assert!(text.starts_with(&begins), "{text}, and not: {begins}");
        // A further counter has a setting of its own, or none.
        let setting = level.limits().setting_name().filter(|_| counter == 0);
        let raise = setting.map_or_else(
            || format!("raise max{of} of {}", paths[0]),
            |setting| format!("raise {setting}"),
        );
        assert!(
            !text.contains("raise ") || text.contains(&raise) || self.setup.adapters,
            "{text}, and not: {raise}"
        );
        let ends = ends_of(error, refusal, &raise, of);
        assert!(
            text.contains(&ends) || self.setup.adapters || !self.shared.is_quiet(),
            "{text}, and not: {ends}"
        );
    }

    /// A call that blocks waits no longer: for its delay, for victims, and for promises.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_millis(self.setup.delay) + Duration::from_millis(500)
    }

    /// The levels of a group, for a message.
    fn levels_told(&self, group: usize, counter: usize) -> String {
        let key = self.counter(counter);
        let level = |level: usize| {
            let usage = self.handles[level].first().map(|handle| {
                let counter = handle.counter(key).expect("declared");
                (counter.usage(), counter.stocked())
            });
            let twin = &self.twin.groups[level];
            format!(
                "{}: (used, credit) {usage:?}, {} live, max {}, high {}",
                self.twin.path(level),
                self.twin.live(level, counter),
                twin.max[counter],
                twin.high
            )
        };
        self.twin
            .levels(group)
            .map(level)
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// Several levels may be full at once; which of them a walk meets first depends on credit.
    fn is_full_somewhen(&self, level: usize, ask: Ask) -> bool {
        self.twin.is_full(level, ask.counter, ask.bytes) || !self.shared.is_quiet()
    }

    pub(super) fn number(&self, group: &Group) -> usize {
        let id = group.id();
        let known = self.ids.iter().position(|&known| known == id);
        known.unwrap_or_else(|| panic!("a group that nobody made: {group:?}"))
    }

    pub(super) fn keep(&mut self, charge: Charge, group: usize, counter: usize, bytes: u64) {
        assert_eq!(charge.bytes(), bytes, "of the charge");
        let key = self.twin.hold(group, counter, bytes);
        self.charges.push((key, charge));
    }

    /// A call takes credit back, and says how much: so much less is used of memory afterwards. What
    /// it frees may serve a charge in line.
    pub(super) fn give_back(
        &mut self,
        op: &Op,
        call: impl FnOnce(&Group) -> u64 + Send + 'static,
        group: usize,
    ) -> u64 {
        let live = self.twin.live(0, 0);
        let root = self.handles[0].first().cloned();
        let (given, fell) = self.on(op, group, move |group| {
            let used = || root.as_ref().map_or(0, Group::usage);
            let before = used();
            let given = call(group);
            (given, before.saturating_sub(used()))
        });
        self.settle_accounts();
        let others = self.twin.live(0, 0) != live || !self.tasks.is_empty() || self.adapters_wait();
        let is_known = self.shared.is_quiet() && !others && !self.handles[0].is_empty();
        // A thread of the runtime may do the same meanwhile. And whoever comes by a level that credit
        // alone keeps elevated takes that credit back, too.
        let is_marked = |group: &crate::twin::Group| group.online && group.thresholds != (0, 0);
        let drains = self.drains || self.twin.groups.iter().any(is_marked);
        assert!(
            !is_known || given == fell || drains && given < fell,
            "{given} bytes of credit were taken back, and usage fell by {fell}"
        );
        given
    }

    /// The same of a call on the runtime; 0 once that has gone.
    pub(super) fn give_credit_back(&mut self, op: &Op, call: fn(&Runtime) -> Bytes) -> u64 {
        let Some(runtime) = self.runtime.clone() else {
            return 0;
        };
        self.give_back(op, move |_| call(&runtime).as_u64(), 0)
    }

    fn is_full(&self) -> bool {
        self.charges.len() >= CHARGES_MAX
    }

    /// One of the charges.
    pub(super) fn pick(&self, number: u8) -> Option<usize> {
        let most = self.charges.len();
        (most > 0).then(|| usize::from(number) % most)
    }

    pub(super) fn step_charge(&mut self, op: &Op) {
        match op.1 {
            What::Charge(group, verb, size) => self.charge(op, group, verb, size),
            What::ChargeSet(group, at_once, memory, further) => {
                self.charge_set(op, group, at_once, [memory, further]);
            }
            What::RawCharge(group, verb, size) => self.raw_charge(op, group, verb, size),
            What::RawUncharge(number, bytes) => self.raw_uncharge(op, number, bytes),
            What::IntoRaw(number) => self.make_word(op, number),
            What::FromRaw(number) => self.make_charge_of_word(op, number),
            What::CentralTake(group, size) => self.central_take(op, group, size),
            What::CentralRelease(group) => {
                if let Some(group) = self.group(group) {
                    self.keeps = true;
                    self.give_back(op, |group| CentralStock::of(group).release_credit(), group);
                }
            }
            What::Merge(into, from) => self.merge(op, into, from),
            What::DropAll(group) => self.drop_all(op, group),
            What::Grow(number, ..)
            | What::Shrink(number, _)
            | What::Resize(number, ..)
            | What::Split(number, _)
            | What::Take(number)
            | What::Transfer(number, _)
            | What::Drop(number) => {
                if let Some(at) = self.pick(number) {
                    self.step_part(op, at);
                }
            }
            What::CentralGive(number) => {
                let newest = self.charges.len().checked_sub(1);
                let newest = newest.filter(|_| number > u8::MAX / 2);
                if let Some(at) = newest.or_else(|| self.pick(number)) {
                    self.step_part(op, at);
                }
            }
            _ => unreachable!("an operation on charges"),
        }
    }

    fn charge(&mut self, op: &Op, group: u8, verb: Verb, size: Size) {
        let Some(group) = self.group(group).filter(|_| !self.is_full()) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        if verb == Verb::Force && bytes > FORCED_MAX {
            return;
        }
        let ask = self.ask(group, 0, verb, bytes);
        self.asking = Some(group).filter(|_| verb == Verb::Plain);
        let promised = self.promised_once();
        let found = self.on(op, group, move |group| charge(group, verb, bytes));
        // Of all that start none is asked for what another one has promised.
        let started = self.promised_once() - promised;
        assert!(
            verb != Verb::Start || started <= bytes,
            "{started} are promised for {bytes}"
        );
        if let Some(charge) = self.agree(ask, found) {
            self.keep(charge, group, 0, bytes);
        }
    }

    /// The last of a set is charged first, and goes back if the first is refused.
    fn charge_set(&mut self, op: &Op, group: u8, at_once: bool, sizes: [Size; 2]) {
        let Some(group) = self.group(group).filter(|_| !self.is_full()) else {
            return;
        };
        let bytes = [0, 1].map(|counter| self.bytes(group, counter, sizes[counter]));
        let verb = if at_once { Verb::Try } else { Verb::Plain };
        let amounts = [0, 1].map(|number| (self.counter(number), Bytes(bytes[number])));
        let asks = [
            self.ask(group, 0, verb, bytes[0]),
            self.ask(group, 1, verb, bytes[1]),
        ];
        let is_slice = bytes[0] % 2 == 1;
        let found = self.on(op, group, move |group| match at_once {
            _ if is_slice => {
                let set = match at_once {
                    true => group.try_charge_set(&amounts[..]),
                    false => group.charge_set(&amounts[..]),
                };
                set.map(|set| {
                    let mut set = set.into_iter();
                    [(); 2].map(|()| set.next().expect("one of two"))
                })
            }
            true => group.try_charge_set(&amounts),
            false => group.charge_set(&amounts),
        });
        // A refusal says by itself which counter it was.
        let refused = match &found {
            Err(error) => match error.over_limit() {
                Some(refusal) => usize::from(refusal.counter().is_some()),
                // A group that is offline refuses the first that it is asked for. Which that is, the
                // set decides by where charges were refused lately.
                None => usize::from(error.is_offline() && error.requested() == bytes[1]),
            },
            Ok(_) => 0,
        };
        if found.is_ok() {
            let further_fits = self.twin.admits(group, 1, bytes[1], None).is_ok();
            assert!(further_fits, "the further counter has no room");
        }
        if let Some([memory, further]) = self.agree(asks[refused], found) {
            self.keep(memory, group, 0, bytes[0]);
            self.keep(further, group, 1, bytes[1]);
        }
    }

    /// Takes a charge to the thread and back.
    pub(super) fn with<R: Send + 'static>(
        &mut self,
        op: &Op,
        at: usize,
        job: impl FnOnce(&mut Charge) -> R + Send + 'static,
    ) -> R {
        let (key, mut charge) = self.charges.swap_remove(at);
        let last = self.charges.len();
        let (charge, result) = self.actor(op).run(move || {
            let result = job(&mut charge);
            (charge, result)
        });
        self.charges.push((key, charge));
        self.charges.swap(at, last);
        result
    }

    fn step_part(&mut self, op: &Op, at: usize) {
        let key = self.charges[at].0;
        let Held {
            group,
            counter,
            bytes: held,
        } = self.twin.of(key);
        match op.1 {
            What::Grow(_, verb, size) => {
                let bytes = self.bytes(group, counter, size);
                self.grow(op, at, verb, bytes, move |charge, verb| match verb {
                    Verb::Try => charge.try_grow(Bytes(bytes)),
                    Verb::Force => {
                        charge.force_grow(Bytes(bytes));
                        Ok(())
                    }
                    _ => charge.grow(Bytes(bytes)),
                });
            }
            What::Resize(_, verb, size) => {
                let bytes = self.bytes(group, counter, size);
                if bytes > held {
                    self.grow(op, at, verb, bytes - held, move |charge, verb| match verb {
                        Verb::Try => charge.try_resize(Bytes(bytes)),
                        Verb::Force => {
                            charge.force_resize(Bytes(bytes));
                            Ok(())
                        }
                        _ => charge.resize(Bytes(bytes)),
                    });
                } else {
                    let found = self.with(op, at, move |charge| charge.resize(Bytes(bytes)));
                    assert!(found.is_ok(), "{found:?}");
                    self.twin.set(key, bytes);
                }
            }
            What::Shrink(_, bytes) => {
                let found = self.with(op, at, move |charge| charge.shrink(Bytes(bytes)));
                assert_eq!(found, bytes.min(held));
                self.twin.set(key, held - found);
            }
            What::Split(..) | What::Take(_) if self.is_full() => {}
            What::Split(_, bytes) => {
                match self.with(op, at, move |charge| charge.split(Bytes(bytes))) {
                    Ok(part) => {
                        self.twin.set(key, held.checked_sub(bytes).expect("enough"));
                        self.keep(part, group, counter, bytes);
                    }
                    Err(refused) => {
                        assert!(refused.bytes == held && bytes > held, "{refused}");
                    }
                }
            }
            What::Take(_) => {
                let all = self.with(op, at, Charge::take);
                self.twin.set(key, 0);
                self.keep(all, group, counter, held);
            }
            What::Transfer(_, to) => self.transfer(op, at, to),
            What::Drop(_) => {
                let (key, charge) = self.charges.swap_remove(at);
                self.twin.release(key);
                self.actor(op).run(move || drop(charge));
            }
            What::CentralGive(_) => {
                if counter > 0 {
                    return;
                }
                let (key, charge) = self.charges.swap_remove(at);
                let group = self.twin.of(key).group;
                let walks = self.shared.is_quiet()
                    && self.twin.levels(group).any(|level| {
                        let of = &self.twin.groups[level];
                        let limit = of.high.min(of.max[0]);
                        !self.twin.is_observed(level) && self.twin.live(level, 0) > limit
                    });
                self.twin.release(key);
                self.keeps = true;
                self.central = true;
                // What is another group's goes to that one.
                let number = held as usize % self.handles.len();
                let other = self.handles[number].first();
                let other = other.filter(|_| held % 3 == 1).cloned();
                let [before, after] = self.actor(op).run(move || {
                    let group = other.unwrap_or_else(|| charge.group());
                    let stock = CentralStock::of(&group);
                    let before = stock.credit();
                    stock.give_back(charge);
                    [before, stock.credit()]
                });
                assert!(
                    !walks || after <= before,
                    "above a limit a central stock has {after} bytes, and {before} before"
                );
            }
            _ => unreachable!("an operation on a charge"),
        }
    }

    /// What a group has been charged ends at once, as with the end of its work.
    fn drop_all(&mut self, op: &Op, group: u8) {
        let Some(group) = self.group(group) else {
            return;
        };
        let all = std::mem::take(&mut self.charges);
        let is_of = |(key, _): &(Key, Charge)| self.twin.of(*key).group == group;
        let (gone, left): (Vec<_>, Vec<_>) = all.into_iter().partition(is_of);
        self.charges = left;
        for (key, _) in &gone {
            self.twin.release(*key);
        }
        self.actor(op).run(move || drop(gone));
    }

    fn grow(
        &mut self,
        op: &Op,
        at: usize,
        verb: Verb,
        bytes: u64,
        job: impl FnOnce(&mut Charge, Verb) -> Result<(), ChargeError> + Send + 'static,
    ) {
        let verb = three(verb);
        if verb == Verb::Force && bytes > FORCED_MAX {
            return;
        }
        let key = self.charges[at].0;
        let Held {
            group,
            counter,
            bytes: held,
        } = self.twin.of(key);
        let ask = self.ask(group, counter, verb, bytes);
        let found = self.with(op, at, move |charge| job(charge, verb));
        if bytes == 0 {
            // By nothing a charge may grow even where its group is offline.
            assert!(found.is_ok(), "{found:?}");
        } else if self.agree(ask, found).is_some() {
            self.twin.set(key, held + bytes);
        }
    }

    fn merge(&mut self, op: &Op, into: u8, from: u8) {
        let (Some(at), Some(from)) = (self.pick(into), self.pick(from)) else {
            return;
        };
        if at == from {
            return;
        }
        let into = self.charges[at].0;
        let (gone, part) = self.charges.remove(from);
        let at = if at > from { at - 1 } else { at };
        let (to, of) = (self.twin.of(into), self.twin.of(gone));
        let found = self.with(op, at, move |charge| {
            charge.merge(part).map_err(MergeError::into_charge)
        });
        let same = (to.group, to.counter) == (of.group, of.counter);
        match found {
            Ok(()) if same => {
                self.twin.release(gone);
                self.twin.set(into, to.bytes + of.bytes);
            }
            Err(part) if !same => self.charges.push((gone, part)),
            found => panic!("{found:?}, one group: {same}"),
        }
    }

    fn transfer(&mut self, op: &Op, at: usize, to: u8) {
        let Some(to) = self.group(to) else { return };
        let key = self.charges[at].0;
        let Held {
            group,
            counter,
            bytes,
        } = self.twin.of(key);
        let target = self.handle(to).clone();
        let found = self.with(op, at, move |charge| charge.transfer(&target));
        if to == group {
            assert!(found.is_ok(), "{found:?}");
            return;
        }
        let top = self.twin.common(group, to);
        let mut ask = self.ask(to, counter, Verb::Plain, bytes);
        ask.top = Some(top);
        if self.agree(ask, found).is_some() {
            let held = self.twin.release(key);
            self.twin.held.insert(key, Held { group: to, ..held });
        }
    }

    fn raw_charge(&mut self, op: &Op, group: u8, verb: Verb, size: Size) {
        let room = self.raws.len() < CHARGES_MAX;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        if verb == Verb::Force && bytes > FORCED_MAX {
            return;
        }
        let ask = self.ask(group, 0, verb, bytes);
        let found = self.on(op, group, move |group| raw_charge(group, verb, bytes));
        if self.agree(ask, found).is_some() && bytes > 0 {
            let key = self.twin.hold(group, 0, bytes);
            self.raws.push(key);
        }
    }

    fn raw_uncharge(&mut self, op: &Op, number: u8, bytes: u64) {
        if self.raws.is_empty() {
            return;
        }
        let at = usize::from(number) % self.raws.len();
        let key = self.raws[at];
        let held = self.twin.of(key);
        if self.handles[held.group].is_empty() {
            return;
        }
        let bytes = bytes.min(held.bytes);
        self.on(op, held.group, move |group| {
            group.raw().uncharge(Bytes(bytes))
        });
        if bytes == held.bytes {
            self.raws.swap_remove(at);
            self.twin.release(key);
        } else {
            self.twin.set(key, held.bytes - bytes);
        }
    }

    fn central_take(&mut self, op: &Op, group: u8, size: Size) {
        let Some(group) = self.group(group).filter(|_| !self.is_full()) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        self.keeps = true;
        let expected = self.twin.admits(group, 0, bytes, None);
        let before = self.observed_events(group);
        let found = self.on(op, group, move |group| {
            CentralStock::of(group).charge_if_room(Bytes(bytes))
        });
        if let Some(charge) = found {
            assert_eq!(expected, Ok(()), "made of a central stock");
            self.pass_those_in_line(bytes);
            // It walks, also where a stock had credit before the limits only counted.
            for (level, before) in before {
                let is_above = self.twin.live(level, 0) + bytes > self.twin.groups[level].max[0];
                let now = self.handles[level][0].events().local().get(Event::Observed);
                assert!(
                    !is_above || bytes == 0 || now > before,
                    "{bytes} bytes above the max of {} are not counted",
                    self.twin.path(level)
                );
            }
            self.keep(charge, group, 0, bytes);
        }
    }

    /// The levels of a group whose limits only count, with what they have counted.
    fn observed_events(&self, group: usize) -> Vec<(usize, u64)> {
        let observed = self.twin.levels(group).filter(|&level| {
            self.twin.is_observed(level)
                && self.twin.groups[level].max[0] < memcg::PageCounter::USAGE_MAX
        });
        observed
            .filter_map(|level| {
                let events = self.handles[level].first()?.events();
                Some((level, events.local().get(Event::Observed)))
            })
            .collect()
    }

    /// A key's bytes, if it holds some.
    pub(super) fn held(&self, key: Key) -> u64 {
        self.twin.held.get(&key).map_or(0, |held| held.bytes)
    }
}
