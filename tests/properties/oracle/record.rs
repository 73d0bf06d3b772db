#![cfg(not(loom))]
//! Parts that the operations of all twins share, and their form in bytes.
//!
//! Bytes are read in records of four (one operation each, two bytes of a corpus file apart never
//! shift the rest), so that a mutation changes one operation and leaves the others as they were.

/// Threads that operations are spread over.
pub(crate) const THREADS: usize = 3;

/// One operation, by one of the threads, on one of the subjects: counters, groups or charges, as the
/// action needs. Both numbers are taken modulo what exists.
#[derive(Clone, Debug)]
pub(crate) struct Op<A> {
    pub(crate) thread: u8,
    pub(crate) subject: u8,
    pub(crate) action: A,
}

/// The first record makes the set-up, each further one an operation: code, subject, thread, size. A
/// rest of less than a record is ignored.
pub(crate) fn decode<S, A>(
    bytes: &[u8],
    setup: fn([u8; 4]) -> S,
    action: fn([u8; 4]) -> A,
) -> (S, Vec<Op<A>>) {
    let mut records = bytes.chunks_exact(4).map(|r| [r[0], r[1], r[2], r[3]]);
    let setup = setup(records.next().unwrap_or_default());
    let op = |record: [u8; 4]| Op {
        thread: record[2],
        subject: record[1],
        action: action(record),
    };
    (setup, records.map(op).collect())
}

pub(crate) fn pick<T: Copy>(from: &[T], index: u8) -> T {
    from[usize::from(index) % from.len()]
}
