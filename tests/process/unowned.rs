//! An allocator leaves work to calls outside of it, on the same thread: the charge for what no
//! group owns, and groups that go with their last object.

use std::sync::Barrier;

use memcg::allocator::{Owner, catch_up, charge_unowned, charge_unowned_to, uncharge_unowned};
use memcg::{Limits, Runtime};

use crate::support::alone::alone;

/// The charge lags behind by so much, for the one thread that allocates.
const LAG: u64 = 1_100 << 10;

/// A thread that switches groups charges what the allocator has left to it, with no call of
/// `catch_up`.
#[test]
fn a_switch_of_groups_charges_what_is_left() {
    alone(
        "unowned::a_switch_of_groups_charges_what_is_left",
        &[],
        || {
            let runtime = Runtime::builder().build().unwrap();
            let [shared, other] =
                ["shared", "other"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
            charge_unowned_to(Some(&shared));
            for allocated in 1..=8_u64 {
                charge_unowned(4 << 20);
                other.run(|| ());
                let live = shared.live();
                let bytes = allocated * (4 << 20);
                assert!(
                    (bytes - LAG..=bytes).contains(&live),
                    "{live} of {bytes} bytes are charged"
                );
            }
            for freed in 1..=8_u64 {
                uncharge_unowned(4 << 20);
                other.run(|| ());
                let live = shared.live();
                let bytes = (8 - freed) * (4 << 20);
                assert!(
                    (bytes..=bytes + LAG).contains(&live),
                    "{live} bytes are charged for {bytes}"
                );
            }
            catch_up();
            assert_eq!(shared.live(), 0);
            charge_unowned_to(None);
        },
    );
}

/// A thread gives back a group's last object inside of an allocator, and does nothing more: another
/// thread releases the group.
#[test]
#[allow(unsafe_code)]
fn a_group_goes_that_an_allocator_has_left() {
    alone(
        "unowned::a_group_goes_that_an_allocator_has_left",
        &[],
        || {
            let runtime = Runtime::builder().build().unwrap();
            let group = runtime.root().create("q", Limits::new()).unwrap();
            let owner = Owner::charge_to(&group, 1 << 20);
            group.offline().unwrap();
            drop(group);
            runtime.root().memory().drain();
            assert_eq!(runtime.dying_count(), 1);
            let freed = Barrier::new(2);
            let left = std::thread::scope(|scope| {
                scope.spawn(|| {
                    // SAFETY: the object's bytes are charged, and given back once.
                    unsafe { owner.uncharge(1 << 20) };
                    freed.wait();
                    freed.wait();
                });
                freed.wait();
                catch_up();
                let left = (runtime.dying_count(), runtime.root().usage());
                freed.wait();
                left
            });
            assert_eq!(left, (0, 0));
        },
    );
}
