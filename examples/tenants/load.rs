//! Requests as a cluster's clients send them: keys by a Zipf law, operations by the published
//! shares.

use std::str::FromStr;

use rand::distr::{Distribution, StandardUniform, Uniform};
use rand::rngs::Xoshiro256PlusPlus;
use rand_distr::Zipf;

use crate::clusters::Cluster;
use crate::entry::scramble;

/// The generator that all draw from, each tenant and each slice of arrivals its own: the same
/// generator on every machine.
pub(crate) type Random = Xoshiro256PlusPlus;

/// One thing that a client asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) key: u64,
    pub(crate) operation: Operation,
}

/// The thing to be done with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Look up; a miss is filled.
    Get,
    /// Put a new value.
    Write,
    /// Remove the entry, if there is one.
    Delete,
}

impl FromStr for Operation {
    type Err = String;

    /// As the table of the clusters calls them.
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "get" | "gets" => Ok(Self::Get),
            "set" | "add" | "cas" | "incr" | "prepend" => Ok(Self::Write),
            "delete" => Ok(Self::Delete),
            _ => Err(format!("unknown operation {name:?}")),
        }
    }
}

/// The distribution of a tenant's requests. Nothing here grows with the number of keys.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    keys: Keys,
    /// Operations with the share of each and all before it, the last at 1.
    operations: Vec<(Operation, f64)>,
}

#[derive(Clone, Debug)]
enum Keys {
    Zipf(Zipf<f64>),
    Uniform(Uniform<u64>),
}

impl Load {
    /// The load of a cluster, over this many keys.
    pub(crate) fn new(cluster: &Cluster, keys: u64) -> Self {
        let zipf = (cluster.zipf_alpha > 0.0).then(|| Zipf::new(keys as f64, cluster.zipf_alpha));
        let keys = match zipf {
            Some(zipf) => Keys::Zipf(zipf.expect("the table holds exponents above 0")),
            None => Keys::Uniform(Uniform::new_inclusive(1, keys).expect("a cluster has a key")),
        };
        Self {
            keys,
            operations: operations(cluster.operations),
        }
    }

    pub(crate) fn draw(&self, random: &mut Random) -> Request {
        let key = match &self.keys {
            // A rank from 1 on, whole.
            Keys::Zipf(zipf) => zipf.sample(random) as u64,
            Keys::Uniform(uniform) => uniform.sample(random),
        };
        let at: f64 = StandardUniform.sample(random);
        let drawn = self
            .operations
            .iter()
            .find(|&&(_, end)| at < end)
            .or(self.operations.last());
        Request {
            key,
            operation: drawn.map_or(Operation::Get, |&(operation, _)| operation),
        }
    }
}

/// Parses `get:0.96 add:0.04`. The shares are rounded and do not always sum up to 1: each is taken
/// of their sum.
fn operations(text: &str) -> Vec<(Operation, f64)> {
    let mut end = 0.0;
    let mut operations: Vec<(Operation, f64)> = text
        .split(' ')
        .map(|part| {
            let (name, share) = part.split_once(':').expect("the table holds name:share");
            end += share.parse::<f64>().expect("the table holds shares");
            (name.parse().expect("the table holds known operations"), end)
        })
        .collect();
    operations.iter_mut().for_each(|(_, share)| *share /= end);
    operations
}

/// The number of bytes that an entry's block has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    key_bytes: u64,
    /// Logarithm of the chance that a value has one more byte; `None`: every value has one.
    one_more: Option<f64>,
}

impl Sizes {
    /// Keys of the cluster's mean length, values spread geometrically around their mean.
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let mean = f64::from(cluster.value_bytes);
        Self {
            key_bytes: cluster.key_bytes.into(),
            one_more: (mean > 1.0).then(|| (1.0 - 1.0 / mean).ln()),
        }
    }

    /// All of them have so many, at least one.
    pub(crate) fn fixed(bytes: u64) -> Self {
        Self {
            key_bytes: bytes - 1,
            one_more: None,
        }
    }

    /// Bytes of key and value.
    pub(crate) fn block(&self, key: u64, version: u32) -> u64 {
        self.key_bytes + self.value(key, version)
    }

    /// The same for the same key and version: a geometric law, by the inverse of its distribution.
    fn value(&self, key: u64, version: u32) -> u64 {
        let Some(one_more) = self.one_more else {
            return 1;
        };
        let bits = scramble(key, u64::from(version) ^ self.key_bytes.rotate_left(32)) >> 11;
        // Half a step above 0 at least: the logarithm is finite.
        let at = (bits as f64 + 0.5) / (1_u64 << 53) as f64;
        1 + (at.ln() / one_more) as u64
    }
}
