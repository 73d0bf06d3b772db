//! The machine that figures belong to, and how much of it was another thread's while they were
//! taken.

#![cfg(not(loom))]

use std::fmt;
use std::fs;
use std::process::Command;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use memcg::Bytes;
use memcg::kmem::Topology;

use super::clock;

/// Others may take so much of the processors; above it a table says so.
const OTHERS_MAX: f64 = 3.0;

/// Which machine this is, in one line; what the system does not say is left out.
pub(crate) fn describe() -> String {
    let processors = available_parallelism().map_or(1, |processors| processors.get());
    let nodes = Topology::detect().map_or(1, |topology| topology.nodes().len());
    let system = std::env::consts::OS;
    let parts = [
        processor(),
        Some(format!(
            "{processors} processors on {nodes} {}",
            if nodes == 1 { "node" } else { "nodes" }
        )),
        memory().map(|bytes| Bytes(bytes).to_string()),
        Some(read("/proc/sys/kernel/osrelease").map_or_else(
            || system.to_owned(),
            // The part behind the version is a distribution's.
            |release| format!("{system} {}", release.split('-').next().unwrap_or(&release)),
        )),
        compiler(),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}

/// Its name and, where virtual machines hide which one it is, its family and model.
fn processor() -> Option<String> {
    let text = read("/proc/cpuinfo")?;
    let of = |key: &str| {
        let line = text.lines().find(|line| {
            line.split(':')
                .next()
                .is_some_and(|name| name.trim() == key)
        })?;
        line.split_once(':')
            .map(|(_, value)| value.trim().to_owned())
    };
    let name = of("model name")?;
    Some(match (of("cpu family"), of("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name,
    })
}

fn memory() -> Option<u64> {
    let text = read("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib << 10)
}

/// The compiler at hand: it is the one that cargo has just called, unless a thread meddled.
fn compiler() -> Option<String> {
    let output = Command::new("rustc").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(
        text.split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" "),
    )
    .filter(|text| !text.is_empty())
}

/// Counts what others do from its making on. A thread that measures with processes of its own says
/// what those ran.
pub(crate) struct Others {
    began: Instant,
    others: Option<Duration>,
}

impl Others {
    pub(crate) fn watch() -> Self {
        Others {
            began: Instant::now(),
            others: clock::others(),
        }
    }

    /// In per cent of all processors; `None` where the system does not say.
    pub(crate) fn percent(&self) -> Option<f64> {
        let others = clock::others()?.saturating_sub(self.others?);
        let processors = available_parallelism().map_or(1, |processors| processors.get());
        Some(
            others.as_secs_f64() / (self.began.elapsed().as_secs_f64() * processors as f64) * 100.0,
        )
    }
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.percent() {
            None => write!(
                f,
                "what others took of the processors meanwhile is not known"
            ),
            Some(percent) => {
                write!(f, "others took {percent:.1} % of the processors meanwhile")?;
                if percent > OTHERS_MAX {
                    write!(f, ": more than {OTHERS_MAX} %, measure again")
                } else {
                    Ok(())
                }
            }
        }
    }
}
