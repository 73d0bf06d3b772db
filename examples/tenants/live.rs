//! The statistics while they are counted: looks at all groups, some of them shown, each of them checked.
//!
//! No thread waits for a look, and none takes a lock of the service. What a figure must be is known from both sides:
//! the tenants show their own counts, which are in the statistics before, and an exact read follows.

use std::time::{Duration, Instant};

use indicatif::HumanCount;
use memcg::figures::Stats;
use memcg::{Bytes, Freshness, Group, Stat};
use memcg_report::table::{Column, Table};
use memcg_report::terminal;

use crate::agree::{Agreement, Reading};
use crate::args::Args;
use crate::items::{GROWING, Items, Own};
use crate::service::{Service, Tenant};
use crate::setup::Setup;

/// Grains that a tenant's figures may miss, one look after the other: a few make a read flush, many make it read what
/// is published, whatever the machine's speed. Both are to be seen.
const ERRORS: [u64; 4] = [1 << 8, 1 << 10, 1 << 12, 1 << 14];

/// Those of all tenants together may miss so many times as much.
const SERVICE_PART: u64 = 16;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Between two drawings of a table in its place.
const REDRAWN: Duration = Duration::from_millis(250);

/// Tenants in a live table.
const SHOWN: usize = 5;

/// One look after the other.
pub(crate) struct Live<'a> {
    service: &'a Service,
    root: Group,
    items: Items,
    /// When the next live table is due, from the start of the requests on; `None`: there are none.
    show_at: Option<Duration>,
    look_at: Instant,
    columns: usize,
    /// The exact figures of the last look, the service first.
    last: Vec<[i64; GROWING]>,
    looks: Looks,
}

/// The results of the looks.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    pub(crate) looks: u64,
    pub(crate) agreement: Agreement,
}

impl<'a> Live<'a> {
    /// The first table is shown when the arguments say; where it is drawn below the one before, the next ones follow
    /// after twice as long each time: few, however long it runs.
    pub(crate) fn new(setup: &'a Setup, args: &Args) -> Self {
        let Setup { runtime, service, items, .. } = setup;
        let last = vec![[0; GROWING]; 1 + service.tenants.len()];
        let (show_at, look_at, columns) = (args.live(), Instant::now(), args.columns());
        let (root, looks) = (runtime.root(), Looks::default());
        Self { service, root, items: *items, show_at, look_at, columns, last, looks }
    }

    /// Looks if it is time to; returns a table if it is time to show one. `elapsed`: since the requests began.
    pub(crate) fn look(&mut self, elapsed: Option<Duration>) -> Option<String> {
        let now = Instant::now();
        if now < self.look_at {
            return None;
        }
        self.look_at = now + PAUSE;
        let live = self.check();
        let elapsed = elapsed.filter(|&elapsed| self.show_at.is_some_and(|at| elapsed >= at))?;
        while let Some(at) = self.show_at.filter(|&at| at <= elapsed) {
            // In its place a table may change often; below each other there are to be few.
            self.show_at = if terminal::is_terminal() { Some(elapsed + REDRAWN) } else { at.checked_mul(2) };
        }
        Some(self.table(elapsed, &live))
    }

    /// Reads every group live, the service first, and holds it against what it must be.
    fn check(&mut self) -> Vec<Stats> {
        let mut before = vec![[0; GROWING]];
        before.extend(self.service.owners.iter().map(Own::read));
        before[0] = [0, 1, 2].map(|item| before[1..].iter().map(|own| own[item]).sum());

        // All of them live before any is read exactly, which would publish what is to be missing.
        let live: Vec<_> = self.groups().map(|(_, group, error)| group.read(Freshness::Within(error))).collect();
        let exact: Vec<_> = self.groups().map(|(_, group, _)| group.read(Freshness::Exact)).collect();

        let mut agreement = std::mem::take(&mut self.looks.agreement);
        for (at, (name, ..)) in self.groups().enumerate() {
            for (number, (item, stat)) in self.items.growing().into_iter().enumerate() {
                let reading = Reading {
                    before: before[at][number].max(self.last[at][number]),
                    live: live[at].get(stat),
                    max_error: live[at].max_error_of(stat),
                    after: exact[at].get(stat),
                };
                agreement.live(name, item, reading);
            }
        }
        self.last = exact.iter().map(|stats| self.items.growing().map(|(_, stat)| stats.get(stat))).collect();
        self.looks = Looks { looks: self.looks.looks + 1, agreement };
        live
    }

    /// The service and its tenants, each with what its figures may miss.
    fn groups(&self) -> impl Iterator<Item = (&'a str, &Group, u64)> {
        let error = ERRORS[self.looks.looks as usize % ERRORS.len()];
        let tenants = self.service.tenants.iter().map(move |Tenant { name, group, .. }| (&**name, group, error));
        [("the service", &self.root, error * SERVICE_PART)].into_iter().chain(tenants)
    }

    /// The tenants that hold most, then the service.
    fn table(&self, elapsed: Duration, live: &[Stats]) -> String {
        let names = self.groups().map(|(name, ..)| name);
        let mut rows: Vec<_> = names.zip(live).collect();
        rows[1..].sort_by_key(|(_, stats)| std::cmp::Reverse(stats.get(Stat::FILE)));
        rows.truncate(1 + SHOWN);
        rows.rotate_left(1);

        let mut table = Table::new([
            Column::words("most cached"),
            Column::figures("bytes"),
            Column::figures("hits").leaves(2),
            Column::figures("hit ratio"),
            Column::figures("evictions").leaves(1),
            Column::figures("off by at most").leaves(3),
        ]);
        rows.into_iter().for_each(|(name, stats)| table.add(self.row(name, stats)));
        format!("Live, after {:.1} s:\n{}\n", elapsed.as_secs_f64(), table.text(self.columns))
    }

    fn row(&self, name: &str, stats: &Stats) -> [String; 6] {
        // A live figure may miss the rise and have the fall: less than nothing is nothing.
        let figure = |stat| stats.get(stat).max(0).unsigned_abs();
        let Items { gets, hits, evictions } = self.items;
        let hit_ratio = figure(hits) as f64 / figure(gets).max(1) as f64;
        let events = HumanCount(stats.max_error_of(hits));
        [
            name.to_string(),
            Bytes(figure(Stat::FILE)).to_string(),
            HumanCount(figure(hits)).to_string(),
            // The hits may be fresher than the gets.
            format!("{:.4}", hit_ratio.min(1.0)),
            HumanCount(figure(evictions)).to_string(),
            format!("{events}, {}", Bytes(stats.max_error_of(Stat::FILE))),
        ]
    }

    pub(crate) fn into_looks(self) -> Looks {
        self.looks
    }
}
