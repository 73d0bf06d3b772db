//! Foreign code: caches, listeners, hooks and wakers. Each says in a log what it has done, and the
//! twin follows.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;

use memcg::{
    Bytes, Charge, Event, Freshness, Group, GroupId, Limits, Reclaim, ReclaimCause, ReclaimContext,
    ReclaimPass, ReclaimPriority, Registration,
};

use super::Life;
use super::orders::{Candidate, Choice};
use super::promises::Promises;
use super::trees::Applying;
use crate::configuration::OOM_TIME;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Act, Nature, Op, RECLAIM_TIME, Size, Verb, What};
use crate::threads::rest;
use crate::twin::{Held, Key};

const CACHES_MAX: usize = 8;
const LISTENERS_MAX: usize = 6;

/// One that has not kept what it promised is believed for so long that it has nothing.
const BELIEVED: Duration = Duration::from_millis(4);

/// A poisoned lock says that a callback panicked, as some do on purpose.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a callback has done.
enum Entry {
    /// So much is on a shelf now.
    Shelf(Key, u64),
    /// A charge was made, and is kept.
    Charged(Group, Charge),
    /// The waker of a task was called.
    Rang(Key),
    /// The hook that holds that was called, of the group of that number and for memory of the other,
    /// at that instant.
    Cancelled(Key, usize, Group, Instant),
    /// The order of that number was asked for a victim, and has chosen one or none; by a thread that
    /// takes turns, or by another one.
    Ordered(usize, Vec<Candidate>, Choice, bool),
    /// The cache that holds that has panicked.
    Panicked(Key),
    /// An order of that group has.
    OrderPanicked(usize),
    /// Something was wrong with the call.
    Fault(String),
}

/// What callbacks and the run share.
#[derive(Default)]
pub(super) struct Shared {
    log: Mutex<Vec<Entry>>,
    /// A thread that takes no turns has called, as those of the runtime do.
    strange: AtomicBool,
    /// Foreign code does more than count.
    busy: AtomicBool,
    /// The group that was asked last in the present operation.
    last: Mutex<Option<GroupId>>,
    /// What the group that has its turn in a round used as the first of its caches was called.
    turn: Mutex<Option<u64>>,
    /// The group and the priority of the one that was asked last in this turn.
    order: Mutex<Option<(GroupId, u8)>>,
    /// The charge of the present operation is for the sake of so important a group.
    asker: Mutex<Option<u8>>,
    /// A cache was asked in the present operation because its group is in excess.
    asked_softly: AtomicBool,
    /// The charge of the present operation cancels nobody: it has no time.
    spares: AtomicBool,
    /// The group of which the present operation asks for memory.
    reclaimed: Mutex<Option<GroupId>>,
    /// For how many milliseconds reclaim may take.
    reclaim_time: AtomicU64,
    /// How often caches gave or promised something in the present operation.
    gave: AtomicU64,
    /// So much of usage was credit when the present operation began. It may go home at any time.
    credit: AtomicU64,
    /// So much may have become credit since, at a time, where a cache has charged.
    more_credit: AtomicU64,
    /// A tree was applied, and the twin has not followed yet.
    pub(super) applying: Mutex<Option<Applying>>,
}

impl Shared {
    fn note(&self, entry: Entry) {
        lock(&self.log).push(entry);
    }

    /// An order was asked.
    pub(super) fn note_order(&self, order: usize, candidates: Vec<Candidate>, choice: Choice) {
        let takes_turns = is_actor();
        if !takes_turns {
            self.strange.store(true, Ordering::SeqCst);
        }
        self.note(Entry::Ordered(order, candidates, choice, takes_turns));
    }

    /// The order of that group panics.
    pub(super) fn note_panic(&self, group: usize) {
        self.note(Entry::OrderPanicked(group));
    }

    /// The next operation begins, with so much credit.
    pub(super) fn begin(&self, credit: u64) {
        self.credit.store(credit, Ordering::SeqCst);
        self.more_credit.store(0, Ordering::SeqCst);
        *lock(&self.last) = None;
        *lock(&self.asker) = None;
        *lock(&self.reclaimed) = None;
        self.spares.store(false, Ordering::SeqCst);
        self.asked_softly.store(false, Ordering::SeqCst);
        self.gave.store(0, Ordering::SeqCst);
    }

    /// A cache gives something.
    pub(super) fn note_gift(&self) {
        self.gave.fetch_add(1, Ordering::SeqCst);
    }

    /// Reclaim may take so many milliseconds.
    pub(super) fn set_reclaim_time(&self, milliseconds: u64) {
        self.reclaim_time.store(milliseconds, Ordering::SeqCst);
    }

    /// The round looks whom to ask in the turn of a group, before it asks anyone there.
    fn begin_turn(&self) {
        *lock(&self.turn) = None;
        *lock(&self.order) = None;
    }

    /// What a group that uses so much now used before caches gave memory back in this turn.
    fn used_in_turn(&self, used: u64) -> u64 {
        used.max(*lock(&self.turn).get_or_insert(used))
    }

    /// A call is made that cancels nobody.
    pub(super) fn spares_all(&self, whether: bool) {
        self.spares.store(whether, Ordering::SeqCst);
    }

    /// A call is made for the sake of a group of that importance.
    pub(super) fn asks_for(&self, importance: u8) {
        *lock(&self.asker) = Some(importance);
    }

    /// No callback charges or gives back by itself, so what happens is known to the byte.
    pub(super) fn is_quiet(&self) -> bool {
        !self.busy.load(Ordering::SeqCst) && !self.strange.load(Ordering::SeqCst)
    }
}

thread_local! {
    /// Callbacks do not call the library for ever.
    static DEPTH: Cell<u32> = const { Cell::new(0) };

    /// The call that the thread makes has time until then.
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Makes a call that has time until then.
pub(super) fn until<R>(end: Instant, call: impl FnOnce() -> R) -> R {
    UNTIL.set(Some(end));
    let made = call();
    UNTIL.set(None);
    made
}

/// True on a thread that takes turns.
fn is_actor() -> bool {
    std::thread::current()
        .name()
        .is_none_or(|name| !name.starts_with("memcg-"))
}

fn do_act(act: Act, group: &Group, shared: &Shared) {
    if act == Act::Nothing {
        return;
    }
    if !is_actor() {
        shared.strange.store(true, Ordering::SeqCst);
        return;
    }
    if DEPTH.get() > 2 {
        return;
    }
    DEPTH.set(DEPTH.get() + 1);
    match act {
        Act::Nothing => {}
        Act::Panics => {
            DEPTH.set(DEPTH.get() - 1);
            panic!("on purpose");
        }
        Act::Charges(bytes) => {
            if let Ok(charge) = group.try_charge(Bytes(bytes)) {
                shared.note(Entry::Charged(group.clone(), charge));
            }
        }
        Act::Creates => {
            if let Ok(made) = group.create("made", Limits::new().soft(0)) {
                drop(made.try_charge(1));
                made.offline_tree();
            }
        }
        Act::Reads => {
            drop(group.read(Freshness::Exact));
            drop(format!("{:?} {:?}", group.events(), group.pressure_level()));
            drop(group.snapshot(3));
        }
    }
    DEPTH.set(DEPTH.get() - 1);
}

// === Wakers ===

/// The waker of a task on one thread.
pub(super) struct Bell {
    key: Key,
    /// How often the task had moved to another thread before, and how often it has by now.
    number: u64,
    moves: Arc<AtomicU64>,
    act: Act,
    group: Group,
    shared: Arc<Shared>,
}

impl Bell {
    pub(super) fn new(key: Key, act: Act, group: &Group, shared: &Arc<Shared>) -> Arc<Bell> {
        if act != Act::Nothing {
            shared.busy.store(true, Ordering::SeqCst);
        }
        Arc::new(Bell {
            key,
            number: 0,
            moves: Arc::default(),
            act,
            group: group.clone(),
            shared: Arc::clone(shared),
        })
    }

    /// The task is polled on another thread from here on, with another waker. This one wakes it no
    /// more.
    pub(super) fn moves_on(&self) -> Arc<Bell> {
        Arc::new(Bell {
            key: self.key,
            number: self.moves.fetch_add(1, Ordering::SeqCst) + 1,
            moves: Arc::clone(&self.moves),
            act: self.act,
            group: self.group.clone(),
            shared: Arc::clone(&self.shared),
        })
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if self.number < self.moves.load(Ordering::SeqCst) {
            return;
        }
        self.shared.note(Entry::Rang(self.key));
        do_act(self.act, &self.group, &self.shared);
    }
}

// === Caches ===

/// A cache that may be a reclaimer.
pub(super) struct Cache {
    pub(super) key: Key,
    pub(super) nature: Nature,
    pub(super) group: usize,
    shelf: Mutex<Option<Charge>>,
    shared: Arc<Shared>,
    registration: Mutex<Option<Registration>>,
    gone: AtomicBool,
    /// How often it was ever asked.
    asked: AtomicU64,
    /// Its priority: of those of a group a lower one is asked first.
    priority: AtomicU8,
    /// When it has forgotten what it promised.
    forgot: Mutex<Option<Instant>>,
    pub(super) promises: Promises,
}

impl Cache {
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.shelf).as_ref().map_or(0, Charge::bytes)
    }

    pub(super) fn evict(&self, want: u64) -> u64 {
        let mut shelf = lock(&self.shelf);
        let Some(charge) = shelf.as_mut() else {
            return 0;
        };
        let freed = charge.shrink(Bytes(want));
        let left = charge.bytes();
        drop(shelf);
        self.shared.note(Entry::Shelf(self.key, left));
        if freed > 0 {
            self.shared.note_gift();
        }
        freed
    }

    /// It charges so many bytes again, or none if they do not fit.
    fn refill(&self, group: &Group, bytes: u64) -> u64 {
        let Ok(charge) = group.try_charge(Bytes(bytes)) else {
            return 0;
        };
        // The charge may have opened a stock.
        let credit = group.memory().stocked_bound();
        self.shared.more_credit.fetch_max(credit, Ordering::SeqCst);
        let mut shelf = lock(&self.shelf);
        let Some(all) = shelf.as_mut().filter(|all| all.group() == *group) else {
            return 0;
        };
        all.merge(charge).expect("of the same group");
        let left = all.bytes();
        drop(shelf);
        self.shared.note(Entry::Shelf(self.key, left));
        bytes
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(super) fn fault(&self, what: String) {
        self.shared.note(Entry::Fault(what));
    }

    pub(super) fn note_gift(&self) {
        self.shared.note_gift();
    }

    fn panic(&self) -> ! {
        if !is_actor() {
            self.shared.strange.store(true, Ordering::SeqCst);
        }
        self.shared.note(Entry::Panicked(self.key));
        panic!("on purpose");
    }

    /// Checks that it may be asked for that, here and now.
    fn check(&self, want: u64, context: &ReclaimContext<'_>) {
        let (group, target) = (context.group(), context.target());
        let at = || {
            format!(
                "the cache of {} is asked for {want} by {} in {:?}",
                group.path(),
                target.path(),
                context.pass()
            )
        };
        if self.gone.load(Ordering::SeqCst) {
            self.fault(format!("{}, and it is gone", at()));
        }
        if want == 0 {
            self.fault(at());
        }
        if context.pass() == ReclaimPass::Soft {
            self.shared.asked_softly.store(true, Ordering::SeqCst);
        }
        let time = self.shared.reclaim_time.load(Ordering::SeqCst);
        let most = clock::now() + Duration::from_millis(time);
        let end = UNTIL.get().map_or(most, |end| end.min(most));
        if context.deadline() > end {
            let late = context.deadline() - end;
            self.fault(format!("{}, {late:?} longer than that may take", at()));
        }
        let priority = self.priority.load(Ordering::SeqCst);
        let in_order = lock(&self.shared.order).replace((group.id(), priority));
        if in_order.is_some_and(|(of, lower)| of == group.id() && lower > priority) {
            self.fault(format!("{}, after one of a higher priority", at()));
        }
        let before = lock(&self.shared.last).replace(group.id());
        // One that was asked just before may have taken the group out of its excess.
        if context.pass() == ReclaimPass::Soft
            && before != Some(group.id())
            && self.shared.is_quiet()
            && !is_in_excess(&group, &target)
        {
            self.fault(format!("{}, and is not in excess", at()));
        }
        if group != target && !group.ancestors().any(|above| above == target) {
            self.fault(format!("{}, and is not below", at()));
        }
        let is_its_own = match context.cause() {
            ReclaimCause::Asked => lock(&self.shared.reclaimed).is_none_or(|of| of == target.id()),
            ReclaimCause::Full | ReclaimCause::Lowered => target.max() < u64::MAX,
            ReclaimCause::High => target.inspect().high() < u64::MAX,
            _ => true,
        };
        if !is_its_own {
            self.fault(format!("{}, because of another group: {context:?}", at()));
        }
        let of_limit = matches!(context.cause(), ReclaimCause::High | ReclaimCause::Full);
        if of_limit && is_actor() && target.is_observe_only() {
            self.fault(format!("{}, whose limits are only observed", at()));
        }
        if context.pass() == ReclaimPass::Low
            && context.cause() == ReclaimCause::Full
            && let Some(asker) = *lock(&self.shared.asker)
            && importance(&group) > asker
        {
            self.fault(format!("{}, for a charge that matters less", at()));
        }
        if let Some(excess) = self.excess(&target, context.cause())
            && want > excess
        {
            self.fault(format!("{}, and {excess} are above the limit", at()));
        }
        let usage = group.usage();
        let min = group.memory().effective_min(&target.memory());
        let low = group.memory().effective_low(&target.memory());
        let kept = match context.pass() {
            ReclaimPass::Low => min,
            _ => min.max(low),
        };
        if usage.saturating_sub(kept) < want {
            self.fault(format!(
                "{}, and {usage} are used, {min} and {low} protected",
                at()
            ));
        }
    }

    /// So much is above the limit that caches are asked because of, at most, as far as that is known.
    fn excess(&self, target: &Group, cause: ReclaimCause) -> Option<u64> {
        // What one has freed that panics does not count.
        let has_panicked = |entry: &Entry| matches!(entry, Entry::Panicked(_));
        let any_panicked = || lock(&self.shared.log).iter().any(has_panicked);
        if !is_actor() || !self.shared.is_quiet() || any_panicked() {
            return None;
        }
        let (limit, beside) = match cause {
            ReclaimCause::Lowered => (target.max(), 0),
            // And something for the charges that follow, where a charge asks.
            ReclaimCause::High => {
                let high = target.inspect().high();
                (high, high >> 8)
            }
            _ => return None,
        };
        // A round goes on for what it has found above the limit, credit included.
        let credit = self.shared.credit.load(Ordering::SeqCst)
            + self.shared.more_credit.load(Ordering::SeqCst);
        Some(target.usage().saturating_sub(limit) + beside + credit)
    }

    /// Uses the library, which is in the middle of reclaim.
    fn work(&self, context: &ReclaimContext<'_>) {
        for of in [context.group(), context.target()] {
            if of.reclaim(1).is_ok() {
                self.fault("reclaim inside reclaim".into());
            }
            for charged in [of.charge(1 << 16), of.try_charge(1 << 16)] {
                match charged {
                    Ok(_) => {}
                    Err(error) if error.is_in_reclaim() || error.is_offline() => {}
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => self.fault(format!("a charge inside reclaim: {error}")),
                }
            }
            drop(of.read(Freshness::Exact));
        }
    }
}

/// It is above its soft limit, or one above it is, up to the target.
fn is_in_excess(group: &Group, target: &Group) -> bool {
    let mut levels = std::iter::once(group.clone()).chain(group.ancestors());
    let is_top = |level: &Group| level == target;
    loop {
        match levels.next() {
            None => return false,
            Some(level) if level.inspect().is_in_excess() => return true,
            Some(level) if is_top(&level) => return false,
            Some(_) => {}
        }
    }
}

/// Of a group without one it is that of the nearest above.
fn importance(group: &Group) -> u8 {
    let mut levels = std::iter::once(group.clone()).chain(group.ancestors());
    let own = levels.find_map(|level| level.limits().importance);
    own.unwrap_or(0)
}

/// What is registered.
struct Asked(Arc<Cache>);

impl Reclaim for Asked {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        let cache = &self.0;
        if !is_actor() {
            // No turn is given away: what a thread of the runtime does comes at any time.
            cache.shared.strange.store(true, Ordering::SeqCst);
            return 0;
        }
        cache.asked.fetch_add(1, Ordering::SeqCst);
        let used_then = cache.shared.used_in_turn(context.group().usage());
        cache.check(want, context);
        match cache.nature {
            Nature::Honest
            | Nature::EstimatesNothing
            | Nature::EstimatesAll
            | Nature::PanicsInEstimate => cache.evict(want),
            Nature::Modest => {
                cache.evict(want);
                0
            }
            Nature::Half => {
                cache.evict(want / 2);
                want
            }
            Nature::Stubborn => 0,
            Nature::Greedy => cache.evict(u64::MAX),
            Nature::Boasts => u64::MAX,
            Nature::PanicsAtOnce => cache.panic(),
            Nature::PanicsLate => {
                cache.evict(want.div_ceil(2));
                cache.panic();
            }
            Nature::Refills => {
                let freed = cache.evict(want);
                freed - cache.refill(&context.group(), freed / 2)
            }
            Nature::Busy => {
                cache.work(context);
                cache.evict(want)
            }
            Nature::Quits => {
                let mine = lock(&cache.registration).take();
                drop(mine);
                cache.gone.store(true, Ordering::SeqCst);
                cache.evict(want)
            }
            Nature::Forgets => {
                if lock(&cache.forgot).is_some() {
                    return cache.evict(want);
                }
                *lock(&cache.forgot) = Some(clock::now());
                drop(context.promise());
                0
            }
            Nature::Keeps => {
                cache.promise(context, used_then);
                0
            }
            Nature::Promises => {
                let later = context.promise();
                later.report(cache.evict(want));
                0
            }
        }
    }

    fn start(&self, want: u64, context: &ReclaimContext<'_>) {
        if is_actor() {
            self.0.shared.begin_turn();
            self.0.check(want, context);
        }
        match self.0.nature {
            _ if !is_actor() => {}
            Nature::Keeps => self.0.promise(context, context.group().usage()),
            Nature::PanicsAtOnce => self.0.panic(),
            _ => {}
        }
    }

    fn reclaimable(&self) -> u64 {
        self.0.shared.begin_turn();
        match self.0.nature {
            Nature::EstimatesNothing => 0,
            Nature::EstimatesAll => u64::MAX - 1,
            Nature::PanicsInEstimate => self.0.panic(),
            _ => self.0.bytes(),
        }
    }
}

// === Listeners and hooks ===

/// What a listener of that group keeps may panic in its drop.
struct Breaks(Arc<Shared>, Option<usize>);

impl Drop for Breaks {
    fn drop(&mut self) {
        if let Some(group) = self.1.filter(|_| !std::thread::panicking()) {
            self.0.note_panic(group);
            panic!("on purpose");
        }
    }
}

/// What listens to an event.
pub(super) struct Listener {
    registration: Registration,
    group: usize,
    event: Event,
    /// The count before it began, and the events that it was told of since.
    before: Option<u64>,
    told: Arc<AtomicU64>,
}

/// A cancel hook, and the memory that it lets go.
pub(super) struct Hook {
    pub(super) key: Key,
    pub(super) group: usize,
    #[expect(dead_code, reason = "it is held")]
    bag: Arc<Mutex<Option<Charge>>>,
    registration: Registration,
}

impl Life {
    /// What is live in a group once the twin has followed what caches and hooks have given.
    pub(super) fn given_below(&self, group: usize, counter: usize) -> u64 {
        let mut shelves: BTreeMap<Key, u64> = BTreeMap::new();
        for entry in lock(&self.shared.log).iter() {
            if let Entry::Shelf(key, bytes) = entry {
                shelves.insert(*key, *bytes);
            }
        }
        let is_here =
            |held: &Held| held.counter == counter && self.twin.is_within(held.group, group);
        let gave = |(key, left): (Key, u64)| {
            let held = self.twin.held.get(&key).filter(|held| is_here(held));
            held.map_or(0, |held| held.bytes.saturating_sub(left))
        };
        let given: u64 = shelves.into_iter().map(gave).sum();
        self.twin.live(group, counter).saturating_sub(given)
    }

    pub(super) fn settle_accounts(&mut self) {
        self.settle_accounts_with(|_| {});
    }

    /// The twin follows what callbacks have done. `after` is called after each of these.
    pub(super) fn settle_accounts_with(&mut self, mut after: impl FnMut(&Life)) {
        loop {
            rest();
            let has_ended = self.poll_threads();
            // What an adapter has waited for it has by now.
            #[cfg(feature = "adapters")]
            let has_ended = self.poll_adapters() || has_ended;
            let entries = std::mem::take(&mut *lock(&self.shared.log));
            if entries.is_empty() && !has_ended {
                break;
            }
            let mut called = Vec::new();
            for entry in entries {
                match entry {
                    Entry::Shelf(key, bytes) => {
                        if self.twin.held.contains_key(&key) {
                            self.twin.set(key, bytes);
                        }
                    }
                    Entry::Charged(group, charge) => {
                        let (group, bytes) = (self.number(&group), charge.bytes());
                        self.keep(charge, group, 0, bytes);
                    }
                    Entry::Rang(key) => self.rang(key),
                    Entry::Cancelled(key, group, domain, at) => {
                        self.twin.groups[group].killed += 1;
                        let domain = self.number(&domain);
                        self.order_was_asked(domain);
                        self.is_as_ordered(key);
                        self.note_victim(key, at);
                        self.cancelled = true;
                        self.is_not_spared(key);
                        self.matters_no_more(key);
                        self.cancel_delays(key);
                        assert!(
                            self.may_choose(domain) || !self.shared.is_quiet(),
                            "a group is cancelled for {}, which is to refuse",
                            self.twin.path(domain)
                        );
                        called.push((key, domain));
                    }
                    Entry::Ordered(order, candidates, choice, takes_turns) => {
                        self.ordered(order, &candidates, choice, takes_turns);
                    }
                    Entry::Panicked(key) => self.panicked(key),
                    Entry::OrderPanicked(group) => self.twin.groups[group].panics += 1,
                    Entry::Fault(what) => panic!("{what}"),
                }
                self.forget_victims();
                after(self);
            }
            self.orders_are_followed();
            self.all_hooks_called(&called);
            // A charge in line that was served meanwhile has taken its bytes, too.
            self.poll_unknown();
            after(self);
        }
    }

    /// A cache is the reclaimer of its group, or of the nearest one above that is online.
    pub(super) fn home(&self, cache: &Cache) -> usize {
        let mut levels = self.twin.levels(cache.group);
        let home = levels.find(|&level| self.twin.groups[level].online);
        // With the last of them all that is left was handed on to the root.
        home.unwrap_or(0)
    }

    fn panicked(&mut self, key: Key) {
        let cache = self.caches.iter().find(|cache| cache.key == key);
        if let Some(home) = cache.map(|cache| self.home(cache)) {
            self.twin.groups[home].panics += 1;
        }
    }

    fn panics(&self) -> u64 {
        self.twin.groups.iter().map(|group| group.panics).sum()
    }

    pub(super) fn step_callback(&mut self, op: &Op) {
        match op.1 {
            What::Cache(group, nature, priority) => self.begin_cache(op, group, nature, priority),
            What::Fill(number, size) => self.fill(op, number, size),
            What::Evict(number, bytes) => {
                if let Some(cache) = self.pick_cache(number) {
                    self.actor(op).run(move || cache.evict(bytes));
                }
            }
            What::Unregister(number) => {
                if let Some(cache) = self.pick_cache(number) {
                    if cache.is_gone() {
                        self.register_again(op, &cache);
                    } else {
                        self.unregister(op, &cache);
                    }
                }
            }
            What::CacheDrop(number) => {
                if let Some(cache) = self.pick_cache(number) {
                    self.caches.retain(|other| other.key != cache.key);
                    self.end_cache(op, &cache);
                }
            }
            What::Reclaim(group, size) => {
                if let Some(group) = self.group(group) {
                    let bytes = self.bytes(group, 0, size);
                    *lock(&self.shared.reclaimed) = Some(self.ids[group]);
                    let before = self.twin.live(group, 0);
                    let (promised, once) = (self.promised(), self.promised_once());
                    let panics = self.panics();
                    let bound = self.handle(group).memory().stocked_bound();
                    let asked_before = self.asked();
                    let nobody = !self.caches.iter().any(|cache| {
                        let home = self.home(cache);
                        !cache.is_gone() && self.twin.is_within(home, group)
                    });
                    let some_excess = self.caches.iter().any(|cache| {
                        let home = self.home(cache);
                        !cache.is_gone()
                            && self.twin.is_within(home, group)
                            && self.twin.live(home, 0) > 0
                            && self.has_excess(home, group)
                    });
                    let found = self.on(op, group, move |group| group.reclaim(Bytes(bytes)));
                    let report = found.expect("no reclaim is under way");
                    // What it was for has come, or nobody has more: then each was asked once more.
                    let gave = self.shared.gave.load(Ordering::SeqCst);
                    let asks = self.asked().into_iter().zip(asked_before);
                    let asks = asks.map(|(now, before)| now - before).max();
                    let promised = self.promised() - promised;
                    let twice = promised - (self.promised_once() - once);
                    self.settle_accounts();
                    let panics = self.panics() - panics;
                    let asked_softly = self.shared.asked_softly.load(Ordering::SeqCst);
                    assert!(
                        !self.shared.is_quiet()
                            || report.panics == panics
                                && (report.soft_visited > 0 || !asked_softly),
                        "{report:?}, and {panics} caches have panicked, some in excess: {asked_softly}"
                    );
                    let is_alone = self.shared.is_quiet() && !self.setup.adapters;
                    assert!(
                        !is_alone || !nobody || report.visited == 0,
                        "{report:?}, and no cache is there"
                    );
                    assert!(
                        !is_alone
                            || !some_excess
                            || bytes == 0
                            || report.soft_visited > 0
                            || !self.had_time(),
                        "{report:?}, and a cache is in excess"
                    );
                    let fell = before.saturating_sub(self.twin.live(group, 0));
                    let now = self.handles[group].first();
                    let now = now.map_or(0, |group| group.memory().stocked_bound());
                    // So much may have gone to a stock and come out of one, uncounted.
                    let bound = 2 * bound.max(now);
                    assert!(
                        !self.shared.is_quiet() || report.freed <= fell + bound,
                        "{report:?}, live fell by {fell}, with credit of {bound} at most"
                    );
                    let is_told = |cache: &Arc<Cache>| {
                        !matches!(cache.nature, Nature::Refills | Nature::Modest)
                    };
                    let beside = if self.caches.iter().all(is_told) {
                        0
                    } else {
                        bound
                    };
                    let boasts =
                        |cache: &Arc<Cache>| matches!(cache.nature, Nature::Half | Nature::Boasts);
                    let some_boast = self.caches.iter().any(boasts);
                    assert!(
                        !is_alone || some_boast || asks.is_none_or(|most| most <= 1 + 2 * gave),
                        "{report:?}: a cache was asked {asks:?} times, and {gave} times one gave"
                    );
                    // What is promised and given within the call is there twice.
                    let is_greedy = |cache: &Arc<Cache>| {
                        matches!(cache.nature, Nature::Greedy | Nature::Promises)
                    };
                    assert!(
                        !is_alone
                            || self.caches.iter().any(is_greedy)
                            || report.freed + report.pending.saturating_sub(twice)
                                <= bytes.saturating_add(bound),
                        "{report:?} of {bytes}, with credit of {bound} at most"
                    );
                    // What is promised is asked of no other.
                    assert!(
                        report.pending.saturating_sub(twice) <= bytes,
                        "{report:?} of {bytes}"
                    );
                    assert!(
                        // What a reclaimer that panics has freed does not count.
                        !self.shared.is_quiet()
                            || report.panics > 0
                            || report.freed + report.pending + beside >= fell.min(bytes),
                        "{report:?}, live fell by {fell}"
                    );
                    assert!(
                        report.pending == promised
                            || !self.shared.is_quiet()
                            || self.has_promised(),
                        "{report:?}, and {promised} are promised"
                    );
                    assert!(
                        report.requested == bytes
                            && report.soft_visited <= report.visited
                            && !(report.timed_out && self.had_time()),
                        "{report:?} of {bytes}"
                    );
                    // What one claims that boasts is believed, as far as it may have gone to a stock. So is
                    // what one gives that charges at once, and opens a stock.
                    let refills = |cache: &Arc<Cache>| cache.nature == Nature::Refills;
                    let unseen = if self.caches.iter().any(refills) {
                        bound
                    } else {
                        0
                    };
                    let came = fell.saturating_add(report.pending).saturating_add(unseen);
                    if came < bytes && !some_boast {
                        self.nothing_left_below(group, 1);
                    }
                }
            }
            What::Keep(number, how) => self.keep_promise(op, number, how),
            What::ShareReclaim(..) => self.share_reclaim(op),
            What::Listen(group, event, act) => self.listen(op, group, event, act),
            What::Unlisten(number) => {
                if !self.listeners.is_empty() {
                    let at = usize::from(number) % self.listeners.len();
                    let listener = self.listeners.swap_remove(at);
                    self.actor(op).run(move || drop(listener.registration));
                }
            }
            What::Hook(group, bytes, act) => self.hook(op, group, bytes, act),
            What::Unhook(number) => {
                if !self.hooks.is_empty() {
                    let at = usize::from(number) % self.hooks.len();
                    let hook = self.hooks.swap_remove(at);
                    self.twin.release(hook.key);
                    self.actor(op).run(move || {
                        drop(hook.registration);
                    });
                }
            }
            _ => unreachable!("an operation on callbacks"),
        }
    }

    pub(super) fn pick_cache(&self, number: u8) -> Option<Arc<Cache>> {
        let most = self.caches.len();
        (most > 0).then(|| Arc::clone(&self.caches[usize::from(number) % most]))
    }

    fn begin_cache(&mut self, op: &Op, group: u8, nature: Nature, priority: u8) {
        let room = self.caches.len() < CACHES_MAX;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        if !self.twin.groups[group].online {
            return;
        }
        self.keeps = true;
        self.had_caches = true;
        let key = self.twin.hold(group, 0, 0);
        let cache = Arc::new(Cache {
            key,
            nature,
            group,
            shelf: Mutex::new(None),
            shared: Arc::clone(&self.shared),
            registration: Mutex::new(None),
            gone: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            priority: AtomicU8::new(priority % 3),
            forgot: Mutex::new(None),
            promises: Promises::default(),
        });
        if nature == Nature::Busy {
            self.shared.busy.store(true, Ordering::SeqCst);
        }
        let priority = [
            ReclaimPriority::LOW,
            ReclaimPriority::NORMAL,
            ReclaimPriority::HIGH,
        ][usize::from(priority) % 3];
        let asked = Arc::new(Asked(Arc::clone(&cache)));
        let registration = self.on(op, group, move |group| {
            group.register_reclaimer(asked, priority)
        });
        *lock(&cache.registration) = Some(registration);
        self.caches.push(cache);
    }

    fn fill(&mut self, op: &Op, number: u8, size: Size) {
        let Some(cache) = self.pick_cache(number) else {
            return;
        };
        let group = cache.group;
        if self.handles[group].is_empty() {
            return;
        }
        let bytes = self.bytes(group, 0, size);
        let ask = self.ask(group, 0, Verb::Plain, bytes);
        let found = self.on(op, group, move |group| group.charge(Bytes(bytes)));
        if let Some(charge) = self.agree(ask, found) {
            // Not while the charge is made: it may call the cache.
            let mut shelf = lock(&cache.shelf);
            match shelf.as_mut() {
                Some(all) => all.merge(charge).expect("of the same group"),
                None => *shelf = Some(charge),
            }
            let key = cache.key;
            let all = shelf.as_ref().map_or(0, Charge::bytes);
            assert_eq!(all, self.held(key) + bytes, "on the shelf");
            self.twin.set(key, all);
        }
    }

    fn unregister(&mut self, op: &Op, cache: &Arc<Cache>) {
        let mine = lock(&cache.registration).take();
        self.actor(op).run(move || drop(mine));
        cache.gone.store(true, Ordering::SeqCst);
    }

    /// One that was given up is registered for the same group, whether that is online or not. Nobody
    /// remembers what it said before.
    fn register_again(&mut self, op: &Op, cache: &Arc<Cache>) {
        let group = cache.group;
        if self.handles[group].is_empty() || !cache.promises.forget_failure() {
            return;
        }
        cache.gone.store(false, Ordering::SeqCst);
        cache.priority.store(1, Ordering::SeqCst);
        let asked = Arc::new(Asked(Arc::clone(cache)));
        let registration = self.on(op, group, move |group| {
            group.register_reclaimer(asked, ReclaimPriority::NORMAL)
        });
        *lock(&cache.registration) = Some(registration);
    }

    /// A level from one group up to another is above its soft limit by what is live.
    fn has_excess(&self, of: usize, top: usize) -> bool {
        let is_above = |&level: &usize| {
            self.twin.groups[level].online && self.twin.live(level, 0) > self.twin.soft(level)
        };
        let levels = self.twin.levels(of);
        let mut levels = levels.filter(|&level| self.twin.is_within(level, top));
        levels.any(|level| is_above(&level))
    }

    /// How often each cache was ever asked.
    fn asked(&self) -> Vec<u64> {
        let asked = |cache: &Arc<Cache>| cache.asked.load(Ordering::SeqCst);
        self.caches.iter().map(asked).collect()
    }

    pub(super) fn end_cache(&mut self, op: &Op, cache: &Arc<Cache>) {
        self.unregister(op, cache);
        // What it has promised it forgets.
        let open = cache.promises.take_all();
        self.actor(op).run(move || drop(open));
        self.settle_accounts();
        self.twin.release(cache.key);
        let shelf = lock(&cache.shelf).take();
        self.actor(op).run(move || drop(shelf));
    }

    fn listen(&mut self, op: &Op, group: u8, event: u8, act: Act) {
        let room = self.listeners.len() < LISTENERS_MAX;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        if act != Act::Nothing {
            self.shared.busy.store(true, Ordering::SeqCst);
        }
        self.keeps = true;
        let event = Event::ALL[usize::from(event) % Event::ALL.len()];
        let shared = Arc::clone(&self.shared);
        let told = Arc::new(AtomicU64::new(0));
        let before = self.handle(group).events().get(event);
        let tells = Arc::clone(&told);
        let breaks = Breaks(
            Arc::clone(&shared),
            self.some(op).is_multiple_of(4).then_some(group),
        );
        let registration = self.on(op, group, move |group| {
            group.on_event(event, move |happened| {
                let _kept = &breaks;
                tells.fetch_add(happened.times(), Ordering::SeqCst);
                if happened.event() != event || happened.times() == 0 {
                    shared.note(Entry::Fault(format!("{happened:?} for {event:?}")));
                }
                do_act(act, &happened.group(), &shared);
            })
        });
        // What a thread of the runtime counts meanwhile is told or not.
        let is_known = self.handle(group).events().get(event) == before;
        self.listeners.push(Listener {
            registration,
            group,
            event,
            before: is_known.then_some(before),
            told,
        });
    }

    fn hook(&mut self, op: &Op, group: u8, bytes: u64, act: Act) {
        let room = self.hooks.len() < 6;
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        self.keeps = true;
        let ask = self.ask(group, 0, Verb::Try, bytes);
        let found = self.on(op, group, move |group| group.try_charge(Bytes(bytes)));
        let Some(charge) = self.agree(ask, found) else {
            return;
        };
        let key = self.twin.key();
        self.twin.held.insert(
            key,
            Held {
                group,
                counter: 0,
                bytes,
            },
        );
        let bag = Arc::new(Mutex::new(Some(charge)));
        let of = group;
        let (shared, held) = (Arc::clone(&self.shared), Arc::clone(&bag));
        if act != Act::Nothing {
            self.shared.busy.store(true, Ordering::SeqCst);
        }
        let registration = self.on(op, group, move |group| {
            group.on_cancel(move |why| {
                if !is_actor() {
                    shared.strange.store(true, Ordering::SeqCst);
                }
                if is_actor() && shared.spares.load(Ordering::SeqCst) {
                    let fault = format!("{why:?}, by a charge that has no time to wait");
                    shared.note(Entry::Fault(fault));
                }
                shared.note(Entry::Cancelled(key, of, why.domain(), clock::now()));
                if !is_actor() {
                    return;
                }
                let bag = lock(&held).take();
                if bag.is_some() {
                    drop(bag);
                    shared.note(Entry::Shelf(key, 0));
                }
                do_act(act, &why.group(), &shared);
            })
        });
        self.hooks.push(Hook {
            key,
            group,
            bag,
            registration,
        });
    }

    /// A group that is cancelled is none that is spared.
    fn is_not_spared(&self, key: Key) {
        let Some(hook) = self.hooks.iter().find(|hook| hook.key == key) else {
            return;
        };
        assert!(
            !self.shared.is_quiet() || !self.twin.is_spared(hook.group),
            "{} is cancelled, and exempt",
            self.twin.path(hook.group)
        );
    }

    /// A group is cancelled for a charge that matters as much at least.
    fn matters_no_more(&self, key: Key) {
        // One that waits on a thread of its own may be what it is cancelled for.
        if !self.shared.is_quiet() || !self.tasks.is_empty() || self.adapters_wait() {
            return;
        }
        let hook = self.hooks.iter().find(|hook| hook.key == key);
        if let (Some(hook), Some(asker)) = (hook, *lock(&self.shared.asker)) {
            let importance = self.twin.importance(hook.group);
            assert!(
                importance <= asker,
                "{} is cancelled, which matters {importance}, for a charge that matters {asker}",
                self.twin.path(hook.group)
            );
        }
    }

    /// A group was cancelled. It is waited for until it holds nothing, or its time is over.
    fn note_victim(&mut self, key: Key, at: Instant) {
        let Some(hook) = self.hooks.iter().find(|hook| hook.key == key) else {
            return;
        };
        let victim = hook.group;
        let is_below =
            |hook: &Hook| hook.group != victim && self.twin.is_within(hook.group, victim);
        let inner = self.hooks.iter().filter(|hook| is_below(hook));
        let inner = inner.map(|hook| hook.group).collect();
        self.cancelled_with.push((victim, inner));
        // What a group below that answers for itself holds now is never waited for, also where it
        // gives that and the victim keeps as much.
        if !self.hooks.iter().any(is_below) {
            self.victims.push((victim, at + OOM_TIME));
        }
    }

    /// A charge that is cancelled is of a group that was, and none below it answers for the charge.
    pub(super) fn is_cancelled_itself(&self, group: usize) {
        let is_it = |(victim, inner): &(usize, Vec<usize>)| {
            let answers = |&of: &usize| self.twin.is_within(group, of);
            self.twin.is_within(group, *victim) && !inner.iter().any(answers)
        };
        assert!(
            self.together || !self.shared.is_quiet() || self.cancelled_with.iter().any(is_it),
            "a charge of {} is cancelled, which another group answers for",
            self.twin.path(group)
        );
    }

    /// What holds nothing has given all.
    fn forget_victims(&mut self) {
        let twin = &self.twin;
        self.victims
            .retain(|&(group, until)| clock::now() < until && twin.live(group, 0) > 0);
    }

    /// A victim that is to give all that it holds. What a protection or a soft limit grants a group
    /// it is not asked for.
    fn is_asked_for_all(&self, group: usize) -> bool {
        let is_granted = |level: usize| {
            let twin = &self.twin.groups[level];
            twin.low > 0 || twin.min > 0
        };
        !self.handles[group].is_empty()
            && self.twin.groups[group].online
            && self.twin.soft(group) == u64::MAX
            && !self.twin.is_spared(group)
            && !self.twin.levels(group).any(is_granted)
    }

    /// A charge of a victim that is waited for does not wait, where others are cancelled for it.
    pub(super) fn waits_for_itself(&self, group: usize) -> bool {
        let is_victim = |&(victim, until): &(usize, Instant)| {
            clock::now() < until && self.twin.is_within(group, victim)
        };
        let mut victims = self.victims.iter().filter(|victim| is_victim(victim));
        self.shared.is_quiet()
            && !self.together
            && !self.twin.is_spared(group)
            && self
                .twin
                .levels(group)
                .all(|level| self.twin.chooses(level))
            && victims.any(|&(victim, _)| self.is_asked_for_all(victim))
    }

    /// A victim that is waited for, whose work is told so.
    pub(super) fn is_told_to_go(&self, group: usize) -> bool {
        let mut victims = self.victims.iter();
        self.shared.is_quiet()
            && !self.together
            && victims.any(|&(victim, _)| victim == group)
            && self.is_asked_for_all(group)
    }

    /// A victim that is waited for is told so at its checkpoints, whatever other victims do.
    pub(super) fn check_victims(&mut self, op: &Op) {
        self.forget_victims();
        for &(group, _) in &self.victims {
            if !self.is_told_to_go(group) {
                continue;
            }
            let is_cancelled = self.on(op, group, |group| {
                group.run(|| {
                    let checkpoint = pin!(Group::checkpoint_async());
                    let polled = checkpoint.poll(&mut Context::from_waker(Waker::noop()));
                    matches!(polled, Poll::Ready(Err(error)) if error.is_cancelled())
                })
            });
            assert!(
                is_cancelled,
                "{} was cancelled, and goes on",
                self.twin.path(group)
            );
        }
    }

    /// A group that is cancelled has all its hooks called, and those of the highest one that goes as
    /// one with it, where it was cancelled for memory of a group above that.
    fn all_hooks_called(&self, called: &[(Key, usize)]) {
        if !self.shared.is_quiet() {
            return;
        }
        let is_called = |hook: &Hook| called.iter().any(|(key, _)| *key == hook.key);
        for &(key, domain) in called {
            let Some(hook) = self.hooks.iter().find(|hook| hook.key == key) else {
                continue;
            };
            let inside = self.twin.levels(hook.group);
            let inside = inside.take_while(|&level| self.twin.is_within(level, domain));
            let whole = inside.filter(|&level| self.twin.groups[level].together);
            let whole = whole.last();
            let goes_too = |other: &&Hook| {
                let of = other.group;
                of == hook.group
                    || whole.is_some_and(|whole| self.twin.is_within(of, whole))
                        && !self.twin.is_spared(of)
            };
            let mut others = self.hooks.iter().filter(goes_too);
            assert!(
                others.all(is_called),
                "of the hooks that go with {} some are not called",
                self.twin.path(hook.group)
            );
        }
    }

    /// Each listener was told of each event.
    pub(super) fn listeners_hold(&self) -> Holds {
        // A listener that makes events is not called for ever.
        if !self.shared.is_quiet() {
            return Ok(());
        }
        for listener in &self.listeners {
            let (Some(handle), Some(before)) =
                (self.handles[listener.group].first(), listener.before)
            else {
                continue;
            };
            let happened = handle.events().get(listener.event) - before;
            let told = listener.told.load(Ordering::SeqCst);
            ensure_eq!(
                told,
                happened,
                "{:?} that a listener of {handle:?} was told of",
                listener.event
            );
        }
        Ok(())
    }

    // === No charge is refused while caches would give ===

    /// So much is missing at a level: no cache below has it that is honest and not protected.
    pub(super) fn nothing_left_below(&self, target: usize, missing: u64) {
        if let Err(fault) = self.left_below(target, missing)
            && self.had_time()
        {
            panic!("{fault}");
        }
    }

    /// Reclaim has had all the time that it may take. Where that is short, a call that has waited for
    /// another round may have had none left.
    pub(super) fn had_time(&self) -> bool {
        self.setup.reclaim_time == RECLAIM_TIME || clock::now() == self.began
    }

    /// The same; where a thread of the runtime asks caches in the same moment, each asks some.
    pub(super) fn left_below(&self, target: usize, missing: u64) -> Holds {
        if !self.shared.is_quiet() || missing == 0 || self.handles[target].is_empty() {
            return Ok(());
        }
        // What is promised is asked of nobody else.
        if self.is_owed() {
            return Ok(());
        }
        let top = self.handle(target);
        for cache in &self.caches {
            let home = self.home(cache);
            let gives = match cache.nature {
                Nature::Honest | Nature::Modest | Nature::Promises => true,
                Nature::Forgets => {
                    let is_believed = |at: Instant| clock::now() < at + BELIEVED;
                    lock(&cache.forgot).is_some_and(|at| !is_believed(at))
                }
                // Else it was asked, and has promised.
                Nature::Keeps => cache.promises.are_kept(),
                _ => false,
            };
            let is_asked = gives
                && !cache.gone.load(Ordering::SeqCst)
                && self.twin.groups[home].online
                && self.twin.is_within(home, target);
            let Some(group) = self.handles[home].first().filter(|_| is_asked) else {
                continue;
            };
            let protected = group
                .memory()
                .effective_min(&top.memory())
                .max(group.memory().effective_low(&top.memory()));
            let left = cache.bytes();
            ensure!(
                protected > 0 || left < missing,
                "{missing} are missing at {}, and {} has {left} to give",
                top.path(),
                group.path()
            );
        }
        Ok(())
    }

    /// After a refusal.
    pub(super) fn nothing_left_for(&self, level: usize, ask: super::charges::Ask) {
        let super::charges::Ask { group, bytes, .. } = ask;
        if self.twin.never_fits(group, bytes) {
            return;
        }
        let missing = self
            .twin
            .live(level, 0)
            .saturating_add(bytes)
            .saturating_sub(self.twin.limit(level, 0));
        self.nothing_left_below(level, missing);
    }
}
