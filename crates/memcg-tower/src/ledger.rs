//! The bytes that bodies on their way have promised to their tenant, and the line of requests that
//! wait for room beside that.
//!
//! A promise is no memory: it is charged to no group, so it weighs on no tenant but its own. Bytes
//! that come are charged, and their part of the promise ends.
//!
//! | step | lock | what holds after it |
//! |---|---|---|
//! | a request promises its overhead, its response and its body, or joins the line | ledger | usage of the tenant and all promises are within its least max |
//! | its overhead and its response are charged; their part of the promise ends | group, then ledger | in between they count twice, never not at all |
//! | a frame has come: it is charged, and its part of the promise ends | group, then ledger | the same |
//! | a frame finds no room in a group above: it waits for that, and keeps its promise | group | the same |
//! | a frame is more than was promised: it promises the rest before it is charged, or fails | ledger | as of the first |
//! | the body ends: what has not come is no promise any more | ledger | the first in line looks again, and the smallest that may pass it |
//! | the request ends: its bytes are given back | group, then ledger | the same |
//!
//! **The race to avoid**: what is charged must not leave the promises before it is in the usage.
//! Another request would find the same room, and two bodies would wait for each other's bytes
//! half-read. Counted twice, a request finds no room for a moment, and looks again.
//!
//! **The line**: who waits for room is served in turn, and smaller ones may pass the first until
//! together they have taken as many bytes as it asks for, as in the line of a group. A promise is
//! no charge, and what it has to fit beside is the usage of a group: so the line of that group
//! cannot serve it. One that has its promise, and lacks the bytes that it takes itself, waits in
//! the line of the group alone.
//!
//! Usage also falls without the ledger, where a cache or a handler gives back. So the first in line
//! looks again by itself, [each few milliseconds](LOOKS). No lock is held over a reclaimer or a
//! waker.
//!
//! **No model**: what the ledger decides it reads and writes below one mutex. A charge, and what
//! gives one back, comes before the lock on the same thread, so the next owner of the lock sees it
//! in the usage. The list of ledgers has a mutex of its own, and the count of those in line is a
//! hint. `tests/all/ledger.rs` runs it on several threads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memcg::{Bytes, Group};

use crate::clock::Alarm;

/// The time until the first in line looks again at a usage that falls without the ledger.
const LOOKS: Duration = Duration::from_millis(5);

/// Of one tenant, over all layers of the process.
pub(crate) struct Ledger {
    tenant: Group,
    state: Mutex<State>,
}

struct State {
    /// The heads of requests say any number: the sum of what they say has no bound of 64 bits.
    promised: u128,
    /// By their tickets, which are in order.
    line: BTreeMap<u64, InLine>,
    /// The same by their bytes: the smallest may pass the first.
    sizes: BTreeSet<(u64, u64)>,
    /// The bytes that may still pass the first, and which one that is.
    passes: u64,
    passed: u64,
    next: u64,
}

impl Default for State {
    fn default() -> State {
        State {
            promised: 0,
            line: BTreeMap::new(),
            sizes: BTreeSet::new(),
            passes: 0,
            // No ticket.
            passed: u64::MAX,
            next: 0,
        }
    }
}

struct InLine {
    bytes: u64,
    /// It is there once its request was polled in line. It is foreign code, so a lock clones no more
    /// than the pointer.
    waker: Option<Arc<Waker>>,
}

/// Those that look again: the first in line, and one that may pass it.
type Wakes = [Option<Arc<Waker>>; 2];

fn wake(wakes: Wakes) {
    for waker in wakes.into_iter().flatten() {
        waker.wake_by_ref();
    }
}

/// The ledgers in use.
fn ledgers() -> MutexGuard<'static, HashMap<Group, Weak<Ledger>>> {
    static LEDGERS: OnceLock<Mutex<HashMap<Group, Weak<Ledger>>>> = OnceLock::new();
    LEDGERS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// The number of requests in line, at all tenants. A request that promises nothing looks for a line
/// only where there is one.
static IN_LINE: AtomicUsize = AtomicUsize::new(0);

impl Ledger {
    pub(crate) fn of(tenant: &Group) -> Arc<Ledger> {
        let mut ledgers = ledgers();
        if let Some(ledger) = ledgers.get(tenant).and_then(Weak::upgrade) {
            return ledger;
        }
        let ledger = Arc::new(Ledger {
            tenant: tenant.clone(),
            state: Mutex::default(),
        });
        ledgers.insert(tenant.clone(), Arc::downgrade(&ledger));
        ledger
    }

    /// That of a tenant whose requests wait in line.
    #[inline]
    pub(crate) fn with_line(tenant: &Group) -> Option<Arc<Ledger>> {
        // A request that begins at the same time may go before the line.
        if IN_LINE.load(Ordering::Relaxed) == 0 {
            None
        } else {
            Ledger::find_line(tenant)
        }
    }

    #[cold]
    fn find_line(tenant: &Group) -> Option<Arc<Ledger>> {
        let ledger = ledgers().get(tenant).and_then(Weak::upgrade)?;
        let has_line = !ledger.state().line.is_empty();
        has_line.then_some(ledger)
    }

    /// Each change is whole before the lock is given up, so a panic elsewhere leaves nothing half
    /// done.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Ok` if so much more fits beside what is promised, with what the tenant uses. `Err`: so much
    /// is missing.
    fn fits(&self, promised: u128, bytes: u64) -> Result<(), u64> {
        let max = self.tenant.effective_max();
        if max == u64::MAX {
            // It has none.
            return Ok(());
        }
        let wanted = promised + u128::from(bytes);
        let above = |usage: u64| {
            let above = (u128::from(usage) + wanted).saturating_sub(u128::from(max));
            u64::try_from(above).unwrap_or(u64::MAX)
        };
        let usage = self.tenant.usage();
        if above(usage) == 0 {
            return Ok(());
        }
        // Credit is usage that a charge can have. The exact figure of it costs a lock, so the bound
        // is looked at first.
        if above(usage.saturating_sub(self.tenant.memory().stocked_bound())) > 0 {
            return Err(above(usage));
        }
        match above(self.tenant.live()) {
            0 => Ok(()),
            missing => Err(missing),
        }
    }

    /// A promise of so much, where it fits and may pass those that wait.
    pub(crate) fn promise(self: &Arc<Ledger>, bytes: u64) -> Option<Promise> {
        let mut state = self.state();
        let passes = state.may_pass();
        let goes = passes.is_none_or(|passes| bytes <= passes);
        (goes && self.fits(state.promised, bytes).is_ok()).then(|| {
            if passes.is_some() {
                state.passes -= bytes;
            }
            state.promised += u128::from(bytes);
            Promise {
                ledger: Arc::clone(self),
                bytes,
            }
        })
    }

    pub(crate) fn join(self: &Arc<Ledger>, bytes: u64) -> Turn {
        let ticket = {
            let mut state = self.state();
            let ticket = state.next;
            state.next += 1;
            state.sizes.insert((bytes, ticket));
            let waker = None;
            state.line.insert(ticket, InLine { bytes, waker });
            ticket
        };
        IN_LINE.fetch_add(1, Ordering::Relaxed);
        Turn {
            ledger: Arc::clone(self),
            ticket,
            bytes,
            asked: false,
            alarm: None,
        }
    }

    /// A promise of what a body brings beyond its own, where that fits beside those of others. It
    /// goes before the line: the body is on its way.
    pub(crate) fn promise_beyond(self: &Arc<Ledger>, bytes: u64) -> Option<Promise> {
        let mut state = self.state();
        self.fits(state.promised, bytes).is_ok().then(|| {
            state.promised += u128::from(bytes);
            Promise {
                ledger: Arc::clone(self),
                bytes,
            }
        })
    }

    /// Why there is no room, as a refusal of a charge says it.
    pub(crate) fn refuses(&self, group: &Group, bytes: u64) -> String {
        let promised = shown(self.state().promised);
        self.refusal(group, bytes, promised)
    }

    fn refusal(&self, group: &Group, bytes: u64, promised: u64) -> String {
        let usage = self.tenant.usage();
        let max = self.tenant.effective_max();
        let missing = usage
            .saturating_add(promised)
            .saturating_add(bytes)
            .saturating_sub(max);
        let coming = match promised {
            0 => String::new(),
            _ => format!(" and {} of bodies on their way,", Bytes(promised)),
        };
        format!(
            "{} refused {} for {}: short by {}, usage {}{coming} of max {}; to fit, raise its max, charge less or wait longer",
            self.tenant.path(),
            Bytes(bytes),
            group.path(),
            Bytes(missing),
            Bytes(usage),
            Bytes(max),
        )
    }

    /// Something was given back: those that may go look again.
    pub(crate) fn look(&self) {
        let wakes = self.state().wakes();
        wake(wakes);
    }

    fn give_back(&self, bytes: u64) {
        let wakes = {
            let mut state = self.state();
            state.promised -= u128::from(bytes);
            state.wakes()
        };
        wake(wakes);
    }
}

impl State {
    /// The bytes that may pass the first in line, as at the line of a group: as many as it asks for
    /// itself. `None`: none waits.
    fn may_pass(&mut self) -> Option<u64> {
        let (&first, in_line) = self.line.first_key_value()?;
        // Mutation: a-new-first-in-line-is-passed-no-further
        if self.passed != first {
            self.passed = first;
            self.passes = in_line.bytes;
        }
        Some(self.passes)
    }

    /// The smallest of those that may pass the first, if one may.
    fn passer(&mut self) -> Option<&InLine> {
        let passes = self.may_pass()?;
        let first = self.passed;
        let smallest = self.sizes.iter().find(|(_, ticket)| *ticket != first);
        let &(_, ticket) = smallest.filter(|(bytes, _)| *bytes <= passes)?;
        self.line.get(&ticket)
    }

    fn wakes(&mut self) -> Wakes {
        let passer = self.passer().and_then(|passer| passer.waker.clone());
        let first = self.line.first_key_value();
        [first.and_then(|(_, first)| first.waker.clone()), passer]
    }

    fn leaves(&mut self, ticket: u64) -> Option<InLine> {
        let left = self.line.remove(&ticket)?;
        self.sizes.remove(&(left.bytes, ticket));
        Some(left)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let taken = {
            let mut ledgers = ledgers();
            // Another may stand there already.
            let is_gone = ledgers
                .get(&self.tenant)
                .is_some_and(|ledger| ledger.strong_count() == 0);
            // Mutation: a-tenant-that-ends-stays-among-ledgers
            if is_gone {
                ledgers.remove_entry(&self.tenant)
            } else {
                None
            }
        };
        drop(taken);
    }
}

/// The rest of a body's promise, which it has not brought yet. The drop ends it.
pub(crate) struct Promise {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Promise {
    /// So much of it is charged. The sum is what it was, so none in line has to look.
    pub(crate) fn is_charged(&mut self, bytes: u64) {
        let bytes = self.bytes.min(bytes);
        self.bytes -= bytes;
        // Mutation: what-is-charged-stays-promised
        self.ledger.state().promised -= u128::from(bytes);
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Some of it, for a frame that waits.
    pub(crate) fn split(&mut self, bytes: u64) -> Promise {
        let bytes = self.bytes.min(bytes);
        self.bytes -= bytes;
        Promise {
            ledger: Arc::clone(&self.ledger),
            bytes,
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.ledger.give_back(self.bytes);
        }
    }
}

/// A place in the line of a tenant. The drop leaves it.
pub(crate) struct Turn {
    ledger: Arc<Ledger>,
    ticket: u64,
    bytes: u64,
    /// Reclaim was asked for once.
    asked: bool,
    alarm: Option<Alarm>,
}

impl Turn {
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// The promise, once it fits and none is before it. A wake follows, before `until` where
    /// nothing is given back. `Ready(None)`: time is over.
    pub(crate) fn poll(
        &mut self,
        until: Option<Instant>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Promise>> {
        let (missing, is_first) = match self.look(Some(context)) {
            Ok(promise) => return Poll::Ready(Some(promise)),
            Err(missing) => missing,
        };
        if is_first
            && let Some(missing) = missing
            && let Some(promise) = self.reclaim(missing)
        {
            return Poll::Ready(Some(promise));
        }
        let now = Instant::now();
        if until.is_some_and(|until| now >= until) {
            return Poll::Ready(None);
        }
        // One that is not the first is woken when it is.
        let looks = is_first.then(|| now + LOOKS);
        let at = looks.into_iter().chain(until).min();
        let is_woken = at.is_none_or(|at| Alarm::renew(&mut self.alarm, at, context.waker()));
        if is_woken {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    }

    /// At once, for a request without patience.
    pub(crate) fn now(mut self) -> Option<Promise> {
        match self.look(None) {
            Ok(promise) => Some(promise),
            Err((Some(missing), true)) => self.reclaim(missing),
            Err(_) => None,
        }
    }

    /// `Err`: what is missing, where reclaim could bring it; and whether it is the first in line.
    fn look(&mut self, context: Option<&mut Context<'_>>) -> Result<Promise, (Option<u64>, bool)> {
        let waker = context.map(|context| Arc::new(context.waker().clone()));
        let (looked, wakes, before) = {
            let mut state = self.ledger.state();
            let passes = state.may_pass().unwrap_or(0);
            let is_first = state.passed == self.ticket;
            let fits = if is_first || self.bytes <= passes {
                self.ledger.fits(state.promised, self.bytes)
            } else {
                Err(0)
            };
            if let Err(missing) = fits {
                let in_line = state.line.get_mut(&self.ticket);
                let before =
                    in_line.and_then(|in_line| std::mem::replace(&mut in_line.waker, waker));
                let wanted = state.promised + u128::from(self.bytes);
                // If the promises alone exceed the max, no reclaim helps.
                let is_usage = wanted <= u128::from(self.ledger.tenant.effective_max());
                let promised = state.promised;
                let passer = if is_first {
                    state
                        .passer()
                        // Only one that would be served is woken, or two that do not fit would wake
                        // each other.
                        .filter(|passer| self.ledger.fits(promised, passer.bytes).is_ok())
                } else {
                    None
                };
                let passer = passer.and_then(|passer| passer.waker.clone());
                let missing = is_usage.then_some(missing);
                (Err((missing, is_first)), [None, passer], before)
            } else {
                state.promised += u128::from(self.bytes);
                if !is_first {
                    state.passes -= self.bytes;
                }
                let left = state.leaves(self.ticket);
                IN_LINE.fetch_sub(1, Ordering::Relaxed);
                // The waker is dropped without the lock.
                (Ok(()), state.wakes(), left.and_then(|left| left.waker))
            }
        };
        drop(before);
        wake(wakes);
        looked.map(|()| Promise {
            ledger: Arc::clone(&self.ledger),
            bytes: self.bytes,
        })
    }

    /// Asks the tenant's reclaimers for what is missing, once: those of others are not asked, as
    /// they are for a charge.
    fn reclaim(&mut self, missing: u64) -> Option<Promise> {
        if std::mem::replace(&mut self.asked, true) {
            return None;
        }
        self.ledger.tenant.reclaim(Bytes(missing)).ok()?;
        let waker = self
            .ledger
            .state()
            .line
            .get(&self.ticket)
            .and_then(|in_line| in_line.waker.clone());
        match waker {
            Some(waker) => self.look(Some(&mut Context::from_waker(&waker))).ok(),
            None => self.look(None).ok(),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (left, wakes) = {
            let mut state = self.ledger.state();
            (state.leaves(self.ticket), state.wakes())
        };
        if left.is_some() {
            IN_LINE.fetch_sub(1, Ordering::Relaxed);
            wake(wakes);
        }
    }
}

/// The bytes that bodies on their way have promised to a tenant: no memory yet, and in no figure of
/// its group.
///
/// ```
/// use memcg::Runtime;
/// use memcg_tower::PromisedBytes;
///
/// let acme = Runtime::builder().max(1 << 30).build()?.root();
/// let promised = PromisedBytes::to(&acme);
/// assert_eq!((promised.bytes, promised.waiting), (0, 0));
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromisedBytes {
    /// The bytes that are still to come of the bodies of its requests.
    pub bytes: u64,
    /// Requests that wait for room beside that.
    pub waiting: usize,
}

impl PromisedBytes {
    /// Reads both figures, of all layers of the process. It takes two short locks.
    pub fn to(tenant: &Group) -> PromisedBytes {
        let Some(ledger) = ledgers().get(tenant).and_then(Weak::upgrade) else {
            return PromisedBytes::default();
        };
        let state = ledger.state();
        PromisedBytes {
            bytes: shown(state.promised),
            waiting: state.line.len(),
        }
    }
}

/// What is promised, as figures have it.
fn shown(promised: u128) -> u64 {
    u64::try_from(promised).unwrap_or(u64::MAX)
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Ledger")
            .field("promised", &state.promised)
            .field("waiting", &state.line.len())
            .finish()
    }
}
