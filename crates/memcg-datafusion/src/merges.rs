//! Memory that sorts reserve for their merges, before they read a row.

use datafusion::common::config::ConfigOptions;
use datafusion::prelude::SessionConfig;

/// Sorts of one plan hold at most such a part of the group's max for merging.
const FOR_MERGES_PART: u64 = 8;
/// They reserve at least so much each.
const FOR_MERGE_MIN: u64 = 64 << 10;

/// Scales what each sort reserves for its merge to a max for which DataFusion's default is too much:
/// the sorts of four partitions hold 40 MiB before they read a row. A value that the service has
/// set stays.
pub(crate) fn leave_room_beside_sorts(config: &mut SessionConfig, max: u64) {
    let execution = &config.options().execution;
    let partitions = execution.target_partitions.max(1) as u64;
    let reserved = execution.sort_spill_reservation_bytes;
    let is_default = reserved == ConfigOptions::new().execution.sort_spill_reservation_bytes;
    let most = (max / FOR_MERGES_PART / partitions).max(FOR_MERGE_MIN);
    if is_default && most < reserved as u64 {
        config.options_mut().execution.sort_spill_reservation_bytes =
            usize::try_from(most).unwrap_or(reserved);
    }
}
