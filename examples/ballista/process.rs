//! The processes of a cluster: this program again, in other roles.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::control_group::ControlGroup;
use crate::{Options, Sharing};

const ROLE: &str = "MEMCG_BALLISTA_ROLE";

/// The time that a process may take to be ready.
const PATIENCE: Duration = Duration::from_secs(120);

/// The size that the C library gives back to the system at once, and the number of its heaps: the
/// same for each executor, so that the count of its control group follows its allocations.
const MALLOC: [(&str, &str); 2] = [
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
    ("MALLOC_ARENA_MAX", "2"),
];

/// The words of the role that this process was started in; `None` for the one that compares.
pub(crate) fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// A port of this machine that was free a moment ago.
pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A scheduler and two executors. Their processes end with the value.
pub(crate) struct Cluster {
    pub(crate) url: String,
    pub(crate) executors: Vec<Executor>,
    /// Why an executor is in no control group.
    pub(crate) unlimited: Option<String>,
    _scheduler: Process,
    _files: TempDir,
}

pub(crate) struct Executor {
    process: Process,
    /// The most anonymous memory that a look has seen.
    pub(crate) peak: u64,
    // After the process, which is in it.
    _group: Option<ControlGroup>,
}

impl Cluster {
    pub(crate) async fn start(
        sharing: Sharing,
        options: &Options,
    ) -> Result<Cluster, Box<dyn Error>> {
        let files = TempDir::new()?;
        let limit = options.limit.0;
        let port = free_port()?;
        let mut scheduler = Process::start(&format!("scheduler {port}"))?;
        scheduler.go().await?;
        let mut executors = Vec::new();
        let mut unlimited = None;
        for number in 0..2 {
            let dir = files.path().join(number.to_string());
            std::fs::create_dir(&dir)?;
            let process = Process::start(&format!(
                "executor {port} {sharing:?} {limit} {}",
                dir.display()
            ))?;
            let group = if options.quick {
                Err("--quick".to_string())
            } else {
                ControlGroup::new(number, limit)
                    .and_then(|group| group.add(process.child.id()).map(|()| group))
            };
            let group = group.map_err(|why| unlimited = Some(why)).ok();
            executors.push(Executor {
                process,
                peak: 0,
                _group: group,
            });
        }
        if let Some(why) = &unlimited {
            eprintln!("executors without a control group: {why}");
        }
        for executor in &mut executors {
            executor.process.go().await?;
        }
        let url = format!("http://127.0.0.1:{port}");
        Ok(Cluster {
            url,
            executors,
            unlimited,
            _scheduler: scheduler,
            _files: files,
        })
    }
}

impl Executor {
    /// Looks at the process: how much anonymous memory it has, and whether it has ended.
    pub(crate) fn look(&mut self) -> Option<ExitStatus> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.child.id()))
            .unwrap_or_default();
        let anon = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = anon
            .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok())
            .unwrap_or(0);
        self.peak = self.peak.max(kib << 10);
        self.process.child.try_wait().ok().flatten()
    }
}

/// The number that a shell shows for an exit status.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// A process that waits for a line before it begins, says `ready`, and ends with its input.
struct Process {
    child: Child,
    input: ChildStdin,
    said: mpsc::UnboundedReceiver<String>,
}

impl Process {
    fn start(role: &str) -> Result<Process, Box<dyn Error>> {
        let mut command = Command::new(env::current_exe()?);
        command
            .env(ROLE, role)
            .envs(MALLOC)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a child without pipes".into());
        };
        let (sender, said) = mpsc::unbounded_channel();
        thread::spawn(move || {
            BufReader::new(output)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Ok(Process { child, input, said })
    }

    async fn go(&mut self) -> Result<(), Box<dyn Error>> {
        writeln!(self.input, "go")?;
        match tokio::time::timeout(PATIENCE, self.said.recv()).await {
            Ok(Some(line)) if line == "ready" => Ok(()),
            Ok(Some(line)) => Err(format!("a process of the cluster said {line:?}").into()),
            Ok(None) => Err("a process of the cluster has ended before it was ready".into()),
            Err(_) => Err(format!(
                "a process of the cluster was not ready in {} s",
                PATIENCE.as_secs()
            )
            .into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
