//! Values that are charged for what they weigh, which is what the allocator has given for them, and
//! vectors, gauges and charges that grow by their rarer calls: in a tree of their own.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use memcg::{
    Bytes, Charged, ChargedVec, CounterKey, Event, Gauge, Group, Limits, PageCounter, Reclaim,
    ReclaimContext, ReclaimPriority, Runtime, Unit, Weigh,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::Life;
use crate::denied;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Op, What, pick};

/// The max of the group.
const MAX: u64 = 64 << 10;

/// Bytes of an item of a vector.
const ITEM: u64 = size_of::<u64>() as u64;

impl Life {
    pub(super) fn weigh_values(&mut self, op: &Op) {
        let What::Weighed(steps, seed) = op.1 else {
            unreachable!("values that are weighed");
        };
        let lived = self.actor(op).run(move || live(steps, seed));
        if let Err(fault) = lived {
            panic!("{fault}");
        }
    }
}

fn live(steps: u8, seed: u64) -> Holds {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut builder = Runtime::builder().batch(0);
    let further = builder.counter("further", Unit::Bytes);
    let runtime = builder.build().expect("a configuration that holds");
    let limits = Limits::new().max(Bytes(MAX));
    let group = runtime.root().create("values", limits);
    let group = group.expect("nothing is in the way");
    for _ in 0..steps {
        match rng.random_range(0..8) {
            0..=3 => weigh_one(rng, &group)?,
            4 => fill_vector(rng, &group)?,
            5 => vector_beyond_its_max(rng, &group)?,
            6 => report(rng, &group)?,
            _ => grow(rng, &group, further)?,
        }
        ensure_eq!(group.live(), 0, "live after a step");
    }
    most_of_all(&runtime)?;
    let verdict = runtime.verify();
    ensure!(verdict.is_ok(), "{verdict}");
    // What was never charged is no bytes of others.
    let known = |group: &Group| {
        let (at, below) = (group.events().local(), group.events());
        let of = |events: memcg::figures::Events| events.get(Event::Underflow);
        (
            of(at),
            of(below),
            group.inspect().underflowed(),
            group.usage(),
        )
    };
    group.raw().uncharge(3);
    ensure_eq!(known(&group), (1, 1, 3, 0), "underflows of a group");
    ensure_eq!(
        known(&runtime.root()),
        (0, 1, 0, 0),
        "underflows below the root"
    );
    ensure!(!runtime.verify().is_ok(), "an underflow is not told");
    Ok(())
}

// === Weights ===

type Rng<'a> = &'a mut Xoshiro256PlusPlus;

fn text(rng: Rng<'_>) -> String {
    let mut text = String::with_capacity(rng.random_range(0..80));
    (0..text.capacity() / 2).for_each(|_| text.push('x'));
    text
}

fn bytes(rng: Rng<'_>) -> Vec<u8> {
    text(rng).into_bytes()
}

/// How a value grows, and is thinned out.
struct Kind<T> {
    add: fn(&mut T, Rng<'_>, u64),
    thin: fn(&mut T),
    /// Shrunk it takes no more than a copy.
    fits: bool,
}

fn weigh_one(rng: Rng<'_>, group: &Group) -> Holds {
    match rng.random_range(0..19) {
        0 => weigh(
            rng,
            group,
            Vec::<Vec<u8>>::new(),
            &Kind {
                add: |of, rng, _| of.push(bytes(rng)),
                thin: |of| of.truncate(1),
                fits: true,
            },
        ),
        1 => weigh(
            rng,
            group,
            String::new(),
            &Kind {
                add: |of, rng, _| of.push_str(&text(rng)),
                thin: |of| of.truncate(3),
                fits: true,
            },
        ),
        2 => weigh(
            rng,
            group,
            HashMap::<u64, String>::new(),
            &Kind {
                add: |of, rng, number| _ = of.insert(number, text(rng)),
                thin: |of| of.retain(|number, _| number % 8 == 0),
                fits: true,
            },
        ),
        3 => weigh(
            rng,
            group,
            HashMap::<String, Vec<u8>>::new(),
            &Kind {
                add: |of, rng, number| _ = of.insert(format!("{number}"), bytes(rng)),
                thin: |of| of.clear(),
                fits: false,
            },
        ),
        4 => weigh(
            rng,
            group,
            HashMap::<u64, HashMap<u64, u64>>::new(),
            &Kind {
                add: |of, _, number| _ = of.entry(number % 5).or_default().insert(number, number),
                thin: |of| {
                    let thin = |of: &mut HashMap<u64, u64>| of.retain(|number, _| number % 31 == 0);
                    of.values_mut().for_each(thin);
                },
                fits: true,
            },
        ),
        5 => weigh(
            rng,
            group,
            HashSet::<u64>::new(),
            &Kind {
                add: |of, _, number| _ = of.insert(number),
                thin: |of| of.retain(|number| number % 9 == 0),
                fits: true,
            },
        ),
        6 => weigh(
            rng,
            group,
            BTreeMap::<String, Vec<u8>>::new(),
            &Kind {
                add: |of, rng, number| _ = of.insert(format!("{}", number % 37), bytes(rng)),
                thin: |of| while of.len() > 1 && of.pop_last().is_some() {},
                fits: false,
            },
        ),
        7 => weigh(
            rng,
            group,
            BTreeSet::<String>::new(),
            &Kind {
                add: |of, _, number| _ = of.insert(format!("{number}")),
                thin: |of| while of.len() > 1 && of.pop_first().is_some() {},
                fits: false,
            },
        ),
        8 => weigh(
            rng,
            group,
            VecDeque::<String>::new(),
            &Kind {
                add: |of, rng, _| of.push_front(text(rng)),
                thin: |of| of.truncate(2),
                fits: true,
            },
        ),
        9 => weigh(
            rng,
            group,
            LinkedList::<String>::new(),
            &Kind {
                add: |of, rng, _| of.push_back(text(rng)),
                thin: |of| _ = of.pop_front(),
                fits: true,
            },
        ),
        10 => weigh(
            rng,
            group,
            (String::new(), Vec::<u64>::new(), Box::new([0_u64; 4])),
            &Kind {
                add: |of, rng, number| {
                    of.0.push_str(&text(rng));
                    of.1.push(number);
                },
                thin: |of| of.1.clear(),
                fits: true,
            },
        ),
        11 => weigh(
            rng,
            group,
            Ok::<Vec<String>, String>(Vec::new()),
            &Kind {
                add: |of, rng, _| {
                    if let Ok(of) = of {
                        of.push(text(rng));
                    }
                },
                thin: |of| *of = Err(String::with_capacity(40)),
                fits: true,
            },
        ),
        12 => weigh(
            rng,
            group,
            BinaryHeap::<u64>::new(),
            &Kind {
                add: |of, _, number| of.push(number),
                thin: |of| _ = of.pop(),
                fits: true,
            },
        ),
        13 => weigh(
            rng,
            group,
            BTreeMap::<u64, Vec<u8>>::new(),
            &Kind {
                add: |of, rng, number| _ = of.insert(number, bytes(rng)),
                thin: |of| while of.len() > 1 && of.pop_last().is_some() {},
                fits: true,
            },
        ),
        14..=17 => weigh_tables(rng, group),
        _ => weigh(
            rng,
            group,
            Some(Cow::<'static, str>::Borrowed("nothing")),
            &Kind {
                add: |of, rng, _| {
                    if let Some(of) = of {
                        of.to_mut().push_str(&text(rng));
                    }
                },
                thin: |of| *of = None,
                fits: true,
            },
        ),
    }
}

type Table = HashMap<u64, u64>;

/// Tables inside of other values: what a table takes at most is remembered, wherever it is.
fn weigh_tables(rng: Rng<'_>, group: &Group) -> Holds {
    macro_rules! tables {
        ($type:ty, $empty:expr, |$of:ident| $all:expr) => {
            weigh::<$type>(
                rng,
                group,
                $empty,
                &Kind {
                    add: |$of, _, number| $all.for_each(|of| _ = of.insert(number, number)),
                    thin: |$of| $all.for_each(|of| of.retain(|number, _| number % 31 == 0)),
                    fits: true,
                },
            )
        };
    }
    let table = Table::new;
    match rng.random_range(0..9) {
        0 => tables!(Vec<Table>, vec![table(), table()], |of| of.iter_mut()),
        1 => tables!(VecDeque<Table>, VecDeque::from([table()]), |of| of
            .iter_mut()),
        2 => tables!(
            LinkedList<Table>,
            LinkedList::from([table(), table()]),
            |of| of.iter_mut()
        ),
        3 => tables!(Option<Box<Table>>, Some(Box::default()), |of| of
            .iter_mut()
            .map(|of| &mut **of)),
        4 => tables!((u64, Table, Table), (1, table(), table()), |of| [
            &mut of.1, &mut of.2
        ]
        .into_iter()),
        5 => tables!(Result<Table, String>, Ok(table()), |of| of.iter_mut()),
        6 => tables!(BTreeMap<u64, Table>, BTreeMap::from([(1, table())]), |of| of.values_mut()),
        7 => tables!(Cow<'static, [Table]>, Cow::Owned(vec![table()]), |of| of
            .to_mut()
            .iter_mut()),
        _ => tables!([Table; 2], [table(), table()], |of| of.iter_mut()),
    }
}

fn heap_of<R>(made: impl FnOnce() -> R) -> (R, u64) {
    let before = denied::own();
    let made = made();
    let heap = denied::own() - before;
    (made, u64::try_from(heap).unwrap_or(0))
}

/// Its weight is its size, and what the heap has for it: by growing, by thinning out, and by
/// shrinking.
fn weigh<T: Weigh + Clone>(rng: Rng<'_>, group: &Group, empty: T, kind: &Kind<T>) -> Holds {
    let most = pick(rng, &[0, 1, 3, 13, 60, 200]);
    let what = std::any::type_name::<T>();
    let (value, mut heap) = heap_of(|| {
        let mut value = T::clone(&empty);
        (0..most).for_each(|number| (kind.add)(&mut value, rng, number));
        value
    });
    drop(empty);
    let size = size_of::<T>() as u64;
    let weighed = if rng.random() {
        Charged::weighed(group, value)
    } else {
        Charged::try_weighed(group, value)
    };
    let mut charged = match weighed {
        Ok(charged) => charged,
        Err(refused) => {
            let (_value, refused) = refused.into_parts();
            ensure!(
                refused.requested() == size + heap && size + heap > MAX,
                "{refused}, {what} takes {heap} of the heap"
            );
            return Ok(());
        }
    };
    ensure!(size + heap <= MAX, "{what} of {heap} is above a max");
    let follows = |charged: &Charged<T>, heap: u64, why: &str| {
        let weight = Charged::charge(charged).bytes();
        ensure_eq!(weight, size + heap, "charged for {what}, {why}");
        ensure_eq!(group.live(), weight, "live beside one value");
        Ok(())
    };
    follows(&charged, heap, "as it is made")?;
    let step = |charged: &mut Charged<T>, heap: &mut u64, change: &mut dyn FnMut(&mut T)| {
        let before = denied::own();
        change(charged);
        *heap = heap.wrapping_add_signed((denied::own() - before) as i64);
    };
    for number in 0..rng.random_range(0..40) {
        step(&mut charged, &mut heap, &mut |value| {
            (kind.add)(value, rng, most + number);
        });
    }
    Charged::reweigh(&mut charged);
    follows(&charged, heap, "as it has grown")?;
    // Or it shrinks as it has grown.
    if rng.random() {
        step(&mut charged, &mut heap, &mut |value| (kind.thin)(value));
        Charged::reweigh(&mut charged);
        follows(&charged, heap, "as it is thinned out")?;
    }
    let before = denied::own();
    Charged::shrink_to_fit(&mut charged);
    heap = heap.wrapping_add_signed((denied::own() - before) as i64);
    follows(&charged, heap, "as it has shrunk")?;
    if kind.fits {
        let (copy, of_copy) = heap_of(|| T::clone(&charged));
        drop(copy);
        ensure!(
            heap <= of_copy,
            "{what} takes {heap} once it has shrunk, and its copy {of_copy}"
        );
    }
    match rng.random_range(0..3) {
        0 => {
            let mapped = Charged::map(charged, drop);
            let bytes = Charged::charge(&mapped).bytes();
            ensure_eq!(bytes, size + heap, "of what a value became");
        }
        1 => {
            let (value, charge) = Charged::into_parts(charged);
            ensure_eq!(charge.bytes(), size + heap, "of a part");
            drop(value);
        }
        _ => {
            let to = rng.random_range(0..MAX);
            let resized = Charged::resize_to(&mut charged, Bytes(to));
            let bytes = Charged::charge(&charged).bytes();
            ensure!(
                resized.is_ok() && bytes == to,
                "{resized:?} to {to}: {bytes}"
            );
        }
    }
    Ok(())
}

// === Vectors ===

/// It counts who asks, and has nothing.
#[derive(Default)]
struct Counts(AtomicU64);

impl Reclaim for Counts {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst);
        0
    }
}

fn of_vector(group: &Group, vector: &ChargedVec<u64>) -> Holds {
    let bytes = vector.charge().bytes();
    ensure_eq!(bytes, vector.capacity() as u64 * ITEM, "of a vector");
    ensure_eq!(group.live(), bytes, "live beside one vector");
    Ok(())
}

fn fill_vector(rng: Rng<'_>, group: &Group) -> Holds {
    // Above it there is no max that refuses what a hint says.
    let above = group.parent().filter(|_| rng.random());
    let group = above.as_ref().unwrap_or(group);
    let mut vector = ChargedVec::new(group);
    let mut known: Vec<u64> = Vec::new();
    for number in 0..rng.random_range(0..12) {
        let items = rng.random_range(0..20);
        match rng.random_range(0..6) {
            0 => vector.push(number).map_err(|error| error.to_string())?,
            1 => vector.try_push(number).map_err(|error| error.to_string())?,
            2 => vector.extend(0..items).map_err(|error| error.to_string())?,
            3 => vector
                .extend_from_slice(&vec![number; items as usize])
                .map_err(|error| error.to_string())?,
            // Whatever becomes of the edit, the charge is as large as the vector is then.
            4 => {
                let edited = catch_unwind(AssertUnwindSafe(|| {
                    vector.edit(|vector| {
                        vector.extend(0..items);
                        assert!(items % 2 == 0, "on purpose");
                    });
                }));
                ensure_eq!(edited.is_ok(), items % 2 == 0, "an edit");
            }
            _ => vector.truncate(items as usize),
        }
        match vector.len().cmp(&known.len()) {
            std::cmp::Ordering::Less => known.truncate(vector.len()),
            _ => known.extend_from_slice(&vector[known.len()..]),
        }
        ensure!(*vector == *known, "the items of a vector");
        of_vector(group, &vector)?;
    }
    // A hint that is a lie is no reason to keep what it says.
    let hint = 1 << pick(rng, &[20, 40, 58]);
    let mut lies = Lies(3, hint);
    vector
        .extend(&mut lies)
        .map_err(|error| format!("{error}, by a hint of {hint}"))?;
    of_vector(group, &vector)?;
    let charged = vector.into_charged();
    ensure_eq!(charged.len(), known.len() + 3, "items at the end");
    Ok(())
}

/// So many items, and a hint of more.
struct Lies(u64, usize);

impl Iterator for Lies {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.checked_sub(1)?;
        Some(self.0)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.1, None)
    }
}

/// What does not fit beside the vector's own block comes by no wait, and by no call that asks
/// nobody.
fn vector_beyond_its_max(rng: Rng<'_>, group: &Group) -> Holds {
    let counts = Arc::new(Counts::default());
    let asked = Arc::clone(&counts) as Arc<dyn Reclaim>;
    let registration = group.register_reclaimer(asked, ReclaimPriority::NORMAL);
    let items = rng.random_range(1..MAX / ITEM);
    let reserved = ChargedVec::with_capacity(group, items as usize);
    let mut vector = reserved.map_err(|error| error.to_string())?;
    let asked = counts.0.load(Ordering::SeqCst);
    let more = pick(rng, &[1, 100, items, 2 * items]);
    let needed = more * ITEM;
    let held = vector.charge().bytes();
    let fits = needed <= held || held + needed <= MAX;
    let polled = {
        let reserve = pin!(vector.reserve_async(more as usize));
        reserve.poll(&mut Context::from_waker(Waker::noop()))
    };
    match polled {
        Poll::Ready(reserved) => ensure_eq!(reserved.is_ok(), fits, "{reserved:?} of {more}"),
        Poll::Pending => return Err(format!("{more} items wait for the vector's own bytes")),
    }
    (vector.len()..vector.capacity()).for_each(|_| _ = vector.push(1));
    let before = counts.0.load(Ordering::SeqCst);
    let bytes = vector.charge().bytes();
    let pushed = vector.try_push(2);
    let (now, fits) = (counts.0.load(Ordering::SeqCst), 2 * bytes + ITEM <= MAX);
    ensure!(
        now == before && (pushed.is_ok() || !fits),
        "a reclaimer was asked {before} times, and {now} after {pushed:?}"
    );
    if let Err(error) = pushed {
        let (told, own) = (error.to_string(), Bytes(bytes).to_string());
        let (item, refused) = error.into_parts();
        let is_told = told.starts_with(&refused.to_string()) && told.contains(&own);
        ensure!(is_told && item == 2, "of a vector of {own}: {told}");
    }
    ensure!(asked <= before, "{asked}, and then {before}");
    of_vector(group, &vector)?;
    drop(vector);
    drop(registration);
    Ok(())
}

// === Gauges, and charges that grow ===

/// What is reported last holds, whoever reports it while another report is under way.
fn report(rng: Rng<'_>, group: &Group) -> Holds {
    let gauge = Arc::new(Gauge::new(group));
    let (then, inner) = (rng.random_range(0..2 * MAX), Arc::clone(&gauge));
    let listener = group.on_event(Event::Overcharge, move |_| inner.report(Bytes(then)));
    let held = group
        .charge(Bytes(MAX))
        .map_err(|error| error.to_string())?;
    let first = rng.random_range(1..MAX);
    gauge.report(Bytes(first));
    // It was above the max, so the listener has reported.
    let known = if group.events().get(Event::Overcharge) > 0 {
        then
    } else {
        first
    };
    let found = (gauge.bytes(), group.live() - MAX);
    ensure_eq!(found, (known, known), "(reported, charged) of a gauge");
    drop(listener);
    gauge.report(Bytes(7));
    ensure_eq!((gauge.bytes(), group.live() - MAX), (7, 7), "of a gauge");
    drop(held);
    Ok(())
}

fn grow(rng: Rng<'_>, group: &Group, further: CounterKey) -> Holds {
    let amounts = [(CounterKey::MEMORY, Bytes(10)), (further, Bytes(20))];
    let set = group
        .charge_set(&amounts)
        .map_err(|error| error.to_string())?;
    let more = rng.random_range(0..100_u64);
    for (mut charge, (counter, before)) in set.into_iter().zip(amounts) {
        let of = group.counter(counter).map_err(|error| error.to_string())?;
        let live = of.live();
        let polled = {
            let grows = pin!(charge.grow_async(Bytes(more)));
            grows.poll(&mut Context::from_waker(Waker::noop()))
        };
        ensure!(
            matches!(polled, Poll::Ready(Ok(()))),
            "{more} more: {polled:?}"
        );
        let found = (charge.bytes(), of.live() - live);
        ensure_eq!(
            found,
            (before.as_u64() + more, more),
            "(held, more) of {}",
            of.name()
        );
        let (_word, bytes) = charge.into_raw();
        ensure_eq!(
            of.live() - live + before.as_u64(),
            bytes,
            "in a word of {}",
            of.name()
        );
        of.raw().uncharge(Bytes(bytes));
    }
    Ok(())
}

/// No counter holds more than it can count, and what is beyond that keeps its group all the same.
fn most_of_all(runtime: &Runtime) -> Holds {
    let group = runtime.root().create("most", Limits::new());
    let group = group.map_err(|error| error.to_string())?;
    let mut all = group.force_charge(Bytes(u64::MAX));
    ensure_eq!(all.bytes(), PageCounter::USAGE_MAX, "the most of all");
    let none = group.force_charge(5);
    all.force_grow(5);
    let found = (none.bytes(), all.bytes(), group.live());
    let most = PageCounter::USAGE_MAX;
    ensure_eq!(found, (0, most, most), "beyond the most of all");
    ensure!(runtime.counts().overflows >= 3, "{:?}", runtime.counts());
    group.offline_tree();
    drop(group);
    drop(all);
    ensure_eq!(runtime.dying_count(), 1, "what an empty charge keeps");
    ensure!(none.group().is_offline(), "the group of an empty charge");
    drop(none);
    runtime.settle();
    ensure_eq!(runtime.dying_count(), 0, "what nothing keeps");
    Ok(())
}
