//! The tables' answers to the claims of the series (`docs/src/series/kmem.md`).

#![cfg(not(loom))]

use super::SIZES;
use super::machine::{Model, NODES1, NODES2};
use super::turns::Cost;
use super::variant::Variant;
use crate::common::claims::{Bound, Claims, Ratio};

/// The least ratio that is called substantial: the series has 4.4 and 2.5 times on its two
/// machines.
const SUBSTANTIAL: f64 = 1.5;

/// The series' own: the most that it calls noise without nodes, and in a whole program; the most of
/// its short way for one node; what is left of (a) in (b), at most.
const NOISE: f64 = 1.124;
const NOT_VISIBLE: f64 = 1.055;
const SHORT_WAY: f64 = 1.126;
const REMEMBERED: f64 = 0.57;

/// Of a line each further processor costs as much as those before; of a cost that levels off, less
/// than half.
const LINEAR: f64 = 0.5;

/// Sizes at which accounting stands out of the noise of an allocation.
const SMALL: [usize; 3] = [SIZES[0], SIZES[1], SIZES[2]];

/// The measures of the tables.
#[derive(Default)]
pub(super) struct Verdicts {
    costs: Vec<(u16, usize, Variant, Cost)>,
    /// A way's nanoseconds on 16 and on 176 processors.
    scale: Vec<(usize, Cost)>,
    whole: Vec<(usize, Cost)>,
}

impl Verdicts {
    pub(super) fn of_model(&mut self, model: Model, size: usize, costs: &[Cost]) {
        for (variant, cost) in Variant::ALL.into_iter().zip(costs) {
            self.costs.push((model.nodes, size, variant, *cost));
        }
    }

    /// Of the series' way.
    pub(super) fn of_scale(&mut self, processors: usize, cost: Cost) {
        self.scale.push((processors, cost));
    }

    pub(super) fn of_whole(&mut self, size: usize, cost: Cost) {
        self.whole.push((size, cost));
    }

    fn cost(&self, model: Model, size: usize, variant: Variant) -> Option<&Cost> {
        let is_it = |(nodes, of, by, _): &&(u16, usize, Variant, Cost)| {
            (*nodes, *of, *by) == (model.nodes, size, variant)
        };
        self.costs.iter().find(is_it).map(|(.., cost)| cost)
    }

    /// A way's time by none's, for each machine and size.
    fn by_none(&self, models: &[Model], sizes: &[usize], variant: Variant) -> Vec<(String, Ratio)> {
        let each = |model: &Model, size: &usize| {
            let cost = self.cost(*model, *size, variant)?;
            Some((
                format!("{} processors, {size} B", model.processors),
                cost.ratio(),
            ))
        };
        models
            .iter()
            .flat_map(|model| sizes.iter().filter_map(move |size| each(model, size)))
            .collect()
    }

    /// The ratio of one way's addition to another's.
    fn by_other(&self, sizes: &[usize], variant: Variant, other: Variant) -> Vec<(String, Ratio)> {
        let each = |model: Model, size: &usize| {
            let cost = self.cost(model, *size, variant)?;
            let other = self.cost(model, *size, other)?;
            Some((
                format!("{} processors, {size} B", model.processors),
                cost.added_by(other),
            ))
        };
        [NODES1, NODES2]
            .into_iter()
            .flat_map(|model| sizes.iter().filter_map(move |size| each(model, size)))
            .collect()
    }

    /// Of those for which the run has the figures.
    pub(super) fn print(&self) {
        let mut claims = Claims::new();
        let machines = [NODES1, NODES2];
        let mut timed = |id: &str, ratios: Vec<(String, Ratio)>, bound: Bound| {
            let ratios: Vec<(&str, Ratio)> = ratios
                .iter()
                .map(|(what, ratio)| (what.as_str(), *ratio))
                .collect();
            if !ratios.is_empty() {
                claims.timed(id, &ratios, bound);
            }
        };
        timed(
            "kmem-1",
            self.by_none(&machines, &SIZES[..1], Variant::PerNode),
            Bound::AtLeast(SUBSTANTIAL),
        );
        let whole = self
            .whole
            .iter()
            .map(|(size, cost)| (format!("{size} B"), cost.ratio()))
            .collect();
        timed("kmem-2", whole, Bound::AtMost(NOT_VISIBLE));
        timed(
            "kmem-3",
            self.by_other(&SIZES[..1], Variant::PerPage, Variant::PerNode),
            Bound::AtLeast(1.0),
        );
        let of = |processors| {
            self.scale
                .iter()
                .find(|(of, _)| *of == processors)
                .map(|(_, cost)| cost)
        };
        let scale = of(16).zip(of(80)).zip(of(176)).map(|((few, more), most)| {
            (
                "a processor from 81 to 176 / from 17 to 80".to_owned(),
                Cost::slope([(16, few), (80, more), (176, most)]),
            )
        });
        timed(
            "kmem-4",
            scale.into_iter().collect(),
            Bound::AtLeast(LINEAR),
        );
        timed(
            "kmem-5",
            self.by_other(&SIZES[..1], Variant::Cached, Variant::PerNode),
            Bound::AtMost(REMEMBERED),
        );
        timed(
            "kmem-6",
            self.by_other(&SMALL, Variant::Cached, Variant::PerNode),
            Bound::AtMost(1.0),
        );
        timed(
            "kmem-9",
            self.by_none(&machines, &SIZES, Variant::GroupOnly),
            Bound::AtMost(NOISE),
        );
        timed(
            "kmem-10",
            self.by_none(&[NODES1], &SIZES, Variant::OneNode),
            Bound::AtMost(SHORT_WAY),
        );
        claims.print();
    }
}
