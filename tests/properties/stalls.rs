//! Chargers that stop and go on, by a clock that the test drives, against a model that keeps each
//! stall as it was.
//!
//! The model adds nothing up: it looks through all stalls for each figure that is asked for.

use proptest::prelude::*;

use self::production::{AVERAGED_OVER, PERIOD, StallTimes};

#[allow(
    dead_code,
    unreachable_pub,
    reason = "what the crate uses, this test does not all use"
)]
#[path = "../../src/state/stalls.rs"]
mod production;

const SECOND: u64 = 1_000_000_000;

/// A step of a charger, a reader or the clock.
#[derive(Clone, Debug)]
enum Step {
    /// A charger stops; whether each charger would have to.
    Stop {
        full: bool,
    },
    /// One of those that stand still goes on.
    GoOn(prop::sample::Index),
    /// A charger has stood still for so long, and nothing else has changed meanwhile.
    Stood {
        time: u64,
        full: bool,
    },
    Pass(u64),
    Read,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let time = prop_oneof![
        Just(0),
        0..1_000u64,
        0..30_000_000u64,
        0..SECOND,
        0..PERIOD * 2,
        0..100 * SECOND,
        (0..20u64).prop_map(|periods| periods * PERIOD),
    ];
    let step = prop_oneof![
        2 => any::<bool>().prop_map(|full| Step::Stop { full }),
        2 => any::<prop::sample::Index>().prop_map(Step::GoOn),
        2 => (time.clone(), any::<bool>()).prop_map(|(time, full)| Step::Stood { time, full }),
        3 => time.prop_map(Step::Pass),
        1 => Just(Step::Read),
    ];
    prop::collection::vec(step, 1..80)
}

/// One stall: from when, until when unless it lasts, and whether it is full.
#[derive(Clone, Copy, Debug)]
struct Stood {
    from: u64,
    to: Option<u64>,
    full: bool,
}

#[derive(Default)]
struct Model {
    stalls: Vec<Stood>,
    now: u64,
}

impl Model {
    /// The time between two moments, neither later than now, in which a charger stood still;
    /// `full`: of full stalls.
    fn stood(&self, from: u64, to: u64, full: bool) -> u64 {
        let counts = |stood: &&Stood| stood.full || !full;
        let cut = |stood: &Stood| (stood.from.max(from), stood.to.unwrap_or(self.now).min(to));
        let mut parts: Vec<_> = self
            .stalls
            .iter()
            .filter(counts)
            .map(cut)
            .filter(|(begin, end)| begin < end)
            .collect();
        parts.sort_unstable();
        let mut all = 0;
        let mut reached = 0;
        for (begin, end) in parts {
            all += end.saturating_sub(begin.max(reached));
            reached = reached.max(end);
        }
        all
    }

    /// Period after period, in hundredths of a per cent.
    fn averages(&self, full: bool) -> [f64; 3] {
        AVERAGED_OVER.map(|over| {
            let kept = (-2.0 / f64::from(over)).exp();
            (0..self.now / PERIOD).fold(0.0, |average, period| {
                let stood = self.stood(period * PERIOD, (period + 1) * PERIOD, full);
                average * kept + stood as f64 / PERIOD as f64 * 10_000.0 * (1.0 - kept)
            })
        })
    }
}

/// The figures as the model has them; averages may be rounded the other way.
fn agree(times: &mut StallTimes, model: &Model) -> Result<(), TestCaseError> {
    times.advance(model.now);
    for (share, full) in [(times.some(), false), (times.full(), true)] {
        prop_assert_eq!(share.total(), model.stood(0, model.now, full));
        for (ours, exact) in share.averages().into_iter().zip(model.averages(full)) {
            prop_assert!(
                (f64::from(ours) - exact).abs() <= 0.501,
                "{ours} for {exact}, full {full}"
            );
        }
    }
    Ok(())
}

/// Carries a step out on both.
fn carry_out(step: &Step, times: &mut StallTimes, model: &mut Model) {
    match step {
        Step::Stop { full } => {
            times.change(model.now, true, *full);
            model.stalls.push(Stood {
                from: model.now,
                to: None,
                full: *full,
            });
        }
        Step::GoOn(which) => {
            let now = model.now;
            let mut standing: Vec<_> = model
                .stalls
                .iter_mut()
                .filter(|stood| stood.to.is_none())
                .collect();
            if !standing.is_empty() {
                let stood = which.index(standing.len());
                standing[stood].to = Some(now);
                times.change(now, false, standing[stood].full);
            }
        }
        &Step::Stood { time, full } => {
            let from = model.now;
            model.now += time;
            model.stalls.push(Stood {
                from,
                to: Some(model.now),
                full,
            });
            times.stood(from, model.now, full);
        }
        Step::Pass(time) => model.now += time,
        Step::Read => times.advance(model.now),
    }
}

proptest! {
    #![proptest_config(super::config())]

    #[test]
    fn figures_are_those_of_all_stalls(steps in steps()) {
        let mut times = StallTimes::default();
        let mut model = Model::default();
        for step in &steps {
            carry_out(step, &mut times, &mut model);
            if let Step::Read = step {
                agree(&mut times, &model)?;
            }
        }
        agree(&mut times, &model)?;
    }
}
