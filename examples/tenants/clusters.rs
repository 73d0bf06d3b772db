//! The 54 production caches that the tenants are modelled on.
//!
//! J. Yang, Y. Yue, K. V. Rashmi, "A large scale analysis of hundreds of in-memory cache clusters
//! at Twitter", OSDI 2020. Figures of March 2020 from github.com/twitter/cache-trace,
//! `stat/2020Mar.md`, CC-BY-4.0; columns picked and renamed.

use std::sync::LazyLock;

/// One cache as its owners measured it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(crate) number: u8,
    /// Mean length of a key and of a value.
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    /// Requests per second, in thousands.
    pub(crate) rate_kqps: f64,
    /// Exponent of the Zipf law of its keys; 0 where there is none or it is not known.
    pub(crate) zipf_alpha: f64,
    /// 0 where it is not known.
    pub(crate) working_set_mb: u32,
    /// Shares of the operations, as published: those below a hundredth are left out.
    pub(crate) operations: &'static str,
}

/// All clusters with figures: for the fifth none were published.
pub(crate) static CLUSTERS: LazyLock<Vec<Cluster>> = LazyLock::new(|| {
    include_str!("clusters.csv")
        .lines()
        .skip(1)
        .map(Cluster::parse)
        .collect()
});

impl Cluster {
    /// A line of the table.
    fn parse(line: &'static str) -> Self {
        let fields: Vec<&str> = line.split(',').collect();
        let [figures @ .., operations] = &fields[..] else {
            panic!("an empty line")
        };
        let figures = figures
            .iter()
            .map(|figure| figure.parse().expect("a number"))
            .collect::<Vec<f64>>();
        let [
            number,
            key_bytes,
            value_bytes,
            rate_kqps,
            zipf_alpha,
            working_set_mb,
        ] = figures[..]
        else {
            panic!("six figures: {line}")
        };
        Self {
            number: number as u8,
            key_bytes: key_bytes as u32,
            value_bytes: value_bytes as u32,
            rate_kqps,
            zipf_alpha,
            working_set_mb: working_set_mb as u32,
            operations,
        }
    }

    /// Sorts with the others.
    pub(crate) fn name(&self) -> String {
        format!("cluster{:02}", self.number)
    }
}
