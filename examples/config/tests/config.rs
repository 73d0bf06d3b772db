//! The program, run as its users run it: a test changes the file, and reads what the program
//! prints.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const FIRST: &str = "max = \"16 MiB\"\n\n[groups.acme]\nmax = \"8 MiB\"\n";

/// Longer than any line takes, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

struct Program {
    child: Child,
    lines: Receiver<String>,
    file: PathBuf,
}

impl Program {
    fn start(name: &str) -> Program {
        Program::start_with(name, &[])
    }

    fn start_with(name: &str, arguments: &[&str]) -> Program {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
        fs::write(&file, FIRST).expect("the file can be written");
        let mut child = command(&file)
            .arg("600")
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        Program { child, lines, file }
    }

    /// Has the file say this, in one step.
    fn write(&self, text: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, text).expect("the file can be written");
        fs::rename(&new, &self.file).expect("the file can be replaced");
    }

    /// Waits for a line with these words.
    fn line(&self, words: &[&str]) -> String {
        let mut seen = Vec::new();
        let began = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(began.elapsed());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no line with {words:?}: {seen:#?}")
            };
            if words.iter().all(|word| line.contains(word)) {
                return line;
            }
            seen.push(line);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(file: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_config"));
    command.arg(file);
    command
}

#[test]
fn a_file_that_changes_changes_the_limits() {
    let program = Program::start("changes");
    program.line(&["/acme", " 8 MiB"]);
    program.write(&FIRST.replace("8 MiB", "25%"));
    program.line(&["has changed"]);
    program.line(&["/acme: max 8 MiB -> 25%"]);
    program.line(&["/acme", " 4 MiB"]);
    program.write(&format!("{FIRST}\n[groups.globex]\nmax = 3145728\n"));
    program.line(&["/globex", " 3 MiB"]);
    program.write(&FIRST.replace("acme", "umbrella"));
    program.line(&["/umbrella: created, max 8 MiB"]);
    program.line(&["/acme: offline"]);
    program.line(&["/umbrella", " 8 MiB"]);
}

#[test]
fn a_max_below_what_a_tenant_needs_says_so() {
    let program = Program::start("below");
    program.line(&["/acme", " 8 MiB"]);
    program.write(&FIRST.replace("8 MiB", "512 KiB"));
    let said = program.line(&["/acme holds"]);
    assert!(
        said.starts_with("/acme holds 512 KiB above max 512 KiB, and reclaim frees no more")
            && said.ends_with("; the limits stay as they were"),
        "{said}"
    );
    program.line(&["/acme", " 8 MiB"]);
}

#[test]
fn a_file_that_is_wrong_changes_nothing() {
    let program = Program::start("wrong");
    program.line(&["/acme", " 8 MiB"]);
    let file = program.file.display().to_string();
    for (text, place, fault) in [
        (FIRST.replace("8 MiB", "8 MoB"), ":4: ", "8 MoB"),
        (
            FIRST.replace("[groups.acme]\nmax", "[groups.acme]\nmaximum"),
            ":4: ",
            "/acme: unknown field `maximum`, expected one of",
        ),
        (
            FIRST.replace("acme", "\"a/b\""),
            ":3: ",
            "cannot create \"a/b\" in /: a name has no `/`",
        ),
        (
            format!("{FIRST}low = \"9 MiB\"\n"),
            ":3: ",
            "/acme: low 9 MiB is above max 8 MiB",
        ),
    ] {
        program.write(&text);
        let said = program.line(&["the limits stay as they were"]);
        assert!(
            said.starts_with(&format!("{file}{place}")) && said.contains(fault),
            "{said}"
        );
    }
    fs::remove_file(&program.file).expect("the file can be removed");
    program.line(&[
        &file,
        "name a file that can be read; the limits stay as they were",
    ]);
    program.line(&["/acme", " 8 MiB"]);
}

#[test]
fn a_file_that_is_wrong_from_the_start_ends_the_program() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("start.toml");
    fs::write(&file, "max = 1\nmini = 2\n").expect("the file can be written");
    let output = command(&file).output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("start.toml:2: /: unknown field `mini`"),
        "{said}"
    );
}

/// Nothing is refused, and the program says what would have been.
#[test]
fn limits_are_tried_out_first() {
    let program = Program::start_with("observe", &["--observe"]);
    program.line(&[
        "/acme: ",
        " charges went above its max; it holds ",
        " too much",
    ]);
}
