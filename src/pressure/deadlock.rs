//! Waits that cannot end: all that a level uses is held by tasks that wait in its line.
//!
//! The crate does not know which thread gives bytes back: another one may hold a charge of any group. So a group says
//! how many tasks its memory, and that of the groups below, is given back by (`Limits::tasks`). While as many of its
//! charges are in one line, nothing in the group comes back. Where such groups hold all that the level uses, and no
//! charge in line fits, no wait at the level ends by itself.
//!
//! The look is under the line's lock, each time that a thread has served the line. Meanwhile no such group changes its
//! usage: its tasks wait, and are served under the lock alone. Bytes of all others are in the level's usage, which is
//! read first: so they are missing in the sum, and there is no deadlock as long as another group holds a byte. Bytes
//! that come back later schedule the level (E25), and with that the next look.

use crate::counter::cover;
use crate::counter::object::Counter;
use crate::hierarchy::{group_object, tasks};
use crate::reclaim::registrations;
use crate::state::waiting::{Holder, Line, PlaceInLine, WINDOW, Waiting};

/// The ticket of the wait that ends, where no wait in the line can end by itself: the youngest of the least important
/// that are of a group which holds something. Under the line's lock, after a thread has served the line.
pub(crate) fn wait_to_end(waiting: &Waiting, level: &Counter) -> Option<u64> {
    let line = waiting.lines.get(&level.key())?;
    // Usage of a level that covers is less than what the groups below hold.
    if line.holders.is_empty() || level.cover().is_some() {
        return None;
    }
    let usage = level.usage();
    let held = line.holders.values().filter(|holder| is_stuck(holder)).map(|holder| holder.group.usage());
    // Mutation: a-byte-of-another-group-is-no-way-out
    if held.fold(0, u64::saturating_add) < usage || registrations::any_below(level) {
        return None;
    }
    // Bytes that came back a moment ago may be room for a charge: another thread is about to serve it.
    let room = level.admits().saturating_sub(usage);
    if line.places.iter().take(1 + WINDOW).any(|&place| fits(waiting, line, level, place, room)) {
        return None;
    }
    line.places.iter().rev().find(|place| holds(waiting, line, place)).map(|place| place.ticket())
}

/// Charges that may be let through above the max of `level`, where no wait there can end: those of groups that are stuck
/// and hold something, in their order. One at a time: none while usage is above max already.
pub(crate) fn waits_to_let_through(waiting: &Waiting, level: &Counter) -> Vec<u64> {
    let (usage, max) = (level.usage(), level.max());
    let most = u128::from(max) * u128::from(overdraft::of(level)) / 100;
    if most == 0 || usage > max {
        return Vec::new();
    }
    let Some(line) = waiting.lines.get(&level.key()) else { return Vec::new() };
    let left = u128::from(max - usage) + most;
    let fits = |ticket: &u64| {
        let waiter = waiting.waiters.get(ticket);
        waiter.is_some_and(|waiter| u128::from(waiter.bytes) <= left && waiter.group.cover().is_none())
    };
    let held = line.places.iter().filter(|place| holds(waiting, line, place)).map(|place| place.ticket());
    held.filter(fits).collect()
}

/// The charge is of a group that is stuck and holds something.
fn holds(waiting: &Waiting, line: &Line, place: &PlaceInLine) -> bool {
    let holder = waiting.waiters.get(&place.ticket()).and_then(|waiter| waiter.holder);
    let holder = holder.and_then(|holder| line.holders.get(&holder.key()));
    holder.is_some_and(|holder| is_stuck(holder) && holder.group.usage() > 0)
}

/// The overdraft of a group: see [`Limits::overdraft`](crate::Limits::overdraft).
pub(crate) mod overdraft {
    use crate::counter::object::Counter;
    use crate::hierarchy::group_object;
    use crate::sync::Ordering;

    pub(crate) fn of(group: &Counter) -> u8 {
        group_object::state(group).overdraft.load(Ordering::Relaxed)
    }

    pub(crate) fn set(group: &Counter, per_cent: u8) {
        group_object::state(group).overdraft.store(per_cent, Ordering::Relaxed);
    }
}

/// All its tasks wait in the line.
fn is_stuck(holder: &Holder) -> bool {
    let tasks = tasks::of(holder.group);
    tasks > 0 && holder.waits >= u32::from(tasks)
}

fn fits(waiting: &Waiting, line: &Line, level: &Counter, place: PlaceInLine, room: u64) -> bool {
    let budget = if place == line.first { u64::MAX } else { group_object::state(level).first_in_line.budget() };
    let needs = waiting.waiters.get(&place.ticket()).map(|waiter| cover::rise_at(waiter.group, waiter.bytes, level));
    needs.is_some_and(|needs| needs <= room.min(budget))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

    use crate::sync::many;
    use crate::{
        Bytes, Charge, ChargeError, ChargeFuture, Group, Limit, Limits, OnFull, Priority, Reclaim, ReclaimContext,
        Runtime,
    };

    fn build(max: u64) -> Runtime {
        Runtime::builder().batch(0).max(Limit::Bytes(max)).build().unwrap()
    }

    fn tasks(parent: &Group, name: &str, tasks: u16) -> Group {
        parent.create(name, Limits::new().tasks(tasks)).unwrap()
    }

    fn poll(future: &mut Pin<Box<ChargeFuture>>) -> Poll<Result<Charge, ChargeError>> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn waits(group: &Group, bytes: u64) -> Pin<Box<ChargeFuture>> {
        let mut future = Box::pin(group.charge_async(Bytes(bytes)));
        let begun = poll(&mut future);
        assert!(begun.is_pending(), "{begun:?}");
        future
    }

    fn deadlock(future: &mut Pin<Box<ChargeFuture>>) -> String {
        match poll(future) {
            Poll::Ready(Err(error @ ChargeError::Deadlock(_))) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    /// Two that each hold what the other waits for: the younger wait ends, and what its task gives back serves the
    /// other.
    #[test]
    fn the_youngest_wait_ends() {
        let runtime = build(10 << 10);
        let [one, two] = ["one", "two"].map(|name| tasks(&runtime.root(), name, 1));
        let [held, other] = [&one, &two].map(|group| group.try_charge(5 << 10).unwrap());
        let mut first = waits(&one, 4 << 10);
        let mut second = Box::pin(two.charge_async(4 << 10));
        let said = deadlock(&mut second);
        let line =
            "/ refused 4 KiB for /two: short by 4 KiB, usage 10 KiB of max 10 KiB, behind charges in line; most in";
        assert!(said.starts_with(line) && said.contains("that wait in this line hold all of it"), "{said}");
        assert!(poll(&mut first).is_pending(), "its memory is not there yet");
        drop(other);
        let Poll::Ready(Ok(more)) = poll(&mut first) else { panic!("it is served") };
        assert_eq!((one.live(), runtime.root().live()), (9 << 10, 9 << 10));
        drop((held, more));
    }

    #[test]
    fn a_thread_that_waits_is_told() {
        let runtime = build(10);
        let group = tasks(&runtime.root(), "q", 1);
        let _held = group.try_charge(8).unwrap();
        let refused = group.try_charge_with(4, OnFull::Wait(Duration::from_secs(600))).unwrap_err();
        assert!(matches!(&refused, ChargeError::Deadlock(refusal) if refusal.want() == 2), "{refused}");
        assert_eq!((refused.helps(), runtime.root().waiting_count()), (crate::errors::Helps::Nothing, 0));
    }

    /// As long as something else may give a byte back there is no deadlock.
    #[test]
    fn others_may_give() {
        struct Nothing;
        impl Reclaim for Nothing {
            fn reclaim(&self, _want: u64, _context: &ReclaimContext<'_>) -> u64 {
                0
            }
        }
        let runtime = build(10);
        let root = runtime.root();
        let [one, two] = [("one", 1), ("two", 2)].map(|(name, of)| tasks(&root, name, of));
        let mut held = [one.try_charge(5).unwrap(), two.try_charge(4).unwrap()];
        let other = root.create("other", Limits::new()).unwrap().try_charge(1).unwrap();
        let mut first = waits(&one, 4);
        let (mut second, mut third) = (waits(&two, 4), Box::pin(two.charge_async(4)));
        assert!(poll(&mut third).is_pending(), "a byte of another group");
        let registration = root.register_reclaimer(Arc::new(Nothing), Priority::NORMAL);
        drop(other);
        assert!(
            [&mut first, &mut second, &mut third].into_iter().all(|future| poll(future).is_pending()),
            "a reclaimer"
        );
        drop(registration);
        deadlock(&mut third);
        held[1].shrink(4);
        assert!(matches!(poll(&mut first), Poll::Ready(Ok(_))));
        drop((second, held));
    }

    /// A task ends, or a group comes to say how many it has, while others wait.
    #[test]
    fn a_number_of_tasks_that_changes_is_looked_at() {
        for before in [0, 2] {
            let runtime = build(10);
            let query = tasks(&runtime.root(), "q", before);
            let sort = query.create("sort", Limits::new()).unwrap();
            let _held = sort.try_charge(8).unwrap();
            let mut first = waits(&sort, 4);
            query.set_limits(Limits::new().tasks(1)).unwrap();
            deadlock(&mut first);
            let mut second = Box::pin(sort.charge_async(4));
            deadlock(&mut second);
            query.set_limits(Limits::new().tasks(0)).unwrap();
            let third = waits(&sort, 4);
            // The tasks above those of a group that is counted: its bytes are theirs, and count once.
            sort.set_limits(Limits::new().tasks(1)).unwrap();
            assert_eq!(runtime.root().waiting_count(), 0);
            drop(third);
        }
    }

    #[test]
    fn bytes_of_nested_groups_count_once() {
        let runtime = build(10);
        let root = runtime.root();
        let tenant = root.create("tenant", Limits::new()).unwrap();
        let query = tasks(&tenant, "q", 1);
        let _held = [query.try_charge(4).unwrap(), root.try_charge(4).unwrap()];
        let mut first = waits(&query, 4);
        tenant.set_limits(Limits::new().tasks(1)).unwrap();
        let mut second = waits(&tenant, 4);
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending(), "the root has four bytes");
    }

    /// A charge of another group is handed to one whose task waits.
    #[test]
    fn bytes_that_move_to_a_group_are_looked_at() {
        let runtime = build(10);
        let [one, other] = [("one", 1), ("other", 0)].map(|(name, of)| tasks(&runtime.root(), name, of));
        let _held = one.try_charge(5).unwrap();
        let mut moves = other.try_charge(5).unwrap();
        let mut first = waits(&one, 4);
        moves.transfer(&one).unwrap();
        deadlock(&mut first);
    }

    /// A group above the full one says how many tasks there are.
    #[test]
    fn tasks_above_the_full_group_count() {
        let runtime = build(100);
        let query = tasks(&runtime.root(), "q", 1);
        let sort = query.create("sort", Limits::new().max(10)).unwrap();
        let _held = sort.try_charge(8).unwrap();
        deadlock(&mut Box::pin(sort.charge_async(4)));
    }

    /// A charge that does not wait for room is no wait, although it looks for its place before less important ones.
    #[test]
    fn a_look_at_the_line_is_no_wait() {
        let runtime = build(10);
        let limits = Limits::new().tasks(1);
        let [one, two] = [("one", 0), ("two", 1)]
            .map(|(name, importance)| runtime.root().create(name, limits.importance(importance)).unwrap());
        let held = [&one, &two].map(|group| group.try_charge(5).unwrap());
        let mut first = waits(&one, 4);
        let refused = two.try_charge(4).unwrap_err();
        assert!(matches!(refused, ChargeError::Limit(_)) && poll(&mut first).is_pending(), "{refused}");
        let second = waits(&two, 4);
        deadlock(&mut first);
        drop((held, second));
    }

    /// The highest group that says so counts: the tasks of those below are its own.
    #[test]
    fn groups_below_are_of_the_same_tasks() {
        let runtime = build(10);
        let query = tasks(&runtime.root(), "q", 2);
        let [sort, join] = ["sort", "join"].map(|name| query.create(name, Limits::new()).unwrap());
        let _held = [sort.try_charge(5).unwrap(), join.try_charge(5).unwrap()];
        let first = waits(&sort, 3);
        deadlock(&mut Box::pin(join.charge_async(3)));
        drop(first);
    }

    /// A group with a max of 100 bytes and an overdraft, and two queries of one task that hold all of it.
    fn overdrawn(parent: &Group, per_cent: u8) -> (Group, [(Group, Charge); 2]) {
        let full = parent.create("full", Limits::new().max(100).overdraft(per_cent)).unwrap();
        let queries = ["one", "two"].map(|name| tasks(&full, name, 1));
        (full, queries.map(|query| (query.clone(), query.try_charge(50).unwrap())))
    }

    fn served(future: &mut Pin<Box<ChargeFuture>>) -> Charge {
        match poll(future) {
            Poll::Ready(Ok(charge)) => charge,
            other => panic!("{other:?}"),
        }
    }

    /// The older wait is let through. It waits again while usage is above max: then the youngest ends. Once usage is
    /// back at max the next one is let through.
    #[test]
    fn one_at_a_time_is_let_through() {
        let runtime = build(1_000);
        let (full, [(one, held), (two, other)]) = overdrawn(&runtime.root(), 20);
        assert_eq!(full.limits().overdraft, Some(20));
        for _ in 0..2 {
            let (mut first, mut second) = (waits(&one, 20), Box::pin(two.charge_async(10)));
            assert!(poll(&mut second).is_pending());
            let more = served(&mut first);
            assert_eq!((full.live(), full.forced(), runtime.root().live()), (120, 20, 120));
            deadlock(&mut Box::pin(one.charge_async(1)));
            assert!(poll(&mut second).is_pending());
            drop(more);
            assert_eq!((full.live(), full.forced()), (100, 0));
            // The second is no wait in vain: the task of the first runs.
            assert!(poll(&mut second).is_pending());
            drop(second);
        }
        drop((held, other));
    }

    /// A charge for which the overdraft is not enough, and one that a max above refuses, are not let through.
    #[test]
    fn an_overdraft_is_a_bound_and_the_limits_above_hold() {
        for (max_above, asks, through) in [(1_000, 20, true), (1_000, 21, false), (120, 20, true), (119, 20, false)] {
            let runtime = build(max_above);
            let (full, [(one, held), (two, other)]) = overdrawn(&runtime.root(), 20);
            let (mut first, mut second) = (waits(&one, asks), Box::pin(two.charge_async(Bytes(asks))));
            let ended = poll(&mut second);
            assert_eq!(ended.is_pending(), through, "{max_above}, {asks}: {ended:?}");
            assert_eq!(full.live(), if through { 120 } else { 100 });
            assert_eq!(runtime.root().live(), full.live());
            if through {
                drop(served(&mut first));
            }
            drop((held, other, first, second, ended));
            assert_eq!((runtime.root().usage(), runtime.root().waiting_count()), (0, 0));
        }
    }

    /// Of those in line the first goes for which the overdraft is enough, also below a group in between.
    #[test]
    fn the_first_that_fits_is_let_through() {
        let runtime = build(1_000);
        let (full, [(one, held), (two, other)]) = overdrawn(&runtime.root(), 20);
        let (mut first, mut second) =
            (waits(&one, 60), Box::pin(two.create("join", Limits::new()).unwrap().charge_async(15)));
        let more = served(&mut second);
        assert_eq!((full.live(), two.live()), (115, 65));
        assert!(poll(&mut first).is_pending());
        drop((more, other));
        // It waits for what it holds itself, and by now the overdraft is enough.
        let more = served(&mut first);
        assert_eq!((full.live(), full.forced()), (110, 10));
        drop((more, held));
    }

    /// Notes its number when it is woken.
    struct Notes(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Notes {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    struct Waits {
        number: usize,
        group: usize,
        bytes: u64,
        future: Pin<Box<ChargeFuture>>,
    }

    const MAX: u64 = 64;

    /// Groups of so many tasks each, which hold bytes and wait. What the line does is replayed here.
    struct Scene {
        tasks: Vec<u16>,
        live: Vec<u64>,
        line: Vec<Waits>,
        held: Vec<(usize, Charge)>,
        woken: Arc<Mutex<Vec<usize>>>,
        alarms: u64,
    }

    impl Scene {
        fn waiting(&self, group: usize) -> usize {
            self.line.iter().filter(|waits| waits.group == group).count()
        }

        /// A task of the group does something else than wait.
        fn runs(&self, group: usize) -> bool {
            self.tasks[group] == 0 || self.waiting(group) < usize::from(self.tasks[group])
        }

        fn total(&self) -> u64 {
            self.live.iter().sum()
        }

        /// Bytes of groups whose tasks all wait.
        fn stuck(&self) -> u64 {
            (0..self.live.len()).filter(|&group| !self.runs(group)).map(|group| self.live[group]).sum()
        }

        fn poll(&mut self, number: usize) -> Option<Result<Charge, ChargeError>> {
            let waits = self.line.iter_mut().find(|waits| waits.number == number).unwrap();
            let waker = Waker::from(Arc::new(Notes(number, Arc::clone(&self.woken))));
            match waits.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(ended) => Some(ended),
                Poll::Pending => None,
            }
        }

        /// Replays what became of a charge.
        fn replay(&mut self, number: usize, ended: Result<Charge, ChargeError>) {
            let (stuck, total, first) = (self.stuck(), self.total(), self.line[0].bytes);
            let at = self.line.iter().position(|waits| waits.number == number).unwrap();
            let waits = self.line.remove(at);
            match ended {
                Ok(charge) => {
                    self.live[waits.group] += waits.bytes;
                    self.held.push((waits.group, charge));
                }
                Err(ChargeError::Deadlock(_)) => {
                    assert_eq!(stuck, total, "a false alarm");
                    assert!(total + first > MAX && self.live[waits.group] > 0);
                    self.alarms += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }

        /// Replays what became of those that wait, in its order. A new charge is served after all of that, or was told
        /// before.
        fn replay_all(&mut self, new: Option<usize>) {
            let mut ended = new.and_then(|new| Some((new, self.poll(new)?)));
            if let Some((new, told)) = ended.take_if(|(_, ended)| ended.is_err()) {
                self.replay(new, told);
            }
            let woken = std::mem::take(&mut *self.woken.lock().unwrap());
            for number in woken {
                let ended = self.poll(number).expect("it is woken once");
                self.replay(number, ended);
            }
            if let Some((new, served)) = ended {
                self.replay(new, served);
            }
        }
    }

    /// Groups in a random tree hold, wait, give back and leave the line. A wait ends as a deadlock where, and only
    /// where, all bytes are held by groups whose tasks all wait, and none that waits fits.
    #[test]
    #[cfg_attr(miri, ignore = "Miri: one of hundreds of rounds shows nothing")]
    fn no_false_alarm_and_none_is_missed() {
        let mut seed = 11_u64;
        let mut below = |most: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) % most as u64) as usize
        };
        let mut alarms = 0;
        for _ in 0..many(300) {
            let runtime = build(MAX);
            let mut parents = vec![runtime.root()];
            for number in 0..below(3) {
                let parent = parents[below(parents.len())].clone();
                parents.push(parent.create(number as u64, Limits::new()).unwrap());
            }
            let number_of: Vec<u16> = (0..2 + below(4)).map(|_| below(3) as u16).collect();
            let name = |number: usize| format!("g{number}");
            let groups: Vec<Group> = (number_of.iter().enumerate())
                .map(|(number, &of)| tasks(&parents[below(parents.len())], &name(number), of))
                .collect();
            let live = vec![0; groups.len()];
            let mut scene =
                Scene { tasks: number_of, live, line: Vec::new(), held: Vec::new(), woken: Arc::default(), alarms: 0 };
            for number in 0..80 {
                let group = below(groups.len());
                let mut new = None;
                match below(5) {
                    0..=2 if scene.runs(group) => {
                        let bytes = 1 + below(24) as u64;
                        let future = Box::pin(groups[group].charge_async(Bytes(bytes)));
                        scene.line.push(Waits { number, group, bytes, future });
                        new = Some(number);
                    }
                    // A task that does not wait gives something back.
                    3 if !scene.held.is_empty() => {
                        let at = below(scene.held.len());
                        let of = scene.held[at].0;
                        if scene.runs(of) {
                            let (of, charge) = scene.held.swap_remove(at);
                            scene.live[of] -= charge.bytes();
                            drop(charge);
                        }
                    }
                    4 if !scene.line.is_empty() && below(4) == 0 => {
                        let at = below(scene.line.len());
                        drop(scene.line.remove(at));
                    }
                    _ => {}
                }
                scene.replay_all(new);
                let total = scene.total();
                assert_eq!(total, runtime.root().live());
                let waits = total > 0 && !scene.line.is_empty();
                let fits = scene.line.iter().any(|waits| total + waits.bytes <= MAX);
                assert!(!waits || fits || scene.stuck() < total, "{total} bytes, {} wait", scene.line.len());
            }
            alarms += scene.alarms;
        }
        assert!(alarms > many(50), "{alarms}");
    }
}
