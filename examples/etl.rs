//! A job of ETL on rayon: it reads the orders of each day, parses them, and adds them up by
//! customer. The workers of its pool work in its group, so that the steps charge the current group
//! and hand none on. A second job runs in a pool that others use, too.
//!
//! ```text
//! cargo run --example etl
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write;
use std::ops::Range;
use std::thread;

use memcg::{Bytes, ChargeError, Charged, ChargedVec, Group, Limit, Limits, Runtime};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

const ORDERS: usize = 2_000;
const CUSTOMERS: u32 = 10_000;
/// The bytes of the longest line of a file.
const LINE: usize = 32;

struct Order {
    customer: u32,
    cents: u64,
}

type Totals = Charged<HashMap<u32, u64>>;

// ANCHOR: pool
/// A pool of a group's own: all that its workers do is done in the group.
fn pool_in(group: &Group, threads: usize) -> Result<ThreadPool, ThreadPoolBuildError> {
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .spawn_handler(|worker| {
            thread::Builder::new().spawn(group.wrap(|| worker.run()))?;
            Ok(())
        })
        .build()
}
// ANCHOR_END: pool

/// The group whose job runs.
fn group() -> Group {
    Group::current().expect("a job is in its group")
}

/// The file of a day. Its length is known before it is read, so it is charged before.
fn extract(day: u32) -> Result<Charged<String>, ChargeError> {
    Charged::make(&group(), ORDERS * LINE, || {
        let mut text = String::with_capacity(ORDERS * LINE);
        let mut customer = day;
        for order in 0..ORDERS {
            customer = customer.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            writeln!(text, "{},{}", customer % CUSTOMERS, order).expect("a string takes it");
        }
        text
    })
}

/// The orders of a text. Nobody knows how many there are: the vector charges before it grows.
fn transform(text: &str) -> Result<ChargedVec<Order>, ChargeError> {
    let mut orders = ChargedVec::new(&group());
    for line in text.lines() {
        let fields = line.split_once(',');
        let order = fields.and_then(|(customer, cents)| {
            Some(Order {
                customer: customer.parse().ok()?,
                cents: cents.parse().ok()?,
            })
        });
        if let Some(order) = order {
            orders.push(order)?;
        }
    }
    orders.shrink_to_fit();
    Ok(orders)
}

// ANCHOR: totals
/// A map that is charged as it grows.
fn no_totals() -> Totals {
    let itself = group().force_charge(size_of::<HashMap<u32, u64>>());
    Charged::new(HashMap::new(), itself)
}

/// Adds orders up. A hash table of the standard library grows without asking, so what it has taken
/// is charged by force, and the checkpoint stops the job where that was too much. While the table
/// doubles, the old one is there beside the new one: that is not charged.
fn add(
    mut totals: Totals,
    orders: impl IntoIterator<Item = (u32, u64)>,
) -> Result<Totals, ChargeError> {
    for (customer, cents) in orders {
        *totals.entry(customer).or_default() += cents;
    }
    Charged::reweigh(&mut totals);
    Group::checkpoint()?;
    Ok(totals)
}
// ANCHOR_END: totals

/// The whole job. It runs in a group's own pool, where each step is in that group.
fn totals_of(days: Range<u32>) -> Result<Totals, ChargeError> {
    days.into_par_iter()
        .map(|day| transform(&extract(day)?))
        .try_fold(no_totals, |totals, orders| {
            let orders = orders?;
            add(
                totals,
                orders.iter().map(|order| (order.customer, order.cents)),
            )
        })
        .try_reduce(no_totals, |totals, more| {
            add(
                totals,
                more.iter().map(|(&customer, &cents)| (customer, cents)),
            )
        })
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().max(Limit::mib(64)).audit(true).build()?;
    let root = runtime.root();
    let nightly = root.create("nightly", Limits::new().max(Limit::mib(4)))?;
    let ad_hoc = root.create("ad_hoc", Limits::new().max(Limit::mib(1)))?;

    let totals = pool_in(&nightly, 2)?.install(|| totals_of(0..365))?;
    let cents: u64 = totals.values().sum();
    println!(
        "{} customers, {cents} cents, {} charged",
        totals.len(),
        Bytes(nightly.live())
    );
    assert_eq!(cents, 365 * (0..ORDERS as u64).sum::<u64>());
    assert!(ad_hoc.live() == 0 && nightly.live() == Charged::charge(&totals).bytes());

    // ANCHOR: shared
    // A pool that all share, as rayon's global one. Each job enters its group itself: a worker that
    // waits for others runs whatever job is next, perhaps another group's.
    let orders_of = |group: &Group, days: Range<u32>| -> Result<Vec<_>, ChargeError> {
        let days = days.into_par_iter();
        days.map(|day| group.run(|| transform(&extract(day)?)))
            .collect()
    };
    let (few, many) = rayon::join(|| orders_of(&nightly, 0..10), || orders_of(&ad_hoc, 0..100));
    // ANCHOR_END: shared
    // One day that does not fit ends its job, and gives back what the job holds.
    if let Err(refused) = &many {
        println!("{refused}");
    }
    let few = few?;
    println!("{} days of orders", few.len());
    assert!(many.is_err() && ad_hoc.live() == 0 && ad_hoc.peak() <= ad_hoc.max());
    drop((few, totals));
    println!("{}", runtime.verify());
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "tests/etl_heap.rs"]
mod heap;
