//! Options, and the order of the work.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;

use crate::chapter::{Chapter, Holder, Run};
use crate::outcome::{self, Findings, Said, Tests};
use crate::page;

/// Run the five patch series: tables, tests, and a verdict for each claim.
#[derive(Parser)]
#[command(name = ".ci/series", max_term_width = 80)]
struct Options {
    /// As many rounds as the chapters' tables have, and the models; without it a quick run
    #[arg(long)]
    full: bool,
    /// This series alone, by the name of its chapter; may be given again
    #[arg(long, value_name = "NAME")]
    series: Vec<String>,
    /// Say what would run and how long it takes
    #[arg(long)]
    list: bool,
    /// Print each program's tables, which otherwise only go to target/series
    #[arg(long)]
    tables: bool,
}

pub(crate) fn main() -> ExitCode {
    let options = Options::parse();
    let held = chapters(&options.series).and_then(|chapters| series(&options, &chapters));
    match held {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("series: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the project.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("benches lies in a folder of the project")
}

/// The chapters in the order of the book, those that are wanted.
fn chapters(wanted: &[String]) -> Result<Vec<Chapter>, Box<dyn Error>> {
    let summary = "docs/src/SUMMARY.md";
    let text =
        fs::read_to_string(root().join(summary)).map_err(|error| format!("{summary}: {error}"))?;
    let links = text
        .split("](series/")
        .skip(1)
        .filter_map(|rest| rest.split(".md)").next());
    let names: Vec<&str> = links
        .filter(|name| !name.contains(char::is_whitespace))
        .collect();
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!(
            "there is no series `{unknown}`; {summary} names: {}",
            names.join(", ")
        )
        .into());
    }
    let mut chapters = Vec::new();
    for name in names
        .into_iter()
        .filter(|name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name))
    {
        let path = format!("docs/src/series/{name}.md");
        let text =
            fs::read_to_string(root().join(&path)).map_err(|error| format!("{path}: {error}"))?;
        let (chapter, faults) = Chapter::read(name, &text);
        if !faults.is_empty() {
            return Err(format!("a chapter cannot be read:\n  {}", faults.join("\n  ")).into());
        }
        chapters.push(chapter);
    }
    Ok(chapters)
}

fn series(options: &Options, chapters: &[Chapter]) -> Result<bool, Box<dyn Error>> {
    page::plan(chapters, options.full);
    if options.list {
        return Ok(true);
    }
    let began = Instant::now();
    let mut findings = Findings::default();
    let tests = run_tests(chapters, &mut findings)?;
    if options.full {
        run_models(chapters, &mut findings)?;
    }
    let folder = output_folder()?;
    let total: usize = chapters.iter().map(|chapter| chapter.runs.len()).sum();
    let mut said: BTreeMap<String, Said> = BTreeMap::new();
    let mut number = 0;
    for chapter in chapters {
        for run in &chapter.runs {
            number += 1;
            page::step(&format!("{number}/{total}"), run, options.full);
            let path = folder.join(format!("{}-{number}.txt", chapter.name));
            let output = run_command(run, options.full, &path, &mut findings)?;
            if options.tables {
                print!("{output}");
            }
            outcome::collect(&output, &mut said, &mut findings);
        }
    }
    if let Some(machine) = said.values().find_map(|said| said.machine.clone()) {
        println!("\n{}", page::wrap(&format!("machine: {machine}"), 0));
    }
    for chapter in chapters {
        let outcomes = outcome::judge(chapter, &said, &tests, options.full, &mut findings);
        page::chapter(chapter, &outcomes);
    }
    outcome::strangers(chapters, &said, options.series.is_empty(), &mut findings);
    page::end(chapters, &folder, began.elapsed(), &findings);
    Ok(findings.is_empty())
}

/// The folder of the programs' outputs, so that a table can be looked up.
fn output_folder() -> Result<PathBuf, Box<dyn Error>> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let folder = target.join("series");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// Its output on stdout; what it says on stderr, progress above all, is seen at once.
fn stdout_of(words: &[String]) -> Result<(String, bool), Box<dyn Error>> {
    let (program, arguments) = words.split_first().ok_or("a command without a word")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    Ok((
        String::from_utf8_lossy(&output.stdout).into_owned(),
        output.status.success(),
    ))
}

fn run_command(
    run: &Run,
    full: bool,
    path: &Path,
    findings: &mut Findings,
) -> Result<String, Box<dyn Error>> {
    let began = Instant::now();
    let words = run.words(full);
    let (output, success) = stdout_of(&words)?;
    fs::write(path, &output).map_err(|error| format!("{}: {error}", path.display()))?;
    if !success {
        findings.fault(format!(
            "`{}` failed; its output: {}",
            words.join(" "),
            path.display()
        ));
    }
    page::took(began.elapsed());
    Ok(output)
}

fn holders(chapters: &[Chapter]) -> impl Iterator<Item = &Holder> {
    chapters.iter().flat_map(|chapter| {
        let claims = chapter.claims.iter().flat_map(|claim| &claim.holders);
        claims.chain(chapter.patches.iter().flat_map(|patch| &patch.holders))
    })
}

/// All tests that the chapters name: in one run of cargo for the crate, and one for each adapter.
fn run_tests(chapters: &[Chapter], findings: &mut Findings) -> Result<Tests, Box<dyn Error>> {
    let mut adapters: BTreeMap<String, [BTreeSet<String>; 2]> = BTreeMap::new();
    for holder in holders(chapters) {
        if let Holder::Test { file, name } = holder {
            let place = outcome::place(file)
                .ok_or_else(|| format!("`{file}`: a test lies in tests/ or in src/"))?;
            let [programs, names] = adapters.entry(place.adapter.clone()).or_default();
            let name = if place.program.is_empty() {
                name.clone()
            } else {
                place.path(name)
            };
            names.insert(name);
            programs.insert(place.program);
        }
    }
    let mut outputs = String::new();
    for (adapter, [programs, names]) in adapters {
        outputs += &run_tests_of(&adapter, programs, &names, findings)?;
    }
    Ok(Tests::read(&outputs))
}

fn run_tests_of(
    adapter: &str,
    programs: BTreeSet<String>,
    names: &BTreeSet<String>,
    findings: &mut Findings,
) -> Result<String, Box<dyn Error>> {
    let mut words: Vec<String> = ["cargo", "test", "--locked"].map(str::to_owned).into();
    if !adapter.is_empty() {
        words.extend(["--manifest-path", "crates/Cargo.toml", "-p", adapter].map(str::to_owned));
    }
    for program in programs {
        if program.is_empty() {
            words.push("--lib".to_owned())
        } else {
            words.extend(["--test".to_owned(), program])
        }
    }
    words.push("--".to_owned());
    words.extend(names.iter().cloned());
    let of = if adapter.is_empty() {
        String::new()
    } else {
        format!(" -p {adapter}")
    };
    println!("\n[tests] cargo test{of}, {} named tests", names.len());
    let began = Instant::now();
    let (output, success) = stdout_of(&words)?;
    if !success {
        findings.fault("cargo test failed: a named test, or the build; see above".to_owned());
        print!("{output}");
    }
    page::took(began.elapsed());
    Ok(output)
}

fn run_models(chapters: &[Chapter], findings: &mut Findings) -> Result<(), Box<dyn Error>> {
    let models: BTreeSet<String> = holders(chapters)
        .filter_map(|holder| match holder {
            Holder::Model(name) if name.starts_with("loom_") => Some(name.clone()),
            _ => None,
        })
        .collect();
    if models.is_empty() {
        return Ok(());
    }
    println!("\n[models] .ci/loom, {} named models", models.len());
    let began = Instant::now();
    let words: Vec<String> = [".ci/loom".to_owned()].into_iter().chain(models).collect();
    let (output, success) = stdout_of(&words)?;
    if !success {
        findings.fault("a model of loom failed; its output stands above".to_owned());
        print!("{output}");
    }
    page::took(began.elapsed());
    Ok(())
}
