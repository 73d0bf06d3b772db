//! The line against a model of it that is obviously right: the first charge gets the room, and
//! others may barge past it until they have taken as much as it asks for. One thread, any sequence
//! of verbs, and the outcome of each is known.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use memcg::{Bytes, Charge, Group, Limit, RuntimeBuilder};

use super::{KIB, Polled, Waiter, assert_empty, assert_sound, build, create, kinds, limited};

const STEPS: usize = 150;
/// More than would be looked at behind the first would need a longer model.
const LINE_MAX: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    InLine,
    Admitted,
    TooLarge,
    Offline,
}

#[derive(Debug)]
struct Place {
    bytes: u64,
    group: usize,
    state: State,
}

/// The line as it should be.
#[derive(Debug, Default)]
struct Model {
    max: u64,
    usage: u64,
    /// The bytes that may still pass the first.
    pass: u64,
    first: Option<usize>,
    places: Vec<Place>,
}

impl Model {
    fn room(&self) -> u64 {
        self.max.saturating_sub(self.usage)
    }

    fn line(&self) -> Vec<usize> {
        (0..self.places.len())
            .filter(|&place| self.places[place].state == State::InLine)
            .collect()
    }

    fn leave(&mut self, place: usize, state: State) {
        self.places[place].state = state;
        self.note_first();
    }

    fn note_first(&mut self) {
        let first = self.line().first().copied();
        if first != self.first {
            self.first = first;
            self.pass = first.map_or(0, |first| self.places[first].bytes);
        }
    }

    /// A charge that has not waited.
    fn newcomer(&mut self, bytes: u64) -> bool {
        let passes = self.first.is_none() || bytes <= self.pass;
        let fits = bytes <= self.room() && passes;
        if fits {
            self.usage += bytes;
            if self.first.is_some() {
                self.pass -= bytes;
            }
        }
        fits
    }

    fn serve(&mut self) {
        for place in self.line() {
            if self.places[place].bytes > self.max {
                self.leave(place, State::TooLarge);
            }
        }
        while let Some(first) = self
            .first
            .filter(|&first| self.places[first].bytes <= self.room())
        {
            self.usage += self.places[first].bytes;
            self.leave(first, State::Admitted);
        }
        for place in self.line().into_iter().skip(1) {
            let bytes = self.places[place].bytes;
            if bytes <= self.room().min(self.pass) {
                self.usage += bytes;
                self.pass -= bytes;
                self.leave(place, State::Admitted);
            }
        }
    }
}

/// The library's side.
struct World {
    group: Group,
    /// Groups below it, which the run charges. A new one replaces a group that goes offline.
    groups: Vec<Group>,
    held: Vec<Charge>,
    waiters: Vec<Option<Waiter>>,
    made: usize,
}

impl World {
    fn new(root: &Group, max: u64) -> World {
        let group = limited(root, "q", max);
        let groups = (0..3)
            .map(|number| create(&group, &number.to_string()))
            .collect();
        World {
            group,
            groups,
            held: Vec::new(),
            waiters: Vec::new(),
            made: 3,
        }
    }

    /// A charge that is not in line any more is done, was woken once, and says so; all others wait.
    fn check(&mut self, model: &Model, trail: &[String]) {
        for (place, waiter) in model.places.iter().zip(&mut self.waiters) {
            let Some(waiting) = waiter else { continue };
            let wakes = waiting.wakes();
            if place.state == State::InLine {
                assert_eq!(wakes, 0, "{place:?} of {model:?} after {trail:#?}");
                continue;
            }
            let outcome = match waiting.poll() {
                std::task::Poll::Pending => panic!("{place:?} waits, {model:?} after {trail:#?}"),
                std::task::Poll::Ready(outcome) => outcome,
            };
            let state = match &outcome {
                Ok(_) => State::Admitted,
                Err(error) if error.is_over_limit() => State::TooLarge,
                Err(error) if error.is_offline() => State::Offline,
                Err(other) => panic!("{other} after {trail:#?}"),
            };
            assert_eq!(
                (state, wakes),
                (place.state, 1),
                "{place:?} of {model:?} after {trail:#?}"
            );
            self.held.extend(outcome);
            *waiter = None;
        }
        assert_eq!(
            self.group.waiting_count(),
            model.line().len(),
            "{model:?} after {trail:#?}"
        );
        assert_eq!(self.group.live(), model.usage, "{model:?} after {trail:#?}");
    }
}

/// One verb, in both worlds. Returns what it was.
fn step(world: &mut World, model: &mut Model, rng: &mut SmallRng) -> String {
    let bytes = rng.random_range(1..=64) * 256;
    let below = rng.random_range(0..3);
    match rng.random_range(0..20) {
        0..6 if model.line().len() < LINE_MAX => {
            let mut waiter = Polled::new(world.groups[below].charge_async(Bytes(bytes)));
            let fits = model.newcomer(bytes);
            match waiter.poll() {
                std::task::Poll::Ready(Ok(charge)) => {
                    assert!(fits, "{bytes} of {model:?} got in");
                    world.held.push(charge);
                }
                std::task::Poll::Ready(Err(error)) => {
                    assert!(!fits && bytes > model.max, "{error}, {model:?}");
                }
                std::task::Poll::Pending => {
                    assert!(!fits && bytes <= model.max, "{bytes} of {model:?} wait");
                    model.places.push(Place {
                        bytes,
                        group: below,
                        state: State::InLine,
                    });
                    world.waiters.push(Some(waiter));
                    model.note_first();
                    model.serve();
                }
            }
            format!("{bytes} in line")
        }
        0..9 => {
            let charged = world.groups[below].charge(Bytes(bytes));
            assert_eq!(
                charged.is_ok(),
                model.newcomer(bytes),
                "{bytes} of {model:?}: {charged:?}"
            );
            world.held.extend(charged);
            format!("{bytes} tried")
        }
        9 if rng.random_bool(0.3) => {
            world
                .held
                .push(world.groups[below].force_charge(Bytes(bytes)));
            // A charge that fits is an ordinary one, and counted as one that passes.
            if !model.newcomer(bytes) {
                model.usage += bytes;
            }
            format!("{bytes} forced")
        }
        10..14 if !world.held.is_empty() => {
            let mut charge = world
                .held
                .swap_remove(rng.random_range(0..world.held.len()));
            let part = if rng.random() {
                charge.bytes()
            } else {
                charge.bytes() / 2
            };
            charge.shrink(Bytes(part));
            world.held.push(charge);
            world.held.retain(|charge| charge.bytes() > 0);
            model.usage -= part;
            model.serve();
            format!("{part} given back")
        }
        14..16 if !model.line().is_empty() => {
            let line = model.line();
            let place = line[rng.random_range(0..line.len())];
            world.waiters[place] = None;
            // As good as any end that no charge notices.
            model.leave(place, State::Offline);
            model.serve();
            format!("{place} given up")
        }
        16..19 => {
            model.max = rng.random_range(8..=48) * KIB;
            world
                .group
                .set_max(Limit::Bytes(model.max))
                .expect("a number");
            model.serve();
            format!("max {}", model.max)
        }
        19 => {
            world.groups[below].offline().expect("no children");
            world.made += 1;
            world.groups[below] = create(&world.group, &world.made.to_string());
            for place in model.line() {
                if model.places[place].group == below {
                    model.leave(place, State::Offline);
                }
            }
            model.serve();
            format!("{below} offline")
        }
        _ => "nothing".to_string(),
    }
}

/// Returns how the waits have ended.
fn run(builder: RuntimeBuilder, seed: u64) -> Vec<State> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let runtime = build(builder);
    let mut model = Model {
        max: 32 * KIB,
        ..Model::default()
    };
    let mut world = World::new(&runtime.root(), model.max);
    let mut trail = vec![format!("seed {seed}")];
    for _ in 0..STEPS {
        trail.push(step(&mut world, &mut model, &mut rng));
        world.check(&model, &trail);
    }
    assert_sound(&runtime);
    drop(world);
    assert_empty(&runtime);
    model.places.into_iter().map(|place| place.state).collect()
}

#[test]
fn any_sequence_of_verbs() {
    for builder in kinds() {
        let ends: Vec<State> = (0..150)
            .flat_map(|seed| run(builder.clone(), seed))
            .collect();
        for end in [
            State::InLine,
            State::Admitted,
            State::TooLarge,
            State::Offline,
        ] {
            let times = ends.iter().filter(|&&other| other == end).count();
            assert!(times > 100, "{end:?}: {times} of {}", ends.len());
        }
    }
}
