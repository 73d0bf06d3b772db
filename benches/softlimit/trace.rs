//! The requests of the jobs.

#![cfg(not(loom))]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use flate2::read::MultiGzDecoder;

const NAME: &str = "block-cloudphysics-w106.csv.gz";

/// How one trace becomes the requests of two groups.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Split {
    /// One request to the one, the next to the other
    Alternate,
    /// The first half of the requests, and the second
    Halves,
}

/// Block numbers in order of request. Blocks are numbered anew by group from 0 on, as those of a file are.
pub(crate) struct Requests {
    pub(crate) requests: Vec<u32>,
    pub(crate) blocks: usize,
}

/// Where `MEMCG_TRACES` says that traces are.
pub(crate) fn default_path() -> Option<PathBuf> {
    std::env::var_os("MEMCG_TRACES").map(|folder| PathBuf::from(folder).join(NAME))
}

/// The first `most` requests of a trace, split in two.
pub(crate) fn read(path: &Path, most: usize, split: Split) -> io::Result<[Requests; 2]> {
    let reader = BufReader::new(MultiGzDecoder::new(File::open(path)?));
    let mut keys = Vec::new();
    for line in reader.lines().skip(1).take(most) {
        let line = line?;
        let key = line.split(',').next().and_then(|key| key.parse::<u64>().ok());
        keys.push(key.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no block in {line:?}")))?);
    }
    Ok(match split {
        Split::Alternate => [0, 1].map(|first| Requests::new(keys.iter().skip(first).step_by(2))),
        Split::Halves => {
            let (first, second) = keys.split_at(keys.len() / 2);
            [first, second].map(|half| Requests::new(half.iter()))
        }
    })
}

impl Requests {
    fn new<'a>(keys: impl Iterator<Item = &'a u64>) -> Self {
        let mut numbers = HashMap::new();
        let mut requests = Vec::new();
        for key in keys {
            let next = numbers.len() as u32;
            requests.push(*numbers.entry(*key).or_insert(next));
        }
        Requests { requests, blocks: numbers.len() }
    }
}
