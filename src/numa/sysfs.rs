//! The files that say which nodes and processors there are.
//!
//! ```text
//! devices/system/node/possible       nodes that may ever be there
//! devices/system/node/online         those that are
//! devices/system/node/nodeN/cpulist  processors of a node that are online; an offline node has no directory
//! devices/system/cpu/possible        processors that may ever be there
//! ```
//!
//! ```text
//! list   = [ range { "," range } ] ["\n"]    nothing: an empty list
//! range  = number ["-" number]               both included
//! ```
//!
//! The kernel prints numbers in rising order, each once, all below 65,536; what does not rise or fit is no list.

use std::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use super::topology::{Draft, NODES_MAX, NodeId, Topology, TopologyError};

/// Where sysfs is.
pub(super) const ROOT: &str = "/sys";

/// The topology below a root.
pub(super) fn read(root: &Path) -> Result<Topology, TopologyError> {
    let folder = root.join("devices/system/node");
    let possible_processors = processors(root)?;
    if let Err(error) = fs::metadata(&folder) {
        // A kernel for one node, a sandbox without sysfs, another system.
        return if error.kind() == io::ErrorKind::NotFound {
            let said = possible_processors.map(|list| list.end()).filter(|&count| count > 0);
            Ok(Topology::of_one_node(said.unwrap_or_else(processors_in_use)))
        } else {
            Err(TopologyError::Read { path: folder, kind: error.kind() })
        };
    }
    let possible = List::read(&folder.join("possible"))?;
    let online = List::read(&folder.join("online"))?;
    // Some firmware makes room for 256.
    let possible = if possible.numbers().nth(NODES_MAX).is_some() { &online } else { &possible };
    let mut draft = Draft::default();
    // What is online is possible, whatever the other file says.
    for number in possible.numbers().chain(online.numbers().filter(|&number| !possible.holds(number))) {
        let node = NodeId::new(number as u16);
        let is_online = online.holds(number);
        draft.add_node(node, is_online)?;
        let path = folder.join(format!("node{node}/cpulist"));
        let Some(list) = (if is_online { List::read(&path).map(Some) } else { List::read_if_there(&path) })? else {
            continue;
        };
        list.numbers().try_for_each(|processor| draft.add_processor(processor, node))?;
    }
    draft.finish(possible_processors.iter().flat_map(List::numbers))
}

/// How many processors this process may use.
pub(super) fn processors_in_use() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The possible processors below a root, `None` where nothing says.
pub(super) fn processors(root: &Path) -> Result<Option<List>, TopologyError> {
    List::read_if_there(&root.join("devices/system/cpu/possible"))
}

/// Numbers in rising order.
pub(super) struct List(Vec<RangeInclusive<u16>>);

impl List {
    fn read(path: &Path) -> Result<List, TopologyError> {
        let failed = |error: io::Error| TopologyError::Read { path: path.to_owned(), kind: error.kind() };
        let bytes = fs::read(path).map_err(failed)?;
        let wrong = |at| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            TopologyError::Parse { path: path.to_owned(), text, at }
        };
        Self::parse(&bytes).map_err(wrong)
    }

    fn read_if_there(path: &Path) -> Result<Option<List>, TopologyError> {
        match Self::read(path) {
            Err(TopologyError::Read { kind: io::ErrorKind::NotFound, .. }) => Ok(None),
            read => read.map(Some),
        }
    }

    /// The list, or where the text stops being one.
    fn parse(text: &[u8]) -> Result<List, usize> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
        let mut at = 0;
        while !text.is_empty() {
            let (first, next) = number(text, at)?;
            if ranges.last().is_some_and(|before| *before.end() >= first) {
                return Err(at);
            }
            let (last, end) = match text.get(next) {
                Some(b'-') => number(text, next + 1)?,
                _ => (first, next),
            };
            if last < first {
                return Err(next + 1);
            }
            ranges.push(first..=last);
            match text.get(end) {
                None => break,
                Some(b',') => at = end + 1,
                Some(_) => return Err(end),
            }
        }
        Ok(List(ranges))
    }

    fn numbers(&self) -> impl Iterator<Item = usize> {
        self.0.iter().cloned().flatten().map(usize::from)
    }

    fn holds(&self, number: usize) -> bool {
        self.0.iter().any(|range| u16::try_from(number).is_ok_and(|number| range.contains(&number)))
    }

    /// All numbers are below this.
    pub(super) fn end(&self) -> usize {
        self.0.last().map_or(0, |range| usize::from(*range.end()) + 1)
    }
}

/// The number that starts at a byte of the text and where it ends, or the byte that is no digit or does not fit.
fn number(text: &[u8], begin: usize) -> Result<(u16, usize), usize> {
    let mut value = 0_u16;
    let mut at = begin;
    while let Some(digit @ b'0'..=b'9') = text.get(at) {
        value = value.checked_mul(10).and_then(|tens| tens.checked_add(u16::from(digit - b'0'))).ok_or(at)?;
        at += 1;
    }
    if at == begin { Err(at) } else { Ok((value, at)) }
}

/// Rising numbers as a list.
pub(super) fn list(numbers: impl Iterator<Item = usize>) -> impl fmt::Debug {
    let mut text = String::new();
    let mut numbers = numbers.peekable();
    while let Some(first) = numbers.next() {
        let mut last = first;
        while let Some(next) = numbers.next_if_eq(&(last + 1)) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        text += &if first == last { format!("{comma}{first}") } else { format!("{comma}{first}-{last}") };
    }
    text
}
