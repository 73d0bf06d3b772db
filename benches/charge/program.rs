//! The order of the rows.

#![cfg(not(loom))]

mod burst;
mod depth;
mod drain;
mod goals;
mod group;
mod groups;
mod limit;
mod set;

use crate::common::rows::Rows;

pub(crate) fn main() {
    let mut rows = Rows::from_args();
    depth::rows(&mut rows);
    group::rows(&mut rows);
    groups::rows(&mut rows);
    limit::rows(&mut rows);
    burst::rows(&mut rows);
    drain::rows(&mut rows);
    set::rows(&mut rows);
    goals::print(&rows.finish());
}
