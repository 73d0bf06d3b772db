//! Reads a topology from the files of sysfs.
//!
//! ```text
//! devices/system/node/possible       nodes that may ever be there
//! devices/system/node/online         those that are
//! devices/system/node/nodeN/cpulist  processors of a node that are online; an offline node has no directory
//! devices/system/cpu/possible        processors that may ever be there
//!
//! list   = [ range { "," range } ] ["\n"]    nothing: an empty list
//! range  = number ["-" number]               both included
//! ```
//!
//! The kernel prints numbers in rising order, each once, all below 65,536. What does not rise or
//! fit is no list.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use super::topology::{NODES_MAX, NodeId, Topology, TopologyDraft, TopologyError};

/// The folder where the kernel mounts sysfs.
const ROOT: &str = "/sys";

impl Topology {
    /// Makes the topology of node 0 alone, with all processors of this machine. Every machine of
    /// one node has it. The call cannot fail: if the system does not tell how many processors it
    /// may have, those that this process may use count.
    ///
    /// ```
    /// let one = memcg::kmem::Topology::one_node();
    /// let here = std::thread::available_parallelism().map_or(1, |count| count.get());
    /// assert!(one.is_one_node() && one.processor_count() >= here);
    /// assert_eq!(one.current_node(), memcg::kmem::NodeId::new(0));
    /// ```
    pub fn one_node() -> Topology {
        // The system tells the number of processors once.
        static ONE_NODE: OnceLock<Topology> = OnceLock::new();
        let make = || {
            let possible = if cfg!(miri) {
                None
            } else {
                processors(Path::new(ROOT)).ok().flatten()
            };
            Self::of_one_node(
                possible
                    .map_or(0, |list| end(&list))
                    .max(processors_in_use()),
            )
        };
        ONE_NODE.get_or_init(make).clone()
    }

    /// Reads the topology of this machine from `/sys`; it is one node if `/sys` has nothing about
    /// nodes. It reads a few files, and so blocks for as long as that takes.
    ///
    /// # Errors
    ///
    /// As [`from_sysfs`](Self::from_sysfs).
    ///
    /// ```
    /// let machine = memcg::kmem::Topology::detect()?;
    /// assert!(machine.has_processors(machine.current_node()));
    /// # Ok::<(), memcg::kmem::TopologyError>(())
    /// ```
    pub fn detect() -> Result<Topology, TopologyError> {
        if cfg!(miri) {
            Ok(Self::one_node())
        } else {
            Self::from_sysfs(ROOT)
        }
    }

    /// Reads `devices/system/node/possible`, `online`, `nodeN/cpulist` of each node, and
    /// `devices/system/cpu/possible` below `root`. One node where there is no
    /// `devices/system/node`.
    ///
    /// A topology has at most 64 nodes. Where more are possible, it has those that are online.
    ///
    /// Formats: the kernel's `Documentation/ABI/stable/sysfs-devices-node` and
    /// `admin-guide/cputopology.rst`.
    ///
    /// # Errors
    ///
    /// [`Read`](TopologyError::Read) and [`Parse`](TopologyError::Parse) name the file. The other
    /// errors are about what the files say together.
    ///
    /// ```
    /// assert!(memcg::kmem::Topology::from_sysfs("/nowhere")?.is_one_node());
    /// # Ok::<(), memcg::kmem::TopologyError>(())
    /// ```
    pub fn from_sysfs(root: impl AsRef<Path>) -> Result<Topology, TopologyError> {
        let root = root.as_ref();
        let folder = root.join("devices/system/node");
        let possible_processors = processors(root)?;
        if let Err(error) = fs::metadata(&folder) {
            // This is a kernel for one node, a sandbox without sysfs, or another system.
            return if error.kind() == io::ErrorKind::NotFound {
                let said = possible_processors
                    .map(|list| end(&list))
                    .filter(|&count| count > 0);
                Ok(Topology::of_one_node(
                    said.unwrap_or_else(processors_in_use),
                ))
            } else {
                Err(TopologyError::Read {
                    path: folder,
                    kind: error.kind(),
                })
            };
        }
        let possible = read(&folder.join("possible"))?;
        let online = read(&folder.join("online"))?;
        // Some firmware declares 256 possible nodes.
        let possible = if possible.len() > NODES_MAX {
            &online
        } else {
            &possible
        };
        let mut draft = TopologyDraft::default();
        // A node that is online is possible, even where the other file does not list it.
        for number in possible
            .iter()
            .chain(online.iter().filter(|number| !possible.contains(number)))
        {
            let node = NodeId::new(*number);
            let is_online = online.contains(number);
            draft.add_node(node, is_online)?;
            let path = folder.join(format!("node{node}/cpulist"));
            let list = if is_online {
                Some(read(&path)?)
            } else {
                read_if_there(&path)?
            };
            let Some(list) = list else {
                continue;
            };
            list.into_iter()
                .try_for_each(|processor| draft.add_processor(processor.into(), node))?;
        }
        draft.finish(possible_processors.into_iter().flatten().map(usize::from))
    }
}

fn processors_in_use() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The possible processors below a root; `None` where no file tells.
fn processors(root: &Path) -> Result<Option<Vec<u16>>, TopologyError> {
    read_if_there(&root.join("devices/system/cpu/possible"))
}

fn read(path: &Path) -> Result<Vec<u16>, TopologyError> {
    let failed = |error: io::Error| TopologyError::Read {
        path: path.to_owned(),
        kind: error.kind(),
    };
    let bytes = fs::read(path).map_err(failed)?;
    parse(&bytes).ok_or_else(|| {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        TopologyError::Parse {
            path: path.to_owned(),
            text,
        }
    })
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u16>>, TopologyError> {
    match read(path) {
        Err(TopologyError::Read {
            kind: io::ErrorKind::NotFound,
            ..
        }) => Ok(None),
        read => read.map(Some),
    }
}

/// The numbers of a list, in rising order; `None` if the text is no list.
fn parse(text: &[u8]) -> Option<Vec<u16>> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let mut numbers: Vec<u16> = Vec::new();
    for range in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first = number(first)?;
        let last = number(last)?;
        if last < first || numbers.last().is_some_and(|&before| before >= first) {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Every number is below this one.
fn end(numbers: &[u16]) -> usize {
    numbers.last().map_or(0, |&last| usize::from(last) + 1)
}

/// The number that these digits are, without a sign.
fn number(digits: &str) -> Option<u16> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}
