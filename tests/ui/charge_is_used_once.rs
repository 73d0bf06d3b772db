//! Bytes are given back once: a charge is not copied, and not used when it is gone.

use memcg::Charge;

fn copied(charge: &Charge) -> Charge {
    *charge //~ E0507
}

fn used_twice(charge: Charge) -> u64 {
    drop(charge);
    charge.bytes() //~ E0382
}

fn main() {}
