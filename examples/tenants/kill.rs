//! The purpose of a limit: the same flood without one and with one, where memory ends.
//!
//! Each form of the service is this program, started once more, alone in a memory control group of the operating
//! system. The form without a limit keeps every entry, until the system kills it: 137 is what a shell shows for that.
//! The form under memcg evicts at its budget, and never gets there.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use memcg::Bytes;
use memcg_report::table::{Column, Table};
use memcg_report::terminal;
use serde::Serialize;
use thiserror::Error;

use crate::args::{Args, Format};
use crate::control_group::{self, ControlGroup, NotMade};
use crate::entry::footprint;
use crate::form::{Form, GO, Progress};
use crate::hierarchy::Hierarchy;
use crate::policy::Policy;
use crate::scene::Scene;
use crate::service::SCANNED;
use crate::setup::SetupError;
use crate::{Failure, memory, print};

/// The bytes that the program itself needs, beside the entries and the heap's losses between them.
const PROGRAM: u64 = 32 << 20;

/// The size of the flood, as a multiple of the control group's limit.
const OFFERED: u64 = 4;

/// Of nine requests, one is not of the flood.
const CALM_PART: u64 = 8;

/// A form that says nothing for so long never ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// As a shell shows it: 128 and the number of the signal, SIGKILL.
const KILLED: i32 = 137;

/// Why a form was not run to its end.
#[derive(Debug, Error)]
pub(crate) enum KillError {
    #[error("cannot start this program once more: {0}")]
    Start(io::Error),
    #[error("cannot read from standard input: {0}")]
    Told(io::Error),
    #[error("a form of --kill is started by --kill, not by itself")]
    NotTold,
    #[error("{form} said nothing for {} s", PATIENCE.as_secs())]
    Stuck { form: Policy },
}

/// Why there is no outcome.
enum NoOutcome {
    Skipped(NotMade),
    Failed(KillError),
}

/// Both forms; sizes are bytes.
#[derive(Debug, Serialize)]
struct Report {
    budget_bytes: u64,
    /// The limit of each control group.
    control_group_bytes: u64,
    noisy: u16,
    /// Requests that both are sent.
    requests: u64,
    /// Why there are no forms: none could be run.
    skipped: Option<String>,
    forms: Vec<Outcome>,
    /// One line for each form that did not end as it must.
    faults: Vec<String>,
}

/// The end of a form.
#[derive(Debug, Serialize)]
struct Outcome {
    form: Policy,
    exit_status: Option<i32>,
    /// The control group where it ran, gone by now.
    control_group: String,
    /// Processes that the system killed there, if it says.
    killed: Option<u64>,
    peak_bytes: Option<u64>,
    /// The last figure that it reported. Where it was killed, it served a few more.
    requests: u64,
    live_bytes: u64,
    seconds: f64,
}

/// Requests that both forms are sent.
pub(crate) fn requests(args: &Args) -> u64 {
    let offered = limit(args).saturating_mul(OFFERED) / footprint(SCANNED);
    args.requests.unwrap_or(offered.saturating_add(offered / CALM_PART))
}

/// The limit of a control group: so far above the budget that the heap's losses between entries have room in any case.
fn limit(args: &Args) -> u64 {
    let budget = args.budget().as_u64();
    budget.saturating_add(budget / 2).saturating_add(PROGRAM)
}

/// Runs both forms, prints what became of them, returns what is not as it must be.
pub(crate) fn run(args: &Args) -> Result<Vec<String>, Failure> {
    let limit = limit(args);
    if let Some(available) = memory::available().filter(|&left| left < limit).map(Bytes) {
        let (who, budget) = ("the form without a limit", Bytes(limit));
        return Err(SetupError::Memory { who, budget, available }.into());
    }
    // A fault of the traces is said once, and not by each form.
    drop(Scene::new(args)?);
    let (forms, skipped) = match outcomes(limit) {
        Ok(forms) => (forms, None),
        Err(NoOutcome::Skipped(reason)) => (Vec::new(), Some(reason.to_string())),
        Err(NoOutcome::Failed(error)) => return Err(error.into()),
    };
    let report = Report {
        budget_bytes: args.budget().as_u64(),
        control_group_bytes: limit,
        noisy: args.noisy(),
        requests: requests(args),
        skipped,
        faults: forms.iter().filter_map(Outcome::fault).collect(),
        forms,
    };
    print(&match args.format {
        Format::Text => report.text(args.columns()),
        Format::Csv => report.csv(),
        Format::Json => serde_json::to_string_pretty(&report).expect("a tree of numbers and texts has a JSON form"),
    })?;
    Ok(report.faults)
}

fn outcomes(limit: u64) -> Result<Vec<Outcome>, NoOutcome> {
    let hierarchy = control_group::hierarchy()?;
    Form::ALL.into_iter().map(|form| Outcome::of(form, &hierarchy, limit)).collect()
}

impl Outcome {
    /// Runs a form to its end, whatever that is.
    fn of(form: Form, hierarchy: &Hierarchy, limit: u64) -> Result<Self, NoOutcome> {
        let policy = form.policy();
        let group = ControlGroup::new(hierarchy, &format!("tenants-{policy}-{}", std::process::id()), limit)?;
        // Behind the group: goes before it.
        let mut process = Process::start(form)?;
        group.put(process.child.id())?;
        let start = Instant::now();
        process.go()?;
        let (last, status) = process.follow(policy)?;
        Ok(Self {
            form: policy,
            exit_status: shown(status),
            control_group: group.folder().display().to_string(),
            killed: group.kills(),
            peak_bytes: group.peak(),
            requests: last.requests,
            live_bytes: last.live,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    fn fault(&self) -> Option<String> {
        let (status, expected) = (self.exit_status, if self.form == Policy::Unlimited { KILLED } else { 0 });
        if status != Some(expected) {
            let status = status.map_or_else(|| "none".to_string(), |status| status.to_string());
            let why = if status == "0" { ": what it was sent did not fill the control group" } else { "" };
            return Some(format!("{}: exit status {status}, where {expected} is expected{why}", self.form));
        }
        let killed = u64::from(self.form == Policy::Unlimited);
        let counted = self.killed.filter(|&counted| counted != killed)?;
        Some(format!("{}: {counted} processes killed for want of memory, where it is {killed}", self.form))
    }
}

/// A form while it runs; killed when it goes.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
}

impl Process {
    /// A process that waits, with the arguments of this one.
    fn start(form: Form) -> Result<Self, KillError> {
        let program = env::current_exe().map_err(KillError::Start)?;
        let name = form.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string());
        let mut command = Command::new(program);
        command.args(["--kill-form", &name]).args(env::args_os().skip(1));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(KillError::Start)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Ok(Self { child, stdin, stdout })
    }

    /// Lets it go on.
    fn go(&mut self) -> Result<(), KillError> {
        let Some(mut stdin) = self.stdin.take() else { return Ok(()) };
        match writeln!(stdin, "{GO}") {
            // It has ended already, and has said why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(KillError::Start),
        }
    }

    /// The last that it told, and how it ended.
    fn follow(&mut self, form: Policy) -> Result<(Progress, ExitStatus), KillError> {
        let (teller, told) = mpsc::channel();
        let lines = self.stdout.take().map(|stdout| BufReader::new(stdout).lines()).into_iter().flatten();
        // Ends with the process, at the latest.
        thread::spawn(move || {
            for progress in lines.map_while(Result::ok).filter_map(|line| Progress::parse(&line)) {
                if teller.send(progress).is_err() {
                    return;
                }
            }
        });
        let mut last = Progress::default();
        loop {
            match told.recv_timeout(PATIENCE) {
                Ok(progress) => last = progress,
                Err(RecvTimeoutError::Timeout) => return Err(KillError::Stuck { form }),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.child.wait().map_err(KillError::Start)?;
        Ok((last, status))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Mostly it has ended, and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As a shell shows it.
#[cfg(unix)]
fn shown(status: ExitStatus) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    status.code().or(status.signal().map(|signal| 128 + signal))
}

#[cfg(not(unix))]
fn shown(status: ExitStatus) -> Option<i32> {
    status.code()
}

impl Report {
    /// For people.
    fn text(&self, columns: usize) -> String {
        let limit = Bytes(self.control_group_bytes);
        if let Some(reason) = &self.skipped {
            let skipped = format!("Skipped: no control group of {limit} can be made here: {reason}.");
            return terminal::wrap(&skipped, columns);
        }
        let table = self.rows().text(columns);
        let verdict = |outcome: &Outcome| match (outcome.fault().is_some(), outcome.form) {
            (true, form) => format!("\n{form}: not as it must be"),
            (false, Policy::Unlimited) => "\nunlimited: killed by the system, ok".to_string(),
            (false, form) => format!("\n{form}: not killed, and adds up, ok"),
        };
        let setting = format!(
            "At most {} requests, the same for both, eight in nine of {} that flood; memcg under a budget of {}. \
             Each in a control group of the operating system, which may hold {limit}.",
            print::count(self.requests),
            self.noisy,
            Bytes(self.budget_bytes),
        );
        let verdicts = self.forms.iter().map(verdict).collect::<String>();
        format!("{}\n\n{table}\n\n{}\n", verdicts.trim_start(), terminal::wrap(&setting, columns))
    }

    /// A row for each form, for programs.
    fn csv(&self) -> String {
        let heads = ["form", "exit_status", "requests", "live_bytes", "peak_bytes", "seconds"];
        let mut table = Table::new(heads.map(Column::words));
        for outcome in &self.forms {
            table.add([
                outcome.form.to_string(),
                outcome.exit_status.map_or_else(String::new, |status| status.to_string()),
                outcome.requests.to_string(),
                outcome.live_bytes.to_string(),
                outcome.peak_bytes.map_or_else(String::new, |peak| peak.to_string()),
                outcome.seconds.to_string(),
            ]);
        }
        table.csv()
    }

    fn rows(&self) -> Table {
        let mut table = Table::new([
            Column::words("form"),
            Column::figures("exit status"),
            Column::figures("requests served"),
            Column::figures("last charged").leaves(2),
            Column::figures("peak of group").leaves(1),
            Column::figures("seconds").leaves(3),
        ]);
        self.forms.iter().for_each(|outcome| table.add(outcome.cells()));
        table
    }
}

impl Outcome {
    fn cells(&self) -> [String; 6] {
        let status = match self.exit_status {
            Some(KILLED) => format!("{KILLED}, killed"),
            status => status.map_or_else(|| "-".to_string(), |status| status.to_string()),
        };
        let at_least = if self.exit_status == Some(0) { "" } else { " and more" };
        [
            self.form.to_string(),
            status,
            format!("{}{at_least}", print::count(self.requests)),
            Bytes(self.live_bytes).to_string(),
            self.peak_bytes.map_or_else(|| "-".to_string(), |peak| Bytes(peak).to_string()),
            format!("{:.2}", self.seconds),
        ]
    }
}

impl From<NotMade> for NoOutcome {
    fn from(reason: NotMade) -> Self {
        Self::Skipped(reason)
    }
}

impl From<KillError> for NoOutcome {
    fn from(error: KillError) -> Self {
        Self::Failed(error)
    }
}
