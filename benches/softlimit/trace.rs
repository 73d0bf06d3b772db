//! The requests of the jobs.

#![cfg(not(loom))]

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use flate2::read::MultiGzDecoder;

use super::synthetic;

const NAME: &str = "block-cloudphysics-w106.csv.gz";

/// The way in which one trace becomes the requests of two groups.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Split {
    /// One request to the one, the next to the other
    Alternate,
    /// The first half of the requests, and the second
    Halves,
}

/// Block numbers in order of request. Blocks are numbered anew by group from 0 on, as those of a
/// file are.
pub(crate) struct Requests {
    pub(crate) requests: Vec<u32>,
    pub(crate) blocks: usize,
}

/// A trace, and what its tables are headed with.
pub(crate) struct Trace {
    pub(crate) name: String,
    keys: Vec<u64>,
}

impl Trace {
    /// `--trace`; else the file in the folder that `MEMCG_TRACES` names, where it is there; else
    /// the made-up one.
    pub(crate) fn find(path: Option<&Path>) -> Result<Trace, String> {
        let folder =
            || std::env::var_os("MEMCG_TRACES").map(|folder| PathBuf::from(folder).join(NAME));
        match path
            .map(Path::to_owned)
            .or_else(|| folder().filter(|path| path.exists()))
        {
            Some(path) => Trace::read(&path),
            None => Ok(Trace {
                name: "synthetic trace".to_owned(),
                keys: synthetic::keys(),
            }),
        }
    }

    fn read(path: &Path) -> Result<Trace, String> {
        let file = path.display();
        let reader = File::open(path)
            .map_err(|error| format!("{file}: {error}; name another file with --trace"))?;
        let mut keys = Vec::new();
        for (number, line) in BufReader::new(MultiGzDecoder::new(reader))
            .lines()
            .enumerate()
        {
            let line =
                line.map_err(|error| format!("{file}:{}: {error}; it has to be gzip", number + 1))?;
            let key = line
                .split(',')
                .next()
                .and_then(|key| key.parse::<u64>().ok());
            match key {
                Some(key) => keys.push(key),
                // The head.
                None if number == 0 => {}
                None => {
                    let wanted = "each line but the first is `block` or `block,size`";
                    return Err(format!(
                        "{file}:{}: no number of a block in {line:?}; {wanted}",
                        number + 1
                    ));
                }
            }
        }
        if keys.is_empty() {
            return Err(format!(
                "{file}: no request in it; below the head stands a line for each read of a block"
            ));
        }
        let name = path.file_name().map_or_else(
            || "trace".to_owned(),
            |name| name.to_string_lossy().into_owned(),
        );
        Ok(Trace {
            name: name.trim_end_matches(".csv.gz").to_owned(),
            keys,
        })
    }

    /// The first `most` requests, split in two.
    pub(crate) fn split(&self, most: usize, split: Split) -> [Requests; 2] {
        let keys = &self.keys[..most.min(self.keys.len())];
        match split {
            Split::Alternate => {
                [0, 1].map(|first| Requests::new(keys.iter().skip(first).step_by(2)))
            }
            Split::Halves => {
                let (first, second) = keys.split_at(keys.len() / 2);
                [first, second].map(|half| Requests::new(half.iter()))
            }
        }
    }
}

impl Requests {
    fn new<'a>(keys: impl Iterator<Item = &'a u64>) -> Self {
        let mut numbers = HashMap::new();
        let mut requests = Vec::new();
        for key in keys {
            let next = numbers.len() as u32;
            requests.push(*numbers.entry(*key).or_insert(next));
        }
        Requests {
            requests,
            blocks: numbers.len(),
        }
    }
}
