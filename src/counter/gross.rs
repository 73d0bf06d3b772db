//! Bytes that an allocator has handed out in small objects of a counter, ever. A statistic: `thread::small` counts them.

use crate::counter::object::Counter;
use crate::thread::block::Block;
use crate::thread::tally::Tally;
use crate::thread::unowned;

/// Over all threads.
pub(crate) fn bytes(counter: &Counter) -> u64 {
    let of_block = |block: &Block| {
        let handed = block.gross.get(counter.index).map_or(0, Tally::net);
        handed.wrapping_add(block.unowned.pending(counter.header))
    };
    counter.tree().registry.blocks().map(of_block).fold(0, u64::wrapping_add)
}

/// Starts over for the next counter with the object. No thread uses the counter.
pub(crate) fn reset(counter: &Counter) {
    if unowned::any_of_groups() {
        for block in counter.tree().registry.blocks() {
            block.unowned.forget(counter.header);
            block.gross.get(counter.index).inspect(|cell| cell.reset());
        }
    }
}
