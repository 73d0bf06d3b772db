//! A service in its control group, and the requests of its tenants.

use std::error::Error;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::control_group::ControlGroup;
use crate::service::{AT_ONCE, TENANTS};
use crate::{Options, Policy};

/// The time that one request may take, and the start of the service.
const PATIENCE: Duration = Duration::from_secs(60);

/// The answers of one tenant.
#[derive(Default, Serialize)]
pub(crate) struct Answers {
    pub(crate) tenant: &'static str,
    pub(crate) served: usize,
    pub(crate) refused: usize,
    /// No answer: the service was gone.
    pub(crate) lost: usize,
    /// Why the last one was refused.
    pub(crate) reason: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct Outcome {
    pub(crate) policy: Policy,
    /// As a shell shows it: 137 is the kernel's kill.
    pub(crate) exit: i32,
    /// True if the service was in a control group.
    pub(crate) contained: bool,
    pub(crate) tenants: Vec<Answers>,
}

/// Returns the answer to one request, or `None` if the service is gone.
async fn ask(port: u16, tenant: &str) -> Option<(u16, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request =
            format!("GET /run/{tenant} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = timeout(PATIENCE, exchange).await.ok()?.ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let body = answer.split_once("\r\n\r\n")?.1;
    Some((status, body.trim().to_string()))
}

/// A tenant asks `AT_ONCE` at a time.
async fn tenant(port: u16, name: &'static str, requests: usize) -> Answers {
    let mut answers = Answers {
        tenant: name,
        ..Answers::default()
    };
    let mut asks = JoinSet::new();
    for number in 0..requests + AT_ONCE {
        if number >= AT_ONCE {
            match asks.join_next().await {
                Some(Ok(Some((200, _)))) => answers.served += 1,
                Some(Ok(Some((_, why)))) => {
                    answers.refused += 1;
                    answers.reason = Some(why);
                }
                Some(_) => answers.lost += 1,
                None => {}
            }
        }
        if number < requests {
            asks.spawn(ask(port, name));
        }
    }
    answers
}

async fn start(policy: Policy, options: &Options) -> Result<Child, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--limit", &options.limit.0.to_string(), "--serve"]);
    command.arg(
        clap::ValueEnum::to_possible_value(&policy)
            .expect("no policy is hidden")
            .get_name(),
    );
    Ok(command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?)
}

pub(crate) async fn run(
    policy: Policy,
    number: usize,
    options: &Options,
) -> Result<Outcome, Box<dyn Error>> {
    let mut service = start(policy, options).await?;
    let mut input = service.stdin.take().expect("piped");
    let output = service.stdout.take().expect("piped");
    let group = if options.quick {
        Err("--quick".to_string())
    } else {
        let process = service.id().ok_or("the service has ended")?;
        ControlGroup::new(number, options.limit.0)
            .and_then(|group| group.add(process).map(|()| group))
    };
    if let (Err(why), Policy::None) = (&group, policy) {
        return Err(format!(
            "no control group, and without a limit nothing else ends the service: {why}"
        )
        .into());
    }
    input.write_u8(b'\n').await?;
    let mut line = String::new();
    timeout(PATIENCE, BufReader::new(output).read_line(&mut line)).await??;
    let port = line
        .trim()
        .parse()
        .map_err(|_| format!("the service said {line:?}"))?;
    let mut asks = JoinSet::new();
    for (name, _) in TENANTS {
        asks.spawn(tenant(port, name, options.requests));
    }
    let mut tenants = asks.join_all().await;
    tenants.sort_by_key(|answers| TENANTS.iter().position(|(name, _)| *name == answers.tenant));
    drop(input);
    let status = timeout(PATIENCE, service.wait()).await??;
    let exit = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(Outcome {
        policy,
        exit,
        contained: group.is_ok(),
        tenants,
    })
}
