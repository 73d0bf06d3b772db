//! A snapshot as JSON.

use memcg::barrier::BarrierState;
use memcg::figures::{Snapshot, SnapshotRow};
use serde::Serialize;

#[derive(Serialize)]
struct Json<'a> {
    /// Changes with what is here.
    format: u32,
    barrier: &'static str,
    rows: &'a [SnapshotRow],
}

/// Returns a snapshot as one line of JSON: an object with `format` (1), `barrier` (`membarrier`,
/// `fence` or `degraded`) and `rows`, each with the fields of [`SnapshotRow`]. A limit that is not
/// set is `null`.
///
/// ```
/// use memcg::Runtime;
///
/// let runtime = Runtime::builder().max(1 << 20).build()?;
/// let json = memcg_observe::json(&runtime.snapshot());
/// assert!(json.starts_with("{\"format\":1,\"barrier\":\""));
/// assert!(json.contains("\"path\":\"/\",\"depth\":0,\"live\":0"));
/// # Ok::<(), memcg::BuildError>(())
/// ```
pub fn json(snapshot: &Snapshot) -> String {
    let barrier = match snapshot.barrier() {
        BarrierState::Membarrier => "membarrier",
        BarrierState::Fence => "fence",
        BarrierState::Degraded => "degraded",
        _ => "unknown",
    };
    let json = Json {
        format: 1,
        barrier,
        rows: snapshot.rows(),
    };
    // The figures are numbers and texts, and the keys are texts: none of it fails.
    serde_json::to_string(&json).unwrap_or_default()
}
