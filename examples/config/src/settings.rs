//! The file: what it says, and what is wrong with it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use memcg::{Bytes, Limits};
use serde::Deserialize;
use toml::Spanned;

// ANCHOR: settings
/// The settings of the file. `Limits` and `Bytes` read themselves, with the feature `serde`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) max: Bytes,
    #[serde(default)]
    pub(crate) tenants: BTreeMap<String, Spanned<Limits>>,
}

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

impl Settings {
    pub(crate) fn parse(file: &Path, text: &str) -> Result<Settings, SettingsError> {
        let wrong = |at: usize, fault: String| {
            let line = text[..at].matches('\n').count() + 1;
            SettingsError::Wrong {
                file: file.to_owned(),
                line,
                fault,
            }
        };
        let settings: Settings = toml::from_str(text).map_err(|error| {
            wrong(
                error.span().map_or(0, |span| span.start),
                error.message().to_owned(),
            )
        })?;
        for (name, limits) in &settings.tenants {
            // Two limits of which one keeps the other from doing its work.
            let check = limits.get_ref().check();
            check.map_err(|fault| {
                wrong(
                    limits.span().start,
                    format!("{name}: {fault}; change one of the two"),
                )
            })?;
        }
        Ok(settings)
    }
}
// ANCHOR_END: settings

/// The text of the file.
pub(crate) fn read(file: &Path) -> Result<String, SettingsError> {
    std::fs::read_to_string(file).map_err(|reason| SettingsError::Unreadable {
        file: file.to_owned(),
        reason,
    })
}
