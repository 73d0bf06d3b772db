//! The work of every bench besides measuring: it reads its arguments, chooses the rows that its
//! filter matches, says how long they take, shows how far it is, and judges its goals.
//!
//! A row has an id, such as `counter/stock/depth4/threads1`. A bench that prints tables without
//! criterion has rows, too: one for each table or run that can be asked for alone.

use std::path::{Path, PathBuf};

mod choice;
mod filter;
mod goals;
pub mod instructions;
mod options;
mod progress;

pub use choice::{Choice, Chosen};
pub use filter::{Filter, closest};
pub use goals::{Goals, Measured, Medians};
pub use options::{Bench, RowOptions, RowProgram, parse, parse_rows};
pub use progress::{Progress, left, words};

/// The folder that cargo builds in, for what a bench writes: this program lies two folders deeper.
#[must_use]
pub fn target_folder() -> PathBuf {
    let program = std::env::current_exe().ok();
    program
        .as_deref()
        .and_then(|program| program.ancestors().nth(3))
        .unwrap_or(Path::new("target"))
        .to_owned()
}
