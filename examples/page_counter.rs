//! A counter alone: stock, limits of all ancestors, accounts by node, statistics with a flush. No
//! group, no guard.
//!
//! ```text
//! cargo run --example page_counter
//! ```

use std::error::Error;

use memcg::kmem::{NodeId, Placement};
use memcg::{CounterConfig, Freshness, PageCounter, StatKey, Unit};

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = CounterConfig::bytes()
        .name("machine")
        .max(64 << 20)
        .nodes(2);
    let rows = config.stat("rows_scanned", Unit::Events);
    let machine = PageCounter::root(config);
    let web = machine.named_child("web");
    let import = machine.named_child("import");

    // Stock: the thread charges a batch once, and pays the next charges from it without a shared
    // write.
    (0..100).try_for_each(|_| web.charge(4_096))?;
    println!("web     {} live, {} stocked", web.live(), web.stocked());

    // Limits: of this counter and of all above it. Credit in a stock never makes one refuse.
    import.set_max(1 << 20)?;
    let refused = import.charge(2 << 20).unwrap_err();
    let full = import
        .level(refused.level)
        .ok_or("a refusal names a level of the path")?;
    println!("refused {} by {}", refused.requested, full.name());

    // Accounts by node: admission before the allocation, the account after it, and after each move.
    let near = NodeId::new(0);
    let far = NodeId::new(1);
    let mut pages = import
        .precharge(512 << 10)?
        .account(&Placement::on(near, 500_000));
    pages.migrated(Some(near), Some(far), 200_000);
    println!(
        "nodes   {}",
        machine.numa_stat(StatKey::KERNEL, Freshness::Exact)
    );

    // Statistics: each thread writes cells of its own, and the reader chooses what may be missing.
    std::thread::scope(|scope| {
        scope.spawn(|| web.stat_add(rows, 1_000));
        scope.spawn(|| import.stat_add(rows, 1_000));
    });
    machine.flush();
    let [published, exact] =
        [Freshness::Stale, Freshness::Exact].map(|how| machine.read(how).get(rows));
    println!("rows    {published} published, {exact} exactly");

    web.uncharge(100 * 4_096);
    drop(pages);
    println!("drained {}, {} left", machine.drain(), machine.usage());
    Ok(())
}
