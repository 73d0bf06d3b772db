//! A service to look at: three tenants whose caches and queries come and go, one of them above its
//! limits.
//!
//! ```text
//! cargo run --manifest-path crates/Cargo.toml -p memcg-top --example watched_service -- /tmp/memcg.sock &
//! cargo run --manifest-path crates/Cargo.toml -p memcg-top -- /tmp/memcg.sock
//! ```
//!
//! Two numbers after the socket: so many groups more below the root, and how many of their charges
//! change twenty times a second. What `memcg-top` and the service spend is measured with them.

use std::error::Error;
use std::thread;
use std::time::Duration;

use memcg::{Charge, Group, Limits, Runtime};
use memcg_observe::Endpoint;
use rand::RngExt;

const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let socket = arguments
        .next()
        .ok_or("service SOCKET [GROUPS [CHANGES]]")?;
    let mut number = || {
        arguments
            .next()
            .map_or(Ok(0), |number| number.to_string_lossy().parse::<usize>())
    };
    let more = number()?;
    let changes = number()?;
    let runtime = Runtime::builder().max(1 << 30).build()?;
    let _serving = Endpoint::new(&runtime).allow_set(true).serve(socket)?;
    let mut tenants = Vec::new();
    for (name, max) in [("acme", 256), ("bolt", 128), ("calm", 512)] {
        let limits = Limits::new()
            .max(max * MIB)
            .high(max * 3 / 4 * MIB)
            .low(max / 8 * MIB)
            .soft(max / 2 * MIB);
        let tenant = runtime.root().create(name, limits)?;
        for part in ["cache", "query"] {
            tenants.push((tenant.create(part, Limits::new())?, max * MIB, Vec::new()));
        }
    }
    let more = (0..more).map(|number| {
        runtime
            .root()
            .create(&format!("group-{number}"), Limits::new())
    });
    let more = more.collect::<Result<Vec<Group>, _>>()?;
    let mut held = more
        .iter()
        .map(|group| group.charge(4_096))
        .collect::<Result<Vec<Charge>, _>>()?;
    loop {
        for _ in 0..changes.min(more.len()) {
            let at = rand::rng().random_range(0..more.len());
            held[at] = more[at].force_charge(rand::rng().random_range(4_096..64 << 10));
        }
        for (group, max, held) in &mut tenants {
            step(group, *max, held);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Charges up to a fortieth of the tenant's max, or frees something.
fn step(group: &Group, max: usize, held: &mut Vec<Charge>) {
    let mut random = rand::rng();
    if random.random_bool(0.55) || held.is_empty() {
        // A refusal is a part of the show.
        held.extend(group.charge(random.random_range(4_096..max / 40)));
    } else {
        drop(held.swap_remove(random.random_range(0..held.len())));
    }
}
