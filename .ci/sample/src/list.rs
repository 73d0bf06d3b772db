//! Which mutants there are, and which of them a seed takes.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::{Failure, output_of};

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Span {
    pub(crate) start: Place,
    pub(crate) end: Place,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Function {
    pub(crate) function_name: String,
    pub(crate) span: Span,
}

/// A row of `cargo mutants --list --json`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mutant {
    pub(crate) package: String,
    pub(crate) file: String,
    pub(crate) function: Option<Function>,
    pub(crate) span: Span,
    pub(crate) replacement: String,
    /// `file:line:column: what is done`; [`Mutant::list`] takes the line and the column away, and
    /// numbers equals, so that the name outlives edits of other functions.
    pub(crate) name: String,
}

/// Code that tests or checkers of models alone compile: a build without them does not show which
/// mutants compile.
const NOT_PRODUCTION: [&str; 3] = ["src/tests/", "src/sync/model", "src/sync/unpoisoned.rs"];

/// The line that ends the production code of a file: its unit tests stand last.
const UNIT_TESTS: &str = "\n#[cfg(all(test, not(";

impl Mutant {
    /// All of `packages`, whose workspace is `folder` of `root`, in the code of production.
    pub(crate) fn list(
        root: &Path,
        folder: &str,
        packages: &[&str],
    ) -> Result<Vec<Mutant>, Failure> {
        let mut command = Command::new("cargo");
        command
            .args(["mutants", "--list", "--json", "--dir"])
            .arg(root.join(folder));
        for package in packages {
            command.args(["--package", package]);
        }
        let mut mutants: Vec<Mutant> = serde_json::from_slice(&output_of(&mut command)?)?;
        let mut production_ends: HashMap<String, usize> = HashMap::new();
        let mut seen: HashMap<String, usize> = HashMap::new();
        for mutant in &mut mutants {
            let end = match production_ends.get(&mutant.file) {
                Some(end) => *end,
                None => {
                    let text = std::fs::read_to_string(root.join(folder).join(&mutant.file))?;
                    let code = text.find(UNIT_TESTS).map_or(&text[..], |at| &text[..at]);
                    let is_production = !NOT_PRODUCTION
                        .iter()
                        .any(|place| mutant.file.starts_with(place));
                    let end = if is_production {
                        code.lines().count()
                    } else {
                        0
                    };
                    production_ends.insert(mutant.file.clone(), end);
                    end
                }
            };
            if mutant.span.start.line > end {
                mutant.name.clear();
                continue;
            }
            let what = mutant
                .name
                .splitn(4, ':')
                .nth(3)
                .ok_or("a name of cargo-mutants has no place")?;
            let name = format!("{}:{what}", mutant.file);
            let times = seen.entry(name.clone()).or_default();
            *times += 1;
            mutant.name = if *times == 1 {
                name
            } else {
                format!("{name} #{times}")
            };
        }
        mutants.retain(|mutant| !mutant.name.is_empty());
        Ok(mutants)
    }
}

/// A mutant's turn under a seed: by its name alone, so an edit of one function does not exchange
/// the sample of all others.
fn turn(seed: u64, name: &str) -> u64 {
    // FNV-1a, and the last step of SplitMix64, which mixes what short names leave alike.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64 ^ seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// In the order in which the seed takes them.
pub(crate) fn shuffle(mutants: &mut [Mutant], seed: u64) {
    mutants.sort_by_key(|mutant| turn(seed, &mutant.name));
}
