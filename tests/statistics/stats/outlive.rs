//! Handles, charges and reads that outlive their group and their runtime.

use memcg::StatKey;

use super::{assert_exact, build, create, kinds};

const STAT: StatKey = StatKey::KERNEL;

/// The guard of a further counter finds the group's cells, not its counter's.
#[test]
fn a_guard_of_a_further_counter_counts_for_the_group() {
    for mut builder in kinds() {
        let spill = builder.counter("spill", memcg::Unit::Bytes);
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let charges = group
            .charge_set(&[(spill, 3), (memcg::CounterKey::MEMORY, 4)])
            .expect("room");
        for (number, charge) in (1..).zip(&charges) {
            charge.stat_add(STAT, number);
        }
        assert_exact(&group, STAT, 3, 3);
        group.offline().expect("no children");
        drop(group);
        for (number, charge) in (1..).zip(charges) {
            charge.stat_add(STAT, 10 * number);
        }
        runtime.settle();
        assert_eq!(runtime.dying_count(), 0);
        assert_exact(&runtime.root(), STAT, 33, 0);
    }
}
