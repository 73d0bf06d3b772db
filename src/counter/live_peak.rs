//! The peak of live units: the highest sum of units that callers held at one moment, without
//! credit.
//!
//! Hits raise live units and write no word that another thread reads as it goes. So a level has two
//! bounds, which are one number where one thread alone moves its units.
//!
//! **One mover.** A level's *mover* is the one thread and counter whose slow paths have changed its
//! usage. Between two of them usage stands still, and live units are usage less the credit in one
//! slot. They are most where that credit is least, which is right before a put: the put notes it
//! (`thread::slot`). So each slow path of the thread *settles* first: it records usage less the
//! least credit since the one before, at each level that it moves alone. While the stock is closed
//! there is no credit, and live units are usage: walks record each peak of that. So that they look
//! at it, the running peak starts over from what is live when the stock closes.
//!
//! **Several.** From the first slow path of another thread, or through another counter, on, or from
//! the first central stock, whose credit lies in no slot: live units were never more than the peak of
//! usage. At the end of a slow path that has left a new peak
//! of usage the thread counts the credit below, and records usage without it. So the two bounds lie
//! within the credit of that moment.
//!
//! A thread that frees raises its credit and tells no one. Where it has freed since its last slow
//! path, a count cannot tell whether it does so just now, and takes the capacity of its slot as its
//! credit. Where that leaves the peak a step below what the slots show, the thread has all slots
//! note their next put, by a barrier, and counts again: at most 16 times at a level until its peak
//! has doubled (`step_of`). That count takes the capacity only for who frees while it is under way.
//!
//! Where no stock has ever been open below, live units are usage, and both bounds are its peak.
//!
//! A level that has several movers keeps them until it is released. One whose mover ends has none
//! again, and what its peak was stays exact.
//!
//! No protocol depends on these words, so other models load none of them (`loads_for_figures`).
//! Their own are `tests::loom_peak`: both bounds hold beside each step of a mover, a drain and a
//! second mover. There the words themselves are never old: what orders them is a fence at either
//! end (`figures_were_stored`), and the loads of `filled`, `drained` and the transit.

use smallvec::SmallVec;

use crate::counter::object::tree::{Stocks, Tree};
use crate::counter::object::{Counter, Object};
use crate::counter::peak::{MOVERS, NO_MOVER};
use crate::counter::slow_path::SlowPath;
use crate::sync::{Ordering, figures_were_loaded, figures_were_stored, loads_for_figures};
use crate::thread::block::Block;
use crate::thread::directory::SlotIndex;
use crate::thread::local;
use crate::thread::slot::Slot;
use crate::thread::slow_path::Entered;

/// Slots of which a thread counts the credit at the end of a slow path. Where there may be more
/// below a level, the published bound stands for their credit.
const COUNTED_MAX: usize = 64;

/// Counts that a reader tries where other threads begin or end meanwhile.
const COUNTS_MAX: usize = 4;

/// Open stocks elsewhere in the tree that such a count passes over, for each slot that it may
/// count.
const PASSED_FOR_SLOT: usize = 8;

/// The two bounds on the peak of live units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveBounds {
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// Live units at one moment of the call, at least.
    now: u64,
}

/// The counter of that slot index as a mover.
fn mover_of(index: SlotIndex) -> u32 {
    index.number().map_or(MOVERS, |number| number + 1)
}

/// The slot index of a mover's counter.
fn index_of(mover: u32) -> Option<SlotIndex> {
    (mover != NO_MOVER && mover != MOVERS).then(|| SlotIndex::of_number(mover - 1))
}

/// The block of the one thread that moves units through the counter with that slot.
fn block_of(tree: &Tree, index: SlotIndex) -> Option<&Block> {
    let charger = &Object::of(tree.registry.header(index)?).charger;
    // Relaxed: a second thread notes that it moves units before it changes this word.
    let number = Block::number_of_charger(charger.load(Ordering::Relaxed))?;
    tree.registry.block(number)
}

/// The thread of the block is the only one that has charged the counter.
fn is_charger(counter: &Counter, block: &Block) -> bool {
    counter.charger.load(Ordering::Relaxed) == block.charger()
}

/// What is known of the level's whole time.
fn ever(level: &Counter) -> u64 {
    let windows = level.tree().live_windows.lock();
    windows.ever(level.key(), &level.live_peak)
}

// === Movers ===

/// This thread is about to change the usage of the counter's levels for the first time, as the
/// first one: `Some`. `None`: as another one, or without a block.
#[cold]
#[inline(never)]
pub(crate) fn note_mover(counter: &Counter, first: Option<&Block>) {
    if !loads_for_figures() {
        return;
    }
    let first = first.filter(|_| counter.cover().is_none());
    let me = first.map_or(MOVERS, |_| mover_of(counter.index));
    for level in counter.path_to_root() {
        let word = &level.limits.mover;
        // Levels that groups share have several movers, for good. A look first: an exchange takes
        // the line from the other threads even where it fails, at each group that is made.
        if word.load(Ordering::Relaxed) == MOVERS {
            continue;
        }
        // Before this thread's walk changes usage, by an exchange that releases. A thread that
        // reads usage and then finds itself the mover has not read what another one has added.
        let set = word.compare_exchange(NO_MOVER, me, Ordering::Relaxed, Ordering::Relaxed);
        if let Err(now) = set
            && now != me
        {
            end_mover(level, now);
        }
    }
}

/// From here on the level has several movers. It was `now` alone so far.
fn end_mover(level: &Counter, now: u32) {
    let seen = CreditMover::of(level.tree(), now).and_then(|mover| mover.look_at(level));
    if let Some(LoneMover { most, .. }) = seen.filter(|seen| seen.stands) {
        level.live_peak.record(most);
    }
    level.limits.mover.store(MOVERS, Ordering::Relaxed);
}

/// The counter ends, and no thread uses it: the levels that it moved alone have no mover.
pub(crate) fn leave(counter: &Counter) {
    let me = counter.limits.mover.load(Ordering::Relaxed);
    if !loads_for_figures() {
        return;
    }
    let Some(mover) = CreditMover::of(counter.tree(), me) else {
        return;
    };
    for level in counter.path_to_root() {
        let word = &level.limits.mover;
        // Levels that groups share mostly have several movers, for good.
        if word.load(Ordering::Relaxed) != me {
            continue;
        }
        if let Some(LoneMover { most, stands }) = mover.look_at(level) {
            level.live_peak.record(if stands { most } else { 0 });
            let next = if stands { NO_MOVER } else { MOVERS };
            // Who finds no mover finds what the last one had.
            figures_were_stored();
            let _ = word.compare_exchange(me, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

// === One mover ===

/// A level with one mover, as another thread sees it.
struct LoneMover {
    /// Live units were never more since the mover's last slow path.
    most: u64,
    /// They were as many: the mover was in no slow path meanwhile, and no credit was drained.
    stands: bool,
}

/// A mover, as another thread sees it at one moment. The way to its slot is the same for all levels
/// that it moves, and is looked up once for a path.
struct CreditMover<'a> {
    me: u32,
    tree: &'a Tree,
    block: &'a Block,
    /// Of that moment: what had been drained, the mover's transits, and then the least credit.
    still: Option<u64>,
    over: Option<u64>,
    least: i64,
}

impl<'a> CreditMover<'a> {
    /// `None`: the word names no mover of this tree.
    fn of(tree: &'a Tree, me: u32) -> Option<CreditMover<'a>> {
        let index = index_of(me)?;
        let block = block_of(tree, index)?;
        let still = tree.moving.seen_still();
        let over = block.transit.seen_over();
        let slot = block.slot(index).filter(|slot| !slot.is_vacant());
        Some(CreditMover {
            me,
            tree,
            block,
            still,
            over,
            least: slot.map_or(0, Slot::least),
        })
    }

    /// `None`: the level has another mover now, or none.
    fn look_at(&self, level: &Counter) -> Option<LoneMover> {
        let usage = level.usage();
        // After usage, see `note_mover`.
        let is_alone = level.limits.mover.load(Ordering::Relaxed) == self.me;
        // Nothing has moved between the least credit and this usage.
        let stands = self.over.is_some()
            && self.still.is_some()
            && self.block.transit.seen_over() == self.over
            && self.tree.moving.seen_still() == self.still;
        // In the midst of a refill usage has units that are not in the slot yet.
        let most = usage.saturating_add_signed(self.least.saturating_neg());
        is_alone.then_some(LoneMover { most, stands })
    }
}

/// Records what the levels had at most since this thread's last slow path here. The caller is about
/// to move credit or usage, and has not begun.
#[inline(always)]
pub(crate) fn record_most(counter: &Counter, block: &Block) {
    if loads_for_figures() && counter.limits.mover.load(Ordering::Relaxed) != MOVERS {
        record_most_slow(counter, block);
    }
}

/// [`record_most`] before a charge, after which live units are more: only where they have been less than
/// their most since the last slow path, so that a put has noted that.
#[inline(always)]
pub(crate) fn record_most_if_noted(counter: &Counter, block: &Block) {
    let has_noted = || block.slot(counter.index).is_some_and(Slot::has_noted);
    if loads_for_figures() && has_noted() {
        record_most(counter, block);
    }
}

#[inline(never)]
fn record_most_slow(counter: &Counter, block: &Block) {
    let slot = block.slot(counter.index).filter(|slot| !slot.is_vacant());
    record_most_of(counter, slot, LeastCredit::of(counter.tree(), slot));
}

/// The least credit of this thread in a slot, and the drains until then.
pub(crate) struct LeastCredit {
    still: Option<u64>,
    credit: i64,
}

impl LeastCredit {
    pub(crate) fn of(tree: &Tree, slot: Option<&Slot>) -> LeastCredit {
        if !loads_for_figures() {
            return LeastCredit {
                still: None,
                credit: 0,
            };
        }
        // The drains first: none that ends between the two reads is taken for an earlier one.
        let still = tree.moving.seen_still();
        let credit = slot.map_or(0, Slot::least);
        LeastCredit { still, credit }
    }
}

/// [`record_most`] for a caller that has read the least credit before it moved some.
pub(crate) fn record_most_of(counter: &Counter, slot: Option<&Slot>, least: LeastCredit) {
    if loads_for_figures() {
        let LeastCredit { still, credit } = least;
        let stands = || {
            let now = || counter.tree().moving.seen_still();
            slot.is_none_or(Slot::is_undrained) || (still.is_some() && now() == still)
        };
        record(counter, mover_of(counter.index), credit, stands);
        slot.inspect(|slot| slot.forget_least());
    }
}

/// Records usage without the least credit at each level that the mover moves alone. The two
/// belong together where no drain of the slot is under way, says `stands`.
fn record(counter: &Counter, me: u32, least: i64, stands: impl Fn() -> bool) {
    for level in counter.path_to_root() {
        if level.limits.mover.load(Ordering::Relaxed) != me {
            continue;
        }
        let usage = level.usage();
        // After usage, see `note_mover`.
        if level.limits.mover.load(Ordering::Relaxed) != me {
            continue;
        }
        // Mutation: live-peak-settles-during-a-drain
        if stands() {
            level
                .live_peak
                .record(usage.saturating_add_signed(least.saturating_neg()));
        } else {
            // Another thread drains the slot, so that usage and credit do not fit together.
            level.limits.mover.store(MOVERS, Ordering::Relaxed);
        }
    }
}

/// The stock is about to close. The caller holds the tree's lock.
pub(crate) fn before_close(counter: &Counter) {
    if !loads_for_figures() {
        return;
    }
    let now = counter.limits.mover.load(Ordering::Relaxed);
    local::with_block(|block| match block {
        Some(block) if now == mover_of(counter.index) && is_charger(counter, block) => {
            record_most(counter, block);
        }
        _ if now == NO_MOVER || now == MOVERS => {}
        // The thread's next walk finds no stock, and records nothing.
        _ => note_mover(counter, None),
    });
}

/// The stock has closed, and its credit is back. The caller holds the tree's lock.
pub(crate) fn has_closed(counter: &Counter) {
    let me = counter.limits.mover.load(Ordering::Relaxed);
    if !loads_for_figures() || index_of(me).is_none() {
        return;
    }
    let windows = counter.tree().windows.lock();
    for level in counter.path_to_root() {
        if level.limits.mover.load(Ordering::Relaxed) == me {
            windows.lower_running(level.key(), level.peaks(), || level.usage());
        }
    }
}

// === Several movers ===

impl Counter {
    /// A walk has left this usage behind. Returns whether the slow path of the thread is to count
    /// the credit below, see [`count_due`].
    pub(crate) fn record_peak(&self, usage: u64) -> bool {
        let mut is_due = false;
        if loads_for_figures() && self.peaks().rises(usage) {
            // No edge: Acquire keeps what follows behind it, for a figure alone. Whoever has added
            // a batch to usage has counted its stock before, so that usage has none.
            let has_had_stocks = self.limits.open.load(Ordering::Acquire).has_been();
            self.live_peak.record(if has_had_stocks {
                self.without_bound(usage)
            } else {
                usage
            });
            is_due =
                self.limits.mover.load(Ordering::Relaxed) == MOVERS && self.may_have_credit_below();
            if is_due {
                self.limits.count_is_due.store(true, Ordering::Relaxed);
            }
        }
        self.peaks().record(usage);
        is_due
    }

    /// Live units that the level has at least, where a walk has left that usage.
    fn without_bound(&self, usage: u64) -> u64 {
        // A stock that opens or closes meanwhile is part of one of the two bounds. One that does
        // both is part of neither, but of the count of transitions; only a thread that takes credit
        // and ends meanwhile is in none. No edge: Acquire keeps these loads in their order, for a
        // figure alone.
        let open = self.limits.open.load(Ordering::Acquire);
        let before = self.usage.bound.load(Ordering::Acquire);
        // No edge: as above.
        let now = self.usage();
        let after = self.usage.bound.load(Ordering::Acquire);
        // Mutation: live-peak-is-usage-with-credit
        if self.limits.open.load(Ordering::Relaxed) == open {
            now.min(usage).saturating_sub(before.max(after))
        } else {
            0
        }
    }
}

/// Counts the credit below each level of the path at which a walk has left a new peak of usage. The
/// caller is at the end of a slow path, in no transit.
#[inline(always)]
pub(crate) fn count_due(counter: &Counter, path: &Entered) {
    let is_due = |level: &Counter| level.limits.count_is_due.load(Ordering::Relaxed);
    if loads_for_figures() && counter.path_to_root().any(is_due) {
        count_due_slow(counter, path);
    }
}

#[cold]
#[inline(never)]
fn count_due_slow(counter: &Counter, path: &Entered) {
    let mut unclear: SmallVec<[(&Counter, u16); 8]> = SmallVec::new();
    for level in counter.path_to_root() {
        let is_due = &level.limits.count_is_due;
        if !is_due.load(Ordering::Relaxed) {
            continue;
        }
        is_due.store(false, Ordering::Relaxed);
        // Its own stock is all that is open below: then this thread need not know of others.
        let alone = level.limits.open.load(Ordering::Relaxed).stocks() == 1 && counter.is_open();
        let counted = if alone {
            count(level, &[counter], COUNTED_MAX, path)
        } else if let Some(stocks) = counter.tree().try_lock() {
            count_below(level, &stocks, COUNTED_MAX, path)
        } else {
            count_later(level);
            None
        };
        if let Some(LiveCount { least, about }) = counted {
            level.live_peak.record(least);
            let step = step_of(about);
            let known = step_of(level.live_peak.now());
            if step > known.max(level.peak_step.load(Ordering::Relaxed)) {
                unclear.push((level, step));
            }
        }
    }
    let Some(&(top, _)) = unclear.last() else {
        return;
    };
    let Some(stocks) = counter.tree().try_lock() else {
        return unclear.iter().for_each(|&(level, _)| count_later(level));
    };
    // The others are below the last one: one barrier serves all.
    note_anew(top, &stocks);
    for (level, step) in unclear {
        level.peak_step.store(step, Ordering::Relaxed);
        if let Some(LiveCount { least, .. }) = count_below(level, &stocks, COUNTED_MAX, path) {
            level.live_peak.record(least);
        }
    }
}

/// Another thread has the tree's lock: the next slow path here counts.
fn count_later(level: &Counter) {
    level.limits.count_is_due.store(true, Ordering::Relaxed);
}

/// The number of steps up to so many units: 16 for each time that they double, of equal size. So a
/// step is a sixteenth of the units at most.
fn step_of(units: u64) -> u16 {
    let doublings = units.max(1).ilog2();
    // The four bits below the highest one.
    let within = if doublings < 4 {
        units << (4 - doublings)
    } else {
        units >> (doublings - 4)
    } & 15;
    (doublings * 16) as u16 + within as u16
}

/// [`count`] for all stocks below the level, where there are no more than so many slots, and no
/// central stock.
fn count_below(level: &Counter, stocks: &Stocks, most: usize, path: &Entered) -> Option<LiveCount> {
    let open = level.limits.open.load(Ordering::Relaxed).stocks();
    if open > most || stocks.count_open() / PASSED_FOR_SLOT > most {
        return None;
    }
    let mut counters: SmallVec<[&Counter; 8]> = SmallVec::new();
    for counter in stocks.all_open().filter(|counter| counter.is_within(level)) {
        if counter.is_open_central() {
            return None;
        }
        counters.push(counter);
    }
    count(level, &counters, most, path)
}

/// Live units of a level, as a count has found them.
struct LiveCount {
    /// The level had so many at one moment, at least.
    least: u64,
    /// What it has had if no thread frees just now.
    about: u64,
}

/// Live units that the level had, where only these counters below it have open stocks. `None`: a
/// stock or credit moved in a way that the count does not see.
fn count(level: &Counter, counters: &[&Counter], most: usize, path: &Entered) -> Option<LiveCount> {
    let tree = level.tree();
    let own = path.block();
    let seen_still = || tree.moving.seen_still().zip(tree.noting.seen_still());
    let still = seen_still()?;
    // Relaxed, here and below: usage is read between the two, and whoever has credit there has
    // counted its stock before.
    let open = level.limits.open.load(Ordering::Relaxed);
    if open.stocks() != counters.len() {
        return None;
    }
    // First the words of all slots, then usage, then the same words again. What stands in both
    // readings was so at the moment of the one between them.
    let mut first: SmallVec<[SeenSlot; COUNTED_MAX]> = SmallVec::new();
    for block in tree.registry.listed() {
        for (number, counter) in counters.iter().enumerate() {
            let slot = block.slot(counter.index).filter(|slot| !slot.is_vacant());
            let Some(slot) = slot else { continue };
            if first.len() == most {
                return None;
            }
            first.push(SeenSlot {
                place: (block.number(), number),
                over: block.transit.seen_over(),
                filled: slot.filled(),
            });
        }
    }
    let usage = level.usage();
    let (mut credit, mut shown): (u64, u64) = (0, 0);
    // Both readings are in the order of the places.
    let mut earlier = first.into_iter().peekable();
    for block in tree.registry.listed() {
        let is_own = own.is_some_and(|own| std::ptr::eq(own, block));
        for (number, counter) in counters.iter().enumerate() {
            let slot = block.slot(counter.index).filter(|slot| !slot.is_vacant());
            let Some(slot) = slot else { continue };
            let place = (block.number(), number);
            while earlier.next_if(|seen| seen.place < place).is_some() {
                // The block of a thread that has ended has left the list: it holds no credit, but
                // may have held some.
                credit += 2 * counter.open_batch();
            }
            let since = earlier
                .next_if(|seen| seen.place == place)
                .filter(|seen| seen.over.is_some() && seen.over == block.transit.seen_over())
                .and_then(|seen| slot.credit_since(seen.filled));
            let available = slot.available();
            shown += available;
            credit += if is_own {
                available
            } else {
                since.unwrap_or(2 * counter.open_batch())
            };
        }
    }
    let stands = level.limits.open.load(Ordering::Relaxed) == open
        && seen_still() == Some(still)
        && earlier.next().is_none();
    stands.then(|| LiveCount {
        least: usage.saturating_sub(credit),
        about: usage.saturating_sub(shown),
    })
}

/// A slot in the first reading of a count.
struct SeenSlot {
    /// The number of its block, and that of its counter in the count.
    place: (u32, usize),
    over: Option<u64>,
    filled: u64,
}

/// Has the slots below a level note their least credit anew, so that the next count sees what was
/// put before it: at the price of one barrier. The caller holds the tree's lock.
fn note_anew(level: &Counter, stocks: &Stocks) {
    let tree = level.tree();
    let noting = tree.noting.begin();
    for counter in stocks.all_open().filter(|counter| counter.is_within(level)) {
        let mover = counter.limits.mover.load(Ordering::Relaxed);
        if mover == MOVERS {
            let blocks = tree.registry.listed();
            for slot in blocks.filter_map(|block| block.slot(counter.index)) {
                slot.begin_again(slot.noted_so_far());
            }
        } else if mover == mover_of(counter.index) {
            note_anew_alone(counter, mover);
        }
    }
    if tree.barrier.heavy().is_err() {
        // Slots look as if they had noted anew and may not have: no count goes by them any more.
        std::mem::forget(noting);
    }
}

/// [`note_anew`] for the slot of a thread that moves the counter's units alone: what it has noted so
/// far is recorded first, at each level that it moves alone. In a slow path the thread does that.
fn note_anew_alone(counter: &Counter, me: u32) {
    let Some(block) = block_of(counter.tree(), counter.index) else {
        return;
    };
    let slot = block.slot(counter.index).filter(|slot| !slot.is_vacant());
    let (Some(slot), Some(over)) = (slot, block.transit.seen_over()) else {
        return;
    };
    let noted = slot.noted_so_far();
    let levels = || {
        let is_mine = |level: &&Counter| level.limits.mover.load(Ordering::Relaxed) == me;
        counter.path_to_root().filter(is_mine)
    };
    let mover = CreditMover::of(counter.tree(), me);
    for level in levels() {
        match mover.as_ref().and_then(|mover| mover.look_at(level)) {
            Some(LoneMover { most, stands: true }) => level.live_peak.record(most),
            Some(_) => return,
            None => {}
        }
    }
    if slot.begin_again(noted) && block.transit.seen_over() != Some(over) {
        // The thread has been in a slow path meanwhile, and what it has noted since may have been
        // the same number.
        for level in levels() {
            level.limits.mover.store(MOVERS, Ordering::Relaxed);
        }
    }
}

// === Reading ===

/// No other thread or counter has moved units of the level beside one: where [`read`] then has one
/// number, so has a window.
pub(crate) fn has_one_mover(level: &Counter) -> bool {
    level.limits.mover.load(Ordering::Relaxed) != MOVERS
}

/// The bounds as they are now.
pub(crate) fn read(level: &Counter) -> LiveBounds {
    let path = SlowPath::enter();
    read_in(level, &path)
}

fn read_in(level: &Counter, path: &SlowPath) -> LiveBounds {
    let me = level.limits.mover.load(Ordering::Relaxed);
    figures_were_loaded();
    if me != MOVERS && (me == NO_MOVER || !level.may_have_credit_below()) {
        let min = ever(level);
        let now = level.usage().min(min);
        return LiveBounds { min, max: min, now };
    }
    // No credit is drained meanwhile.
    let stocks = level.tree().lock(path);
    let alone = CreditMover::of(level.tree(), me).and_then(|mover| mover.look_at(level));
    if let Some(LoneMover { most, stands }) = alone {
        if stands {
            level.live_peak.record(most);
        }
        // Read after the slot: an owner that has begun again has recorded what was before.
        let min = ever(level);
        let max = if stands { min } else { most.max(min) };
        return LiveBounds { min, max, now: 0 };
    }
    let now = if level.may_have_credit_below() {
        note_anew(level, &stocks);
        let count = || count_below(level, &stocks, usize::MAX, path);
        (0..COUNTS_MAX)
            .find_map(|_| count())
            .map_or(0, |live| live.least)
    } else {
        level.without_bound(level.usage())
    };
    level.live_peak.record(now);
    let min = ever(level);
    LiveBounds {
        min,
        max: level.peaks().ever().max(min),
        now,
    }
}

/// Readies the figures for a window that starts now. Returns the live units that it starts from:
/// those of one moment of the call, at least.
pub(crate) fn begin_window(level: &Counter, path: &SlowPath) -> u64 {
    let LiveBounds { now, .. } = read_in(level, path);
    // What the window starts from is less than what other windows know.
    level.peak_step.store(0, Ordering::Relaxed);
    let me = level.limits.mover.load(Ordering::Relaxed);
    if index_of(me).is_none() {
        return now;
    }
    let own = path.own_block();
    let is_own = |block: &&Block| mover_of(level.index) == me && is_charger(level, block);
    let Some(block) = own.filter(is_own) else {
        // Of the least that another slot has noted nobody knows whether it was before the window.
        for level in level.path_to_root() {
            end_mover(level, level.limits.mover.load(Ordering::Relaxed));
        }
        return 0;
    };
    record_most(level, block);
    let slot = block.slot(level.index).filter(|slot| !slot.is_vacant());
    level
        .usage()
        .saturating_sub(slot.map_or(0, Slot::available))
}
