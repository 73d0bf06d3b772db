//! A group that a thread of the crate reclaims before charges need it, in a tree of its own: that
//! thread takes no turns, and what it does for groups of a life the twin does not know.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use memcg::{
    Bytes, Charge, Limit, Limits, Percent, Reclaim, ReclaimCause, ReclaimContext, ReclaimPriority,
    Runtime,
};

use super::Life;
use crate::configuration::limit;
use crate::script::Op;
use crate::threads::rest;

/// Caches are asked for some pages at least.
const UNIT: u64 = 64 << 10;

/// The max above.
const ROOT: u64 = 100 * UNIT;

/// It gives what it is asked for, and says who asks.
struct Gives {
    held: Mutex<Charge>,
    asked: AtomicU64,
    strange: AtomicU64,
}

impl Reclaim for Gives {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        let is_background = context.cause() == ReclaimCause::Background;
        let of = if is_background {
            &self.asked
        } else {
            &self.strange
        };
        of.fetch_add(1, Ordering::SeqCst);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.shrink(Bytes(want))
    }
}

impl Life {
    /// From a part of its max on, which moves, and which is no part of the max above unless it has
    /// none of its own.
    pub(super) fn background(&mut self, op: &Op, percent: u8, moves: u16) {
        let part = Percent::new(percent).expect("a percentage");
        let actor = self.actor(op);
        actor.run(move || reclaimed_in_background(part, moves));
        actor.run(move || reclaimed_for_a_line(moves));
    }
}

/// A charge waits for what a cache holds that is no reclaimer yet, of its group or of the one above:
/// it has its bytes soon after the cache is one.
fn reclaimed_for_a_line(moves: u16) {
    let runtime = Runtime::builder().batch(0).max(limit(ROOT));
    let runtime = runtime.build().expect("a configuration that holds");
    let group = runtime.root().create("waits", Limits::new());
    let group = group.expect("nothing is in the way");
    let of_cache = [runtime.root(), group.clone()][usize::from(moves % 2)].clone();
    let cache = Arc::new(Gives {
        held: Mutex::new(of_cache.charge(Bytes(ROOT)).expect("it fits")),
        asked: AtomicU64::new(0),
        strange: AtomicU64::new(0),
    });
    let mut waits = Box::pin(group.charge_async(Bytes(UNIT)));
    let mut poll = || waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending(), "nothing is left");
    let asked = Arc::clone(&cache) as Arc<dyn Reclaim>;
    let registration = of_cache.register_reclaimer(asked, ReclaimPriority::NORMAL);
    rest();
    let Poll::Ready(charged) = poll() else {
        panic!("a charge waits, and the new reclaimer is not asked");
    };
    assert_eq!(
        charged.map(|charge| charge.bytes()).ok(),
        Some(UNIT),
        "what has waited"
    );
    drop(registration);
}

fn reclaimed_in_background(part: Percent, mut moves: u16) {
    let runtime = Runtime::builder().batch(0).max(limit(ROOT));
    let runtime = runtime.build().expect("a configuration that holds");
    let limits = Limits::new().reclaim_above(Limit::Percent(part));
    let group = runtime.root().create("background", limits);
    let group = group.expect("nothing is in the way");
    let cache = Arc::new(Gives {
        held: Mutex::new(group.charge(0).expect("nothing")),
        asked: AtomicU64::new(0),
        strange: AtomicU64::new(0),
    });
    let asked = Arc::clone(&cache) as Arc<dyn Reclaim>;
    let registration = group.register_reclaimer(asked, ReclaimPriority::NORMAL);
    let mut has_crossed = false;
    for _ in 0..4 {
        fill(&cache, 0);
        let max = match moves % 4 {
            0 => u64::MAX,
            units => u64::from(units) * 20 * UNIT,
        };
        moves /= 4;
        // The max above moves, too, and the part goes with that where the group has no max of its
        // own.
        let root = if moves.is_multiple_of(3) {
            ROOT
        } else {
            ROOT - 10 * UNIT
        };
        if has_crossed {
            runtime.root().set_max(limit(root)).expect("no percentage");
        }
        let root = runtime.root().max();
        if moves.is_multiple_of(2) {
            group.set_max(limit(max)).expect("no percentage");
        } else {
            // Both at once: the part is one of the max that comes with it.
            let limits = Limits::new().reclaim_above(Limit::Percent(part));
            group
                .set_limits(limits.max(limit(max)))
                .expect("a max is above");
        }
        let above = part.of(max.min(root));
        // Up to there nobody is asked. Later on the thread may be at it still.
        fill(&cache, above);
        let asked = cache.asked.load(Ordering::SeqCst);
        assert!(has_crossed || asked == 0, "{above} are used, and no more");
        // Beyond it usage falls to a sixteenth below it.
        if group.usage() == above {
            fill(&cache, above + 1);
        }
        has_crossed = true;
        rest();
        let usage = group.usage();
        assert!(
            usage <= above - above / 16,
            "{usage} are used of {max}, reclaimed from {above} on"
        );
    }
    assert_eq!(cache.strange.load(Ordering::SeqCst), 0, "charges that fit");
    drop(registration);
    let mut held = cache.held.lock().unwrap_or_else(PoisonError::into_inner);
    held.shrink(Bytes(u64::MAX));
    assert_eq!(runtime.root().live(), 0, "live at the end");
}

/// The cache holds so much now.
fn fill(cache: &Gives, bytes: u64) {
    let mut held = cache.held.lock().unwrap_or_else(PoisonError::into_inner);
    let has = held.bytes();
    if bytes >= has {
        held.try_grow(Bytes(bytes - has)).expect("it fits");
    } else {
        held.shrink(Bytes(has - bytes));
    }
}
