//! Accounting where it is used: a map with a value for each processor is made, filled, read and
//! torn down, as the series' program does with maps of BPF. Making it asks the system for memory,
//! as that one enters the kernel.

#![cfg(not(loom))]
#![allow(
    unsafe_code,
    reason = "values are written through addresses, and a mapping is made by hand"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use memcg_kmem::PerCpuBytes;

use super::machine::Machine;

/// Bytes of what such a map has beside its values.
const HEAD: usize = 4_096;

pub(crate) fn run(machine: &Machine, ours: bool, size: usize, times: u64) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        map(machine, ours, black_box(size));
    }
    start.elapsed()
}

fn map(machine: &Machine, ours: bool, size: usize) {
    // SAFETY: a new private mapping at an address of the system's choice touches nothing that
    // exists.
    let head = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            HEAD,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert!(
        head != libc::MAP_FAILED,
        "{}",
        std::io::Error::last_os_error()
    );
    // SAFETY: within the mapping just made.
    unsafe { head.cast::<usize>().write_volatile(size) };
    let layout = Machine::layout(size);
    let values = if ours {
        machine.allocator.allocate(layout, &machine.group)
    } else {
        machine.allocator.allocate_uncharged(layout)
    };
    let values = values.expect("no limit");
    black_box(write_and_sum(&values));
    drop(values);
    // SAFETY: the mapping made above, and the last use of it.
    unsafe { libc::munmap(head, HEAD) };
}

fn write_and_sum(values: &PerCpuBytes) -> u64 {
    let copies = || (0..values.processor_count()).filter_map(|processor| values.as_ptr(processor));
    // SAFETY: each copy has eight bytes, aligned; no other thread has the object.
    copies().for_each(|copy| unsafe { copy.cast::<u64>().write_volatile(1) });
    copies()
        // SAFETY: as above.
        .map(|copy| unsafe { copy.cast::<u64>().read_volatile() })
        .sum()
}
