//! One after the other, round and round.

#![cfg(not(loom))]

/// Indices `0..len` in turn; where one lap stops the next goes on.
pub(crate) struct Turns {
    len: usize,
    next: usize,
}

impl Turns {
    /// Threads start at different places, so that they do not move over the same lines in step.
    pub(crate) fn new(len: usize, thread: usize, threads: usize) -> Self {
        Turns {
            len,
            next: thread * len / threads,
        }
    }

    /// The index, its wrap and the look-up by it are part of what is timed: under a nanosecond, for
    /// every policy alike.
    #[inline(always)]
    pub(crate) fn run(&mut self, times: u64, mut step: impl FnMut(usize)) {
        let mut index = self.next;
        for _ in 0..times {
            step(index);
            index += 1;
            if index == self.len {
                index = 0;
            }
        }
        self.next = index;
    }
}
