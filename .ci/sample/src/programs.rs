//! The test programs of a tree with mutants: how they are built, which tests reach which mutant,
//! and what they say.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::tree::Branch;
use crate::{Failure, output_of};

/// A mutant that takes more is caught: its tests took less than a tenth. Of processor time, so that
/// other work of the machine catches nothing; and of the clock, for one that only waits.
const SECONDS_MIN: u64 = 15;
const CLOCK_SECONDS_MIN: u64 = 60;
const TIMES: f64 = 10.0;
/// A mutant that allocates without an end must not take the machine.
const ADDRESS_SPACE_KIB: u64 = 16 << 20;
/// A test that takes longer says nothing.
const ALONE_SECONDS: u64 = 240;

const SIGKILL: i32 = 9;
const SIGXCPU: i32 = 24;

/// A call of cargo: its folder, arguments and environment.
pub(crate) struct Build {
    pub(crate) folder: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    path: PathBuf,
    folder: PathBuf,
}

/// A test: the program's place in the list, and its own name; none where the program is one test.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub(crate) program: usize,
    pub(crate) name: Option<String>,
    pub(crate) took: Duration,
}

/// A test's run alone: its time, or nothing where it failed; and the mutants that it reached.
struct Alone {
    number: usize,
    took: Option<Duration>,
    mutants: BTreeSet<usize>,
}

pub(crate) enum Built {
    Programs(Vec<Program>),
    /// Mutants with the code and the text of the error.
    Errors(BTreeMap<usize, String>),
}

impl Build {
    pub(crate) fn cargo(&self, words: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command
            .args(words)
            .args(&self.arguments)
            .current_dir(&self.folder);
        command
            .env("CARGO_TARGET_DIR", &self.target)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Builds the tests. `skipped` are the programs that say nothing about behaviour.
    pub(crate) fn tests(&self, branches: &[Branch], skipped: &[&str]) -> Result<Built, Failure> {
        let mut command = self.cargo(&["test", "--no-run", "--message-format=json"]);
        let output = command.stderr(Stdio::piped()).output()?;
        let mut programs = Vec::new();
        let mut errors = BTreeMap::new();
        let mut others = Vec::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            match message["reason"].as_str() {
                Some("compiler-message") if message["message"]["level"] == "error" => {
                    let found = mutants_of(&message["message"], branches);
                    let code = message["message"]["code"]["code"]
                        .as_str()
                        .unwrap_or("error");
                    let said = message["message"]["message"].as_str().unwrap_or_default();
                    if found.is_empty() && !said.starts_with("aborting due to") {
                        others.push(
                            message["message"]["rendered"]
                                .as_str()
                                .unwrap_or_default()
                                .to_owned(),
                        );
                    }
                    errors.extend(
                        found
                            .into_iter()
                            .map(|number| (number, format!("{code}: {said}"))),
                    );
                }
                Some("compiler-artifact") if message["profile"]["test"] == true => {
                    let (Some(path), Some(name)) = (
                        message["executable"].as_str(),
                        message["target"]["name"].as_str(),
                    ) else {
                        continue;
                    };
                    let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
                    if !skipped.contains(&name) {
                        programs.push(Program {
                            name: name.to_owned(),
                            path: PathBuf::from(path),
                            folder: manifest.parent().unwrap_or(Path::new(".")).to_owned(),
                        });
                    }
                }
                _ => {}
            }
        }
        if output.status.success() {
            return Ok(Built::Programs(programs));
        }
        if errors.is_empty() {
            return Err(format!(
                "{}\n{}",
                others.join("\n"),
                String::from_utf8_lossy(&output.stderr)
            )
            .into());
        }
        Ok(Built::Errors(errors))
    }
}

/// The mutants in whose lines an error has a place; in places that say more about it, where it has
/// none.
fn mutants_of(message: &Value, branches: &[Branch]) -> BTreeSet<usize> {
    let mut spans: Vec<&Value> = message["spans"].as_array().into_iter().flatten().collect();
    for child in message["children"].as_array().into_iter().flatten() {
        spans.extend(child["spans"].as_array().into_iter().flatten());
    }
    let of = |span: &&Value| {
        let file = span["file_name"].as_str().unwrap_or_default();
        let line = usize::try_from(span["line_start"].as_u64().unwrap_or(0)).unwrap_or(0);
        let branch = branches
            .iter()
            .filter(|branch| file == branch.file || file.ends_with(&format!("/{}", branch.file)));
        branch
            .filter(|branch| (branch.first..=branch.last).contains(&line))
            .map(|branch| branch.number)
            .collect::<Vec<_>>()
    };
    let primary = spans
        .iter()
        .filter(|span| span["is_primary"] == true)
        .flat_map(of)
        .collect::<BTreeSet<_>>();
    if primary.is_empty() {
        spans.iter().flat_map(of).collect()
    } else {
        primary
    }
}

impl Program {
    /// Its tests run in a process that its limits end: of processor time, of the clock, of memory.
    fn command(&self, names: &[&str], seconds: u64, clock_seconds: u64) -> Command {
        let mut command = Command::new("bash");
        let limits = format!(
            "ulimit -S -t {seconds}; ulimit -S -v {ADDRESS_SPACE_KIB}; ulimit -S -c 0; exec \"$@\""
        );
        command
            .args(["-c", &limits, "test", "timeout", "--kill-after=5"])
            .arg(clock_seconds.to_string());
        command
            .arg(&self.path)
            .args(names)
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        if !names.is_empty() {
            command.arg("--exact");
        }
        command
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("RUST_BACKTRACE", "0")
            .env_remove("MEMCG_TEST_ALONE");
        command
    }

    fn tests(&self) -> Result<Vec<Option<String>>, Failure> {
        let output = Command::new(&self.path)
            .arg("--list")
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let ignored = Command::new(&self.path)
            .args(["--list", "--ignored"])
            .current_dir(&self.folder)
            .output()?;
        let ignored = String::from_utf8_lossy(&ignored.stdout).into_owned();
        if !text.lines().any(|line| {
            line.ends_with(" tests, 0 benchmarks") || line.ends_with(" test, 0 benchmarks")
        }) {
            return Ok(vec![None]);
        }
        let is_run =
            |line: &&str| line.ends_with(": test") && !ignored.lines().any(|other| other == *line);
        Ok(text
            .lines()
            .filter(is_run)
            .filter_map(|line| Some(Some(line.strip_suffix(": test")?.to_owned())))
            .collect())
    }
}

/// Runs `job` for each number below `count`, on `lanes` threads.
pub(crate) fn in_lanes(lanes: usize, count: usize, job: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= count {
                        return;
                    }
                    job(number);
                }
            });
        }
    });
}

/// The tests, each with its time without a mutant, and the mutants that they reach.
pub(crate) struct Reach {
    pub(crate) programs: Vec<Program>,
    pub(crate) tests: Vec<Test>,
    /// Tests by mutant, the quickest first.
    pub(crate) of: HashMap<usize, Vec<usize>>,
    /// Tests that fail alone without a mutant: they judge nothing.
    pub(crate) failed: Vec<String>,
}

impl Reach {
    /// Runs each test whose name has one of the words, or each, alone and without a mutant. `kept`
    /// holds what an earlier call of this build has found.
    pub(crate) fn find(
        programs: Vec<Program>,
        lanes: usize,
        folder: &Path,
        words: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Reach, Failure> {
        let mut tests = Vec::new();
        for (program, of) in programs.iter().enumerate() {
            let is_wanted = |name: &Option<String>| {
                words.is_empty()
                    || name
                        .as_ref()
                        .is_some_and(|name| words.iter().any(|word| name.contains(word)))
            };
            let names = of.tests()?.into_iter().filter(is_wanted);
            tests.extend(names.map(|name| Test {
                program,
                name,
                took: Duration::ZERO,
            }));
        }
        fs::create_dir_all(folder)?;
        let found: Mutex<Vec<Alone>> = Mutex::default();
        in_lanes(lanes, tests.len(), |number| {
            let test = &tests[number];
            let reached = folder.join(number.to_string());
            let _ = fs::remove_file(&reached);
            let names: Vec<&str> = test.name.iter().map(String::as_str).collect();
            let mut command =
                programs[test.program].command(&names, ALONE_SECONDS, 2 * ALONE_SECONDS);
            command
                .env("MEMCG_MUTANT", "record")
                .env("MEMCG_MUTANT_REACHED", &reached);
            command.envs(environment.iter().copied());
            let begun = Instant::now();
            let passed = command.output().is_ok_and(|output| output.status.success());
            let took = passed.then(|| begun.elapsed());
            let mutants = fs::read_to_string(&reached).unwrap_or_default();
            let mutants: BTreeSet<usize> = mutants
                .lines()
                .filter_map(|line| line.parse().ok())
                .collect();
            found.lock().expect("no job panics").push(Alone {
                number,
                took,
                mutants,
            });
        });
        let mut reach = Reach {
            programs,
            tests,
            of: HashMap::new(),
            failed: Vec::new(),
        };
        for Alone {
            number,
            took,
            mutants,
        } in found.into_inner().expect("no job panics")
        {
            let Some(took) = took else {
                reach.failed.push(reach.name(number));
                continue;
            };
            reach.tests[number].took = took;
            for mutant in mutants {
                reach.of.entry(mutant).or_default().push(number);
            }
        }
        for tests in reach.of.values_mut() {
            tests.sort_by_key(|test| reach.tests[*test].took);
        }
        Ok(reach)
    }

    pub(crate) fn name(&self, test: usize) -> String {
        let test = &self.tests[test];
        format!(
            "{} {}",
            self.programs[test.program].name,
            test.name.as_deref().unwrap_or("(all of it)")
        )
    }

    /// Runs some tests of one program with a mutant. The first that fails, or how the process
    /// ended.
    fn run(&self, mutant: usize, tests: &[usize], environment: &[(&str, &str)]) -> Option<Caught> {
        let program = &self.programs[self.tests[tests[0]].program];
        let names: Vec<&str> = tests
            .iter()
            .filter_map(|test| self.tests[*test].name.as_deref())
            .collect();
        let took = tests
            .iter()
            .map(|test| self.tests[*test].took.as_secs_f64())
            .sum::<f64>()
            * TIMES;
        let seconds = |least: u64| (least as f64 + took).ceil() as u64;
        let mut command = program.command(&names, seconds(SECONDS_MIN), seconds(CLOCK_SECONDS_MIN));
        command
            .env("MEMCG_MUTANT", mutant.to_string())
            .envs(environment.iter().copied());
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => return Some(Caught::NoVerdict(error.to_string())),
        };
        if output.status.success() {
            return None;
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let failed = said
            .lines()
            .find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        if let Some(failed) = failed {
            let test = tests
                .iter()
                .find(|test| self.tests[**test].name.as_deref() == Some(failed));
            return Some(test.map_or(Caught::NoVerdict(failed.to_owned()), |test| {
                Caught::Failed(*test)
            }));
        }
        // `timeout` says 124, and ends by the signal that its child ended by: of the limit of
        // processor time, or its own.
        Some(match (output.status.code(), output.status.signal()) {
            (Some(124), _) | (_, Some(SIGXCPU | SIGKILL)) => Caught::Timeout(tests[0]),
            _ => Caught::Aborted(tests[0]),
        })
    }

    /// The tests that reach a mutant, the quickest first and in growing heaps, until one catches
    /// it. A test that fails must fail again, alone: what a busy machine makes fail is no catch.
    pub(crate) fn judge(&self, mutant: usize, environment: &[(&str, &str)]) -> Verdict {
        let Some(tests) = self.of.get(&mutant) else {
            return Verdict::Unreached;
        };
        let mut rest = &tests[..];
        let mut bound = 0.25;
        while !rest.is_empty() {
            let mut sum = 0.0;
            let heap = rest.iter().take_while(|test| {
                let is_first = sum == 0.0;
                sum += self.tests[**test].took.as_secs_f64();
                is_first || sum < bound
            });
            let count = heap.count();
            let mut by_program: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for test in &rest[..count] {
                by_program
                    .entry(self.tests[*test].program)
                    .or_default()
                    .push(*test);
            }
            for tests in by_program.values() {
                match self.run(mutant, tests, environment) {
                    None => {}
                    Some(Caught::Failed(test)) => match self.run(mutant, &[test], environment) {
                        None => {}
                        Some(caught) => return Verdict::Caught(caught),
                    },
                    Some(caught) => return Verdict::Caught(caught),
                }
            }
            rest = &rest[count..];
            bound *= 4.0;
        }
        Verdict::Survived(tests.len())
    }

    pub(crate) fn describe(&self, verdict: &Verdict) -> (&'static str, String) {
        match verdict {
            Verdict::Caught(Caught::Failed(test)) => ("caught", self.name(*test)),
            Verdict::Caught(Caught::Aborted(test)) => ("aborted", self.name(*test)),
            Verdict::Caught(Caught::Timeout(test)) => ("timeout", self.name(*test)),
            Verdict::Caught(Caught::NoVerdict(what)) => ("no verdict", what.clone()),
            Verdict::Survived(tests) => ("survived", format!("{tests} tests reach it")),
            Verdict::Unreached => ("unreached", "no test reaches it".to_owned()),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Caught {
    Failed(usize),
    Aborted(usize),
    Timeout(usize),
    NoVerdict(String),
}

#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Caught(Caught),
    Survived(usize),
    Unreached,
}

/// The examples in the documentation of a package, with a mutant or without.
pub(crate) fn examples_pass(build: &Build, package: &str, mutant: Option<usize>) -> bool {
    let mut command = build.cargo(&["test", "--doc", "--quiet", "-p", package]);
    command.env("MEMCG_MUTANT", mutant.unwrap_or(0).to_string());
    output_of(&mut command).is_ok()
}
