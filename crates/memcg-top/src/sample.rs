//! The service's answers at one moment, and the questions.

use std::collections::{BTreeSet, HashSet};

use memcg_observe::protocol::{INCIDENTS_MAX, Incident, ROWS_MAX, Row};
use serde::{Deserialize, Serialize};

/// Refusals and victims that a group's page has.
pub(crate) const INCIDENTS_SHOWN: usize = 4;

/// A group and the largest of its children.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Branch {
    pub(crate) group: Row,
    pub(crate) children: Vec<Row>,
    /// Bytes that none of those children uses.
    pub(crate) rest: u64,
}

impl Branch {
    /// This is the group of that path, and its children are children of it. None of them is there
    /// twice: what is below it would be shown twice, so that a few levels are more lines than
    /// memory has.
    pub(crate) fn answers(&self, path: &str) -> bool {
        let mut paths = HashSet::new();
        let mut under = |child: &Row| {
            parent_and_name(&child.path).is_some_and(|(parent, _)| parent == path)
                && paths.insert(child.path.clone())
        };
        self.group.path == path && self.children.iter().all(&mut under)
    }
}

/// Splits `/a/b` into `/a` and `b`. The root has no name.
pub(crate) fn parent_and_name(path: &str) -> Option<(&str, &str)> {
    let (parent, name) = path.rsplit_once('/')?;
    if name.is_empty() {
        None
    } else {
        Some((if parent.is_empty() { "/" } else { parent }, name))
    }
}

/// The service's answers at one moment. A line of a recording, and of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Changes with what is here.
    pub(crate) format: u32,
    /// Milliseconds of the Unix epoch.
    pub(crate) at: u64,
    /// The only group that was asked for; else the tree.
    pub(crate) page: Option<String>,
    pub(crate) branches: Vec<Branch>,
    /// The last refusals and victims of the page's group, the oldest first.
    #[serde(default)]
    pub(crate) incidents: Vec<Incident>,
}

impl Sample {
    /// True if a service's answers can be these.
    pub(crate) fn is_whole(&self) -> bool {
        let is_page = |page: &String| {
            self.branches
                .iter()
                .all(|branch| branch.group.path == *page)
        };
        let answers = |branch: &Branch| {
            branch.children.len() <= ROWS_MAX && branch.answers(&branch.group.path)
        };
        self.page.as_ref().is_none_or(is_page)
            && self.branches.len() <= ROWS_MAX
            && self.branches.iter().all(answers)
            && self.incidents.len() <= INCIDENTS_MAX
    }
}

/// [`Sample::format`].
pub(crate) const FORMAT: u32 = 1;

/// The questions to ask.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Want {
    /// Levels that are unfolded, but for those paths.
    pub(crate) depth: usize,
    pub(crate) toggled: BTreeSet<String>,
    /// Lines down to the last one on the screen.
    pub(crate) lines: usize,
    /// Not only the largest groups: another order, or a filter.
    pub(crate) wide: bool,
    pub(crate) page: Option<String>,
}

impl Want {
    pub(crate) fn is_open(&self, path: &str, level: usize) -> bool {
        (level < self.depth) != self.toggled.contains(path)
    }

    /// Asks for what is shown and for nothing else. `ask` returns `None` for a group that has gone.
    pub(crate) fn fetch<E>(
        &self,
        at: u64,
        ask: impl FnMut(&str, usize) -> Result<Option<Branch>, E>,
    ) -> Result<Sample, E> {
        let lines = if self.wide {
            ROWS_MAX
        } else {
            self.lines.clamp(1, ROWS_MAX)
        };
        let mut walk = Walk {
            want: self,
            ask,
            left: lines,
            branches: Vec::new(),
        };
        match &self.page {
            Some(path) => walk.branches.extend((walk.ask)(path, lines)?),
            None => walk.group("/", 0)?,
        }
        let page = self.page.clone();
        let branches = walk.branches;
        Ok(Sample {
            format: FORMAT,
            at,
            page,
            branches,
            incidents: Vec::new(),
        })
    }
}

struct Walk<'a, F> {
    want: &'a Want,
    ask: F,
    left: usize,
    branches: Vec<Branch>,
}

impl<E, F: FnMut(&str, usize) -> Result<Option<Branch>, E>> Walk<'_, F> {
    fn group(&mut self, path: &str, level: usize) -> Result<(), E> {
        self.left = self.left.saturating_sub(1);
        let is_open = self.want.is_open(path, level);
        // The root has no parent whose answer names it, so it is always asked for.
        if level > 0 && (!is_open || self.left == 0) {
            return Ok(());
        }
        let top = match () {
            () if !is_open => 0,
            () if self.want.wide => ROWS_MAX,
            () => self.left,
        };
        let Some(branch) = (self.ask)(path, top)? else {
            return Ok(());
        };
        let children: Vec<String> = branch
            .children
            .iter()
            .map(|child| child.path.clone())
            .collect();
        self.branches.push(branch);
        for child in children {
            if self.left == 0 {
                break;
            }
            self.group(&child, level + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::convert::Infallible;

    use super::*;

    pub(crate) fn row(path: &str, usage: u64) -> Row {
        Row {
            path: path.into(),
            usage,
            max: u64::MAX,
            high: u64::MAX,
            soft: u64::MAX,
            ..Row::default()
        }
    }

    /// `/` with the children `/a` (two children, 40 and 30 bytes) and `/b`.
    fn answer(path: &str, top: usize) -> Option<Branch> {
        let (group, mut children) = match path {
            "/" => (row("/", 100), vec![row("/a", 70), row("/b", 20)]),
            "/a" => (row("/a", 70), vec![row("/a/x", 40), row("/a/y", 30)]),
            "/b" => (row("/b", 20), vec![]),
            _ => return None,
        };
        children.truncate(top);
        let rest = group.usage - children.iter().map(|child| child.usage).sum::<u64>();
        Some(Branch {
            group,
            children,
            rest,
        })
    }

    pub(crate) fn fetched(want: &Want, at: u64) -> (Sample, Vec<(String, usize)>) {
        let mut asked = Vec::new();
        let sample = want.fetch(at, |path, top| {
            asked.push((path.to_string(), top));
            Ok::<_, Infallible>(answer(path, top))
        });
        (sample.unwrap(), asked)
    }

    pub(crate) fn sample(at: u64, rows: Vec<Row>) -> Sample {
        let branch = Branch {
            group: row("/", 100),
            children: rows,
            rest: 0,
        };
        Sample {
            format: FORMAT,
            at,
            page: None,
            branches: vec![branch],
            incidents: Vec::new(),
        }
    }

    #[test]
    fn only_what_is_shown_is_asked_for() {
        let want = Want {
            depth: 1,
            lines: 10,
            ..Want::default()
        };
        let asked = |want: &Want| fetched(want, 1).1;
        assert_eq!(asked(&want), [("/".into(), 9)]);
        assert_eq!(
            asked(&Want {
                depth: 0,
                ..want.clone()
            }),
            [("/".into(), 0)]
        );
        // Two lines of /a, and one of /b, whose children would be below the screen.
        assert_eq!(
            asked(&Want {
                depth: 2,
                lines: 5,
                ..want.clone()
            }),
            [("/".into(), 4), ("/a".into(), 3)]
        );
        let toggled = BTreeSet::from(["/b".to_string()]);
        assert_eq!(
            asked(&Want {
                toggled,
                ..want.clone()
            }),
            [("/".into(), 9), ("/b".into(), 7)]
        );
        assert_eq!(
            asked(&Want {
                wide: true,
                ..want.clone()
            }),
            [("/".into(), ROWS_MAX)]
        );
        assert_eq!(
            asked(&Want {
                page: Some("/a".into()),
                ..want.clone()
            }),
            [("/a".into(), 10)]
        );
        // It has gone meanwhile.
        assert_eq!(
            fetched(
                &Want {
                    page: Some("/c".into()),
                    ..want
                },
                1
            )
            .0
            .branches,
            []
        );
    }

    #[test]
    fn a_sample_has_what_a_service_answers() {
        let of = |group: &str, children: &[&str]| {
            let children = children.iter().map(|path| row(path, 1)).collect();
            Sample {
                branches: vec![Branch {
                    group: row(group, 1),
                    children,
                    rest: 0,
                }],
                ..sample(1, vec![])
            }
        };
        assert!(of("/", &["/a", "/b"]).is_whole() && of("/a", &["/a/b"]).is_whole());
        let wrong: [(&str, &[&str]); 7] = [
            ("/", &["/"]),
            ("/a", &["/a"]),
            ("/a", &["/"]),
            ("/", &["/a", "/a"]),
            ("/", &["/a/b"]),
            ("", &["/a"]),
            ("/", &["a"]),
        ];
        for (group, children) in wrong {
            assert!(!of(group, children).is_whole(), "{group}: {children:?}");
        }
        let many: Vec<String> = (0..=ROWS_MAX).map(|i| format!("/{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(of("/", &many[1..]).is_whole() && !of("/", &many).is_whole());
        assert!(
            !Sample {
                branches: vec![of("/", &[]).branches.remove(0); ROWS_MAX + 1],
                ..of("/", &[])
            }
            .is_whole()
        );
        assert!(
            !Sample {
                incidents: vec![Incident::default(); INCIDENTS_MAX + 1],
                ..of("/", &[])
            }
            .is_whole()
        );
        let page = |page: &str| Sample {
            page: Some(page.into()),
            ..of("/a", &[])
        };
        assert!(page("/a").is_whole() && !page("/b").is_whole());
    }
}
