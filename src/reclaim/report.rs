//! Result of reclaim.

/// Result of [`Group::reclaim`](crate::Group::reclaim). In bytes, but for the counts.
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
    /// Asked for.
    pub requested: u64,
    /// Freed by reclaimers, as far as it shows.
    pub freed: u64,
    /// Taken on by reclaimers that report [later](crate::ReclaimContext::promise).
    pub pending: u64,
    /// Visits to groups with reclaimers.
    pub visited: u64,
    /// Visits in soft passes, which `visited` counts, too.
    pub soft_visited: u64,
    /// Reclaimers that panicked.
    pub panics: u64,
    /// The time was up before enough had come.
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
