//! The memory that an object takes: resident bytes of a process of its own for each row.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;

use memcg_alloc::{LARGE_OBJECTS, MemcgAlloc, PROCESS_ONLY};
use mimalloc::MiMalloc;
use tikv_jemallocator::Jemalloc;
use tracking_allocator::Allocator as Tracking;

use crate::malloc;

const OBJECTS: [(usize, usize); 5] = [
    (24, 400_000),
    (64, 400_000),
    (1_024, 50_000),
    (4_096, 20_000),
    (65_536, 2_000),
];
const INNERS: [&str; 3] = ["glibc", "jemalloc", "mimalloc"];
const WRAPPERS: [&str; 5] = [
    "bare",
    "process only",
    "above 1 KiB",
    "every object",
    "tracking",
];

fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .expect("pages")
        * 4_096
}

fn fill<A: GlobalAlloc>(allocator: &A, size: usize, count: usize) -> f64 {
    let layout = Layout::from_size_align(size, 8).expect("a layout");
    let fill = || {
        // SAFETY: the layout has a size; the object is never freed.
        unsafe {
            let object = malloc(allocator, layout);
            object.write_bytes(1, size);
        }
    };
    // Memory that the first objects bring in is no object's.
    (0..count / 10).for_each(|_| fill());
    let before = resident();
    (0..count).for_each(|_| fill());
    (resident() - before) as f64 / count as f64
}

fn over<A: GlobalAlloc>(inner: A, wrapper: &str, size: usize, count: usize) -> f64 {
    match wrapper {
        "bare" => fill(&inner, size, count),
        "process only" => fill(
            &MemcgAlloc::<A, PROCESS_ONLY>::with_threshold(inner),
            size,
            count,
        ),
        "above 1 KiB" => fill(
            &MemcgAlloc::<A, LARGE_OBJECTS>::with_threshold(inner),
            size,
            count,
        ),
        "every object" => fill(&MemcgAlloc::new(inner), size, count),
        _ => fill(&Tracking::from_allocator(inner), size, count),
    }
}

/// Prints the figure of one row, `INNER WRAPPER`, for objects of `size` bytes.
pub(crate) fn of_row(row: &str, size: usize) {
    let (inner, wrapper) = row.split_once(' ').expect("INNER WRAPPER");
    let count = OBJECTS
        .iter()
        .find(|&&(of, _)| of == size)
        .expect("a size of the table")
        .1;
    println!(
        "{}",
        match inner {
            "glibc" => over(System, wrapper, size, count),
            "jemalloc" => over(Jemalloc, wrapper, size, count),
            _ => over(MiMalloc, wrapper, size, count),
        }
    );
}

pub(crate) fn table() {
    let program = std::env::current_exe().expect("this program");
    println!("resident bytes of an object");
    for inner in INNERS {
        for (size, _) in OBJECTS {
            print!("{inner:9}{size:6}");
            for wrapper in WRAPPERS {
                let row = format!("{inner} {wrapper}");
                let said = Command::new(&program)
                    .args(["--resident", &size.to_string(), &row])
                    .output();
                let said = String::from_utf8(said.expect("it runs").stdout).expect("text");
                print!(
                    "   {wrapper} {:.1}",
                    said.trim().parse::<f64>().expect("a number")
                );
            }
            println!();
        }
    }
}
