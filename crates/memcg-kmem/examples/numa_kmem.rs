//! Which group holds how much on which memory node: on this machine, and on a simulated one of
//! eight nodes.
//!
//! ```text
//! cargo run --release -p memcg-kmem --example numa_kmem
//! cargo run --release -p memcg-kmem --example numa_kmem -- --only machine     # or: simulation
//! ```
//!
//! A service with two tenants keeps rows (`KmemVec`), hit counts for each processor (`PerCpu`),
//! sessions (`KmemSlab`) and compressed documents (`KmemStore`). After each step the table is
//! printed that the kernel would show as `memory.numa_stat`; at the end all is given back, and the
//! tree adds up to nothing.
//!
//! On this machine the kernel is asked where pages lie. The simulation has two nodes with
//! processors and six without; it says where a page "lies" by its address, so that its figures show
//! what the accounts do, not what such a machine would.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Parser, ValueEnum};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use memcg::kmem::NumaTable;
use memcg::kmem::{NodeId, NodeOf, PageNode, Topology};
use memcg::{Bytes, Freshness, Group, Limits, Runtime, StatKey};
use memcg_kmem::{KmemSlab, KmemStore, KmemVec, PerCpu};
use memcg_report::terminal::State;

#[derive(Parser)]
#[command(about = "Which group holds how much on which memory node")]
struct Options {
    /// Run one of the two only.
    #[arg(long, value_enum)]
    only: Option<Which>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Machine,
    Simulation,
}

/// Says where a page lies by its address: the first two nodes have most, the others a page now and
/// then.
struct ByAddress;

impl NodeOf for ByAddress {
    fn page_size(&self) -> usize {
        4_096
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        for (page, found) in pages.iter().zip(found) {
            let number = page / 4_096;
            let node = if number % 16 == 7 {
                2 + number / 16 % 6
            } else {
                number / 8 % 2
            };
            *found = PageNode::On(NodeId::new(node as u16));
        }
    }
}

/// Nodes 0 and 1 with 88 processors each, 2 to 7 with none.
fn simulated() -> Result<Topology, Box<dyn Error>> {
    let processors = |node: usize| {
        if node < 2 {
            node * 88..(node + 1) * 88
        } else {
            0..0
        }
    };
    Ok(Topology::fixed(
        (0..8).map(|node| (NodeId::new(node as u16), processors(node))),
    )?)
}

#[derive(Default)]
struct Session {
    _user: u64,
    _requests: u64,
    _state: [u64; 6],
}

fn compressed(number: u64) -> Result<Vec<u8>, std::io::Error> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    for line in 0..(number % 40 + 5) {
        writeln!(
            encoder,
            "document {number}, line {line}: {}",
            number.wrapping_mul(line + 1) % 9_973
        )?;
    }
    encoder.finish()
}

fn show(step: &str, runtime: &Runtime) {
    println!("\n{}", State::Name.paint(step));
    let table = NumaTable::of(&runtime.root());
    for (name, row) in table.rows().filter(|(_, row)| row.sum() != 0) {
        let nodes = row.iter().filter(|(_, bytes)| *bytes != 0);
        let nodes: Vec<String> = nodes
            .map(|(node, bytes)| format!("N{node}={}", size(bytes)))
            .collect();
        let mut places = vec![nodes.join(" ")];
        if row.unplaced() != 0 {
            places.push(format!("on no node {}", size(row.unplaced())));
        }
        places.retain(|place| !place.is_empty());
        println!("    {name:<8} {}", places.join(", "));
    }
    println!("    charged  {}", Bytes(runtime.root().live()));
}

fn size(bytes: i64) -> String {
    Bytes(bytes.max(0).cast_unsigned()).to_string()
}

fn tenant(root: &Group, name: &str) -> Result<Group, Box<dyn Error>> {
    Ok(root.create(name, Limits::new())?)
}

fn run(runtime: &Runtime) -> Result<(), Box<dyn Error>> {
    let root = runtime.root();
    let acme = tenant(&root, "acme")?;
    let globex = tenant(&root, "globex")?;

    let mut rows = KmemVec::<u64>::with_capacity_in(1 << 20, &acme)?;
    show("8 MiB of rows for acme, none written yet", runtime);
    for row in 0..1 << 18 {
        rows.push(row).map_err(|refused| refused.into_parts().1)?;
    }
    rows.settle();
    show(
        "a quarter of them written: pages have nodes once they are touched",
        runtime,
    );

    let hits = PerCpu::<AtomicU64>::new_in(&globex)?;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    hits.current().fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let counted: u64 = hits.iter().map(|copy| copy.load(Ordering::Relaxed)).sum();
    show(
        &format!(
            "{counted} hits of globex, counted in {} copies",
            hits.iter().len()
        ),
        runtime,
    );

    let slab = KmemSlab::<Session>::new_in(&root);
    let mut sessions = Vec::new();
    for number in 0..1_000 {
        let group = if number % 3 == 0 { &acme } else { &globex };
        sessions.push(
            slab.insert(group, Session::default())
                .map_err(|refused| refused.into_parts().1)?,
        );
    }
    show(
        "1,000 sessions of both tenants in the same pages, each charged for its own bytes",
        runtime,
    );
    let of = |group: &Group| size(group.numa_stat(StatKey::SLAB, Freshness::Exact).sum());
    println!(
        "    of which acme {}, globex {}, {} B each",
        of(&acme),
        of(&globex),
        slab.object_bytes()
    );

    let store = KmemStore::new_in(&root);
    let mut documents = Vec::new();
    for number in 0..2_000 {
        let group = if number % 2 == 0 { &acme } else { &globex };
        documents.push(store.insert(group, &compressed(number)?)?);
    }
    show("2,000 compressed documents", runtime);
    for document in documents.iter().skip(1).step_by(2) {
        store.remove(*document);
    }
    let compaction = store.compact();
    let moved = compaction.moved;
    let nodes = compaction.moved_nodes;
    let freed = Bytes(compaction.freed as u64);
    show(
        &format!(
            "globex removes its half: {moved} of the others move together, {nodes} to another node, {freed} are freed"
        ),
        runtime,
    );

    drop((rows, hits, sessions, documents, slab, store));
    show("all given back", runtime);
    acme.offline()?;
    globex.offline()?;
    drop((acme, globex));
    runtime.settle();
    root.memory().drain();
    let verdict = runtime.verify();
    let left: i64 = NumaTable::of(&root).rows().map(|(_, row)| row.sum()).sum();
    if !verdict.is_ok() || root.usage() != 0 || left != 0 {
        return Err(format!("{verdict}; {} charged, {left} accounted", root.usage()).into());
    }
    println!("    verify: {}", State::Good.paint(&verdict.to_string()));
    Ok(())
}

fn describe(topology: &Topology) {
    for node in topology.nodes() {
        let processors = (0..topology.processor_count())
            .filter(|&at| topology.node_of_processor(at) == Some(node))
            .count();
        let online = if topology.is_online(node) {
            ""
        } else {
            ", offline"
        };
        println!("    node {node}: {processors} processors{online}");
    }
}

fn go(options: &Options) -> Result<(), Box<dyn Error>> {
    let wants = |which| options.only.is_none_or(|only| only == which);
    if wants(Which::Machine) {
        let topology = Topology::detect()?;
        println!("This machine");
        describe(&topology);
        run(&Runtime::builder().audit(true).topology(topology).build()?)?;
    }
    if wants(Which::Simulation) {
        let topology = simulated()?;
        println!(
            "\nSimulated: eight nodes, 176 processors; where a page lies is worked out from its address"
        );
        describe(&topology);
        run(&Runtime::builder()
            .audit(true)
            .topology(topology)
            .node_of(ByAddress)
            .build()?)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match go(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("numa_kmem: {error}");
            ExitCode::FAILURE
        }
    }
}
