//! The counters that each group of a tree has beside memory: those that the builder declared, and
//! those that the root has places for and that are declared until the first group below it is
//! created.
//!
//! A place is a counter of the root from the start, which no thread can name before it is declared.
//! So a declaration touches no group. The thread that creates the first group ends them: groups
//! below the root have the counters that were declared until then, and no places.

use std::sync::OnceLock;

use crate::stat::Unit;
use crate::stat::item::next_builder;
use crate::sync::Ordering;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::AtomicU64;

/// A counter that every group has beside memory.
#[derive(Clone, Debug)]
pub(crate) struct CounterDecl {
    pub(crate) name: Box<str>,
    /// The builder, or the call, that declared it.
    pub(crate) builder: u64,
    pub(crate) unit: Unit,
}

pub(crate) struct DeclaredCounters {
    /// Who declared each: a charge of a set looks at nothing else. 0: nobody yet. Stored before the
    /// declaration itself, so that whoever finds a counter by its name has a key that is known
    /// here.
    builders: Box<[AtomicU64]>,
    /// The declared ones come first, and then places. They are set in this order, under the lock.
    declared: Box<[OnceLock<CounterDecl>]>,
    is_over: Lock<bool>,
    /// There were places for more at the start.
    had_places: bool,
}

/// Why no further counter was declared.
#[derive(Debug)]
pub(crate) enum NotDeclared {
    /// It is empty, taken, or that of memory.
    Name,
    /// The root has no place left, of so many counters.
    NoPlace(usize),
    /// A group exists, or has existed.
    Over,
}

/// A further counter may not be named so.
pub(crate) fn is_bad_name<'a>(name: &str, mut declared: impl Iterator<Item = &'a str>) -> bool {
    name.is_empty() || name == "memory" || declared.any(|other| other == name)
}

impl DeclaredCounters {
    pub(crate) fn new(declared: Vec<CounterDecl>, places: usize) -> DeclaredCounters {
        let undeclared = std::iter::repeat_with(OnceLock::new).take(places);
        let declared: Box<[_]> = declared
            .into_iter()
            .map(OnceLock::from)
            .chain(undeclared)
            .collect();
        let builder = |place: &OnceLock<CounterDecl>| place.get().map_or(0, |decl| decl.builder);
        DeclaredCounters {
            builders: declared.iter().map(builder).map(AtomicU64::new).collect(),
            declared,
            is_over: Lock::new(Rank::Bookkeeping, false),
            had_places: places > 0,
        }
    }

    /// The counter of that number, that of memory being 0, was declared by that builder.
    #[inline(always)]
    pub(crate) fn is_of(&self, number: usize, builder: u64) -> bool {
        // Relaxed: who has the key has it from the thread that declared the counter, or from the
        // declaration, which is set afterwards. A group below the root was created by a thread that
        // has ended declarations.
        number
            .checked_sub(1)
            .and_then(|at| self.builders.get(at))
            .is_some_and(|declared| declared.load(Ordering::Relaxed) == builder)
    }

    /// The counter of that number, if it is declared.
    pub(crate) fn get(&self, number: usize) -> Option<&CounterDecl> {
        self.declared.get(number.checked_sub(1)?)?.get()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &CounterDecl> {
        self.declared.iter().map_while(OnceLock::get)
    }

    /// How many are declared: a few loads, as each was set after those before it.
    pub(crate) fn count(&self) -> usize {
        self.declared.partition_point(|place| place.get().is_some())
    }

    /// The counters of the root beside memory, declared or not.
    pub(crate) fn count_at_root(&self) -> usize {
        self.declared.len()
    }

    /// Declares one more. Returns its number and its builder.
    pub(crate) fn declare(&self, name: &str, unit: Unit) -> Result<(usize, u64), NotDeclared> {
        // An allocator may charge what this allocates: outside of the lock.
        let builder = next_builder();
        let decl = CounterDecl {
            name: name.into(),
            builder,
            unit,
        };
        // Held to the end: two threads would take one place, or one name.
        let is_over = self.is_over.lock();
        if is_bad_name(name, self.iter().map(|decl| &*decl.name)) {
            return Err(NotDeclared::Name);
        }
        let many = self.count();
        // Where there never was a place, the reason is that, whether a group exists or not.
        if *is_over && self.had_places {
            return Err(NotDeclared::Over);
        }
        let Some(place) = self.declared.get(many) else {
            return Err(NotDeclared::NoPlace(many));
        };
        // The builder first: from `set` on other threads find the counter by its name, and charge
        // it.
        self.builders[many].store(builder, Ordering::Relaxed);
        let set = place.set(decl);
        debug_assert!(set.is_ok(), "places are declared in their order");
        Ok((many + 1, builder))
    }

    /// From here on no counter is declared. `Some`: the root has more counters than were, so that
    /// the groups below it have another shape. How many they have beside memory.
    pub(crate) fn end(&self) -> Option<usize> {
        // Every group that is created comes here: without places it takes no lock.
        if !self.had_places {
            return None;
        }
        *self.is_over.lock() = true;
        Some(self.count()).filter(|&many| many < self.count_at_root())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    /// A thread finds a counter while another declares it: the key that it makes of it is good.
    #[test]
    fn a_counter_that_is_found_is_known() {
        let rounds = if cfg!(miri) { 10 } else { 10_000 };
        let all: Vec<_> = (0..rounds)
            .map(|_| DeclaredCounters::new(Vec::new(), 8))
            .collect();
        let at = AtomicUsize::new(0);
        let mut unknown = 0;
        // The moment is short, so a thread mostly spins; it yields now and then, for processors may
        // be fewer than threads.
        let wait = |tries: &mut u32| {
            *tries += 1;
            if tries.is_multiple_of(128) {
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for (round, counters) in all.iter().enumerate() {
                    let mut tries = 0;
                    while at.load(Ordering::Acquire) < round {
                        wait(&mut tries);
                    }
                    for place in 0..8 {
                        let name = format!("c{place}");
                        counters.declare(&name, Unit::Bytes).expect("a place");
                    }
                }
            });
            for (round, counters) in all.iter().enumerate() {
                at.store(round, Ordering::Release);
                for number in 1..=8 {
                    let mut tries = 0;
                    let found = loop {
                        match counters.get(number) {
                            Some(found) => break found,
                            None => wait(&mut tries),
                        }
                    };
                    let is_known = counters.is_of(number, found.builder);
                    unknown += usize::from(!is_known || counters.count() < number);
                }
            }
        });
        assert_eq!(unknown, 0, "of {rounds} times eight");
    }
}
