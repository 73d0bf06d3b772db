//! Builds the book into `target/book`, and fails on a link that leads nowhere.
//!
//! ```text
//! cargo run --manifest-path docs/build/Cargo.toml -- [--repository URL]
//! ```
//!
//! A link that leaves the book leads to the file of this checkout, or below URL, as
//! `https://HOST/NAME/blob/main`.

use std::path::Path;
use std::process::ExitCode;

use memcg_book_build::{Outcome, build};

/// The URL that the arguments name.
fn repository(arguments: &[String]) -> Result<Option<&str>, String> {
    match arguments {
        [] => Ok(None),
        [name, url] if name == "--repository" => Ok(Some(url.trim_end_matches('/'))),
        other => Err(format!(
            "unknown arguments {other:?}; there is one: --repository URL"
        )),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = repository(&arguments).and_then(|url| {
        build(&root, "docs", url).map_err(|error| format!("the book is not built: {error:#}"))
    });
    match built {
        Ok(Outcome { faults, summary }) if faults.is_empty() => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Ok(Outcome { faults, .. }) => {
            eprintln!("{}\n{} faults in the book", faults.join("\n"), faults.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
