//! The kernel's search for the node of a page of vmalloc memory: a walk through four levels of page
//! tables, and a look at the page's descriptor (`vmalloc_to_page`, `page_to_nid`). Here through
//! tables of the same shape in memory.

#![cfg(not(loom))]

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

const BITS: u32 = 9;
const LEVELS: u32 = 4;
const PAGE_BITS: u32 = 12;

/// Entries of a table, of tables of the next level; in the last, of descriptors. 0 for none.
type Table = [u32; 1 << BITS];

/// Descriptors are as large as the kernel's.
#[repr(align(64))]
struct Descriptor {
    flags: u64,
}

pub(crate) struct Walk {
    tables: Vec<Table>,
    descriptors: Vec<Descriptor>,
}

impl Walk {
    pub(crate) fn new() -> Self {
        Walk {
            tables: vec![[0; 1 << BITS]],
            descriptors: vec![Descriptor { flags: 0 }],
        }
    }

    pub(crate) fn set(&mut self, range: Range<usize>, node: u16) {
        for page in range.step_by(1 << PAGE_BITS) {
            let mut table = 0;
            for level in (1..LEVELS).rev() {
                let next = self.tables[table][index(page, level)];
                table = match next {
                    0 => {
                        let made = self.tables.len();
                        self.tables.push([0; 1 << BITS]);
                        self.tables[table][index(page, level)] = made as u32;
                        made
                    }
                    next => next as usize,
                };
            }
            self.tables[table][index(page, 0)] = self.descriptors.len() as u32;
            // The node stands in the upper bits.
            self.descriptors.push(Descriptor {
                flags: u64::from(node) << 54,
            });
        }
    }

    /// The node of an address.
    #[inline]
    pub(crate) fn look_up(&self, address: usize) -> usize {
        let mut entry = 0;
        for level in (0..LEVELS).rev() {
            entry = self.tables[entry][index(address, level)] as usize;
        }
        (self.descriptors[entry].flags >> 54) as usize
    }

    /// Nanoseconds of a look-up, one for each of some addresses in turn.
    pub(crate) fn nanos(&self, addresses: &[usize]) -> f64 {
        const TIMES: usize = 2_000;
        let mut runs = Vec::new();
        for _ in 0..31 {
            let start = Instant::now();
            for _ in 0..TIMES / 10 {
                for address in addresses {
                    black_box(self.look_up(black_box(*address)));
                }
            }
            runs.push(start.elapsed().as_secs_f64() * 1e9 / (TIMES / 10 * addresses.len()) as f64);
        }
        crate::common::stats::median(runs).unwrap_or_default()
    }
}

fn index(address: usize, level: u32) -> usize {
    address >> (PAGE_BITS + level * BITS) & ((1 << BITS) - 1)
}
