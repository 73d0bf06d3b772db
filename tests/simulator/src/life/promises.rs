//! What a cache has promised, and gives later: whoever lacks it may wait, and nobody asks the cache
//! meanwhile.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;
use memcg::{ReclaimContext, ReclaimPromise};

use super::Life;
use super::callbacks::{Cache, lock};
use super::charges::Ask;
use crate::script::{Nature, Op, Verb};

/// One that has given nothing in the end is believed for so long that it has nothing.
const BELIEVED: Duration = Duration::from_millis(4);

/// What a cache has promised.
#[derive(Default)]
pub(super) struct Promises(Mutex<Record>);

#[derive(Default)]
struct Record {
    open: Vec<ReclaimPromise>,
    /// When the first of those was made, and what the group used then.
    since: Option<(Instant, u64)>,
    ever: u64,
    /// What it was asked for, however many promises it has made of that.
    asked: u64,
    /// The last came to nothing, then.
    failed: Option<Instant>,
}

impl Promises {
    pub(super) fn take_all(&self) -> Vec<ReclaimPromise> {
        std::mem::take(&mut lock(&self.0).open)
    }

    /// False: some are open.
    pub(super) fn forget_failure(&self) -> bool {
        let mut record = lock(&self.0);
        record.failed = None;
        record.open.is_empty()
    }

    fn are_open(&self) -> bool {
        !lock(&self.0).open.is_empty()
    }

    /// None is open, and the last one has come to something.
    pub(super) fn are_kept(&self) -> bool {
        let record = lock(&self.0);
        record.open.is_empty() && record.failed.is_none()
    }
}

impl Cache {
    /// It is asked, and has its memory given by somebody else, or by two of them: each has a promise
    /// of its own. Whether to ask it was decided by what the group used then.
    pub(super) fn promise(&self, context: &ReclaimContext<'_>, used_then: u64) {
        let used = context.group().usage();
        let mut record = lock(&self.promises.0);
        let told = |what: &str| format!("the cache of {} is asked, {what}", context.group().path());
        if !record.open.is_empty() {
            self.fault(told("and owes what it was asked for before"));
            return;
        }
        if let (Some(at), Some((_, before))) = (record.failed, record.since)
            && clock::now() < at + BELIEVED
            && used_then <= before
        {
            self.fault(told("and had nothing a moment ago"));
        }
        let promise = context.promise();
        let want = promise.want();
        record.open.push(promise);
        if want % 2 == 1 {
            record.open.push(context.promise());
        }
        self.note_gift();
        record.asked += want;
        record.ever += want * record.open.len() as u64;
        record.since = Some((clock::now(), used));
    }
}

impl Life {
    /// All that was promised so far, to be kept later.
    pub(super) fn promised(&self) -> u64 {
        let ever = |cache: &std::sync::Arc<Cache>| lock(&cache.promises.0).ever;
        self.caches.iter().map(ever).sum()
    }

    /// The same, without what was promised twice.
    pub(super) fn promised_once(&self) -> u64 {
        let asked = |cache: &std::sync::Arc<Cache>| lock(&cache.promises.0).asked;
        self.caches.iter().map(asked).sum()
    }

    /// Some cache owes what it was asked for.
    pub(super) fn is_owed(&self) -> bool {
        self.caches.iter().any(|cache| cache.promises.are_open())
    }

    /// A cache promises in another way, or has.
    pub(super) fn has_promised(&self) -> bool {
        self.caches
            .iter()
            .any(|cache| cache.nature == Nature::Promises)
    }

    pub(super) fn keep_promise(&mut self, op: &Op, number: u8, how: u8) {
        let Some(cache) = self.pick_cache(number) else {
            return;
        };
        self.actor(op).run(move || {
            let mut record = lock(&cache.promises.0);
            let many = record.open.len();
            // Of two any one comes first.
            let Some(promise) = (many > 0).then(|| record.open.remove(usize::from(how) % many))
            else {
                return;
            };
            drop(record);
            let freed = match how {
                0 => 0,
                1 => cache.evict(promise.want() / 2),
                _ => cache.evict(promise.want()),
            };
            let failed = (freed == 0).then(clock::now);
            lock(&cache.promises.0).failed = failed;
            promise.report(freed);
        });
    }

    /// The caches that count below a level: each with the group that has what it holds, and whether
    /// any of that is protected there.
    fn caches_below(&self, level: usize) -> impl Iterator<Item = (&Cache, usize, bool)> {
        self.caches.iter().filter_map(move |cache| {
            let mut levels = self.twin.levels(cache.group);
            let home = levels.find(|&level| self.twin.groups[level].online)?;
            let is_below = self.twin.is_within(home, level);
            let of = self.handles[home].first().filter(|_| is_below)?.memory();
            let top = self.handles[level].first()?.memory();
            let is_protected = of.effective_min(&top).max(of.effective_low(&top)) > 0;
            Some((&**cache, home, is_protected))
        })
    }

    /// A charge that never blocks is not refused while a cache could begin, and none has.
    pub(super) fn has_begun(&self, level: usize, ask: Ask) {
        if ask.verb != Verb::Start || !self.shared.is_quiet() || self.is_owed() {
            return;
        }
        let limit = self.twin.limit(level, 0);
        let lacks = self.twin.live(level, 0).saturating_add(ask.bytes) > limit;
        if !lacks || self.twin.never_fits(ask.group, ask.bytes) {
            return;
        }
        for (cache, home, is_protected) in self.caches_below(level) {
            let could_begin = cache.nature == Nature::Keeps
                && cache.promises.are_kept()
                && !cache.is_gone()
                && self.twin.live(home, 0) > 0;
            assert!(
                !could_begin || is_protected,
                "a charge is refused, and the cache of {} has not begun",
                self.twin.path(home)
            );
        }
    }

    /// A charge that may wait is not refused at once while what it lacks is promised.
    pub(super) fn waits_for_promises(&self, level: usize, ask: Ask, took: Duration) {
        let may_wait = matches!(ask.verb, Verb::Plain | Verb::WaitNot) && ask.asks;
        if !may_wait || !took.is_zero() || !self.shared.is_quiet() || self.cancelled {
            return;
        }
        if self.twin.never_fits(ask.group, ask.bytes) {
            return;
        }
        let time = Duration::from_millis(self.setup.reclaim_time);
        for (cache, home, is_protected) in self.caches_below(level) {
            let record = lock(&cache.promises.0);
            let is_awaited = !record.open.is_empty()
                && record.since.is_some_and(|(at, _)| clock::now() < at + time)
                && !cache.is_gone();
            assert!(
                !is_awaited || is_protected || self.twin.live(home, 0) == 0,
                "a charge is refused at once, and the cache of {} has promised",
                self.twin.path(home)
            );
        }
    }
}
