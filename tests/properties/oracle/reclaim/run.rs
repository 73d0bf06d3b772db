//! Drives groups and reclaimers through operations, and checks what must hold after each.
//!
//! The threads are real, so each has its own stock, but they take turns: what every group holds is
//! known.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use memcg::barrier::BarrierMode;
use memcg::figures::ReclaimReport;
use memcg::{
    Bytes, Group, Limit, Limits, Reclaim, ReclaimPriority, ReclaimPromise, Registration, Runtime,
};

use super::actor::{Actor, Findings, Shared};
use super::ops::{Action, Character, Op, Setting, Setup, THREADS, decode};
use super::{Books, Cast, Entry, lock};
use crate::oracle::workers::Other;

/// More of them make an operation slow and show nothing new.
const GROUPS_MADE_MAX: usize = 24;
const CAST_MAX: usize = 16;
const HELD_MAX: usize = 32;

/// Operations between two calls of `verify`.
const VERIFY_EVERY: usize = 4;

/// The most that is charged by force.
const FORCED_MAX: u64 = 1 << 22;

/// Drives a new runtime through all of `ops`, then drops what is left.
///
/// # Panics
/// When something does not hold.
pub(crate) fn run(setup: &Setup, ops: &[Op]) {
    pass_over_panics_on_purpose();
    let mut run = Run::new(setup);
    for (step, op) in ops.iter().enumerate() {
        run.at = format!("step {step}, {op:?}");
        lock(&run.findings).last = None;
        run.step(op);
        run.check();
        if step % VERIFY_EVERY == 0 {
            run.verify();
        }
    }
    run.finish();
}

/// The body of the fuzz target: any bytes are operations.
pub(crate) fn run_bytes(bytes: &[u8]) {
    let (setup, ops) = decode(bytes);
    run(&setup, &ops);
}

/// A group that looks for panics, as a fuzzer does, is not told of those that reclaimers are made
/// to have.
fn pass_over_panics_on_purpose() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let message = info.payload().downcast_ref::<&str>();
            if !message.is_some_and(|message| message.starts_with("on purpose")) {
                before(info);
            }
        }));
    });
}

pub(super) struct Run {
    pub(super) setup: Setup,
    pub(super) runtime: Runtime,
    pub(super) books: Books,
    pub(super) findings: Arc<Mutex<Findings>>,
    /// Events as last read, by group.
    pub(super) events: Vec<[u64; 6]>,
    workers: Vec<Other>,
    /// The present step, for the message of a failure.
    pub(super) at: String,
}

impl Run {
    fn new(setup: &Setup) -> Self {
        let time = if setup.patient {
            Duration::from_secs(600)
        } else {
            Duration::from_micros(300)
        };
        let mut builder = Runtime::builder()
            .batch(Bytes(setup.batch))
            .adaptive(setup.adaptive)
            .audit(true)
            .recursive_protection(setup.recursive)
            .reclaim_time(time)
            .max(limit(setup.max));
        if setup.fence {
            builder = builder.barrier(BarrierMode::Fence);
        }
        let runtime = builder.build().expect("a configuration that holds");
        let root = Entry {
            group: runtime.root(),
            parent: None,
            online: true,
        };
        Self {
            setup: setup.clone(),
            runtime,
            books: Books {
                groups: vec![root],
                cast: Vec::new(),
                held: Vec::new(),
            },
            findings: Arc::default(),
            events: Vec::new(),
            workers: (0..THREADS).map(|_| Other::spawn()).collect(),
            at: String::from("start"),
        }
    }

    fn worker(&self, op: &Op) -> &Other {
        &self.workers[usize::from(op.thread) % THREADS]
    }

    /// Runs `job` with a handle of the group on a thread.
    fn on<R: Send + 'static>(
        &self,
        op: &Op,
        group: usize,
        job: impl FnOnce(&Group) -> R + Send + 'static,
    ) -> R {
        self.worker(op).with(&self.books.groups[group].group, job)
    }

    fn step(&mut self, op: &Op) {
        match op.action {
            Action::Exit => self.workers[usize::from(op.thread) % THREADS] = Other::spawn(),
            Action::Fill(_) | Action::Unregister | Action::DropActor => {
                if !self.books.cast.is_empty() {
                    self.step_actor(op, usize::from(op.subject) % self.books.cast.len());
                }
            }
            Action::DropCharge => {
                if !self.books.held.is_empty() {
                    let (charge, _) = self
                        .books
                        .held
                        .swap_remove(usize::from(op.subject) % self.books.held.len());
                    self.worker(op).run(move || drop(charge));
                }
            }
            Action::Answer | Action::DropAnswer => {
                let due = {
                    let mut findings = lock(&self.findings);
                    (!findings.due.is_empty()).then(|| findings.due.remove(0))
                };
                if let Some((later, actor)) = due {
                    let report = matches!(op.action, Action::Answer);
                    self.worker(op).run(move || answer(later, &actor, report));
                }
            }
            _ => {
                let online = self.books.online();
                self.step_group(op, online[usize::from(op.subject) % online.len()]);
            }
        }
    }

    fn step_group(&mut self, op: &Op, group: usize) {
        match op.action {
            Action::Create => {
                let number = self.books.groups.len();
                if number < GROUPS_MADE_MAX {
                    let made = self.on(op, group, move |group| {
                        group.create(&format!("g{number}"), Limits::new())
                    });
                    let made = made.unwrap_or_else(|error| panic!("{}: {error}", self.at));
                    self.books.groups.push(Entry {
                        group: made,
                        parent: Some(group),
                        online: true,
                    });
                }
            }
            // The root goes with its runtime.
            Action::Offline | Action::OfflineTree if group == 0 => {}
            Action::Offline => {
                let alone = self.on(op, group, |group| group.offline().is_ok());
                self.books.groups[group].online = !alone;
            }
            Action::OfflineTree => {
                self.on(op, group, Group::offline_tree);
                for below in self.books.online() {
                    if self.books.is_within(below, group) {
                        self.books.groups[below].online = false;
                    }
                }
            }
            Action::Register {
                character,
                priority,
                bytes,
            } => self.register(op, group, character, priority, bytes),
            Action::TryCharge(bytes) => {
                if let Some(charge) = self.try_charge(op, group, bytes) {
                    self.books.held.push((charge, group));
                }
            }
            Action::Charge(bytes) => {
                if bytes <= FORCED_MAX && self.books.held.len() < HELD_MAX {
                    let charge = self.on(op, group, move |group| group.force_charge(Bytes(bytes)));
                    self.books.held.push((charge, group));
                }
            }
            Action::Set(setting, bytes) => self.set(op, group, setting, bytes),
            Action::SetMaxAbove(bytes) => {
                let max = self.books.live(group).saturating_add(bytes);
                self.set(op, group, Setting::Max, max);
            }
            Action::Reclaim(bytes) => self.reclaim(op, group, bytes),
            Action::Drain => {
                self.on(op, group, |group| group.memory().drain());
            }
            _ => unreachable!("an operation on a reclaimer or on all"),
        }
    }

    /// `None`: refused, as it should be.
    fn try_charge(&mut self, op: &Op, group: usize, bytes: u64) -> Option<memcg::Charge> {
        if self.books.held.len() >= HELD_MAX {
            return None;
        }
        match self.on(op, group, move |group| group.charge(Bytes(bytes))) {
            Ok(charge) => Some(charge),
            Err(error) if error.is_over_limit() => {
                let refusal = error.over_limit().expect("a refusal");
                self.check_refusal(refusal);
                None
            }
            Err(other) => panic!("{}: {other}", self.at),
        }
    }

    fn register(&mut self, op: &Op, group: usize, character: Character, priority: u8, bytes: u64) {
        if self.books.cast.len() >= CAST_MAX {
            return;
        }
        // An answer that is kept makes others wait: only where there is little time for that.
        let character = if self.setup.patient && character == Character::Later {
            Character::LaterAtOnce
        } else {
            character
        };
        let Some(shelf) = self.try_charge(op, group, bytes) else {
            return;
        };
        let registration: Arc<Mutex<Option<Registration>>> = Arc::default();
        let actor = Arc::new(Actor::new(character, shelf, &self.findings, &registration));
        let reclaimer: Arc<dyn Reclaim> = Arc::new(Shared(Arc::clone(&actor)));
        let made = self.on(op, group, move |group| {
            group.register_reclaimer(reclaimer, ReclaimPriority::new(priority))
        });
        *lock(&registration) = Some(made);
        self.books.cast.push(Cast {
            actor,
            group,
            registration,
        });
    }

    fn step_actor(&mut self, op: &Op, at: usize) {
        match op.action {
            Action::Fill(bytes) => {
                let group = self.books.cast[at].group;
                if self.books.groups[group].online
                    && let Some(charge) = self.try_charge(op, group, bytes)
                {
                    let actor = Arc::clone(&self.books.cast[at].actor);
                    self.worker(op).run(move || actor.put(charge));
                }
            }
            Action::Unregister => self.unregister(op, at),
            Action::DropActor => {
                self.unregister(op, at);
                let Cast { actor, .. } = self.books.cast.swap_remove(at);
                // A group that waits for its answer keeps it.
                lock(&self.findings)
                    .due
                    .retain(|(_, due)| !Arc::ptr_eq(due, &actor));
                self.worker(op).run(move || drop(actor));
            }
            _ => unreachable!("an operation on a group or on all"),
        }
    }

    fn unregister(&self, op: &Op, at: usize) {
        let Cast {
            actor,
            registration,
            ..
        } = &self.books.cast[at];
        let mine = lock(registration).take();
        self.worker(op).run(move || drop(mine));
        actor.gone.store(true, Ordering::SeqCst);
    }

    fn set(&mut self, op: &Op, group: usize, setting: Setting, bytes: u64) {
        let to = limit(bytes);
        let above = self.on(op, group, move |group| match setting {
            Setting::Max => group.set_max(to),
            Setting::Soft => group.set_limits(Limits::new().soft(to)),
            Setting::Low => group.set_limits(Limits::new().low(to)),
            Setting::Min => group.set_limits(Limits::new().min(to)),
        });
        let above = above.unwrap_or_else(|error| panic!("{}: {error}", self.at));
        if setting == Setting::Max {
            let usage = self.books.groups[group].group.usage();
            assert_eq!(
                above,
                usage.saturating_sub(bytes),
                "{}: usage {usage}",
                self.at
            );
            self.check_left(group, above);
        }
    }

    fn reclaim(&mut self, op: &Op, group: usize, bytes: u64) {
        let before = self.books.live(group);
        let report: ReclaimReport =
            match self.on(op, group, move |group| group.reclaim(Bytes(bytes))) {
                Ok(report) => report,
                Err(error) => panic!("{}: {error}", self.at),
            };
        let freed = before - self.books.live(group);
        assert_eq!(report.requested, bytes, "{}", self.at);
        assert!(
            report.soft_visited <= report.visited,
            "{}: {report:?}",
            self.at
        );
        assert!(
            !self.setup.patient || !report.timed_out,
            "{}: {report:?}",
            self.at
        );
        // Promises count, and bytes that may have gone to a stock are believed without a trace of
        // them.
        if self.setup.batch == 0 || !self.books.has_boasters(group) {
            self.check_left(
                group,
                u64::from(freed.saturating_add(report.pending) < bytes),
            );
        }
    }

    /// All goes: nothing may be left.
    fn finish(mut self) {
        self.at = String::from("end");
        self.verify();
        let due = std::mem::take(&mut lock(&self.findings).due);
        let cast = std::mem::take(&mut self.books.cast);
        let held = std::mem::take(&mut self.books.held);
        let registrations: Vec<_> = cast
            .iter()
            .map(|cast| lock(&cast.registration).take())
            .collect();
        self.workers[0].run(move || drop((registrations, cast)));
        self.workers[1].run(move || drop(held));
        drop(due);
        let root = self.runtime.root();
        root.children().iter().for_each(Group::offline_tree);
        self.books.groups.clear();
        self.runtime.settle();
        root.memory().drain();
        assert_eq!(
            (self.runtime.group_count(), self.runtime.dying_count()),
            (1, 0),
            "a group is left"
        );
        assert_eq!(
            (
                root.usage(),
                root.forced(),
                root.inspect().descendants_in_excess()
            ),
            (0, 0, 0),
            "bytes are left"
        );
        self.verify();
        let counts = self.runtime.counts();
        assert_eq!(
            (counts.underflows, counts.overflows, counts.discarded),
            (0, 0, 0)
        );
        assert!(lock(&self.findings).faults.is_empty());
    }
}

/// The promised bytes are freed now, or the promise is forgotten.
fn answer(later: ReclaimPromise, actor: &Actor, report: bool) {
    // A group that is gone is not asked any more, but may answer.
    let freed = if report { actor.evict(later.want()) } else { 0 };
    actor.owes.store(false, Ordering::SeqCst);
    if report {
        later.report(freed);
    } else {
        drop(later);
    }
}

fn limit(bytes: u64) -> Limit {
    if bytes == u64::MAX {
        Limit::Unlimited
    } else {
        Limit::Bytes(bytes)
    }
}
