//! A query in two stages: map tasks make partitions, reduce tasks take them over. Each stage is a
//! group, so the table says which one holds the memory. A partition that is handed over stays
//! charged to the query all the time: no other query takes its room in between.
//!
//! ```text
//! cargo run --example shuffle
//! ```

use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use memcg::{Bytes, Charge, ChargeError, Group, Limit, Limits, OnFull, Runtime};

const PARTITIONS: usize = 64;
const PARTITION: usize = 256 << 10;
/// The map stage makes no more partitions while it holds so many bytes.
const AHEAD: usize = 8 * PARTITION;
/// Longer than the other stage ever takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Partition {
    rows: Vec<u8>,
    charge: Charge,
}

/// Makes partitions, and none while the stage is above its high: it waits until the other stage has
/// taken some. So no charge has to be delayed, and none is.
fn map(stage: &Group, made: &Sender<Partition>) -> Result<u64, ChargeError> {
    let mut waits = 0;
    for number in 0..PARTITIONS {
        if stage.usage() > stage.inspect().high() {
            waits += 1;
            if !stage.below_high().wait(PATIENCE) {
                break; // cancelled, or gone
            }
        }
        let charge = stage.charge_with(PARTITION, OnFull::Reclaim)?;
        let rows = vec![number as u8; PARTITION];
        if made.send(Partition { rows, charge }).is_err() {
            break;
        }
    }
    Ok(waits)
}

/// Takes partitions over, and gives each back once it is added up.
fn reduce(stage: &Group, made: &Receiver<Partition>) -> Result<u64, ChargeError> {
    let mut sum = 0;
    for mut partition in made {
        // Below the query nothing is charged anew; a max of this stage could refuse.
        partition.charge.transfer(stage)?;
        sum += partition
            .rows
            .iter()
            .map(|&row| u64::from(row))
            .sum::<u64>();
        thread::sleep(Duration::from_millis(1)); // it is the slower one
    }
    Ok(sum)
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().max(Limit::mib(64)).build()?;
    let query = runtime
        .root()
        .create("q17", Limits::new().max(Limit::mib(16)))?;
    let stages = [
        query.create("map", Limits::new().high(AHEAD))?,
        query.create("reduce", Limits::new())?,
    ];
    // A peak of this run alone: that of the group itself never falls.
    let peaks = stages.each_ref().map(|stage| stage.memory().peak_window());
    let whole = query.memory().peak_window();
    let (made, makes) = channel();
    let (waits, sum) = thread::scope(|scope| {
        let [first, second] = &stages;
        let maps = scope.spawn(move || map(first, &made)); // its end closes the channel
        let reduces = scope.spawn(move || reduce(second, &makes));
        (maps.join(), reduces.join())
    });
    let (waits, sum) = (waits.expect("no panic")?, sum.expect("no panic")?);
    println!("{PARTITIONS} partitions, sum {sum}; the map stage waited {waits} times");
    let [map, reduce] = peaks.map(|peak| peak.peak());
    println!("most in map: {}", Bytes(map));
    println!("most in reduce: {}", Bytes(reduce));
    println!("most in the query: {}", Bytes(whole.peak()));
    println!("{}", runtime.verify());
    Ok(())
}
