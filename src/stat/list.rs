//! Lists through the entries of a vector: by index, in both directions, nothing allocated.
//!
//! A list is kept in the order in which its members were flushed last: who is new comes to the front, who has been
//! flushed goes to the back. So whoever still has to be flushed stands in front, and a flush that was interrupted goes
//! on where it was by looking at the first.

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// A member's neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    pub(super) const ALONE: Link = Link { prev: NONE, next: NONE };
}

/// What can be a member, of one list at a time.
pub(super) trait Linked {
    fn link(&mut self) -> &mut Link;
}

/// The ends of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(super) const EMPTY: List = List { first: NONE, last: NONE };

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(super) fn push_front<T: Linked>(&mut self, all: &mut [T], member: u32) {
        *all[member as usize].link() = Link { prev: NONE, next: self.first };
        match self.first() {
            Some(first) => all[first as usize].link().prev = member,
            None => self.last = member,
        }
        self.first = member;
    }

    fn push_back<T: Linked>(&mut self, all: &mut [T], member: u32) {
        *all[member as usize].link() = Link { prev: self.last, next: NONE };
        if self.last == NONE {
            self.first = member;
        } else {
            all[self.last as usize].link().next = member;
        }
        self.last = member;
    }

    /// Take out a member of this list.
    pub(super) fn remove<T: Linked>(&mut self, all: &mut [T], member: u32) {
        let Link { prev, next } = std::mem::replace(all[member as usize].link(), Link::ALONE);
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

    pub(super) fn move_to_back<T: Linked>(&mut self, all: &mut [T], member: u32) {
        if self.last != member {
            self.remove(all, member);
            self.push_back(all, member);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Member(Link);

    impl Linked for Member {
        fn link(&mut self) -> &mut Link {
            &mut self.0
        }
    }

    fn members(list: &List, all: &[Member]) -> Vec<u32> {
        let next = |&at: &u32| Some(all[at as usize].0.next).filter(|&next| next != NONE);
        std::iter::successors(list.first(), next).collect()
    }

    #[test]
    fn who_comes_stands_in_front_and_who_is_done_behind() {
        let mut all: Vec<_> = (0..4).map(|_| Member(Link::ALONE)).collect();
        let mut list = List::EMPTY;
        for member in 0..4 {
            list.push_front(&mut all, member);
        }
        assert_eq!(members(&list, &all), [3, 2, 1, 0]);
        list.move_to_back(&mut all, 3);
        list.move_to_back(&mut all, 1);
        list.move_to_back(&mut all, 1);
        assert_eq!(members(&list, &all), [2, 0, 3, 1]);
        for member in [0, 1, 2, 3] {
            list.remove(&mut all, member);
        }
        assert_eq!((list.first(), list.last), (None, NONE));
    }
}
