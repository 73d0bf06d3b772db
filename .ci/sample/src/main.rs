//! A random sample of the mutants that `cargo mutants` lists, judged by the tests.
//!
//! ```text
//! cargo run -p memcg-sample -- --seed N        300 mutants of the crate and of the light adapters, in proportion
//! ```
//!
//! One build has them all: a function that a mutant breaks gets another body, which runs where the
//! environment names the mutant. Each test runs alone first, without a mutant, and writes down
//! which mutants it reaches. Each mutant runs in those tests alone, the quickest first, until one
//! fails. What survives goes through the examples in the documentation and the models of loom.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a tool, not the crate"
)]

mod list;
mod programs;
mod tree;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;

use clap::Parser;

use list::Mutant;
use programs::{Build, Built, Caught, Program, Reach, Verdict, examples_pass, in_lanes};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

#[derive(Parser)]
struct Arguments {
    /// Another seed takes other mutants
    #[arg(long, default_value_t = 2211)]
    seed: u64,
    /// How many mutants, of both workspaces together
    #[arg(long, default_value_t = 300)]
    count: usize,
    /// How many tests run at once
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(2, usize::from))]
    lanes: usize,
    /// Least share that is caught, in percent, of those that the page does not name
    #[arg(long, default_value_t = 95)]
    percent: usize,
    /// One workspace alone: core, adapters
    #[arg(long)]
    only: Option<String>,
    /// Without models
    #[arg(long)]
    without_models: bool,
    /// Mutants whose names have the word alone, of the sample
    #[arg(long)]
    word: Option<String>,
}

/// A workspace, its packages, and what its tests are built with.
struct Part {
    name: &'static str,
    folder: &'static str,
    packages: &'static [&'static str],
    tests: &'static [&'static str],
    /// Roots of crates that compile sources with mutants, and where the switch is, seen from there.
    roots: &'static [(&'static str, &'static str)],
}

const PARTS: [Part; 2] = [
    Part {
        name: "core",
        folder: ".",
        packages: &["memcg"],
        tests: &["-p", "memcg", "-p", "memcg-tests", "--all-features"],
        roots: &[
            ("src/lib.rs", "mutant.rs"),
            ("tests/counter_alone/main.rs", "../../src/mutant.rs"),
            ("tests/properties/main.rs", "../../src/mutant.rs"),
        ],
    },
    Part {
        name: "adapters",
        folder: "crates",
        packages: &[
            "memcg-alloc",
            "memcg-tokio",
            "memcg-host",
            "memcg-kmem",
            "memcg-tower",
            "memcg-observe",
            "memcg-top",
        ],
        tests: &[
            "-p=memcg-alloc",
            "-p=memcg-tokio",
            "-p=memcg-host",
            "-p=memcg-kmem",
            "-p=memcg-tower",
            "-p=memcg-observe",
            "-p=memcg-top",
            "--all-features",
        ],
        roots: &[
            ("memcg-alloc/src/lib.rs", "../../mutant.rs"),
            ("memcg-tokio/src/lib.rs", "../../mutant.rs"),
            ("memcg-host/src/lib.rs", "../../mutant.rs"),
            ("memcg-kmem/src/lib.rs", "../../mutant.rs"),
            ("memcg-tower/src/lib.rs", "../../mutant.rs"),
            ("memcg-observe/src/lib.rs", "../../mutant.rs"),
            ("memcg-top/src/main.rs", "../../mutant.rs"),
        ],
    },
];

/// As in `.ci/loom`.
const PREEMPTIONS: [(&str, &str); 1] = [("LOOM_MAX_PREEMPTIONS", "2")];

/// Programs that say nothing about behaviour: one is long, one reads sources.
const SKIPPED: &[&str] = &["stress", "tidy"];

/// The page that names mutants which nothing can catch, or nothing shall.
const PAGE: &str = ".ci/sample/README.md";

/// Above it the page names mutants that change nothing, below it those that do.
const OTHERS: &str = "\n## Not caught\n";

pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!(
            "{command:?}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    Ok(output.stdout)
}

/// The root of the repository, and a folder for what is built.
struct Places {
    root: PathBuf,
    scratch: PathBuf,
}

impl Places {
    fn new() -> Result<Places, Failure> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .canonicalize()?;
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        fs::create_dir_all(target.join("sample"))?;
        let scratch = target.join("sample").canonicalize()?;
        Ok(Places { root, scratch })
    }

    /// The copy of the tree that gets the mutants of a part.
    fn tree(&self, part: &Part) -> PathBuf {
        self.scratch.join(format!("{}.tree", part.name))
    }

    /// Copies what git tracks or would track.
    fn copy_tree(&self, part: &Part) -> Result<(), Failure> {
        let tree = self.tree(part);
        let _ = fs::remove_dir_all(&tree);
        fs::create_dir_all(&tree)?;
        let mut listed = Command::new("git");
        listed
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(&self.root);
        for path in String::from_utf8(output_of(&mut listed)?)?.split_terminator('\0') {
            let from = self.root.join(path);
            let to = tree.join(path);
            if from.exists() {
                fs::create_dir_all(to.parent().unwrap_or(&tree))?;
                fs::copy(from, to)?;
            }
        }
        Ok(())
    }

    /// A script between cargo and a compiler: the switch needs two features that are not stable,
    /// and bodies that do not run are no warning. Around the workspace's own crates alone, so that
    /// dependencies keep their builds. Bash, for other shells drop variables with a dash in their
    /// names, as cargo has them.
    fn wrapper(&self, name: &str, script: &str) -> Result<String, Failure> {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.scratch.join(name);
        fs::write(&path, format!("#!/bin/bash\n{script}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path.to_string_lossy().into_owned())
    }

    fn build(
        &self,
        part: &Part,
        target: &str,
        before: &[&str],
        more: &[(&str, &str)],
    ) -> Result<Build, Failure> {
        let compiler = self.wrapper(
            "compiler",
            "RUSTC_BOOTSTRAP=1 exec \"$@\" --cap-lints allow",
        )?;
        let documenter = self.wrapper(
            "documenter",
            "RUSTC_BOOTSTRAP=1 exec rustdoc \"$@\" --cap-lints allow",
        )?;
        let mut environment = vec![
            ("RUSTC_WORKSPACE_WRAPPER".to_owned(), compiler),
            ("RUSTDOC".to_owned(), documenter),
            ("CARGO_TERM_COLOR".to_owned(), "never".to_owned()),
        ];
        environment.extend(
            more.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let arguments = ["--locked"]
            .iter()
            .chain(before)
            .map(|word| (*word).to_owned())
            .collect();
        Ok(Build {
            folder: self.tree(part).join(part.folder),
            target: self.scratch.join(target),
            arguments,
            environment,
        })
    }
}

struct Row {
    mutant: Mutant,
    number: usize,
    verdict: &'static str,
    by: String,
}

impl Row {
    fn is_open(&self) -> bool {
        matches!(self.verdict, "survived" | "unreached" | "no verdict")
    }
}

/// A tree that compiles with its mutants, and how many of the sample were left out and why.
struct Written {
    mutants: Vec<(usize, Mutant)>,
    programs: Vec<Program>,
    /// With the reason of each.
    left_out: BTreeMap<usize, String>,
}

/// Writes mutants until all that are left compile.
fn written(
    places: &Places,
    part: &Part,
    ranked: &[Mutant],
    build: &Build,
) -> Result<Written, Failure> {
    let mut left_out: BTreeMap<usize, String> = BTreeMap::new();
    loop {
        places.copy_tree(part)?;
        let chosen: Vec<(usize, Mutant)> = ranked
            .iter()
            .enumerate()
            .map(|(at, mutant)| (at + 1, mutant.clone()))
            .filter(|(number, _)| !left_out.contains_key(number))
            .collect();
        let folder = places.tree(part).join(part.folder);
        let (branches, without) = tree::write_all(&folder, &chosen)?;
        left_out.extend(
            without
                .iter()
                .map(|number| (*number, tree::NO_BODY.to_owned())),
        );
        let switch = if part.folder == "." {
            "src/mutant.rs"
        } else {
            "mutant.rs"
        };
        fs::write(folder.join(switch), tree::SWITCH)?;
        for (root, path) in part.roots {
            tree::add_switch(&folder.join(root), path)?;
        }
        match build.tests(&branches, SKIPPED)? {
            Built::Errors(errors) => {
                println!("{}: {} mutants do not compile", part.name, errors.len());
                left_out.extend(errors);
            }
            Built::Programs(programs) => {
                let mutants = chosen
                    .into_iter()
                    .filter(|(number, _)| !left_out.contains_key(number))
                    .collect();
                let text = |(number, why): (&usize, &String)| {
                    format!("{}\t{why}\n", ranked[*number - 1].name)
                };
                fs::write(
                    places.scratch.join(format!("{}.left_out", part.name)),
                    left_out.iter().map(text).collect::<String>(),
                )?;
                return Ok(Written {
                    mutants,
                    programs,
                    left_out,
                });
            }
        }
    }
}

/// Judges a sample of one workspace.
fn judge(
    places: &Places,
    part: &Part,
    mut all: Vec<Mutant>,
    count: usize,
    arguments: &Arguments,
) -> Result<Vec<Row>, Failure> {
    list::shuffle(&mut all, arguments.seed);
    // A third more or so do not compile in this form: a type without a default value, an iterator
    // of another type.
    all.truncate(count * 2);
    let build = places.build(part, part.name, part.tests, &[])?;
    let Written {
        mutants: mut chosen,
        programs,
        left_out,
    } = written(places, part, &all, &build)?;
    chosen.truncate(count);
    let last = chosen.last().map_or(0, |(number, _)| *number);
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for why in left_out.range(..last).map(|(_, why)| why) {
        *reasons
            .entry(why.split(':').next().unwrap_or_default())
            .or_default() += 1;
    }
    println!(
        "{}: {} mutants, of the first {last}; left out by reason: {reasons:?}",
        part.name,
        chosen.len()
    );
    if let Some(word) = &arguments.word {
        chosen.retain(|(_, mutant)| mutant.name.contains(word));
    }
    let reach = Reach::find(
        programs,
        arguments.lanes,
        &places.scratch.join(format!("{}.reached", part.name)),
        &[],
        &[],
    )?;
    println!(
        "{}: {} tests run, {} of them fail alone: {:?}",
        part.name,
        reach.tests.len(),
        reach.failed.len(),
        reach.failed
    );
    save_reach(places, part, &reach)?;
    let rows = Mutex::new(Vec::new());
    in_lanes(arguments.lanes, chosen.len(), |at| {
        let (number, mutant) = &chosen[at];
        let verdict = reach.judge(*number, &[]);
        let (verdict, by) = reach.describe(&verdict);
        println!("{number:4} {verdict:10} {}  [{by}]", mutant.name);
        rows.lock().expect("no job panics").push(Row {
            mutant: mutant.clone(),
            number: *number,
            verdict,
            by,
        });
    });
    let mut rows = rows.into_inner().expect("no job panics");
    rows.sort_by_key(|row| row.number);
    let mut examples = places.build(part, part.name, &[], &[])?;
    examples.arguments.push("--all-features".to_owned());
    // Examples that fail without a mutant judge nothing; a program has none.
    let mut passes: BTreeMap<String, bool> = BTreeMap::new();
    for row in rows.iter_mut().filter(|row| row.is_open()) {
        let package = &row.mutant.package;
        let alone = *passes
            .entry(package.clone())
            .or_insert_with(|| examples_pass(&examples, package, None));
        if alone && !examples_pass(&examples, package, Some(row.number)) {
            row.verdict = "caught";
            row.by = "an example in the documentation".to_owned();
        }
    }
    if part.folder == "." && !arguments.without_models {
        judge_by_models(places, part, &mut rows, arguments.lanes)?;
    }
    Ok(rows)
}

/// Mutants that no test catches go through the models that reach them.
fn judge_by_models(
    places: &Places,
    part: &Part,
    rows: &mut [Row],
    lanes: usize,
) -> Result<(), Failure> {
    let words = [
        "-p",
        "memcg",
        "-p",
        "memcg-tests",
        "--profile",
        "loom",
        "--lib",
        "--test",
        "counter_alone",
    ];
    let flags = format!(
        "{} --cfg loom",
        std::env::var("RUSTFLAGS").unwrap_or_default()
    );
    let build = places.build(part, "loom", &words, &[("RUSTFLAGS", &flags)])?;
    let Built::Programs(programs) = build.tests(&[], SKIPPED)? else {
        return Err("no model compiles".into());
    };
    let folder = places.scratch.join("models");
    let reach = Reach::find(programs, lanes, &folder, &["loom_"], &PREEMPTIONS)?;
    println!(
        "{}: {} models run, {} of them fail: {:?}",
        part.name,
        reach.tests.len(),
        reach.failed.len(),
        reach.failed
    );
    let open: Vec<usize> = (0..rows.len()).filter(|at| rows[*at].is_open()).collect();
    let rows = Mutex::new(rows);
    in_lanes(lanes, open.len(), |at| {
        let number = rows.lock().expect("no job panics")[open[at]].number;
        // A model that runs into a limit has shown nothing.
        if let caught @ Verdict::Caught(Caught::Failed(_)) = reach.judge(number, &PREEMPTIONS) {
            let row = &mut rows.lock().expect("no job panics")[open[at]];
            (row.verdict, row.by) = reach.describe(&caught);
            println!(
                "{number:4} {:10} {}  [{}]",
                row.verdict, row.mutant.name, row.by
            );
        }
    });
    Ok(())
}

/// Which tests reach what, and how long each takes, for those who look for tests that hold nothing.
fn save_reach(places: &Places, part: &Part, reach: &Reach) -> Result<(), Failure> {
    let mut by_test: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (mutant, tests) in &reach.of {
        for test in tests {
            by_test.entry(*test).or_default().push(mutant.to_string());
        }
    }
    let row = |(number, test): (usize, &programs::Test)| {
        let reached = by_test
            .get(&number)
            .map(|of| of.join(" "))
            .unwrap_or_default();
        format!(
            "{}\t{}\t{reached}\n",
            reach.name(number),
            test.took.as_millis()
        )
    };
    let text: String = reach.tests.iter().enumerate().map(row).collect();
    Ok(fs::write(
        places.scratch.join(format!("{}.reach", part.name)),
        text,
    )?)
}

/// The mutants that the page names: those that change nothing, and the others.
struct Named {
    equal: Vec<String>,
    others: Vec<String>,
}

impl Named {
    fn read(places: &Places) -> Named {
        let page = fs::read_to_string(places.root.join(PAGE)).unwrap_or_default();
        let (equal, others) = page.split_once(OTHERS).unwrap_or((&page, ""));
        let names = |text: &str| {
            let rows = text
                .lines()
                .filter_map(|line| Some(line.strip_prefix("- `")?.split_once('`')?.0.to_owned()));
            rows.collect()
        };
        Named {
            equal: names(equal),
            others: names(others),
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let places = Places::new()?;
    let all: Vec<Vec<Mutant>> = PARTS
        .iter()
        .map(|part| Mutant::list(&places.root, part.folder, part.packages))
        .collect::<Result<_, Failure>>()?;
    let sum: usize = all.iter().map(Vec::len).sum();
    let mut rows = Vec::new();
    for (part, of) in PARTS.iter().zip(all) {
        let count = (arguments.count * of.len() + sum / 2) / sum;
        println!("{}: {count} of {} mutants", part.name, of.len());
        if arguments
            .only
            .as_ref()
            .is_some_and(|only| only != part.name)
        {
            continue;
        }
        let of = judge(&places, part, of, count, arguments)?;
        let text = |row: &Row| {
            format!(
                "{}\t{}\t{}\t{}\n",
                row.number, row.verdict, row.by, row.mutant.name
            )
        };
        fs::write(
            places.scratch.join(format!("{}.verdicts", part.name)),
            of.iter().map(text).collect::<String>(),
        )?;
        rows.extend(of);
    }
    let named = Named::read(&places);
    let mut caught = 0;
    let mut equal = 0;
    let mut others = 0;
    println!("\nnot caught, and not in {PAGE}:");
    for row in &rows {
        if !row.is_open() {
            caught += 1;
        } else if named.equal.contains(&row.mutant.name) {
            equal += 1;
        } else if named.others.contains(&row.mutant.name) {
            others += 1;
        } else {
            println!(
                "{} {} [{}; {}]",
                row.number, row.mutant.name, row.verdict, row.by
            );
        }
    }
    let judged = rows.len() - equal;
    println!(
        "seed {}: {} mutants, {equal} of them change nothing; of the other {judged}, {caught} are caught, {} are not, of \
         which {PAGE} names {others}",
        arguments.seed,
        rows.len(),
        judged - caught
    );
    Ok(caught * 100 >= judged * arguments.percent)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sample: {error}");
            ExitCode::FAILURE
        }
    }
}
