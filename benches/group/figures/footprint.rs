//! The memory of a group: that of a process with so many of them, less that of one with none.

#![cfg(not(loom))]

use std::process::exit;
use std::sync::mpsc::sync_channel;
use std::thread;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use memcg::footprint::PoolAlign;
use memcg::{Group, Limits, Runtime, StatKey};
use memcg_bench_rows::Goals;

use super::Options;
use crate::common::alone::{Alone, say};
use crate::common::resident;
use crate::common::stats::{Summary, median};
use crate::program::names::LEN;
use crate::program::{SIZE, pair};

pub(crate) const WHAT: &str = "footprint";

/// Of the idle group that is promised, and of all of them with the process that has them.
const BYTES_MAX: f64 = 1_024.0;
const GIB_MAX: f64 = 1.1;

/// The bytes of one group in the kernel: itself, and its part on one node.
const KERNEL: [u64; 2] = [2_368, 2_944];

/// The history of groups before they are idle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing.
    Created,
    /// The goal's history: one thread's charge and uncharge.
    Charged,
    /// The same by two threads.
    ChargedByTwo,
    /// Charged, and one item counted by the same thread.
    Counted,
    /// As [`Charged`](Kind::Charged), objects packed.
    Packed,
}

impl Kind {
    const ALL: [Kind; 5] = [
        Kind::Created,
        Kind::Charged,
        Kind::ChargedByTwo,
        Kind::Counted,
        Kind::Packed,
    ];

    fn says(self) -> &'static str {
        match self {
            Kind::Created => "never used",
            Kind::Charged => "charged and uncharged by one thread",
            Kind::ChargedByTwo => "by two threads",
            Kind::Counted => "by one, which counted an item of the statistics, too",
            Kind::Packed => "by one, objects packed",
        }
    }

    fn index(self) -> usize {
        Kind::ALL
            .iter()
            .position(|kind| *kind == self)
            .expect("one of all")
    }
}

/// Bytes of one process.
struct Weighed {
    /// Resident with all groups, and with none.
    full: f64,
    empty: f64,
    /// The same as the runtime says of itself.
    own: f64,
    own_empty: f64,
}

impl Weighed {
    fn each(&self, groups: u32) -> f64 {
        (self.full - self.empty) / f64::from(groups)
    }

    /// The error of the runtime's figure, in per cent.
    fn off(&self) -> f64 {
        ((self.own - self.own_empty) / (self.full - self.empty) - 1.0) * 100.0
    }
}

pub(crate) fn print(options: &Options, goals: &mut Goals<'_>) {
    let groups = options.groups;
    let runs = if options.runs == 1 {
        "one".to_owned()
    } else {
        format!("median of {}", options.runs)
    };
    println!(
        "{groups} groups with a name of {LEN} bytes and a max, below one parent, no thread holding a handle. Resident memory\n\
         of a process that has them less that of the same with none, for each; {runs} of both, in turn.\n",
    );
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "groups",
        "bytes each",
        "least to most",
        "`own_bytes` is off by",
        "process, MiB",
        "with none, MiB",
    ]);
    for kind in Kind::ALL {
        let runs: Vec<Weighed> = (0..options.runs).map(|_| weigh(kind, groups)).collect();
        let each: Vec<f64> = runs.iter().map(|run| run.each(groups)).collect();
        let middle =
            |of: fn(&Weighed) -> f64| median(runs.iter().map(of).collect()).unwrap_or_default();
        let full = middle(|run| run.full);
        let empty = middle(|run| run.empty);
        let off = middle(Weighed::off);
        let spread = Summary::of(&each);
        let bytes = median(each).unwrap_or_default();
        let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
        table.add_row([
            kind.says().to_owned(),
            format!("{bytes:.0}"),
            format!("{:.0} to {:.0}", spread.min, spread.max),
            format!("{off:+.1} %"),
            mib(full),
            mib(empty),
        ]);
        if kind == Kind::Charged {
            goals.at_most(
                format!("an idle group, one of {groups}, resident"),
                bytes,
                "bytes",
                BYTES_MAX,
            );
            let gib = full / f64::from(1 << 30);
            goals.at_most(
                format!("{groups} idle groups and the process that has them"),
                gib,
                "GiB",
                GIB_MAX,
            );
        }
    }
    println!("{}\n", table.trim_fmt());
    println!(
        "the kernel: {} + {} bytes for one on one node, aligned\n",
        KERNEL[0], KERNEL[1]
    );
}

/// Each kind once, for how long that takes.
pub(crate) fn once(options: &Options) {
    for kind in Kind::ALL {
        weigh(kind, options.groups);
    }
}

/// A process with none and one with all, one after the other.
fn weigh(kind: Kind, groups: u32) -> Weighed {
    let ask = |groups: u32| {
        let args = [kind.index().to_string(), groups.to_string()];
        let answer = Alone::start(WHAT, &args).answer();
        (answer[0], answer[1])
    };
    let (empty, own_empty) = ask(0);
    let (full, own) = ask(groups);
    Weighed {
        full,
        empty,
        own,
        own_empty,
    }
}

/// A process that has them: says what is resident.
pub(crate) fn here(args: &[String]) {
    let [kind, groups] = args else {
        panic!("{WHAT}: kind and number of groups")
    };
    let kind = Kind::ALL[kind.parse::<usize>().expect("a number")];
    let groups = groups.parse().expect("a number");
    let align = if kind == Kind::Packed {
        PoolAlign::Packed
    } else {
        PoolAlign::default()
    };
    let runtime = Runtime::builder()
        .pool_align(align)
        .build()
        .expect("memory for a root");
    let parent = runtime
        .root()
        .create("parent", Limits::new())
        .expect("a name");
    fill(&parent, kind, groups);
    assert_eq!(
        runtime.group_count(),
        groups as usize + 2,
        "all are there, the root, and their parent"
    );
    let resident = resident::bytes().expect("a system that says what is resident");
    say(&[resident as f64, runtime.own_bytes().total() as f64]);
    // All that is left is to take them down one by one.
    exit(0);
}

fn fill(parent: &Group, kind: Kind, groups: u32) {
    // Groups go to the other thread, if there is one, a few at a time.
    let (give, take) = sync_channel::<Group>(512);
    thread::scope(|scope| {
        if kind == Kind::ChargedByTwo {
            scope.spawn(move || take.into_iter().for_each(|group| pair(&group)));
        }
        for number in 0..groups {
            let name = format!("group-{number:010}");
            assert_eq!(name.len(), LEN, "names are all of one length");
            let group = parent
                .create(&name, Limits::new().max(1 << 30))
                .expect("a new name");
            match kind {
                Kind::Created => {}
                Kind::Charged | Kind::Packed => pair(&group),
                Kind::ChargedByTwo => {
                    pair(&group);
                    give.send(group).expect("the other thread takes them");
                }
                Kind::Counted => {
                    pair(&group);
                    group.stat_add(StatKey::ANON, SIZE.cast_signed());
                }
            }
        }
        drop(give);
    });
}
