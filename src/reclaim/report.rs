//! Result of reclaim.

/// What [`Group::reclaim`](crate::Group::reclaim) has done.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let report = runtime.root().reclaim(4_096)?;
/// assert_eq!((report.requested, report.freed, report.visited), (4_096, 0, 0), "no group has anything to give");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReclaimReport {
    /// Bytes that were asked for.
    pub requested: u64,
    /// Bytes that reclaimers have freed, as far as it shows: by what this thread has uncharged, or
    /// by how much usage fell.
    pub freed: u64,
    /// Bytes that reclaimers have [promised](crate::ReclaimContext::promise) and not yet reported.
    pub pending: u64,
    /// How often a group with reclaimers was visited.
    pub visited: u64,
    /// How many of those visits were to groups in excess of their soft limits.
    pub soft_visited: u64,
    /// How many calls of reclaimers panicked.
    pub panics: u64,
    /// True if the time was over before enough had been freed.
    pub timed_out: bool,
}

impl ReclaimReport {
    /// Another round for the same request.
    pub(crate) fn add(&mut self, round: &ReclaimReport) {
        self.freed = self.freed.saturating_add(round.freed);
        self.pending = self.pending.saturating_add(round.pending);
        self.visited += round.visited;
        self.soft_visited += round.soft_visited;
        self.panics += round.panics;
        self.timed_out |= round.timed_out;
    }
}
