//! Charges that wait for room: a line at each level that has refused, and how its waiters are
//! served.
//!
//! A waiter holds nothing but a handle on its group. As long as a line at a level has waiters,
//! nothing below the level has a stock, so each byte given back is in the level's usage at once,
//! and the thread that gives it back serves the line: it charges for the first waiter as that one's
//! own walk would, then wakes it with the charge made. So no waiter is woken in vain, and no charge
//! takes the room in between. The most important goes first, of these the oldest.
//!
//! One lock for each tree protects all of it. Edges: E25 (a waiter/freed bytes), E27 (a
//! waiter/offline).

use std::ptr;
use std::task::Waker;

use smallvec::SmallVec;

use crate::counter::by_number::take_out;
use crate::counter::central;
use crate::counter::cover;
use crate::counter::handle::{Handle, WeakCounter};
use crate::counter::level::ChargeMode;
use crate::counter::object::tree::Tree;
use crate::counter::object::{Counter, CounterRef};
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::SlowPath;
use crate::counter::spare_word::CoverSide;
use crate::counter::watch::{OBSERVED, WAITING};
use crate::error::USAGE_MAX;
use crate::hierarchy::service::{self, WAITS};
use crate::hierarchy::{group_object, group_tree, importance};
use crate::pressure::barging::{self, PATIENCE, first};
use crate::pressure::high::is_any_above;
use crate::pressure::wakers::Wakers;
use crate::reclaim::registrations;
use crate::state::waiting::{Decision, PlaceHolder, PlaceInLine, WINDOW, Waiter, Waiting};
use crate::sync::lock::Lock;
use crate::sync::{Ordering, fence_after_exchange, model_failed};
use crate::thread::block::Block;
use crate::thread::context;
use crate::thread::foreign::Foreign;

/// A waiter's place in line. Dropped, it is given up, and so is what was charged for it.
pub(crate) struct Ticket {
    pub(crate) bytes: u64,
    number: u64,
    /// The decision has been returned: there is nothing left to give up.
    over: bool,
    pub(crate) group: Handle,
}

/// What a waiter finds when it looks.
enum WaiterState {
    Decided(Decision),
    /// In the line of this level.
    Waits(CounterRef),
    /// The end of the wait would wake another waker, or none.
    OtherWaker,
}

/// A group with a waiter, or a level of its path, as the waiter has it.
#[allow(unsafe_code)]
fn kept_by_waiter(counter: &Counter) -> CounterRef {
    // SAFETY: the ticket of the waiter has a handle on its group, and outlives the waiter; what a
    // decision names is used while the group is kept.
    unsafe { CounterRef::new(counter) }
}

fn table(of: &Tree) -> &Lock<Waiting> {
    &group_tree::shared(of).waiting
}

/// Bytes that a charge finds before it at a level that refuses it: those of the first in line.
pub(crate) fn ahead(level: &Counter) -> u64 {
    if level.limits.watched.is_for(WAITING) {
        first(level).bytes()
    } else {
        0
    }
}

/// The same for a charge of this group. One that is more important than the first in line goes
/// before it, so it has none ahead.
pub(crate) fn ahead_of(group: &Counter, level: &Counter) -> u64 {
    if goes_first(group, level) {
        0
    } else {
        ahead(level)
    }
}

/// Charges wait at the level, and one of this group would go before all of them.
pub(crate) fn goes_first(group: &Counter, level: &Counter) -> bool {
    let before = |place: PlaceInLine| {
        place != PlaceInLine::NONE && PlaceInLine::new(importance::of(group), u64::MAX >> 8) < place
    };
    level.limits.watched.is_for(WAITING) && before(first(level).place())
}

/// The group of the first in line, and the bytes that it waits for.
pub(crate) fn first_at(level: &Counter) -> Option<(Handle, u64)> {
    if !level.limits.watched.is_for(WAITING) {
        return None;
    }
    let _path = SlowPath::enter();
    let waiting = table(level.tree()).lock();
    let first = waiting.lines.get(&level.key())?.places.first()?.ticket();
    let waiter = waiting.waiters.get(&first)?;
    Some((Handle::pin(&waiter.group), waiter.bytes))
}

pub(crate) fn length(level: &Counter) -> usize {
    if !level.limits.watched.is_for(WAITING) {
        return 0;
    }
    let _path = SlowPath::enter();
    table(level.tree())
        .lock()
        .lines
        .get(&level.key())
        .map_or(0, |line| line.places.len())
}

/// The levels from this group up in whose lines charges wait. It takes the lock of the lines in any
/// case: a charge that comes into line afterwards finds what this thread has done before.
pub(crate) fn with_line(group: &Counter) -> SmallVec<[Handle; 2]> {
    let _path = SlowPath::enter();
    let waiting = table(group.tree()).lock();
    let has_line = |level: &&Counter| waiting.lines.contains_key(&level.key());
    group
        .path_to_root()
        .filter(has_line)
        .map(Handle::pin)
        .collect()
}

fn walk_for<'a>(
    (group, n): (&'a Counter, u64),
    block: Option<&Block>,
    place: PlaceInLine,
    walk: impl FnOnce() -> Result<(), LevelRefusal<'a>>,
) -> Result<(), LevelRefusal<'a>> {
    // In transit, so that a thread that lowers a max waits for the walk (E5); pairs with
    // `Tree::wait_transits`.
    let alone = block.filter(|block| block.transit.is_over());
    let transit = alone.map(|block| {
        block
            .transit
            .enter(group.tree().number, group.incarnation().fenced)
    });
    let walked = context::for_another(place.number(), walk);
    drop(transit);
    walked?;
    // The thread charges for somebody else. Its round of reclaim must not count these bytes as
    // taken by itself, so only the audit hears of them.
    // Mutation: what-a-line-gives-is-not-audited
    if group.tree().config.audit {
        group.usage.audit_shared.fetch_add(n, Ordering::Relaxed);
    }
    Ok(())
}

// === impl Waiting: under the lock ===

impl Waiting {
    fn enter_line(&mut self, ticket: u64, level: &Counter) {
        // What has barged so far has passed the one that was first until now.
        self.count_barged(level, first(level).budget());
        let Some(waiter) = self.waiters.get_mut(&ticket) else {
            return;
        };
        let line = self.lines.entry(level.key()).or_default();
        line.places.insert(waiter.place);
        self.show_first(level);
        // E25: in line, then the mark, then a look at usage. Pairs with `look::fell`.
        level.limits.watched.set(WAITING);
    }

    fn leave_line(&mut self, ticket: u64, level: &Counter) {
        if let Some(line) = self.lines.get_mut(&level.key()) {
            if let Some(waiter) = self.waiters.get(&ticket) {
                line.places.remove(&waiter.place);
            }
            self.show_first(level);
        }
    }

    /// Publishes who is first in line, after any change of the line. Where it is another one, the
    /// one that was keeps what is left of its barging budget, and goes on with that in another line
    /// or at its next turn: to begin anew each time would let others pass it for ever.
    fn show_first(&mut self, level: &Counter) {
        let Some(line) = self.lines.get_mut(&level.key()) else {
            return;
        };
        first(level).show_length(line.places.len());
        let now = line
            .places
            .first()
            .and_then(|place| self.waiters.get(&place.ticket()));
        if let Some(waiter) = now
            && waiter.place.ticket() == line.first.ticket()
        {
            let place = waiter.place;
            line.first = place;
            first(level).show_place(place);
            // Still the same one. But an older charge may have come, which lets others pass it only
            // as long as it has patience.
            let patience = self.patience_behind(place, level);
            if let Some(line) = self
                .lines
                .get_mut(&level.key())
                .filter(|line| line.shown > patience)
            {
                line.shown = patience;
                first(level).change_budget(|left| Some(left.min(patience)));
            }
            return;
        }
        // A walk that has seen the mark and finds an empty line is admitted.
        let (place, bytes, budget) = now.map_or((PlaceInLine::NONE, 0, u64::MAX), |waiter| {
            (waiter.place, waiter.bytes, waiter.budget)
        });
        self.count_barged(level, first(level).budget());
        let budget = budget.min(self.patience_behind(place, level));
        // The exchange returns what was left: walks may have taken some since the look above.
        self.count_barged(level, first(level).show(place, bytes, budget));
        if let Some(line) = self.lines.get_mut(&level.key()) {
            line.first = place;
            line.shown = budget;
        }
        if place == PlaceInLine::NONE {
            take_out(&mut self.lines, level.key());
            level.limits.watched.clear(WAITING);
        }
    }

    /// Changes the number of bytes of a waiter, which keeps its place. False: the wait is decided.
    fn resize(&mut self, ticket: u64, bytes: u64) -> bool {
        let Some(waiter) = self
            .waiters
            .get_mut(&ticket)
            .filter(|waiter| waiter.decided.is_none())
        else {
            return false;
        };
        let group = waiter.group;
        let level = waiter.level;
        let before = waiter.may_ask_for();
        waiter.bytes = bytes;
        let after = waiter.may_ask_for();
        // Both are in bytes that it asks for. They only shrink here: one that asks for more and
        // less in turn would never be passed.
        waiter.budget = waiter.budget.min(bytes);
        waiter.patience = waiter.patience.min(bytes.saturating_mul(PATIENCE));
        for above in group.path_to_root() {
            self.below.remove(&(above.key(), before, ticket));
            self.below.insert((above.key(), after, ticket));
        }
        let Some(line) = self.lines.get_mut(&level.key()) else {
            return false;
        };
        if line.first.ticket() == ticket {
            first(&level).show_bytes(bytes);
            line.shown = line.shown.min(bytes);
        }
        // E25: a thread that gives bytes back serves the level under this lock: before, and usage
        // has fallen, or later, for the new number. Pairs with `service::schedule`.
        // Mutation: resized-in-line-without-a-look
        if cover::rise_at(&group, bytes, &level) <= level.room(level.admits()) {
            service::schedule(&level);
        }
        true
    }

    fn decide(&mut self, ticket: u64, decision: Decision, wakers: &mut Wakers) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else {
            return;
        };
        waiter.decided = Some(decision);
        wakers.extend(waiter.waker.take());
        let level = waiter.level;
        self.leave_line(ticket, &level);
        self.forget(ticket);
    }

    /// What a waiter finds. A decision is returned once.
    fn look(
        &mut self,
        ticket: u64,
        is_known: impl Fn(&Foreign<Waker>) -> bool,
    ) -> Option<WaiterState> {
        let waiter = self.waiters.get(&ticket)?;
        if waiter.decided.is_some() {
            return take_out(&mut self.waiters, ticket)?
                .decided
                .map(WaiterState::Decided);
        }
        Some(if waiter.waker.as_ref().is_some_and(is_known) {
            WaiterState::Waits(waiter.level)
        } else {
            WaiterState::OtherWaker
        })
    }

    /// The waiter waits no longer. It stays in the table until it has looked at its decision.
    fn forget(&mut self, ticket: u64) {
        let Some(waiter) = self.waiters.get(&ticket) else {
            return;
        };
        let group = waiter.group;
        // Mutation: sizes-of-waits-stay
        for level in group.path_to_root() {
            self.below
                .remove(&(level.key(), waiter.may_ask_for(), ticket));
        }
        if let Some(waits) = self.groups.get_mut(&group.key()) {
            *waits -= 1;
            // Mutation: one-of-two-waits-takes-the-mark-of-both
            if *waits == 0 {
                take_out(&mut self.groups, group.key());
                group.limits.watched.clear(WAITS);
            }
        }
    }

    /// Charges for the waiters in line at `level`, the first and then those that may barge. A
    /// waiter that is refused elsewhere moves there.
    fn serve(&mut self, level: &Counter, service: &mut Service<'_>) {
        while let Some(first) = self.first_to_serve(level) {
            if !self.try_serve(first, level, service) {
                break;
            }
        }
        let Some(line) = self.lines.get(&level.key()) else {
            return;
        };
        // A copy: whoever is served, or moves to another line, leaves this one.
        let behind: SmallVec<[PlaceInLine; WINDOW]> =
            line.places.iter().skip(1).take(WINDOW).copied().collect();
        for place in behind {
            let ticket = place.ticket();
            let needs = |waiter: &Waiter| cover::rise_at(&waiter.group, waiter.bytes, level);
            let bytes = self.waiters.get(&ticket).map_or(u64::MAX, needs);
            let room = level.room(level.admits());
            let budget = first(level).budget();
            // Nobody else can be let past, so the rest of the window is not looked at.
            if room == 0 || budget == 0 {
                break;
            }
            // Nor before an older one whose patience is at its end, however small it is.
            if bytes <= room.min(budget) && self.tries_patience(place, level).is_none() {
                self.try_serve(ticket, level, service);
            }
        }
    }

    /// The charge that is first in line. The oldest one is, once more important ones have taken
    /// before it what they may.
    fn first_to_serve(&mut self, level: &Counter) -> Option<u64> {
        let first = *self.lines.get(&level.key())?.places.first()?;
        self.count_barged(level, group_object::state(level).first_in_line.budget());
        // Mutation: the-oldest-in-line-is-passed-for-ever
        let tried = self.tries_patience(first, level);
        let Some(oldest) = tried else {
            return Some(first.ticket());
        };
        self.go_by_age(oldest, level);
        Some(oldest.ticket())
    }

    /// From here on a charge in line at `level` goes before all that have come later.
    fn go_by_age(&mut self, place: PlaceInLine, level: &Counter) {
        let (Some(line), Some(waiter)) = (
            self.lines.get_mut(&level.key()),
            self.waiters.get_mut(&place.ticket()),
        ) else {
            return;
        };
        waiter.place = place.by_age();
        line.places.remove(&place);
        line.places.insert(waiter.place);
        self.show_first(level);
    }

    /// Before a charge for a waiter: at each other level of its path the oldest in line goes first,
    /// where that has let enough others go before.
    fn make_way(&mut self, place: PlaceInLine, group: &Counter, level: &Counter) {
        // One that goes by its age passes nobody for its importance.
        if place.next_importance().is_none() {
            return;
        }
        for other in group.path_to_root().filter(|&other| !ptr::eq(other, level)) {
            if other.limits.watched.is_for(WAITING)
                && let Some(oldest) = self.tries_patience(place, other)
            {
                self.go_by_age(oldest, other);
            }
        }
    }

    /// The tickets of those that wait below `level` for more than `most`, in whatever line. They
    /// cost a look-up, and those that are found.
    fn below(&self, level: &Counter, most: Option<u64>) -> Vec<u64> {
        let key = level.key();
        let Some(from) = most.map_or(Some(0), |most| most.checked_add(1)) else {
            return Vec::new();
        };
        let found = self.below.range((key, from, 0)..=(key, u64::MAX, u64::MAX));
        found.map(|&(.., ticket)| ticket).collect()
    }

    /// Ends the waits below `level` that it can never serve, wherever they are in line. A queue
    /// whose first charge can still be served is woken, to look at those behind it.
    fn refuse_too_large(&mut self, level: &Counter, wakers: &mut Wakers) {
        let most = self.falls.lasting(level);
        for ticket in self.below(level, Some(most)) {
            match self.waiters.get_mut(&ticket) {
                Some(waiter) if waiter.bytes <= most => wakers.extend(waiter.waker.take()),
                // It names the max as it is, not the one that it had a while ago.
                _ => {
                    let max = level.admits().min(most);
                    self.end(ticket, Decision::Full(kept_by_waiter(level), max), wakers);
                }
            }
        }
    }

    /// Ends a wait in the middle of a line.
    fn end(&mut self, ticket: u64, decision: Decision, wakers: &mut Wakers) {
        let Some(at) = self.waiters.get(&ticket).map(|waiter| waiter.level) else {
            return;
        };
        self.decide(ticket, decision, wakers);
        // It may have been the first, and the next one may fit where it did not.
        service::schedule(&at);
    }

    /// False: there is no room for it at `level`, where it goes on waiting.
    fn try_serve(&mut self, ticket: u64, level: &Counter, service: &mut Service<'_>) -> bool {
        let Some(&Waiter {
            group,
            bytes,
            place,
            ..
        }) = self.waiters.get(&ticket)
        else {
            return false;
        };
        // No walk that this level would refuse: most lines are served until one does. That of a
        // group that covers would also schedule the lines of its path, this one among them, without
        // end. A walk that another level refuses moves the charge there. What comes back while this
        // looks serves the level again.
        let is_full = |at: &&Counter| cover::rise_at(&group, bytes, at) > at.room(at.admits());
        if group
            .path_to_root()
            .find(is_full)
            .is_some_and(|full| ptr::eq(full, level))
        {
            return false;
        }
        self.make_way(place, &group, level);
        // Never from a stock: none is open below.
        let walk =
            || cover::walk(&group, bytes, ChargeMode::Admit, CoverSide::Reserved).map(|_| ());
        match walk_for((&group, bytes), service.block, place, walk) {
            Ok(()) => {
                // Mutation: a-charge-passes-the-oldest-uncounted
                self.count_passed(place, &group, bytes);
                self.decide(ticket, Decision::Granted, service.wakers);
            }
            Err(refusal) if ptr::eq(refusal.level, level) => return false,
            Err(refusal) => {
                let other = refusal.level;
                self.leave_line(ticket, level);
                if let Some(waiter) = self.waiters.get_mut(&ticket) {
                    waiter.level = kept_by_waiter(other);
                    // No reclaimer has been asked there for this charge: its thread is woken to
                    // ask.
                    // Mutation: shuttle-a-moved-waiter-is-not-woken
                    if registrations::any_below(other) {
                        // Mutation: moved-to-another-line-and-not-woken
                        service.wakers.extend(waiter.waker.take());
                    }
                }
                self.enter_line(ticket, other);
                // The waiter keeps the level, and may leave with its group once the lock is free.
                // Mutation: a-level-that-a-waiter-moves-to-is-not-kept
                service.moved.push(Handle::pin(other));
            }
        }
        true
    }
}

struct Service<'a> {
    block: Option<&'a Block>,
    wakers: &'a mut Wakers,
    /// Levels whose line a waiter has moved to.
    moved: SmallVec<[Handle; 2]>,
}

/// Serves the waiters at `level`. The caller holds no lock.
pub(crate) fn serve(level: &Counter, block: Option<&Block>, wakers: &mut Wakers) {
    let tree = level.tree();
    if level.limits.watched.is_for(WAITS) && level.state().is_offline() {
        expel(
            level,
            Decision::Offline,
            |group| ptr::eq(group, level),
            wakers,
        );
    }
    if !level.limits.watched.is_for(WAITING) {
        return;
    }
    let mut service = Service {
        block,
        wakers,
        moved: SmallVec::new(),
    };
    table(tree).lock().serve(level, &mut service);
    for other in service.moved {
        // Credit that hides in stocks below it comes up, and it is served in its turn.
        // Mutation: a-charge-that-moves-to-another-line-leaves-stocks-open
        tree.close_below(&other);
        service::schedule(&other);
    }
}

/// Ends the wait of each group below `top` that is meant. The others below it are looked at, and no
/// other ones.
pub(crate) fn expel(
    top: &Counter,
    decision: Decision,
    is_meant: impl Fn(&Counter) -> bool,
    wakers: &mut Wakers,
) {
    let mut waiting = table(top.tree()).lock();
    for ticket in waiting.below(top, None) {
        let group = waiting.waiters.get(&ticket).map(|waiter| waiter.group);
        if group.is_some_and(|group| is_meant(&group)) {
            waiting.end(ticket, decision, wakers);
        }
    }
}

/// The level of the group's path whose max can never admit so many bytes, if there is one, with
/// that max as it is now. One that moves by itself counts once it has stood for a while. Takes a
/// lock where a max does not admit them now.
pub(crate) fn in_the_way(group: &Counter, bytes: u64) -> Option<(&Counter, u64)> {
    let is_above = |most: u64| bytes > most.min(USAGE_MAX);
    if !group.path_to_root().any(|level| is_above(level.admits())) {
        return None;
    }
    let _path = SlowPath::enter();
    let waiting = table(group.tree()).lock();
    group
        .path_to_root()
        .map(|level| (level, waiting.falls.lasting(level)))
        .find(|&(_, most)| is_above(most))
        // What it has had lately ends the wait. A refusal names what it has now, unless that has
        // risen in this moment.
        .map(|(level, most)| (level, level.admits().min(most)))
}

/// The max of `level` has been set, or has stood for a while: the waits below that it can never
/// serve end. The caller holds no lock.
pub(crate) fn end_vain_waits(level: &Counter) {
    if !level.is_memory() {
        return;
    }
    let mut wakers = Wakers::default();
    let path = SlowPath::enter();
    // After the max, under the lock: a charge that goes into line later looks at the max then.
    // Mutation: a-max-that-falls-ends-no-wait
    table(level.tree())
        .lock()
        .refuse_too_large(level, &mut wakers);
    drop(path);
    wakers.wake();
}

/// Maxes that move by themselves have stood for a while since they fell: the waits that they can
/// never serve end.
pub(crate) fn end_waits_of_stood(tree: &Tree) {
    let stood = {
        let _path = SlowPath::enter();
        table(tree).lock().falls.expire()
    };
    for level in stood.into_iter().filter_map(WeakCounter::try_pin) {
        end_vain_waits(&level);
    }
}

/// The max of `group`, and those below that follow it, move by themselves no more: they count as
/// they are, and the waits that they can never serve end.
pub(crate) fn end_waits_of_moved(group: &Counter) {
    let levels = {
        let _path = SlowPath::enter();
        table(group.tree()).lock().falls.levels()
    };
    // Their handles are dropped without the lock.
    for level in levels.into_iter().filter_map(WeakCounter::try_pin) {
        if level.path_to_root().any(|above| ptr::eq(above, group)) {
            let path = SlowPath::enter();
            table(group.tree()).lock().falls.forget(&level);
            drop(path);
            end_vain_waits(&level);
        }
    }
}

/// Waits in line at `level`, which has refused `bytes`. The end of the wait wakes the waker. The
/// caller keeps the group meanwhile.
pub(crate) fn enqueue(
    group: &Counter,
    bytes: u64,
    level: &Counter,
    holder: PlaceHolder,
    waker: Option<Foreign<Waker>>,
) -> Ticket {
    let kept = Handle::pin(group);
    let _path = SlowPath::enter();
    let tree = group.tree();
    let mut waiting = table(tree).lock();
    waiting.tickets += 1;
    let number = waiting.tickets;
    let place = PlaceInLine::new(importance::of(group), number);
    let patience = bytes.saturating_mul(PATIENCE);
    let of = kept_by_waiter(group);
    let at = kept_by_waiter(level);
    let waiter = Waiter {
        group: of,
        bytes,
        level: at,
        holder,
        budget: bytes,
        place,
        patience,
        decided: None,
        waker,
    };
    let may_ask_for = waiter.may_ask_for();
    waiting.waiters.insert(number, waiter);
    for level in group.path_to_root() {
        waiting.below.insert((level.key(), may_ask_for, number));
    }
    *waiting.groups.entry(group.key()).or_default() += 1;
    // E27: marked, then a look whether the group is offline. Pairs with `State::set_offline`.
    group.limits.watched.set(WAITS);
    waiting.enter_line(number, level);
    drop(waiting);
    // From here on what is given back below goes up the tree.
    // Mutation: in-line-while-stocks-stay-open
    tree.close_below(level);
    // E25, E27: after the marks. Pairs with `look::find` and `State::set_offline`.
    // Mutation: e25-in-line-without-a-fence
    fence_after_exchange();
    // Mutation: e27-in-line-without-a-look-for-offline
    if group.state().is_offline() {
        service::schedule(group);
    }
    // E25: no thread has scheduled the level for what came back before the mark. For what comes
    // back later one does. A charge that finds too little room has come before that. Pairs with the
    // look in `look::find`.
    // Mutation: e25-in-line-without-a-look
    if cover::rise_at(group, bytes, level) <= level.room(level.admits()) {
        service::schedule(level);
    }
    // A max that was lowered before the charge was in the table.
    // Mutation: in-line-for-more-than-a-max-of-the-path
    if let Some((level, _)) = in_the_way(group, bytes) {
        end_vain_waits(level);
    }
    Ticket {
        bytes,
        number,
        over: false,
        group: kept,
    }
}

impl Ticket {
    /// End of the wait, once. Until it ends, its end wakes `waker`. `Err`: the level in whose line
    /// it waits.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Result<Decision, CounterRef> {
        let is_known = |known: &Foreign<Waker>| known.get().will_wake(waker);
        let mut found = self.with(|waiting| waiting.look(self.number, is_known));
        if let Some(WaiterState::OtherWaker) = found {
            // A waker is foreign code: the thread clones and drops it without the lock.
            let mut old = Some(Foreign::new(waker.clone()));
            found = self.with(|waiting| {
                let waiter = waiting.waiters.get_mut(&self.number)?;
                if waiter.decided.is_none() {
                    // Mutation: a-waker-is-not-exchanged
                    std::mem::swap(&mut waiter.waker, &mut old);
                }
                waiting.look(self.number, |_| true)
            });
        }
        match found {
            Some(WaiterState::Decided(decision)) => {
                self.over = true;
                Ok(decision)
            }
            Some(WaiterState::Waits(level)) => Err(level),
            _ => Err(kept_by_waiter(&self.group)),
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut Waiting) -> R) -> R {
        let _path = SlowPath::enter();
        work(&mut table(self.group.tree()).lock())
    }

    /// The level in whose line it waits; its own group once it is decided.
    pub(crate) fn level(&self) -> CounterRef {
        let level =
            self.with(|waiting| waiting.waiters.get(&self.number).map(|waiter| waiter.level));
        level.unwrap_or(kept_by_waiter(&self.group))
    }

    /// A level of the group's path, which the ticket keeps.
    pub(crate) fn kept(&self, level: &Counter) -> CounterRef {
        kept_by_waiter(self.group.level(level))
    }

    /// True if `bytes` of the group that come back now would serve this waiter and no other, and
    /// fit at once: no other charge waits on its path, and no level is above a limit, or only
    /// counts. Others may then barge past this waiter anew, as past the next one. The call only
    /// loads: a charge that comes into line meanwhile has come later.
    pub(crate) fn is_served_by(&self, bytes: u64) -> bool {
        let group = &*self.group;
        let goes_up = context::in_reclaim()
            || group.poisoned.load(Ordering::Relaxed)
            || central::is_to_walk(group);
        if bytes < self.bytes || goes_up || group.state().is_offline() {
            return false;
        }
        let mut place = None;
        for level in group.path_to_root() {
            let watched = level.limits.watched.bits();
            // Mutation: a-charge-is-handed-over-past-others
            if watched & OBSERVED != 0
                || (watched & WAITING != 0 && !first(level).is_alone(self.number))
            {
                return false;
            }
            if watched & WAITING != 0 {
                place = Some(first(level));
            }
        }
        let Some(place) = place else { return false };
        barging::renew(place, self.bytes);
        true
    }

    /// Takes the decision of the wait, and the level in whose line it was. `None`: there is none
    /// yet, or a delay above a high follows. Only one call gets the decision, as of
    /// [`poll`](Self::poll).
    pub(crate) fn take_decided(&mut self) -> Option<(Decision, CounterRef)> {
        let group = &*self.group;
        let is_over = |decision: &Decision| {
            !matches!(decision, Decision::Granted) || !is_any_above(group, self.bytes)
        };
        let left = self.with(|waiting| {
            let waiter = waiting.waiters.get(&self.number)?;
            waiter
                .decided
                .as_ref()
                .filter(|decision| is_over(decision))?;
            take_out(&mut waiting.waiters, self.number)
        })?;
        self.over = true;
        Some((left.decided?, left.level))
    }

    /// Changes the number of bytes to wait for, at the same place in line. False: the wait is
    /// decided.
    pub(crate) fn resize(&mut self, bytes: u64) -> bool {
        let resized = self.with(|waiting| waiting.resize(self.number, bytes));
        if resized {
            self.bytes = bytes;
            if let Some((level, _)) = in_the_way(&self.group, bytes) {
                end_vain_waits(level);
            }
        }
        resized
    }

    /// Out of the line. What was decided in time holds.
    pub(crate) fn leave(&mut self) -> Option<Decision> {
        if std::mem::replace(&mut self.over, true) {
            return None;
        }
        // The thread drops the waiter's waker without the lock.
        let left = self.with(|waiting| {
            let waiter = waiting.waiters.get(&self.number)?;
            let level = waiter.level;
            let in_line = waiter.decided.is_none();
            if in_line {
                // Mutation: a-waiter-that-leaves-stays-in-its-line
                waiting.leave_line(self.number, &level);
                // Mutation: a-wait-that-is-left-keeps-its-mark
                waiting.forget(self.number);
            }
            let waiter = take_out(&mut waiting.waiters, self.number)?;
            if in_line {
                // The next waiter may be first now, or fit.
                if waiting.lines.contains_key(&level.key()) {
                    // Mutation: a-waiter-leaves-and-schedules-no-level
                    service::schedule(&level);
                }
            }
            Some(waiter)
        });
        left.and_then(|waiter| waiter.decided)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        if let Some(Decision::Granted) = self.leave() {
            // Mutation: a-ticket-is-given-up-with-its-charge
            self.group.give_back(self.bytes);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::future::Future;
    use std::task::{Context, Waker};

    use super::table;
    use crate::{Limits, Runtime};

    /// A group that ends, and a max that falls, find the waits that they end and look at no others,
    /// however many there are.
    #[test]
    fn waits_are_found_by_their_groups_and_sizes() {
        let runtime = Runtime::builder().max(1_000).batch(0).build().unwrap();
        let root = runtime.root();
        let _held = root.force_charge(1_000);
        let tenants = ["a", "b"].map(|name| root.create(name, Limits::new()).unwrap());
        let mut waits = Vec::new();
        // An even number, of which a limit leaves five out.
        let count = if cfg!(miri) { 8 } else { 20_u64 };
        for number in 0..count {
            let tenant = &tenants[number as usize % 2];
            let group = tenant.create(number, Limits::new()).unwrap();
            let mut future = Box::pin(group.charge_async(crate::Bytes(10 * (number + 1))));
            let mut context = Context::from_waker(Waker::noop());
            assert!(future.as_mut().poll(&mut context).is_pending());
            waits.push((group, future));
        }
        let found = |group: &crate::Group, most| {
            let level = group.first();
            table(level.tree()).lock().below(level, most).len()
        };
        assert_eq!(
            (found(&root, None), found(&tenants[0], None)),
            (waits.len(), waits.len() / 2)
        );
        let most = Some(10 * (count - 5));
        assert_eq!((found(&root, most), found(&tenants[1], most)), (5, 3));
        assert_eq!(found(&root, Some(u64::MAX)), 0);
        for (left, (group, _)) in waits.iter().enumerate().rev() {
            assert_eq!(found(group, None), 1);
            group.offline().unwrap();
            assert_eq!((found(group, None), found(&root, None)), (0, left));
        }
        let waiting = table(root.first().tree()).lock();
        assert!(waiting.below.is_empty() && waiting.groups.is_empty() && waiting.lines.is_empty());
    }
}
