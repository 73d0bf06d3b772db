//! Rayon and groups: a pool whose workers work for one group, and a pool that several groups share.
//! A job inherits no group, so each gets its own.
//!
//! ```text
//! cargo run --example rayon
//! ```

use std::error::Error;
use std::thread;

use memcg::{Bytes, ChargeError, Charged, Group, Limit, Limits, Runtime};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

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

/// Somewhere in a library, which knows no group.
fn parse(row: u64) -> Result<Charged<Vec<u64>>, ChargeError> {
    let group = Group::current().expect("a job is in its group");
    Charged::make(&group, 8 * 128, || vec![row; 128])
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().max(Limit::mib(64)).audit(true).build()?;
    let group = |name| {
        runtime
            .root()
            .create(name, Limits::new().max(Limit::mib(8)))
    };
    let [acme, globex] = [group("acme")?, group("globex")?];

    let of_acme = pool_in(&acme, 2)?;
    let rows: Vec<_> = of_acme.install(|| {
        (0..1_000)
            .into_par_iter()
            .map(parse)
            .collect::<Result<_, _>>()
    })?;
    println!("{} rows, {} of /acme", rows.len(), Bytes(acme.live()));
    assert_eq!((acme.live(), globex.live()), (1_024_000, 0));

    // ANCHOR: shared
    // A pool that all share, as rayon's global one. Each job enters its group itself: a worker that
    // waits for others runs whatever job is next, perhaps another tenant's.
    let rows_of = |group: &Group, rows: u64| -> Result<Vec<_>, ChargeError> {
        let jobs = (0..rows).into_par_iter();
        jobs.map(|row| group.run(|| parse(row))).collect()
    };
    let (more, others) = rayon::join(|| rows_of(&acme, 500), || rows_of(&globex, 2_000));
    // ANCHOR_END: shared
    let (more, others) = (more?, others?);
    println!("{} and {} more rows", more.len(), others.len());
    assert_eq!((acme.live(), globex.live()), (1_536_000, 2_048_000));

    // One that does not fit ends the whole job.
    if let Err(refused) = rows_of(&globex, 10_000) {
        println!("{refused}");
    }
    assert!(globex.live() == 2_048_000 && globex.peak() <= globex.max());

    let (done, job) = std::sync::mpsc::channel();
    rayon::spawn(globex.wrap(move || drop(done.send(Group::current()))));
    assert_eq!(job.recv()?, Some(globex));
    drop((rows, more, others));
    println!("{}", runtime.verify());
    Ok(())
}
