//! The program's knowledge of the service's groups: the newest figures, rates, history, and the
//! lines of the tree.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use memcg_observe::protocol::{Incident, ROWS_MAX, Row};

use crate::sample::{Branch, Sample, Want};
use crate::text;

/// Points of a group's history.
const POINTS_MAX: usize = 600;
/// Groups that keep a history although they are not shown now.
const SEEN_MAX: usize = 2_048;
/// The time that they keep it, in milliseconds.
const SEEN_FOR: u64 = 600_000;
/// The time over which a rate looks back, in milliseconds, and the least that it may.
const RATE_OVER: u64 = 950;
const RATE_LEAST: u64 = 40;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) at: u64,
    pub(crate) usage: u64,
    pub(crate) refused: u64,
}

/// A group that is or was shown.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) row: Row,
    /// Oldest first; never empty.
    pub(crate) history: VecDeque<Point>,
    /// When each event was last seen to have happened again.
    pub(crate) happened: BTreeMap<String, u64>,
}

impl Seen {
    fn last(&self) -> u64 {
        self.history.back().map_or(0, |point| point.at)
    }

    fn note(&mut self, row: &Row, at: u64) {
        let before = self.history.back().copied();
        if before.is_some_and(|before| before.at >= at) {
            return;
        }
        for (event, &count) in &row.events {
            // A first sight is not news; a lower count is another process.
            if self.row.events.get(event).copied().unwrap_or(0) < count && before.is_some() {
                self.happened.insert(event.clone(), at);
            }
        }
        // A service that says other events each time fills nothing.
        self.happened
            .retain(|event, _| row.events.contains_key(event));
        self.history.push_back(Point {
            at,
            usage: row.usage,
            refused: row.refused,
        });
        if self.history.len() > POINTS_MAX {
            self.history.pop_front();
        }
        self.row = row.clone();
    }

    /// The newest point, the one that it is compared with, and the seconds between them.
    fn span(&self) -> Option<(Point, Point, f64)> {
        let last = *self.history.back()?;
        let first = self
            .history
            .iter()
            .rev()
            .find(|point| last.at - point.at >= RATE_OVER);
        let first = *first.or(self.history.front())?;
        let millis = last.at - first.at;
        (millis >= RATE_LEAST).then(|| (first, last, millis as f64 / 1000.0))
    }

    /// Bytes each second.
    pub(crate) fn usage_rate(&self) -> Option<f64> {
        let (first, last, seconds) = self.span()?;
        Some((last.usage as f64 - first.usage as f64) / seconds)
    }

    /// Refusals each second. A count that has fallen is that of another process.
    pub(crate) fn refused_rate(&self) -> Option<f64> {
        let (first, last, seconds) = self.span()?;
        Some(last.refused.checked_sub(first.refused)? as f64 / seconds)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Sort {
    #[default]
    Usage,
    Name,
    Rate,
    Waiting,
    Refused,
    Forced,
    Pressure,
}

impl Sort {
    const ALL: [Sort; 7] = [
        Sort::Usage,
        Sort::Name,
        Sort::Rate,
        Sort::Waiting,
        Sort::Refused,
        Sort::Forced,
        Sort::Pressure,
    ];

    pub(crate) fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|&sort| sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }

    pub(crate) fn name(self) -> &'static str {
        [
            "usage",
            "name",
            "rate",
            "waiting",
            "refused/s",
            "forced",
            "pressure",
        ][self as usize]
    }
}

/// A line of the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) level: usize,
    pub(crate) kind: Kind<'a>,
    /// The size of a whole bar: the group's own max or high, or a group's above.
    pub(crate) scale: u64,
    pub(crate) scale_is_own: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    Group {
        seen: &'a Seen,
        is_open: bool,
        has_children: bool,
    },
    /// Bytes of the group above that no group shown uses.
    Rest(u64),
}

impl Line<'_> {
    pub(crate) fn path(&self) -> Option<&str> {
        match self.kind {
            Kind::Group { seen, .. } => Some(&seen.row.path),
            Kind::Rest(_) => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) want: Want,
    pub(crate) sort: Sort,
    pub(crate) turned: bool,
    pub(crate) filter: String,
    /// Of the newest sample, and of the first.
    pub(crate) at: u64,
    pub(crate) began: u64,
    /// Of the page's group.
    pub(crate) incidents: Vec<Incident>,
    seen: HashMap<String, Seen>,
    /// The children and the rest of each group that was asked for.
    branches: HashMap<String, (Vec<String>, u64)>,
}

impl Model {
    pub(crate) fn new(want: Want) -> Model {
        Model {
            want,
            ..Model::default()
        }
    }

    pub(crate) fn apply(&mut self, sample: &Sample) {
        self.at = sample.at;
        self.incidents = sample.incidents.clone();
        if self.began == 0 {
            self.began = sample.at;
        }
        match &sample.page {
            // The screen shows fewer pages than these, so the reader has left some of them.
            Some(_) if self.branches.len() > ROWS_MAX => self.branches.clear(),
            Some(page) => drop(self.branches.remove(page)),
            None => self.branches.clear(),
        }
        for Branch {
            group,
            children,
            rest,
        } in &sample.branches
        {
            for row in std::iter::once(group).chain(children) {
                let new = || Seen {
                    row: row.clone(),
                    history: VecDeque::new(),
                    happened: BTreeMap::new(),
                };
                let seen = self.seen.entry(row.path.clone()).or_insert_with(new);
                // The clock was set back.
                if seen.last() > sample.at {
                    *seen = new();
                }
                seen.note(row, sample.at);
            }
            let children = children.iter().map(|child| child.path.clone()).collect();
            self.branches.insert(group.path.clone(), (children, *rest));
        }
        if self.seen.len() > SEEN_MAX {
            // Their times say nothing of that where the clock was set back, or stood still.
            let rows = sample
                .branches
                .iter()
                .flat_map(|branch| std::iter::once(&branch.group).chain(&branch.children));
            let shown: HashSet<&str> = rows.map(|row| row.path.as_str()).collect();
            self.seen.retain(|path, _| shown.contains(path.as_str()));
        } else {
            let oldest = sample.at.saturating_sub(SEEN_FOR);
            self.seen.retain(|_, seen| seen.last() >= oldest);
        }
    }

    pub(crate) fn seen(&self, path: &str) -> Option<&Seen> {
        self.seen.get(path)
    }

    /// The children of a group that was asked for, the largest first, and what none of them uses.
    pub(crate) fn holders(&self, path: &str) -> Option<(Vec<&Seen>, u64)> {
        let (children, rest) = self.branches.get(path)?;
        Some((
            children
                .iter()
                .filter_map(|child| self.seen.get(child))
                .collect(),
            *rest,
        ))
    }

    pub(crate) fn set_filter(&mut self, filter: String) {
        self.filter = filter;
        self.update_width();
    }

    pub(crate) fn set_sort(&mut self, sort: Sort, turned: bool) {
        self.sort = sort;
        self.turned = turned;
        self.update_width();
    }

    fn update_width(&mut self) {
        self.want.wide = !self.filter.is_empty() || self.sort != Sort::Usage || self.turned;
    }

    pub(crate) fn lines(&self) -> Vec<Line<'_>> {
        let mut lines = Vec::new();
        if let Some(root) = self
            .seen
            .get("/")
            .filter(|_| self.branches.contains_key("/"))
        {
            let filter = self.filter.to_lowercase();
            self.add(root, 0, root.row.usage.max(1), &filter, &mut lines);
        }
        lines
    }

    /// Adds a group and what is unfolded below it. False: none of them passes the filter, and
    /// nothing is added.
    fn add<'a>(
        &'a self,
        seen: &'a Seen,
        level: usize,
        above: u64,
        filter: &str,
        lines: &mut Vec<Line<'a>>,
    ) -> bool {
        let row = &seen.row;
        let own = [row.max, row.high]
            .into_iter()
            .find(|&limit| limit != u64::MAX && limit > 0);
        let scale = own.unwrap_or(above);
        let scale_is_own = own.is_some();
        let is_open = self.want.is_open(&row.path, level);
        let branch = self.branches.get(&row.path).filter(|_| is_open);
        let has_children =
            row.children > 0 || branch.is_some_and(|(children, _)| !children.is_empty());
        let first = lines.len();
        lines.push(Line {
            level,
            kind: Kind::Group {
                seen,
                is_open,
                has_children,
            },
            scale,
            scale_is_own,
        });
        let mut passes = text::clean(&row.path).to_lowercase().contains(filter);
        if let Some((children, rest)) = branch {
            let mut children: Vec<&Seen> = children
                .iter()
                .filter_map(|child| self.seen.get(child))
                .collect();
            children.sort_by(|a, b| self.order(a, b));
            for child in children {
                passes |= self.add(child, level + 1, scale, filter, lines);
            }
            if *rest > 0 && has_children && filter.is_empty() {
                lines.push(Line {
                    level: level + 1,
                    kind: Kind::Rest(*rest),
                    scale,
                    scale_is_own: false,
                });
            }
        }
        if !passes {
            lines.truncate(first);
        }
        passes
    }

    /// Groups that the order does not tell apart stand by usage, the largest first.
    fn order(&self, a: &Seen, b: &Seen) -> Ordering {
        let of = |key: fn(&Seen) -> f64| key(b).total_cmp(&key(a));
        let order = match self.sort {
            Sort::Name => a.row.path.cmp(&b.row.path),
            Sort::Usage => b.row.usage.cmp(&a.row.usage),
            Sort::Rate => of(|seen| seen.usage_rate().unwrap_or(0.0)),
            Sort::Waiting => b.row.waiting.cmp(&a.row.waiting),
            Sort::Refused => of(|seen| seen.refused_rate().unwrap_or(0.0)),
            Sort::Forced => b.row.forced.cmp(&a.row.forced),
            Sort::Pressure => {
                let stood =
                    |seen: &Seen| (seen.row.pressure.some.avg10, seen.row.pressure.full.avg10);
                stood(b).cmp(&stood(a))
            }
        };
        let order = if self.turned { order.reverse() } else { order };
        order
            .then_with(|| b.row.usage.cmp(&a.row.usage))
            .then_with(|| a.row.path.cmp(&b.row.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::{fetched, row, sample};

    fn shown(model: &Model) -> Vec<String> {
        let name = |line: &Line<'_>| match line.kind {
            Kind::Group { seen, .. } => seen.row.path.clone(),
            Kind::Rest(bytes) => format!("rest {bytes}"),
        };
        model.lines().iter().map(name).collect()
    }

    #[test]
    fn the_tree_is_folded_sorted_and_filtered() {
        let mut model = Model {
            want: Want {
                depth: 2,
                lines: 20,
                ..Want::default()
            },
            ..Model::default()
        };
        model.apply(&fetched(&model.want, 1_000).0);
        assert_eq!(shown(&model), ["/", "/a", "/a/x", "/a/y", "/b", "rest 10"]);
        model.set_sort(Sort::Usage, true);
        assert_eq!(shown(&model), ["/", "/b", "/a", "/a/y", "/a/x", "rest 10"]);
        assert!(model.want.wide);
        model.set_sort(Sort::Usage, false);
        model.set_filter("X".into());
        assert_eq!(shown(&model), ["/", "/a", "/a/x"]);
        assert!(model.want.wide);
        model.set_filter("nothing".into());
        assert_eq!(shown(&model), [""; 0]);
        model.set_filter(String::new());
        model.want.toggled.insert("/a".into());
        assert_eq!(shown(&model), ["/", "/a", "/b", "rest 10"]);
        // A page leaves the tree as it was.
        model.want.page = Some("/a".into());
        model.apply(&fetched(&model.want, 2_000).0);
        assert_eq!(shown(&model), ["/", "/a", "/b", "rest 10"]);
        assert_eq!(
            model
                .holders("/a")
                .map(|(holders, rest)| (holders.len(), rest)),
            Some((2, 0))
        );
    }

    #[test]
    fn each_order_puts_its_figure_first() {
        let mut model = Model {
            want: Want {
                depth: 1,
                lines: 20,
                ..Want::default()
            },
            ..Model::default()
        };
        let quiet = row("/quiet", 60);
        let busy = |usage, refused| {
            let mut busy = Row {
                refused,
                waiting: 3,
                forced: 1,
                ..row("/busy", usage)
            };
            busy.pressure.some.avg10 = 1;
            busy
        };
        model.apply(&sample(1_000, vec![quiet.clone(), busy(10, 0)]));
        model.apply(&sample(2_000, vec![quiet, busy(20, 5)]));
        for sort in Sort::ALL {
            model.set_sort(sort, false);
            let first = if sort == Sort::Usage {
                "/quiet"
            } else {
                "/busy"
            };
            assert_eq!(shown(&model)[1], first, "{}", sort.name());
        }
        assert_eq!(Sort::ALL.map(Sort::next)[6], Sort::Usage);
    }

    #[test]
    fn groups_of_equal_rank_stand_by_usage() {
        let mut model = Model {
            want: Want {
                depth: 1,
                lines: 20,
                ..Want::default()
            },
            ..Model::default()
        };
        model.apply(&sample(
            1_000,
            vec![row("/a", 10), row("/b", 30), row("/c", 20), row("/d", 20)],
        ));
        for sort in [
            Sort::Rate,
            Sort::Waiting,
            Sort::Refused,
            Sort::Forced,
            Sort::Pressure,
        ] {
            for turned in [false, true] {
                model.set_sort(sort, turned);
                assert_eq!(
                    shown(&model),
                    ["/", "/b", "/c", "/d", "/a"],
                    "{}, turned: {turned}",
                    sort.name()
                );
            }
        }
        model.set_sort(Sort::Usage, true);
        assert_eq!(shown(&model), ["/", "/a", "/c", "/d", "/b"]);
        model.set_sort(Sort::Name, true);
        assert_eq!(shown(&model), ["/", "/d", "/c", "/b", "/a"]);
    }

    #[test]
    fn rates_are_of_a_second_and_of_one_process() {
        let mut model = Model::default();
        let at = |usage, refused| {
            vec![Row {
                refused,
                ..row("/a", usage)
            }]
        };
        model.apply(&sample(10_000, at(1_000, 5)));
        let rates = |model: &Model| {
            model
                .seen("/a")
                .map(|seen| (seen.usage_rate(), seen.refused_rate()))
        };
        assert_eq!(rates(&model), Some((None, None)));
        model.apply(&sample(10_500, at(2_000, 6)));
        assert_eq!(rates(&model), Some((Some(2_000.0), Some(2.0))));
        model.apply(&sample(11_000, at(1_500, 15)));
        assert_eq!(rates(&model), Some((Some(500.0), Some(10.0))));
        // A new process counts from 0.
        model.apply(&sample(12_000, at(0, 0)));
        assert_eq!(rates(&model), Some((Some(-1_500.0), None)));
        // The clock was set back.
        model.apply(&sample(5_000, at(7, 0)));
        assert_eq!(rates(&model), Some((None, None)));
    }

    #[test]
    fn events_are_news_when_they_happen_again() {
        let mut model = Model::default();
        let at = |count| {
            vec![Row {
                events: BTreeMap::from([("max".to_string(), count)]),
                ..row("/a", 1)
            }]
        };
        let news = |model: &Model| model.seen("/a").unwrap().happened.get("max").copied();
        model.apply(&sample(1_000, at(7)));
        assert_eq!(news(&model), None);
        model.apply(&sample(2_000, at(8)));
        model.apply(&sample(3_000, at(8)));
        assert_eq!(news(&model), Some(2_000));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut model = Model::default();
        for at in 0..2 * POINTS_MAX as u64 {
            model.apply(&sample(1 + at, vec![row("/a", at)]));
        }
        assert_eq!(model.seen("/a").unwrap().history.len(), POINTS_MAX);
        for at in 0..8 {
            let rows = (0..900).map(|i| row(&format!("/{at}-{i}"), 1)).collect();
            model.apply(&sample(10_000 + at, rows));
            assert!(model.seen.len() <= SEEN_MAX + 901);
        }
        model.apply(&sample(20_000 + SEEN_FOR, vec![]));
        assert_eq!(model.seen.len(), 1);
        // As many as it may keep, with the root: none goes before its time.
        let rows = (1..SEEN_MAX).map(|i| row(&format!("/{i}"), 1)).collect();
        model.apply(&sample(20_001 + SEEN_FOR, rows));
        model.apply(&sample(20_002 + SEEN_FOR, vec![]));
        assert_eq!(model.seen.len(), SEEN_MAX);
    }

    #[test]
    fn what_is_kept_is_bounded_whatever_the_clock_and_the_names() {
        for clock in [|_: u64| 10_000, |i| 10_000 - i] {
            let mut model = Model::default();
            for i in 0..8 {
                let rows = (0..900)
                    .map(|name| row(&format!("/{i}-{name}"), 1))
                    .collect();
                model.apply(&sample(clock(i), rows));
                assert!(model.seen.len() <= SEEN_MAX, "{}", model.seen.len());
            }
        }
        let mut model = Model::default();
        for at in 1..4 {
            let events = BTreeMap::from([(format!("e{at}"), 1)]);
            model.apply(&sample(
                at,
                vec![Row {
                    events,
                    ..row("/a", 1)
                }],
            ));
        }
        assert_eq!(
            model.seen("/a").unwrap().happened,
            BTreeMap::from([("e3".to_string(), 3)])
        );
        for at in 0..3 * ROWS_MAX {
            let path = format!("/{at}");
            let branches = vec![Branch {
                group: row(&path, 1),
                children: vec![],
                rest: 0,
            }];
            model.apply(&Sample {
                page: Some(path),
                branches,
                ..sample(4, vec![])
            });
            assert!(model.branches.len() <= ROWS_MAX + 1);
        }
    }

    #[test]
    fn extreme_figures_do_no_harm() {
        let mut model = Model {
            want: Want {
                depth: 1,
                ..Want::default()
            },
            ..Model::default()
        };
        let most = Row {
            max: 0,
            high: 0,
            refused: u64::MAX,
            waiting: u64::MAX,
            ..row("/a", u64::MAX)
        };
        model.apply(&sample(1, vec![row("/a", 0)]));
        model.apply(&sample(u64::MAX, vec![most]));
        assert_eq!(model.lines().len(), 2);
        assert!(model.seen("/a").unwrap().usage_rate().is_some());
    }
}
