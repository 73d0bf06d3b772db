//! The memory of the process.

use std::path::Path;

use crate::layout::Layout;
use crate::{HostError, files};

/// The memory of the process: see [`Host::memory`](crate::Host::memory). All figures are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostMemory {
    /// Pages of the process in memory: anonymous memory, files that it has mapped, shared memory.
    pub resident: u64,
    /// Anonymous pages of the process in memory: its heap and its stacks. Where the system does not
    /// tell them apart, it is [`resident`](Self::resident), which is not less.
    pub anon: u64,
    /// Anonymous pages of the process that are swapped out; 0 where the system does not say.
    pub swapped: u64,
    /// Anonymous memory of all processes in the control group, or in the nearest one above that has
    /// the controller. `None` where there is none, or its file cannot be read.
    pub group_anon: Option<u64>,
}

impl HostMemory {
    pub(crate) fn read(root: &Path) -> Result<HostMemory, HostError> {
        let path = root.join("proc/self/status");
        let status = files::read(&path)?;
        let figure = |key| files::number(&status, key);
        let Some(resident) = figure("VmRSS") else {
            return Err(HostError::malformed(path, "a line VmRSS", &status));
        };
        let others = figure("RssFile").zip(figure("RssShmem"));
        let without_others =
            others.map(|(file, shmem)| resident.saturating_sub(file).saturating_sub(shmem));
        let anon = figure("RssAnon").or(without_others).unwrap_or(resident);
        let swapped = figure("VmSwap").unwrap_or(0);
        Ok(HostMemory {
            resident,
            anon,
            swapped,
            group_anon: group_anon(root),
        })
    }
}

/// Version 1 counts what is below in `total_rss`; version 2 counts it in all figures. The group at
/// the top of version 2 has no limit, and its figures are the machine's.
fn group_anon(root: &Path) -> Option<u64> {
    let layout = Layout::find(root);
    let (levels, key, limit) = match (layout.v1, layout.v2) {
        (Some(levels), _) => (levels, "total_rss", "memory.limit_in_bytes"),
        (None, levels) => (levels?, "anon", "memory.max"),
    };
    let dir = levels.dirs().find(|dir| dir.join(limit).exists())?;
    files::number(&files::read_if_there(&dir.join("memory.stat")).ok()??, key)
}
