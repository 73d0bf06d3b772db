//! The objects that a thread has taken from pools and has not reported yet, in words of the thread's own, for feature
//! `tracing`.

use std::cell::Cell;

use crate::sync::per_thread;

/// The most objects of one slow path that a thread reports. The first write of statistics far below the root takes most
/// objects: one for each level.
const MOST: usize = 16;

/// One object that the thread has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) pool: &'static str,
    pub(crate) asked: usize,
    pub(crate) given: usize,
    pub(crate) node: Option<u16>,
    pub(crate) recycled: bool,
}

struct AllTaken {
    first: [Cell<Option<Taken>>; MOST],
    /// All objects, those that have no place in `first` included.
    count: Cell<usize>,
    telling: Cell<bool>,
}

impl AllTaken {
    const fn new() -> Self {
        AllTaken { first: [const { Cell::new(None) }; MOST], count: Cell::new(0), telling: Cell::new(false) }
    }
}

per_thread!(with_all: AllTaken = AllTaken::new());

/// Notes an object, unless this thread reports objects now.
pub(crate) fn note_taken(taken: Taken) {
    with_all(|all| {
        if !all.telling.get() {
            if let Some(place) = all.first.get(all.count.get()) {
                place.set(Some(taken));
            }
            all.count.set(all.count.get() + 1);
        }
    });
}

/// Reports the noted objects in turn by `tell`, and last by `tell_more` how many more there were, if any.
#[inline]
pub(crate) fn tell_taken(tell: impl Fn(Taken), tell_more: impl FnOnce(usize)) {
    with_all(|all| {
        if all.count.get() == 0 || all.telling.replace(true) {
            return;
        }
        all.first.iter().filter_map(Cell::take).for_each(tell);
        let more = all.count.replace(0).saturating_sub(MOST);
        if more > 0 {
            tell_more(more);
        }
        all.telling.set(false);
    });
}
