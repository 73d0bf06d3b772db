//! Lists through the entries of a vector: linked by index, in both directions, without allocation.
//!
//! A list is in the order of the numbers of the flushes that are done with its members. A new
//! member comes to the front, and a member that has been flushed goes behind. So the members that a
//! flush must still visit are in front, and an interrupted flush goes on with the first.

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// A member's neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    prev: u32,
    next: u32,
    /// The last flush that is done with the member, and with everything below it.
    pub(super) done: u64,
}

impl Link {
    pub(super) const ALONE: Link = Link {
        prev: NONE,
        next: NONE,
        done: 0,
    };
}

/// An entry that can be a member of one list at a time.
pub(super) trait ListMember {
    fn link(&mut self) -> &mut Link;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FlushList {
    first: u32,
    last: u32,
}

impl FlushList {
    pub(super) const EMPTY: FlushList = FlushList {
        first: NONE,
        last: NONE,
    };

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(super) fn push_front<T: ListMember>(&mut self, all: &mut [T], member: u32) {
        self.join(all, member, self.first);
        self.join(all, NONE, member);
    }

    /// Makes two members neighbours. With [`NONE`] on one side the other member is at that end of
    /// the list.
    fn join<T: ListMember>(&mut self, all: &mut [T], prev: u32, next: u32) {
        if prev == NONE {
            self.first = next;
        } else {
            all[prev as usize].link().next = next;
        }
        if next == NONE {
            self.last = prev;
        } else {
            all[next as usize].link().prev = prev;
        }
    }

    /// Takes out a member of this list.
    pub(super) fn remove<T: ListMember>(&mut self, all: &mut [T], member: u32) {
        let link = all[member as usize].link();
        let Link { prev, next, done } = *link;
        *link = Link {
            done,
            ..Link::ALONE
        };
        self.join(all, prev, next);
    }

    /// Notes that a flush is done with the member, and moves it behind those of earlier flushes.
    /// Few members have a later number, so the search starts from behind.
    pub(super) fn done<T: ListMember>(&mut self, all: &mut [T], member: u32, flush: u64) {
        all[member as usize].link().done = flush;
        // It is behind all others already, as mostly when a flush goes through the list once.
        if self.last == member {
            return;
        }
        self.remove(all, member);
        let mut prev = self.last;
        let mut next = NONE;
        // A flush that was interrupted has an older number than one that has begun since. Its
        // members go before those, so the order stays.
        while prev != NONE && all[prev as usize].link().done > flush {
            next = prev;
            prev = all[prev as usize].link().prev;
        }
        self.join(all, prev, member);
        self.join(all, member, next);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    struct Linkable(Link);

    impl ListMember for Linkable {
        fn link(&mut self) -> &mut Link {
            &mut self.0
        }
    }

    fn members(list: &FlushList, all: &[Linkable]) -> Vec<u32> {
        let next = |&at: &u32| Some(all[at as usize].0.next).filter(|&next| next != NONE);
        std::iter::successors(list.first(), next).collect()
    }

    #[test]
    fn new_members_are_in_front_and_flushed_ones_behind() {
        let mut all: Vec<_> = (0..4).map(|_| Linkable(Link::ALONE)).collect();
        let mut list = FlushList::EMPTY;
        for member in 0..4 {
            list.push_front(&mut all, member);
        }
        assert_eq!(members(&list, &all), [3, 2, 1, 0]);
        list.done(&mut all, 3, 1);
        list.done(&mut all, 1, 2);
        list.done(&mut all, 1, 2);
        assert_eq!(members(&list, &all), [2, 0, 3, 1]);
        list.done(&mut all, 0, 1);
        assert_eq!(
            members(&list, &all),
            [2, 3, 0, 1],
            "an earlier flush that comes late"
        );
        for member in [0, 1, 2, 3] {
            list.remove(&mut all, member);
        }
        assert_eq!((list.first(), list.last), (None, NONE));
    }
}
