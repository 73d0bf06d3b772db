//! The rows, for comparison across versions: one iteration is one allocation and its end.

#![cfg(not(loom))]

use super::machine::{MODELS, Machine, Model};
use super::variant::Variant;
use super::{SIZES, end_to_end};
use crate::common::rows::Rows;
use crate::common::team::Team;

pub(crate) fn rows(rows: &mut Rows) {
    for variant in [Variant::None].into_iter().chain(Variant::ALL) {
        for size in SIZES {
            for model in MODELS {
                let id = format!("kmem/{}/size{size}/nodes{}", variant.name(), model.nodes);
                rows.timed(&id, || {
                    team(model, move |machine, times| {
                        machine.run(variant, size, times)
                    })
                });
            }
        }
    }
    for processors in [8, 16, 80, 176] {
        for (id, variant) in [("scale", Variant::Ours), ("scale_none", Variant::None)] {
            let model = Model::with_processors(processors);
            rows.timed(&format!("kmem/{id}/processors{processors}"), || {
                team(model, move |machine, times| {
                    machine.run(variant, SIZES[2], times)
                })
            });
        }
    }
    for (id, ours) in [("none", false), ("ours", true)] {
        for size in SIZES {
            rows.timed(&format!("kmem/end_to_end/{id}/size{size}"), || {
                team(super::machine::NODES2, move |machine, times| {
                    end_to_end::run(machine, ours, size, times)
                })
            });
        }
    }
}

fn team(
    model: Model,
    run: impl Fn(&Machine, u64) -> std::time::Duration + Send + Sync + 'static,
) -> Team {
    Team::new(1, move |station| {
        let machine = Machine::new(model);
        station.serve_timed(|times| run(&machine, times));
    })
}
