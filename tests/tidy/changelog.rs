//! `CHANGELOG.md`, in the form of Keep a Changelog.

use crate::reader::read;
use crate::rules::Rule;

const SECTIONS: [&str; 6] = [
    "Added",
    "Changed",
    "Deprecated",
    "Removed",
    "Fixed",
    "Security",
];

/// The oldest version has nothing before it that could be changed, fixed or broken.
pub(crate) fn faults(changelog: &str, version: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let versions: Vec<&str> = changelog
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    if versions
        .first()
        .is_none_or(|first| first.split(" - ").next() != Some(version))
    {
        faults.push(format!(
            "the first version is not `## {version} - DATE` or `## {version} - unreleased`"
        ));
    }
    let mut at = 0;
    for (number, line) in (1..).zip(changelog.lines()) {
        at += usize::from(line.starts_with("## "));
        let is_first = at == versions.len();
        if is_first && line.starts_with("- Breaking: ") {
            faults.push(format!(
                "line {number}: `Breaking` in the first version, which can break no build"
            ));
        }
        let Some(section) = line.strip_prefix("### ") else {
            continue;
        };
        if !SECTIONS.contains(&section) {
            faults.push(format!(
                "line {number}: no section `{section}`, they are {}",
                SECTIONS.join(", ")
            ));
        } else if is_first && section != SECTIONS[0] {
            faults.push(format!("line {number}: `{section}` in the first version"));
        }
    }
    faults
}

#[test]
fn it_has_its_form() {
    Rule::Changelog.hold(&faults(&read("CHANGELOG.md"), env!("CARGO_PKG_VERSION")));
}

#[test]
fn another_form_is_found() {
    let good = "# Changelog\n\n## 0.2.0 - unreleased\n\n### Fixed\n\n- Breaking: a\n\n## 0.1.0 - 2030-01-02\n\n### Added\n\n- b\n";
    assert_eq!(faults(good, "0.2.0"), [""; 0]);
    let of = |from: &str, to: &str| faults(&good.replacen(from, to, 1), "0.2.0");
    assert_eq!(
        of("## 0.2.0", "## 0.3.0"),
        ["the first version is not `## 0.2.0 - DATE` or `## 0.2.0 - unreleased`"]
    );
    assert_eq!(
        of("Added", "Fixed"),
        ["line 11: `Fixed` in the first version"]
    );
    assert_eq!(
        of("- b", "- Breaking: b"),
        ["line 13: `Breaking` in the first version, which can break no build"]
    );
    assert!(of("### Fixed", "### Notes")[0].starts_with("line 5: no section `Notes`"));
}
