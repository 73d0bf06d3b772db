//! The job of the example, and the heap that it really takes.

#[path = "counting.rs"]
mod counting;

use counting::{Heap, assert_close};
use memcg::{Charged, Limits, Runtime};
use rayon::prelude::*;

use super::{extract, pool_in, totals_of, transform};

#[test]
fn heap_is_what_the_job_is_charged() {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create("job", Limits::new()).unwrap();
    let pool = pool_in(&group, 2).unwrap();
    // What the pool and the runtime keep for each worker.
    drop(pool.install(|| totals_of(0..4)).unwrap());
    assert_eq!(group.live(), 0);

    let heap = Heap::measure();
    let texts: Vec<_> = pool.install(|| (0..40).into_par_iter().map(extract).collect());
    assert_close("texts", heap.live(), group.live());
    drop(texts);

    let heap = Heap::measure();
    let orders: Vec<_> = pool.install(|| {
        (0..40)
            .into_par_iter()
            .map(|day| transform(&extract(day)?))
            .collect()
    });
    assert_close("orders", heap.live(), group.live());
    drop(orders);

    // The hash tables: what they are is charged. What they were while they grew is not.
    let heap = Heap::measure();
    let totals = pool.install(|| totals_of(0..100)).unwrap();
    assert_eq!(Charged::charge(&totals).bytes(), group.live());
    assert_close("totals", heap.live(), group.live());
    println!("job: heap's peak {}, charged {}", heap.peak(), group.peak());
}
