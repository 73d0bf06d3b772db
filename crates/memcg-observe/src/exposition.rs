//! Which groups are shown, and their figures: as many series as were asked for, however many groups
//! there are.
#![cfg_attr(
    not(all(feature = "openmetrics", feature = "opentelemetry")),
    allow(dead_code, reason = "each of the features reads a part")
)]

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use memcg::figures::{Ledger, StatItem};
use memcg::{
    Event, Freshness, Group, GroupCounter, GroupId, PageCounter, PressureLevel, Runtime, Unit,
};

use crate::clock;
use crate::names::Names;
#[cfg(feature = "openmetrics")]
use crate::page::Layer;
use crate::protocol::{CounterRow, Row, Rows};

/// The figures of a runtime for a monitoring system: see [`Exposition::new`].
///
/// # Which groups
///
/// The root; and at each level below, down to [`depth`](Self::depth), the [`top`](Self::top) groups
/// with the highest usage, of the children of those shown at the level above. What is used at a
/// level and not by a group that is shown stands under `other`. So the usage of all groups of one
/// level and of its `other` is the root's, and there are at most `1 + depth * (top + 1)` values of
/// the label `group`.
///
/// A monitoring system keeps a series long after its group has gone. So a level has
/// [`names`](Self::names) within an hour: where groups come and go by the thousand, those that find
/// no place stand under `other`. The value and its clones count together, so keep one for all
/// scrapes.
///
/// Only usage of memory has an `other`. A sum of counts over groups that change from scrape to
/// scrape would fall: the group above has the counts of all below it.
///
/// # Cost
///
/// One look at the usage of each child of a group that is shown, a look-up for each name that has a
/// place, and some tens of loads for each group that is shown. Groups below the depth cost nothing, but for [`ledger`](Self::ledger). No
/// lock is held over more than a few groups, and no charge waits.
#[derive(Clone, Debug)]
pub struct Exposition {
    pub(crate) runtime: Runtime,
    depth: usize,
    top: usize,
    /// Names of a level within an hour; four times [`Self::top`] unless the caller says otherwise.
    names: Option<usize>,
    has_ledger: bool,
    /// The group whose pressure level says whether the service is ready, and from where on it is
    /// not.
    #[cfg_attr(
        not(feature = "axum"),
        allow(dead_code, reason = "the router alone answers")
    )]
    pub(crate) ready: (Group, PressureLevel),
    shown: Arc<Mutex<Names>>,
    #[cfg(feature = "openmetrics")]
    pub(crate) layers: Vec<Layer>,
}

/// The label `group` of what no group that is shown uses. No path is the same: a path begins with
/// `/`.
pub(crate) const OTHER: &str = "other";

impl Exposition {
    /// Shows the groups of `runtime` down to two levels below the root, 50 at each. The value keeps
    /// the runtime.
    ///
    /// ```
    /// use memcg::{Limits, Runtime};
    /// use memcg_observe::Exposition;
    ///
    /// let runtime = Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(1 << 20))?;
    /// let _held = acme.charge(4_096)?;
    /// # #[cfg(feature = "openmetrics")] {
    /// let text = Exposition::new(&runtime).depth(1).top(10).openmetrics();
    /// assert!(text.contains("memcg_usage_bytes{group=\"/acme\",depth=\"1\"} 4096\n"));
    /// assert!(text.ends_with("# EOF\n"));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(runtime: &Runtime) -> Exposition {
        let ready = (runtime.root(), PressureLevel::Critical);
        let runtime = runtime.clone();
        Exposition {
            runtime,
            depth: 2,
            top: 50,
            names: None,
            has_ledger: false,
            ready,
            shown: Arc::default(),
            #[cfg(feature = "openmetrics")]
            layers: Vec::new(),
        }
    }

    /// Shows so many levels below the root.
    pub fn depth(mut self, depth: usize) -> Exposition {
        self.depth = depth;
        self.shown = Arc::default();
        self
    }

    /// Shows so many groups of each level.
    pub fn top(mut self, top: usize) -> Exposition {
        self.top = top;
        // Mutation: a-page-of-another-width-shares-its-places
        self.shown = Arc::default();
        self
    }

    /// Shows at most so many names of each level within an hour; four times [`top`](Self::top) by
    /// default. A group whose name was shown within the last hour keeps its place, so those that
    /// stay are not crowded out by those that come and go: where all places are taken, groups without
    /// one are not shown, however large they are. [`usize::MAX`] has no such bound.
    ///
    /// ```
    /// use memcg::{Limits, Runtime};
    /// use memcg_observe::Exposition;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let exposition = Exposition::new(&runtime).top(10).names(20);
    /// # #[cfg(feature = "openmetrics")]
    /// for query in 0..100_u64 {
    ///     let group = runtime.root().create(query, Limits::new())?;
    ///     let is_shown = exposition.openmetrics().contains(&format!("group=\"/{query}\""));
    ///     assert_eq!(is_shown, query < 20);
    ///     group.offline()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn names(mut self, most: usize) -> Exposition {
        self.names = Some(most);
        self.shown = Arc::default();
        self
    }

    /// Shows what each group has charged beside what it has allocated, too: the
    /// [ledger](Group::ledger), as the items `reserved`, `allocated`, `unpaid` and `left_behind` of
    /// the statistics. The groups whose allocator owns objects have them.
    ///
    /// These figures are not published, but added up: for each group that is shown a scrape visits
    /// all groups below it, and for each of these the counts of all threads. So they are shown on
    /// request.
    ///
    /// ```
    /// use memcg::{Limits, Runtime};
    /// use memcg_observe::Exposition;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new())?;
    /// let rows = query.run(|| memcg::allocator::Owner::charge(4_096)); // an allocator does this
    /// # #[cfg(feature = "openmetrics")] {
    /// let text = Exposition::new(&runtime).ledger().openmetrics();
    /// assert!(text.contains("memcg_stat_bytes{group=\"/q17\",depth=\"1\",item=\"allocated\"} 4096\n"));
    /// # }
    /// # // SAFETY: the bytes are charged, and given back once.
    /// # unsafe { rows.uncharge(4_096) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ledger(mut self) -> Exposition {
        self.has_ledger = true;
        self
    }

    /// Has `/readyz` of the router answer by this group: not ready while its [pressure
    /// level](Group::pressure_level) is `from` or above. By default it is the root's, from
    /// [`Critical`](PressureLevel::Critical). The group, or one above it, has to have thresholds.
    ///
    /// ```
    /// use memcg::{Limits, PressureLevel, Runtime};
    /// use memcg_observe::Exposition;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let requests = runtime.root().create("requests", Limits::new().max(1 << 30).pressure_levels(80, 95))?;
    /// let exposition = Exposition::new(&runtime).not_ready_from(&requests, PressureLevel::Elevated);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn not_ready_from(mut self, group: &Group, from: PressureLevel) -> Exposition {
        self.ready = (group.clone(), from);
        self
    }

    /// Shows the figures of something else on the same page, each sample with the label
    /// `layer="name"`: those of an admission layer of `memcg-tower`, and whatever prints families in
    /// the text format of OpenMetrics. So [`openmetrics`](Self::openmetrics),
    /// [`text`](Self::text), the router and the socket have one page of the tree and its layers, and
    /// several layers may have the same metrics. The same name once more takes the place of the first.
    ///
    /// The text is printed at each scrape. A line that is no sample of a family above it is left out,
    /// and so is a family that has the name of another: either would lose the whole page where it is
    /// read. A text whose printing panics has no families. The facade, OpenTelemetry and a registry of
    /// `prometheus-client` have the tree alone.
    ///
    /// ```
    /// use memcg::Runtime;
    /// use memcg_observe::Exposition;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// // In a service: `layer.figures()`
    /// let figures = "# TYPE memcg_requests_left counter\nmemcg_requests_left_total 3\n";
    /// let page = Exposition::new(&runtime).layer("api", figures).openmetrics();
    /// assert!(page.contains("memcg_requests_left_total{layer=\"api\"} 3\n") && page.ends_with("# EOF\n"));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    #[cfg(feature = "openmetrics")]
    pub fn layer(
        mut self,
        name: &str,
        figures: impl std::fmt::Display + Send + Sync + 'static,
    ) -> Exposition {
        // Mutation: a-layer-named-again-takes-all-others
        self.layers.retain(|known| known.name != name);
        self.layers.push(Layer::new(name, figures));
        self
    }

    pub(crate) fn read(&self) -> Figures {
        let of_ledger = LEDGER
            .into_iter()
            .filter(|_| self.has_ledger)
            .map(|item| (item.name.to_string(), Unit::Bytes));
        let items = self
            .runtime
            .items()
            .map(|item| (item.name.to_string(), item.unit))
            .chain(of_ledger)
            .collect();
        let places = self.names.unwrap_or(self.top.saturating_mul(4));
        let now = clock::now();
        let shown = || self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let have_places = |depth| {
            let names = shown().names(depth);
            names
                .iter()
                .filter_map(|name| self.runtime.group(name))
                .collect()
        };
        let has_place = |depth, group: &Group| {
            // With a place for every name there is nothing to remember.
            places == usize::MAX || shown().admit(depth, places, &group.path(), now)
        };
        let groups = self.rows_where(self.runtime.root(), have_places, has_place);
        Figures {
            groups,
            items,
            process: Process::read(&self.runtime),
        }
    }

    /// The shown rows of `group` and of the groups below it, and the usage under `other`, by level.
    pub(crate) fn rows(&self, group: Group) -> Rows {
        self.rows_where(group, |_| Vec::new(), |_, _| true)
    }

    /// The same, of those groups that have a place: `have_places` are those that have one of a level
    /// already. A level is cut to the largest once that is asked, or the largest could be groups without
    /// a place, and hide those that have one.
    fn rows_where(
        &self,
        group: Group,
        have_places: impl Fn(usize) -> Vec<Group>,
        has_place: impl Fn(usize, &Group) -> bool,
    ) -> Rows {
        let usage = group.usage();
        let mut rows = vec![(group, usage, 0)];
        let mut first = 0;
        let mut others = Vec::new();
        for depth in 1..=self.depth {
            // Mutation: one-of-two-parents-has-places
            let mut level: Vec<(Group, u64)> = rows[first..]
                .iter()
                .flat_map(|(group, ..)| group.inspect().top(self.top))
                .collect();
            if level.is_empty() {
                break;
            }
            // The largest of each parent are enough of the others: one that is smaller finds a place
            // only where all of these do.
            let largest: HashSet<GroupId> = level.iter().map(|(group, _)| group.id()).collect();
            let is_below = |group: &Group| {
                let parent = group.parent();
                parent.is_some_and(|parent| rows[first..].iter().any(|(row, ..)| *row == parent))
            };
            // Mutation: a-group-with-a-place-is-shown-twice
            let have_places = have_places(depth)
                .into_iter()
                .filter(|group| !largest.contains(&group.id()) && is_below(group));
            level.extend(have_places.map(|group| {
                let usage = group.usage();
                (group, usage)
            }));
            level.sort_by_key(|&(_, usage)| std::cmp::Reverse(usage));
            let level: Vec<(Group, u64)> = level
                .into_iter()
                .filter(|(group, _)| has_place(depth, group))
                .take(self.top)
                .collect();
            let shown = level
                .iter()
                .fold(0, |sum: u64, &(_, usage)| sum.saturating_add(usage));
            // Mutation: what-is-shown-is-among-others
            others.push((depth, usage.saturating_sub(shown)));
            first = rows.len();
            rows.extend(
                level
                    .into_iter()
                    .map(|(group, usage)| (group, usage, depth)),
            );
        }
        let items: Vec<StatItem<'_>> = self.runtime.items().collect();
        let rows = rows.into_iter().map(|(group, usage, depth)| {
            let mut row = row(&group, usage, depth, &items);
            if self.has_ledger {
                add_ledger(&mut row, &group.ledger());
            }
            row
        });
        Rows {
            rows: rows.collect(),
            others,
        }
    }
}

/// A figure of the ledger, under the name that an exact read of the statistics has for it.
struct LedgerItem {
    name: &'static str,
    figure: fn(&Ledger) -> u64,
}

const LEDGER: [LedgerItem; 4] = [
    LedgerItem {
        name: "reserved",
        figure: Ledger::reserved,
    },
    LedgerItem {
        name: "allocated",
        figure: Ledger::allocated,
    },
    LedgerItem {
        name: "unpaid",
        figure: Ledger::unpaid,
    },
    LedgerItem {
        name: "left_behind",
        figure: Ledger::left_behind,
    },
];

/// Without an object nothing is added: all that is charged is reserved.
fn add_ledger(row: &mut Row, ledger: &Ledger) {
    if ledger.allocated() == 0 && ledger.unpaid() == 0 {
        return;
    }
    for LedgerItem { name, figure } in LEDGER {
        let figure = figure(ledger);
        if figure > 0 {
            row.stats
                .insert(name.to_string(), i64::try_from(figure).unwrap_or(i64::MAX));
        }
    }
}

/// The figures that are shown.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) groups: Rows,
    /// The items of the statistics.
    pub(crate) items: Vec<(String, Unit)>,
    pub(crate) process: Process,
}

impl Figures {
    /// The counters beside memory, of all groups.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&Row, &str, &CounterRow)> {
        self.groups.rows.iter().flat_map(|row| {
            row.counters
                .iter()
                .map(move |(name, is)| (row, name.as_str(), is))
        })
    }
}

fn row(group: &Group, usage: u64, depth: usize, items: &[StatItem<'_>]) -> Row {
    let events = group.events();
    let events = events.iter().filter(|&(_, count)| count > 0 || depth == 0);
    let stats = group.read(Freshness::Threshold);
    let stats = items
        .iter()
        .map(|item| (item.name, stats.get(item.stat)))
        .filter(|&(_, figure)| figure != 0);
    let limits = group.limits();
    Row {
        path: group.path(),
        depth,
        children: group.inspect().child_count(),
        usage,
        // Read after usage: a part of it, and no more.
        stocked_bound: group.memory().stocked_bound().min(usage),
        peak: group.peak(),
        forced: group.forced(),
        max: group.max(),
        high: group.inspect().high(),
        soft: group.inspect().soft(),
        low: group.inspect().low(),
        min: group.inspect().min(),
        share: limits.share.unwrap_or(0),
        importance: limits.importance,
        waiting: group.waiting_count() as u64,
        refused: group.refused_count(),
        events: events
            .map(|(event, count)| (event.name().to_string(), count))
            .collect(),
        stats: stats
            .map(|(name, figure)| (name.to_string(), figure))
            .collect(),
        counters: group
            .counters()
            .map(|counter| (counter.name().to_string(), counter_row(&counter)))
            .collect(),
        pressure: group.pressure().into(),
        uncharged: group.inspect().uncharged(),
        pressure_level: group.pressure_level().name().to_string(),
    }
}

fn counter_row(counter: &GroupCounter) -> CounterRow {
    let usage = counter.usage();
    CounterRow {
        unit: name_of(counter.unit()).to_string(),
        usage,
        stocked_bound: counter.stocked_bound().min(usage),
        peak: counter.peak(),
        max: counter.max(),
        refused: counter.refused_count(),
    }
}

/// The names of units, as [`CounterRow::unit`] has them.
pub(crate) fn name_of(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "bytes",
        Unit::Nanoseconds => "nanoseconds",
        _ => "events",
    }
}

/// The events of a group by name, those that have not happened included: a count that appears with
/// 1 has not risen for a monitoring system.
pub(crate) fn events_of(row: &Row) -> impl Iterator<Item = (&'static str, u64)> {
    Event::ALL.into_iter().map(|event| {
        (
            event.name(),
            row.events.get(event.name()).copied().unwrap_or(0),
        )
    })
}

/// A gauge of each group, beside usage.
pub(crate) struct GroupGauge {
    /// Behind `memcg_`, and without its unit.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) is_bytes: bool,
    /// `None`: a limit that is not set has no sample.
    pub(crate) figure: fn(&Row) -> Option<u64>,
}

const fn gauge(
    name: &'static str,
    about: &'static str,
    figure: fn(&Row) -> Option<u64>,
) -> GroupGauge {
    GroupGauge {
        name,
        about,
        is_bytes: true,
        figure,
    }
}

pub(crate) const GAUGES: [GroupGauge; 11] = [
    gauge(
        "stocked_bound",
        "The most credit of threads in usage",
        |row| Some(row.stocked_bound),
    ),
    gauge(
        "peak",
        "The highest usage, with credit of threads: no more was ever live",
        |row| Some(row.peak),
    ),
    gauge("forced", "Usage above max", |row| Some(row.forced)),
    gauge(
        "uncharged",
        "Memory that is not charged, which the max of the root leaves out",
        |row| above_zero(row.uncharged),
    ),
    gauge("max", "The limit that charges do not pass", |row| {
        below_max(row.max)
    }),
    gauge("high", "The limit above which charges are delayed", |row| {
        below_max(row.high)
    }),
    gauge("soft", "The limit above which reclaim asks first", |row| {
        below_max(row.soft)
    }),
    gauge("low", "What reclaim touches last", |row| protected(row.low)),
    gauge("min", "What reclaim never touches", |row| {
        protected(row.min)
    }),
    GroupGauge {
        name: "waiting_charges",
        about: "Charges in line",
        is_bytes: false,
        figure: |row| Some(row.waiting),
    },
    GroupGauge {
        name: "pressure_level",
        about: "How short of memory the group is: 0 normal, 1 elevated, 2 critical",
        is_bytes: false,
        figure: pressure_level,
    },
];

fn pressure_level(row: &Row) -> Option<u64> {
    let levels = [
        PressureLevel::Normal,
        PressureLevel::Elevated,
        PressureLevel::Critical,
    ];
    levels
        .iter()
        .position(|level| level.name() == row.pressure_level)
        .map(|at| at as u64)
}

/// A count of time of each group: the name behind `memcg_pressure_`, and the time in microseconds.
pub(crate) struct Stalled {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) micros: fn(&Row) -> u64,
}

impl Stalled {
    pub(crate) fn seconds(&self, row: &Row) -> f64 {
        (self.micros)(row) as f64 / 1e6
    }
}

pub(crate) const STALLED: [Stalled; 2] = [
    Stalled {
        name: "waiting",
        about: "Time in which at least one charge stood still for memory",
        micros: |row| row.pressure.some.total_us,
    },
    Stalled {
        name: "stalled",
        about: "The part of it in which a limit of the group or of a group above was the reason",
        micros: |row| row.pressure.full.total_us,
    },
];

/// A gauge of each counter beside memory: the name behind `memcg_counter_`.
pub(crate) struct CounterGauge {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) figure: fn(&CounterRow) -> Option<u64>,
}

pub(crate) const COUNTER_GAUGES: [CounterGauge; 3] = [
    CounterGauge {
        name: "usage",
        about: "Live units and credit of threads of a counter beside memory",
        figure: |counter| Some(counter.usage),
    },
    CounterGauge {
        name: "peak",
        about: "The highest usage of a counter beside memory, with credit of threads",
        figure: |counter| Some(counter.peak),
    },
    CounterGauge {
        name: "max",
        about: "The limit of a counter beside memory",
        figure: |counter| below_max(counter.max),
    },
];

fn below_max(limit: u64) -> Option<u64> {
    (limit < u64::MAX).then_some(limit)
}

/// Of bytes that reclaim spares: 0 is none. No group counts more than the largest whole number with a
/// sign, so that stands for all, and each encoding has it.
fn protected(bytes: u64) -> Option<u64> {
    above_zero(bytes).map(|bytes| bytes.min(PageCounter::USAGE_MAX))
}

fn above_zero(limit: u64) -> Option<u64> {
    (limit > 0).then_some(limit)
}

/// Of the runtime as a whole.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) groups: u64,
    pub(crate) dying: u64,
    pub(crate) drains: u64,
    pub(crate) drained: u64,
    pub(crate) barriers: u64,
    pub(crate) flushes: u64,
    pub(crate) degraded: bool,
}

impl Process {
    fn read(runtime: &Runtime) -> Process {
        let counts = runtime.counts();
        Process {
            groups: runtime.group_count() as u64,
            dying: runtime.dying_count() as u64,
            drains: counts.drains,
            drained: counts.drained,
            barriers: counts.barriers,
            flushes: counts.flushes,
            degraded: runtime.barrier() == memcg::barrier::BarrierState::Degraded,
        }
    }

    /// Names behind `memcg_`, what they are, and the figures.
    pub(crate) fn gauges(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            ("groups", "Groups that are online", self.groups),
            (
                "dying_groups",
                "Groups that went offline and still hold something",
                self.dying,
            ),
            (
                "barrier_degraded",
                "1: the system refuses the barrier, so credit of threads cannot be drained",
                u64::from(self.degraded),
            ),
        ]
    }

    /// The same, and whether it counts bytes.
    pub(crate) fn counters(&self) -> [(&'static str, &'static str, bool, u64); 4] {
        [
            (
                "drains",
                "Times credit of threads was taken back",
                false,
                self.drains,
            ),
            (
                "drained",
                "Credit of threads that was taken back",
                true,
                self.drained,
            ),
            ("barriers", "Heavy barriers", false, self.barriers),
            (
                "stat_flushes",
                "Flushes of the statistics",
                false,
                self.flushes,
            ),
        ]
    }
}

/// The help texts of the metrics of counts.
pub(crate) const REFUSED: &str = "Charges refused because this group was full";
pub(crate) const COUNTER_REFUSED: &str =
    "Charges refused because this counter beside memory was full";
pub(crate) const EVENTS: &str = "What happened to the limits of the group and of the groups below";
pub(crate) const USAGE: &str = "Live charge and credit of threads, what limits compare; other: what no group shown at that depth uses";
