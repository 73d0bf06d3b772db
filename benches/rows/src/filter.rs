//! Which rows a filter matches, and which come closest where it matches none.

use regex::Regex;

/// Ids that are named where no row matches.
const CLOSEST: usize = 3;

/// The least likeness of a filter and a part of an id for the id to be named: 1 is equal.
const ALIKE_MIN: f64 = 0.6;

/// The first argument of a bench.
#[derive(Debug)]
pub enum Filter {
    /// No filter: every row.
    All,
    /// Rows with a part that matches, as criterion has it.
    Part(Regex),
    /// The row of this id.
    Exact(String),
}

impl Filter {
    /// Reads the arguments.
    ///
    /// # Errors
    ///
    /// The text is no regular expression: what is wrong with it, and the remedy.
    pub fn new(text: Option<&str>, exact: bool) -> Result<Self, String> {
        match text {
            None => Ok(Filter::All),
            Some(text) if exact => Ok(Filter::Exact(text.to_owned())),
            Some(text) => Regex::new(text).map(Filter::Part).map_err(|error| {
                format!("`{text}` is no regular expression; --exact takes it as the whole id of a row\n{error}")
            }),
        }
    }

    /// True if the row of this id is to run.
    #[must_use]
    pub fn matches(&self, id: &str) -> bool {
        match self {
            Filter::All => true,
            Filter::Part(regex) => regex.is_match(id),
            Filter::Exact(exact) => id == exact,
        }
    }
}

/// Up to three ids that are most like a filter which matches none, the best one first.
#[must_use]
pub fn closest<'a>(wanted: &str, ids: &[&'a str]) -> Vec<&'a str> {
    let mut ranked: Vec<(f64, &str)> = ids.iter().map(|id| (likeness(wanted, id), *id)).collect();
    ranked.retain(|(likeness, _)| *likeness >= ALIKE_MIN);
    // Stable: ids that are equally close stay in the order of the bench.
    ranked.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    ranked.into_iter().take(CLOSEST).map(|(_, id)| id).collect()
}

/// The likeness of the filter to the most similar run of parts of an id: between two slashes, or
/// several in a row.
fn likeness(wanted: &str, id: &str) -> f64 {
    let parts: Vec<&str> = id.split('/').collect();
    let mut best: f64 = 0.0;
    for first in 0..parts.len() {
        for last in first..parts.len() {
            let run = parts[first..=last].join("/");
            best = best.max(strsim::normalized_damerau_levenshtein(
                wanted.trim_matches('/'),
                &run,
            ));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: [&str; 4] = [
        "counter/stock/depth1/threads1",
        "counter/stock/depth14/threads1",
        "counter/atomic/threads1",
        "stat/add/threads2",
    ];

    fn matching(text: &str, exact: bool) -> Vec<&'static str> {
        let filter = Filter::new(Some(text), exact).expect("a regular expression");
        IDS.into_iter().filter(|id| filter.matches(id)).collect()
    }

    #[test]
    fn a_filter_matches_parts_of_ids() {
        assert!(
            IDS.iter()
                .all(|id| Filter::new(None, false).expect("no filter").matches(id))
        );
        assert_eq!(matching("depth1", false), IDS[..2]);
        assert_eq!(matching("depth1/", false), IDS[..1]);
        assert_eq!(matching("depth[14]+/threads1$", false), IDS[..2]);
        assert_eq!(matching("no_such_row", false), [""; 0]);
    }

    #[test]
    fn an_exact_filter_is_a_whole_id() {
        assert_eq!(matching("counter/stock/depth1/threads1", true), IDS[..1]);
        assert_eq!(matching("depth1", true), [""; 0]);
    }

    #[test]
    fn what_is_no_regular_expression_is_named() {
        let error = Filter::new(Some("depth["), false).expect_err("a bracket is open");
        assert!(
            error.starts_with("`depth[` is no regular expression"),
            "{error}"
        );
        assert!(Filter::new(Some("depth["), true).is_ok());
    }

    #[test]
    fn misspelt_filters_have_a_closest_row() {
        assert_eq!(closest("atomik", &IDS), ["counter/atomic/threads1"]);
        assert_eq!(
            closest("counter/stok/depth14", &IDS)[0],
            "counter/stock/depth14/threads1"
        );
        assert_eq!(closest("/stat/ad/", &IDS), ["stat/add/threads2"]);
        assert_eq!(closest("no_such_row", &IDS), [""; 0]);
    }
}
