//! The two tables of the patch series, to stand beside ours.

#![cfg(not(loom))]

use super::SIZES;
use super::variant::Variant;

pub(crate) const SOURCE: &str =
    "Alexandre Ghiti, \"[PATCH v2 0/9] per-memcg-per-node kmem accounting\", 26 June 2026";

type Rows = [(Variant, [f64; 5])];

/// 176 processors, one node.
const ONE_NODE: &Rows = &[
    (Variant::GroupOnly, [5.3, 5.4, 0.1, -1.8, -0.5]),
    (Variant::PerPage, [417.3, 182.5, 68.5, 21.4, 16.1]),
    (Variant::PerNode, [337.8, 141.8, 36.1, 11.9, 6.8]),
    (Variant::Cached, [131.3, 53.7, 10.5, 0.9, 2.0]),
    (Variant::OneNode, [12.6, 12.1, 3.5, 6.6, 0.7]),
];

/// 80 processors, two nodes, where the short way of one node is not taken.
const TWO_NODES: &Rows = &[
    (Variant::GroupOnly, [1.2, -3.8, 12.4, 1.2, 0.5]),
    (Variant::PerPage, [206.1, 134.0, 44.5, 11.6, 11.5]),
    (Variant::PerNode, [153.2, 64.7, 19.4, 4.2, 5.9]),
    (Variant::Cached, [86.5, 45.5, 14.7, 1.8, 1.6]),
];

/// A program that makes maps of BPF, accounted against not.
const END_TO_END: [f64; 5] = [-5.5, -5.1, -1.8, -5.1, -4.1];

/// The series' figure of a whole program.
pub(crate) fn end_to_end(size: usize) -> Option<f64> {
    SIZES
        .iter()
        .position(|of| *of == size)
        .map(|at| END_TO_END[at])
}

/// The series' figure of a way; nothing of ours, nor of eight nodes.
pub(crate) fn percent(nodes: u16, variant: Variant, size: usize) -> Option<f64> {
    let rows = match nodes {
        1 => ONE_NODE,
        2 => TWO_NODES,
        _ => return None,
    };
    let (_, row) = rows.iter().find(|(of, _)| *of == variant)?;
    Some(row[SIZES.iter().position(|of| *of == size)?])
}
