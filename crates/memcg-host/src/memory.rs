//! What the process has in memory.

use std::path::Path;

use crate::layout::Layout;
use crate::{HostError, files};

/// What the process has in memory: see [`Host::memory`](crate::Host::memory). All figures are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostMemory {
    /// Pages of the process in memory: anonymous memory, files that it has mapped, shared memory.
    pub resident: u64,
    /// Anonymous pages of the process in memory: its heap and its stacks.
    pub anon: u64,
    /// Anonymous pages of the process that are swapped out.
    pub swapped: u64,
    /// Anonymous memory of all processes in the control group. `None` where there is no group with the controller.
    pub group_anon: Option<u64>,
}

impl HostMemory {
    pub(crate) fn read(root: &Path) -> Result<HostMemory, HostError> {
        let path = root.join("proc/self/status");
        let status = files::read(&path)?;
        let figure = |key, expected| {
            files::number(&status, key).ok_or_else(|| HostError::malformed(path.clone(), expected, &status))
        };
        let resident = figure("VmRSS", "a line VmRSS")?;
        let anon = figure("RssAnon", "a line RssAnon")?;
        let swapped = files::number(&status, "VmSwap").unwrap_or(0);
        Ok(HostMemory { resident, anon, swapped, group_anon: group_anon(root)? })
    }
}

/// Version 1 counts what is below in `total_rss`; version 2 counts it in all figures.
fn group_anon(root: &Path) -> Result<Option<u64>, HostError> {
    let layout = Layout::find(root);
    let (levels, key) = match (&layout.v1, &layout.v2) {
        (Some(levels), _) => (levels, "total_rss"),
        (None, Some(levels)) => (levels, "anon"),
        (None, None) => return Ok(None),
    };
    let Some(own) = levels.0.first() else { return Ok(None) };
    let stat = files::read_if_there(&own.join("memory.stat"))?;
    Ok(stat.and_then(|stat| files::number(&stat, key)))
}
