//! Which question is next, so that what one client's answer costs delays no other's for long.
//!
//! Questions differ in cost by a factor of thousands. The thread serves cheap ones first, by what
//! their kind has cost before, and looks for new ones after [`ROUND`]. In each round it also serves
//! the one that has waited longest. So a cheap question waits for two dear ones at most, however
//! many clients ask those, and a dear one has its turn, however many ask cheap ones.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::files::GroupFile;
use crate::protocol::Question;

/// After so long the thread looks for new questions.
pub(super) const ROUND: Duration = Duration::from_millis(2);
/// Questions that cost less are equal.
const CHEAP_US: u128 = 256;

/// A question that a client has asked and that has no answer yet.
pub(super) struct Asked {
    /// Or what is wrong with it.
    pub(super) question: Result<Question, String>,
    /// Since when it is here.
    pub(super) since: Instant,
}

impl Asked {
    pub(super) fn parse(line: &[u8]) -> Asked {
        let question =
            serde_json::from_slice(line).map_err(|fault| format!("no question: {fault}"));
        Asked {
            question,
            since: Instant::now(),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match &self.question {
            Ok(Question::Get { file, .. }) => Kind::Get(GroupFile::named(file)),
            Ok(Question::Rows { depth, top, .. }) => {
                Kind::Rows(depth.saturating_mul(*top).checked_ilog2().unwrap_or(0))
            }
            Ok(Question::Incidents { most, .. }) => {
                Kind::Incidents(most.checked_ilog2().unwrap_or(0))
            }
            Ok(Question::Metrics {}) => Kind::Metrics,
            Ok(Question::Set { .. }) | Err(_) => Kind::Other,
        }
    }
}

/// Questions that cost about the same in one service. There are few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Get(Option<GroupFile>),
    /// By the order of magnitude of what is asked for.
    Rows(u32),
    Incidents(u32),
    Metrics,
    Other,
}

/// The costs of questions, by kind.
#[derive(Default)]
pub(super) struct Costs(HashMap<Kind, Duration>);

impl Costs {
    /// A dear one counts little at once: the thread may have been off the processor.
    pub(super) fn add(&mut self, kind: Kind, cost: Duration) {
        let before = self.0.entry(kind).or_insert(cost);
        *before = if cost < *before {
            cost
        } else {
            *before + (cost - *before) / 8
        };
    }

    /// The order of magnitude; 0 for all that are cheap or not known yet.
    pub(super) fn of(&self, kind: Kind) -> u32 {
        let micros = self.0.get(&kind).map_or(0, Duration::as_micros);
        (micros / CHEAP_US)
            .checked_ilog2()
            .map_or(0, |order| order + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(line: &str) -> Kind {
        Asked::parse(line.as_bytes()).kind()
    }

    #[test]
    fn kinds_of_questions() {
        assert_eq!(
            kind(r#"{"get":{"path":"/","file":"memory.max"}}"#),
            Kind::Get(Some(GroupFile::Max))
        );
        assert_eq!(kind(r#"{"get":{"path":"/a","file":"x"}}"#), Kind::Get(None));
        assert_eq!(kind(r#"{"rows":{"path":"/"}}"#), Kind::Rows(0));
        assert_eq!(
            kind(r#"{"rows":{"path":"/","depth":2,"top":500}}"#),
            Kind::Rows(9)
        );
        assert_eq!(
            kind(r#"{"rows":{"path":"/","depth":18446744073709551615,"top":9}}"#),
            Kind::Rows(63)
        );
        assert_eq!(
            (kind(r#"{"metrics":{}}"#), kind("?")),
            (Kind::Metrics, Kind::Other)
        );
    }

    #[test]
    fn a_kind_costs_what_it_has_cost() {
        let mut costs = Costs::default();
        assert_eq!(costs.of(Kind::Metrics), 0, "not known yet");
        costs.add(Kind::Metrics, Duration::from_millis(10));
        assert_eq!(costs.of(Kind::Metrics), 6, "39 times what is cheap");
        costs.add(Kind::Other, Duration::from_micros(255));
        costs.add(Kind::Other, Duration::from_millis(1));
        assert_eq!(costs.of(Kind::Other), 1, "one that was slow once");
        costs.add(Kind::Other, Duration::from_micros(5));
        assert_eq!(costs.of(Kind::Other), 0);
    }
}
