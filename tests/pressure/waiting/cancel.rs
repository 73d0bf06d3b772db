//! A future that is dropped: whenever that is, nothing remains of it.

use memcg::Bytes;

use super::{KIB, Waiter, build, charge, full, in_line, kinds, left_empty, runtimes};

#[test]
fn before_it_is_polled() {
    for runtime in runtimes() {
        let (group, held) = full(&runtime);
        drop(group.charge_async(Bytes(KIB)));
        assert_eq!((group.waiting_count(), group.live()), (0, 10 * KIB));
        drop(held);
        // Nor does a future do anything by itself.
        let _waiter = group.charge_async(Bytes(KIB));
        assert_eq!((group.waiting_count(), group.live()), (0, 0));
    }
}

/// All at once, the first to the last and the other way round.
#[test]
fn all_of_them() {
    for builder in kinds() {
        for backwards in [false, true] {
            let runtime = left_empty(build(builder.clone()));
            let (group, held) = full(&runtime);
            let mut waiters: Vec<Waiter> = (0..1_000)
                .map(|number| in_line(&group, 1 + number))
                .collect();
            if backwards {
                waiters.reverse();
            }
            drop(waiters);
            assert_eq!((group.waiting_count(), group.live()), (0, 10 * KIB));
            drop(held);
            drop(charge(&group, 10 * KIB));
        }
    }
}
