//! Objects of the pools, and the groups that they are of.

use super::Life;
use crate::holds::{Holds, ensure, ensure_eq};

impl Life {
    /// Rows of the pools add up. A group that has gone has no object any more.
    pub(super) fn pools_hold(&self) -> Holds {
        let Some(runtime) = &self.runtime else {
            return Ok(());
        };
        let pools = runtime.pools();
        for row in pools.rows() {
            let align = if self.setup.packed { 8 } else { 128 };
            ensure_eq!(row.align, align, "alignment of {row:?}");
            let given = row.asked.next_multiple_of(row.align);
            ensure_eq!(
                (row.given, row.waste),
                (given, given - row.asked),
                "(given, waste) of {row:?}"
            );
            ensure!(
                row.objects_per_chunk * row.given <= row.chunk,
                "more than a chunk has: {row:?}"
            );
            let objects = (row.chunks * row.objects_per_chunk) as u64;
            ensure_eq!(row.live + row.free, objects, "objects of {row:?}");
        }
        if !self.keeps && self.shared.is_quiet() {
            let there = self.there() as u64;
            let most = self.pools[0] + there - 1;
            let live = pools.rows()[0].live;
            ensure!(live <= most, "{live} objects for {there} groups");
        }
        Ok(())
    }

    /// An id finds its own group as long as that is there, and nothing afterwards.
    pub(super) fn ids_hold(&self) -> Holds {
        let Some(runtime) = &self.runtime else {
            return Ok(());
        };
        for (group, &id) in self.ids.iter().enumerate() {
            let found = runtime.find(id).map(|found| found.id());
            if self.is_there(group) {
                ensure_eq!(found, Some(id), "a group that is there");
            } else if !self.keeps && self.shared.is_quiet() {
                ensure_eq!(found, None, "{id}, which has gone");
            }
        }
        Ok(())
    }
}
