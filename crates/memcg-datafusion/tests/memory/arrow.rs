//! Arrow's own pool over a group.

use arrow_buffer::{Buffer, MemoryPool, MutableBuffer};
use memcg::Limits;
use memcg_datafusion::ArrowPool;

use crate::data::{assert_empty, runtime};

#[test]
fn a_buffer_is_charged_to_the_last_pool_that_claims_it() {
    let runtime = runtime();
    let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    let buffer = Buffer::from_vec(vec![0_u8; 1_000]);
    let shared = buffer.slice(10);
    buffer.claim(&ArrowPool::new(&a));
    shared.claim(&ArrowPool::new(&a));
    assert_eq!((a.live(), b.live()), (1_000, 0), "once, whatever shares it");
    shared.claim(&ArrowPool::new(&b));
    assert_eq!((a.live(), b.live()), (0, 1_000));
    drop(buffer);
    assert_eq!(b.live(), 1_000, "the slice keeps it");
    std::thread::spawn(move || drop(shared)).join().unwrap();
    drop((a, b));
    assert_empty(&runtime);
}

/// A buffer that grows is charged what it then has.
#[test]
fn a_buffer_may_grow() {
    let runtime = runtime();
    let a = runtime.root().create("a", Limits::new()).unwrap();
    let mut buffer = MutableBuffer::from_len_zeroed(1_000);
    buffer.claim(&ArrowPool::new(&a));
    let before = a.live();
    buffer.resize(100_000, 1);
    assert!(
        before >= 1_000 && a.live() >= 100_000,
        "{before}, {}",
        a.live()
    );
    buffer.truncate(10);
    buffer.shrink_to_fit();
    assert!(a.live() < before, "{}", a.live());
    drop(buffer);
    assert_eq!(a.live(), 0);
}

/// The pool refuses no memory that exists already: it is above max by force, and the pool says what
/// is missing.
#[test]
fn above_max_the_pool_is_below_zero() {
    let runtime = runtime();
    let a = runtime
        .root()
        .create("a", Limits::new().max(1_000))
        .unwrap();
    let pool = ArrowPool::new(&a);
    assert_eq!(
        (pool.capacity(), pool.available(), pool.used()),
        (1_000, 1_000, 0)
    );
    let mut held = pool.reserve(700);
    assert_eq!(
        (pool.available(), pool.used(), held.size()),
        (300, 700, 700)
    );
    held.resize(1_200);
    assert_eq!(
        (pool.available(), a.forced(), held.size()),
        (-200, 200, 1_200)
    );
    held.resize(0);
    assert_eq!((pool.available(), pool.used()), (1_000, 0));
    drop(held);
    assert_eq!(a.live(), 0);
}
