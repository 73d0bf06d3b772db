//! The source of samples: a service, or a recording of one. A thread of its own asks, so that no
//! service holds up the keys.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::client::{Client, ClientError};
use crate::sample::{FORMAT, INCIDENTS_SHOWN, Sample, Want};

/// Bytes of a recording's line.
const LINE_MAX: u64 = 64 << 20;
/// The longest wait between two samples of a recording.
const GAP_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error(transparent)]
    Service(#[from] ClientError),
    #[error("recording: {0}")]
    Record(io::Error),
    #[error("recording, line {line}: {what}")]
    Replay { line: u64, what: String },
}

enum From {
    Service(Client),
    Recording { file: BufReader<File>, line: u64 },
}

pub(crate) struct Source {
    from: From,
    record: Option<Recording>,
}

/// A new file with a line for each sample. It is made with the first one, so what fails before
/// leaves none.
struct Recording {
    path: PathBuf,
    file: Option<File>,
    /// Bytes of whole lines.
    whole: u64,
}

impl Source {
    pub(crate) fn service(socket: &Path) -> Source {
        Source {
            from: From::Service(Client::new(socket.to_path_buf())),
            record: None,
        }
    }

    pub(crate) fn recording(path: &Path) -> io::Result<Source> {
        Ok(Source {
            from: From::Recording {
                file: BufReader::new(File::open(path)?),
                line: 0,
            },
            record: None,
        })
    }

    /// Keeps all samples in a new file, a line for each. Where no such file can be made it fails at
    /// once.
    pub(crate) fn record(mut self, path: &Path) -> io::Result<Source> {
        drop(new_file(path)?);
        fs::remove_file(path)?;
        self.record = Some(Recording {
            path: path.to_path_buf(),
            file: None,
            whole: 0,
        });
        Ok(self)
    }

    /// Returns the next sample; `None` where a recording ends.
    pub(crate) fn next(&mut self, want: &Want) -> Result<Option<Sample>, SourceError> {
        let sample = match &mut self.from {
            From::Recording { file, line } => return replayed(file, line),
            From::Service(client) => asked(client, want)?,
        };
        if let Some(recording) = &mut self.record {
            recording.add(&sample)?;
        }
        Ok(Some(sample))
    }

    fn set(&mut self, path: &str, file: &str, to: &str) -> String {
        match &mut self.from {
            From::Recording { .. } => "a recording's limits cannot be set".into(),
            From::Service(client) => match client.set(path, file, to) {
                Ok(()) => format!("{file} of {path} is now {to}"),
                Err(fault) => format!("{file} of {path}: {fault}"),
            },
        }
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

impl Recording {
    /// Appends a line. After a failure the file has the whole lines before it; without any, there
    /// is no file.
    fn add(&mut self, sample: &Sample) -> Result<(), SourceError> {
        let line = line_of(sample)?;
        if self.file.is_none() {
            self.file = Some(new_file(&self.path).map_err(SourceError::Record)?);
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        // In one call: a process that is killed leaves whole lines.
        let written = file.write_all(&line);
        match written {
            Ok(()) => self.whole += line.len() as u64,
            Err(_) if self.whole == 0 => {
                self.file = None;
                let _ = fs::remove_file(&self.path);
            }
            Err(_) => drop(file.set_len(self.whole)),
        }
        written.map_err(SourceError::Record)
    }
}

/// A line of a recording, which a replay takes: longer ones are refused here, too.
fn line_of(sample: &Sample) -> Result<Vec<u8>, SourceError> {
    let mut line = serde_json::to_vec(sample).map_err(|fault| SourceError::Record(fault.into()))?;
    line.push(b'\n');
    if line.len() as u64 > LINE_MAX {
        let what = format!(
            "a sample is longer than {} MiB: show fewer rows",
            LINE_MAX >> 20
        );
        return Err(SourceError::Record(io::Error::other(what)));
    }
    Ok(line)
}

fn asked(client: &mut Client, want: &Want) -> Result<Sample, ClientError> {
    let mut sample = want.fetch(now(), |path, top| match client.branch(path, top) {
        Ok(branch) => Ok(Some(branch)),
        // It has gone between two questions.
        Err(ClientError::Refused(_)) if path != "/" => Ok(None),
        Err(fault) => Err(fault),
    })?;
    if let Some(page) = &want.page {
        sample.incidents = match client.incidents(page, INCIDENTS_SHOWN) {
            Ok(incidents) => incidents,
            // It has gone, or the service is older than the question.
            Err(ClientError::Refused(_)) => Vec::new(),
            Err(fault) => return Err(fault),
        };
    }
    Ok(sample)
}

/// Returns what the next line of a recording has; `None` where there is none.
pub(crate) fn replayed(
    file: &mut impl BufRead,
    line: &mut u64,
) -> Result<Option<Sample>, SourceError> {
    *line += 1;
    let fault = |what: String| SourceError::Replay { line: *line, what };
    let mut bytes = Vec::new();
    let read = file
        .take(LINE_MAX)
        .read_until(b'\n', &mut bytes)
        .map_err(|error| fault(error.to_string()))?;
    if read == 0 && *line == 1 {
        return Err(fault("it is empty: nothing was recorded".into()));
    }
    if read == 0 {
        return Ok(None);
    }
    if bytes.last() != Some(&b'\n') && read as u64 == LINE_MAX {
        return Err(fault(format!("it is longer than {} MiB", LINE_MAX >> 20)));
    }
    let is_whole = bytes.last() == Some(&b'\n');
    let sample: Sample = serde_json::from_slice(&bytes).map_err(|error| {
        fault(if is_whole {
            error.to_string()
        } else {
            "it is cut off".into()
        })
    })?;
    if sample.format != FORMAT {
        return Err(fault(format!("format {} is not {FORMAT}", sample.format)));
    }
    // The program's display relies on it, as on the answers of a service.
    if !sample.is_whole() {
        return Err(fault("no service answers with such groups".into()));
    }
    Ok(Some(sample))
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

#[derive(Debug)]
pub(crate) enum Command {
    Want(Want),
    Pause(bool),
    Set {
        path: String,
        file: &'static str,
        to: String,
    },
}

#[derive(Debug)]
pub(crate) enum Update {
    Sample(Sample),
    /// The service does not answer; it is asked again.
    Lost(String),
    /// There is no further sample.
    Ended(String),
    Said(String),
}

/// Sends a sample each `interval`, or as they were recorded, until the receiver has gone.
pub(crate) fn run(
    mut source: Source,
    interval: Duration,
    commands: &Receiver<Command>,
    updates: &Sender<Update>,
) {
    let is_live = matches!(source.from, From::Service(_));
    // The first command says what to ask.
    let Ok(Command::Want(mut want)) = commands.recv() else {
        return;
    };
    let mut paused = false;
    let mut ended = false;
    let mut pending = None;
    let mut due = Instant::now();
    loop {
        let now = Instant::now();
        if !paused && !ended && now >= due {
            let update = pending.take().unwrap_or_else(|| pull(&mut source, &want));
            due = now + interval;
            if let (Update::Sample(sample), false) = (&update, is_live) {
                let next = pull(&mut source, &want);
                let at = if let Update::Sample(next) = &next {
                    next.at
                } else {
                    0
                };
                due = now + Duration::from_millis(at.saturating_sub(sample.at)).min(GAP_MAX);
                pending = Some(next);
            }
            ended = matches!(update, Update::Ended(_));
            if updates.send(update).is_err() {
                return;
            }
        }
        let idle = paused || ended;
        let rest = if idle {
            Duration::from_secs(3_600)
        } else {
            due.saturating_duration_since(Instant::now())
        };
        match commands.recv_timeout(rest) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(Command::Want(new)) => {
                want = new;
                // A group that has come into view is not waited for.
                due = if is_live { Instant::now() } else { due };
            }
            Ok(Command::Pause(pause)) => (paused, due) = (pause, Instant::now()),
            Ok(Command::Set { path, file, to }) => {
                due = if is_live { Instant::now() } else { due };
                if updates
                    .send(Update::Said(source.set(&path, file, &to)))
                    .is_err()
                {
                    return;
                }
            }
        }
    }
}

fn pull(source: &mut Source, want: &Want) -> Update {
    match source.next(want) {
        Ok(Some(sample)) => Update::Sample(sample),
        Ok(None) => Update::Ended("the recording ends here".into()),
        Err(SourceError::Service(fault)) => Update::Lost(fault.to_string()),
        Err(fault) => Update::Ended(fault.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_replayed_up_to_the_longest_line() {
        let sample = |length| Sample {
            format: FORMAT,
            at: 7,
            page: Some("x".repeat(length)),
            branches: Vec::new(),
            incidents: Vec::new(),
        };
        let longest = sample(LINE_MAX as usize - line_of(&sample(0)).unwrap().len());
        let line = line_of(&longest).unwrap();
        assert_eq!(line.len() as u64, LINE_MAX);
        assert_eq!(
            replayed(&mut line.as_slice(), &mut 0).unwrap(),
            Some(longest.clone())
        );

        let longer = Sample { at: 77, ..longest };
        let fault = line_of(&longer).unwrap_err().to_string();
        assert_eq!(
            fault,
            "recording: a sample is longer than 64 MiB: show fewer rows"
        );
        assert!(
            replayed(&mut &b""[..], &mut 0).is_err()
                && replayed(&mut &b""[..], &mut 1).unwrap().is_none()
        );
    }
}
