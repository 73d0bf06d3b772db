//! A reclaimer of some character. Whatever it is like, it checks what it is asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use memcg::errors::ReclaimError;
use memcg::{
    Bytes, Charge, Freshness, Group, GroupId, Limits, Reclaim, ReclaimContext, ReclaimPass,
    ReclaimPromise, Registration,
};

use super::lock;
use super::ops::Character;

/// Findings of all reclaimers of a run.
#[derive(Default)]
pub(super) struct Findings {
    /// Faults that they have found.
    pub(super) faults: Vec<String>,
    /// Answers that are due.
    pub(super) due: Vec<(ReclaimPromise, Arc<Actor>)>,
    /// A group that was asked last in the present operation.
    pub(super) last: Option<GroupId>,
    pub(super) asked: u64,
}

pub(super) struct Actor {
    character: Character,
    shelf: Mutex<Charge>,
    findings: Arc<Mutex<Findings>>,
    registration: Arc<Mutex<Option<Registration>>>,
    /// The drop of its registration has returned.
    pub(super) gone: AtomicBool,
    /// It has an answer to give.
    pub(super) owes: AtomicBool,
}

impl Actor {
    pub(super) fn new(
        character: Character,
        shelf: Charge,
        findings: &Arc<Mutex<Findings>>,
        registration: &Arc<Mutex<Option<Registration>>>,
    ) -> Self {
        Self {
            character,
            shelf: Mutex::new(shelf),
            findings: Arc::clone(findings),
            registration: Arc::clone(registration),
            gone: AtomicBool::new(false),
            owes: AtomicBool::new(false),
        }
    }

    pub(super) fn character(&self) -> Character {
        self.character
    }

    pub(super) fn bytes(&self) -> u64 {
        lock(&self.shelf).bytes()
    }

    pub(super) fn put(&self, charge: Charge) {
        lock(&self.shelf).merge(charge).expect("of the same group");
    }

    pub(super) fn evict(&self, want: u64) -> u64 {
        lock(&self.shelf).shrink(Bytes(want))
    }

    fn fault(&self, what: String) {
        lock(&self.findings).faults.push(what);
    }

    /// Checks that it may be asked for that, here and now.
    fn check(&self, want: u64, context: &ReclaimContext<'_>) {
        let group = context.group();
        let target = context.target();
        let pass = context.pass();
        let before = {
            let mut findings = lock(&self.findings);
            findings.asked += 1;
            findings.last.replace(group.id())
        };
        let at = format!(
            "{:?} of {} asked for {want} by {} in {pass:?}",
            self.character,
            group.path(),
            target.path()
        );
        if self.gone.load(Ordering::SeqCst) {
            self.fault(format!("{at}: it is gone"));
        }
        if self.owes.load(Ordering::SeqCst) {
            self.fault(format!("{at}: it owes an answer"));
        }
        if want == 0 {
            self.fault(format!("{at}: nothing"));
        }
        if group != target && !group.ancestors().any(|above| above == target) {
            self.fault(format!("{at}: not below"));
        }
        // One that was asked just before may have taken the group out of its excess.
        if pass == ReclaimPass::Soft && before != Some(group.id()) && !is_eligible(&group, &target)
        {
            self.fault(format!("{at}: not in excess"));
        }
        let usage = group.usage();
        let min = group.memory().effective_min(&target.memory());
        let low = group.memory().effective_low(&target.memory());
        let kept = if pass == ReclaimPass::Low {
            min
        } else {
            min.max(low)
        };
        if usage.saturating_sub(kept) < want {
            self.fault(format!("{at}: {usage} used, {min} and {low} protected"));
        }
    }

    /// Uses the library, which is in the middle of reclaim.
    fn work(&self, context: &ReclaimContext<'_>) {
        let group = context.group();
        let target = context.target();
        for of in [&group, &target] {
            match of.reclaim(1) {
                Err(ReclaimError { .. }) => {}
                other => self.fault(format!("reclaim inside reclaim: {other:?}")),
            }
            for charged in [of.charge(1 << 16), of.try_charge(1 << 16)] {
                match charged {
                    Ok(_) => {}
                    Err(error) if error.is_in_reclaim() => {}
                    // The group of a reclaimer that another has inherited may go offline meanwhile.
                    Err(other) => self.fault(format!("a charge inside reclaim: {other}")),
                }
            }
        }
        if let Ok(made) = group.create("made", Limits::new().soft(0)) {
            let held = made.force_charge(1);
            if !made.inspect().is_in_excess() {
                self.fault("1 byte is not above 0".into());
            }
            made.offline_tree();
            drop(held);
        }
        drop((
            target.read(Freshness::Exact),
            target.events(),
            format!("{target:?}"),
        ));
    }
}

/// It is in excess, or one above it up to the target is.
pub(super) fn is_eligible(group: &Group, target: &Group) -> bool {
    let mut next = Some(group.clone());
    while let Some(level) = next {
        if level.inspect().is_in_excess() {
            return true;
        }
        next = if level == *target {
            None
        } else {
            level.parent()
        };
    }
    false
}

/// It is handed on when it is asked later.
pub(super) struct Shared(pub(super) Arc<Actor>);

impl Reclaim for Shared {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        let actor = &self.0;
        actor.check(want, context);
        match actor.character {
            Character::Honest
            | Character::EstimatesNothing
            | Character::EstimatesAll
            | Character::PanicsInEstimate => actor.evict(want),
            Character::Slow => {
                std::thread::yield_now();
                (0..2_000).for_each(|_| std::hint::spin_loop());
                actor.evict(want)
            }
            Character::Stubborn => 0,
            Character::Boasts => u64::MAX,
            Character::Modest => {
                actor.evict(want);
                0
            }
            Character::Half => {
                actor.evict(want / 2);
                want
            }
            Character::Greedy => actor.evict(u64::MAX),
            Character::PanicsAtOnce => panic!("on purpose"),
            Character::PanicsLate => {
                actor.evict(want.div_ceil(2));
                panic!("on purpose, late");
            }
            Character::Busy => {
                actor.work(context);
                actor.evict(want)
            }
            Character::Quits => {
                let mine = lock(&actor.registration).take();
                drop(mine);
                actor.gone.store(true, Ordering::SeqCst);
                actor.evict(want)
            }
            Character::Later => {
                let later = context.promise();
                actor.owes.store(true, Ordering::SeqCst);
                lock(&actor.findings).due.push((later, Arc::clone(actor)));
                0
            }
            Character::LaterAtOnce => {
                let later = context.promise();
                later.report(actor.evict(want));
                0
            }
        }
    }

    fn reclaimable(&self) -> u64 {
        match self.0.character {
            Character::EstimatesNothing => 0,
            Character::EstimatesAll => u64::MAX - 1,
            Character::PanicsInEstimate => panic!("on purpose, of an estimate"),
            _ => self.0.bytes(),
        }
    }
}
