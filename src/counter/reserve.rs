//! Charges of groups that cover: such a group has no stock for charges, so each one walks, and
//! moves the reserved bytes of its levels. `cover.md` is the protocol.

use std::convert::Infallible;

use crate::counter::at_limit::{self, DrainReach};
use crate::counter::bookkeeping;
use crate::counter::cover::{come, go_below, note_charged, take_reserved};
use crate::counter::level::ChargeMode;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::SlowPath;
use crate::counter::spare_word::CoverSide;
use crate::counter::walk::{self, Walked};
use crate::thread::slow_path::Entered;

/// Charges `n` bytes to a covering counter, or none of them. Returns the bytes by which usage has
/// risen: those go up the tree, and a delay above a high is for them.
#[cold]
pub(crate) fn charge<'a>(
    counter: &'a Counter,
    n: u64,
    reach: DrainReach,
) -> Result<u64, LevelRefusal<'a>> {
    let path = SlowPath::enter();
    let mut rise = 0;
    come(
        counter,
        n,
        CoverSide::Reserved,
        None,
        |level, more, above| {
            admit(level, &path, more, above, reach)?;
            note_charged(level, more, above);
            rise = more.max(rise);
            Ok(())
        },
    )?;
    bookkeeping::audit_charged(counter, path.own_block(), n);
    Ok(rise)
}

/// Charges `n` bytes to a covering counter, by force what does not fit after a drain.
#[cold]
pub(crate) fn force(counter: &Counter, n: u64) {
    let path = SlowPath::enter();
    let forced = come(
        counter,
        n,
        CoverSide::Reserved,
        None,
        |level, more, above| {
            // As any forced charge: first what fits after a drain, then the rest above max.
            if admit(level, &path, more, above, DrainReach::AllThreads).is_err() {
                let walked = walk::walk(level, more, ChargeMode::Force, above);
                if walked.is_ok_and(|walked| walked.above_max.is_some())
                    && let Some(outermost) = path.outermost()
                {
                    at_limit::close_crossed(level, outermost);
                }
            }
            note_charged(level, more, above);
            Ok::<_, Infallible>(())
        },
    );
    let Ok(_) = forced;
    bookkeeping::audit_charged(counter, path.own_block(), n);
}

/// Charges a level and those above it, up to `above`, in transit: a thread that lowers a max waits
/// for this walk. Where it is refused, it drains what credit it may and tries again.
pub(super) fn admit<'a>(
    level: &'a Counter,
    path: &Entered,
    n: u64,
    above: Option<&'a Counter>,
    reach: DrainReach,
) -> Result<Walked<'a>, LevelRefusal<'a>> {
    let walked = level.in_transit(path.own_block(), |_| {
        walk::walk(level, n, ChargeMode::Admit, above)
    });
    // Mutation: transfer-refused-while-credit-is-stranded
    walked.or_else(|refusal| at_limit::retry(level, path, n, above, refusal, reach))
}

/// Gives back `n` bytes that were charged to a covering counter, and keep it. Afterwards the
/// counter may be gone.
#[cold]
pub(crate) fn uncharge(counter: &Counter, n: u64) {
    let path = SlowPath::enter();
    let alone = path.own_block();
    let (taken, _kept) = take_reserved(counter, n, None);
    // The audit counts first: see `Counter::give_back`.
    bookkeeping::audit_uncharged(counter, alone, taken);
    let fallen = counter.in_transit(alone, |_| {
        go_below(counter, taken, CoverSide::Reserved, None)
    });
    fallen.serve_waiters();
}
