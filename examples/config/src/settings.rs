//! The file: what it says, and what is wrong with it.

use std::io;
use std::path::{Path, PathBuf};

use memcg::GroupSpec;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("{}: {reason}; name a file that can be read", file.display())]
    Unreadable { file: PathBuf, reason: io::Error },
    #[error("{}:{line}: {fault}", file.display())]
    Wrong {
        file: PathBuf,
        line: usize,
        fault: String,
    },
}

/// The text of the file.
pub(crate) fn read(file: &Path) -> Result<String, SettingsError> {
    std::fs::read_to_string(file).map_err(|reason| SettingsError::Unreadable {
        file: file.to_owned(),
        reason,
    })
}

// ANCHOR: parse
/// The tree that the file says: `GroupSpec` reads itself, with the feature `serde`.
pub(crate) fn parse(file: &Path, text: &str) -> Result<GroupSpec, SettingsError> {
    let spec = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        SettingsError::Wrong {
            file: file.to_owned(),
            line: text[..at].matches('\n').count() + 1,
            fault: error.message().to_owned(),
        }
    })?;
    Ok(with_setting(spec, &format!("max in {}", file.display())))
}

/// A refusal by a max of the file names the file as the place to raise it.
fn with_setting(mut spec: GroupSpec, name: &str) -> GroupSpec {
    if spec.limits.max.is_some() {
        spec.limits = spec.limits.setting(name);
    }
    for below in spec.groups.values_mut() {
        *below = with_setting(std::mem::take(below), name);
    }
    spec
}
// ANCHOR_END: parse
